//! Captured graphs: what they read and write, and what each launch makes of the twins.

use super::operation::{Node, On, Work};
use super::values::{Value, calculated};
use super::views::{LEN_MAX, Look, Slices, Turn, fit, of_twin, of_twin_mut, shape_of, turned, turned_mut};
use super::world::{Real, Slot, Step, World, in_place, turns, with, write_twin_view, write_view};
use crate::array::ndarray::{ArrayD, IxDyn, arr0};
use crate::array::{ArrayError, CaptureGpu, Gpu, GpuArray, GpuGraph, GraphError, GraphScalar, Number, Out};
use crate::model::operation::Pick;
use crate::model::step::text;

/// A graph and its operations.
pub(super) struct Built<T> {
    name: u32,
    graph: GpuGraph,
    device: usize,
    plan: Plan,
    numbers: Vec<(Number<T>, T)>,
    out: Option<Out<T, IxDyn>>,
}

/// The operations of a graph.
struct Plan {
    nodes: Vec<Recorded>,
    /// A view times a number.
    out: Option<(Place, i8)>,
    /// The arrays, the number of their moves at the capture, and whether they are written.
    uses: Vec<(u32, u32, bool)>,
}

/// A view of an array, by the array's name.
struct Place {
    array: u32,
    turns: Vec<Turn>,
    slices: Option<Slices>,
}

struct Recorded {
    target: Place,
    source: Option<Place>,
    work: Work,
    /// The index of the number that it reads.
    number: usize,
}

type Captured<T> = (Vec<GraphScalar<T>>, Option<GpuArray<T, IxDyn>>);
/// Numbers with their values, and the result.
type WithValues<T> = (Vec<(Number<T>, T)>, Option<Out<T, IxDyn>>);
type Tokens<T> = (Vec<Number<T>>, Option<Out<T, IxDyn>>);

impl<T: Value> World<'_, T> {
    pub(super) fn capture(
        &mut self,
        on: On,
        nodes: &[Node],
        numbers: &[i8],
        out: Option<&(Look, i8)>,
    ) -> Step {
        if self.graphs.len() >= GRAPHS_MAX {
            return Ok(false);
        }
        let (gpu, on_name) = self.any(on);
        let device = usize::from(on.0) % 6 / 3;
        let name = self.next_name;
        self.next_name += 1;
        self.said.push(format!("let g{name} = {on_name}.capture(numbers {numbers:?})"));
        let plan = self.plan(device, nodes, numbers.len(), out);
        let arrays = &mut self.arrays;
        let captured = gpu.capture(|c| record(arrays, &plan, numbers, c)).map_err(text)?;
        let (graph, tokens) = captured;
        let (numbers, out) = with_values(tokens, numbers);
        self.graphs.push(Built { name, graph, device, plan, numbers, out });
        Ok(true)
    }

    pub(super) fn update(
        &mut self,
        graph: Pick,
        nodes: &[Node],
        numbers: &[i8],
        out: Option<&(Look, i8)>,
    ) -> Step {
        let Some(index) = graph.of(self.graphs.len()) else { return Ok(false) };
        let device = self.graphs[index].device;
        let gpu = self.gpus[3 * device].clone();
        self.said.push(format!("g{}.update(numbers {numbers:?})", self.graphs[index].name));
        let plan = self.plan(device, nodes, numbers.len(), out);
        let (arrays, built) = (&mut self.arrays, &mut self.graphs[index]);
        let tokens: Tokens<T> =
            built.graph.update(&gpu, |c| record(arrays, &plan, numbers, c)).map_err(text)?;
        (built.numbers, built.out) = with_values(tokens, numbers);
        built.plan = plan;
        Ok(true)
    }

    /// The nodes that have an effect, on arrays of this device.
    fn plan(&mut self, device: usize, nodes: &[Node], number_count: usize, out: Option<&(Look, i8)>) -> Plan {
        let mut plan = Plan { nodes: Vec::new(), out: None, uses: Vec::new() };
        for Node { target, work } in nodes {
            if let Some(node) = self.planned(device, target, work, number_count) {
                let said =
                    format!("    a{}{} {}", node.target.array, turns(&target.turns), self.describe(work));
                self.said.push(said);
                self.note(&mut plan, &node.target, true);
                if let Some(source) = &node.source {
                    self.note(&mut plan, source, false);
                }
                plan.nodes.push(node);
            }
        }
        if let Some((look, value)) = out
            && let Some(slot) = self.find(look.array).map(|index| &self.arrays[index])
        {
            let len: usize = shape_of(slot.twin.shape(), &look.turns).iter().product();
            if slot.device == device && (1..=LEN_MAX).contains(&len) {
                self.said.push(format!("    out: a{}{} * {value}", slot.name, turns(&look.turns)));
                let place = Place { array: slot.name, turns: look.turns.clone(), slices: None };
                self.note(&mut plan, &place, false);
                plan.out = Some((place, *value));
            }
        }
        plan
    }

    fn planned(&self, device: usize, target: &Look, work: &Work, number_count: usize) -> Option<Recorded> {
        let slot = &self.arrays[self.find(target.array)?];
        let shape = shape_of(slot.twin.shape(), &target.turns);
        let number = match work {
            Work::Number(_, number) => usize::from(number.0).checked_rem(number_count)?,
            _ => 0,
        };
        let mut place = Place { array: slot.name, turns: target.turns.clone(), slices: None };
        let mut used: usize = shape.iter().product();
        let source = match work.source() {
            Some(look) => {
                let other = &self.arrays[self.find(look.array)?];
                let (targets, sources) = fit(&shape, &shape_of(other.twin.shape(), &look.turns), false)?;
                if other.name == slot.name || other.device != device {
                    return None;
                }
                used = targets.iter().map(len_of).product();
                place.slices = Some(targets);
                Some(Place { array: other.name, turns: look.turns.clone(), slices: Some(sources) })
            }
            None => None,
        };
        // A use of no elements is none, and a launch does not take its array.
        (slot.device == device && used > 0).then(|| Recorded {
            target: place,
            source,
            work: work.clone(),
            number,
        })
    }

    fn note(&self, plan: &mut Plan, place: &Place, writes: bool) {
        let moves = self.arrays.iter().find(|slot| slot.name == place.array).map_or(0, |slot| slot.moves);
        match plan.uses.iter_mut().find(|(name, ..)| *name == place.array) {
            Some((.., is_written)) => *is_written |= writes,
            None => plan.uses.push((place.array, moves, writes)),
        }
    }

    pub(super) fn launch(
        &mut self,
        graph: Pick,
        on: On,
        set: Option<(Pick, i8)>,
        reader: On,
        is_kept: bool,
    ) -> Step {
        let Some(index) = graph.of(self.graphs.len()) else { return Ok(false) };
        let device = self.graphs[index].device;
        let ((gpu, name), (reader, reader_name)) =
            (self.of_device(on, device), self.of_device(reader, device));
        let Built { name: graph_name, graph, plan, numbers, out, .. } = &mut self.graphs[index];
        let said = format!("g{graph_name}.launch({name}) set {set:?}, read on {reader_name}");
        let mut launch = graph.launch(&gpu);
        let mut found = 0;
        for slot in &mut self.arrays {
            let is_use = |(name, moves, _): &&(u32, u32, bool)| (*name, *moves) == (slot.name, slot.moves);
            let Some((.., is_written)) = plan.uses.iter().find(is_use) else { continue };
            found += 1;
            launch = match is_written {
                true => with!(&mut slot.array, array => launch.write(array)),
                false => with!(&slot.array, array => launch.read(array)),
            };
        }
        let set = set
            .and_then(|(pick, value)| Some((usize::from(pick.0).checked_rem(numbers.len())?, T::of(value))));
        if let Some((number, value)) = set {
            launch = launch.set(&numbers[number].0, value);
        }
        self.said.push(said.clone());
        let is_complete = found == plan.uses.len();
        let done = match launch.run() {
            Ok(done) if is_complete => done,
            Ok(_) => return Err(format!("{said} lacks an array and ran")),
            Err(ArrayError::Graph(GraphError::MissingArgument { .. })) if !is_complete => {
                self.said.push("// refused: an array is gone".into());
                self.coverage.refused += 1;
                return Ok(true);
            }
            Err(error) => return Err(error.to_string()),
        };
        let found = match out {
            Some(out) => {
                let view = done.get(out).map_err(text)?;
                let view = view.on(&reader);
                Some(if is_kept {
                    Ok(view.to_owned().map_err(text)?)
                } else {
                    Err(view.to_array().map_err(text)?)
                })
            }
            None => None,
        };
        if let Some((number, value)) = set {
            numbers[number].1 = value;
        }
        for node in &plan.nodes {
            let number = numbers.get(node.number).map_or(T::of(0), |(_, value)| *value);
            run_on_twins(&mut self.arrays, node, number)?;
        }
        let expected = match &plan.out {
            Some((place, value)) => {
                let view = elements(&self.arrays, place)?;
                Some(calculated(super::operation::Arithmetic::Mul, &view, &arr0(T::of(*value)).into_dyn())?)
            }
            None => None,
        };
        match (found, expected) {
            (Some(Ok(array)), Some(expected)) => {
                self.add(Real::Device(array), expected, device, "its result")
            }
            (Some(Err(found)), Some(expected)) => self.compare(&said, &found, &expected)?,
            _ => {}
        }
        Ok(true)
    }

    pub(super) fn drop_graph(&mut self, graph: Pick) -> Step {
        let Some(index) = graph.of(self.graphs.len()) else { return Ok(false) };
        let built = self.graphs.remove(index);
        self.said.push(format!("drop(g{})", built.name));
        Ok(true)
    }
}

fn with_values<T: Value>((tokens, out): Tokens<T>, values: &[i8]) -> WithValues<T> {
    (tokens.into_iter().zip(values.iter().map(|value| T::of(*value))).collect(), out)
}

/// Queues the operations on the stream of a capture.
fn record<T: Value>(
    arrays: &mut [Slot<T>],
    plan: &Plan,
    numbers: &[i8],
    c: &CaptureGpu,
) -> Result<Captured<T>, ArrayError> {
    let gpu: &Gpu = c;
    let numbers = numbers.iter().map(|value| c.scalar(T::of(*value))).collect::<Result<Vec<_>, _>>()?;
    for Recorded { target, source, work, number } in &plan.nodes {
        let (before, rest) = arrays.split_at_mut(position(arrays, target.array));
        let Some((slot, after)) = rest.split_first_mut() else { continue };
        let source = source.as_ref().and_then(|place| {
            let mut others = before.iter().chain(after.iter());
            others.find(|other| other.name == place.array).map(|other| (other, place))
        });
        let source = match source {
            Some((other, Place { turns, slices, .. })) => {
                let view = turned(other.array.view(), turns)?;
                Some(view.slice(&slices.clone().unwrap_or_default()[..])?)
            }
            None => None,
        };
        let mut view = turned_mut(slot.array.view_mut().on_mut(gpu), &target.turns)?;
        if let Some(slices) = &target.slices {
            view = view.slice_mut(&slices[..])?;
        }
        match numbers.get(*number) {
            Some(number) => write_view(view, source.as_ref(), work, gpu, &|operation, target| {
                in_place(operation, target, number)
            })?,
            None => write_view(view, source.as_ref(), work, gpu, &|operation, target| {
                in_place(operation, target, T::of(0))
            })?,
        }
    }
    let out = match &plan.out {
        Some((place, value)) => {
            let slot = &arrays[position(arrays, place.array)];
            Some(turned(slot.array.view(), &place.turns)?.on(gpu).try_mul(T::of(*value))?)
        }
        None => None,
    };
    Ok((numbers, out))
}

fn position<T>(arrays: &[Slot<T>], name: u32) -> usize {
    arrays.iter().position(|slot| slot.name == name).unwrap_or(0)
}

/// The elements of a view.
fn elements<T: Value>(arrays: &[Slot<T>], place: &Place) -> Result<ArrayD<T>, String> {
    let slot = arrays.iter().find(|slot| slot.name == place.array).ok_or("an array of a graph is gone")?;
    let elements = of_twin(slot.twin.view(), &place.turns);
    Ok(match &place.slices {
        Some(slices) => elements.slice(&slices[..]).to_owned(),
        None => elements,
    })
}

fn run_on_twins<T: Value>(arrays: &mut [Slot<T>], node: &Recorded, number: T) -> Result<(), String> {
    let source = node.source.as_ref().map(|place| elements(arrays, place)).transpose()?;
    let slot = arrays.iter_mut().find(|slot| slot.name == node.target.array);
    let slot = slot.ok_or("an array of a graph is gone")?;
    let mut view = of_twin_mut(slot.twin.view_mut(), &node.target.turns);
    if let Some(slices) = &node.target.slices {
        view = view.slice_move(&slices[..]);
    }
    write_twin_view(view, source.as_ref(), &node.work, number)
}

/// The length that a slice from 0 leaves.
fn len_of(slice: &crate::array::ndarray::SliceInfoElem) -> usize {
    match slice {
        crate::array::ndarray::SliceInfoElem::Slice { end: Some(end), .. } => end.unsigned_abs(),
        _ => 1,
    }
}

const GRAPHS_MAX: usize = 4;

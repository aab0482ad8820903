//! Runs a program on two devices beside its twin, and writes a transcript.

use super::coverage::ArrayCoverage;
use super::expressions::{assign_formula, formula_of_twin, update_formula};
use super::graphs::Built;
use super::operation::{Arithmetic, Case, How, On, Operation, Place, Right, Work};
use super::transfers::Transfer;
use super::values::{Value, calculated};
use super::views::{
    self, LEN_MAX, Look, Slices, Turn, fit, of_twin, of_twin_mut, reduced, shape_of, turned, turned_mut,
    typed,
};
use crate::array::dlpack::{DlpackArray, dlpark};
use crate::array::ndarray::{self, Array, Array2, ArrayD, ArrayViewMutD, Axis, Ix1, Ix2, IxDyn, arr0};
use crate::array::{
    self, ArrayError, Broadcast, Gpu, GpuArray, GpuView, GpuViewMut, Operand, PinnedArray, Rng, UnifiedArray,
    UninitArray,
};
use crate::model::operation::Pick;
use crate::model::places::of_its_own;
use crate::model::step::text;
use crate::model::subject::Subject;
use crate::pool::{Device, Stream};
use crate::sys::{Driver, Table};
use gpumem_sim::{Sim, SimConfig};

/// Runs a case of one element type.
pub(super) fn run<T: Value>(
    case: &Case,
    subject: Subject,
    sabotage: Option<fn(&mut Table)>,
    coverage: &mut ArrayCoverage,
    transcript: &mut Vec<String>,
) -> Result<(), String> {
    let config = SimConfig::new().seed(case.sim_seed).devices(2);
    let config = if case.has_link { config } else { config.without_link(0, 1) };
    let driver = gpumem_sim::driver(config).map_err(text)?;
    let sim = Sim::of(&driver).ok_or("no simulator")?.clone();
    let driver = match sabotage {
        // SAFETY: the caller breaks the order of work, which the simulator reports.
        Some(sabotage) => unsafe { driver.with_table(sabotage) },
        None => driver,
    };
    let link = if case.has_link { "" } else { ".without_link(0, 1)" };
    transcript
        .push(format!("SimConfig::new().seed({}).devices(2){link} // {:?}", case.sim_seed, case.numbers));
    let outcome = World::<T>::new(case, subject, &driver, &sim, coverage, transcript)
        .and_then(|world| world.run_all(&case.operations));
    // Nothing is left of the world.
    let findings = sim.report().silent_findings();
    match (outcome, findings.first()) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(finding)) => Err(format!("the simulator found: {finding}")),
        (Err(what), None) => Err(what),
        (Err(what), Some(finding)) => Err(format!("{what}; the simulator found: {finding}")),
    }
}

/// An array in memory of any kind.
pub(super) enum Real<T> {
    Device(GpuArray<T, IxDyn>),
    Unified(UnifiedArray<T, IxDyn>),
    Pinned(PinnedArray<T, IxDyn>),
}

/// Evaluates an expression with the array of a [`Real`], whatever its kind.
macro_rules! with {
    ($real:expr, $array:ident => $body:expr) => {
        match $real {
            Real::Device($array) => $body,
            Real::Unified($array) => $body,
            Real::Pinned($array) => $body,
        }
    };
}

/// Replaces the array of a [`Real`] by one of its kind.
macro_rules! replaced {
    ($real:expr, $array:ident => $body:expr) => {
        match $real {
            Real::Device($array) => Real::Device($body),
            Real::Unified($array) => Real::Unified($body),
            Real::Pinned($array) => Real::Pinned($body),
        }
    };
}
pub(super) use with;

impl<T: Value> Real<T> {
    pub(super) fn view(&self) -> GpuView<'_, T, IxDyn> {
        with!(self, array => array.view())
    }

    pub(super) fn view_mut(&mut self) -> GpuViewMut<'_, T, IxDyn> {
        with!(self, array => array.view_mut())
    }

    /// True if the elements are in row-major order in memory.
    pub(super) fn is_by_rows(&self) -> bool {
        let view = self.view();
        view.reshape(view.len()).is_ok()
    }
}

/// An array and its twin.
pub(super) struct Slot<T> {
    pub(super) name: u32,
    pub(super) array: Real<T>,
    pub(super) twin: ArrayD<T>,
    /// The device of its memory.
    pub(super) device: usize,
    /// The number of times that the elements moved to other memory, or became more or fewer, which graphs do not follow.
    pub(super) moves: u32,
    /// True if the memory grows in place, and belongs to its device alone.
    pub(super) is_growable: bool,
}

/// The state of a running case.
pub(super) struct World<'a, T: Value> {
    pub(super) sim: Sim,
    pub(super) driver: Driver,
    pub(super) has_link: bool,
    /// True if the pools have blocks that grow in place.
    grows: bool,
    /// True if arrays move to the host between operations.
    spills: bool,
    draws: u64,
    /// Three on each device.
    pub(super) gpus: Vec<Gpu>,
    /// The stream of another library, on each device.
    pub(super) others: Vec<Stream>,
    pub(super) arrays: Vec<Slot<T>>,
    pub(super) graphs: Vec<Built<T>>,
    pub(super) transfers: Vec<Transfer<T>>,
    pub(super) next_name: u32,
    pub(super) coverage: &'a mut ArrayCoverage,
    pub(super) said: &'a mut Vec<String>,
}

/// The result of an operation: true if it had an effect.
pub(super) type Step = Result<bool, String>;

impl<'a, T: Value> World<'a, T> {
    fn new(
        case: &Case,
        subject: Subject,
        driver: &Driver,
        sim: &Sim,
        coverage: &'a mut ArrayCoverage,
        said: &'a mut Vec<String>,
    ) -> Result<Self, String> {
        let (mut gpus, mut others) = (Vec::new(), Vec::new());
        for ordinal in 0..2 {
            let device = Device::new(driver, ordinal).map_err(text)?;
            let pool =
                if case.spills() { subject.open_spilling(&device) } else { subject.open_plain(&device) };
            let first = Gpu::new(&pool.map_err(text)?).map_err(text)?;
            let forks = [first.fork().map_err(text)?, first.fork().map_err(text)?];
            gpus.push(first);
            gpus.extend(forks);
            others.push(Stream::new(&device).map_err(text)?);
        }
        Ok(Self {
            sim: sim.clone(),
            driver: driver.clone(),
            has_link: case.has_link,
            grows: subject.grows(),
            spills: case.spills(),
            draws: case.sim_seed,
            gpus,
            others,
            arrays: Vec::new(),
            graphs: Vec::new(),
            transfers: Vec::new(),
            next_name: 0,
            coverage,
            said,
        })
    }

    /// In a program that spills, moves some arrays of a device to the host, drawn from the seed and the number of names so far.
    fn spill(&mut self) -> Result<(), String> {
        if !self.spills {
            return Ok(());
        }
        self.draws =
            self.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (device, share) = ((self.draws >> 40) as usize % 2, (self.draws >> 50) % 4);
        if share > 0 {
            let pool = self.gpus[3 * device].pool();
            let in_use_bytes = pool.status().map_err(text)?.in_use_bytes;
            if pool.spill(in_use_bytes * share / 3).map_err(text)? > 0 {
                self.coverage.count("spill");
            }
        }
        Ok(())
    }

    fn run_all(mut self, operations: &[Operation]) -> Result<(), String> {
        for operation in operations {
            self.spill()?;
            if self.step(operation)? {
                self.coverage.count(operation.name());
            }
        }
        self.finish().map_err(|what| format!("at the end: {what}"))
    }

    fn step(&mut self, operation: &Operation) -> Step {
        match operation {
            Operation::New { on, place, shape, how } => self.create(*on, *place, shape, *how),
            Operation::Calculate { left, operation, right, on } => {
                self.calculate(left, *operation, right, *on)
            }
            Operation::Write { target, work, on } => self.write(target, work, *on),
            Operation::Copy { source, on, place } => self.copy(source, *on, *place),
            Operation::Own { source, on } => self.own(source, *on),
            Operation::Sum { source, on, reader, is_kept } => self.sum(source, *on, *reader, *is_kept),
            Operation::Product { left, right, on } => self.product(left, right, *on),
            Operation::Express { left, right, formula, on } => self.express(left, right, *formula, *on),
            Operation::UpdateTwo { first, second, turns, formula, on } => {
                self.update_two([*first, *second], turns, *formula, *on)
            }
            Operation::Reduce { left, right, number, reduction, axis, on } => {
                self.reduce((left, right, *number), *reduction, *axis, *on)
            }
            Operation::Derive { sources, tree, derived, on } => self.derive(sources, tree, *derived, *on),
            Operation::Select { source, indices, on } => self.select(source, indices, *on),
            Operation::ScatterAdd { target, source, indices, on } => {
                self.scatter_add(target, source, indices, *on)
            }
            Operation::Choose { source, axis, number, on } => self.choose(source, *axis, *number, *on),
            Operation::Matrices { left, right, on } => self.matrices(left, right, *on),
            Operation::Join { parts, axis, stacks } => self.join(parts, *axis, *stacks),
            Operation::Resize { array, len, value } => self.resize(*array, *len, *value),
            Operation::Append { array, other } => self.append(*array, other),
            Operation::Extend { array, count } => self.extend(*array, *count),
            Operation::Upload { target, on } => self.upload(target, *on),
            Operation::Check { source, on } => self.check(source, *on),
            Operation::HostRead { array } => self.host_read(*array),
            Operation::HostWrite { array, index, value } => self.host_write(*array, *index, *value),
            Operation::Lend { array, other, value, leaks } => self.lend(*array, *other, *value, *leaks),
            Operation::Swap { array, other } => self.swap(*array, *other),
            Operation::Registered { len, on, other, value } => self.registered(*len, (*on, *other), *value),
            Operation::Halves { array, axis, at, interleaves, steps, threads } => {
                self.halves(*array, (*axis, *at, *interleaves), steps, *threads)
            }
            Operation::Share { arrays, thread_count, work } => self.share(arrays, *thread_count, work),
            Operation::StartUpload { on, shape, owned } => self.start_upload(*on, shape, *owned),
            Operation::StartDownload { source, on, owned } => self.start_download(source, *on, *owned),
            Operation::EndTransfer { transfer, end } => self.end_transfer(*transfer, *end),
            Operation::Capture { on, nodes, numbers, out } => self.capture(*on, nodes, numbers, out.as_ref()),
            Operation::Update { graph, nodes, numbers, out } => {
                self.update(*graph, nodes, numbers, out.as_ref())
            }
            Operation::Launch { graph, on, set, reader, is_kept } => {
                self.launch(*graph, *on, *set, *reader, *is_kept)
            }
            Operation::DropGraph { graph } => self.drop_graph(*graph),
            Operation::Move { array, on } => self.move_to(*array, *on),
            Operation::Block { array, on } => self.through_block(*array, *on),
            Operation::Dlpack { array, on, value } => self.through_dlpack(*array, *on, *value),
            Operation::Drop { array, elsewhere } => self.drop_array(*array, *elsewhere),
            Operation::Synchronize { on } => {
                let (gpu, name) = self.any(*on);
                self.said.push(format!("{name}.synchronize()"));
                gpu.synchronize().map_err(text).map(|()| true)
            }
        }
    }

    /// Compares everything that is left, in the order of creation.
    fn finish(mut self) -> Result<(), String> {
        self.graphs.clear();
        while !self.transfers.is_empty() {
            self.end_transfer(Pick(1), super::operation::End::Wait)?;
        }
        for slot in std::mem::take(&mut self.arrays) {
            let found = slot.array.view().to_array().map_err(text)?;
            self.compare(&format!("a{}", slot.name), &found, &slot.twin)?;
        }
        Ok(())
    }

    /// A stream of the device, or of any device.
    pub(super) fn near(&self, on: On, device: usize) -> (Gpu, String, usize) {
        let index = if on.0 < 192 { 3 * device + usize::from(on.0) % 3 } else { usize::from(on.0) % 6 };
        (self.gpus[index].clone(), name_of(index), index / 3)
    }

    /// A stream of the device.
    pub(super) fn of_device(&self, on: On, device: usize) -> (Gpu, String) {
        let index = 3 * device + usize::from(on.0) % 3;
        (self.gpus[index].clone(), name_of(index))
    }

    pub(super) fn any(&self, on: On) -> (Gpu, String) {
        let index = usize::from(on.0) % self.gpus.len();
        (self.gpus[index].clone(), name_of(index))
    }

    pub(super) fn find(&self, pick: Pick) -> Option<usize> {
        pick.of(self.arrays.len())
    }

    /// Adds an array. The oldest is dropped if there are too many.
    pub(super) fn add(&mut self, array: Real<T>, twin: ArrayD<T>, device: usize, made: &str) {
        if self.arrays.len() >= ARRAYS_MAX {
            let oldest = self.arrays.remove(0);
            self.said.push(format!("drop(a{})", oldest.name));
        }
        let name = self.next_name;
        self.next_name += 1;
        self.said.push(format!("let a{name} = {made} // {:?}", twin.shape()));
        self.arrays.push(Slot { name, array, twin, device, moves: 0, is_growable: false });
    }

    /// Devices without a link refuse each other's memory, and change nothing.
    pub(super) fn allowed<R>(
        &mut self,
        outcome: Result<R, ArrayError>,
        devices: &[usize],
    ) -> Result<Option<R>, String> {
        let is_across = devices.windows(2).any(|pair| pair[0] != pair[1]);
        match outcome {
            Ok(result) => Ok(Some(result)),
            Err(error) if is_across && is_refusal(&error, self.has_link) => {
                self.coverage.refused += 1;
                self.said.push("// refused: no link".into());
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn compare(
        &mut self,
        name: &str,
        found: &ArrayD<T>,
        expected: &ArrayD<T>,
    ) -> Result<(), String> {
        self.coverage.compared += expected.len() as u64;
        same(name, found, expected)
    }

    fn create(&mut self, on: On, place: Place, shape: &[usize], how: How) -> Step {
        let index = usize::from(on.0) % self.gpus.len();
        let (gpu, name) = self.any(on);
        if matches!((place, how), (Place::Device, How::Growable)) && self.grows {
            let twin = numbered::<T>(&[shape.iter().product()]);
            let elements: Vec<T> = twin.iter().copied().collect();
            let mut array = GpuArray::growable(&gpu, LEN_MAX).map_err(text)?;
            array.extend_from_slice(&elements).map_err(text)?;
            self.add(
                Real::Device(array.into_dyn()),
                twin,
                index / 3,
                &format!("{name}.growable({})", elements.len()),
            );
            self.arrays.iter_mut().next_back().into_iter().for_each(|slot| slot.is_growable = true);
            return Ok(true);
        }
        let (array, twin) = match place {
            Place::Device => made(&gpu, shape, how).map(|(array, twin)| (Real::Device(array), twin)),
            Place::Unified => {
                made(&gpu.unified(), shape, how).map(|(array, twin)| (Real::Unified(array), twin))
            }
            Place::Pinned => made(&gpu.pinned(), shape, how).map(|(array, twin)| (Real::Pinned(array), twin)),
        }
        .map_err(text)?;
        self.add(array, twin, index / 3, &format!("{name}.new({place:?}, {shape:?}, {how:?})"));
        Ok(true)
    }

    fn calculate(&mut self, left: &Look, operation: Arithmetic, right: &Right, on: On) -> Step {
        let Some(l) = self.find(left.array) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[l].device);
        let slot = &self.arrays[l];
        let view = turned(slot.array.view(), &left.turns).map_err(text)?;
        let said = format!("a{}{} {operation:?}", slot.name, turns(&left.turns));
        let theirs = of_twin(slot.twin.view(), &left.turns);
        let (outcome, twin, said, devices) = match right {
            Right::Value(value) => {
                let value = T::of(*value);
                let twin = calculated(operation, &theirs, &arr0(value).into_dyn())?;
                (
                    result(operation, &view.on(&gpu), value),
                    twin,
                    format!("{said} {value:?}"),
                    vec![slot.device, device],
                )
            }
            Right::Array(look) => {
                let Some(r) = self.find(look.array) else { return Ok(false) };
                let other = &self.arrays[r];
                let second = turned(other.array.view(), &look.turns).map_err(text)?;
                let Some((lefts, rights)) = fit(view.shape(), second.shape(), true) else { return Ok(false) };
                let (view, second) =
                    (view.slice(&lefts[..]).map_err(text)?, second.slice(&rights[..]).map_err(text)?);
                if views::joint(view.shape(), second.shape()).iter().product::<usize>() > LEN_MAX {
                    return Ok(false);
                }
                let theirs = theirs.slice(&lefts[..]).to_owned();
                let second_twin = of_twin(other.twin.view(), &look.turns).slice(&rights[..]).to_owned();
                let twin = calculated(operation, &theirs, &second_twin)?;
                let said = format!("{said} a{}{}", other.name, turns(&look.turns));
                (
                    result(operation, &view.on(&gpu), &second),
                    twin,
                    said,
                    vec![slot.device, device, other.device],
                )
            }
        };
        let said = format!("{name}: {said}");
        if let Some(array) = self.allowed(outcome, &devices)? {
            self.add(Real::Device(array), twin, device, &said);
        }
        Ok(true)
    }

    fn write(&mut self, target: &Look, work: &Work, on: On) -> Step {
        let Some(index) = self.find(target.array) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[index].device);
        let mut slot = self.arrays.remove(index);
        let outcome = self.write_slot(&mut slot, &target.turns, work, (&gpu, &name, device));
        self.arrays.insert(index, slot);
        outcome
    }

    fn write_slot(
        &mut self,
        slot: &mut Slot<T>,
        steps: &[Turn],
        work: &Work,
        (gpu, name, device): (&Gpu, &str, usize),
    ) -> Step {
        let said = format!("{name}: a{}{} {}", slot.name, turns(steps), self.describe(work));
        let shape = shape_of(slot.twin.shape(), steps);
        let Some(parts) = parts(&self.arrays, &shape, work) else { return Ok(false) };
        self.said.push(said);
        let devices = parts.devices([slot.device, device]);
        let target = turned_mut(slot.array.view_mut().on_mut(gpu), steps).map_err(text)?;
        let outcome = write_real(target, &parts, work, gpu);
        if self.allowed(outcome, &devices)?.is_some() {
            let parts = parts_of_twin(&self.arrays, &shape, work);
            write_twin(of_twin_mut(slot.twin.view_mut(), steps), parts, work)?;
        }
        Ok(true)
    }

    pub(super) fn describe(&self, work: &Work) -> String {
        let name = |look: &Look| match self.find(look.array) {
            Some(index) => format!("a{}{}", self.arrays[index].name, turns(&look.turns)),
            None => "nothing".into(),
        };
        match work {
            Work::Fill(value) => format!("fill {value}"),
            Work::Calculate(operation, Right::Value(value)) => format!("{operation:?}Assign {value}"),
            Work::Calculate(operation, Right::Array(look)) => format!("{operation:?}Assign {}", name(look)),
            Work::Temporary(operation, look, value) => {
                format!("{operation:?}Assign ({} * {value})", name(look))
            }
            Work::Number(operation, number) => format!("{operation:?}Assign number {}", number.0),
            Work::Assign(look) => format!("assign {}", name(look)),
            Work::Express(formula, look) => format!("assign_expr {formula:?} of {}", name(look)),
            Work::Update(formula, look) => format!("update {formula:?} with {}", name(look)),
        }
    }

    fn copy(&mut self, source: &Look, on: On, place: Place) -> Step {
        let Some(index) = self.find(source.array) else { return Ok(false) };
        // Half of the copies go to the other device.
        let (gpu, name) = self.any(on);
        let (slot, device) = (&self.arrays[index], usize::from(on.0) % 6 / 3);
        let view = turned(slot.array.view(), &source.turns).map_err(text)?;
        if view.len() > LEN_MAX {
            return Ok(false);
        }
        let copied = match place {
            Place::Device => view.copy_to(&gpu).map(Real::Device),
            Place::Unified => view.copy_to(&gpu.unified()).map(Real::Unified),
            Place::Pinned => view.copy_to(&gpu.pinned()).map(Real::Pinned),
        };
        let twin = of_twin(slot.twin.view(), &source.turns);
        let said = format!("a{}{}.copy_to({name}, {place:?})", slot.name, turns(&source.turns));
        self.add(copied.map_err(text)?, twin, device, &said);
        Ok(true)
    }

    fn own(&mut self, source: &Look, on: On) -> Step {
        let Some(index) = self.find(source.array) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[index].device);
        let slot = &self.arrays[index];
        let view = turned(slot.array.view(), &source.turns).map_err(text)?;
        if view.len() > LEN_MAX {
            return Ok(false);
        }
        let (outcome, devices) = (view.on(&gpu).to_owned(), [slot.device, device]);
        let twin = of_twin(slot.twin.view(), &source.turns);
        let said = format!("a{}{}.on({name}).to_owned()", slot.name, turns(&source.turns));
        if let Some(array) = self.allowed(outcome, &devices)? {
            self.add(Real::Device(array), twin, device, &said);
        }
        Ok(true)
    }

    fn sum(&mut self, source: &Look, on: On, reader: On, is_kept: bool) -> Step {
        let Some(index) = self.find(source.array) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[index].device);
        let (reader, reader_name) = self.of_device(reader, device);
        let slot = &self.arrays[index];
        let view = turned(slot.array.view(), &source.turns).map_err(text)?;
        let twin = of_twin(slot.twin.view(), &source.turns);
        let (said, devices) =
            (format!("a{}{}.on({name}).sum()", slot.name, turns(&source.turns)), [slot.device, device]);
        self.said.push(format!("{said} read on {reader_name}"));
        let outcome = view.on(&gpu).sum();
        let Some(sum) = self.allowed(outcome, &devices)? else { return Ok(true) };
        let found = sum.on(&reader).into_scalar().map_err(text)?;
        if !T::is_sum(found, twin.iter().copied()) {
            return Err(format!("{said} is {found:?}"));
        }
        if is_kept {
            self.add(Real::Device(sum.into_dyn()), arr0(found).into_dyn(), device, &said);
        }
        Ok(true)
    }

    /// A matrix times a vector, or the product of two vectors.
    fn product(&mut self, left: &Look, right: &Look, on: On) -> Step {
        let (Some(l), Some(r)) = (self.find(left.array), self.find(right.array)) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[l].device);
        let (first, second) = (&self.arrays[l], &self.arrays[r]);
        let a = turned(first.array.view(), &left.turns).map_err(text)?;
        let b = turned(second.array.view(), &right.turns).map_err(text)?;
        let Some(last) = [a.shape(), b.shape()].iter().map(|shape| shape.last().copied().unwrap_or(1)).min()
        else {
            return Ok(false);
        };
        let (twin, vector) =
            (of_twin(first.twin.view(), &left.turns), of_twin(second.twin.view(), &right.turns));
        let Some(columns) = reduced(b.shape(), &[last]) else { return Ok(false) };
        let vector: Vec<T> = vector.slice(&columns[..]).iter().copied().collect();
        let b = b.slice(typed::<Ix1>(columns)?).map_err(text)?;
        let devices = [first.device, device, second.device];
        let said = format!(
            "{name}: a{}{} dot a{}{}",
            first.name,
            turns(&left.turns),
            second.name,
            turns(&right.turns)
        );
        let is_matrix = a.ndim() > 1;
        let Some(rows) = reduced(a.shape(), &[100, last][usize::from(!is_matrix)..]) else {
            return Ok(false);
        };
        let twin = twin.slice(&rows[..]).to_owned();
        let outcome = match is_matrix {
            true => {
                let a = a.slice(typed::<Ix2>(rows)?).map_err(text)?;
                a.on(&gpu).dot(&b).map(GpuArray::into_dyn)
            }
            false => {
                let a = a.slice(typed::<Ix1>(rows)?).map_err(text)?;
                a.on(&gpu).dot(&b).map(GpuArray::into_dyn)
            }
        };
        let Some(product) = self.allowed(outcome, &devices)? else { return Ok(true) };
        let found = product.to_array().map_err(text)?;
        let expected = match is_matrix {
            true => twin.outer_iter().map(|row| row.iter().copied().collect()).collect(),
            false => vec![twin.iter().copied().collect::<Vec<T>>()],
        };
        for (found, row) in found.iter().zip(expected) {
            let terms = row.iter().zip(&vector).map(|(a, b)| T::calculate(Arithmetic::Mul, *a, *b));
            if !T::is_sum(*found, terms) {
                return Err(format!("{said} has {found:?}"));
            }
        }
        self.add(Real::Device(product), found, device, &said);
        Ok(true)
    }

    fn join(&mut self, looks: &[Look], axis: usize, stacks: bool) -> Step {
        let mut parts = Vec::new();
        for look in looks {
            let Some(index) = self.find(look.array) else { return Ok(false) };
            let slot = &self.arrays[index];
            let view = turned(slot.array.view(), &look.turns).map_err(text)?;
            if view.len() > LEN_MAX / 4 {
                return Ok(false);
            }
            parts.push((index, view, of_twin(slot.twin.view(), &look.turns)));
        }
        let mut lens = [usize::MAX; 2];
        for (_, view, _) in &parts {
            let shape = view.shape();
            let pair =
                [shape.len().checked_sub(2).map_or(1, |at| shape[at]), shape.last().copied().unwrap_or(1)];
            lens = [lens[0].min(pair[0]), lens[1].min(pair[1])];
        }
        if !stacks {
            lens[axis] = usize::MAX;
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (_, view, twin) in &parts {
            let Some(slices) = reduced(view.shape(), &lens) else { return Ok(false) };
            theirs.push(twin.slice(typed::<Ix2>(slices.clone())?).to_owned());
            ours.push(view.slice(typed::<Ix2>(slices)?).map_err(text)?);
        }
        let theirs: Vec<_> = theirs.iter().map(|twin| twin.view()).collect();
        let device = self.arrays[parts[0].0].device;
        let names: Vec<_> = parts
            .iter()
            .zip(looks)
            .map(|((index, ..), look)| format!("a{}{}", self.arrays[*index].name, turns(&look.turns)))
            .collect();
        let (outcome, twin) = match stacks {
            true => (
                array::stack(Axis(axis), &ours).map(GpuArray::into_dyn),
                ndarray::stack(Axis(axis), &theirs).map_err(text)?.into_dyn(),
            ),
            false => (
                array::concatenate(Axis(axis), &ours).map(GpuArray::into_dyn),
                ndarray::concatenate(Axis(axis), &theirs).map_err(text)?.into_dyn(),
            ),
        };
        let joined = outcome.map_err(text)?;
        let said = format!("{}({axis}, {names:?})", if stacks { "stack" } else { "concatenate" });
        self.add(Real::Device(joined), twin.as_standard_layout().to_owned(), device, &said);
        Ok(true)
    }

    /// Takes a vector out of the world, changes it, and puts it back.
    fn change_vector(
        &mut self,
        pick: Pick,
        said: &str,
        change: impl FnOnce(&Self, Vector<T>, &mut Vec<T>) -> Result<Vector<T>, String>,
    ) -> Step {
        let Some(index) = self.find(pick) else { return Ok(false) };
        if self.arrays[index].twin.ndim() != 1 {
            return Ok(false);
        }
        let Slot { name, array, twin, device, moves, is_growable } = self.arrays.remove(index);
        let len = twin.len();
        self.said.push(format!("a{name}.{said}"));
        let vector = match array {
            Real::Device(array) => Vector::Device(array.into_dimensionality().map_err(text)?),
            Real::Unified(array) => Vector::Unified(array.into_dimensionality().map_err(text)?),
            Real::Pinned(array) => Vector::Pinned(array.into_dimensionality().map_err(text)?),
        };
        let before = vector.place();
        let mut twin: Vec<T> = twin.iter().copied().collect();
        let vector = change(self, vector, &mut twin)?;
        if is_growable && vector.place().0 != before.0 {
            return Err(format!("a{name} grows in place, and has moved"));
        }
        let moves = moves + u32::from(vector.place() != before || twin.len() != len);
        let array = match vector {
            Vector::Device(array) => Real::Device(array.into_dyn()),
            Vector::Unified(array) => Real::Unified(array.into_dyn()),
            Vector::Pinned(array) => Real::Pinned(array.into_dyn()),
        };
        let twin = Array::from(twin).into_dyn();
        self.arrays.insert(index, Slot { name, array, twin, device, moves, is_growable });
        Ok(true)
    }

    fn resize(&mut self, array: Pick, len: usize, value: i8) -> Step {
        self.change_vector(array, &format!("resize({len}, {value})"), |_, mut vector, twin| {
            twin.resize(len, T::of(value));
            vectors!(&mut vector, array => array.resize(len, T::of(value))).map_err(text)?;
            Ok(vector)
        })
    }

    fn extend(&mut self, array: Pick, count: usize) -> Step {
        self.change_vector(array, &format!("extend_from_slice({count})"), |_, mut vector, twin| {
            let elements: Vec<T> = (0..count).map(|index| T::of(index as i8)).collect();
            twin.extend(&elements);
            vectors!(&mut vector, array => array.extend_from_slice(&elements)).map_err(text)?;
            Ok(vector)
        })
    }

    fn append(&mut self, array: Pick, other: &Look) -> Step {
        let Some(index) = self.find(array) else { return Ok(false) };
        let is_vector = self.arrays[index].twin.ndim() == 1;
        if !is_vector || self.arrays.len() < 2 || self.arrays[index].twin.len() > 1000 {
            return Ok(false);
        }
        let said = format!("append(the other {other:?})");
        let mut is_refused = false;
        let has_link = self.has_link;
        let target = self.arrays[index].device;
        self.change_vector(array, &said, |world, mut vector, twin| {
            let Some(index) = world.find(other.array) else { return Ok(vector) };
            let slot = &world.arrays[index];
            let view = turned(slot.array.view(), &other.turns).map_err(text)?;
            let Some(slices) = reduced(view.shape(), &[1000]) else { return Ok(vector) };
            let more = of_twin(slot.twin.view(), &other.turns);
            let view = view.slice(typed::<Ix1>(slices.clone())?).map_err(text)?;
            match vectors!(&mut vector, array => array.append(&view)) {
                Ok(()) => twin.extend(more.slice(&slices[..]).iter()),
                Err(error) if slot.device != target && is_refusal(&error, has_link) => is_refused = true,
                Err(error) => return Err(error.to_string()),
            }
            Ok(vector)
        })?;
        self.coverage.refused += u64::from(is_refused);
        Ok(true)
    }

    fn check(&mut self, source: &Look, on: On) -> Step {
        let Some(index) = self.find(source.array) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[index].device);
        let slot = &self.arrays[index];
        let view = turned(slot.array.view(), &source.turns).map_err(text)?;
        if view.len() > LEN_MAX {
            return Ok(false);
        }
        let twin = of_twin(slot.twin.view(), &source.turns);
        let (said, devices) =
            (format!("a{}{}.on({name}).to_array()", slot.name, turns(&source.turns)), [slot.device, device]);
        self.said.push(said.clone());
        let outcome = view.on(&gpu).to_array();
        if let Some(found) = self.allowed(outcome, &devices)? {
            self.compare(&said, &found, &twin)?;
        }
        Ok(true)
    }

    fn move_to(&mut self, array: Pick, on: On) -> Step {
        let Some(index) = self.find(array) else { return Ok(false) };
        let mut slot = self.arrays.remove(index);
        let (gpu, name) = self.of_device(on, slot.device);
        let (elsewhere, _) = self.of_device(on, 1 - slot.device);
        self.said.push(format!("a{}.into_gpu({name})", slot.name));
        slot.array = replaced!(slot.array, array => {
            // The error returns the array.
            let array = array.into_gpu(&elsewhere).err().ok_or("an array moved to another device")?.into_value();
            array.into_gpu(&gpu).map_err(text)?
        });
        self.arrays.insert(index, slot);
        Ok(true)
    }

    /// Takes the block of an array, and makes an array of it again on another stream.
    fn through_block(&mut self, array: Pick, on: On) -> Step {
        let Some(index) = self.find(array) else { return Ok(false) };
        let slot = &self.arrays[index];
        if !slot.array.is_by_rows() || slot.twin.is_empty() || slot.is_growable {
            return Ok(false);
        }
        let mut slot = self.arrays.remove(index);
        let (gpu, name) = self.of_device(on, slot.device);
        self.said.push(format!("a{}.into_block() and from_block({name})", slot.name));
        let shape = slot.twin.raw_dim();
        slot.array = replaced!(slot.array, array => {
            let block = array.into_block().map_err(text)?;
            let array: UninitArray<T, IxDyn, _> = GpuArray::from_block(&gpu, block, shape).map_err(text)?;
            // SAFETY: the block was that of an array of this shape, by rows, whose elements had all been written.
            unsafe { array.assume_init() }
        });
        slot.moves += 1;
        self.arrays.insert(index, slot);
        Ok(true)
    }

    /// Exports an array to another library, which returns it at once: it is changed in place, and copied.
    fn through_dlpack(&mut self, array: Pick, on: On, value: i8) -> Step {
        let Some(index) = self.find(array) else { return Ok(false) };
        let mut slot = self.arrays.remove(index);
        let (gpu, name) = self.of_device(on, slot.device);
        self.said.push(format!(
            "a{}.into_dlpack(other{}) and back, {name}: AddAssign {value}",
            slot.name, slot.device
        ));
        let stream = self.others[slot.device].clone();
        let tensor: dlpark::versioned::Dlpack =
            with!(slot.array, array => array.into_dlpack(&stream).map_err(text)?);
        let other = Gpu::with_stream(gpu.pool(), &stream).map_err(text)?;
        // SAFETY: the tensor is one of this library, whose elements are `T`, on its stream, and nothing else uses it.
        let imported: Result<DlpackArray<T, IxDyn>, _> = unsafe { DlpackArray::from_dlpack(&other, tensor) };
        let mut imported = imported.map_err(text)?;
        let mut view = imported.view_mut().map_err(text)?.on_mut(&gpu);
        view.try_add_assign(T::of(value)).map_err(text)?;
        slot.array = Real::Device(imported.view().on(&gpu).to_owned().map_err(text)?);
        slot.twin.mapv_inplace(|element| T::calculate(Arithmetic::Add, element, T::of(value)));
        slot.moves += 1;
        slot.is_growable = false;
        self.arrays.insert(index, slot);
        Ok(true)
    }

    fn drop_array(&mut self, array: Pick, elsewhere: bool) -> Step {
        let Some(index) = self.find(array) else { return Ok(false) };
        let slot = self.arrays.remove(index);
        self.said.push(format!(
            "drop(a{}){}",
            slot.name,
            if elsewhere { " // on another thread" } else { "" }
        ));
        match elsewhere {
            true => of_its_own(move || drop(slot)).map(|()| true),
            false => Ok(true),
        }
    }
}

/// True if the operation needs memory of another device that it cannot access. Nothing has changed then.
pub(super) fn is_refusal(error: &ArrayError, has_link: bool) -> bool {
    match error {
        ArrayError::NoPeerAccess { reason, .. } => !has_link || reason.contains("grows in place"),
        _ => false,
    }
}

/// A vector of any kind.
enum Vector<T> {
    Device(GpuArray<T, Ix1>),
    Unified(UnifiedArray<T, Ix1>),
    Pinned(PinnedArray<T, Ix1>),
}

macro_rules! vectors {
    ($vector:expr, $array:ident => $body:expr) => {
        match $vector {
            Vector::Device($array) => $body,
            Vector::Unified($array) => $body,
            Vector::Pinned($array) => $body,
        }
    };
}
use vectors;

impl<T: Value> Vector<T> {
    /// The memory, unless it has come again at the address and in the size.
    fn place(&self) -> (u64, usize) {
        vectors!(self, array => (array.address(), array.capacity()))
    }
}

/// The other side of a [`Work`], cut to fit.
pub(super) struct Parts<'a, T> {
    targets: Option<Slices>,
    source: Option<GpuView<'a, T, IxDyn>>,
    device: Option<usize>,
}

impl<T> Parts<'_, T> {
    pub(super) fn devices(&self, [array, stream]: [usize; 2]) -> Vec<usize> {
        [array, stream].into_iter().chain(self.device).collect()
    }
}

/// The view that work on a view of this shape reads. `None` if the work has no effect.
pub(super) fn parts<'a, T: Value>(
    arrays: &'a [Slot<T>],
    shape: &[usize],
    work: &Work,
) -> Option<Parts<'a, T>> {
    let Some(look) = work.source() else { return Some(Parts { targets: None, source: None, device: None }) };
    let slot = &arrays[look.array.of(arrays.len())?];
    let source = turned(slot.array.view(), &look.turns).ok()?;
    let (targets, sources) = fit(shape, source.shape(), false)?;
    let source = source.slice(&sources[..]).ok()?;
    Some(Parts { targets: Some(targets), source: Some(source), device: Some(slot.device) })
}

/// The elements of that view.
pub(super) fn parts_of_twin<T: Value>(
    arrays: &[Slot<T>],
    shape: &[usize],
    work: &Work,
) -> Option<(Slices, ArrayD<T>)> {
    let look = work.source()?;
    let slot = &arrays[look.array.of(arrays.len())?];
    let source = of_twin(slot.twin.view(), &look.turns);
    let (targets, sources) = fit(shape, source.shape(), false)?;
    Some((targets, source.slice(&sources[..]).to_owned()))
}

impl Work {
    /// The array that it reads.
    pub(super) fn source(&self) -> Option<&Look> {
        match self {
            Self::Calculate(_, Right::Array(look))
            | Self::Temporary(_, look, _)
            | Self::Assign(look)
            | Self::Express(_, look)
            | Self::Update(_, look) => Some(look),
            _ => None,
        }
    }
}

pub(super) fn write_real<T: Value>(
    target: GpuViewMut<'_, T, IxDyn>,
    parts: &Parts<'_, T>,
    work: &Work,
    gpu: &Gpu,
) -> Result<(), ArrayError> {
    let target = match &parts.targets {
        Some(slices) => target.slice_mut(&slices[..])?,
        None => target,
    };
    let number = match work {
        Work::Number(_, number) => T::of(number.0.cast_signed()),
        _ => T::of(0),
    };
    write_view(target, parts.source.as_ref(), work, gpu, &|operation, target| {
        in_place(operation, target, number)
    })
}

/// Queues work on a view.
///
/// `in_place_with_number` applies the number of the work.
pub(super) fn write_view<T: Value>(
    mut target: GpuViewMut<'_, T, IxDyn>,
    source: Option<&GpuView<'_, T, IxDyn>>,
    work: &Work,
    gpu: &Gpu,
    in_place_with_number: InPlace<'_, T>,
) -> Result<(), ArrayError> {
    match (work, source) {
        (Work::Fill(value), _) => target.fill(T::of(*value)),
        (Work::Calculate(operation, Right::Value(value)), _) => {
            in_place(*operation, &mut target, T::of(*value))
        }
        (Work::Calculate(operation, _), Some(source)) => in_place(*operation, &mut target, source),
        (Work::Temporary(operation, _, value), Some(source)) => {
            in_place(*operation, &mut target, source.on(gpu).try_mul(T::of(*value))?)
        }
        (Work::Number(operation, _), _) => in_place_with_number(*operation, &mut target),
        (Work::Assign(_), Some(source)) => target.assign(source),
        (Work::Express(formula, _), Some(source)) => assign_formula(&mut target, *formula, source),
        (Work::Update(formula, _), Some(source)) => update_formula(&mut target, *formula, source),
        (_, None) => Ok(()),
    }
}

/// Changes the elements of a twin.
pub(super) fn write_twin<T: Value>(
    target: ArrayViewMutD<'_, T>,
    parts: Option<(Slices, ArrayD<T>)>,
    work: &Work,
) -> Result<(), String> {
    let (target, source) = match &parts {
        Some((slices, source)) => (target.slice_move(&slices[..]), Some(source)),
        None => (target, None),
    };
    let number = match work {
        Work::Number(_, number) => T::of(number.0.cast_signed()),
        _ => T::of(0),
    };
    write_twin_view(target, source, work, number)
}

pub(super) fn write_twin_view<T: Value>(
    mut target: ArrayViewMutD<'_, T>,
    source: Option<&ArrayD<T>>,
    work: &Work,
    number: T,
) -> Result<(), String> {
    let scalar = |value: T| arr0(value).into_dyn();
    if let (Work::Express(formula, _) | Work::Update(formula, _), Some(source)) = (work, source) {
        let source = source.broadcast(target.raw_dim()).ok_or("the twin cannot repeat these elements")?;
        let is_update = matches!(work, Work::Update(..));
        ndarray::Zip::from(&mut target).and(&source).for_each(|target, source| {
            *target = formula_of_twin(*formula, if is_update { *target } else { *source }, *source);
        });
        return Ok(());
    }
    let (operation, right) = match (work, source) {
        (Work::Fill(value), _) => {
            target.fill(T::of(*value));
            return Ok(());
        }
        (Work::Calculate(operation, Right::Value(value)), _) => (Some(*operation), scalar(T::of(*value))),
        (Work::Number(operation, _), _) => (Some(*operation), scalar(number)),
        (Work::Temporary(operation, _, value), Some(source)) => {
            (Some(*operation), calculated(Arithmetic::Mul, source, &scalar(T::of(*value)))?)
        }
        (Work::Calculate(operation, _), Some(source)) => (Some(*operation), source.clone()),
        (Work::Assign(_), Some(source)) => (None, source.clone()),
        (Work::Express(..) | Work::Update(..), _) | (_, None) => return Ok(()),
    };
    let right = right.broadcast(target.raw_dim()).ok_or("the twin cannot repeat these elements")?;
    ndarray::Zip::from(&mut target).and(&right).for_each(|target, right| {
        *target = operation.map_or(*right, |operation| T::calculate(operation, *target, *right));
    });
    Ok(())
}

/// An operation in place with a given right operand.
type InPlace<'f, T> = &'f dyn Fn(Arithmetic, &mut GpuViewMut<'_, T, IxDyn>) -> Result<(), ArrayError>;

pub(super) fn in_place<T: Value, B: Operand<T>>(
    operation: Arithmetic,
    target: &mut GpuViewMut<'_, T, IxDyn>,
    right: B,
) -> Result<(), ArrayError>
where
    IxDyn: Broadcast<B::Dim>,
{
    match operation {
        Arithmetic::Add => target.try_add_assign(right),
        Arithmetic::Sub => target.try_sub_assign(right),
        Arithmetic::Mul => target.try_mul_assign(right),
        Arithmetic::Div => target.try_div_assign(right),
        Arithmetic::Rem => target.try_rem_assign(right),
    }
}

/// The result of an operation, as a new array.
pub(super) fn result<T: Value, B: Operand<T>>(
    operation: Arithmetic,
    left: &GpuView<'_, T, IxDyn>,
    right: B,
) -> Result<GpuArray<T, IxDyn>, ArrayError>
where
    IxDyn: Broadcast<B::Dim, Dim = IxDyn>,
{
    match operation {
        Arithmetic::Add => left.try_add(right),
        Arithmetic::Sub => left.try_sub(right),
        Arithmetic::Mul => left.try_mul(right),
        Arithmetic::Div => left.try_div(right),
        Arithmetic::Rem => left.try_rem(right),
    }
}

/// An array with its elements.
type Made<T, K> = (GpuArray<T, IxDyn, K>, ArrayD<T>);

fn made<T: Value, P: array::Place>(
    place: &P,
    shape: &[usize],
    how: How,
) -> Result<Made<T, P::Kind>, ArrayError> {
    let dim = IxDyn(shape);
    let len: usize = shape.iter().product();
    match how {
        How::Value(value) => {
            let array = GpuArray::from_elem(place, dim.clone(), T::of(value))?;
            Ok((array, ArrayD::from_elem(dim, T::of(value))))
        }
        How::Host(by_columns) => {
            let twin = numbered(shape);
            let twin = if by_columns { twin.reversed_axes() } else { twin };
            Ok((GpuArray::from_array(place, &twin)?, twin))
        }
        How::Range(start) => {
            let twin: Vec<T> = (i16::from(start)..i16::from(start.saturating_add(20)))
                .step_by(3)
                .map(|n| T::of(n as i8))
                .collect();
            let array: GpuArray<T, Ix1, _> = GpuArray::from_slice(place, &twin)?;
            Ok((array.into_dyn(), Array::from(twin).into_dyn()))
        }
        How::Indices => {
            let element = |index: IxDyn| T::of(ndarray::Dimension::slice(&index).iter().sum::<usize>() as i8);
            Ok((GpuArray::from_fn(place, dim.clone(), element)?, ArrayD::from_shape_fn(dim, element)))
        }
        How::Random(seed) => {
            let array = GpuArray::random(place, dim.clone(), &mut Rng::new(seed.into()))?;
            let mut numbers = T::random(seed.into(), len).into_iter();
            Ok((array, Array::from_shape_simple_fn(dim, || numbers.next().unwrap_or(T::of(0)))))
        }
        How::Normal(seed) => {
            let array = T::normal(place, dim, seed.into())?;
            let twin = array.to_array()?;
            Ok((array, twin))
        }
        How::Ones => Ok((GpuArray::ones(place, dim.clone())?, ArrayD::from_elem(dim, T::of(1)))),
        How::Uninit | How::Growable => {
            let twin = numbered(shape);
            let elements: Vec<T> = twin.iter().copied().collect();
            Ok((GpuArray::uninit(place, dim)?.copy_from_slice(&elements)?, twin))
        }
        How::Eye => {
            let size = shape.first().copied().unwrap_or(1).min(60);
            let element = |(row, column)| T::of(i8::from(row == column));
            let array: GpuArray<T, Ix2, _> = GpuArray::eye(place, size)?;
            Ok((array.into_dyn(), Array2::from_shape_fn((size, size), element).into_dyn()))
        }
    }
}

/// Elements that differ from their neighbours.
pub(super) fn numbered<T: Value>(shape: &[usize]) -> ArrayD<T> {
    let mut next = 0_i32;
    Array::from_shape_simple_fn(IxDyn(shape), || {
        next += 1;
        T::of((next % 127) as i8)
    })
}

/// An error for the first element that differs.
pub(super) fn same<T: Value>(name: &str, found: &ArrayD<T>, expected: &ArrayD<T>) -> Result<(), String> {
    if found.shape() != expected.shape() {
        return Err(format!("{name} has the shape {:?} instead of {:?}", found.shape(), expected.shape()));
    }
    let mut both = found.indexed_iter().zip(expected);
    match both.find(|((_, found), expected)| !found.is_same(**expected)) {
        Some(((index, found), expected)) => Err(format!(
            "{name}: {found:?} instead of {expected:?} at {:?}",
            ndarray::Dimension::slice(&index)
        )),
        None => Ok(()),
    }
}

/// The views in the transcript.
pub(super) fn turns(turns: &[Turn]) -> String {
    if turns.is_empty() { String::new() } else { format!("{turns:?}") }
}

/// `d1s2`: the third stream of the second device.
fn name_of(index: usize) -> String {
    format!("d{}s{}", index / 3, index % 3)
}

const ARRAYS_MAX: usize = 12;

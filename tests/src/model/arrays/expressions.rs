//! Expressions, reductions, products of matrices and elements by indices, beside what `ndarray` makes of them.

use super::operation::{Arithmetic, AxisIndices, Derived, Formula, On, Reduction};
use super::trees::{Tree, formula, on_host};
use super::values::Value;
use super::views::{
    LEN_MAX, Look, Slices, Turn, fit, joint, of_twin, of_twin_mut, reduced, shape_of, turned,
};
use super::views::{turned_mut, typed};
use super::world::{Real, Step, World, turns};
use crate::array::ndarray::{ArrayD, Axis, Ix1, Ix2, IxDyn, SliceInfoElem, Zip};
use crate::array::{ArrayError, GpuArray, GpuView, GpuViewMut, update};
use crate::model::operation::Pick;
use crate::model::step::text;

/// Calls a macro with the expression of a formula: one arm for each row, since each has a type of its own. The macro binds `x` and `y`.
macro_rules! formulas {
    ($formula:expr, $run:ident) => {{
        let k = T::of($formula.number);
        match $formula.row % FORMULA_COUNT {
            0 => $run!(x, y, x * k + y),
            1 => $run!(x, y, (x - y).max(k)),
            2 => $run!(x, y, x.clone().gt(y.clone()).select(x, y * k)),
            3 => $run!(x, y, (-x).max(y)),
            4 => $run!(x, y, x.abs() - y),
            5 => $run!(x, y, (x.clone() + y.clone()) * (x - y)),
            6 => $run!(x, y, x / y),
            7 => $run!(x, y, x % y),
            8 => $run!(x, y, x.cast::<i32>().cast::<T>() + y),
            _ => $run!(x, y, x.clone().equals(y).or(x.clone().lt(k)).select(k, x)),
        }
    }};
}

/// A formula of elements.
pub(super) fn formula_of_twin<T: Value>(formula: Formula, x: T, y: T) -> T {
    let k = T::of(formula.number);
    let [add, sub, mul, div, rem] =
        [Arithmetic::Add, Arithmetic::Sub, Arithmetic::Mul, Arithmetic::Div, Arithmetic::Rem]
            .map(|operation| move |x, y| T::calculate(operation, x, y));
    match formula.row % FORMULA_COUNT {
        0 => add(mul(x, k), y),
        1 => sub(x, y).larger(k),
        2 if x > y => x,
        2 => mul(y, k),
        3 => x.opposite().larger(y),
        4 => sub(x.magnitude(), y),
        5 => mul(add(x, y), sub(x, y)),
        6 => div(x, y),
        7 => rem(x, y),
        8 => add(x.through_word(), y),
        _ if x == y || x < k => k,
        _ => x,
    }
}

const FORMULA_COUNT: u8 = 10;

/// Calculates a formula of a view, which is both operands, into elements.
pub(super) fn assign_formula<T: Value>(
    target: &mut GpuViewMut<'_, T, IxDyn>,
    formula: Formula,
    source: &GpuView<'_, T, IxDyn>,
) -> Result<(), ArrayError> {
    macro_rules! assign {
        ($x:ident, $y:ident, $e:expr) => {{
            let ($x, $y) = (source.lazy(), source.lazy());
            target.assign_expr($e)
        }};
    }
    formulas!(formula, assign)
}

/// Replaces elements by a formula of them and a view.
#[allow(clippy::clone_on_copy, reason = "only the elements before an update are `Copy`")]
pub(super) fn update_formula<T: Value>(
    target: &mut GpuViewMut<'_, T, IxDyn>,
    formula: Formula,
    source: &GpuView<'_, T, IxDyn>,
) -> Result<(), ArrayError> {
    macro_rules! update_one {
        ($x:ident, $y:ident, $e:expr) => {
            update((target,), |($x,)| {
                let $y = source.lazy();
                ($e,)
            })
        };
    }
    formulas!(formula, update_one)
}

/// Two views that can be broadcast to each other, and their elements in the shape of both.
struct Pair<'a, T> {
    first: GpuView<'a, T, IxDyn>,
    second: GpuView<'a, T, IxDyn>,
    twins: [ArrayD<T>; 2],
    said: [String; 2],
    devices: [usize; 2],
}

impl<T: Value> Pair<'_, T> {
    fn each<R>(&self, mut of: impl FnMut(T, T) -> R) -> ArrayD<R> {
        Zip::from(&self.twins[0]).and(&self.twins[1]).map_collect(|x, y| of(*x, *y))
    }
}

impl<T: Value> World<'_, T> {
    fn pair(&self, left: &Look, right: &Look) -> Result<Option<Pair<'_, T>>, String> {
        let (Some(l), Some(r)) = (self.find(left.array), self.find(right.array)) else { return Ok(None) };
        let slots = [&self.arrays[l], &self.arrays[r]];
        let first = turned(slots[0].array.view(), &left.turns).map_err(text)?;
        let second = turned(slots[1].array.view(), &right.turns).map_err(text)?;
        let Some((lefts, rights)) = fit(first.shape(), second.shape(), true) else { return Ok(None) };
        let (first, second) =
            (first.slice(&lefts[..]).map_err(text)?, second.slice(&rights[..]).map_err(text)?);
        let shape = joint(first.shape(), second.shape());
        if shape.iter().product::<usize>() > LEN_MAX {
            return Ok(None);
        }
        let twin = |index: usize, look: &Look, slices: &Slices| {
            let elements = of_twin(slots[index].twin.view(), &look.turns).slice(&slices[..]).to_owned();
            let repeated =
                elements.broadcast(shape.clone()).ok_or("the twin cannot repeat these elements")?;
            Ok::<_, String>(repeated.to_owned())
        };
        let twins = [twin(0, left, &lefts)?, twin(1, right, &rights)?];
        let said = |index: usize, look: &Look| format!("a{}{}", slots[index].name, turns(&look.turns));
        let said = [said(0, left), said(1, right)];
        Ok(Some(Pair { first, second, twins, said, devices: [slots[0].device, slots[1].device] }))
    }

    pub(super) fn express(&mut self, left: &Look, right: &Look, formula: Formula, on: On) -> Step {
        let Some(pair) = self.pair(left, right)? else { return Ok(false) };
        let (gpu, name, device) = self.near(on, pair.devices[0]);
        macro_rules! evaluate {
            ($x:ident, $y:ident, $e:expr) => {{
                let ($x, $y) = (pair.first.on(&gpu).lazy(), pair.second.lazy());
                ($e).eval()
            }};
        }
        let outcome = formulas!(formula, evaluate);
        let twin = pair.each(|x, y| formula_of_twin(formula, x, y));
        let said = format!("{name}: {formula:?} of {}, {}", pair.said[0], pair.said[1]);
        let devices = [pair.devices[0], device, pair.devices[1]];
        if let Some(array) = self.allowed(outcome, &devices)? {
            self.add(Real::Device(array), twin, device, &said);
        }
        Ok(true)
    }

    /// Updates two arrays of a device at once.
    pub(super) fn update_two(
        &mut self,
        [first, second]: [Pick; 2],
        steps: &[Turn],
        formula: Formula,
        on: On,
    ) -> Step {
        let Some(first) = self.find(first) else { return Ok(false) };
        let shape = shape_of(self.arrays[first].twin.shape(), steps);
        let device = self.arrays[first].device;
        let fits = |index: &usize| {
            let other = &self.arrays[*index];
            *index != first && other.device == device && other.twin.ndim() == shape.len()
        };
        let others: Vec<usize> = (0..self.arrays.len()).filter(fits).collect();
        let Some(second) = second.of(others.len()).map(|index| others[index]) else { return Ok(false) };
        let (gpu, name, stream_device) = self.near(on, device);
        let lens = shape.iter().zip(self.arrays[second].twin.shape()).map(|(a, b)| (*a).min(*b));
        let slices: Slices = lens
            .map(|len| SliceInfoElem::Slice { start: 0, end: Some(len.cast_signed()), step: 1 })
            .collect();
        let mut two = [self.arrays.remove(first.max(second)), self.arrays.remove(first.min(second))];
        if first < second {
            two.reverse();
        }
        let [one, other] = &mut two;
        self.said.push(format!(
            "{name}: update {formula:?} of a{}{}, a{} {slices:?}",
            one.name,
            turns(steps),
            other.name
        ));
        let outcome = (|| {
            let mut a = turned_mut(one.array.view_mut().on_mut(&gpu), steps)?.slice_mut(&slices[..])?;
            let mut b = other.array.view_mut().on_mut(&gpu).slice_mut(&slices[..])?;
            update_both(&mut a, &mut b, formula)
        })();
        if self.allowed(outcome, &[device, stream_device])?.is_some() {
            let mut a = of_twin_mut(one.twin.view_mut(), steps).slice_move(&slices[..]);
            let mut b = other.twin.view_mut().slice_move(&slices[..]);
            Zip::from(&mut a).and(&mut b).for_each(|a, b| {
                (*a, *b) = (formula_of_twin(formula, *a, *b), T::calculate(Arithmetic::Sub, *b, *a));
            });
        }
        if first < second {
            two.reverse();
        }
        let [later, earlier] = two;
        self.arrays.insert(first.min(second), earlier);
        self.arrays.insert(first.max(second), later);
        Ok(true)
    }

    /// Reduces `x * number + y`, or where it is above the number.
    pub(super) fn reduce(
        &mut self,
        (left, right, number): (&Look, &Look, i8),
        reduction: Reduction,
        axis: Option<usize>,
        on: On,
    ) -> Step {
        let Some(pair) = self.pair(left, right)? else { return Ok(false) };
        let (gpu, name, device) = self.near(on, pair.devices[0]);
        let k = T::of(number);
        let elements =
            pair.each(|x, y| T::calculate(Arithmetic::Add, T::calculate(Arithmetic::Mul, x, k), y));
        let axis = match axis {
            None => None,
            Some(axis) => match axis.checked_rem(elements.ndim()) {
                Some(axis) => Some(Axis(axis)),
                None => return Ok(false),
            },
        };
        let lanes: ArrayD<Vec<T>> = match axis {
            None => ArrayD::from_elem(IxDyn(&[]), elements.iter().copied().collect()),
            Some(axis) => elements.map_axis(axis, |lane| lane.iter().copied().collect()),
        };
        let has_value =
            matches!(reduction, Reduction::Sum | Reduction::Any | Reduction::All | Reduction::Count);
        if !has_value && lanes.iter().any(Vec::is_empty) {
            return Ok(false);
        }
        let said =
            format!("{name}: {reduction:?} along {axis:?} of {} * {number} + {}", pair.said[0], pair.said[1]);
        let e = pair.first.on(&gpu).lazy() * k + pair.second.lazy();
        let devices = [pair.devices[0], device, pair.devices[1]];
        macro_rules! reduced {
            ($expression:expr, $all:ident $along:ident) => {
                match axis {
                    None => $expression.$all().map(GpuArray::into_dyn),
                    Some(axis) => $expression.$along(axis),
                }
            };
        }
        macro_rules! checked {
            ($outcome:expr, $is:expr) => {{
                let outcome = $outcome;
                self.said.push(said.clone());
                let Some(array) = self.allowed(outcome, &devices)? else { return Ok(true) };
                let found = array.to_array().map_err(text)?;
                all_are(&said, &found, &lanes, $is)?;
            }};
        }
        match reduction {
            Reduction::Sum => {
                let outcome = reduced!(e, sum sum_axis);
                self.said.push(said.clone());
                let Some(array) = self.allowed(outcome, &devices)? else { return Ok(true) };
                let found = array.to_array().map_err(text)?;
                all_are(&said, &found, &lanes, |sum, lane| T::is_sum(sum, lane.iter().copied()))?;
                self.add(Real::Device(array), found, device, &said);
            }
            // The sign of a zero depends on the order.
            Reduction::Max => checked!(reduced!(e, max_element max_axis), |found: T, lane: &[T]| {
                let numbers = lane.iter().filter(|value| is_number(**value)).copied();
                numbers.reduce(T::larger).is_none_or(|max| max == found)
            }),
            Reduction::Min => checked!(reduced!(e, min_element min_axis), |found: T, lane: &[T]| {
                let numbers = lane.iter().filter(|value| is_number(**value)).copied();
                numbers.reduce(|a, b| if b < a { b } else { a }).is_none_or(|min| min == found)
            }),
            Reduction::ArgMax => checked!(reduced!(e, argmax argmax_axis), |found: i64, lane: &[T]| {
                found == first_best(lane, |a, b| a > b)
            }),
            Reduction::ArgMin => checked!(reduced!(e, argmin argmin_axis), |found: i64, lane: &[T]| {
                found == first_best(lane, |a, b| a < b)
            }),
            Reduction::Any => checked!(reduced!(e.gt(k), any any_axis), |found: bool, lane: &[T]| {
                found == lane.iter().any(|value| *value > k)
            }),
            Reduction::All => checked!(reduced!(e.gt(k), all all_axis), |found: bool, lane: &[T]| {
                found == lane.iter().all(|value| *value > k)
            }),
            Reduction::Count => checked!(reduced!(e.gt(k), count count_axis), |found: i64, lane: &[T]| {
                found == lane.iter().filter(|value| **value > k).count() as i64
            }),
        }
        Ok(true)
    }

    /// A random formula of two views, and what is calculated from it.
    pub(super) fn derive(
        &mut self,
        [left, right]: &[Look; 2],
        tree: &Tree,
        derived: Derived,
        on: On,
    ) -> Step {
        let Some(pair) = self.pair(left, right)? else { return Ok(false) };
        let (gpu, name, device) = self.near(on, pair.devices[0]);
        let elements = on_host(tree, &[0, 1, 0].map(|index| pair.twins[index].clone()));
        let axes = match derived.axes(elements.ndim()) {
            Some(axes) => axes,
            None => return Ok(false),
        };
        let lanes = lanes_of(&elements, &axes);
        if !matches!(derived, Derived::Value | Derived::Sums(_) | Derived::Prefixes(_))
            && lanes.iter().any(Vec::is_empty)
        {
            return Ok(false);
        }
        let said = format!("{name}: {derived:?} of {tree:?} of {}, {}", pair.said[0], pair.said[1]);
        let devices = [pair.devices[0], device, pair.devices[1]];
        let outcome = {
            let view = |index: usize, is_turned: bool| {
                let view = if index == 1 { pair.second.on(&gpu) } else { pair.first.on(&gpu) };
                let view = view.lazy().broadcast(elements.raw_dim());
                if is_turned { view.t().boxed() } else { view.boxed() }
            };
            let e = formula(tree, &view, elements.ndim(), false);
            let doubles = |array: Result<_, ArrayError>| array.map(Calculated::Doubles);
            match (derived, axes.as_slice()) {
                (Derived::Value, _) => e.eval().map(Calculated::Values),
                (Derived::Sums(_), [a, b]) => e.sum_axis([*a, *b]).map(Calculated::Values),
                (Derived::Maxima(_), [a, b]) => e.max_axis([*a, *b]).map(Calculated::Values),
                (Derived::Prefixes(Some(_)), [axis]) => {
                    e.eval().and_then(|array| array.cumsum_axis(*axis)).map(Calculated::Values)
                }
                (Derived::Prefixes(_), _) => {
                    e.eval().and_then(|array| array.cumsum()).map(|sums| Calculated::Values(sums.into_dyn()))
                }
                (Derived::LogSumExp(Some(_)), [axis]) => doubles(e.cast::<f64>().log_sum_exp_axis(*axis)),
                (Derived::Softmax(_), [axis]) => doubles(e.cast::<f64>().softmax_axis(*axis)),
                _ => doubles(e.cast::<f64>().log_sum_exp().map(GpuArray::into_dyn)),
            }
        };
        self.said.push(said.clone());
        let Some(calculated) = self.allowed(outcome, &devices)? else { return Ok(true) };
        match calculated {
            Calculated::Values(array) if matches!(derived, Derived::Value) => {
                self.add(Real::Device(array), elements, device, &said);
            }
            Calculated::Values(array) => {
                let found = array.to_array().map_err(text)?;
                match (derived, axes.first()) {
                    (Derived::Sums(_), _) => {
                        all_are(&said, &found, &lanes, |sum, lane| T::is_sum(sum, lane.iter().copied()))?;
                    }
                    (Derived::Maxima(_), _) => all_are(&said, &found, &lanes, |max, lane| {
                        max.is_same(lane.iter().fold(T::LEAST, |a, b| T::binary(5, a, *b)))
                    })?,
                    (_, Some(axis)) => prefixes_are(&said, &found, &elements, *axis)?,
                    (_, None) => {
                        let terms: Vec<T> = elements.iter().copied().collect();
                        let terms = ArrayD::from_shape_vec(IxDyn(&[terms.len()]), terms).map_err(text)?;
                        prefixes_are(&said, &found, &terms, Axis(0))?;
                    }
                }
            }
            Calculated::Doubles(array) => {
                let found = array.to_array().map_err(text)?;
                match (derived, axes.first()) {
                    (Derived::Softmax(_), Some(axis)) => {
                        for (shares, lane) in found.lanes(*axis).into_iter().zip(elements.lanes(*axis)) {
                            let Some((largest, total)) = powers(&lane.to_vec()) else { continue };
                            let share = |x: &T| (x.as_double() - largest).exp() / total;
                            if !shares.iter().zip(lane).all(|(found, x)| near(*found, share(x), 1.0)) {
                                return Err(format!("{said} has {shares:?} for {lane:?}"));
                            }
                        }
                    }
                    _ => all_are(&said, &found, &lanes, |sum: f64, lane| {
                        powers(lane).is_none_or(|(largest, total)| near(sum, largest + total.ln(), largest))
                    })?,
                }
            }
        }
        Ok(true)
    }

    pub(super) fn select(&mut self, source: &Look, indices: &AxisIndices, on: On) -> Step {
        let Some(index) = self.find(source.array) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[index].device);
        let slot = &self.arrays[index];
        let view = turned(slot.array.view(), &source.turns).map_err(text)?;
        let Some(chosen) = Chosen::of(indices, view.shape(), indices.indices.len()) else { return Ok(false) };
        if view.len() > LEN_MAX {
            return Ok(false);
        }
        let said = format!("{name}: a{}{}.select({chosen:?})", slot.name, turns(&source.turns));
        let view = view.on(&gpu);
        let outcome = match chosen.on_device {
            true => GpuArray::from_slice(&gpu, &chosen.words)
                .and_then(|indices| view.select(chosen.axis, &indices)),
            false => view.select(chosen.axis, &chosen.inside()),
        };
        let mut twin = of_twin(slot.twin.view(), &source.turns).select(chosen.axis, &chosen.clamped());
        for (mut part, word) in twin.axis_iter_mut(chosen.axis).zip(&chosen.words) {
            if !chosen.is_inside(*word) {
                part.fill(T::of(0));
            }
        }
        let devices = [slot.device, device];
        if let Some(array) = self.allowed(outcome, &devices)? {
            self.add(Real::Device(array), twin, device, &said);
        }
        Ok(true)
    }

    /// Adds one part of a view for each part of the target.
    pub(super) fn scatter_add(
        &mut self,
        target: &Look,
        source: &Look,
        indices: &AxisIndices,
        on: On,
    ) -> Step {
        let Some(index) = self.find(target.array) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[index].device);
        let mut slot = self.arrays.remove(index);
        let outcome = (|| {
            let Some(other) = self.find(source.array).map(|index| &self.arrays[index]) else {
                return Ok(false);
            };
            let view = turned(other.array.view(), &source.turns).map_err(text)?;
            let whole = shape_of(slot.twin.shape(), &target.turns);
            let Some((targets, sources)) = fit(&whole, view.shape(), false) else { return Ok(false) };
            let mut part = turned_mut(slot.array.view_mut().on_mut(&gpu), &target.turns)
                .and_then(|view| view.slice_mut(&targets[..]))
                .map_err(text)?;
            let shape = part.shape().to_vec();
            let count = shape.get(indices.axis.checked_rem(shape.len()).unwrap_or(0)).copied().unwrap_or(0);
            let Some(chosen) = Chosen::of(indices, &shape, count) else { return Ok(false) };
            let values = view.slice(&sources[..]).map_err(text)?;
            let values = values.broadcast(&shape[..]).map_err(text)?;
            let said = format!(
                "{name}: a{}{}.scatter_add({chosen:?}, a{}{})",
                slot.name,
                turns(&target.turns),
                other.name,
                turns(&source.turns)
            );
            let outcome = match chosen.on_device {
                true => GpuArray::from_slice(&gpu, &chosen.words)
                    .and_then(|indices| part.scatter_add(chosen.axis, &indices, &values)),
                false => part.scatter_add(chosen.axis, &chosen.inside(), &values),
            };
            let theirs = of_twin(other.twin.view(), &source.turns).slice(&sources[..]).to_owned();
            let theirs = theirs.broadcast(shape.clone()).ok_or("the twin cannot repeat these elements")?;
            let devices = [slot.device, device, other.device];
            self.said.push(said.clone());
            if self.allowed(outcome, &devices)?.is_none() {
                return Ok(true);
            }
            // Sums in any order: the twin takes those that were found.
            let found = part.view().to_array().map_err(text)?;
            let mut twin = of_twin_mut(slot.twin.view_mut(), &target.turns).slice_move(&targets[..]);
            let mut terms = twin.mapv(|value| vec![value]);
            for (values, word) in theirs.axis_iter(chosen.axis).zip(&chosen.words) {
                if chosen.is_inside(*word) {
                    let mut row = terms.index_axis_mut(chosen.axis, *word as usize);
                    Zip::from(&mut row).and(&values).for_each(|terms, value| terms.push(*value));
                }
            }
            let is_right = |found: T, terms: &[T]| match terms {
                [one] => found.is_same(*one),
                terms => T::is_sum(found, terms.iter().copied()),
            };
            all_are(&said, &found, &terms, is_right)?;
            twin.assign(&found);
            Ok(true)
        })();
        self.arrays.insert(index, slot);
        outcome
    }

    /// The places above a number, and the parts of an axis where one lane is.
    pub(super) fn choose(&mut self, source: &Look, axis: usize, number: i8, on: On) -> Step {
        let Some(index) = self.find(source.array) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[index].device);
        let slot = &self.arrays[index];
        let view = turned(slot.array.view(), &source.turns).map_err(text)?;
        let Some(axis) = axis.checked_rem(view.ndim()) else { return Ok(false) };
        if view.len() > LEN_MAX || view.is_empty() {
            return Ok(false);
        }
        let k = T::of(number);
        let said = format!(
            "{name}: a{}{} where above {number}, and compress({axis})",
            slot.name,
            turns(&source.turns)
        );
        let lane = |index: usize| match index == axis {
            true => SliceInfoElem::Slice { start: 0, end: None, step: 1 },
            false => SliceInfoElem::Index(0),
        };
        let lane: Slices = (0..view.ndim()).map(lane).collect();
        let (view, devices) = (view.on(&gpu), [slot.device, device]);
        let first = view.slice(typed::<Ix1>(lane.clone())?).map_err(text)?;
        let outcome = (|| {
            let places = view.lazy().gt(k).nonzero()?.to_vec()?;
            let mask = first.lazy().gt(k).eval()?;
            Ok((places, view.compress(Axis(axis), &mask)?))
        })();
        let twin = of_twin(slot.twin.view(), &source.turns);
        let Some((places, array)) = self.allowed(outcome, &devices)? else { return Ok(true) };
        let expected =
            twin.iter().enumerate().filter(|(_, value)| **value > k).map(|(place, _)| place as u64);
        if !places.iter().copied().eq(expected) {
            return Err(format!("{said} finds {places:?}"));
        }
        let first = twin.slice(&lane[..]);
        let kept: Vec<usize> =
            first.iter().enumerate().filter(|(_, value)| **value > k).map(|(place, _)| place).collect();
        self.add(Real::Device(array), twin.select(Axis(axis), &kept), device, &said);
        Ok(true)
    }

    /// The product of two matrices.
    pub(super) fn matrices(&mut self, left: &Look, right: &Look, on: On) -> Step {
        let (Some(l), Some(r)) = (self.find(left.array), self.find(right.array)) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[l].device);
        let (first, second) = (&self.arrays[l], &self.arrays[r]);
        let a = turned(first.array.view(), &left.turns).map_err(text)?;
        let b = turned(second.array.view(), &right.turns).map_err(text)?;
        let (columns, rows) = (a.shape().last(), b.shape().iter().rev().nth(1));
        let inner = columns.copied().unwrap_or(1).min(rows.copied().unwrap_or(1));
        let (Some(lefts), Some(rights)) =
            (reduced(a.shape(), &[MATRIX_MAX, inner]), reduced(b.shape(), &[inner, MATRIX_MAX]))
        else {
            return Ok(false);
        };
        let (x, y) = (
            of_twin(first.twin.view(), &left.turns).slice(&lefts[..]).to_owned(),
            of_twin(second.twin.view(), &right.turns).slice(&rights[..]).to_owned(),
        );
        let a = a.slice(typed::<Ix2>(lefts)?).map_err(text)?;
        let b = b.slice(typed::<Ix2>(rights)?).map_err(text)?;
        let devices = [first.device, device, second.device];
        let said = format!(
            "{name}: matrices a{}{} dot a{}{}",
            first.name,
            turns(&left.turns),
            second.name,
            turns(&right.turns)
        );
        let outcome = a.on(&gpu).dot(&b);
        let Some(product) = self.allowed(outcome, &devices)? else { return Ok(true) };
        let found = product.to_array().map_err(text)?.into_dyn();
        let terms = ArrayD::from_shape_fn(found.raw_dim(), |place| {
            let (row, column) = (x.index_axis(Axis(0), place[0]), y.index_axis(Axis(1), place[1]));
            let both = row.iter().zip(column.iter());
            both.map(|(a, b)| T::calculate(Arithmetic::Mul, *a, *b)).collect::<Vec<T>>()
        });
        all_are(&said, &found, &terms, |sum, terms| T::is_sum(sum, terms.iter().copied()))?;
        self.add(Real::Device(product.into_dyn()), found, device, &said);
        Ok(true)
    }
}

fn update_both<T: Value>(
    a: &mut GpuViewMut<'_, T, IxDyn>,
    b: &mut GpuViewMut<'_, T, IxDyn>,
    formula: Formula,
) -> Result<(), ArrayError> {
    macro_rules! both {
        ($x:ident, $y:ident, $e:expr) => {
            update((a, b), |($x, $y)| {
                let difference = $y - $x;
                ($e, difference)
            })
        };
    }
    formulas!(formula, both)
}

/// Indices on an axis of a shape.
#[derive(Debug)]
struct Chosen {
    axis: Axis,
    words: Vec<i32>,
    len: usize,
    on_device: bool,
}

impl Chosen {
    /// `None` if the axis or the indices do not exist.
    fn of(indices: &AxisIndices, shape: &[usize], count: usize) -> Option<Self> {
        let AxisIndices { axis, indices, on_device } = indices;
        let axis = axis.checked_rem(shape.len())?;
        let len = shape[axis];
        if len == 0 || (indices.is_empty() && count > 0) || shape.contains(&0) {
            return None;
        }
        // On the device, -1 and the length are outside.
        let word = |index: &u8| match on_device {
            true => i32::from(*index) % (len as i32 + 2) - 1,
            false => i32::from(*index) % len as i32,
        };
        let words = indices.iter().cycle().take(count).map(word).collect();
        Some(Self { axis: Axis(axis), words, len, on_device: *on_device })
    }

    fn is_inside(&self, word: i32) -> bool {
        usize::try_from(word).is_ok_and(|index| index < self.len)
    }

    fn inside(&self) -> Vec<usize> {
        self.words.iter().map(|word| *word as usize).collect()
    }

    fn clamped(&self) -> Vec<usize> {
        self.words.iter().map(|word| (*word).clamp(0, self.len as i32 - 1) as usize).collect()
    }
}

/// An error for the first result that is not that of its elements.
fn all_are<T: std::fmt::Debug, R: Copy + std::fmt::Debug>(
    said: &str,
    found: &ArrayD<R>,
    lanes: &ArrayD<Vec<T>>,
    is_right: impl Fn(R, &[T]) -> bool,
) -> Result<(), String> {
    if found.shape() != lanes.shape() {
        return Err(format!("{said} has the shape {:?} instead of {:?}", found.shape(), lanes.shape()));
    }
    match found.iter().zip(lanes).find(|(found, lane)| !is_right(**found, lane)) {
        Some((found, lane)) => Err(format!("{said} has {found:?} for {lane:?}")),
        None => Ok(()),
    }
}

/// What was calculated from a formula.
enum Calculated<T> {
    Values(GpuArray<T, IxDyn>),
    Doubles(GpuArray<f64, IxDyn>),
}

impl Derived {
    /// The axes of a reduction or a scan; `None` if there are too few.
    fn axes(self, count: usize) -> Option<Vec<Axis>> {
        match self {
            Self::Value | Self::Prefixes(None) => Some(Vec::new()),
            Self::LogSumExp(None) => Some((0..count).map(Axis).collect()),
            Self::Prefixes(Some(axis)) | Self::LogSumExp(Some(axis)) | Self::Softmax(axis) => {
                Some(vec![Axis(axis.checked_rem(count)?)])
            }
            Self::Sums([a, b]) | Self::Maxima([a, b]) => {
                let a = a.checked_rem(count)?;
                let others: Vec<usize> = (0..count).filter(|axis| *axis != a).collect();
                Some(vec![Axis(a), Axis(others[b.checked_rem(others.len())?])])
            }
        }
    }
}

/// An error for a sum up to an element along an axis that is none. One in seven is checked.
fn prefixes_are<T: Value>(said: &str, sums: &ArrayD<T>, terms: &ArrayD<T>, axis: Axis) -> Result<(), String> {
    let len = sums.len_of(axis);
    for end in (len % 7..len).step_by(7) {
        let before = terms.slice_axis(axis, (..=end).into()).to_owned();
        let found = sums.index_axis(axis, end).to_owned();
        all_are(said, &found, &lanes_of(&before, &[axis]), |sum, terms| {
            T::is_sum(sum, terms.iter().copied())
        })?;
    }
    Ok(())
}

/// The elements that are reduced along axes, by output.
fn lanes_of<T: Value>(elements: &ArrayD<T>, axes: &[Axis]) -> ArrayD<Vec<T>> {
    let kept: Vec<usize> = (0..elements.ndim()).filter(|axis| !axes.contains(&Axis(*axis))).collect();
    let shape: Vec<usize> = kept.iter().map(|axis| elements.shape()[*axis]).collect();
    ArrayD::from_shape_fn(shape, |place| {
        let mut lane = elements.view();
        for (axis, index) in kept.iter().enumerate().rev() {
            lane.index_axis_inplace(Axis(*index), place[axis]);
        }
        lane.iter().copied().collect()
    })
}

/// The largest number, and the sum of the powers of e less it; `None` unless all are finite.
fn powers<T: Value>(lane: &[T]) -> Option<(f64, f64)> {
    let numbers: Vec<f64> = lane.iter().map(|x| x.as_double()).collect();
    let largest = numbers.iter().copied().reduce(f64::max)?;
    let is_finite = numbers.iter().all(|x| x.is_finite() && x.abs() < 1e300);
    is_finite.then(|| (largest, numbers.iter().map(|x| (x - largest).exp()).sum()))
}

/// True if two results differ by rounding alone. They were calculated from numbers of this size.
fn near(found: f64, wanted: f64, size: f64) -> bool {
    (found - wanted).abs() <= 1e-9 * (wanted.abs() + size.abs() + 1.0)
}

fn first_best<T: Value>(lane: &[T], is_better: impl Fn(T, T) -> bool) -> i64 {
    let places = lane.iter().enumerate().filter(|(_, value)| is_number(**value));
    let best = places.reduce(|best, other| if is_better(*other.1, *best.1) { other } else { best });
    best.map_or(0, |(place, _)| place as i64)
}

/// False for NaN.
#[allow(clippy::eq_op, reason = "NaN differs from itself")]
fn is_number<T: Value>(value: T) -> bool {
    value == value
}

/// The rows and columns of a product.
const MATRIX_MAX: usize = 20;

//! Work of several streams and threads on one array: halves that are written apart, and arrays that threads share.

use super::operation::{On, Right, Work};
use super::values::{Value, calculated};
use super::world::{
    Real, Slot, Step, World, is_refusal, parts, parts_of_twin, result, same, write_real, write_twin,
};
use crate::array::ndarray::{ArrayViewMutD, Axis, IxDyn, SliceInfoElem, arr0};
use crate::array::{Gpu, GpuViewMut};
use crate::model::operation::Pick;
use crate::model::step::text;

/// One half of an array, and its steps: each with the stream and its device.
struct Half<'a, T> {
    view: GpuViewMut<'a, T, IxDyn>,
    twin: ArrayViewMutD<'a, T>,
    steps: Vec<(Gpu, usize, &'a Work)>,
}

impl<T: Value> World<'_, T> {
    /// Two halves, or every second element, are written on streams of their own, alternately or by two threads.
    pub(super) fn halves(
        &mut self,
        array: Pick,
        (axis, at, interleaves): (usize, usize, bool),
        steps: &[(bool, On, Work)],
        threads: bool,
    ) -> Step {
        let Some(index) = self.find(array) else { return Ok(false) };
        let Some(axis) = axis.checked_rem(self.arrays[index].twin.ndim()) else { return Ok(false) };
        let mut slot = self.arrays.remove(index);
        let at = at % (slot.twin.shape()[axis] + 1);
        self.said.push(format!(
            "a{}: halves of axis {axis}, {}{}",
            slot.name,
            if interleaves { "alternately".into() } else { format!("at {at}") },
            if threads { ", by two threads" } else { "" }
        ));
        let mut queues: [Vec<(Gpu, usize, &Work)>; 2] = [Vec::new(), Vec::new()];
        let mut order = Vec::new();
        for (is_second, on, work) in steps {
            let (gpu, name, device) = self.near(*on, slot.device);
            self.said.push(format!("    {name}: half {} {}", u8::from(*is_second), self.describe(work)));
            queues[usize::from(*is_second)].push((gpu, device, work));
            order.push(*is_second);
        }
        let [first, second] = queues;
        let outcome = split(&mut slot, axis, at, interleaves, (first, second)).and_then(|halves| {
            let home = halves.2;
            let run = |half: &mut Half<'_, T>| half.step(&self.arrays, home, self.has_link);
            let (mut left, mut right) = (halves.0, halves.1);
            if threads {
                left.steps.reverse();
                right.steps.reverse();
                return std::thread::scope(|scope| {
                    let thread = scope.spawn(|| all(&mut left, &run));
                    let own = all(&mut right, &run);
                    let theirs = thread.join().unwrap_or_else(|_| Err("a thread panicked".into()));
                    own.and_then(|refused| Ok(refused + theirs?))
                });
            }
            left.steps.reverse();
            right.steps.reverse();
            let mut refused = 0;
            for is_second in order {
                refused += run(if is_second { &mut right } else { &mut left })?;
            }
            Ok(refused)
        });
        self.arrays.insert(index, slot);
        self.coverage.refused += outcome?;
        Ok(true)
    }

    /// Threads read arrays at the same time, each on a stream of its own.
    pub(super) fn share(&mut self, arrays: &[Pick], thread_count: usize, work: &[Work]) -> Step {
        let Some(indices) = arrays.iter().map(|pick| self.find(*pick)).collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        let slots: Vec<_> = indices.iter().map(|index| &self.arrays[*index]).collect();
        let names: Vec<_> = slots.iter().map(|slot| format!("a{}", slot.name)).collect();
        self.said.push(format!("{thread_count} threads read {names:?}: {work:?}"));
        let (gpus, sim) = (&self.gpus, &self.sim);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..thread_count)
                .map(|_| {
                    let slots = &slots;
                    scope.spawn(move || {
                        slots.iter().try_for_each(|slot| {
                            let gpu = gpus[3 * slot.device].here().map_err(text)?;
                            work.iter().try_for_each(|work| read(slot, work, &gpu, sim))
                        })
                    })
                })
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
        })?;
        self.coverage.compared += slots.iter().map(|slot| slot.twin.len() as u64).sum::<u64>();
        Ok(true)
    }
}

/// Each kind of work stands for a way to read.
fn read<T: Value>(slot: &Slot<T>, work: &Work, gpu: &Gpu, sim: &gpumem_sim::Sim) -> Result<(), String> {
    let (view, name) = (slot.array.view(), format!("a{} on a thread", slot.name));
    match (work, &slot.array) {
        (Work::Fill(_), _) => same(&name, &view.on(gpu).to_array().map_err(text)?, &slot.twin),
        (Work::Calculate(operation, Right::Value(value)), _) => {
            let value = T::of(*value);
            let found = result(*operation, &view.on(gpu), value).and_then(|array| array.to_array());
            let expected = calculated(*operation, &slot.twin, &arr0(value).into_dyn())?;
            same(&name, &found.map_err(text)?, &expected)
        }
        (Work::Number(..) | Work::Temporary(..), Real::Unified(array)) => {
            let slice = array.as_slice().map_err(text)?;
            sim.host_reads(slice.as_ptr(), slice.len());
            same(&name, &array.as_array().map_err(text)?.to_owned(), &slot.twin)
        }
        (Work::Number(..) | Work::Temporary(..), Real::Pinned(array)) => {
            let slice = array.as_slice().map_err(text)?;
            sim.host_reads(slice.as_ptr(), slice.len());
            same(&name, &array.as_array().map_err(text)?.to_owned(), &slot.twin)
        }
        (Work::Assign(_), _) => {
            let copy = view.on(gpu).to_owned().map_err(text)?;
            same(&name, &copy.to_array().map_err(text)?, &slot.twin)
        }
        _ => {
            let sum = view.on(gpu).sum().and_then(|sum| sum.into_scalar()).map_err(text)?;
            match T::is_sum(sum, slot.twin.iter().copied()) {
                true => Ok(()),
                false => Err(format!("the sum of {name} is {sum:?}")),
            }
        }
    }
}

type Steps<'a> = Vec<(Gpu, usize, &'a Work)>;

/// Two disjoint parts of an array and of its twin, and the device of the array.
fn split<'a, T: Value>(
    slot: &'a mut Slot<T>,
    axis: usize,
    at: usize,
    interleaves: bool,
    (first, second): (Steps<'a>, Steps<'a>),
) -> Result<(Half<'a, T>, Half<'a, T>, usize), String> {
    let device = slot.device;
    let (view, twin) = (slot.array.view_mut(), slot.twin.view_mut());
    let (left, right, left_twin, right_twin) = if interleaves {
        let every = |start: isize| -> Vec<SliceInfoElem> {
            let all = SliceInfoElem::Slice { start: 0, end: None, step: 1 };
            let mut slices = vec![all; twin.ndim()];
            let start = start.min(twin.shape()[axis].cast_signed());
            slices[axis] = SliceInfoElem::Slice { start, end: None, step: 2 };
            slices
        };
        let (even, odd) = (every(0), every(1));
        let [left, right] = view.multi_slice_mut([&even[..], &odd[..]]).map_err(text)?;
        let (left_twin, right_twin) = twin.multi_slice_move((&even[..], &odd[..]));
        (left, right, left_twin, right_twin)
    } else {
        let (left, right) = view.split_at_mut(Axis(axis), at).map_err(text)?;
        let (left_twin, right_twin) = twin.split_at(Axis(axis), at);
        (left, right, left_twin, right_twin)
    };
    let left = Half { view: left, twin: left_twin, steps: first };
    Ok((left, Half { view: right, twin: right_twin, steps: second }, device))
}

/// The number of refused steps.
fn all<T: Value>(
    half: &mut Half<'_, T>,
    run: &impl Fn(&mut Half<'_, T>) -> Result<u64, String>,
) -> Result<u64, String> {
    let mut refused = 0;
    while !half.steps.is_empty() {
        refused += run(half)?;
    }
    Ok(refused)
}

impl<T: Value> Half<'_, T> {
    /// Queues the last of the steps. Returns 1 if no link connects the devices.
    fn step(&mut self, arrays: &[Slot<T>], home: usize, has_link: bool) -> Result<u64, String> {
        let Some((gpu, device, work)) = self.steps.pop() else { return Ok(0) };
        let shape = self.view.shape().to_vec();
        let Some(parts) = parts(arrays, &shape, work) else { return Ok(0) };
        let is_across = parts.devices([home, device]).iter().any(|other| *other != home);
        match write_real(self.view.view_mut().on_mut(&gpu), &parts, work, &gpu) {
            Ok(()) => write_twin(self.twin.view_mut(), parts_of_twin(arrays, &shape, work), work).map(|()| 0),
            Err(error) if is_across && is_refusal(&error, has_link) => Ok(1),
            Err(error) => Err(error.to_string()),
        }
    }
}

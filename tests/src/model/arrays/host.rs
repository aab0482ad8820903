//! Operations with the host: blocking uploads, slices of unified and pinned arrays, streams of another library, and the program's own
//! memory.

use super::operation::On;
use super::values::Value;
use super::views::{Look, of_twin_mut, turned_mut};
use super::world::{Real, Step, World, numbered, same, turns, with};
use crate::array::ndarray::ArrayViewMutD;
use crate::model::operation::Pick;
use crate::model::step::text;
use crate::pool::MemoryRange;

impl<T: Value> World<'_, T> {
    pub(super) fn upload(&mut self, target: &Look, on: On) -> Step {
        let Some(index) = self.find(target.array) else { return Ok(false) };
        let (gpu, name, device) = self.near(on, self.arrays[index].device);
        let mut slot = self.arrays.remove(index);
        let devices = [slot.device, device];
        self.said.push(format!("a{}{}.on_mut({name}).copy_from_slice(…)", slot.name, turns(&target.turns)));
        let mut view = turned_mut(slot.array.view_mut().on_mut(&gpu), &target.turns).map_err(text)?;
        let elements = numbered::<T>(view.shape());
        let len = elements.len();
        // A contiguous view takes elements in the order of memory.
        let by_columns = view.view().reshape(len).is_err() && view.view().t().reshape(len).is_ok();
        let values: Vec<T> = match by_columns {
            true => elements.t().iter().copied().collect(),
            false => elements.iter().copied().collect(),
        };
        let outcome = view.copy_from_slice(&values);
        if self.allowed(outcome, &devices)?.is_some() {
            of_twin_mut(slot.twin.view_mut(), &target.turns).assign(&elements);
        }
        self.arrays.insert(index, slot);
        Ok(true)
    }

    pub(super) fn host_read(&mut self, array: Pick) -> Step {
        let Some(index) = self.find(array) else { return Ok(false) };
        let (slot, sim) = (&self.arrays[index], &self.sim);
        let said = format!("a{}.as_array()", slot.name);
        let found = match &slot.array {
            Real::Device(_) => return Ok(false),
            Real::Unified(array) => {
                let slice = array.as_slice().map_err(text)?;
                sim.host_reads(slice.as_ptr(), slice.len());
                array.as_array().map_err(text)?.to_owned()
            }
            Real::Pinned(array) => {
                let slice = array.as_slice().map_err(text)?;
                sim.host_reads(slice.as_ptr(), slice.len());
                array.as_array().map_err(text)?.to_owned()
            }
        };
        same(&said, &found, &slot.twin)?;
        self.coverage.compared += found.len() as u64;
        self.said.push(said);
        Ok(true)
    }

    pub(super) fn host_write(&mut self, array: Pick, index: usize, value: i8) -> Step {
        let Some(at) = self.find(array) else { return Ok(false) };
        let (slot, sim) = (&mut self.arrays[at], &self.sim);
        let Some(index) = index.checked_rem(slot.twin.len()) else { return Ok(false) };
        let mut array = match &mut slot.array {
            Real::Device(_) => return Ok(false),
            Real::Unified(array) => array.as_array_mut().map_err(text)?,
            Real::Pinned(array) => array.as_array_mut().map_err(text)?,
        };
        // In the order of indices, which is not that of memory for an array by columns.
        let (Some(element), Some(twin)) = (array.iter_mut().nth(index), slot.twin.iter_mut().nth(index))
        else {
            return Ok(false);
        };
        sim.host_writes(element, 1);
        (*element, *twin) = (T::of(value), T::of(value));
        self.said.push(format!("a{}.as_array_mut()[{index}] = {value}", slot.name));
        Ok(true)
    }

    /// The host exchanges the first elements of two arrays in memory that it can access, of any kind and shape.
    pub(super) fn swap(&mut self, array: Pick, other: Pick) -> Step {
        let mut slots: Vec<_> =
            self.arrays.iter_mut().filter(|slot| !matches!(slot.array, Real::Device(_))).collect();
        let Some(index) = array.of(slots.len()) else { return Ok(false) };
        let left = slots.swap_remove(index);
        let Some(index) = other.of(slots.len()) else { return Ok(false) };
        let right = slots.swap_remove(index);
        self.said.push(format!("swap the elements of a{} and a{}", left.name, right.name));
        let mut ours = host_elements(&mut left.array)?;
        let mut theirs = host_elements(&mut right.array)?;
        for (our, their) in ours.iter_mut().zip(&mut theirs) {
            self.sim.host_writes(our, 1);
            self.sim.host_writes(their, 1);
            std::mem::swap(our, their);
        }
        left.twin.iter_mut().zip(&mut right.twin).for_each(|(our, their)| std::mem::swap(our, their));
        Ok(true)
    }

    /// Another library sets all bytes of an array, or copies an array of the same size, on a stream of its own. A guard that is leaked
    /// makes later users wait for more.
    pub(super) fn lend(&mut self, array: Pick, other: Pick, value: u8, leaks: bool) -> Step {
        let (Some(index), Some(source)) = (self.find(array), self.find(other)) else { return Ok(false) };
        let is_copy = index != source && {
            let (to, from) = (&self.arrays[index], &self.arrays[source]);
            let is_alike = to.twin.len() == from.twin.len() && to.device == from.device;
            is_alike && to.array.is_by_rows() && from.array.is_by_rows()
        };
        let mut slot = self.arrays.remove(index);
        let stream = &self.others[slot.device];
        let gpu = &self.gpus[3 * slot.device];
        let _bound = gpu.device().bind().map_err(text)?;
        let size_bytes = slot.twin.len() * size_of::<T>();
        if size_bytes == 0 {
            self.arrays.insert(index, slot);
            return Ok(false);
        }
        let outcome = if is_copy {
            let from = &self.arrays[if source > index { source - 1 } else { source }];
            self.said.push(format!("other{}: copy a{} to a{}", slot.device, from.name, slot.name));
            let guards = with!(&mut slot.array, array => array.write_on(stream)).and_then(|write| {
                with!(&from.array, array => array.read_on(stream)).map(|read| (write, read))
            });
            let (write, read) = guards.map_err(text)?;
            let (to, from_address) = (write.address(), read.address());
            let queued = stream.queue_work(MemoryRange::NONE, |raw| {
                // SAFETY: both arrays have this size on the stream's device, and the guards have ordered the stream.
                unsafe { self.driver.cuMemcpyAsync(to, from_address, size_bytes, raw) }
            });
            if leaks {
                std::mem::forget((write, read));
            } else {
                drop((read, write));
            }
            let elements: Vec<T> = from.twin.iter().copied().collect();
            slot.twin.iter_mut().zip(elements).for_each(|(twin, element)| *twin = element);
            queued
        } else {
            self.said.push(format!("other{}: set a{} to bytes {value}", slot.device, slot.name));
            let write = with!(&mut slot.array, array => array.write_on(stream)).map_err(text)?;
            let to = write.address();
            let queued = stream.queue_work(MemoryRange::NONE, |raw| {
                // SAFETY: the array has this size on the stream's device, and the guard has ordered the stream.
                unsafe { self.driver.cuMemsetD8Async(to, value, size_bytes, raw) }
            });
            if leaks {
                std::mem::forget(write);
            } else {
                drop(write);
            }
            slot.twin.fill(T::of_byte(value));
            queued
        };
        if leaks {
            self.said.push("// the guard is leaked".into());
        }
        self.arrays.insert(index, slot);
        outcome.map_err(text)?.map_err(text)?;
        Ok(true)
    }

    /// The device works on a slice of the program, on two streams.
    pub(super) fn registered(&mut self, len: usize, (on, other): (On, On), value: i8) -> Step {
        let (gpu, name) = self.any(on);
        let (other, other_name) = self.of_device(other, usize::from(on.0) % 6 / 3);
        self.said
            .push(format!("{name}.with_registered({len}, AddAssign {value}; {other_name}: MulAssign 3)"));
        let elements = numbered::<T>(&[len + 1]);
        let mut host: Vec<T> = elements.iter().copied().collect();
        let queued = gpu.with_registered(&mut host, |mut x| {
            x.try_add_assign(T::of(value))?;
            x.view_mut().on_mut(&other).try_mul_assign(T::of(3))?;
            x.view().sum()
        });
        let sum = queued.map_err(text)?.map_err(text)?.into_scalar().map_err(text)?;
        let calculate = |element: &T| {
            use super::operation::Arithmetic::{Add, Mul};
            T::calculate(Mul, T::calculate(Add, *element, T::of(value)), T::of(3))
        };
        let expected: Vec<T> = elements.iter().map(calculate).collect();
        if host != expected {
            return Err("the registered slice has other elements".into());
        }
        self.coverage.compared += host.len() as u64;
        match T::is_sum(sum, host.into_iter()) {
            true => Ok(true),
            false => Err(format!("the sum of the registered slice is {sum:?}")),
        }
    }
}

/// The elements of an array that is not in device memory.
fn host_elements<T: Value>(array: &mut Real<T>) -> Result<ArrayViewMutD<'_, T>, String> {
    match array {
        Real::Device(_) => Err("the host cannot access device memory".into()),
        Real::Unified(array) => array.as_array_mut().map_err(text),
        Real::Pinned(array) => array.as_array_mut().map_err(text),
    }
}

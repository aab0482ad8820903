//! Views of the program's own host memory, which devices access in place: [`Gpu::with_registered`],
//! [`Gpu::with_registered_read_only`] and [`Gpu::with_pageable`].
//!
//! The view exists only inside a closure, so a program cannot leak it. The end of the closure waits for all streams, and then the borrow
//! of the slice ends ([`Device::with_host_memory`](gpumem_pool::Device::with_host_memory)).

use crate::array::{GpuView, GpuViewMut};
use crate::element::{Element, check_layout, first_invalid};
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::layout::{ElementOrder, Layout};
use crate::storage::ArrayStorage;
use gpumem_pool::{BorrowedHostMemory, DeviceError};
use ndarray::{Dim, Ix1};

/// The name of a closure scope in errors. Captures refuse it: the graph would use the memory at each launch, after the closure.
const SCOPE: &str = "access to borrowed host memory";

impl Gpu {
    /// Pins a slice with the driver while `body` runs: `body` receives a view of it, for operations of any `Gpu`. Kernels access the
    /// memory over the bus, and copies are as fast as those of a [`PinnedArray`](crate::PinnedArray).
    ///
    /// When `body` has returned or panicked, this waits for the streams of all devices, as
    /// [`Device::with_host_memory`](gpumem_pool::Device::with_host_memory) describes. Pinning takes 27 µs for each MiB.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let factor = GpuArray::from_slice(&gpu, &[10.0_f32, 100.0, 1000.0])?;
    /// let mut table = vec![1.0_f32, 2.0, 3.0];
    /// let sum = gpu.with_registered(&mut table, |mut x| {
    ///     x.try_mul_assign(&factor)?; // in place
    ///     x.view().sum()
    /// })??;
    /// assert_eq!(table, [10.0, 200.0, 3000.0]);
    /// assert_eq!(sum.into_scalar()?, 3210.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The view cannot leave the closure:
    ///
    /// ```compile_fail,E0521
    /// # use gpumem_array::Gpu;
    /// fn escape(gpu: &Gpu, table: &mut [f32]) {
    ///     let escaped = gpu.with_registered(table, |x| x);
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Pool`] before `body` runs if the driver refuses, for example because part of the slice is pinned already, if the
    ///   context is lost, or if the stream of this `Gpu` captures; [`DeviceError::Kept`] for an earlier drop.
    /// - [`ArrayError::Graph`] before `body` runs if this thread captures on another `Gpu`.
    /// - [`ArrayError::Pool`] after `body` if the context is lost by then: the work may not have run.
    /// - [`ArrayError::InvalidElement`] after `body` if the device wrote bytes that are not a valid `T`. Such elements are zeros then.
    ///
    /// # Aborts
    ///
    /// Aborts under the conditions of [`Device::with_host_memory`](gpumem_pool::Device::with_host_memory).
    pub fn with_registered<T: Element, R>(
        &self,
        elements: &mut [T],
        body: impl FnOnce(GpuViewMut<'_, T, Ix1>) -> R,
    ) -> Result<R, ArrayError> {
        self.check_runs(SCOPE)?;
        let mended = Mended::new(elements);
        // SAFETY: the slice is borrowed until this function returns, and `mended` does not use it until then.
        let slice = unsafe { core::slice::from_raw_parts_mut(mended.start, mended.len) };
        let result = self.device().with_host_memory(slice, |memory| {
            // SAFETY: the memory is borrowed exclusively until the end of the closure, which waits for all streams.
            let (storage, layout) = unsafe { self.over(memory, mended.len)? };
            Ok(body(GpuViewMut::new(self, &storage, layout)))
        });
        mended.finish(result)
    }

    /// Like [`Gpu::with_registered`], for a slice that devices only read; the host may keep reading it.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Pool`] and [`ArrayError::Graph`], with the causes that [`Gpu::with_registered`] lists.
    /// - [`ArrayError::Pool`] with [`DeviceError::HostAccess`] if the device does not support read-only registration.
    ///
    /// # Aborts
    ///
    /// Aborts under the conditions of [`Device::with_host_memory`](gpumem_pool::Device::with_host_memory).
    pub fn with_registered_read_only<T: Element, R>(
        &self,
        elements: &[T],
        body: impl FnOnce(GpuView<'_, T, Ix1>) -> R,
    ) -> Result<R, ArrayError> {
        self.check_runs(SCOPE)?;
        self.device().with_host_memory_read_only(elements, |memory| {
            // SAFETY: the memory is borrowed until the end of the closure, which waits for all streams; a view does not write.
            let (storage, layout) = unsafe { self.over(memory, elements.len())? };
            Ok(body(GpuView::new(self, &storage, layout)))
        })?
    }

    /// Like [`Gpu::with_registered`], without pinning: the device accesses pageable host memory, page by page.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Pool`], [`ArrayError::Graph`] and [`ArrayError::InvalidElement`], with the causes that
    ///   [`Gpu::with_registered`] lists.
    /// - [`ArrayError::Pool`] with [`DeviceError::HostAccess`] if the device cannot access pageable host memory.
    ///
    /// # Aborts
    ///
    /// Aborts under the conditions of [`Device::with_host_memory`](gpumem_pool::Device::with_host_memory).
    pub fn with_pageable<T: Element, R>(
        &self,
        elements: &mut [T],
        body: impl FnOnce(GpuViewMut<'_, T, Ix1>) -> R,
    ) -> Result<R, ArrayError> {
        self.check_runs(SCOPE)?;
        let mended = Mended::new(elements);
        // SAFETY: the slice is borrowed until this function returns, and `mended` does not use it until then.
        let slice = unsafe { core::slice::from_raw_parts_mut(mended.start, mended.len) };
        let result = self.device().with_host_memory_pageable(slice, |memory| {
            // SAFETY: the memory is borrowed exclusively until the end of the closure, which waits for all streams.
            let (storage, layout) = unsafe { self.over(memory, mended.len)? };
            Ok(body(GpuViewMut::new(self, &storage, layout)))
        });
        mended.finish(result)
    }

    /// # Safety
    ///
    /// The requirements of [`ArrayStorage::of_host_memory`] apply, and the memory has `len` elements.
    unsafe fn over<T: Element>(
        &self,
        memory: &BorrowedHostMemory<'_, T>,
        len: usize,
    ) -> Result<(ArrayStorage, Layout<Ix1>), ArrayError> {
        const { check_layout::<T>() };
        let layout = Layout::dense(Dim(len), ElementOrder::Row, size_of::<T>())?;
        // SAFETY: the caller's promise.
        let storage =
            unsafe { ArrayStorage::of_host_memory(self.device(), memory.address(), memory.size_bytes()) };
        Ok((storage, layout))
    }
}

/// Elements that a device may write. When dropped, after the wait and even after a panic, it replaces invalid elements by zeros before the
/// program gets the slice back.
struct Mended<T: Element> {
    start: *mut T,
    len: usize,
}

impl<T: Element> Mended<T> {
    /// The caller uses the elements only through this value until it is dropped.
    fn new(elements: &mut [T]) -> Self {
        Self { start: elements.as_mut_ptr(), len: elements.len() }
    }

    fn finish<R>(self, result: Result<Result<R, ArrayError>, DeviceError>) -> Result<R, ArrayError> {
        let invalid = self.mend();
        let result = result??;
        match invalid {
            None => Ok(result),
            Some(index) => Err(ArrayError::InvalidElement { index, kind: core::any::type_name::<T>() }),
        }
    }

    /// Replaces invalid elements, and returns the index of the first.
    fn mend(&self) -> Option<usize> {
        // SAFETY: the elements are borrowed by the caller of `new`, and no device uses them any more. All their bytes are initialised.
        // `Bits` has the layout of `T` and accepts any bytes.
        let first = first_invalid::<T>(unsafe {
            core::slice::from_raw_parts(self.start.cast::<T::Bits>(), self.len)
        })?;
        for index in first..self.len {
            // SAFETY: within the elements, which only this value uses. `Bits` accepts any bytes.
            let bits = unsafe { &*self.start.add(index).cast::<T::Bits>() };
            if !T::is_valid_bit_pattern(bits) {
                // SAFETY: within the elements, which only this value uses.
                unsafe { self.start.add(index).write(T::zeroed()) };
            }
        }
        Some(first)
    }
}

impl<T: Element> Drop for Mended<T> {
    fn drop(&mut self) {
        let _first = self.mend();
    }
}

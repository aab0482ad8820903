//! [`UninitArray`]: memory that nobody has written yet, and that can only be written.

use crate::array::GpuArray;
use crate::copy;
use crate::element::Element;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::layout::{Layout, Order};
use crate::track::Storage;
use crate::view::AsView;
use core::fmt;
use ndarray::Dimension;

/// An array in the making: what writes all of it turns it into a [`GpuArray`].
///
/// ```
/// use gpumem_array::{Gpu, GpuArray, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let empty = GpuArray::<u8, _>::uninit(&gpu, 3)?;
/// assert_eq!(empty.fill(7)?.to_vec()?, [7, 7, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It can't be read:
///
/// ```compile_fail,E0599
/// # use gpumem_array::{UninitArray, ndarray::Ix1};
/// fn read(array: UninitArray<u8, Ix1>) {
///     let _ = array.to_vec();
/// }
/// ```
#[must_use = "memory that is neither written nor used"]
pub struct UninitArray<T, D>(GpuArray<T, D>);

impl<T: Element, D: Dimension> UninitArray<T, D> {
    pub(crate) fn with_order(gpu: &Gpu, dim: D, order: Order) -> Result<Self, ArrayError> {
        let layout = Layout::dense(dim, order, size_of::<T>())?;
        Ok(Self(GpuArray::unwritten(gpu, layout)?))
    }

    /// Every element the same.
    ///
    /// # Errors
    ///
    /// What the driver says; the memory is freed then.
    pub fn fill(mut self, value: T) -> Result<GpuArray<T, D>, ArrayError> {
        self.0.view_mut().fill(value)?;
        Ok(self.0)
    }

    pub(crate) fn zeroed(mut self) -> Result<GpuArray<T, D>, ArrayError> {
        self.0.view_mut().zero()?;
        Ok(self.0)
    }

    /// A copy of a slice, in the order in which the elements lie in memory (by rows). Returns when the copy is done.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] when the lengths differ, or what the driver says; the memory is freed then.
    pub fn copy_from_slice(mut self, elements: &[T]) -> Result<GpuArray<T, D>, ArrayError> {
        copy::upload(&mut self.0.view_mut(), elements)?;
        Ok(self.0)
    }

    /// A copy of an array or view on the device.
    ///
    /// # Errors
    ///
    /// As [`GpuArray::assign`]; the memory is freed then.
    pub fn assign<A: AsView<Elem = T>>(mut self, source: &A) -> Result<GpuArray<T, D>, ArrayError> {
        self.0.view_mut().assign(source)?;
        Ok(self.0)
    }

    /// An array of what is there.
    ///
    /// # Safety
    ///
    /// All elements have been written with valid values, by kernels that were queued through
    /// [`Launch::write_uninit`](crate::Launch::write_uninit) or have finished.
    #[must_use]
    pub unsafe fn assume_init(self) -> GpuArray<T, D> {
        self.0
    }

    /// The lengths of the axes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    /// How many elements there is room for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is room for none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The device address of the first element, zero where there is none.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    pub(crate) fn storage(&self) -> &Storage {
        self.0.storage()
    }
}

impl<T: Element, D: Dimension> fmt::Debug for UninitArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::view::describe(f, "UninitArray", &self.0.view())
    }
}

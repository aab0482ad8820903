//! [`UninitArray`]: uninitialised memory, which can only be written.

use crate::array::GpuArray;
use crate::array::view::describe;
use crate::element::Element;
use crate::element::kind::{DeviceLocal, Kind};
use crate::error::ArrayError;
use crate::gpu::{Gpu, Place};
use crate::layout::{ElementOrder, Layout};
use crate::storage::{ArrayStorage, Use};
use core::fmt;
use ndarray::{Dimension, IntoDimension};

/// An uninitialised array. Methods that write all elements return a [`GpuArray`].
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// let empty = GpuArray::<u8, _>::uninit(&gpu, 3)?;
/// assert_eq!(empty.fill(7)?.to_vec()?, [7, 7, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It cannot be read:
///
/// ```compile_fail,E0599
/// # use gpumem_array::{UninitArray, ndarray::Ix1};
/// fn read(array: UninitArray<u8, Ix1>) {
///     let _ = array.to_vec();
/// }
/// ```
#[must_use = "memory that is neither written nor used"]
pub struct UninitArray<T, D, K = DeviceLocal>(GpuArray<T, D, K>);

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Allocates uninitialised memory, which must be written before it becomes an array.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let memory = GpuArray::<i32, _>::uninit(&gpu, 3)?;
    /// let x = memory.copy_from_slice(&[1, 2, 3])?; // an array from here on
    /// assert_eq!(x.sum()?.into_scalar()?, 6);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`] if the shape exceeds the address space, [`ArrayError::Pool`] if the allocation fails.
    pub fn uninit<P, S>(place: &P, shape: S) -> Result<UninitArray<T, D, K>, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: IntoDimension<Dim = D>,
    {
        UninitArray::with_order(place, shape.into_dimension(), ElementOrder::Row)
    }
}

impl<T: Element, D: Dimension, K: Kind> UninitArray<T, D, K> {
    pub(crate) fn with_order<P: Place<Kind = K> + ?Sized>(
        place: &P,
        dim: D,
        order: ElementOrder,
    ) -> Result<Self, ArrayError> {
        let layout = Layout::dense(dim, order, size_of::<T>())?;
        Ok(Self(GpuArray::unwritten(place, layout)?))
    }

    /// Converts into an array without a write.
    ///
    /// # Safety
    ///
    /// All elements have been written with valid values, by kernels that were queued through
    /// [`Launch::write_uninit`](crate::Launch::write_uninit) or have finished.
    #[must_use]
    pub unsafe fn assume_init(self) -> GpuArray<T, D, K> {
        self.0
    }

    /// The device address of the first element; zero if there are no elements.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// The address at which work on the first element is planned.
    pub(crate) fn planned(&self) -> u64 {
        self.0.planned()
    }

    pub(super) fn layout(&self) -> &Layout<D> {
        self.0.layout()
    }

    /// Memory that is large enough for the layout.
    pub(super) fn over(gpu: &Gpu, storage: ArrayStorage, layout: Layout<D>) -> Self {
        Self(GpuArray::over(gpu, storage, layout))
    }

    /// Converts into an array, for callers that write all of it or drop it.
    pub(crate) fn into_unwritten(self) -> GpuArray<T, D, K> {
        self.0
    }

    /// Work that writes all elements.
    pub(crate) fn writes(&self) -> Use<'_> {
        self.0.writes()
    }
}

impl<T: Element, D: Dimension, K: Kind> fmt::Debug for UninitArray<T, D, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "UninitArray", K::NAME, &self.0.view())
    }
}

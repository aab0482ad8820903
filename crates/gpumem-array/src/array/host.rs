//! Host access to arrays in unified and pinned memory: slices, `ndarray` views and indices.
//!
//! Each access first waits on the host for the uses that it conflicts with: a read for writes, a write for all uses. While a slice lives,
//! the array is borrowed, shared for a read and exclusively for a write, so no conflicting work can be queued. The storage remembers that
//! the host has waited, so that later accesses are as fast as those of an ordinary slice.

use crate::array::GpuArray;
use crate::element::kind::{HostAccess, Kind};
use crate::element::{Element, first_invalid};
use crate::error::{ArrayError, or_panic};
use crate::layout::Layout;
use crate::storage::Access;
use core::ops::{Index, IndexMut};
use core::ptr::NonNull;
use ndarray::{ArrayView, ArrayViewMut, Dimension, NdIndex, ShapeBuilder};

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// The elements as a slice, in the order of memory: row-major, unless the array came from a column-major host array. Waits once for the
    /// writes that are queued so far on the device.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_elem(&gpu.pinned(), 1000, 2_i64)?;
    /// assert_eq!(x.as_slice()?.iter().sum::<i64>(), 2000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NoHostAccess`] for unified memory of a device without concurrent managed access.
    /// - [`ArrayError::InvalidElement`] if the device wrote bytes that are not a valid `T`.
    /// - [`ArrayError::Pool`] if the stream of a write captures, or if a driver call or earlier work failed.
    pub fn as_slice(&self) -> Result<&[T], ArrayError>
    where
        K: HostAccess,
    {
        let first = self.ready(Access::Read)?;
        // SAFETY: `ready` has returned the address of the elements, which are valid values, and no work that writes them is queued.
        // None can be queued while the array is borrowed.
        Ok(unsafe { core::slice::from_raw_parts(first.as_ptr(), self.len()) })
    }

    /// The elements as a mutable slice, in the order of memory. Waits once for all uses that are queued so far on the device.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::PinnedArray;
    ///
    /// let mut x = PinnedArray::<i32, _>::zeros(&gpu.pinned(), 3)?;
    /// x.as_mut_slice()?.copy_from_slice(&[3, 1, 2]);
    /// x.as_mut_slice()?.sort_unstable();
    /// assert_eq!(x.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::NoHostAccess`], [`ArrayError::InvalidElement`] and [`ArrayError::Pool`], with the causes that
    /// [`GpuArray::as_slice`] lists.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], ArrayError>
    where
        K: HostAccess,
    {
        let first = self.ready(Access::Write)?;
        // SAFETY: as in `as_slice`; no work that reads them is queued either, and the array is borrowed exclusively.
        Ok(unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), self.len()) })
    }

    /// The elements as an `ndarray` view, without a copy. Waits like [`GpuArray::as_slice`].
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{Axis, array}};
    ///
    /// let x = GpuArray::from_array(&gpu.unified(), &array![[1, 2], [3, 4]])?;
    /// assert_eq!(x.as_array()?.sum_axis(Axis(0)), array![4, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::NoHostAccess`], [`ArrayError::InvalidElement`] and [`ArrayError::Pool`], with the causes that
    /// [`GpuArray::as_slice`] lists.
    pub fn as_array(&self) -> Result<ArrayView<'_, T, D>, ArrayError>
    where
        K: HostAccess,
    {
        let first = self.ready(Access::Read)?;
        // SAFETY: as in `as_slice`. The strides of an array are those of contiguous elements.
        Ok(unsafe { ArrayView::from_shape_ptr(shape(self.layout()), first.as_ptr()) })
    }

    /// The elements as a mutable `ndarray` view, without a copy. Waits like [`GpuArray::as_mut_slice`].
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::UnifiedArray;
    ///
    /// let mut x = UnifiedArray::<i32, _>::zeros(&gpu.unified(), (2, 2))?;
    /// x.as_array_mut()?.row_mut(1).fill(5);
    /// assert_eq!(x.to_vec()?, [0, 0, 5, 5]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::NoHostAccess`], [`ArrayError::InvalidElement`] and [`ArrayError::Pool`], with the causes that
    /// [`GpuArray::as_slice`] lists.
    pub fn as_array_mut(&mut self) -> Result<ArrayViewMut<'_, T, D>, ArrayError>
    where
        K: HostAccess,
    {
        let first = self.ready(Access::Write)?;
        let shape = match self.is_empty() {
            // The strides are zero, which `ndarray` does not accept.
            true => self.raw_dim().into(),
            false => shape(self.layout()),
        };
        // SAFETY: as in `as_mut_slice`. The strides of an array are those of contiguous elements.
        Ok(unsafe { ArrayViewMut::from_shape_ptr(shape, first.as_ptr()) })
    }

    /// The address of the elements, when the host may access them. They are valid values.
    #[inline]
    fn ready(&self, access: Access) -> Result<NonNull<T>, ArrayError>
    where
        K: HostAccess,
    {
        if self.storage().is_ready_for_host(access) {
            let first = core::ptr::with_exposed_provenance_mut(self.storage().planned() as usize);
            // SAFETY: the memory has a pointer for the host, which is not null, and is that of the address.
            Ok(unsafe { NonNull::new_unchecked(first) })
        } else {
            self.wait_for_device(access)
        }
    }

    #[cold]
    fn wait_for_device(&self, access: Access) -> Result<NonNull<T>, ArrayError> {
        if self.is_empty() {
            return Ok(NonNull::dangling());
        }
        let device = self.storage().device();
        let Some(first) = self.storage().host_ptr() else {
            return Err(ArrayError::NoHostAccess { device: device.to_string() });
        };
        self.storage().wait_on_host(access).map_err(|error| self.gpu().with_kernel_name(error))?;
        // SAFETY: the host may read the elements now. All their bytes are initialised, as the device or the host has written all of an
        // array, and `Bits` has the layout of `T` and accepts any bytes.
        let bits = unsafe { core::slice::from_raw_parts(first.cast::<T::Bits>().as_ptr(), self.len()) };
        if let Some(index) = first_invalid::<T>(bits) {
            return Err(ArrayError::InvalidElement { index, kind: core::any::type_name::<T>() });
        }
        self.storage().set_ready_for_host(access);
        Ok(first.cast())
    }
}

#[inline]
fn shape<D: Dimension>(layout: &Layout<D>) -> ndarray::StrideShape<D> {
    let mut strides = layout.raw_strides();
    // The elements of an array are contiguous, so one axis has the step 1, or at most one element. The constant saves a multiplication for
    // each indexed read.
    if D::NDIM == Some(1) {
        strides[0] = 1;
    }
    layout.dim.clone().strides(strides)
}

/// Indices of an array in host-accessible memory, as in `ndarray`: `3` or `[1, 2]`.
pub trait HostIndex<D: Dimension, K: Kind>: sealed::NdarrayIndex<D> {
    #[doc(hidden)]
    fn element<T: Element>(self, array: &GpuArray<T, D, K>) -> &T;
    #[doc(hidden)]
    fn element_mut<T: Element>(self, array: &mut GpuArray<T, D, K>) -> &mut T;
}

mod sealed {
    use ndarray::{Dimension, NdIndex};
    pub trait NdarrayIndex<D> {}
    impl<D: Dimension, I: NdIndex<D>> NdarrayIndex<D> for I {}
}

impl<D: Dimension, K: HostAccess, I: NdIndex<D> + Clone> HostIndex<D, K> for I {
    #[inline]
    #[track_caller]
    fn element<T: Element>(self, array: &GpuArray<T, D, K>) -> &T {
        let first = or_panic(array.ready(Access::Read));
        // SAFETY: as in `as_array`.
        let view: ArrayView<'_, T, D> =
            unsafe { ArrayView::from_shape_ptr(shape(array.layout()), first.as_ptr()) };
        let Some(element) = view.get_ptr(self.clone()) else { out_of_bounds(self, array.shape()) };
        // SAFETY: an element of the view, which is valid while the array is borrowed.
        unsafe { &*element }
    }

    #[inline]
    #[track_caller]
    fn element_mut<T: Element>(self, array: &mut GpuArray<T, D, K>) -> &mut T {
        let first = or_panic(array.ready(Access::Write));
        if array.is_empty() {
            out_of_bounds(self, array.shape());
        }
        // SAFETY: as in `as_array_mut`.
        let mut view: ArrayViewMut<'_, T, D> =
            unsafe { ArrayViewMut::from_shape_ptr(shape(array.layout()), first.as_ptr()) };
        match view.get_mut_ptr(self.clone()) {
            // SAFETY: an element of the view, which is valid while the array is borrowed exclusively.
            Some(element) => unsafe { &mut *element },
            None => out_of_bounds(self, array.shape()),
        }
    }
}

#[cold]
#[track_caller]
fn out_of_bounds(index: impl core::fmt::Debug, shape: &[usize]) -> ! {
    panic!("index {index:?} is out of bounds of shape {shape:?}")
}

/// # Panics
///
/// If the index is out of bounds, or where [`GpuArray::as_array`] returns an error.
impl<T: Element, D: Dimension, K: Kind, I: HostIndex<D, K>> Index<I> for GpuArray<T, D, K> {
    type Output = T;
    #[inline]
    #[track_caller]
    fn index(&self, index: I) -> &T {
        index.element(self)
    }
}

/// # Panics
///
/// If the index is out of bounds, or where [`GpuArray::as_array_mut`] returns an error.
impl<T: Element, D: Dimension, K: Kind, I: HostIndex<D, K>> IndexMut<I> for GpuArray<T, D, K> {
    #[inline]
    #[track_caller]
    fn index_mut(&mut self, index: I) -> &mut T {
        index.element_mut(self)
    }
}

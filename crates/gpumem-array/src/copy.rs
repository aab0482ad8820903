//! Copies between host and device, and between arrays on a device.
//!
//! The host memory is borrowed, so every copy to or from it is queued in [`Stream::run_borrowed`], which returns when the copy is
//! complete.

use crate::array::{AsView, GpuArray, GpuView, GpuViewMut, UninitArray};
use crate::element::{Element, first_invalid};
use crate::error::{ArrayError, or_panic};
use crate::gpu::{Gpu, Place};
use crate::kind::Kind;
use crate::layout::{Layout, Order, same_shape};
use crate::storage::{Access, queue, record_complete};
use gpumem_pool::PoolError;
use gpumem_pool::sys::types::CUdeviceptr;
use ndarray::{Array, ArrayBase, Data, Dimension, Ix0, Ix1, ShapeBuilder};

impl<T: Element, D: Dimension> GpuView<'_, T, D> {
    /// Downloads the elements in row-major order. Waits for all work queued on the stream so far.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NotContiguous`] if the view is not contiguous.
    /// - [`ArrayError::WrongDevice`] if the view is used through a `Gpu` on another device.
    /// - [`ArrayError::InvalidElement`] if the device wrote bytes that are not a valid `T`.
    /// - [`ArrayError::HostFull`] if the host is out of memory.
    /// - [`ArrayError::Pool`] if the stream captures, or if a driver call or earlier work failed.
    pub fn to_vec(&self) -> Result<Vec<T>, ArrayError> {
        match self.layout().is_dense(Order::Row) {
            true => download(self),
            false => Ok(self.to_array()?.iter().copied().collect()),
        }
    }

    /// Downloads the elements in their shape. Waits for all work queued on the stream so far.
    ///
    /// # Errors
    ///
    /// [`ArrayError::NotContiguous`], [`ArrayError::WrongDevice`], [`ArrayError::InvalidElement`], [`ArrayError::HostFull`],
    /// [`ArrayError::Pool`]; see [`GpuView::to_vec`].
    pub fn to_array(&self) -> Result<Array<T, D>, ArrayError> {
        let Some(order) = self.layout().order() else { return Err(gaps(self.layout(), "download")) };
        let elements = download(self)?;
        let shape = self.raw_dim().set_f(order == Order::Column);
        Array::from_shape_vec(shape, elements)
            .map_err(|_| ArrayError::TooManyElements { shape: self.shape().to_vec() })
    }
}

impl<T: Element> GpuView<'_, T, Ix0> {
    /// Downloads the only element. Waits for all work queued on the stream so far.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], [`ArrayError::InvalidElement`], [`ArrayError::Pool`]; see [`GpuView::to_vec`].
    pub fn into_scalar(self) -> Result<T, ArrayError> {
        Ok(self.to_array()?.into_scalar())
    }
}

impl<T: Element, K: Kind> GpuArray<T, Ix1, K> {
    /// Uploads a slice. Returns when the copy is complete.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the allocation or a driver call fails, or if the stream captures.
    pub fn from_slice<P: Place<Kind = K> + ?Sized>(place: &P, elements: &[T]) -> Result<Self, ArrayError> {
        Self::uninit(place, elements.len())?.copy_from_slice(elements)
    }
}

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Uploads an `ndarray` array or view. Returns when the copy is complete.
    ///
    /// An array that is contiguous in row-major or column-major order keeps its order. Other arrays are first gathered in row-major
    /// order.
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`] if the shape exceeds the address space (a broadcast view can); [`ArrayError::Pool`] if the
    /// allocation or a driver call fails, or if the stream captures.
    pub fn from_array<P, S>(place: &P, array: &ArrayBase<S, D>) -> Result<Self, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: Data<Elem = T>,
    {
        let dim = array.raw_dim();
        if let Some(elements) = array.as_slice() {
            return UninitArray::with_order(place, dim, Order::Row)?.copy_from_slice(elements);
        }
        if let Some(elements) = array.t().as_slice() {
            return UninitArray::with_order(place, dim, Order::Column)?.copy_from_slice(elements);
        }
        // The device's memory first: a broadcast view can be larger than any memory, and a failing allocation on the host aborts the
        // program.
        let target = UninitArray::with_order(place, dim, Order::Row)?;
        let elements: Vec<T> = array.iter().copied().collect();
        target.copy_from_slice(&elements)
    }

    /// Copies the array on the device, in memory of the same kind.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the allocation or a driver call fails.
    pub fn try_clone(&self) -> Result<Self, ArrayError> {
        let order = self.layout().order().unwrap_or(Order::Row);
        UninitArray::with_order(&self.gpu().memory::<K>(), self.raw_dim(), order)?.assign(self)
    }

    /// Downloads the elements in row-major order; see [`GpuView::to_vec`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::InvalidElement`], [`ArrayError::HostFull`], [`ArrayError::Pool`]; see [`GpuView::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<T>, ArrayError> {
        self.view().to_vec()
    }

    /// Downloads the elements in their shape; see [`GpuView::to_array`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::InvalidElement`], [`ArrayError::HostFull`], [`ArrayError::Pool`]; see [`GpuView::to_vec`].
    pub fn to_array(&self) -> Result<Array<T, D>, ArrayError> {
        self.view().to_array()
    }

    /// Overwrites the array with a slice; see [`GpuViewMut::copy_from_slice`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the lengths differ, [`ArrayError::Pool`] if the stream captures or a driver call fails.
    pub fn copy_from_slice(&mut self, elements: &[T]) -> Result<(), ArrayError> {
        self.view_mut().copy_from_slice(elements)
    }

    /// Overwrites the array with elements of the same shape; see [`GpuViewMut::assign`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`], [`ArrayError::WrongDevice`], [`ArrayError::NotContiguous`], [`ArrayError::Pool`]; see
    /// [`GpuViewMut::assign`].
    pub fn assign<A: AsView<Elem = T>>(&mut self, source: &A) -> Result<(), ArrayError> {
        self.view_mut().assign(source)
    }
}

impl<T: Element, K: Kind> GpuArray<T, Ix0, K> {
    /// Downloads the only element; see [`GpuView::into_scalar`]. To keep the array, call it on a [view](GpuArray::view).
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], [`ArrayError::InvalidElement`], [`ArrayError::Pool`]; see [`GpuView::to_vec`].
    pub fn into_scalar(self) -> Result<T, ArrayError> {
        self.view().into_scalar()
    }
}

/// # Panics
///
/// If the allocation or the copy fails; [`GpuArray::try_clone`] returns an error instead.
impl<T: Element, D: Dimension, K: Kind> Clone for GpuArray<T, D, K> {
    #[track_caller]
    fn clone(&self) -> Self {
        or_panic(self.try_clone())
    }
}

impl<T: Element, D: Dimension, K: Kind> UninitArray<T, D, K> {
    /// Uploads a slice, whose elements are in the order of memory (row-major). Returns when the copy is complete.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the lengths differ, [`ArrayError::Pool`] if the stream captures or a driver call fails. On an error
    /// the memory is freed.
    pub fn copy_from_slice(self, elements: &[T]) -> Result<GpuArray<T, D, K>, ArrayError> {
        let mut array = self.into_unwritten();
        upload(&mut array.view_mut(), elements)?;
        Ok(array)
    }

    /// Copies an array or view on the device.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`], [`ArrayError::WrongDevice`], [`ArrayError::NotContiguous`], [`ArrayError::Pool`]; see
    /// [`GpuViewMut::assign`]. On an error the memory is freed.
    pub fn assign<A: AsView<Elem = T>>(self, source: &A) -> Result<GpuArray<T, D, K>, ArrayError> {
        let mut array = self.into_unwritten();
        array.view_mut().assign(source)?;
        Ok(array)
    }
}

impl<T: Element, D: Dimension> GpuViewMut<'_, T, D> {
    /// Overwrites the view with elements of the same shape, on the device.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the shapes differ.
    /// - [`ArrayError::WrongDevice`] if `source` is on another device.
    /// - [`ArrayError::NotContiguous`] unless both are contiguous in the same order.
    /// - [`ArrayError::Pool`] if a driver call fails.
    pub fn assign<A: AsView<Elem = T>>(&mut self, source: &A) -> Result<(), ArrayError> {
        let source = source.as_view();
        same_shape("assign", self.layout(), source.layout())?;
        if self.layout().common_order(source.layout()).is_none() {
            return Err(gaps(source.layout(), "assign"));
        }
        let gpu = self.gpu();
        gpu.check(self.storage().device())?;
        gpu.check(source.storage().device())?;
        if self.is_empty() {
            return Ok(());
        }
        source.storage().order(gpu, Access::Read)?;
        self.storage().order(gpu, Access::Write)?;
        let (to, from, size_bytes) = (self.address(), source.address(), self.len() * size_of::<T>());
        queue(gpu, [source.storage(), self.storage()], |stream| {
            // SAFETY: both are contiguous within their blocks, alive and on this device, and differ, since one is borrowed
            // exclusively; the stream has been ordered after what conflicts.
            unsafe { gpu.device().driver().cuMemcpyAsync(to, from, size_bytes, stream) }
        })
    }

    /// Overwrites the view with a slice, in the order of memory. Returns when the copy is complete.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the lengths differ, [`ArrayError::NotContiguous`] if the view is not contiguous,
    /// [`ArrayError::WrongDevice`] if the view is used through a `Gpu` on another device, [`ArrayError::Pool`] if the stream captures or
    /// a driver call fails.
    pub fn copy_from_slice(&mut self, elements: &[T]) -> Result<(), ArrayError> {
        upload(self, elements)
    }
}

/// Copies host elements over a view.
pub(crate) fn upload<T: Element, D: Dimension>(
    target: &mut GpuViewMut<'_, T, D>,
    elements: &[T],
) -> Result<(), ArrayError> {
    if elements.len() != target.len() {
        return Err(ArrayError::Shape {
            operation: "upload",
            left: target.shape().to_vec(),
            right: vec![elements.len()],
            expected: "the slice must have as many elements as the array",
        });
    }
    if target.layout().order().is_none() {
        return Err(gaps(target.layout(), "upload"));
    }
    let gpu = target.gpu();
    gpu.check(target.storage().device())?;
    if elements.is_empty() {
        return Ok(());
    }
    check_runs(gpu, UPLOAD)?;
    target.storage().order(gpu, Access::Write)?;
    let _bound = gpu.device().bind()?;
    let (driver, to) = (gpu.device().driver(), target.address());
    let from = elements.as_ptr().expose_provenance() as CUdeviceptr;
    let queued = gpu.stream().run_borrowed(UPLOAD, |raw| {
        // SAFETY: the target is alive, as long as the slice, and ordered after what conflicts. The slice is borrowed until this
        // function returns, and `run_borrowed` returns when the copy is done.
        unsafe { driver.cuMemcpyAsync(to, from, size_of_val(elements), raw) }
    });
    let queued = queued.map_err(|error| gpu.explained(error.into()))?;
    queued.map_err(PoolError::from)?;
    record_complete(gpu.stream(), target.storage());
    Ok(())
}

/// The elements in the order of memory.
fn download<T: Element, D: Dimension>(source: &GpuView<'_, T, D>) -> Result<Vec<T>, ArrayError> {
    if source.layout().order().is_none() {
        return Err(gaps(source.layout(), "download"));
    }
    let gpu = source.gpu();
    gpu.check(source.storage().device())?;
    let len = source.len();
    let mut elements: Vec<T> = Vec::new();
    if len == 0 {
        return Ok(elements);
    }
    let size_bytes = len * size_of::<T>();
    check_runs(gpu, DOWNLOAD)?;
    elements.try_reserve_exact(len).map_err(|_| ArrayError::HostFull { size_bytes })?;
    source.storage().order(gpu, Access::Read)?;
    let _bound = gpu.device().bind()?;
    let (driver, from) = (gpu.device().driver(), source.address());
    let to = elements.as_mut_ptr().expose_provenance() as CUdeviceptr;
    let queued = gpu.stream().run_borrowed(DOWNLOAD, |raw| {
        // SAFETY: the source is alive, has `len` elements, and is ordered after what wrote it. The vector has room for them and
        // is neither used nor freed before `run_borrowed` returns, which it does when the copy is done.
        unsafe { driver.cuMemcpyAsync(to, from, size_bytes, raw) }
    });
    let queued = queued.map_err(|error| gpu.explained(error.into()))?;
    queued.map_err(PoolError::from)?;
    // SAFETY: the copy has succeeded and is done, so all bytes of these elements are initialised. `Bits` has the layout of `T`, and any
    // initialised bytes are a valid value of it. Nothing else uses the vector while the slice lives.
    let bits = unsafe { core::slice::from_raw_parts(elements.as_ptr().cast::<T::Bits>(), len) };
    if let Some(index) = first_invalid::<T>(bits) {
        return Err(ArrayError::InvalidElement { index, kind: core::any::type_name::<T>() });
    }
    // SAFETY: `len` elements have been written, and the check above found each to be a valid value.
    unsafe { elements.set_len(len) };
    Ok(elements)
}

/// Refuses a copy if the stream captures, because the graph would use the host's memory at every launch, long after this call. The
/// check comes before the waits, which could make the stream join a capture. `run_borrowed` checks again.
fn check_runs(gpu: &Gpu, operation: &'static str) -> Result<(), ArrayError> {
    gpu.check_thread()?;
    if gpu.stream().is_capturing()? { Err(PoolError::NotInCapture { operation }.into()) } else { Ok(()) }
}

/// The copies, as errors name them.
const UPLOAD: &str = "an upload from borrowed memory";
const DOWNLOAD: &str = "a download";

fn gaps<D: Dimension>(layout: &Layout<D>, operation: &'static str) -> ArrayError {
    layout.not_contiguous(
        operation,
        "use whole rows (slices of the first axis), or slice and transpose on the host before the upload",
    )
}

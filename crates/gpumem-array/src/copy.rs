//! Between host and device, and from one place on the device to another.
//!
//! Host memory here is always borrowed, so every copy to or from it is queued inside of [`Stream::run_borrowed`], which
//! returns only when the device is done with it.

use crate::array::{AsView, GpuArray, GpuView, GpuViewMut, UninitArray};
use crate::element::Element;
use crate::error::{ArrayError, or_panic};
use crate::gpu::Gpu;
use crate::layout::{Layout, Order, same_shape};
use crate::storage::{Access, queue};
use gpumem_pool::sys::types::CUdeviceptr;
use gpumem_pool::{PoolError, Stream};
use ndarray::{Array, ArrayBase, Data, Dimension, Ix0, Ix1, ShapeBuilder};

impl<T: Element, D: Dimension> GpuView<'_, T, D> {
    /// The elements by rows. Waits for everything queued on the stream so far.
    ///
    /// # Errors
    ///
    /// [`ArrayError::NotContiguous`] for a view with gaps; [`ArrayError::InvalidElement`]; [`ArrayError::HostFull`]; or
    /// what the driver says, the failure of earlier work included.
    pub fn to_vec(&self) -> Result<Vec<T>, ArrayError> {
        match self.layout().is_dense(Order::Row) {
            true => download(self),
            false => Ok(self.to_array()?.iter().copied().collect()),
        }
    }

    /// The elements in their shape. Waits for everything queued on the stream so far.
    ///
    /// # Errors
    ///
    /// As [`GpuView::to_vec`].
    pub fn to_array(&self) -> Result<Array<T, D>, ArrayError> {
        let Some(order) = self.layout().order() else { return Err(gaps(self.layout(), "download")) };
        let elements = download(self)?;
        let shape = self.raw_dim().set_f(order == Order::Column);
        Array::from_shape_vec(shape, elements)
            .map_err(|_| ArrayError::TooManyElements { shape: self.shape().to_vec() })
    }
}

impl<T: Element> GpuView<'_, T, Ix0> {
    /// The only element. Waits for everything queued on the stream so far.
    ///
    /// # Errors
    ///
    /// As [`GpuView::to_vec`].
    pub fn into_scalar(self) -> Result<T, ArrayError> {
        Ok(self.to_array()?.into_scalar())
    }
}

impl<T: Element> GpuArray<T, Ix1> {
    /// A copy of a slice. Returns when the slice may be changed again, which is when the copy is done.
    ///
    /// # Errors
    ///
    /// Out of memory, or what the driver says.
    pub fn from_slice(gpu: &Gpu, elements: &[T]) -> Result<Self, ArrayError> {
        Self::uninit(gpu, elements.len())?.copy_from_slice(elements)
    }
}

impl<T: Element, D: Dimension> GpuArray<T, D> {
    /// A copy of an `ndarray` array or view. Returns when the copy is done.
    ///
    /// What lies side by side by rows or by columns keeps its order; anything else is gathered by rows first.
    ///
    /// # Errors
    ///
    /// Out of memory, or what the driver says.
    pub fn from_array<S: Data<Elem = T>>(gpu: &Gpu, array: &ArrayBase<S, D>) -> Result<Self, ArrayError> {
        let dim = array.raw_dim();
        if let Some(elements) = array.as_slice() {
            return UninitArray::with_order(gpu, dim, Order::Row)?.copy_from_slice(elements);
        }
        if let Some(elements) = array.t().as_slice() {
            return UninitArray::with_order(gpu, dim, Order::Column)?.copy_from_slice(elements);
        }
        // First the device's memory: a view that repeats its elements can be larger than any memory, and the host's
        // allocator would end the program over it.
        let target = UninitArray::with_order(gpu, dim, Order::Row)?;
        let elements: Vec<T> = array.iter().copied().collect();
        target.copy_from_slice(&elements)
    }

    /// A copy on the device.
    ///
    /// # Errors
    ///
    /// Out of memory, or what the driver says.
    pub fn try_clone(&self) -> Result<Self, ArrayError> {
        let order = self.layout().order().unwrap_or(Order::Row);
        UninitArray::with_order(self.gpu(), self.raw_dim(), order)?.assign(self)
    }

    /// The elements by rows; see [`GpuView::to_vec`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn to_vec(&self) -> Result<Vec<T>, ArrayError> {
        self.view().to_vec()
    }

    /// The elements in their shape; see [`GpuView::to_array`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn to_array(&self) -> Result<Array<T, D>, ArrayError> {
        self.view().to_array()
    }

    /// Copies a slice over all of this array; see [`GpuViewMut::copy_from_slice`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn copy_from_slice(&mut self, elements: &[T]) -> Result<(), ArrayError> {
        self.view_mut().copy_from_slice(elements)
    }

    /// Copies elements of the same shape over all of this array; see [`GpuViewMut::assign`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn assign<A: AsView<Elem = T>>(&mut self, source: &A) -> Result<(), ArrayError> {
        self.view_mut().assign(source)
    }
}

impl<T: Element> GpuArray<T, Ix0> {
    /// The only element; see [`GpuView::into_scalar`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn into_scalar(self) -> Result<T, ArrayError> {
        self.view().into_scalar()
    }
}

/// # Panics
///
/// When the copy can't be made, out of memory say; [`GpuArray::try_clone`] gives an error instead.
impl<T: Element, D: Dimension> Clone for GpuArray<T, D> {
    #[track_caller]
    fn clone(&self) -> Self {
        or_panic(self.try_clone())
    }
}

impl<T: Element, D: Dimension> UninitArray<T, D> {
    /// A copy of a slice, in the order in which the elements lie in memory (by rows). Returns when the copy is done.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] when the lengths differ, or what the driver says; the memory is freed then.
    pub fn copy_from_slice(self, elements: &[T]) -> Result<GpuArray<T, D>, ArrayError> {
        let mut array = self.into_unwritten();
        upload(&mut array.view_mut(), elements)?;
        Ok(array)
    }

    /// A copy of an array or view on the device.
    ///
    /// # Errors
    ///
    /// As [`GpuArray::assign`]; the memory is freed then.
    pub fn assign<A: AsView<Elem = T>>(self, source: &A) -> Result<GpuArray<T, D>, ArrayError> {
        let mut array = self.into_unwritten();
        array.view_mut().assign(source)?;
        Ok(array)
    }
}

impl<T: Element, D: Dimension> GpuViewMut<'_, T, D> {
    /// Copies elements of the same shape over all of this view, on the device.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`], [`ArrayError::WrongDevice`], or [`ArrayError::NotContiguous`] unless both lie side by side
    /// in the same order.
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
        source.storage().order(gpu.stream(), Access::Read)?;
        self.storage().order(gpu.stream(), Access::Write)?;
        let (to, from, size_bytes) = (self.address(), source.address(), self.len() * size_of::<T>());
        queue(gpu, [source.storage(), self.storage()], |stream| {
            // SAFETY: both lie side by side within their blocks, alive and on this device, and differ, since one is borrowed
            // exclusively; the stream has been ordered after what conflicts.
            unsafe { gpu.device().driver().cuMemcpyAsync(to, from, size_bytes, stream) }
        })
    }

    /// Copies a slice over all of this view, in the order of memory. Returns when the copy is done.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] when the lengths differ, [`ArrayError::NotContiguous`] for a view with gaps, or what the
    /// driver says.
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
    check_runs(gpu.stream(), UPLOAD)?;
    target.storage().order(gpu.stream(), Access::Write)?;
    let _bound = gpu.device().bind()?;
    let (driver, to) = (gpu.device().driver(), target.address());
    let from = elements.as_ptr().expose_provenance() as CUdeviceptr;
    let queued = gpu.stream().run_borrowed(UPLOAD, |raw| {
        // SAFETY: the target is alive, as long as the slice, and ordered after what conflicts. The slice is borrowed until this
        // function returns, and `run_borrowed` returns when the copy is done.
        unsafe { driver.cuMemcpyAsync(to, from, size_of_val(elements), raw) }
    })?;
    Ok(queued.map_err(PoolError::from)?)
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
    check_runs(gpu.stream(), DOWNLOAD)?;
    elements.try_reserve_exact(len).map_err(|_| ArrayError::HostFull { size_bytes })?;
    source.storage().order(gpu.stream(), Access::Read)?;
    let _bound = gpu.device().bind()?;
    let (driver, from) = (gpu.device().driver(), source.address());
    let to = elements.as_mut_ptr().expose_provenance() as CUdeviceptr;
    let queued = gpu.stream().run_borrowed(DOWNLOAD, |raw| {
        // SAFETY: the source is alive, has `len` elements, and is ordered after what wrote it. The vector has room for them and
        // is neither used nor freed before `run_borrowed` returns, which it does when the copy is done.
        unsafe { driver.cuMemcpyAsync(to, from, size_bytes, raw) }
    })?;
    queued.map_err(PoolError::from)?;
    // SAFETY: the copy has succeeded and is done, so these bytes of the vector's allocation are initialised, and any bytes are
    // values of `u8`. Nothing else uses the vector while the slice lives.
    let bytes = unsafe { core::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_bytes) };
    if let Some(index) = T::first_invalid(bytes) {
        return Err(ArrayError::InvalidElement { index, kind: core::any::type_name::<T>() });
    }
    // SAFETY: `len` elements have been written and are valid values: an `Element` says so of all bytes but those that
    // were just looked for.
    unsafe { elements.set_len(len) };
    Ok(elements)
}

/// Refuses a copy before it is ordered behind others, which could make the stream part of their capture: a graph would touch
/// the host's memory at every launch, long after this call. `run_borrowed` looks again.
fn check_runs(stream: &Stream, operation: &'static str) -> Result<(), PoolError> {
    if stream.is_capturing()? { Err(PoolError::NotInCapture { operation }) } else { Ok(()) }
}

/// The copies, as errors name them.
const UPLOAD: &str = "an upload from borrowed memory";
const DOWNLOAD: &str = "a download";

fn gaps<D: Dimension>(layout: &Layout<D>, operation: &'static str) -> ArrayError {
    layout.not_contiguous(
        operation,
        "take whole rows (slices of the first axis), or slice and transpose on the host before uploading",
    )
}

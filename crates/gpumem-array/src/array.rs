//! [`GpuArray`]: the owner of elements on a device.
//!
//! The elements always lie side by side, by rows unless they came from a host array by columns. Dropping an array frees
//! its memory in the order of the streams that used it; nothing waits.

#[allow(unsafe_code)] // `assume_init`
mod uninit;
pub(crate) mod view;

pub use uninit::UninitArray;
pub use view::{AsView, AsViewMut, GpuView, GpuViewMut};

use crate::array::view::describe;
use crate::element::Element;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::layout::Layout;
use crate::storage::Storage;
use core::fmt;
use core::marker::PhantomData;
use ndarray::{Axis, Dimension, IntoDimension, Slice};

/// Elements of type `T` on a device, in the shape of an `ndarray` dimension `D`.
///
/// ```
/// use gpumem_array::{Gpu, GpuArray, ndarray::array, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let a = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.0], [3.0, 4.0]])?;
/// let b = GpuArray::from_elem(&gpu, (2, 2), 10.0_f32)?;
/// let c = &a * &b - 1.0; // operators panic where `try_mul`, `try_sub_scalar` give an error
/// assert_eq!(c.to_array()?, array![[9.0, 19.0], [29.0, 39.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Device memory can't be reached from the host by mistake: there is no indexing and no slice.
///
/// ```compile_fail,E0608
/// # use gpumem_array::{GpuArray, ndarray::Ix1};
/// fn first(array: &GpuArray<f32, Ix1>) -> f32 {
///     array[0]
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use gpumem_array::{GpuArray, ndarray::Ix1};
/// fn slice(array: &GpuArray<f32, Ix1>) -> &[f32] {
///     array
/// }
/// ```
pub struct GpuArray<T, D> {
    gpu: Gpu,
    storage: Storage,
    layout: Layout<D>,
    element: PhantomData<T>,
}

impl<T: Element, D: Dimension> GpuArray<T, D> {
    /// The same memory with another shape, read by rows.
    ///
    /// # Errors
    ///
    /// As [`GpuView::reshape`]; the array is dropped then.
    pub fn into_shape<S: IntoDimension>(self, shape: S) -> Result<GpuArray<T, S::Dim>, ArrayError> {
        let layout = self.layout.reshaped(shape.into_dimension(), size_of::<T>())?;
        Ok(GpuArray { gpu: self.gpu, storage: self.storage, layout, element: PhantomData })
    }

    /// The same array, from now on used through the stream of another `Gpu`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`]; the array is dropped then.
    pub fn into_gpu(mut self, gpu: &Gpu) -> Result<Self, ArrayError> {
        gpu.check(self.storage.device())?;
        self.gpu = gpu.clone();
        Ok(self)
    }

    /// Everything, to read.
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        GpuView::new(&self.gpu, &self.storage, self.layout.clone())
    }

    /// Everything, to read and write.
    #[must_use]
    pub fn view_mut(&mut self) -> GpuViewMut<'_, T, D> {
        GpuViewMut::new(&self.gpu, &self.storage, self.layout.clone())
    }

    /// Everything, used through the stream of another `Gpu`; see [`GpuView::on`].
    #[must_use]
    pub fn on<'b>(&'b self, gpu: &'b Gpu) -> GpuView<'b, T, D> {
        self.view().on(gpu)
    }

    /// Everything, written through the stream of another `Gpu`.
    #[must_use]
    pub fn on_mut<'b>(&'b mut self, gpu: &'b Gpu) -> GpuViewMut<'b, T, D> {
        self.view_mut().on_mut(gpu)
    }

    /// The lengths of the axes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The shape as `ndarray` has it.
    #[must_use]
    pub fn raw_dim(&self) -> D {
        self.layout.dim.clone()
    }

    /// How many axes there are.
    #[must_use]
    pub fn ndim(&self) -> usize {
        self.shape().len()
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where operations on this array are queued, and where their results live.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The device address of the first element; see [`GpuView::address`].
    #[must_use]
    pub fn address(&self) -> u64 {
        self.view().address()
    }

    /// The elements that `slice` takes of an axis; see [`GpuView::slice_axis`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn slice_axis(&self, axis: Axis, slice: Slice) -> Result<GpuView<'_, T, D>, ArrayError> {
        self.view().slice_axis(axis, slice)
    }

    /// The elements that `slice` takes of an axis, to write; see [`GpuView::slice_axis`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn slice_axis_mut(&mut self, axis: Axis, slice: Slice) -> Result<GpuViewMut<'_, T, D>, ArrayError> {
        self.view_mut().slice_axis_mut(axis, slice)
    }

    /// The axes in reverse order: of a matrix, the transpose.
    #[must_use]
    pub fn t(&self) -> GpuView<'_, T, D> {
        self.view().t()
    }

    /// The same elements with another shape; see [`GpuView::reshape`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn reshape<S: IntoDimension>(&self, shape: S) -> Result<GpuView<'_, T, S::Dim>, ArrayError> {
        self.view().reshape(shape)
    }

    /// Memory for elements, not written yet: only for results that are written before anybody sees them.
    pub(crate) fn unwritten(gpu: &Gpu, layout: Layout<D>) -> Result<Self, ArrayError> {
        // `Layout` has checked that the product fits.
        let size_bytes = (layout.len() * size_of::<T>()) as u64;
        let block = gpu.pool().alloc(size_bytes, gpu.stream())?;
        Ok(Self {
            gpu: gpu.clone(),
            storage: Storage::new(block, gpu.stream()),
            layout,
            element: PhantomData,
        })
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }
}

impl<T: Element, D: Dimension> AsView for GpuArray<T, D> {
    type Elem = T;
    type Dim = D;
    fn as_view(&self) -> GpuView<'_, T, D> {
        self.view()
    }
}

impl<T: Element, D: Dimension> AsViewMut for GpuArray<T, D> {
    fn as_view_mut(&mut self) -> GpuViewMut<'_, T, D> {
        self.view_mut()
    }
}

impl<T: Element, D: Dimension> fmt::Debug for GpuArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "GpuArray", &self.view())
    }
}

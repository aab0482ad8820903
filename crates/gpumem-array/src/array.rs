//! [`GpuArray`]: the owner of elements on a device.
//!
//! The elements always lie side by side, by rows unless they came from a host array by columns. Dropping an array frees
//! its memory in the order of the streams that used it; nothing waits.

use crate::element::Element;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::layout::{Layout, Order};
use crate::track::Storage;
use crate::uninit::UninitArray;
use crate::view::{GpuView, GpuViewMut, describe};
use core::fmt;
use core::marker::PhantomData;
use ndarray::{ArrayBase, Axis, Data, Dimension, IntoDimension, Ix1, Slice};

/// Elements of type `T` on a device, in the shape of an `ndarray` dimension `D`.
///
/// ```
/// use gpumem_array::{Gpu, GpuArray, ndarray::array, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let a = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.0], [3.0, 4.0]])?;
/// let b = GpuArray::full(&gpu, (2, 2), 10.0_f32)?;
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

    /// All bytes zero: the number zero, or `false`.
    ///
    /// # Errors
    ///
    /// Out of memory, [`ArrayError::TooManyElements`], or what the driver says.
    pub fn zeros<S: IntoDimension<Dim = D>>(gpu: &Gpu, shape: S) -> Result<Self, ArrayError> {
        Self::uninit(gpu, shape)?.zeroed()
    }

    /// Every element the same.
    ///
    /// # Errors
    ///
    /// As [`GpuArray::zeros`].
    pub fn full<S: IntoDimension<Dim = D>>(gpu: &Gpu, shape: S, value: T) -> Result<Self, ArrayError> {
        Self::uninit(gpu, shape)?.fill(value)
    }

    /// Memory that has to be written before it becomes an array.
    ///
    /// # Errors
    ///
    /// Out of memory, or [`ArrayError::TooManyElements`].
    pub fn uninit<S: IntoDimension<Dim = D>>(gpu: &Gpu, shape: S) -> Result<UninitArray<T, D>, ArrayError> {
        UninitArray::with_order(gpu, shape.into_dimension(), Order::Row)
    }

    /// A copy on the device.
    ///
    /// # Errors
    ///
    /// Out of memory, or what the driver says.
    pub fn try_clone(&self) -> Result<Self, ArrayError> {
        let order = self.layout.order().unwrap_or(Order::Row);
        UninitArray::with_order(&self.gpu, self.raw_dim(), order)?.assign(self)
    }

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

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }
}

/// # Panics
///
/// When the copy can't be made, out of memory say; [`GpuArray::try_clone`] gives an error instead.
impl<T: Element, D: Dimension> Clone for GpuArray<T, D> {
    #[track_caller]
    fn clone(&self) -> Self {
        crate::ops::operators::done(self.try_clone())
    }
}

impl<T: Element, D: Dimension> fmt::Debug for GpuArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "GpuArray", &self.view())
    }
}

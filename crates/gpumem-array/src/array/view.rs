//! [`GpuView`] and [`GpuViewMut`]: all or part of an array, seen through a stream, without owning it.
//!
//! A view is an address, a shape with strides, and the [`Gpu`] that operations on it are queued on. Making one, slicing
//! and transposing it touches nothing but these numbers. The methods of the array types that read are all here; the
//! owner forwards to them.

use crate::element::Element;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::layout::Layout;
use crate::storage::Storage;
use core::fmt;
use core::marker::PhantomData;
use ndarray::{Axis, Dimension, IntoDimension, Slice};

/// All or part of a [`GpuArray`], to read.
///
/// ```
/// use gpumem_array::{Gpu, GpuArray, ndarray::{array, Axis, Slice}, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let table = GpuArray::from_array(&gpu, &array![[1, 2], [3, 4], [5, 6]])?;
/// let last_rows = table.slice_axis(Axis(0), Slice::from(-2..))?;
/// assert_eq!(last_rows.to_array()?, array![[3, 4], [5, 6]]);
/// assert_eq!(last_rows.t().to_array()?, array![[3, 5], [4, 6]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GpuView<'a, T, D> {
    gpu: &'a Gpu,
    storage: &'a Storage,
    layout: Layout<D>,
    element: PhantomData<T>,
}

/// All or part of a [`GpuArray`], to read and write. There is no other view of the array meanwhile.
///
/// ```compile_fail,E0502
/// # use gpumem_array::{ArrayError, GpuArray, ndarray::Ix1};
/// fn twice(array: &mut GpuArray<f32, Ix1>) -> Result<(), ArrayError> {
///     let old = array.view();
///     array.fill(0.0)?;
///     old.sum()?;
///     Ok(())
/// }
/// ```
pub struct GpuViewMut<'a, T, D> {
    view: GpuView<'a, T, D>,
    unique: PhantomData<&'a mut T>,
}

/// What can be read as a [`GpuView`]: arrays and views, and references to them.
pub trait AsView {
    /// The type of the elements.
    type Elem: Element;
    /// The kind of shape.
    type Dim: Dimension;
    /// A view of everything.
    fn as_view(&self) -> GpuView<'_, Self::Elem, Self::Dim>;
}

/// What can be written through a [`GpuViewMut`].
pub trait AsViewMut: AsView {
    /// A view of everything, to write.
    fn as_view_mut(&mut self) -> GpuViewMut<'_, Self::Elem, Self::Dim>;
}

impl<'a, T: Element, D: Dimension> GpuView<'a, T, D> {
    pub(crate) fn new(gpu: &'a Gpu, storage: &'a Storage, layout: Layout<D>) -> Self {
        Self { gpu, storage, layout, element: PhantomData }
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

    /// Where operations on this view are queued, and where their results live.
    #[must_use]
    pub fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// The same elements, used through the stream of another `Gpu`, which waits on the device for what it must.
    #[must_use]
    pub fn on<'b>(&self, gpu: &'b Gpu) -> GpuView<'b, T, D>
    where
        'a: 'b,
    {
        GpuView::new(gpu, self.storage, self.layout.clone())
    }

    /// The same view for a shorter time.
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        self.clone()
    }

    /// The elements that `slice` takes of an axis, by `ndarray`'s rules.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`], when there is no such axis, the slice reaches beyond it, or its step is zero.
    pub fn slice_axis(&self, axis: Axis, slice: Slice) -> Result<Self, ArrayError> {
        Ok(Self::new(self.gpu, self.storage, self.layout.clone().slice_axis(axis, slice)?))
    }

    /// The axes in reverse order: of a matrix, the transpose.
    #[must_use]
    pub fn t(&self) -> Self {
        Self::new(self.gpu, self.storage, self.layout.clone().transposed())
    }

    /// The same elements with another shape, read by rows.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] when the number of elements differs, [`ArrayError::NotContiguous`] when they do not lie
    /// side by side by rows.
    pub fn reshape<S: IntoDimension>(&self, shape: S) -> Result<GpuView<'a, T, S::Dim>, ArrayError> {
        let layout = self.layout.reshaped(shape.into_dimension(), size_of::<T>())?;
        Ok(GpuView::new(self.gpu, self.storage, layout))
    }

    /// The device address of the first element, for kernels and other libraries; zero for an array without elements.
    ///
    /// The address says nothing of when the memory may be used: only [`Launch`](crate::Launch) and the operations of
    /// this crate keep track.
    #[must_use]
    pub fn address(&self) -> u64 {
        match self.storage.address() {
            0 => 0,
            base => base + (self.layout.offset * size_of::<T>()) as u64,
        }
    }

    pub(crate) fn storage(&self) -> &'a Storage {
        self.storage
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.layout
    }
}

impl<'a, T: Element, D: Dimension> GpuViewMut<'a, T, D> {
    /// `storage` is borrowed exclusively by whoever calls, for `'a`.
    pub(crate) fn new(gpu: &'a Gpu, storage: &'a Storage, layout: Layout<D>) -> Self {
        Self { view: GpuView::new(gpu, storage, layout), unique: PhantomData }
    }

    /// The same view for a shorter time.
    #[must_use]
    pub fn view_mut(&mut self) -> GpuViewMut<'_, T, D> {
        GpuViewMut { view: self.view.clone(), unique: PhantomData }
    }

    /// The same elements, used through the stream of another `Gpu`.
    #[must_use]
    pub fn on_mut<'b>(self, gpu: &'b Gpu) -> GpuViewMut<'b, T, D>
    where
        'a: 'b,
    {
        GpuViewMut { view: self.view.on(gpu), unique: PhantomData }
    }

    // Not `Deref`: a view that outlives this borrow would be a second one beside it.

    /// The same elements, to read for a while.
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        self.view.clone()
    }

    /// The lengths of the axes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.view.shape()
    }

    /// The shape as `ndarray` has it.
    #[must_use]
    pub fn raw_dim(&self) -> D {
        self.view.raw_dim()
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// Where operations on this view are queued.
    #[must_use]
    pub fn gpu(&self) -> &'a Gpu {
        self.view.gpu
    }

    /// The device address of the first element; see [`GpuView::address`].
    #[must_use]
    pub fn address(&self) -> u64 {
        self.view.address()
    }

    /// The elements that `slice` takes of an axis, to write; see [`GpuView::slice_axis`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn slice_axis_mut(self, axis: Axis, slice: Slice) -> Result<Self, ArrayError> {
        Ok(Self { view: self.view.slice_axis(axis, slice)?, unique: PhantomData })
    }

    pub(crate) fn storage(&self) -> &'a Storage {
        self.view.storage
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.view.layout
    }
}

impl<T, D: Clone> Clone for GpuView<'_, T, D> {
    fn clone(&self) -> Self {
        Self { gpu: self.gpu, storage: self.storage, layout: self.layout.clone(), element: PhantomData }
    }
}

impl<T, D: Copy> Copy for GpuView<'_, T, D> {}

impl<T: Element, D: Dimension> AsView for GpuView<'_, T, D> {
    type Elem = T;
    type Dim = D;
    fn as_view(&self) -> GpuView<'_, T, D> {
        self.clone()
    }
}

impl<T: Element, D: Dimension> AsView for GpuViewMut<'_, T, D> {
    type Elem = T;
    type Dim = D;
    fn as_view(&self) -> GpuView<'_, T, D> {
        self.view.clone()
    }
}

impl<T: Element, D: Dimension> AsViewMut for GpuViewMut<'_, T, D> {
    fn as_view_mut(&mut self) -> GpuViewMut<'_, T, D> {
        self.view_mut()
    }
}

impl<A: AsView + ?Sized> AsView for &A {
    type Elem = A::Elem;
    type Dim = A::Dim;
    fn as_view(&self) -> GpuView<'_, A::Elem, A::Dim> {
        (**self).as_view()
    }
}

impl<T: Element, D: Dimension> fmt::Debug for GpuView<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "GpuView", self)
    }
}

impl<T: Element, D: Dimension> fmt::Debug for GpuViewMut<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "GpuViewMut", &self.view)
    }
}

/// What is known without asking the device.
pub(crate) fn describe<T: Element, D: Dimension>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    view: &GpuView<'_, T, D>,
) -> fmt::Result {
    f.debug_struct(name)
        .field("element", &core::any::type_name::<T>())
        .field("shape", &view.shape())
        .field("strides", &view.layout.strides().collect::<Vec<_>>())
        .field("gpu", view.gpu)
        .finish_non_exhaustive()
}

//! [`GpuView`] and [`GpuViewMut`]: all or part of an array, borrowed, on a stream.
//!
//! A view is an address, a shape with strides, and the [`Gpu`] that operations on it are queued on. Creating, slicing and transposing
//! a view changes only these numbers. All reading methods are implemented for views; the owner and mutable views forward to them ([`read`](super::read)).

use crate::element::{Element, check_layout};
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::kind::{DeviceLocal, Kind, Pinned, Unified};
use crate::layout::{ByteSpan, ElementOrder, Layout};
use crate::storage::{Access, ArrayStorage, Use};
use core::fmt;
use core::marker::PhantomData;
use gpumem_pool::MemoryKind;
use ndarray::{Axis, Dimension, IntoDimension, Ix1, Ix2, RemoveAxis, Slice, SliceArg};
use std::rc::Rc;
use std::sync::Arc;

/// A view of all or part of a [`GpuArray`](crate::GpuArray).
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
    /// The `Gpu` of the owner, on the device of the memory.
    home: &'a Gpu,
    storage: &'a ArrayStorage,
    layout: Layout<D>,
    element: PhantomData<T>,
}

/// A mutable view of all or part of a [`GpuArray`](crate::GpuArray). While it exists, the array has no other view.
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

/// Types that can be borrowed as a [`GpuView`]: arrays, views, and references, `Box`, `Rc` and `Arc` of these.
pub trait AsView {
    /// The element type.
    type Elem: Element;
    /// The dimension type.
    type Dim: Dimension;
    /// A view of all elements.
    fn as_view(&self) -> GpuView<'_, Self::Elem, Self::Dim>;
}

/// A vector, as an operand of products: an array or view with one axis. Implement it for your own types that implement [`AsView`].
#[diagnostic::on_unimplemented(
    message = "`dot` takes a vector, and `{Self}` is not one",
    label = "not an array or view of one axis",
    note = "the products are `vector.dot(&vector)` and `matrix.dot(&vector)`; a column of a matrix is a vector: \
            `b.index_axis(Axis(1), 0)?`",
    note = "for a product of two matrices, call a library such as cuBLAS with the addresses of `a.read_on(&gpu)?` and \
            `c.write_on(&gpu)?`, or write a kernel (`kernels!`)"
)]
pub trait Vector: AsView<Dim = Ix1> {}

impl<T: Element> Vector for GpuView<'_, T, Ix1> {}
impl<T: Element> Vector for GpuViewMut<'_, T, Ix1> {}

/// Types that can be borrowed as a [`GpuViewMut`].
pub trait AsViewMut: AsView {
    /// A mutable view of all elements.
    fn as_view_mut(&mut self) -> GpuViewMut<'_, Self::Elem, Self::Dim>;
}

impl<'a, T: Element, D: Dimension> GpuView<'a, T, D> {
    pub(crate) fn new(gpu: &'a Gpu, storage: &'a ArrayStorage, layout: Layout<D>) -> Self {
        Self { gpu, home: gpu, storage, layout, element: PhantomData }
    }

    /// The lengths of the axes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The shape as an `ndarray` dimension.
    #[must_use]
    pub fn raw_dim(&self) -> D {
        self.layout.dim.clone()
    }

    /// The number of axes.
    #[must_use]
    pub fn ndim(&self) -> usize {
        self.shape().len()
    }

    /// The distance between neighbours along each axis, in elements.
    #[must_use]
    pub fn strides(&self) -> Vec<isize> {
        self.layout.strides().collect()
    }

    /// True if the elements are contiguous in row-major order.
    #[must_use]
    pub fn is_standard_layout(&self) -> bool {
        self.layout.is_dense(ElementOrder::Row)
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// True if the view has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `Gpu` that operations on this view are queued on, and that their results belong to.
    #[must_use]
    pub fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// A view of these elements, used through the stream of another `Gpu`. That stream waits, on the device, for conflicting uses
    /// on other streams.
    ///
    /// A `Gpu` on another device gets access to the array's memory at the first use. If no link connects the devices, copies go through the
    /// host, and other operations return [`ArrayError::NoPeerAccess`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let other = gpu.fork()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// let doubled = x.view().on(&other).try_mul(2)?;
    /// assert_eq!(doubled.gpu(), &other); // and so do its results
    /// assert_eq!(doubled.to_vec()?, [2, 4, 6]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn on<'b>(&self, gpu: &'b Gpu) -> GpuView<'b, T, D>
    where
        'a: 'b,
    {
        let Self { home, storage, ref layout, .. } = *self;
        GpuView { gpu, home, storage, layout: layout.clone(), element: PhantomData }
    }

    /// Reborrows the view for a shorter lifetime.
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        self.clone()
    }

    /// A view of the elements that `slice` selects on an axis, by `ndarray`'s rules.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist, the slice exceeds it, or the step is zero.
    pub fn slice_axis(&self, axis: Axis, slice: Slice) -> Result<Self, ArrayError> {
        Ok(self.with_layout(self.layout.clone().slice_axis(axis, slice)?))
    }

    /// A view of the elements that `s![…]` selects, by `ndarray`'s rules: ranges with steps, indices, which remove their axis, and new
    /// axes.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{array, s}};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.slice(s![.., -1])?.to_array()?, array![3, 6]);
    /// assert_eq!(x.slice(s![..;-1, ..2])?.to_array()?, array![[4, 5], [1, 2]]);
    /// assert_eq!(x.slice(s![1, 2])?.into_scalar()?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if a bound or index is outside its axis, if a step is zero, or if the number of axes differs.
    pub fn slice<I: SliceArg<D>>(&self, info: I) -> Result<GpuView<'a, T, I::OutDim>, ArrayError> {
        Ok(self.with_layout(self.layout.slice(&info)?))
    }

    /// A view of the elements at `index` of an axis, without that axis.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{Axis, array};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// let column = x.view().index_axis(Axis(1), 2)?;
    /// assert_eq!(column.to_vec()?, [3, 6]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or the index is outside.
    pub fn index_axis(&self, axis: Axis, index: usize) -> Result<GpuView<'a, T, D::Smaller>, ArrayError>
    where
        D: RemoveAxis,
    {
        Ok(self.with_layout(self.layout.clone().index_axis(axis, index)?))
    }

    /// A view with a new axis of length 1 before `axis`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if `axis` exceeds the number of axes.
    pub fn insert_axis(&self, axis: Axis) -> Result<GpuView<'a, T, D::Larger>, ArrayError> {
        Ok(self.with_layout(self.layout.insert_axis(axis)?))
    }

    /// A view with the axes in reverse order; for a matrix, the transpose.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.view().t().to_vec()?, [1, 4, 2, 5, 3, 6]); // row by row of the transpose
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn t(&self) -> Self {
        self.with_layout(self.layout.clone().transposed())
    }

    /// A view with the axes in another order: axis `axes[i]` becomes axis `i`.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3, 4))?;
    /// assert_eq!(x.permuted_axes([2, 0, 1])?.shape(), [4, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] unless each axis is named once.
    pub fn permuted_axes<A: IntoDimension<Dim = D>>(&self, axes: A) -> Result<Self, ArrayError> {
        Ok(self.with_layout(self.layout.clone().permuted(&axes.into_dimension())?))
    }

    /// A view in a larger shape, without a copy: missing axes are added at the front, and axes of length 1 are repeated.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::array};
    ///
    /// let row = GpuArray::from_slice(&gpu, &[1, 2])?;
    /// assert_eq!(row.broadcast((3, 2))?.to_array()?, array![[1, 2], [1, 2], [1, 2]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] unless lengths are equal or 1, from the last axis on; [`ArrayError::TooManyElements`] if the shape exceeds
    /// the address space.
    pub fn broadcast<S: IntoDimension>(&self, shape: S) -> Result<GpuView<'a, T, S::Dim>, ArrayError> {
        Ok(self.with_layout(self.layout.broadcast(shape.into_dimension())?))
    }

    /// A view of the same bytes as elements of another type. If the sizes differ, the last axis changes its length.
    ///
    /// A download refuses bytes that are not a valid `U`.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::array};
    ///
    /// let x = GpuArray::from_slice(&gpu, &[1.0_f32, -2.0])?;
    /// assert_eq!(x.reinterpret::<u32>()?.to_vec()?, [0x3f80_0000, 0xc000_0000]);
    /// let points = GpuArray::from_slice(&gpu, &[[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// assert_eq!(points.reinterpret::<f32>()?.to_vec()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Reinterpret`] if the first element is not aligned for `U`, or if the sizes differ and the view has no axis, the
    /// elements of the last axis are not contiguous, or a length, a step or the distance from the start of the array is not a multiple of
    /// the size of `U`.
    pub fn reinterpret<U: Element>(&self) -> Result<GpuView<'a, U, D>, ArrayError> {
        const { check_layout::<U>() };
        let (from, to) = (size_of::<T>(), size_of::<U>());
        // Host memory may have any address that its original element type allows.
        let base = self.storage.address();
        let is_aligned = |layout: &Layout<D>| {
            base.wrapping_add((layout.offset * to) as u64).is_multiple_of(align_of::<U>() as u64)
        };
        match self.layout.clone().reinterpreted(from, to).filter(is_aligned) {
            Some(layout) => Ok(self.retyped(layout)),
            None => Err(ArrayError::Reinterpret {
                from: core::any::type_name::<T>(),
                to: core::any::type_name::<U>(),
                shape: self.shape().to_vec(),
                strides: self.layout.strides().collect(),
            }),
        }
    }

    /// The elements of another layout within the storage.
    pub(crate) fn with_layout<E>(&self, layout: Layout<E>) -> GpuView<'a, T, E> {
        self.retyped(layout)
    }

    fn retyped<U, E>(&self, layout: Layout<E>) -> GpuView<'a, U, E> {
        let Self { gpu, home, storage, .. } = *self;
        GpuView { gpu, home, storage, layout, element: PhantomData }
    }

    /// A view of the elements with another shape, in row-major order.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3, 4])?;
    /// assert_eq!(x.view().reshape((2, 2))?.t().to_vec()?, [1, 3, 2, 4]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the number of elements differs, [`ArrayError::TooManyElements`] if the shape exceeds the address space,
    /// [`ArrayError::NotContiguous`] if the elements are not contiguous in row-major order.
    pub fn reshape<S: IntoDimension>(&self, shape: S) -> Result<GpuView<'a, T, S::Dim>, ArrayError> {
        let layout = self.layout.reshaped(shape.into_dimension(), size_of::<T>())?;
        Ok(self.with_layout(layout))
    }

    /// The device address of the first element, for kernels and other libraries; zero if the array has no memory.
    ///
    /// A use through the address is not ordered with other streams: only [`Launch`](crate::Launch) and the operations of this crate
    /// are tracked.
    #[must_use]
    pub fn address(&self) -> u64 {
        match self.storage.address() {
            0 => 0,
            base => base + (self.layout.offset * size_of::<T>()) as u64,
        }
    }

    /// The `Gpu` of the owner: on the device of the memory, where [`GpuView::gpu`] may be on another one.
    pub(crate) fn home(&self) -> &'a Gpu {
        self.home
    }

    pub(crate) fn storage(&self) -> &'a ArrayStorage {
        self.storage
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    /// Work that reads the elements.
    #[inline]
    pub(crate) fn reads(&self) -> Use<'a> {
        self.storage.note_for_captures::<T>(self.shape());
        Use::new(self.storage, Access::Read, self.bytes())
    }

    /// The bytes of the elements within the storage.
    #[inline]
    pub(crate) fn bytes(&self) -> ByteSpan {
        self.layout.bytes(size_of::<T>(), self.storage.size_bytes())
    }
}

impl<'a, T: Element, D: Dimension> GpuViewMut<'a, T, D> {
    /// The caller borrows `storage` exclusively for `'a`.
    pub(crate) fn new(gpu: &'a Gpu, storage: &'a ArrayStorage, layout: Layout<D>) -> Self {
        Self { view: GpuView::new(gpu, storage, layout), unique: PhantomData }
    }

    /// Reborrows the view for a shorter lifetime.
    #[must_use]
    pub fn view_mut(&mut self) -> GpuViewMut<'_, T, D> {
        GpuViewMut { view: self.view.clone(), unique: PhantomData }
    }

    /// A mutable view of these elements, used through the stream of another `Gpu`.
    #[must_use]
    pub fn on_mut<'b>(self, gpu: &'b Gpu) -> GpuViewMut<'b, T, D>
    where
        'a: 'b,
    {
        GpuViewMut { view: self.view.on(gpu), unique: PhantomData }
    }

    // Not `Deref`, because a view that outlives this borrow would alias it.

    /// A view of these elements, while this view is borrowed.
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        self.view.clone()
    }

    /// The `Gpu` that operations on this view are queued on.
    #[must_use]
    pub fn gpu(&self) -> &'a Gpu {
        self.view.gpu
    }

    /// A mutable view of the elements that `slice` selects on an axis; see [`GpuView::slice_axis`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist, the slice exceeds it, or the step is zero.
    pub fn slice_axis_mut(self, axis: Axis, slice: Slice) -> Result<Self, ArrayError> {
        Ok(Self { view: self.view.slice_axis(axis, slice)?, unique: PhantomData })
    }

    /// A mutable view of the elements that `s![…]` selects; see [`GpuView::slice`].
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{array, s}};
    ///
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, (2, 4))?;
    /// x.slice_mut(s![.., ..;2])?.fill(7)?;
    /// assert_eq!(x.to_array()?, array![[7, 0, 7, 0], [7, 0, 7, 0]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if a bound or index is outside its axis, if a step is zero, or if the number of axes differs.
    pub fn slice_mut<I: SliceArg<D>>(self, info: I) -> Result<GpuViewMut<'a, T, I::OutDim>, ArrayError> {
        Ok(GpuViewMut { view: self.view.slice(info)?, unique: PhantomData })
    }

    /// A mutable view of the elements at `index` of an axis, without that axis.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or the index is outside.
    pub fn index_axis_mut(self, axis: Axis, index: usize) -> Result<GpuViewMut<'a, T, D::Smaller>, ArrayError>
    where
        D: RemoveAxis,
    {
        Ok(GpuViewMut { view: self.view.index_axis(axis, index)?, unique: PhantomData })
    }

    /// A mutable view with a new axis of length 1 before `axis`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if `axis` exceeds the number of axes.
    pub fn insert_axis_mut(self, axis: Axis) -> Result<GpuViewMut<'a, T, D::Larger>, ArrayError> {
        Ok(GpuViewMut { view: self.view.insert_axis(axis)?, unique: PhantomData })
    }

    /// A mutable view of the same bytes as elements of another type; see [`GpuView::reinterpret`]. Bytes that are not a valid `T` are
    /// found when the elements are downloaded.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Reinterpret`]; see [`GpuView::reinterpret`].
    pub fn reinterpret_mut<U: Element>(self) -> Result<GpuViewMut<'a, U, D>, ArrayError> {
        Ok(GpuViewMut { view: self.view.reinterpret()?, unique: PhantomData })
    }

    /// A mutable view with the axes in another order; see [`GpuView::permuted_axes`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] unless each axis is named once.
    pub fn permuted_axes_mut<A: IntoDimension<Dim = D>>(self, axes: A) -> Result<Self, ArrayError> {
        Ok(Self { view: self.view.permuted_axes(axes)?, unique: PhantomData })
    }

    /// A mutable view of the elements with another shape; see [`GpuView::reshape`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`], [`ArrayError::TooManyElements`], [`ArrayError::NotContiguous`]; see [`GpuView::reshape`].
    pub fn reshape_mut<S: IntoDimension>(self, shape: S) -> Result<GpuViewMut<'a, T, S::Dim>, ArrayError> {
        Ok(GpuViewMut { view: self.view.reshape(shape)?, unique: PhantomData })
    }

    pub(crate) fn home(&self) -> &'a Gpu {
        self.view.home
    }

    pub(crate) fn storage(&self) -> &'a ArrayStorage {
        self.view.storage
    }

    /// A part of the elements. The caller gives out no two views with common elements.
    pub(super) fn part<E>(&self, layout: Layout<E>) -> GpuViewMut<'a, T, E> {
        GpuViewMut { view: self.view.with_layout(layout), unique: PhantomData }
    }

    /// Work that writes the elements, and may read them.
    #[inline]
    pub(crate) fn writes(&self) -> Use<'a> {
        self.view.storage.note_for_captures::<T>(self.view.shape());
        Use::new(self.view.storage, Access::Write, self.view.bytes())
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.view.layout
    }
}

impl<T: Element> GpuView<'_, T, Ix2> {
    /// The number of rows.
    #[must_use]
    pub fn nrows(&self) -> usize {
        self.layout.dim[0]
    }

    /// The number of columns.
    #[must_use]
    pub fn ncols(&self) -> usize {
        self.layout.dim[1]
    }
}

impl<T, D: Clone> Clone for GpuView<'_, T, D> {
    fn clone(&self) -> Self {
        Self { layout: self.layout.clone(), ..*self }
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

macro_rules! pointers {
    ($($pointer:ty),*) => {
        $(
            impl<A: AsView + ?Sized> AsView for $pointer {
                type Elem = A::Elem;
                type Dim = A::Dim;
                fn as_view(&self) -> GpuView<'_, A::Elem, A::Dim> {
                    (**self).as_view()
                }
            }

            impl<A: Vector + ?Sized> Vector for $pointer {}
        )*
    };
}
pointers!(&A, &mut A, Box<A>, Rc<A>, Arc<A>);

impl<T: Element, D: Dimension> fmt::Debug for GpuView<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "GpuView", kind_name(self.storage.kind()), self)
    }
}

impl<T: Element, D: Dimension> fmt::Debug for GpuViewMut<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "GpuViewMut", kind_name(self.view.storage.kind()), &self.view)
    }
}

/// The name of the kind of an array in such memory.
pub(crate) fn kind_name(memory: MemoryKind) -> &'static str {
    match memory {
        MemoryKind::Unified => Unified::NAME,
        MemoryKind::Host => Pinned::NAME,
        _ => DeviceLocal::NAME,
    }
}

/// Prints the shape, kind and place of a view, without a driver call.
pub(crate) fn describe<T: Element, D: Dimension>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    kind: &str,
    view: &GpuView<'_, T, D>,
) -> fmt::Result {
    f.debug_struct(name)
        .field("element", &format_args!("{}", core::any::type_name::<T>()))
        .field("shape", &view.shape())
        .field("strides", &view.strides())
        .field("kind", &format_args!("{kind}"))
        .field("gpu", view.gpu)
        .finish_non_exhaustive()
}

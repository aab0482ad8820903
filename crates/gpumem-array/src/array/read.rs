//! Reading methods of [`GpuArray`], [`GpuViewMut`] and [`GpuCow`](crate::GpuCow). They forward to [`GpuView`].

use crate::array::{GpuArray, GpuView, GpuViewMut};
use crate::element::Element;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::kind::Kind;
use crate::layout::ElementOrder;
use ndarray::{Axis, Dimension, IntoDimension, Ix2, RemoveAxis, Slice, SliceArg};

/// Implements methods of [`GpuArray`], [`GpuViewMut`] and [`GpuCow`](crate::GpuCow), for a bound on the elements and for any dimension type
/// or a specific one.
macro_rules! readers {
    ($bound:ident, $dim:ty; $($methods:tt)*) => {
        impl<T: $bound, K: Kind> GpuArray<T, $dim, K> {
            $($methods)*
        }

        impl<T: $bound> GpuViewMut<'_, T, $dim> {
            $($methods)*
        }

        impl<T: $bound> $crate::array::GpuCow<'_, T, $dim> {
            $($methods)*
        }
    };
    ($bound:ident; $($methods:tt)*) => {
        impl<T: $bound, D: Dimension, K: Kind> GpuArray<T, D, K> {
            $($methods)*
        }

        impl<T: $bound, D: Dimension> GpuViewMut<'_, T, D> {
            $($methods)*
        }

        impl<T: $bound, D: Dimension> $crate::array::GpuCow<'_, T, D> {
            $($methods)*
        }
    };
}
pub(crate) use readers;

readers! {
    Element;

    /// The lengths of the axes.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3))?;
    /// assert_eq!(x.shape(), [2, 3]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.layout().shape()
    }

    /// The shape as an `ndarray` dimension.
    #[must_use]
    pub fn raw_dim(&self) -> D {
        self.layout().dim.clone()
    }

    /// The number of axes.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3))?;
    /// assert_eq!(x.ndim(), 2);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn ndim(&self) -> usize {
        self.shape().len()
    }

    /// The distance between neighbours along each axis, in elements.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3))?;
    /// assert_eq!(x.strides(), [3, 1]);
    /// assert_eq!(x.t().strides(), [1, 3]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn strides(&self) -> Vec<isize> {
        self.layout().strides().collect()
    }

    /// True if the elements are contiguous in row-major order.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3))?;
    /// assert!(x.is_standard_layout());
    /// assert!(!x.t().is_standard_layout());
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn is_standard_layout(&self) -> bool {
        self.layout().is_dense(ElementOrder::Row)
    }

    /// The number of elements.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3))?;
    /// assert_eq!(x.len(), 6);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout().len()
    }

    /// True if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device address of the first element; see [`GpuView::address`].
    #[must_use]
    pub fn address(&self) -> u64 {
        self.view().address()
    }

    /// A view of all elements, used through the stream of another `Gpu`; see [`GpuView::on`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let other = gpu.fork()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// let sum = x.on(&other).sum()?; // on the stream of `other`, which waits for the upload
    /// assert_eq!(sum.into_scalar()?, 6);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn on<'b>(&'b self, gpu: &'b Gpu) -> GpuView<'b, T, D> {
        self.view().on(gpu)
    }

    /// A view of the elements that `slice` selects on an axis; see [`GpuView::slice_axis`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{Axis, Slice, array};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.slice_axis(Axis(1), Slice::from(1..))?.to_array()?, array![[2, 3], [5, 6]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist, the slice exceeds it, or the step is zero.
    pub fn slice_axis(&self, axis: Axis, slice: Slice) -> Result<GpuView<'_, T, D>, ArrayError> {
        self.view().slice_axis(axis, slice)
    }

    /// A view of the elements that `s![…]` selects; see [`GpuView::slice`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{array, s};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.slice(s![.., 1])?.to_array()?, array![2, 5]);
    /// assert_eq!(x.slice(s![1.., ..;2])?.to_array()?, array![[4, 6]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if a bound or index is outside its axis, if a step is zero, or if the number of axes differs.
    pub fn slice<I: SliceArg<D>>(&self, info: I) -> Result<GpuView<'_, T, I::OutDim>, ArrayError> {
        self.view().slice(info)
    }

    /// A view of the elements at `index` of an axis, without that axis.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{Axis, array};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.index_axis(Axis(0), 1)?.to_vec()?, [4, 5, 6]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or the index is outside.
    pub fn index_axis(&self, axis: Axis, index: usize) -> Result<GpuView<'_, T, D::Smaller>, ArrayError>
    where
        D: RemoveAxis,
    {
        self.view().index_axis(axis, index)
    }

    /// A view with a new axis of length 1 before `axis`.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::Axis;
    ///
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// assert_eq!(x.insert_axis(Axis(1))?.shape(), [3, 1]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if `axis` exceeds the number of axes.
    pub fn insert_axis(&self, axis: Axis) -> Result<GpuView<'_, T, D::Larger>, ArrayError> {
        self.view().insert_axis(axis)
    }

    /// A view with the axes in another order; see [`GpuView::permuted_axes`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3, 4))?;
    /// assert_eq!(x.permuted_axes([1, 2, 0])?.shape(), [3, 4, 2]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] unless each axis is named once.
    pub fn permuted_axes<A: IntoDimension<Dim = D>>(&self, axes: A) -> Result<GpuView<'_, T, D>, ArrayError> {
        self.view().permuted_axes(axes)
    }

    /// A view in a larger shape, without a copy; see [`GpuView::broadcast`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let row = GpuArray::from_slice(&gpu, &[1, 2])?;
    /// assert_eq!(row.broadcast((2, 2))?.to_array()?, array![[1, 2], [1, 2]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] unless lengths are equal or 1, from the last axis on; [`ArrayError::TooManyElements`] if the shape exceeds
    /// the address space.
    pub fn broadcast<S: IntoDimension>(&self, shape: S) -> Result<GpuView<'_, T, S::Dim>, ArrayError> {
        self.view().broadcast(shape)
    }

    /// A view of the same bytes as elements of another type; see [`GpuView::reinterpret`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Reinterpret`]; see [`GpuView::reinterpret`].
    pub fn reinterpret<U: Element>(&self) -> Result<GpuView<'_, U, D>, ArrayError> {
        self.view().reinterpret()
    }

    /// A view with the axes in reverse order; for a matrix, the transpose.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.t().to_array()?, array![[1, 4], [2, 5], [3, 6]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn t(&self) -> GpuView<'_, T, D> {
        self.view().t()
    }

    /// A view of the elements with another shape; see [`GpuView::reshape`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3, 4])?;
    /// assert_eq!(x.reshape((2, 2))?.to_array()?, array![[1, 2], [3, 4]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the number of elements differs, [`ArrayError::TooManyElements`] if the shape exceeds the address space,
    /// [`ArrayError::NotContiguous`] if the elements are not contiguous in row-major order.
    pub fn reshape<S: IntoDimension>(&self, shape: S) -> Result<GpuView<'_, T, S::Dim>, ArrayError> {
        self.view().reshape(shape)
    }
}

readers! {
    Element, Ix2;

    /// The number of rows.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3))?;
    /// assert_eq!((x.nrows(), x.ncols()), (2, 3));
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn nrows(&self) -> usize {
        self.shape()[0]
    }

    /// The number of columns.
    #[must_use]
    pub fn ncols(&self) -> usize {
        self.shape()[1]
    }
}

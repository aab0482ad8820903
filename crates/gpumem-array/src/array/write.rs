//! Methods that write, and mutable views of parts: of arrays and mutable views, each written once.
//!
//! Mutable views of disjoint parts are tracked separately, so work on them overlaps on any streams and threads.

use crate::array::view::GpuViewMut;
use crate::element::Element;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use ndarray::{Axis, Dimension, IntoDimension, RemoveAxis, Slice, SliceArg};

/// Implements methods of arrays and mutable views, for a bound on the elements. They have `self.view_mut()`.
macro_rules! writers {
    ($bound:ident; $($methods:tt)*) => {
        impl<T: $bound, D: Dimension, K: $crate::element::kind::Kind> $crate::array::GpuArray<T, D, K> {
            $($methods)*
        }

        impl<T: $bound, D: Dimension> $crate::array::GpuViewMut<'_, T, D> {
            $($methods)*
        }
    };
}
pub(crate) use writers;

/// Implements methods of arrays and mutable views whose result borrows the elements: of an array, or in place of the view.
///
/// The first argument is a [`GpuViewMut`] of the elements. Generic parameters are in brackets, and conditions in parentheses.
macro_rules! parts {
    ($(
        $(#[$attribute:meta])*
        pub fn $name:ident $([$($generics:tt)*])? ($view:ident $(, $argument:ident: $type:ty)*) -> $result:ty
        $(where ($($condition:tt)*))? $body:block
    )*) => {
        impl<'v, T: Element, D: Dimension> $crate::array::GpuViewMut<'v, T, D> {
            $(
                $(#[$attribute])*
                pub fn $name $(<$($generics)*>)? (self $(, $argument: $type)*) -> $result $(where $($condition)*)? {
                    let $view = self;
                    $body
                }
            )*
        }

        impl<T: Element, D: Dimension, K: $crate::element::kind::Kind> $crate::array::GpuArray<T, D, K> {
            $(
                $(#[$attribute])*
                pub fn $name<'v, $($($generics)*)?>(&'v mut self $(, $argument: $type)*) -> $result
                $(where $($condition)*)?
                {
                    let $view = self.view_mut();
                    $body
                }
            )*
        }
    };
}
pub(crate) use parts;

parts! {
    /// A mutable view of the elements, used through the stream of another `Gpu`.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let other = gpu.fork()?;
    /// let mut x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// x.on_mut(&other).fill(0)?; // waits for the upload, on the device
    /// assert_eq!(x.to_vec()?, [0, 0, 0]); // waits for the fill
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn on_mut(view, gpu: &'v Gpu) -> GpuViewMut<'v, T, D> {
        GpuViewMut::of(view.view.used_on(gpu))
    }

    /// A mutable view of the elements that `slice` selects on an axis; see [`GpuView::slice_axis`](crate::GpuView::slice_axis).
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{Axis, Slice, array};
    ///
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, (2, 3))?;
    /// x.slice_axis_mut(Axis(1), Slice::from(1..))?.fill(5)?;
    /// assert_eq!(x.to_array()?, array![[0, 5, 5], [0, 5, 5]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist, the slice exceeds it, or the step is zero.
    pub fn slice_axis_mut(view, axis: Axis, slice: Slice) -> Result<GpuViewMut<'v, T, D>, ArrayError> {
        Ok(GpuViewMut::of(view.view.slice_axis(axis, slice)?))
    }

    /// A mutable view of the elements that `s![…]` selects; see [`GpuView::slice`](crate::GpuView::slice).
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{array, s};
    ///
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, (2, 3))?;
    /// x.slice_mut(s![1, ..2])?.fill(5)?;
    /// assert_eq!(x.to_array()?, array![[0, 0, 0], [5, 5, 0]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if a bound or index is outside its axis, if a step is zero, or if the number of axes differs.
    pub fn slice_mut[I: SliceArg<D>](view, info: I) -> Result<GpuViewMut<'v, T, I::OutDim>, ArrayError> {
        Ok(GpuViewMut::of(view.view.slice(info)?))
    }

    /// A mutable view of the elements at `index` of an axis, without that axis.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{Axis, array};
    ///
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, (2, 3))?;
    /// x.index_axis_mut(Axis(0), 1)?.fill(5)?;
    /// assert_eq!(x.to_array()?, array![[0, 0, 0], [5, 5, 5]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or the index is outside.
    pub fn index_axis_mut(view, axis: Axis, index: usize) -> Result<GpuViewMut<'v, T, D::Smaller>, ArrayError>
    where (D: RemoveAxis) {
        Ok(GpuViewMut::of(view.view.index_axis(axis, index)?))
    }

    /// A mutable view with a new axis of length 1 before `axis`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if `axis` exceeds the number of axes.
    pub fn insert_axis_mut(view, axis: Axis) -> Result<GpuViewMut<'v, T, D::Larger>, ArrayError> {
        Ok(GpuViewMut::of(view.view.insert_axis(axis)?))
    }

    /// A mutable view of the same bytes as elements of another type; see [`GpuView::reinterpret`](crate::GpuView::reinterpret). Bytes that
    /// are not a valid `T` are found when the elements are downloaded.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Reinterpret`]; see [`GpuView::reinterpret`](crate::GpuView::reinterpret).
    pub fn reinterpret_mut[U: Element](view) -> Result<GpuViewMut<'v, U, D>, ArrayError> {
        Ok(GpuViewMut::of(view.view.reinterpret()?))
    }

    /// A mutable view with the axes in another order; see [`GpuView::permuted_axes`](crate::GpuView::permuted_axes).
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] unless each axis is named once.
    pub fn permuted_axes_mut[A: IntoDimension<Dim = D>](view, axes: A) -> Result<GpuViewMut<'v, T, D>, ArrayError> {
        Ok(GpuViewMut::of(view.view.permuted_axes(axes)?))
    }

    /// A mutable view of the elements with another shape; see [`GpuView::reshape`](crate::GpuView::reshape).
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`], [`ArrayError::TooManyElements`], [`ArrayError::NotContiguous`]; see
    /// [`GpuView::reshape`](crate::GpuView::reshape).
    pub fn reshape_mut[S: IntoDimension](view, shape: S) -> Result<GpuViewMut<'v, T, S::Dim>, ArrayError> {
        Ok(GpuViewMut::of(view.view.reshape(shape)?))
    }

    /// The elements before `index` of an axis, and the rest, as mutable views that can be used at the same time.
    ///
    /// Work on the two views overlaps, along any axis. Only views with gaps at three or more distances may wait for each other, for example
    /// every second element along each of three axes.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::Axis};
    ///
    /// let other = gpu.fork()?;
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, 4)?;
    /// let (mut left, right) = x.split_at_mut(Axis(0), 2)?;
    /// left.fill(1)?;
    /// right.on_mut(&other).fill(2)?; // does not wait for `left`
    /// assert_eq!(x.to_vec()?, [1, 1, 2, 2]); // waits for both
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or `index` exceeds its length.
    #[allow(clippy::type_complexity, reason = "a pair of views")]
    pub fn split_at_mut(view, axis: Axis, index: usize) -> Result<(GpuViewMut<'v, T, D>, GpuViewMut<'v, T, D>), ArrayError> {
        let (left, right) = view.view.split_at(axis, index)?;
        view.storage().split();
        Ok((GpuViewMut::of(left), GpuViewMut::of(right)))
    }

    /// Mutable views of several disjoint parts, which can be used at the same time. Work on them overlaps, as with
    /// [`GpuViewMut::split_at_mut`].
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::s};
    ///
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, 6)?;
    /// let [mut first, mut last] = x.multi_slice_mut([s![..2], s![4..]])?;
    /// first.fill(1)?;
    /// last.fill(2)?;
    /// assert_eq!(x.to_vec()?, [1, 1, 0, 0, 2, 2]);
    /// assert!(x.multi_slice_mut([s![..3], s![2..]]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Overlap`] if two slices have common elements. [`ArrayError::Slice`] if a bound or index is outside its axis, if
    /// a step is zero, or if the number of axes differs.
    pub fn multi_slice_mut[I: SliceArg<D>, const COUNT: usize](
        view, slices: [I; COUNT]
    ) -> Result<[GpuViewMut<'v, T, I::OutDim>; COUNT], ArrayError> {
        let mut views = Vec::with_capacity(COUNT);
        for (second, slice) in slices.iter().enumerate() {
            let layout = view.layout().slice(slice)?;
            for (first, other) in slices[..second].iter().enumerate() {
                if !view.layout().is_disjoint(other, slice) {
                    return Err(ArrayError::Overlap { first, second });
                }
            }
            views.push(GpuViewMut::of(view.view.with_layout(layout)));
        }
        view.storage().split();
        views.try_into().map_err(|_| ArrayError::Overlap { first: 0, second: 0 })
    }
}

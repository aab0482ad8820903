//! Methods that read: of arrays, views, mutable views and [`GpuCow`](crate::GpuCow), each written once.
//!
//! Creating, slicing and transposing a view changes only an address, a shape and strides.

use crate::array::{GpuArray, GpuCow, GpuView, GpuViewMut, UninitArray};
use crate::element::kind::Kind;
use crate::element::{Element, check_layout};
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::layout::{ElementOrder, Layout};
use ndarray::{Axis, Dimension, IntoDimension, Ix1, Ix2, RemoveAxis, Slice, SliceArg};

/// Implements methods of arrays, views, mutable views and [`GpuCow`](crate::GpuCow), for a bound on the elements and for any dimension type
/// or a specific one.
///
/// The first argument is a [`GpuView`] of the elements. It is `'v view` if the result borrows them: a view passes its own borrow on, and
/// the other types are borrowed. Generic parameters are in brackets, and conditions in parentheses.
macro_rules! readers {
    ($bound:ident, $dim:ty; $($methods:tt)*) => {
        $crate::array::read::of_view! { [T: $bound] $crate::array::GpuView<'v, T, $dim>; 'v $($methods)* }
        $crate::array::read::of_owner! { [T: $bound, K: $crate::element::kind::Kind] $crate::array::GpuArray<T, $dim, K>; $($methods)* }
        $crate::array::read::of_owner! { [T: $bound] $crate::array::GpuViewMut<'_, T, $dim>; $($methods)* }
        $crate::array::read::of_owner! { [T: $bound] $crate::array::GpuCow<'_, T, $dim>; $($methods)* }
    };
    ($bound:ident; $($methods:tt)*) => {
        $crate::array::read::of_view! { [T: $bound, D: Dimension] $crate::array::GpuView<'v, T, D>; 'v $($methods)* }
        $crate::array::read::of_owner! {
            [T: $bound, D: Dimension, K: $crate::element::kind::Kind] $crate::array::GpuArray<T, D, K>; $($methods)*
        }
        $crate::array::read::of_owner! { [T: $bound, D: Dimension] $crate::array::GpuViewMut<'_, T, D>; $($methods)* }
        $crate::array::read::of_owner! { [T: $bound, D: Dimension] $crate::array::GpuCow<'_, T, D>; $($methods)* }
    };
}
pub(crate) use readers;

macro_rules! of_view {
    ([$($type_parameters:tt)*] $view_type:ty; $of:lifetime $(
        $(#[$attribute:meta])*
        pub fn $name:ident $([$($generics:tt)*])? ($($life:lifetime)? $view:ident $(, $argument:ident: $type:ty)*) -> $result:ty
        $(where ($($condition:tt)*))? $body:block
    )*) => {
        impl<$of, $($type_parameters)*> $view_type {
            $(
                $(#[$attribute])*
                pub fn $name $(<$($generics)*>)? (&self $(, $argument: $type)*) -> $result $(where $($condition)*)? {
                    let $view = self;
                    $body
                }
            )*
        }
    };
}
pub(crate) use of_view;

macro_rules! of_owner {
    ([$($type_parameters:tt)*] $owner:ty; $(
        $(#[$attribute:meta])*
        pub fn $name:ident $([$($generics:tt)*])? ($($life:lifetime)? $view:ident $(, $argument:ident: $type:ty)*) -> $result:ty
        $(where ($($condition:tt)*))? $body:block
    )*) => {
        impl<$($type_parameters)*> $owner {
            $(
                $(#[$attribute])*
                pub fn $name<$($life,)? $($($generics)*)?>(&$($life)? self $(, $argument: $type)*) -> $result
                $(where $($condition)*)?
                {
                    let $view = &self.view();
                    $body
                }
            )*
        }
    };
}
pub(crate) use of_owner;

/// Implements the methods that need the layout alone.
macro_rules! of_layout {
    ($([$($parameters:tt)*] $owner:ty;)*) => {$(
        impl<$($parameters)*> $owner {
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
        }
    )*};
}

of_layout! {
    [T: Element, D: Dimension, K: Kind] GpuArray<T, D, K>;
    [T: Element, D: Dimension, K: Kind] UninitArray<T, D, K>;
    [T: Element, D: Dimension] GpuView<'_, T, D>;
    [T: Element, D: Dimension] GpuViewMut<'_, T, D>;
    [T: Element, D: Dimension] GpuCow<'_, T, D>;
}

/// The address at an offset from the start of memory; zero if there is no memory.
fn address_of<T, D>(base: u64, layout: &Layout<D>) -> u64 {
    if base == 0 { 0 } else { base + (layout.offset * size_of::<T>()) as u64 }
}

impl<T: Element, D: Dimension> GpuView<'_, T, D> {
    /// The address at which work on the first element is planned ([`Use::at`](crate::storage::Use::at)); zero if there is no memory.
    pub(crate) fn planned(&self) -> u64 {
        address_of::<T, D>(self.storage().planned(), self.layout())
    }

    /// The address of the first element in memory that is pinned, or does not spill.
    pub(crate) fn pinned_address(&self) -> u64 {
        address_of::<T, D>(self.storage().pinned_address(), self.layout())
    }
}

impl<T: Element, D: Dimension> GpuViewMut<'_, T, D> {
    /// The planned address of the first element; see [`GpuView::planned`].
    pub(crate) fn planned(&self) -> u64 {
        address_of::<T, D>(self.storage().planned(), self.layout())
    }

    /// The address of the first element in memory that is pinned, or does not spill.
    pub(crate) fn pinned_address(&self) -> u64 {
        address_of::<T, D>(self.storage().pinned_address(), self.layout())
    }
}

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// The planned address of the first element; see [`GpuView::planned`].
    pub(crate) fn planned(&self) -> u64 {
        address_of::<T, D>(self.storage().planned(), self.layout())
    }
}

readers! {
    Element;

    /// The device address of the first element, for kernels and other libraries; zero if there is no memory.
    ///
    /// A use through the address is not ordered with other streams: only [`Launch`](crate::Launch) and the operations of this crate
    /// are tracked.
    ///
    /// In a pool that spills (`PoolBuilder::spill`), the array returns to device memory, for which the stream of its `Gpu` waits, and does not
    /// move from then on. The address is zero if there is no memory for that.
    #[must_use]
    pub fn address(view) -> u64 {
        address_of::<T, D>(view.storage().fixed_address(view.gpu()), view.layout())
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
    /// let doubled = x.on(&other).try_mul(2)?; // on the stream of `other`, which waits for the upload
    /// assert_eq!(doubled.gpu(), &other); // and so do its results
    /// assert_eq!(doubled.to_vec()?, [2, 4, 6]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn on('v view, gpu: &'v Gpu) -> GpuView<'v, T, D> {
        view.used_on(gpu)
    }

    /// A view of the elements that `slice` selects on an axis, by `ndarray`'s rules.
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
    pub fn slice_axis('v view, axis: Axis, slice: Slice) -> Result<GpuView<'v, T, D>, ArrayError> {
        Ok(view.with_layout(view.layout().clone().slice_axis(axis, slice)?))
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
    pub fn slice[I: SliceArg<D>]('v view, info: I) -> Result<GpuView<'v, T, I::OutDim>, ArrayError> {
        Ok(view.with_layout(view.layout().slice(&info)?))
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
    pub fn index_axis('v view, axis: Axis, index: usize) -> Result<GpuView<'v, T, D::Smaller>, ArrayError>
    where (D: RemoveAxis) {
        Ok(view.with_layout(view.layout().clone().index_axis(axis, index)?))
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
    pub fn insert_axis('v view, axis: Axis) -> Result<GpuView<'v, T, D::Larger>, ArrayError> {
        Ok(view.with_layout(view.layout().insert_axis(axis)?))
    }

    /// A view with the axes in reverse order; for a matrix, the transpose.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.t().to_vec()?, [1, 4, 2, 5, 3, 6]); // row by row of the transpose
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn t('v view) -> GpuView<'v, T, D> {
        view.with_layout(view.layout().clone().transposed())
    }

    /// A view of the elements with equal indices on all axes.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.diag().to_vec()?, [1, 5]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn diag('v view) -> GpuView<'v, T, Ix1> {
        view.with_layout(view.layout().diagonal())
    }

    /// A view with the axes in another order: axis `axes[i]` becomes axis `i`.
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
    pub fn permuted_axes[A: IntoDimension<Dim = D>]('v view, axes: A) -> Result<GpuView<'v, T, D>, ArrayError> {
        Ok(view.with_layout(view.layout().clone().permuted(&axes.into_dimension())?))
    }

    /// A view in a larger shape, without a copy: missing axes are added at the front, and axes of length 1 are repeated.
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
    pub fn broadcast[S: IntoDimension]('v view, shape: S) -> Result<GpuView<'v, T, S::Dim>, ArrayError> {
        Ok(view.with_layout(view.layout().broadcast(shape.into_dimension())?))
    }

    /// A view of the elements with another shape, in row-major order.
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
    pub fn reshape[S: IntoDimension]('v view, shape: S) -> Result<GpuView<'v, T, S::Dim>, ArrayError> {
        Ok(view.with_layout(view.layout().reshaped(shape.into_dimension(), size_of::<T>())?))
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
    pub fn reinterpret[U: Element]('v view) -> Result<GpuView<'v, U, D>, ArrayError> {
        const { check_layout::<U>() };
        let (from, to) = (size_of::<T>(), size_of::<U>());
        // Host memory may have any address that its original element type allows.
        let base = view.storage().planned();
        let is_aligned = |layout: &Layout<D>| {
            base.wrapping_add((layout.offset * to) as u64).is_multiple_of(align_of::<U>() as u64)
        };
        match view.layout().clone().reinterpreted(from, to).filter(is_aligned) {
            Some(layout) => Ok(view.retyped(layout)),
            None => Err(ArrayError::Reinterpret {
                from: core::any::type_name::<T>(),
                to: core::any::type_name::<U>(),
                shape: view.shape().to_vec(),
                strides: view.strides(),
            }),
        }
    }

    /// The elements before `index` of an axis, and the rest.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::Axis;
    ///
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3, 4])?;
    /// let (left, right) = x.split_at(Axis(0), 1)?;
    /// assert_eq!((left.to_vec()?, right.to_vec()?), (vec![1], vec![2, 3, 4]));
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or `index` exceeds its length.
    #[allow(clippy::type_complexity, reason = "a pair of views")]
    pub fn split_at('v view, axis: Axis, index: usize) -> Result<(GpuView<'v, T, D>, GpuView<'v, T, D>), ArrayError> {
        let (left, right) = view.layout().clone().split_at(axis, index)?;
        Ok((view.with_layout(left), view.with_layout(right)))
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
    pub fn nrows(view) -> usize {
        view.layout().dim[0]
    }

    /// The number of columns.
    #[must_use]
    pub fn ncols(view) -> usize {
        view.layout().dim[1]
    }
}

//! Reductions of arrays: sums, products, means, variances, extremes. Results stay on the device, as arrays.

use crate::array::{GpuArray, readers};
use crate::error::ArrayError;
use crate::expression::node::Elements;
use crate::expression::reduce::sum;
use crate::expression::{Arithmetic, Comparable, Real};
use ndarray::{Axis, Dimension, Ix0};

readers! {
    Arithmetic;

    /// Sums all elements, on the device. An empty sum is zero; integers wrap. The order of the additions depends only on the number of
    /// elements and on the order of the axes in memory; see [`Lazy::sum`](crate::Lazy::sum).
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{array, s};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.slice(s![.., 1..])?.sum()?.into_scalar()?, 16);
    /// let mean = x.sum()? / 6; // stays on the device
    /// assert_eq!(mean.into_scalar()?, 3);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    pub fn sum(view) -> Result<GpuArray<T, Ix0>, ArrayError> {
        sum("sum", &Elements(view.view()))
    }
}

macro_rules! eager {
    ($bound:ident where $condition:tt -> $out:ty; $($all:ident $along:ident $what:literal $(, $ddof:ident)?;)*) => {
        readers! {
            $bound;

            $(
                #[doc = concat!($what, " of all elements, on the device; see [`Lazy::", stringify!($all), "`](crate::Lazy::", stringify!($all), ").")]
                ///
                /// # Errors
                ///
                /// - [`ArrayError::Shape`] for no elements, if they have no such value, and if `ddof` exceeds their number.
                /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
                /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
                /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
                pub fn $all(view $(, $ddof: f64)?) -> Result<GpuArray<$out, Ix0>, ArrayError>
                where $condition {
                    view.lazy().$all($($ddof)?)
                }
            )*
        }
        eager!(@along $bound where $condition -> $out; $($along $what $(, $ddof)?;)*);
    };
    (@along $bound:ident where $condition:tt -> $out:ty; $($along:ident $what:literal $(, $ddof:ident)?;)*) => {
        readers! {
            $bound;

            $(
                #[doc = concat!($what, " of the elements along an axis, which the result does not have; see [`Lazy::", stringify!($along), "`](crate::Lazy::", stringify!($along), ").")]
                ///
                /// # Errors
                ///
                /// - [`ArrayError::Shape`] if there is no such axis, or it has no elements and they no such value, and if `ddof` exceeds its
                ///   length.
                /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
                /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
                /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
                pub fn $along(view, axis: Axis $(, $ddof: f64)?) -> Result<GpuArray<$out, D::Smaller>, ArrayError>
                where $condition {
                    view.lazy().$along(axis $(, $ddof)?)
                }
            )*
        }
    };
}

eager! {
    Real where () -> T;
    mean mean_axis "The mean";
    var var_axis "The variance", ddof;
    std std_axis "The standard deviation", ddof;
    norm norm_axis "The Euclidean norm";
}
eager! {
    Arithmetic where () -> T;
    product product_axis "The product";
}
eager! {
    Comparable where (T: Arithmetic) -> T;
    max_element max_axis "The largest";
    min_element min_axis "The smallest";
}
eager! {
    Comparable where (T: Arithmetic) -> i64;
    argmax argmax_axis "The place of the largest";
    argmin argmin_axis "The place of the smallest";
}
eager! {
    @along Arithmetic where () -> T;
    sum_axis "The sum";
}

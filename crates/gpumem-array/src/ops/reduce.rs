//! Sums of arrays. They stay on the device, as arrays without axes.

use crate::array::{GpuArray, readers};
use crate::error::ArrayError;
use crate::expression::Arithmetic;
use crate::expression::node::Elements;
use crate::expression::reduce::sum;
use ndarray::{Dimension, Ix0};

readers! {
    Arithmetic;

    /// Sums all elements, on the device. An empty sum is zero; integers wrap. The order of the additions depends only on the number of
    /// elements. [`Lazy`](crate::Lazy) has other reductions, and sums along an axis.
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

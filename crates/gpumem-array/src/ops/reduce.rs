//! Sums of arrays and dot products of vectors. They stay on the device, as arrays without axes.

use crate::array::{GpuArray, Vector, readers};
use crate::error::ArrayError;
use crate::expression::Arithmetic;
use crate::expression::node::{Binary, Elements};
use crate::expression::operation;
use crate::expression::reduce::sum;
use crate::layout::same_shape;
use core::marker::PhantomData;
use ndarray::{Dimension, Ix0, Ix1};

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

readers! {
    Arithmetic, Ix1;

    /// Computes the dot product of two vectors, on the device.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// let y = GpuArray::from_slice(&gpu, &[4, 5, 6])?;
    /// assert_eq!(x.dot(&y)?.into_scalar()?, 32);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the lengths differ.
    /// - [`ArrayError::NoPeerAccess`] if `other` is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if `other` belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    pub fn dot[B: Vector<Elem = T>](view, other: &B) -> Result<GpuArray<T, Ix0>, ArrayError> {
        let other = other.as_view();
        same_shape("dot", view.layout(), other.layout())?;
        sum("dot", &Binary::<operation::Mul, _, _>(Elements(view.view()), Elements(other), PhantomData))
    }
}

//! Products of vectors and matrices: `dot` as in `ndarray`, and `matmul` for stacks of matrices as in NumPy.

#[cfg(feature = "cudarc")]
#[allow(unsafe_code)] // calls of cuBLAS
pub(crate) mod blas;
mod matrix;
pub(crate) mod sparse;
mod vector;

use crate::array::{AsView, GpuArray, GpuView, readers};
use crate::element::Element;
use crate::error::ArrayError;
use crate::expression::node::{Binary, Elements};
use crate::expression::reduce::sum;
use crate::expression::{Arithmetic, Factor, operation};
use crate::layout::same_shape;
use core::marker::PhantomData;
use ndarray::{Axis, DimMax, Dimension, Ix0, Ix1, Ix2};

readers! {
    Element;

    /// The product of two vectors, of a matrix and a vector, or of two matrices, as in `ndarray`. Operands with any steps between their
    /// elements are read in place, such as `x.t()` and slices; [`GpuView::matmul`](crate::GpuView::matmul) multiplies stacks of matrices.
    ///
    /// | left, right | result |
    /// | --- | --- |
    /// | `n`, `n` | the sum of the products, without axes |
    /// | `m × k`, `k` | `m` |
    /// | `k`, `k × n` | `n` |
    /// | `m × k`, `k × n` | `m × n`, in row-major order |
    ///
    /// Floats are summed in an order that depends only on the shapes and on which axes are contiguous; integers wrap. A product with few
    /// results and many terms is summed in parts, which take additional memory: at most 25 MiB.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let a = GpuArray::from_array(&gpu, &array![[1, 2], [3, 4]])?;
    /// let x = GpuArray::from_slice(&gpu, &[10, 1])?;
    /// assert_eq!(x.dot(&x)?.into_scalar()?, 101);
    /// assert_eq!(a.dot(&x)?.to_vec()?, [12, 34]);
    /// assert_eq!(a.dot(&a)?.to_array()?, array![[7, 10], [15, 22]]);
    /// assert_eq!(a.t().dot(&a)?.to_array()?, array![[10, 14], [14, 20]]); // no copy of the matrix
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the last axis of the left operand and the first one of the right operand differ in length.
    /// - [`ArrayError::TooManyElements`] if the result exceeds the address space.
    /// - [`ArrayError::NoPeerAccess`] if an operand is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if an operand belongs to another driver.
    /// - [`ArrayError::Pool`] if an allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    #[allow(clippy::type_complexity, reason = "the dimension of the product")]
    pub fn dot[B: AsView<Elem = T>](view, right: &B) -> Result<GpuArray<T, <B::Dim as DotWith<D, T>>::Dim>, ArrayError>
    where (B::Dim: DotWith<D, T>) {
        B::Dim::product(view, &right.as_view())
    }
}

readers! {
    Factor;

    /// The products of two stacks of matrices, as in NumPy: the last two axes are those of the matrices, and the others are broadcast. One
    /// launch computes all of them. The result is in row-major order; see [`GpuView::dot`](crate::GpuView::dot) for its values.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let stack = GpuArray::from_array(&gpu, &array![[[1, 2], [3, 4]], [[5, 6], [7, 8]]])?;
    /// let swap = GpuArray::from_array(&gpu, &array![[0, 1], [1, 0]])?;
    /// assert_eq!(stack.matmul(&swap)?.to_array()?, array![[[2, 1], [4, 3]], [[6, 5], [8, 7]]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if an operand has less than two axes, if the matrices do not fit, or if the other axes cannot be broadcast.
    /// - [`ArrayError::TooManyElements`], [`ArrayError::NoPeerAccess`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`],
    ///   [`ArrayError::NoSuchKernel`]; see [`GpuView::dot`](crate::GpuView::dot).
    #[allow(clippy::type_complexity, reason = "the dimension of the product")]
    pub fn matmul[B: AsView<Elem = T>](view, right: &B) -> Result<GpuArray<T, <D as DimMax<B::Dim>>::Output>, ArrayError>
    where (D: DimMax<B::Dim>) {
        matrix::stacks(view, &right.as_view())
    }
}

/// The dimension of a right operand of [`GpuArray::dot`], for a left one of the dimension `L`, with that of the product.
#[diagnostic::on_unimplemented(
    message = "`dot` has no product of dimensions `{L}` and `{Self}` with elements of `{T}`",
    label = "not vectors or matrices of such elements",
    note = "`dot` multiplies vectors of any numbers, and matrices of `f32`, `f64`, `f16`, `bf16` and integers of 32 and 64 bits",
    note = "`a.matmul(&b)` multiplies stacks of matrices: arrays of more axes, or of `IxDyn`"
)]
pub trait DotWith<L: Dimension, T: Element>: Dimension {
    /// The dimension of the product.
    type Dim: Dimension;
    #[doc(hidden)]
    fn product(
        left: &GpuView<'_, T, L>,
        right: &GpuView<'_, T, Self>,
    ) -> Result<GpuArray<T, Self::Dim>, ArrayError>;
}

impl<T: Arithmetic> DotWith<Ix1, T> for Ix1 {
    type Dim = Ix0;
    fn product(
        left: &GpuView<'_, T, Ix1>,
        right: &GpuView<'_, T, Ix1>,
    ) -> Result<GpuArray<T, Ix0>, ArrayError> {
        same_shape("dot", left.layout(), right.layout())?;
        sum(
            "dot",
            &Binary::<operation::Mul, _, _>(Elements(left.view()), Elements(right.view()), PhantomData),
        )
    }
}

impl<T: Factor> DotWith<Ix2, T> for Ix1 {
    type Dim = Ix1;
    fn product(
        left: &GpuView<'_, T, Ix2>,
        right: &GpuView<'_, T, Ix1>,
    ) -> Result<GpuArray<T, Ix1>, ArrayError> {
        let (row_count, column_count) = left.raw_dim().into_pattern();
        fits(left, right, column_count, right.len())?;
        left.storage().share(left.gpu(), "dot")?;
        right.storage().share(left.gpu(), "dot")?;
        if row_count == 0 || column_count == 0 {
            return GpuArray::zeros(left.gpu(), row_count);
        }
        match vector::product(left, right)? {
            Some(product) => Ok(product),
            None => {
                let right = right.with_layout(right.layout().insert_axis(Axis(1))?);
                Ok(matrix::product(left, &right)?.into_shape(row_count)?)
            }
        }
    }
}

impl<T: Factor> DotWith<Ix1, T> for Ix2 {
    type Dim = Ix1;
    fn product(
        left: &GpuView<'_, T, Ix1>,
        right: &GpuView<'_, T, Ix2>,
    ) -> Result<GpuArray<T, Ix1>, ArrayError> {
        fits(left, right, left.len(), right.nrows())?;
        let right = right.t();
        <Ix1 as DotWith<Ix2, T>>::product(&right.on(left.gpu()), left)
    }
}

impl<T: Factor> DotWith<Ix2, T> for Ix2 {
    type Dim = Ix2;
    fn product(
        left: &GpuView<'_, T, Ix2>,
        right: &GpuView<'_, T, Ix2>,
    ) -> Result<GpuArray<T, Ix2>, ArrayError> {
        fits(left, right, left.ncols(), right.nrows())?;
        let shape = (left.nrows(), right.ncols());
        Ok(match shape {
            (1, _) => left.index_axis(Axis(0), 0)?.dot(right)?.into_shape(shape)?,
            (_, 1) => left.dot(&right.index_axis(Axis(1), 0)?)?.into_shape(shape)?,
            _ => matrix::product(left, right)?,
        })
    }
}

/// Compares the lengths of the axis that is summed.
fn fits<T: Element, D: Dimension, E: Dimension>(
    left: &GpuView<'_, T, D>,
    right: &GpuView<'_, T, E>,
    left_len: usize,
    right_len: usize,
) -> Result<(), ArrayError> {
    if left_len == right_len {
        return Ok(());
    }
    Err(ArrayError::Shape {
        operation: "dot",
        left: left.shape().to_vec(),
        right: right.shape().to_vec(),
        expected: "the last axis of the left operand must be as long as the first one of the right operand",
    })
}

//! Element-wise `+ - * / %` and `-x` on arrays, as expressions of one operation: one kernel, without a copy of an operand.
//!
//! Results belong to the `Gpu` of the left operand.

use crate::array::{GpuArray, readers, writers};
use crate::element::kind::Kind;
use crate::error::ArrayError;
use crate::expression::evaluate::{Updates, evaluate};
use crate::expression::node::{
    Binary, Broadcast, Calculation, Constant, Elements, ElementsBefore, Expression, Lazy, Together, Unary,
};
use crate::expression::operation::{Add, Div, Mul, Neg, Rem, Sub};
use crate::expression::{Arithmetic, Operand};
use core::marker::PhantomData;
use ndarray::Dimension;

macro_rules! methods {
    ($($operation:ident $symbol:literal $name:literal: $try:ident $assign:ident, $result:literal;)*) => {
        readers! {
            Arithmetic;

            $(
                #[doc = concat!("`self ", $symbol, " other`, element by element, in device memory. The operands are broadcast: missing axes")]
                /// are added at the front, and axes of length 1 are repeated.
                ///
                /// ```
                /// # use gpumem_array::GpuArray;
                /// # let gpu = gpumem_array::example_gpu()?;
                /// let x = GpuArray::from_slice(&gpu, &[6, 8])?;
                /// let y = GpuArray::from_slice(&gpu, &[3, 2])?;
                #[doc = concat!("assert_eq!(x.", stringify!($try), "(&y)?.to_vec()?, ", $result, ");")]
                /// # Ok::<(), gpumem_array::ArrayError>(())
                /// ```
                ///
                /// # Errors
                ///
                /// - [`ArrayError::Shape`] if the operands cannot be broadcast to one shape.
                /// - [`ArrayError::NoPeerAccess`] if an operand is on another device than the operation, without a link to it.
                /// - [`ArrayError::WrongDevice`] if an operand belongs to another driver.
                /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
                pub fn $try[B: Operand<T>](view, other: B) -> Result<GpuArray<T, Together<D, B::Dim>>, ArrayError>
                where (D: Broadcast<B::Dim, Dim: Dimension>, $operation: Calculation<T, Out = T>) {
                    let right = other.into_expression();
                    evaluate($name, &Binary::<$operation, _, _>(Elements(view.view()), right, PhantomData))
                }
            )*
        }

        writers! {
            Arithmetic;

            $(
                #[doc = concat!("`self ", $symbol, "= other`, element by element. `other` is broadcast to the shape of `self`.")]
                ///
                /// ```
                /// # use gpumem_array::GpuArray;
                /// # let gpu = gpumem_array::example_gpu()?;
                /// let mut x = GpuArray::from_slice(&gpu, &[6, 8])?;
                /// let y = GpuArray::from_slice(&gpu, &[3, 2])?;
                #[doc = concat!("x.", stringify!($assign), "(&y)?;")]
                #[doc = concat!("assert_eq!(x.to_vec()?, ", $result, ");")]
                /// # Ok::<(), gpumem_array::ArrayError>(())
                /// ```
                ///
                /// # Errors
                ///
                #[doc = concat!("As [`GpuView::", stringify!($try), "`](crate::GpuView::", stringify!($try), "); the shape of `self` does not change.")]
                pub fn $assign<B: Operand<T>>(&mut self, other: B) -> Result<(), ArrayError>
                where
                    D: Broadcast<B::Dim>,
                    $operation: Calculation<T, Out = T>,
                {
                    let before = ElementsBefore { index: 0, element: PhantomData::<(T, D)> };
                    let right = other.into_expression();
                    (Lazy(Binary::<$operation, _, _>(before, right, PhantomData)),).write($name, (self,))
                }
            )*
        }
    };
}

methods! {
    Add "+" "add": try_add try_add_assign, "[9, 10]";
    Sub "-" "sub": try_sub try_sub_assign, "[3, 6]";
    Mul "*" "mul": try_mul try_mul_assign, "[18, 16]";
    Div "/" "div": try_div try_div_assign, "[2, 4]";
    Rem "%" "rem": try_rem try_rem_assign, "[0, 0]";
}

macro_rules! reversed {
    ($($operation:ident $symbol:literal $name:literal: $try:ident, $result:literal;)*) => {
        readers! {
            Arithmetic;

            $(
                #[doc = concat!("`value ", $symbol, " self`, element by element: the operation with the number on the left.")]
                ///
                /// ```
                /// # use gpumem_array::GpuArray;
                /// # let gpu = gpumem_array::example_gpu()?;
                /// let x = GpuArray::from_slice(&gpu, &[3, 2])?;
                #[doc = concat!("assert_eq!(x.", stringify!($try), "(6)?.to_vec()?, ", $result, ");")]
                /// # Ok::<(), gpumem_array::ArrayError>(())
                /// ```
                ///
                /// # Errors
                ///
                /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
                /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
                /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
                pub fn $try(view, value: T) -> Result<GpuArray<T, D>, ArrayError> {
                    let left = Constant::new(value);
                    evaluate($name, &Binary::<$operation, _, _>(left, Elements(view.view()), PhantomData))
                }
            )*
        }
    };
}

reversed! {
    Sub "-" "sub": try_rsub, "[3, 4]";
    Div "/" "div": try_rdiv, "[2, 3]";
}

readers! {
    Arithmetic;

    /// `-self`, element by element.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// assert_eq!(GpuArray::from_slice(&gpu, &[3, -2])?.try_neg()?.to_vec()?, [-3, 2]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    pub fn try_neg(view) -> Result<GpuArray<T, D>, ArrayError> {
        evaluate("neg", &Unary::<Neg, _>(Elements(view.view()), PhantomData))
    }
}

/// Applies an operation to an owned array and an operand: in place, or in a new array if the operand is larger or the array is not in
/// device memory.
pub(crate) fn apply_owned<F, T, D, K, E>(
    operation: &'static str,
    left: GpuArray<T, D, K>,
    right: &E,
) -> Result<GpuArray<T, Together<D, E::Dim>>, ArrayError>
where
    F: Calculation<T, Out = T>,
    T: Arithmetic,
    D: Dimension + Broadcast<E::Dim, Dim: Dimension>,
    K: Kind,
    E: Expression<Elem = T>,
{
    let mut left = match left.into_device() {
        Ok(left) => left,
        Err(left) => {
            return evaluate(operation, &Binary::<F, _, _>(Elements(left.view()), right, PhantomData));
        }
    };
    let before = ElementsBefore { index: 0, element: PhantomData::<(T, D)> };
    match (Lazy(Binary::<F, _, _>(before, right, PhantomData)),).write(operation, (&mut left,)) {
        Ok(()) => Ok(left.into_dimensionality()?),
        // The result is larger than the array, or both do not fit.
        Err(ArrayError::Shape { .. }) => {
            evaluate(operation, &Binary::<F, _, _>(Elements(left.view()), right, PhantomData))
        }
        Err(error) => Err(error),
    }
}

/// Applies an operation to a number and an owned array.
pub(crate) fn scalar_owned<F, T, D, K>(
    operation: &'static str,
    value: T,
    right: GpuArray<T, D, K>,
) -> Result<GpuArray<T, D>, ArrayError>
where
    F: Calculation<T, Out = T>,
    T: Arithmetic,
    D: Dimension,
    K: Kind,
{
    let left = Constant::new(value);
    match right.into_device() {
        Ok(mut right) => {
            let before = ElementsBefore { index: 0, element: PhantomData::<(T, D)> };
            (Lazy(Binary::<F, _, _>(left, before, PhantomData)),).write(operation, (&mut right,))?;
            Ok(right)
        }
        Err(right) => evaluate(operation, &Binary::<F, _, _>(left, Elements(right.view()), PhantomData)),
    }
}

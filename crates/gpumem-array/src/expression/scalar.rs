//! [`Scalar`]: the element types of expressions.

use crate::element::{Element, NumericType, ScalarType};
use crate::expression::node::{Constant, NoAxes, Operand};

/// An element type of expressions: `f32`, `f64`, integers of 8 to 64 bits, `bool`, and with the feature `half` `f16` and `bf16`.
///
/// [`Arithmetic`] is for all of them but `bool`, and [`Real`] for floating-point types. A function that is generic over these needs no other
/// bounds:
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::{ArrayError, Real, ndarray::Dimension};
///
/// fn sigmoid<T: Real, D: Dimension>(x: &GpuArray<T, D>) -> Result<GpuArray<T, D>, ArrayError> {
///     ((-x.lazy()).exp() + T::ONE).recip().eval()
/// }
/// let x = GpuArray::from_slice(&gpu, &[0.0_f32, 100.0])?;
/// assert_eq!(sigmoid(&x)?.to_vec()?, [0.5, 1.0]);
/// # Ok::<(), ArrayError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "expressions do not calculate with elements of `{Self}`",
    note = "they have elements of `f32`, `f64`, integers of 8 to 64 bits, `bool`, `f16` and `bf16`; for other types, write a kernel (`kernels!`)"
)]
pub trait Scalar:
    Element + PartialEq + PartialOrd + Operand<Self, Dim = NoAxes, Expression = Constant<Self>>
{
    #[doc(hidden)]
    const TYPE: ScalarType;
}

/// A type of numbers with `+ - * / %`. Integers wrap on overflow; an integer divided by zero is zero, and so is its rest.
#[diagnostic::on_unimplemented(
    message = "elements of `{Self}` have no arithmetic on a GPU",
    note = "`f32`, `f64`, integers of 8 to 64 bits, `f16` and `bf16` have; `.cast::<f32>()` converts an expression"
)]
pub trait Arithmetic: Scalar {
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
}

/// A floating-point type: `f32`, `f64`, and with the feature `half` `f16` and `bf16`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a floating-point type",
    note = "`.cast::<f32>()` converts the elements of an expression"
)]
pub trait Real: Arithmetic {}

macro_rules! scalars {
    ($($name:ident: $type:ty $(, $zero:expr, $one:expr)?;)*) => {$(
        impl Scalar for $type {
            const TYPE: ScalarType = ScalarType::$name;
        }
        impl Operand<$type> for $type {
            type Dim = NoAxes;
            type Expression = Constant<$type>;
            fn into_expression(self) -> Constant<$type> {
                Constant::new(self)
            }
        }
        $(impl Arithmetic for $type {
            const ZERO: Self = $zero;
            const ONE: Self = $one;
        })?
    )*};
}

scalars! {
    F32: f32, 0.0, 1.0;
    F64: f64, 0.0, 1.0;
    I8: i8, 0, 1;
    I16: i16, 0, 1;
    I32: i32, 0, 1;
    I64: i64, 0, 1;
    U8: u8, 0, 1;
    U16: u16, 0, 1;
    U32: u32, 0, 1;
    U64: u64, 0, 1;
    Bool: bool;
}
impl Real for f32 {}
impl Real for f64 {}

/// An element type with matrix products: `f32`, `f64`, `i32`, `i64`.
pub trait Numeric: Arithmetic {
    #[doc(hidden)]
    const KERNELS: NumericType;
}

macro_rules! numeric {
    ($($name:ident $type:ty;)*) => {$(
        impl Numeric for $type {
            const KERNELS: NumericType = NumericType::$name;
        }
    )*};
}
numeric! {
    F32 f32;
    F64 f64;
    I32 i32;
    I64 i64;
}

#[cfg(feature = "half")]
mod half_precision {
    use super::{Arithmetic, Constant, NoAxes, Operand, Real, Scalar, ScalarType};
    use half::{bf16, f16};

    scalars! {
        F16: f16, f16::ZERO, f16::ONE;
        Bf16: bf16, bf16::ZERO, bf16::ONE;
    }
    impl Real for f16 {}
    impl Real for bf16 {}
}

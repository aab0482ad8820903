//! [`Scalar`]: the element types of expressions.

use crate::element::{Element, NumericType, ProductKernels, ScalarType};
use crate::expression::node::{Constant, NoAxes, Operand};
use crate::expression::tape::Tape;

/// An element type of expressions: `f32`, `f64`, integers of 8 to 64 bits, `bool`, with the feature `half` `f16` and `bf16`, and with the
/// feature `complex` `Complex<f32>` and `Complex<f64>`.
///
/// [`Arithmetic`] is for all of them but `bool`, [`Comparable`] for all but complex numbers, and [`Real`] for floating-point types. A function
/// that is generic over these needs no other bounds, broadcasting included:
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::ndarray::{Axis, Dimension, Ix2, array};
/// use gpumem_array::{ArrayError, GpuView, Real};
///
/// fn sigmoid<T: Real, D: Dimension>(x: &GpuArray<T, D>) -> Result<GpuArray<T, D>, ArrayError> {
///     ((-x.lazy()).exp() + T::ONE).recip().eval()
/// }
/// let x = GpuArray::from_slice(&gpu, &[0.0_f32, 100.0])?;
/// assert_eq!(sigmoid(&x)?.to_vec()?, [0.5, 1.0]);
///
/// /// Rows with the mean 0, and the standard deviation 1.
/// fn standardised<T: Real>(x: &GpuView<'_, T, Ix2>) -> Result<GpuArray<T, Ix2>, ArrayError> {
///     let (mean, std) = (x.mean_axis(Axis(0))?, x.std_axis(Axis(0), 0.0)?);
///     ((x.lazy() - &mean) / &std).eval()
/// }
/// let y = GpuArray::from_array(&gpu, &array![[1.0_f64, 2.0], [3.0, 6.0]])?;
/// assert_eq!(standardised(&y.view())?.to_array()?, array![[-1.0, -1.0], [1.0, 1.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "expressions do not calculate with elements of `{Self}`",
    note = "they have elements of `f32`, `f64`, integers of 8 to 64 bits, `bool`, `f16`, `bf16`, and complex numbers of `f32` and `f64`; for other types, write a kernel (`kernels!`)"
)]
pub trait Scalar: Element + PartialEq + Operand<Self, Dim = NoAxes, Expression = Constant<Self>> {
    #[doc(hidden)]
    const TYPE: ScalarType;
    #[doc(hidden)]
    fn record(&self, identity: u64, tape: &mut Tape<'_, '_>) {
        tape.number(Self::TYPE, bits(self), identity);
    }
}

/// The bytes of a number, which fill at most one word.
fn bits<T: Element>(value: &T) -> u64 {
    let (mut word, bytes) = ([0; 8], bytemuck::bytes_of(value));
    word.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    u64::from_le_bytes(word)
}

/// An element type with an order: all but complex numbers. `false` is less than `true`.
#[diagnostic::on_unimplemented(
    message = "elements of `{Self}` are not compared on a GPU",
    note = "`.equals(…)` and `.differs(…)` are for all elements; of a complex expression, compare `.abs()`, `.re()` or `.im()`"
)]
pub trait Comparable: Scalar + PartialOrd {}

/// `bool`, the type of comparisons.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not `bool`",
    note = "comparisons are expressions of `bool`: `x.lazy().gt(0.0)`"
)]
pub trait Truth: Comparable {}

impl Truth for bool {}

/// A type of numbers with `+ - * /`, and with `%` if it is [`Comparable`]. Integers wrap on overflow; an integer divided by zero is zero, and
/// so is its rest.
#[diagnostic::on_unimplemented(
    message = "elements of `{Self}` have no arithmetic on a GPU",
    note = "`f32`, `f64`, integers of 8 to 64 bits, `f16`, `bf16` and complex numbers have; `.cast::<f32>()` converts an expression"
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
pub trait Real: Arithmetic + Comparable {
    /// The type that sums are calculated in: `f32` for types of 16 bits, otherwise the type itself.
    type Wide: Real;
    /// The nearest number.
    ///
    /// ```
    /// use gpumem_array::Real;
    ///
    /// assert_eq!(<f32 as Real>::from_f64(0.1), 0.1_f32);
    /// ```
    fn from_f64(value: f64) -> Self;
}

macro_rules! scalars {
    ($($name:ident: $type:ty $(, $zero:expr, $one:expr)?;)*) => {$(
        impl Scalar for $type {
            const TYPE: ScalarType = ScalarType::$name;
        }
        impl Comparable for $type {}
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
impl Real for f32 {
    type Wide = Self;
    fn from_f64(value: f64) -> Self {
        value as Self
    }
}
impl Real for f64 {
    type Wide = Self;
    fn from_f64(value: f64) -> Self {
        value
    }
}

/// An element type of matrix products: `f32`, `f64`, integers of 32 and 64 bits, and with the feature `half` `f16` and `bf16`.
#[diagnostic::on_unimplemented(
    message = "matrices of `{Self}` have no products",
    note = "those of `f32`, `f64`, integers of 32 and 64 bits, `f16` and `bf16` have; `.cast::<f32>()` converts an expression"
)]
pub trait Factor: Arithmetic {
    #[doc(hidden)]
    const PRODUCTS: ProductKernels;
}

/// A [`Factor`] with kernels of its own: `f32`, `f64`, integers of 32 and 64 bits.
pub trait Numeric: Factor {
    #[doc(hidden)]
    const KERNELS: NumericType;
}

macro_rules! numeric {
    ($($type:ty: $name:ident;)*) => {$(
        impl Factor for $type {
            const PRODUCTS: ProductKernels = ProductKernels::Numeric(NumericType::$name);
        }
        impl Numeric for $type {
            const KERNELS: NumericType = NumericType::$name;
        }
    )*};
}
// Integers wrap, so the bits of sums and products do not depend on the sign.
numeric! {
    f32: F32;
    f64: F64;
    i32: I32;
    u32: I32;
    i64: I64;
    u64: I64;
}

#[cfg(feature = "half")]
mod half_precision {
    use super::{
        Arithmetic, Comparable, Constant, Factor, NoAxes, Operand, ProductKernels, Real, Scalar, ScalarType,
    };
    use crate::element::Cast;
    use half::{bf16, f16};

    scalars! {
        F16: f16, f16::ZERO, f16::ONE;
        Bf16: bf16, bf16::ZERO, bf16::ONE;
    }
    impl Real for f16 {
        type Wide = f32;
        fn from_f64(value: f64) -> Self {
            value.cast()
        }
    }
    impl Real for bf16 {
        type Wide = f32;
        fn from_f64(value: f64) -> Self {
            value.cast()
        }
    }
    impl Factor for f16 {
        const PRODUCTS: ProductKernels = ProductKernels::F16;
    }
    impl Factor for bf16 {
        const PRODUCTS: ProductKernels = ProductKernels::Bf16;
    }
}

#[cfg(feature = "complex")]
mod complex {
    use super::{Arithmetic, Constant, NoAxes, Operand, Scalar, ScalarType, bits};
    use crate::expression::node::Calculation;
    use crate::expression::operation::FromParts;
    use crate::expression::tape::Tape;
    use num_complex::Complex;

    macro_rules! complex {
        ($($name:ident $part:ident;)*) => {$(
            impl Scalar for Complex<$part> {
                const TYPE: ScalarType = ScalarType::$name;

                /// A word is too small for it: its parts are numbers.
                fn record(&self, identity: u64, tape: &mut Tape<'_, '_>) {
                    tape.number($part::TYPE, bits(&self.re), identity);
                    tape.number($part::TYPE, bits(&self.im), identity | IMAGINARY);
                    tape.token(<FromParts as Calculation<$part>>::TOKEN);
                }
            }
            impl Operand<Complex<$part>> for Complex<$part> {
                type Dim = NoAxes;
                type Expression = Constant<Self>;
                fn into_expression(self) -> Constant<Self> {
                    Constant::new(self)
                }
            }
            impl Arithmetic for Complex<$part> {
                const ZERO: Self = Complex::new(0.0, 0.0);
                const ONE: Self = Complex::new(1.0, 0.0);
            }
        )*};
    }
    complex! {
        Complex32 f32;
        Complex64 f64;
    }

    /// Set in the identity of an imaginary part. No other number has it.
    const IMAGINARY: u64 = 1 << 63;
}

//! [`Element`]: the types that arrays hold; [`Cast`]: types that are converted.

pub mod kind;
mod scalar_type;

pub(crate) use scalar_type::ScalarType;

use bytemuck::{CheckedBitPattern, NoUninit, Zeroable};

/// A type whose values are copied between host and device as bytes.
///
/// It is implemented for every type that [`bytemuck`] describes as plain bytes: without padding ([`NoUninit`]), valid with all
/// bytes zero ([`Zeroable`]), and with a check for its invalid values, if it has any ([`CheckedBitPattern`]). You cannot implement
/// it yourself; derive the three traits of `bytemuck` instead, without `unsafe`.
///
/// | included | |
/// | --- | --- |
/// | numbers | `f32`, `f64`, integers of 8 to 128 bits, `usize`, `isize`, `Wrapping<T>` |
/// | checked when downloaded | `bool`, `char`, your enums |
/// | `Option` of any non-zero integer | zero is `None` |
/// | with the feature `half` | `half::f16`, `half::bf16` |
/// | with the feature `complex` | `num_complex::Complex<T>` |
/// | arrays, vectors of SIMD | `[T; N]` of plain numbers |
/// | your structs | `#[repr(C)]`, no padding, every field included |
/// | your enums | `#[repr(u8)]` (or another integer), no data, a variant with value zero |
///
/// | excluded | reason |
/// | --- | --- |
/// | references, pointers, `Box`, `Vec`, `String` | they point into host memory |
/// | non-zero integers, such as `NonZeroU32` | zeroed memory is not a valid value: use `Option<NonZeroU32>` |
/// | tuples, structs with padding | padding has no defined bytes: add fields that fill it, and `#[repr(C)]` |
/// | enums with data, or without a variant of value zero | not every byte is defined, or zeroed memory is not a valid value |
/// | `[bool; N]`, `[char; N]` | `bytemuck` has no check for arrays of such types: use `[u8; N]`, or one more axis |
/// | `Cell`, atomics | values on the device cannot change through a shared reference |
/// | types without a size | does not compile where an array is allocated |
/// | alignment above 256 bytes | does not compile: allocations are aligned to 256 bytes |
///
/// ```
/// use bytemuck::{CheckedBitPattern, NoUninit, Zeroable};
/// use gpumem_array::{Gpu, GpuArray, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// #[derive(Clone, Copy, Debug, PartialEq, NoUninit, CheckedBitPattern, Zeroable)]
/// #[repr(u8)]
/// enum Spin {
///     Down = 0,
///     Up = 1,
/// }
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let spins = GpuArray::from_slice(&gpu, &[Spin::Up, Spin::Down])?;
/// assert_eq!(spins.to_vec()?, [Spin::Up, Spin::Down]);
/// let points = GpuArray::from_elem(&gpu, 2, [1.0_f32, 2.0, 3.0])?;
/// assert_eq!(points.to_vec()?, [[1.0, 2.0, 3.0]; 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An element has no references:
///
/// ```compile_fail,E0277
/// # use gpumem_array::{ArrayError, Gpu, GpuArray, ndarray::Ix1};
/// fn names(gpu: &Gpu) -> Result<GpuArray<&'static str, Ix1>, ArrayError> {
///     GpuArray::from_slice(gpu, &["a"])
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of an array on a GPU",
    label = "not plain bytes",
    note = "derive `NoUninit`, `CheckedBitPattern` and `Zeroable` of `bytemuck`; the documentation of `Element` lists the types \
            that are excluded, with alternatives"
)]
pub trait Element: NoUninit + CheckedBitPattern + Zeroable + Send + Sync {}

impl<T: NoUninit + CheckedBitPattern + Zeroable + Send + Sync> Element for T {}

/// Fails to compile unless arrays of this type can be allocated.
pub(crate) const fn check_layout<T>() {
    assert!(size_of::<T>() > 0, "an element of an array must have a size: use a type of at least one byte");
    assert!(
        align_of::<T>() <= ALIGNMENT_MAX,
        "the alignment of an element must be at most 256 bytes: pool allocations are aligned to 256 bytes"
    );
}

/// The alignment of every allocation of a pool.
const ALIGNMENT_MAX: usize = 256;

/// Returns the index of the first invalid value.
pub(crate) fn first_invalid<T: Element>(bits: &[T::Bits]) -> Option<usize> {
    bits.iter().position(|bits| !T::is_valid_bit_pattern(bits))
}

/// The numeric types, in the order of the table of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumericType {
    F32,
    F64,
    I32,
    I64,
}

/// The kernels that multiply matrices of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductKernels {
    /// Kernels for each type.
    Numeric(NumericType),
    /// Tensor cores.
    F16,
    /// Tensor cores.
    Bf16,
}

/// Element types that can be converted to `U`, on the host and on the device: floating-point types to each other, and complex types of
/// these.
///
/// | from, to | feature |
/// | --- | --- |
/// | `f32`, `f64` | |
/// | `half::f16`, `half::bf16` | `half` |
/// | `num_complex::Complex<T>` to `Complex<U>` | `complex` |
///
/// A value becomes the nearest `U`, with ties to even. Numbers that are too large become infinite, and NaN stays NaN. The result is the
/// same on the host and on every device.
///
/// ```
/// use gpumem_array::Cast;
///
/// assert_eq!(Cast::<f32>::cast(0.1_f64), 0.1_f32);
/// ```
#[diagnostic::on_unimplemented(
    message = "elements of type `{Self}` are not converted to `{U}`",
    label = "expected two floating-point types, or two complex types",
    note = "an expression is converted to any type of numbers: `x.lazy().cast::<i32>().eval()?`"
)]
pub trait Cast<U: Element>: Element {
    /// The numbers of an element and of its result.
    #[doc(hidden)]
    const NUMBERS: CastNumbers;

    /// Converts a value.
    fn cast(self) -> U;
}

/// The types of the numbers that are converted, and how many an element has.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct CastNumbers {
    pub(crate) from: ScalarType,
    pub(crate) to: ScalarType,
    pub(crate) lanes: usize,
}

macro_rules! casts {
    ($($from_type:ident $from:ty => $to_type:ident $to:ty, |$value:ident| $cast:expr;)*) => {$(
        impl Cast<$to> for $from {
            const NUMBERS: CastNumbers =
                CastNumbers { from: ScalarType::$from_type, to: ScalarType::$to_type, lanes: 1 };

            #[inline]
            fn cast(self) -> $to {
                let $value = self;
                $cast
            }
        }
    )*};
}

casts! {
    F32 f32 => F64 f64, |value| f64::from(value);
    F64 f64 => F32 f32, |value| value as f32;
}

#[cfg(feature = "half")]
mod half_precision {
    use super::{Cast, CastNumbers, ScalarType};
    use half::{bf16, f16};

    casts! {
        F32 f32 => F16 f16, |value| f16::from_f32(value);
        F32 f32 => Bf16 bf16, |value| bf16::from_f32(value);
        F64 f64 => F16 f16, |value| f16::from_f32(narrowed(value));
        F64 f64 => Bf16 bf16, |value| bf16::from_f32(narrowed(value));
        F16 f16 => F32 f32, |value| value.to_f32();
        F16 f16 => F64 f64, |value| value.to_f64();
        F16 f16 => Bf16 bf16, |value| bf16::from_f32(value.to_f32());
        Bf16 bf16 => F32 f32, |value| value.to_f32();
        Bf16 bf16 => F64 f64, |value| value.to_f64();
        Bf16 bf16 => F16 f16, |value| f16::from_f32(value.to_f32());
    }

    /// Returns a number that has the same nearest half-precision number as `value`: it is rounded toward zero, and its last bit is set if
    /// that changed it. Rounding to nearest twice could give a different result.
    fn narrowed(value: f64) -> f32 {
        let near = value as f32;
        let toward_zero =
            if f64::from(near).abs() > value.abs() { f32::from_bits(near.to_bits() - 1) } else { near };
        if f64::from(toward_zero) == value { toward_zero } else { f32::from_bits(toward_zero.to_bits() | 1) }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Halfway between two numbers of 11 bits, and a little beyond: `f32` cannot tell them apart.
        #[test]
        fn one_rounding_decides() {
            let (half, step) = (f64::from(f16::EPSILON.to_f32()) / 2.0, 2_f64.powi(-40));
            for sign in [1.0, -1.0] {
                let cast = |value: f64| f64::from(Cast::<f16>::cast(sign * value).to_f32()) * sign;
                assert_eq!((cast(1.0 + half), cast(1.0 + half + step)), (1.0, 1.0 + 2.0 * half));
                assert_eq!((cast(1.0 + half - step), cast(1.0 + 3.0 * half)), (1.0, 1.0 + 4.0 * half));
                assert_eq!(
                    (cast(65_519.0), cast(65_520.0), cast(1e300)),
                    (65_504.0, f64::INFINITY, f64::INFINITY)
                );
                assert_eq!((cast(0.0), cast(5e-324), cast(f64::INFINITY)), (0.0, 0.0, f64::INFINITY));
                let brain = |value: f64| Cast::<bf16>::cast(sign * value).to_f64() * sign;
                let half = f64::from(bf16::EPSILON.to_f32()) / 2.0;
                assert_eq!((brain(1.0 + half), brain(1.0 + half + step)), (1.0, 1.0 + 2.0 * half));
                assert_eq!(brain(1e300), f64::INFINITY);
            }
            assert!(Cast::<f16>::cast(f64::NAN).is_nan() && Cast::<bf16>::cast(f64::NAN).is_nan());
        }
    }
}

#[cfg(feature = "complex")]
mod complex {
    use super::{Cast, CastNumbers, Element};
    use num_complex::Complex;

    impl<T: Cast<U>, U: Element> Cast<Complex<U>> for Complex<T>
    where
        Self: Element,
        Complex<U>: Element,
    {
        const NUMBERS: CastNumbers = CastNumbers { lanes: 2 * T::NUMBERS.lanes, ..T::NUMBERS };

        #[inline]
        fn cast(self) -> Complex<U> {
            Complex::new(self.re.cast(), self.im.cast())
        }
    }
}

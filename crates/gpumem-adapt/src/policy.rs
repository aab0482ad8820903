//! Element policies: the types that elements have at the target.

use gpumem_array::Element;

/// The element type that arrays of `T` have at the target, and the conversion.
///
/// Implement it for a type of your own to choose other types than [`Keep`], [`Single`], [`F32`], `F16` and `Bf16`:
///
/// ```
/// use gpumem_adapt::{Adapt, Destination, Policy};
/// # use gpumem_adapt::array::{Gpu, GpuArray, ndarray::Ix1, pool::{Device, Pool}};
/// # let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// # let gpu = Gpu::new(&Pool::new(&device)?)?;
///
/// /// Weights between -1 and 1 in steps of 1/127.
/// struct Quantised;
///
/// impl Policy<f32> for Quantised {
///     type Elem = i8;
///     fn convert(value: f32) -> i8 {
///         (value * 127.0).round() as i8
///     }
/// }
///
/// let up: GpuArray<i8, Ix1> = vec![1.0_f32, -0.5].adapt(&Destination::new(&gpu).elements::<Quantised>())?;
/// assert_eq!(up.to_vec()?, [127, -64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "the element policy `{Self}` has no rule for arrays of `{T}`",
    label = "arrays of `{T}` cannot be moved with this policy",
    note = "write `impl Policy<{T}> for {Self}`, or use the policy `Keep`"
)]
pub trait Policy<T: Element>: 'static {
    /// The element type at the target.
    type Elem: Element;

    /// Converts an element.
    fn convert(value: T) -> Self::Elem;

    /// The elements themselves, if the policy keeps their type. Without it, they are converted one by one.
    fn unchanged(elements: &[T]) -> Option<&[Self::Elem]> {
        let _ = elements;
        None
    }
}

/// Keeps the type of all elements: the policy unless another is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {}

/// Converts elements of double precision to single precision, complex numbers included, and keeps all others: as
/// `cu` of CUDA.jl does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Single {}

/// Converts all floating-point elements to `f32`, and complex ones to `Complex<f32>`. Keeps all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum F32 {}

/// Converts all floating-point elements to `f16`, and keeps all others.
#[cfg(feature = "half")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum F16 {}

/// Converts all floating-point elements to `bf16`, and keeps all others.
#[cfg(feature = "half")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16 {}

impl<T: Element> Policy<T> for Keep {
    type Elem = T;

    fn convert(value: T) -> T {
        value
    }

    fn unchanged(elements: &[T]) -> Option<&[T]> {
        Some(elements)
    }
}

/// Policies that keep the type of elements.
macro_rules! keeps {
    ($policy:ty: $($type:ty),* $(,)?) => {$(
        impl Policy<$type> for $policy {
            type Elem = $type;

            fn convert(value: $type) -> $type {
                value
            }

            fn unchanged(elements: &[$type]) -> Option<&[$type]> {
                Some(elements)
            }
        }
    )*};
}

/// Policies that convert elements.
macro_rules! converts {
    ($policy:ty: $($from:ty => $to:ty, |$value:ident| $converted:expr;)*) => {$(
        impl Policy<$from> for $policy {
            type Elem = $to;

            fn convert($value: $from) -> $to {
                $converted
            }
        }
    )*};
}

/// The values that every policy of this crate keeps. Arrays as elements are kept like structs.
macro_rules! keeps_others {
    ($($policy:ty),*) => {$(
        keeps!($policy: i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, bool, char);

        impl<T, const N: usize> Policy<[T; N]> for $policy
        where
            [T; N]: Element,
        {
            type Elem = [T; N];

            fn convert(value: [T; N]) -> [T; N] {
                value
            }

            fn unchanged(elements: &[[T; N]]) -> Option<&[[T; N]]> {
                Some(elements)
            }
        }
    )*};
}

keeps_others!(Single, F32);
keeps!(Single: f32);
keeps!(F32: f32);
converts!(Single: f64 => f32, |value| value as f32;);
converts!(F32: f64 => f32, |value| value as f32;);

#[cfg(feature = "half")]
mod half_precision {
    use super::{Bf16, F16, F32, Policy, Single};
    use gpumem_array::Element;
    use half::{bf16, f16};

    keeps_others!(F16, Bf16);
    keeps!(Single: f16, bf16);
    keeps!(F16: f16);
    keeps!(Bf16: bf16);
    converts!(F32: f16 => f32, |value| value.to_f32(); bf16 => f32, |value| value.to_f32(););
    converts!(F16:
        f32 => f16, |value| f16::from_f32(value);
        f64 => f16, |value| f16::from_f64(value);
        bf16 => f16, |value| f16::from_f32(value.to_f32());
    );
    converts!(Bf16:
        f32 => bf16, |value| bf16::from_f32(value);
        f64 => bf16, |value| bf16::from_f64(value);
        f16 => bf16, |value| bf16::from_f32(value.to_f32());
    );
    #[cfg(feature = "complex")]
    keeps!(F16: num_complex::Complex<f32>, num_complex::Complex<f64>);
    #[cfg(feature = "complex")]
    keeps!(Bf16: num_complex::Complex<f32>, num_complex::Complex<f64>);
}

#[cfg(feature = "complex")]
mod complex {
    use super::{F32, Policy, Single};
    use num_complex::Complex;

    keeps!(Single: Complex<f32>);
    keeps!(F32: Complex<f32>);
    converts!(Single: Complex<f64> => Complex<f32>, |value| Complex::new(value.re as f32, value.im as f32););
    converts!(F32: Complex<f64> => Complex<f32>, |value| Complex::new(value.re as f32, value.im as f32););
}

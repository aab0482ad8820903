//! [`Element`]: the types that arrays hold; [`Numeric`]: those that the kernels of this crate calculate with.

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
/// | `Option<NonZeroU32>` and its like | zero is `None` |
/// | with the feature `half` | `half::f16`, `half::bf16` |
/// | with the feature `complex` | `num_complex::Complex<T>` |
/// | arrays, vectors of SIMD | `[T; N]` of plain numbers |
/// | your structs | `#[repr(C)]`, no padding, every field included |
/// | your enums | `#[repr(u8)]` (or another integer), no data, a variant with value zero |
///
/// | excluded | reason |
/// | --- | --- |
/// | references, pointers, `Box`, `Vec`, `String` | they point into host memory |
/// | `NonZeroU32` and its like | zeroed memory is not a valid value: use `Option<NonZeroU32>` |
/// | tuples, structs with padding | padding has no defined bytes: add fields that fill it, and `#[repr(C)]` |
/// | enums with data, or without a variant of value zero | not every byte is defined, or zeroed memory is not a valid value |
/// | `[bool; N]`, `[char; N]` | `bytemuck` has no check for arrays of such types: use `[u8; N]`, or one more axis |
/// | `Cell`, atomics | values on the device cannot change through a shared reference |
/// | types without a size | does not compile where an array is allocated; see below |
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
///
/// It has a size:
///
/// ```compile_fail,E0080
/// # use gpumem_array::{ArrayError, Gpu, GpuArray, ndarray::Ix1};
/// fn nothing(gpu: &Gpu) -> Result<GpuArray<(), Ix1>, ArrayError> {
///     GpuArray::zeros(gpu, 3)
/// }
/// # fn main() {
/// #     let _ = nothing as fn(&Gpu) -> _;
/// # }
/// ```
///
/// It is aligned to 256 bytes at most:
///
/// ```compile_fail,E0080
/// # use gpumem_array::{ArrayError, Gpu, GpuArray, ndarray::Ix1};
/// #[derive(Clone, Copy, bytemuck::NoUninit, bytemuck::AnyBitPattern, bytemuck::Zeroable)]
/// #[repr(C, align(512))]
/// struct Page([u8; 512]);
/// fn pages(gpu: &Gpu) -> Result<GpuArray<Page, Ix1>, ArrayError> {
///     GpuArray::zeros(gpu, 3)
/// }
/// # fn main() {
/// #     let _ = pages as fn(&Gpu) -> _;
/// # }
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

/// An element type with arithmetic: `f32`, `f64`, `i32`, `i64`.
///
/// Integers wrap on overflow; an integer divided by zero is zero.
pub trait Numeric: Element + sealed::Sealed {}

pub(crate) mod sealed {
    /// The index of the compiled kernels of a type, and its numbers.
    pub trait Sealed: Sized {
        const KIND: super::Kind;
        const ONE: Self;
        /// The number of values that lie between `start` and `end`, `step` apart, `start` included.
        fn steps(start: Self, end: Self, step: Self) -> usize;
        /// `start` and `index` steps. The index is below [`Sealed::steps`].
        fn nth(start: Self, step: Self, index: usize) -> Self;
    }
}

/// The numeric types, in the order of the kernel table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F64,
    I32,
    I64,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::F32, Self::F64, Self::I32, Self::I64];

    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }
}

macro_rules! floats {
    ($($kind:ident: $type:ty),*) => {
        $(
            impl Numeric for $type {}
            impl sealed::Sealed for $type {
                const KIND: Kind = Kind::$kind;
                const ONE: Self = 1.0;
                fn steps(start: Self, end: Self, step: Self) -> usize {
                    // The cast makes 0 of negative numbers and NaN, and the largest number of infinity.
                    if step == 0.0 { 0 } else { ((end - start) / step).ceil() as usize }
                }
                fn nth(start: Self, step: Self, index: usize) -> Self {
                    start + step * index as Self
                }
            }
        )*
    };
}
floats!(F32: f32, F64: f64);

macro_rules! integers {
    ($($kind:ident: $type:ty),*) => {
        $(
            impl Numeric for $type {}
            impl sealed::Sealed for $type {
                const KIND: Kind = Kind::$kind;
                const ONE: Self = 1;
                fn steps(start: Self, end: Self, step: Self) -> usize {
                    let (distance, step) = (i128::from(end) - i128::from(start), i128::from(step));
                    match distance.signum() * step.signum() {
                        1 => usize::try_from(distance.unsigned_abs().div_ceil(step.unsigned_abs())).unwrap_or(usize::MAX),
                        _ => 0,
                    }
                }
                fn nth(start: Self, step: Self, index: usize) -> Self {
                    // Between `start` and `end`, although the product alone may wrap.
                    start.wrapping_add(step.wrapping_mul(index as Self))
                }
            }
        )*
    };
}
integers!(I32: i32, I64: i64);

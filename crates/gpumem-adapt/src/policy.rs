//! Element policies: the types that elements have at the target.

use crate::storage::Storable;
use gpumem_array::kind::Kind;
use gpumem_array::ndarray::{Array, ArrayView, Dimension, ShapeBuilder};
use gpumem_array::{ArrayError, Element, GpuArray, GpuView, Memory};

/// The element type that arrays of `T` have at the target, and the conversion.
///
/// Implement it for a type of your own to choose other types than [`Unchanged`], [`Single`], [`F32`], [`F64`], `F16` and `Bf16`. Those convert
/// where it takes the least time: elements that become smaller before the transfer, so that fewer bytes cross the link, and elements that
/// become larger after it; see [`GpuArray::from_array_cast`]. Elements that are on a device are converted there.
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
    note = "write `impl Policy<{T}> for {Self}`, or use the policy `Unchanged`"
)]
pub trait Policy<T: Storable>: 'static {
    /// The element type at the target.
    type Elem: Element;

    /// Converts an element.
    fn convert(value: T) -> Self::Elem;

    /// The elements themselves, if the policy keeps their type. The default returns `None`: elements are converted one by one.
    fn unchanged(elements: &[T]) -> Option<&[Self::Elem]> {
        let _ = elements;
        None
    }

    /// Converts elements of the host and uploads them. The default converts them one by one and then uploads them.
    ///
    /// # Errors
    ///
    /// [`ArrayError::HostFull`] or [`ArrayError::Pool`]; see [`GpuArray::from_array`].
    fn upload<D: Dimension, K: Kind>(
        array: &ArrayView<'_, T, D>,
        place: &Memory<'_, K>,
    ) -> Result<GpuArray<Self::Elem, D, K>, ArrayError> {
        // The device's memory first: a broadcast view can be larger than any memory.
        if array.as_slice_memory_order().is_none() {
            drop(GpuArray::<Self::Elem, D, K>::uninit(place, array.raw_dim())?);
        }
        GpuArray::from_array(place, &converted(array, Self::convert)?)
    }

    /// Converts elements on their device. With `None`, the default, they are downloaded, converted, and uploaded. [`GpuArray::map_kernel`]
    /// calls a kernel of your own.
    #[expect(clippy::type_complexity, reason = "each part of the type is known to the reader")]
    fn on_device<D: Dimension, K: Kind>(
        view: &GpuView<'_, T, D>,
        place: &Memory<'_, K>,
    ) -> Option<Result<GpuArray<Self::Elem, D, K>, ArrayError>> {
        let _ = (view, place);
        None
    }

    /// Downloads elements and converts them. The default converts them on the host.
    ///
    /// # Errors
    ///
    /// [`ArrayError::HostFull`], [`ArrayError::InvalidElement`] or [`ArrayError::Pool`]; see [`GpuView::to_array`].
    fn download<D: Dimension>(view: &GpuView<'_, T, D>) -> Result<Array<Self::Elem, D>, ArrayError> {
        converted(&view.to_array()?.view(), Self::convert)
    }
}

/// An element type of your own, which every policy of this crate keeps, like `cu` of CUDA.jl keeps structs, even with double-precision
/// fields. `#[derive(Adapt)]` with `#[adapt(element)]` implements it.
pub trait PlainElement: Element {}

/// An array of the results of a function of each element: in row-major order, or column-major if the array is.
pub(crate) fn converted<T: Element, U, D: Dimension>(
    array: &ArrayView<'_, T, D>,
    convert: impl Fn(T) -> U,
) -> Result<Array<U, D>, ArrayError> {
    let is_column_major = !array.is_standard_layout() && array.t().is_standard_layout();
    let size_bytes = array.len().saturating_mul(size_of::<U>());
    let mut elements = Vec::new();
    elements.try_reserve_exact(array.len()).map_err(|_| ArrayError::HostFull { size_bytes })?;
    if is_column_major {
        elements.extend(array.t().iter().map(|element| convert(*element)))
    } else {
        elements.extend(array.iter().map(|element| convert(*element)))
    }
    Array::from_shape_vec(array.raw_dim().set_f(is_column_major), elements)
        .map_err(|_| ArrayError::TooManyElements { shape: array.shape().to_vec() })
}

/// Keeps the type of all elements. The default policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchanged {}

/// Converts elements of double precision to single precision, complex numbers included, and keeps all others, like `cu` of CUDA.jl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Single {}

/// Converts all floating-point elements to `f32`, and complex ones to `Complex<f32>`. Keeps all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum F32 {}

/// Converts all floating-point elements to `f64`, and complex ones to `Complex<f64>`. Keeps all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum F64 {}

/// Converts all floating-point elements to `f16`, and keeps all others.
#[cfg(feature = "half")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum F16 {}

/// Converts all floating-point elements to `bf16`, and keeps all others.
#[cfg(feature = "half")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16 {}

impl<T: Storable> Policy<T> for Unchanged {
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

/// Policies that convert elements, with the kernels and copies of `gpumem-array`.
macro_rules! converts {
    ($policy:ty: $($from:ty => $to:ty),* $(,)?) => {$(
        impl Policy<$from> for $policy {
            type Elem = $to;

            fn convert(value: $from) -> $to {
                gpumem_array::Cast::cast(value)
            }

            fn upload<D: Dimension, K: Kind>(
                array: &ArrayView<'_, $from, D>,
                place: &Memory<'_, K>,
            ) -> Result<GpuArray<$to, D, K>, ArrayError> {
                GpuArray::from_array_cast(place, array)
            }

            fn on_device<D: Dimension, K: Kind>(
                view: &GpuView<'_, $from, D>,
                place: &Memory<'_, K>,
            ) -> Option<Result<GpuArray<$to, D, K>, ArrayError>> {
                Some(view.cast_to(place))
            }

            fn download<D: Dimension>(view: &GpuView<'_, $from, D>) -> Result<Array<$to, D>, ArrayError> {
                view.to_array_cast()
            }
        }
    )*};
}

/// The values that every policy of this crate keeps. Array elements such as `[f32; 3]` are kept like structs.
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

/// The elements of programs.
macro_rules! keeps_plain {
    ($($policy:ty),*) => {$(
        impl<T: PlainElement> Policy<T> for $policy {
            type Elem = T;

            fn convert(value: T) -> T {
                value
            }

            fn unchanged(elements: &[T]) -> Option<&[T]> {
                Some(elements)
            }
        }
    )*};
}

keeps_others!(Single, F32, F64);
keeps_plain!(Single, F32, F64);
keeps!(Single: f32);
keeps!(F32: f32);
keeps!(F64: f64);
converts!(Single: f64 => f32);
converts!(F32: f64 => f32);
converts!(F64: f32 => f64);

#[cfg(feature = "half")]
mod half_precision {
    use super::*;
    use half::{bf16, f16};

    keeps_others!(F16, Bf16);
    keeps_plain!(F16, Bf16);
    keeps!(Single: f16, bf16);
    keeps!(F16: f16);
    keeps!(Bf16: bf16);
    converts!(F32: f16 => f32, bf16 => f32);
    converts!(F64: f16 => f64, bf16 => f64);
    converts!(F16: f32 => f16, f64 => f16, bf16 => f16);
    converts!(Bf16: f32 => bf16, f64 => bf16, f16 => bf16);

    #[cfg(feature = "complex")]
    mod complex {
        use super::*;
        use num_complex::Complex;

        keeps!(F16: Complex<f16>, Complex<bf16>, Complex<f32>, Complex<f64>);
        keeps!(Bf16: Complex<f16>, Complex<bf16>, Complex<f32>, Complex<f64>);
        converts!(Single: Complex<f16> => Complex<f32>, Complex<bf16> => Complex<f32>);
        converts!(F32: Complex<f16> => Complex<f32>, Complex<bf16> => Complex<f32>);
        converts!(F64: Complex<f16> => Complex<f64>, Complex<bf16> => Complex<f64>);
    }
}

#[cfg(feature = "complex")]
mod complex {
    use super::*;
    use num_complex::Complex;

    keeps!(Single: Complex<f32>);
    keeps!(F32: Complex<f32>);
    keeps!(F64: Complex<f64>);
    converts!(Single: Complex<f64> => Complex<f32>);
    converts!(F32: Complex<f64> => Complex<f32>);
    converts!(F64: Complex<f32> => Complex<f64>);
}

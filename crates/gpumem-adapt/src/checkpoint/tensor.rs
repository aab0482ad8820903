//! [`Tensor`]: an array of any element type that checkpoints support; [`CheckpointElement`]: those types.

use super::error::CheckpointError;
use super::file::{File, TensorEntry};
use bytemuck::Pod;
use gpumem_array::ndarray::{ArrayD, IxDyn};
use gpumem_array::{ArrayError, Element, Gpu, GpuArray, Pack};
use half::{bf16, f16};
#[cfg(feature = "complex")]
use num_complex::Complex;
use safetensors::Dtype;
use std::collections::BTreeMap;

/// The arrays of a checkpoint, by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// An element type of checkpoints: `f64`, `f32`, `f16`, `bf16`, integers of 8 to 64 bits, `bool`, and `Complex<f32>` with the feature
/// `complex`.
pub trait CheckpointElement: Element + sealed::TensorElement {}

/// A pack's array, once the pack is uploaded.
pub(super) type Packed = Box<dyn FnOnce() -> Result<Tensor, ArrayError>>;

pub(super) mod sealed {
    use super::{Dtype, Element, GpuArray, IxDyn, Pod, Tensor};

    pub trait TensorElement: Sized {
        const DTYPE: Dtype;
        /// A type of the same size and alignment that has no invalid values.
        type Raw: Pod + Element;
        fn from_tensor(tensor: Tensor) -> Result<GpuArray<Self, IxDyn>, Box<Tensor>>;
    }
}

macro_rules! elements {
    ($($(#[$condition:meta])? $variant:ident $element:ty, $raw:ty, $dtype:ident;)*) => {
        /// An array of any element type that checkpoints support.
        #[derive(Debug)]
        #[non_exhaustive]
        pub enum Tensor {
            $(
                $(#[$condition])?
                #[doc = concat!("Elements of `", stringify!($element), "`.")]
                $variant(GpuArray<$element, IxDyn>),
            )*
        }

        impl Tensor {
            /// The element type.
            #[must_use]
            pub fn dtype(&self) -> Dtype {
                match self {
                    $($(#[$condition])? Self::$variant(_) => Dtype::$dtype,)*
                }
            }

            /// The lengths of the axes.
            #[must_use]
            pub fn shape(&self) -> &[usize] {
                match self {
                    $($(#[$condition])? Self::$variant(array) => array.shape(),)*
                }
            }

            pub(super) fn as_save(&self) -> &dyn super::save::sealed::Save {
                match self {
                    $($(#[$condition])? Self::$variant(array) => array,)*
                }
            }
        }

        $(
            $(#[$condition])?
            impl CheckpointElement for $element {}

            $(#[$condition])?
            impl sealed::TensorElement for $element {
                const DTYPE: Dtype = Dtype::$dtype;
                type Raw = $raw;

                fn from_tensor(tensor: Tensor) -> Result<GpuArray<Self, IxDyn>, Box<Tensor>> {
                    match tensor {
                        Tensor::$variant(array) => Ok(array),
                        other => Err(Box::new(other)),
                    }
                }
            }

            $(#[$condition])?
            impl From<GpuArray<$element, IxDyn>> for Tensor {
                fn from(array: GpuArray<$element, IxDyn>) -> Self {
                    Self::$variant(array)
                }
            }
        )*

        /// Uploads a tensor.
        pub(super) fn load(file: &File, name: &str, entry: &TensorEntry, gpu: &Gpu) -> Result<Tensor, CheckpointError> {
            match entry.info.dtype {
                $($(#[$condition])? Dtype::$dtype => file.upload(name, entry, IxDyn(&entry.info.shape), gpu).map(Tensor::$variant),)*
                dtype => Err(CheckpointError::UnsupportedDtype { name: name.into(), dtype }),
            }
        }

        /// Adds a tensor to a pack. The inner error comes from the array layer.
        pub(super) fn add(
            file: &File,
            name: &str,
            entry: &TensorEntry,
            gpu: &Gpu,
            pack: &mut Pack<'_>,
        ) -> Result<Result<Packed, ArrayError>, CheckpointError> {
            match entry.info.dtype {
                $($(#[$condition])? Dtype::$dtype => {
                    let elements: Vec<$element> = file.elements(name, entry)?;
                    let shape = entry.info.shape.clone();
                    let Ok(array) = ArrayD::from_shape_vec(shape.clone(), elements) else {
                        return Ok(Err(ArrayError::TooManyElements { shape }));
                    };
                    let packed = pack.add_owned(gpu, array);
                    Ok(packed.map(|packed| Box::new(|| Ok(Tensor::$variant(packed.into_array()?))) as Packed))
                })*
                dtype => Err(CheckpointError::UnsupportedDtype { name: name.into(), dtype }),
            }
        }
    };
}

elements! {
    F64 f64, f64, F64;
    F32 f32, f32, F32;
    F16 f16, f16, F16;
    Bf16 bf16, bf16, BF16;
    I64 i64, i64, I64;
    I32 i32, i32, I32;
    I16 i16, i16, I16;
    I8 i8, i8, I8;
    U64 u64, u64, U64;
    U32 u32, u32, U32;
    U16 u16, u16, U16;
    U8 u8, u8, U8;
    Bool bool, u8, BOOL;
    #[cfg(feature = "complex")]
    Complex64 Complex<f32>, Complex<f32>, C64;
}

impl Tensor {
    /// The array, if its elements are of type `T`.
    ///
    /// # Errors
    ///
    /// The error is the tensor itself, if its elements are of another type.
    pub fn into_array<T: CheckpointElement>(self) -> Result<GpuArray<T, IxDyn>, Box<Self>> {
        T::from_tensor(self)
    }
}

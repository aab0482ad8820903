//! [`Adapt`]: the operation of this crate.

use crate::AdaptError;

/// Rebuilds a value with its arrays moved to `To`, and keeps its type.
///
/// `To` is the target: a [`Gpu`](crate::array::Gpu), [`Host`](crate::Host) or [`HostVec`](crate::HostVec). Uploads and downloads
/// are complete when the call returns. If a part of a value fails, the parts that were already moved are released, and the
/// error names the part.
///
/// A struct can be adapted if it is generic over its storage (a field of type `Vec<f32>` cannot become device memory):
///
/// ```
/// use gpumem_sim::SimConfig;
/// use gpumem_adapt::array::pool::{Device, Pool};
/// use gpumem_adapt::array::{Gpu, GpuArray, ndarray::Ix1};
/// use gpumem_adapt::{Adapt, AdaptError, HostVec};
///
/// struct Layer<A> {
///     weight: A,
///     bias: A,
/// }
///
/// impl<To, A: Adapt<To>> Adapt<To> for Layer<A> {
///     type Adapted = Layer<A::Adapted>;
///
///     fn adapt(&self, to: &To) -> Result<Self::Adapted, AdaptError> {
///         Ok(Layer {
///             weight: self.weight.adapt(to).map_err(|error| error.within("weight"))?,
///             bias: self.bias.adapt(to).map_err(|error| error.within("bias"))?,
///         })
///     }
/// }
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let gpu = Gpu::new(&Pool::new(&device)?)?;
/// let layer = Layer { weight: vec![1.0_f32, 2.0], bias: vec![0.5] };
/// let on_gpu: Layer<GpuArray<f32, Ix1>> = layer.adapt(&gpu)?;
/// let back: Layer<Vec<f32>> = on_gpu.adapt(&HostVec)?;
/// assert_eq!((back.weight, back.bias), (layer.weight, layer.bias));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Adapt<To> {
    /// This type with the storage of `To`.
    type Adapted;

    /// Copies the value, with its arrays moved to `to`.
    ///
    /// # Errors
    ///
    /// [`AdaptError::Array`] if an array cannot be moved, because the allocation or a driver call fails; [`AdaptError::Within`] if
    /// that array is a part of the value.
    fn adapt(&self, to: &To) -> Result<Self::Adapted, AdaptError>;
}

/// A reference adapts like its target: `(&inputs, &targets)` adapts both and moves neither.
impl<To, A: Adapt<To> + ?Sized> Adapt<To> for &A {
    type Adapted = A::Adapted;

    fn adapt(&self, to: &To) -> Result<Self::Adapted, AdaptError> {
        (**self).adapt(to)
    }
}

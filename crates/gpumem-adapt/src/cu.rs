//! [`cu`]: uploads in single precision.

use crate::adapt::Adapt;
use crate::error::AdaptError;
use crate::policy::Single;
use crate::target::{Destination, Target};
use core::fmt;
use core::marker::PhantomData;
use gpumem_array::Gpu;
use gpumem_array::kind::{DeviceLocal, Kind, Pinned, Unified};

/// Begins an upload in single precision: arrays of `f64` become arrays of `f32`, arrays of `Complex<f64>` arrays of `Complex<f32>`, and
/// everything else keeps its type. Most GPUs are many times as fast in single precision; to keep double precision, use [`Adapt::adapt`].
///
/// ```
/// use gpumem_adapt::array::{Gpu, GpuArray, UnifiedArray, ndarray::{Ix1, Ix2, array}, pool::{Device, Pool}};
/// use gpumem_adapt::cu;
///
/// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// let gpu = Gpu::new(&Pool::new(&device)?)?;
/// let (weights, labels): (GpuArray<f32, Ix2>, GpuArray<i64, Ix1>) =
///     cu(&(array![[0.5_f64, 1.5]], vec![1_i64, 2])).on(&gpu)?;
/// assert_eq!(weights.to_array()?, array![[0.5_f32, 1.5]]);
/// let unified: UnifiedArray<f32, Ix1> = cu(&[1.0_f64, 2.0][..]).unified().on(&gpu)?;
/// assert_eq!(unified[1], 2.0);
/// # let _ = labels;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn cu<A: ?Sized>(value: &A) -> Cu<'_, A> {
    Cu { value, kind: PhantomData }
}

/// An upload in single precision; see [`cu`].
#[must_use = "nothing is uploaded before `on`"]
pub struct Cu<'a, A: ?Sized, K = DeviceLocal> {
    value: &'a A,
    kind: PhantomData<K>,
}

impl<'a, A: ?Sized, K> Cu<'a, A, K> {
    /// Chooses unified memory.
    pub fn unified(self) -> Cu<'a, A, Unified> {
        Cu { value: self.value, kind: PhantomData }
    }

    /// Chooses pinned host memory.
    pub fn pinned(self) -> Cu<'a, A, Pinned> {
        Cu { value: self.value, kind: PhantomData }
    }

    /// Uploads the value to a GPU.
    ///
    /// # Errors
    ///
    /// [`AdaptError::Array`], [`AdaptError::Custom`], [`AdaptError::Within`]; see [`Adapt::adapt`].
    pub fn on(self, gpu: &Gpu) -> Result<A::Adapted, AdaptError>
    where
        K: Kind,
        A: Adapt<Destination<K, Single>>,
        Destination<K, Single>: Target,
    {
        self.value.adapt(&Destination::new(gpu).memory::<K>().elements::<Single>())
    }
}

impl<A: ?Sized, K: Kind> fmt::Debug for Cu<'_, A, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cu").field("kind", &K::NAME).finish_non_exhaustive()
    }
}

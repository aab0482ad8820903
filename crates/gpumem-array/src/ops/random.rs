//! Random numbers, drawn on the device from an explicit generator: [`Rng`].

use crate::array::{GpuArray, UninitArray};
use crate::element::Element;
use crate::element::kind::Kind;
use crate::error::ArrayError;
use crate::gpu::Place;
use crate::kernel::table::{Kernel, Only};
use crate::launch::OwnLaunch;
use crate::layout::ElementOrder;
use crate::ops::blocks;
use ndarray::{Dimension, IntoDimension};

/// A counter-based random number generator, Philox4x32-10. Each number is a function of seed, stream and position, so equal
/// generators give equal numbers, on every GPU and on the simulator.
///
/// Each draw advances the generator. There is no global generator: keep one, or one per thread with its own stream ([`Rng::with_stream`]).
/// A graph repeats the numbers of its capture at each launch.
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::Rng;
///
/// let mut rng = Rng::new(42);
/// let weights = GpuArray::<f32, _>::random_normal(&gpu, (100, 10), &mut rng)?;
/// let noise = GpuArray::<f64, _>::random(&gpu, 1000, &mut rng)?;
/// assert!(noise.to_vec()?.iter().all(|x| (0.0..1.0).contains(x)));
///
/// let again = GpuArray::<f32, _>::random_normal(&gpu, (100, 10), &mut Rng::new(42))?;
/// assert_eq!(again.to_vec()?, weights.to_vec()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    seed: u64,
    stream: u64,
    /// The number of the next block of 128 bits.
    next: u64,
}

impl Rng {
    /// A generator at the beginning of stream 0.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self::with_stream(seed, 0)
    }

    /// A generator at the beginning of a stream. The numbers of different streams are independent.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::Rng;
    ///
    /// let [a, b] = [0, 1].map(|thread| GpuArray::<u64, _>::random(&gpu, 4, &mut Rng::with_stream(7, thread)));
    /// assert_ne!(a?.to_vec()?, b?.to_vec()?);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub const fn with_stream(seed: u64, stream: u64) -> Self {
        Self { seed, stream, next: 0 }
    }

    /// Skips `blocks` blocks of 128 bits. An array uses one block for each 16 bytes or part thereof.
    pub const fn advance(&mut self, blocks: u64) {
        self.next = self.next.wrapping_add(blocks);
    }
}

/// The element types of [`GpuArray::random`]: `f32`, `f64`, `i32`, `i64`, `u32`, `u64`.
pub trait Random: Element + sealed::UniformKernel {}

/// The element types of [`GpuArray::random_normal`]: `f32`, `f64`.
pub trait RandomNormal: Random + sealed::NormalKernel {}

mod sealed {
    pub trait UniformKernel {
        /// The number by which the kernel knows the type.
        const KIND: u64;
    }
    pub trait NormalKernel {
        const KIND: u64;
    }
}

macro_rules! drawn {
    ($($type:ty: $kind:literal $($normal:literal)?;)*) => {
        $(
            impl Random for $type {}
            impl sealed::UniformKernel for $type {
                const KIND: u64 = $kind;
            }
            $(
                impl RandomNormal for $type {}
                impl sealed::NormalKernel for $type {
                    const KIND: u64 = $normal;
                }
            )?
        )*
    };
}

drawn! {
    f32: 1 3;
    f64: 2 4;
    i32: 0;
    i64: 0;
    u32: 0;
    u64: 0;
}

impl<T: Random, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Creates an array of uniform random numbers: floats in `[0, 1)`, integers over all values.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::Rng;
    ///
    /// let x = GpuArray::<f32, _>::random(&gpu, 100, &mut Rng::new(7))?;
    /// assert!(x.to_vec()?.iter().all(|x| (0.0..1.0).contains(x)));
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`] if the shape exceeds the address space; [`ArrayError::Pool`] if the allocation or a driver
    /// call fails; [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn random<P, S>(place: &P, shape: S, rng: &mut Rng) -> Result<Self, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: IntoDimension<Dim = D>,
    {
        let mut array =
            UninitArray::with_order(place, shape.into_dimension(), ElementOrder::Row)?.into_unwritten();
        array.fill_random(rng)?;
        Ok(array)
    }

    /// Overwrites the array with random numbers; see [`GpuArray::random`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::Rng;
    ///
    /// let mut rng = Rng::new(7);
    /// let mut x = GpuArray::<u32, _>::random(&gpu, 4, &mut rng)?;
    /// let first = x.to_vec()?;
    /// x.fill_random(&mut rng)?; // the next numbers of the generator
    /// assert_ne!(x.to_vec()?, first);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if a driver call fails; [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn fill_random(&mut self, rng: &mut Rng) -> Result<(), ArrayError> {
        self.draw(<T as sealed::UniformKernel>::KIND, rng)
    }

    fn draw(&mut self, kind: u64, rng: &mut Rng) -> Result<(), ArrayError> {
        if self.is_empty() {
            return Ok(());
        }
        let word_count = self.len() * (size_of::<T>() / 4);
        let block_count = word_count.div_ceil(4);
        let Rng { seed, stream, next } = *rng;
        let grid = [blocks(block_count, 256), 1, 1];
        let launch = OwnLaunch::new(self.gpu(), Kernel::Random(Only::One), grid, [256, 1, 1])?;
        let launch = launch.write(self).value(word_count as u64);
        launch.value(seed).value(stream).value(next).value(kind).queue("random")?;
        rng.advance(block_count as u64);
        Ok(())
    }
}

impl<T: RandomNormal, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Creates an array of normally distributed numbers, with mean 0 and standard deviation 1. All of them are finite.
    ///
    /// They are made from uniform numbers by the Box–Muller transform, with exactly rounded arithmetic: like uniform numbers, they are
    /// equal to the last bit on every GPU and on the simulator.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::Rng;
    ///
    /// let x = GpuArray::<f64, _>::random_normal(&gpu, 1000, &mut Rng::new(7))?;
    /// let mean = x.sum()?.into_scalar()? / 1000.0;
    /// assert!(mean.abs() < 0.1);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`], [`ArrayError::Pool`], [`ArrayError::NoSuchKernel`]; see [`GpuArray::random`].
    pub fn random_normal<P, S>(place: &P, shape: S, rng: &mut Rng) -> Result<Self, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: IntoDimension<Dim = D>,
    {
        let mut array =
            UninitArray::with_order(place, shape.into_dimension(), ElementOrder::Row)?.into_unwritten();
        array.fill_random_normal(rng)?;
        Ok(array)
    }

    /// Overwrites the array with normally distributed numbers; see [`GpuArray::random_normal`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if a driver call fails; [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn fill_random_normal(&mut self, rng: &mut Rng) -> Result<(), ArrayError> {
        self.draw(<T as sealed::NormalKernel>::KIND, rng)
    }
}

//! [`Gpu`]: a pool, a stream of its device, and the kernels of this crate.
//!
//! A clone has the same stream; [`Gpu::fork`] creates another stream on the same pool. Work queued through one `Gpu` runs in the
//! order in which it was queued.

use crate::element::Numeric;
use crate::error::ArrayError;
use crate::kernel::Module;
use crate::kernel::library::Library;
use core::fmt;
use gpumem_pool::{Device, Pool, Stream};
use std::sync::Arc;

/// A pool, a stream of its device, and loaded kernels. Clones are cheap and share all three.
///
/// Each array holds a clone. When the last clone of a `Gpu` and of its forks is dropped, the kernels are unloaded, which waits for
/// the device.
///
/// ```
/// use gpumem_array::{Gpu, GpuArray, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let gpu = Gpu::new(&Pool::new(&device)?)?;
/// let other = gpu.fork()?; // another stream
///
/// let a = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
/// let doubled = a.on(&other).try_mul_scalar(2)?; // `other` waits for `a`, on the device
/// assert_eq!(doubled.to_vec()?, [2, 4, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    library: Arc<Library>,
    pool: Pool,
    stream: Stream,
}

impl Gpu {
    /// Creates a `Gpu` on a pool, with a new stream and kernels of its own. [`Gpu::fork`] shares the kernels.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the stream cannot be created.
    pub fn new(pool: &Pool) -> Result<Self, ArrayError> {
        let stream = Stream::new(pool.device())?;
        Self::with_stream(pool, &stream)
    }

    /// Creates a `Gpu` on a pool and an existing stream.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`] if the stream is on another device than the pool.
    pub fn with_stream(pool: &Pool, stream: &Stream) -> Result<Self, ArrayError> {
        check_device(pool.device(), stream.device())?;
        let library = Arc::new(Library::new(pool.device()));
        Ok(Self(Arc::new(Inner { library, pool: pool.clone(), stream: stream.clone() })))
    }

    /// Creates a `Gpu` on device 0 of the driver that `GPUMEM_DRIVER` names, with a pool that the environment configures.
    /// `GPUMEM_DRIVER=sim` requires the feature `sim`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if there is no driver or no device, or if an environment variable is unknown or invalid; with the
    /// feature `sim`, `ArrayError::Sim` if the simulator does not start.
    pub fn from_env() -> Result<Self, ArrayError> {
        #[cfg(feature = "sim")]
        let driver = gpumem_sim::from_env()?;
        #[cfg(not(feature = "sim"))]
        let driver = gpumem_pool::sys::Driver::from_env().map_err(gpumem_pool::PoolError::from)?;
        Self::new(&Pool::from_env(&Device::new(&driver, 0)?)?)
    }

    /// Creates a `Gpu` with the pool and kernels of this one, and a new stream.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the stream cannot be created.
    pub fn fork(&self) -> Result<Self, ArrayError> {
        let Inner { library, pool, .. } = &*self.0;
        let stream = Stream::new(pool.device())?;
        Ok(Self(Arc::new(Inner { library: library.clone(), pool: pool.clone(), stream })))
    }

    /// The pool that arrays are allocated from.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// The stream that work is queued on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.0.stream
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.0.pool.device()
    }

    /// Waits on the host until everything queued on this stream so far is done.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the wait or earlier work failed, or if the stream is retired, captures, or belongs to another thread.
    pub fn synchronize(&self) -> Result<(), ArrayError> {
        Ok(self.0.stream.synchronize()?)
    }

    /// Loads kernels from PTX.
    ///
    /// The driver compiles the whole text during this call, which can take a tenth of a second. On the simulator each kernel
    /// requires a Rust twin, registered with `gpumem_sim::Sim::register`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::ZeroByte`] if the text contains a zero byte, [`ArrayError::Pool`] if the driver refuses the text.
    pub fn module(&self, ptx: &str) -> Result<Module, ArrayError> {
        Module::load(self.device(), ptx)
    }

    /// Loads all kernels of this crate for one element type. Otherwise each kernel is loaded at its first use.
    ///
    /// The vendor's driver compiles them for its device the first time on a machine, in about a quarter of a second, and
    /// caches the result for later runs.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the driver cannot load them; [`ArrayError::NoSuchKernel`] on the simulator without the feature
    /// `sim`.
    pub fn preload<T: Numeric>(&self) -> Result<(), ArrayError> {
        self.library().preload(T::KIND)
    }

    pub(crate) fn library(&self) -> &Library {
        &self.0.library
    }

    /// Returns an error unless `found` is the device of this `Gpu`.
    pub(crate) fn check(&self, found: &Device) -> Result<(), ArrayError> {
        check_device(self.device(), found)
    }
}

fn check_device(expected: &Device, found: &Device) -> Result<(), ArrayError> {
    if expected == found {
        return Ok(());
    }
    Err(ArrayError::WrongDevice { expected: place(expected), found: place(found) })
}

fn place(device: &Device) -> String {
    format!("{device} of the {}", device.driver().kind())
}

/// Two `Gpu`s are equal if they have the same stream.
impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        self.stream().id() == other.stream().id()
    }
}

impl Eq for Gpu {}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu")
            .field("device", self.device())
            .field("stream", self.stream())
            .finish_non_exhaustive()
    }
}

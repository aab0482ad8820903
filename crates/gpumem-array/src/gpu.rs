//! [`Gpu`]: what arrays live on: a pool, one of the device's streams, and this crate's kernels.
//!
//! A clone is the same stream; [`Gpu::fork`] is another stream of the same pool. Everything queued through one `Gpu`
//! runs in the order it was queued in.

use crate::element::Numeric;
use crate::error::ArrayError;
use crate::kernel::Module;
use crate::kernel::library::Library;
use core::fmt;
use gpumem_pool::{Device, Pool, Stream};
use std::sync::Arc;

/// A device's pool, a stream of it, and kernels. Clones are cheap and share all three.
///
/// Arrays hold clones. When the last of a `Gpu` and its forks goes, the kernels are unloaded, which waits for the device.
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
    /// The pool's device, with a new stream and kernels of its own; [`Gpu::fork`] shares them.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(pool: &Pool) -> Result<Self, ArrayError> {
        let stream = Stream::new(pool.device())?;
        Self::with_stream(pool, &stream)
    }

    /// The pool's device, with a stream that exists.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], when the stream is another device's.
    pub fn with_stream(pool: &Pool, stream: &Stream) -> Result<Self, ArrayError> {
        check_device(pool.device(), stream.device())?;
        let library = Arc::new(Library::new(pool.device()));
        Ok(Self(Arc::new(Inner { library, pool: pool.clone(), stream: stream.clone() })))
    }

    /// Device 0 of the driver that `GPUMEM_DRIVER` names, with a pool set up by the environment. `GPUMEM_DRIVER=sim` needs
    /// the feature `sim`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] without a driver or a device, and for a variable that cannot be used; with the feature `sim`,
    /// [`ArrayError::Sim`] if the simulator does not start.
    pub fn from_env() -> Result<Self, ArrayError> {
        #[cfg(feature = "sim")]
        let driver = gpumem_sim::from_env()?;
        #[cfg(not(feature = "sim"))]
        let driver = gpumem_pool::sys::Driver::from_env().map_err(gpumem_pool::PoolError::from)?;
        Self::new(&Pool::from_env(&Device::new(&driver, 0)?)?)
    }

    /// The same pool and kernels, with a new stream.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn fork(&self) -> Result<Self, ArrayError> {
        let Inner { library, pool, .. } = &*self.0;
        let stream = Stream::new(pool.device())?;
        Ok(Self(Arc::new(Inner { library: library.clone(), pool: pool.clone(), stream })))
    }

    /// Where the memory comes from.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Where the work is queued.
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
    /// What the driver says, the failure of earlier work included.
    pub fn synchronize(&self) -> Result<(), ArrayError> {
        Ok(self.0.stream.synchronize()?)
    }

    /// Loads kernels from PTX.
    ///
    /// The driver translates the whole text during this call, which can take a tenth of a second. On the simulator each kernel
    /// needs a Rust twin, registered with `gpumem_sim::Sim::register`.
    ///
    /// # Errors
    ///
    /// What the driver says of the text.
    pub fn module(&self, ptx: &str) -> Result<Module, ArrayError> {
        Module::load(self.device(), ptx)
    }

    /// Loads all of this crate's kernels for one element type, which otherwise happens piece by piece at their first use.
    ///
    /// The vendor's driver translates them for its device the first time on a machine, about a quarter of a second, and
    /// keeps the result for later runs.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn preload<T: Numeric>(&self) -> Result<(), ArrayError> {
        self.library().preload(T::KIND)
    }

    pub(crate) fn library(&self) -> &Library {
        &self.0.library
    }

    /// Refuses what is on another device.
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

/// Whether both queue on the same stream.
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

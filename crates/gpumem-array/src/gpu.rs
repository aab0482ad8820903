//! [`Gpu`]: a pool, a stream of its device, and the kernels of this crate.
//!
//! A clone has the same stream; [`Gpu::fork`] creates another stream, and [`Gpu::here`] has one for each thread. All of them share the
//! pools and the kernels. Work queued through one `Gpu` runs in the order in which it was queued.

mod downloads;
mod pools;
pub(crate) mod recording;
pub(crate) mod stage;
pub(crate) mod staging;
pub(crate) mod transfers;

use crate::element::kind::{self, Kind, Pinned, Unified};
use crate::error::ArrayError;
use crate::kernel::library::Library;
use crate::kernel::source::KernelSource;
use crate::kernel::{KernelName, Module};
use core::cell::RefCell;
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};
use downloads::Downloads;
use gpumem_pool::sys::fork;
use gpumem_pool::sys::text::debug_fields;
use gpumem_pool::sys::types::CUdevice_attribute;
use gpumem_pool::{
    CaptureError, Device, DeviceError, MemoryKind, Pool, PoolError, SpillableBlock, Stream, not_forked,
};
use pools::{GpuPools, IdleStream};
use recording::CaptureRecording;
use stage::{Stage, Stages};
use staging::{Staging, StagingOptions};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::thread::ThreadId;
use transfers::{GpuStatus, TransferCounters, Transfers};

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
/// let doubled = a.on(&other).try_mul(2)?; // `other` waits for `a`, on the device
/// assert_eq!(doubled.to_vec()?, [2, 4, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Gpu(Arc<GpuInner>);

struct GpuInner {
    shared: Arc<Shared>,
    stream: Stream,
    /// The recording of the capture on this stream. Only the `Gpu` of a capture has one.
    recording: Option<CaptureRecording>,
    history: Arc<History>,
}

/// Observations about the work on a stream.
#[derive(Default)]
struct History {
    /// The number of the name of the user's last launched kernel; 0 for none.
    last_kernel: AtomicU32,
    downloads: Downloads,
}

/// Memory of one kind that arrays are allocated from; see [`Gpu::unified`] and [`Gpu::pinned`].
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a, K> {
    gpu: &'a Gpu,
    kind: PhantomData<K>,
}

/// A place for new arrays: a [`Gpu`] for arrays of kind [`DeviceLocal`](kind::DeviceLocal), or its [`Memory`] of another kind.
pub trait Place: sealed::KnownPlace {
    /// The kind of the arrays.
    type Kind: Kind;
    /// The `Gpu` that the arrays belong to.
    fn gpu(&self) -> &Gpu;
}

pub(crate) mod sealed {
    pub trait KnownPlace {}
    impl KnownPlace for super::Gpu {}
    impl<K> KnownPlace for super::Memory<'_, K> {}
    impl<P: KnownPlace + ?Sized> KnownPlace for &P {}
}

impl Place for Gpu {
    type Kind = kind::DeviceLocal;
    fn gpu(&self) -> &Gpu {
        self
    }
}

impl<K: Kind> Place for Memory<'_, K> {
    type Kind = K;
    fn gpu(&self) -> &Gpu {
        self.gpu
    }
}

impl<P: Place + ?Sized> Place for &P {
    type Kind = P::Kind;
    fn gpu(&self) -> &Gpu {
        (**self).gpu()
    }
}

/// A `Gpu` with a separate stream for one copy, which the host waits for: the next copy waits for no other work.
pub(crate) struct Copier<'a> {
    gpu: Gpu,
    _stream: IdleStream<'a>,
}

impl Deref for Copier<'_> {
    type Target = Gpu;
    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

/// The pools, kernels and thread streams that all forks share.
struct Shared {
    library: Arc<Library>,
    pools: GpuPools,
    streams: Mutex<ThreadStreams>,
    stages: Stages,
    staging: RwLock<Arc<Staging>>,
    driver_stages_uploads: OnceLock<bool>,
    transfers: Arc<TransferCounters>,
    /// The number of the name of a user's kernel that was recently launched on any stream; 0 for none.
    last_kernel: AtomicU32,
}

#[derive(Default)]
struct ThreadStreams {
    used: HashMap<ThreadId, ThreadStream>,
    /// Streams of threads that have ended.
    idle: Vec<ThreadStream>,
}

#[derive(Clone)]
struct ThreadStream {
    stream: Stream,
    history: Arc<History>,
}

impl Gpu {
    /// Creates a `Gpu` on a pool, with a new stream. All `Gpu`s of a device share their kernels.
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
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{Gpu, pool::Stream};
    ///
    /// let stream = Stream::new(gpu.device())?;
    /// let other = Gpu::with_stream(gpu.pool(), &stream)?;
    /// assert_eq!(other.stream().id(), stream.id());
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`] if the stream is on another device than the pool.
    pub fn with_stream(pool: &Pool, stream: &Stream) -> Result<Self, ArrayError> {
        not_forked()?;
        check_device(pool.device(), stream.device())?;
        SpillableBlock::expect_in(pool);
        let transfers = Arc::<TransferCounters>::default();
        let shared = Shared {
            library: Library::of(pool.device()),
            pools: GpuPools::new(pool),
            streams: Mutex::default(),
            stages: Stages::default(),
            staging: RwLock::new(Staging::new(StagingOptions::new(), &transfers)),
            driver_stages_uploads: OnceLock::new(),
            transfers,
            last_kernel: AtomicU32::new(0),
        };
        let (shared, stream, history) = (Arc::new(shared), stream.clone(), Arc::default());
        Ok(Self(Arc::new(GpuInner { shared, stream, recording: None, history })))
    }

    /// Opens device 0 with its default pool, if the program has set one ([`Pool::set_default`]). Otherwise opens the device on the driver
    /// that `GPUMEM_DRIVER` names, with a new pool that the environment configures and that ends with its last user.
    ///
    /// `GPUMEM_DRIVER=sim` requires the feature `sim`. With `GPUMEM_KIND` set, memory of that kind backs arrays of kind
    /// [`DeviceLocal`](kind::DeviceLocal).
    ///
    /// ```no_run
    /// use gpumem_array::{Gpu, GpuArray};
    ///
    /// let gpu = Gpu::open()?;
    /// let x = GpuArray::from_elem(&gpu, (2, 3), 1.5_f32)?;
    /// assert_eq!(x.sum()?.into_scalar()?, 9.0);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if there is no driver or no device, or if an environment variable is unknown or invalid; with the
    /// feature `sim`, `ArrayError::Sim` if the simulator does not start.
    pub fn open() -> Result<Self, ArrayError> {
        not_forked()?;
        let options = StagingOptions::from_env()?;
        let pool = match Pool::default_of(0) {
            Some(pool) => pool,
            None => Pool::from_env(&Device::new(&driver_from_env()?, 0)?)?,
        };
        let gpu = Self::new(&pool)?;
        gpu.set_staging(options);
        Ok(gpu)
    }

    /// Says that a repetition of the program's loop begins. In a pool that spills ([`PoolBuilder::spill`](crate::pool::PoolBuilder::spill)),
    /// arrays are expected to be used like after the mark before, from the first operation on. Without marks, the pool finds loops
    /// itself, some operations later. Otherwise this does nothing.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?;
    /// for _ in 0..3 {
    ///     gpu.iteration();
    ///     x += 1.0;
    /// }
    /// assert_eq!(x.to_vec()?, [4.0, 5.0]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    pub fn iteration(&self) {
        SpillableBlock::begin_iteration(self.pool());
    }

    /// Creates a `Gpu` with the pools and kernels of this one, and a new stream.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let other = gpu.fork()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// let y = x.on(&other).try_mul(2)?; // work on `gpu` and on `other` overlaps
    /// assert_eq!((x.sum()?.into_scalar()?, y.sum()?.into_scalar()?), (6, 12));
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the stream cannot be created.
    pub fn fork(&self) -> Result<Self, ArrayError> {
        Ok(self.with(Stream::new(self.device())?))
    }

    /// The `Gpu` of this thread: it shares the pools and kernels, and its stream belongs to the calling thread. Every call on one thread
    /// returns the same stream. A thread that starts later may get the stream of a thread that has ended.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// std::thread::scope(|scope| {
    ///     for factor in 1..4 {
    ///         let (gpu, x) = (&gpu, &x);
    ///         scope.spawn(move || {
    ///             let here = gpu.here().unwrap(); // threads do not wait for each other
    ///             assert_eq!(x.on(&here).try_mul(factor).unwrap().to_vec().unwrap(), [factor, 2 * factor, 3 * factor]);
    ///         });
    ///     }
    /// });
    /// assert_eq!(gpu.here()?, gpu.here()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the stream cannot be created.
    pub fn here(&self) -> Result<Self, ArrayError> {
        not_forked()?;
        let thread = std::thread::current().id();
        let known = self.0.shared.streams().used.get(&thread).cloned();
        let ThreadStream { stream, history } = match known {
            Some(stream) => stream,
            None => self.adopt_thread(thread)?,
        };
        let shared = self.0.shared.clone();
        Ok(Self(Arc::new(GpuInner { shared, stream, recording: None, history })))
    }

    fn with(&self, stream: Stream) -> Self {
        let (shared, history) = (self.0.shared.clone(), Arc::default());
        Self(Arc::new(GpuInner { shared, stream, recording: None, history }))
    }

    /// A `Gpu` with a new stream for the capture of `recording`.
    pub(crate) fn for_capture(&self, recording: CaptureRecording) -> Result<Self, ArrayError> {
        let (shared, stream) = (self.0.shared.clone(), Stream::new(self.device())?);
        let (recording, history) = (Some(recording), Arc::default());
        Ok(Self(Arc::new(GpuInner { shared, stream, recording, history })))
    }

    /// Gives this thread a stream until the thread ends.
    fn adopt_thread(&self, thread: ThreadId) -> Result<ThreadStream, ArrayError> {
        let idle = self.0.shared.streams().idle.pop();
        let stream = match idle {
            Some(stream) => stream,
            None => ThreadStream { stream: Stream::new(self.device())?, history: Arc::default() },
        };
        // A thread that is ending cannot return its stream, which stays until the last fork is dropped.
        let _ = ENDS.try_with(|ends| {
            let mut ends = ends.0.borrow_mut();
            ends.retain(|gpu| gpu.strong_count() > 0);
            ends.push(Arc::downgrade(&self.0.shared));
        });
        self.0.shared.streams().used.insert(thread, stream.clone());
        Ok(stream)
    }

    /// Unified memory of this `Gpu`, for arrays that host and devices access at one address. Pages that the host may have moved are
    /// prefetched to the device before a kernel. The first allocation creates the pool, without limits; [`Gpu::set_pool`] chooses another.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu.unified(), &[1.0_f32, 2.0, 3.0])?;
    /// x *= 2.0; // on the device
    /// assert_eq!(x[2], 6.0); // on the host, after one wait
    /// assert_eq!(x.as_slice()?.iter().sum::<f32>(), 12.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn unified(&self) -> Memory<'_, Unified> {
        self.memory()
    }

    /// Pinned host memory of this `Gpu`. The first allocation creates the pool, without limits; [`Gpu::set_pool`] chooses another.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::PinnedArray;
    ///
    /// let mut x = PinnedArray::<f32, _>::zeros(&gpu.pinned(), 3)?;
    /// x[1] = 5.0; // on the host
    /// assert_eq!((&x * 2.0).to_vec()?, [0.0, 10.0, 0.0]); // on the device
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn pinned(&self) -> Memory<'_, Pinned> {
        self.memory()
    }

    /// Memory of the kind `K`; see [`Gpu::unified`] and [`Gpu::pinned`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{Gpu, ArrayError, UnifiedArray, kind::Kind, ndarray::Ix1};
    ///
    /// fn ones<K: Kind>(gpu: &Gpu) -> Result<GpuArray<f32, Ix1, K>, ArrayError> {
    ///     GpuArray::ones(&gpu.memory::<K>(), 3)
    /// }
    /// let x: UnifiedArray<f32, Ix1> = ones(&gpu)?;
    /// assert_eq!(x[0], 1.0);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn memory<K: Kind>(&self) -> Memory<'_, K> {
        Memory { gpu: self, kind: PhantomData }
    }

    /// Sets the pool of unified or of pinned memory, according to the kind of `pool`, for this `Gpu` and all of its forks.
    ///
    /// ```
    /// use gpumem_array::{Gpu, PinnedArray, pool::{Device, Limit, MemoryKind, Pool}};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let gpu = Gpu::new(&Pool::new(&device)?)?;
    /// let pinned = Pool::builder(&device).kind(MemoryKind::Host).hard_limit(Limit::Bytes(64 << 20)).build()?;
    /// gpu.set_pool(&pinned)?;
    /// assert!(PinnedArray::<u8, _>::zeros(&gpu.pinned(), 65 << 20).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`] if the pool is on another device, [`ArrayError::PoolInUse`] if there is a pool for this kind
    /// already: set it before the first allocation. The pool of kind `device` is set by [`Gpu::new`].
    pub fn set_pool(&self, pool: &Pool) -> Result<(), ArrayError> {
        not_forked()?;
        self.check(pool.device())?;
        let in_use = || ArrayError::PoolInUse { kind: pool.kind().to_string() };
        let slot = self.0.shared.pools.slot(pool.kind()).ok_or_else(in_use)?;
        slot.set(pool.clone()).map_err(|_| in_use())
    }

    /// Sets how large copies from and to pageable memory are staged, for this `Gpu` and all of its forks. Copies that have begun
    /// keep the former buffers and threads.
    pub fn set_staging(&self, options: StagingOptions) {
        if fork::is_child() {
            return;
        }
        let former = {
            let mut staging = self.0.shared.staging.write().unwrap_or_else(PoisonError::into_inner);
            core::mem::replace(&mut *staging, Staging::new(options, &self.0.shared.transfers))
        };
        // Outside the lock: dropping the former staging waits for its threads.
        drop(former);
    }

    /// True if the driver has read pageable memory when the call that queues its upload returns. The driver documents this for all devices,
    /// but a device that accesses pageable memory directly might read it later.
    pub(crate) fn driver_stages_uploads(&self) -> bool {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
        let shared = &self.0.shared;
        *shared
            .driver_stages_uploads
            .get_or_init(|| self.device().attribute(attribute).is_ok_and(|has| has == 0))
    }

    /// Returns the figures of copies from and to pageable memory, by this `Gpu` and all of its forks.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &vec![1.0_f32; 1 << 20])?;
    /// assert_eq!(gpu.transfers().uploaded_bytes, 4 << 20);
    /// println!("{}", gpu.transfers());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn transfers(&self) -> Transfers {
        self.0.shared.transfers.read()
    }

    /// Returns the status of the pools, and the figures of copies from and to pageable memory.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &vec![1.0_f32; 1 << 20])?;
    /// let status = gpu.status()?;
    /// assert_eq!((status.pool.in_use_bytes, status.transfers.uploaded_bytes), (4 << 20, 4 << 20));
    /// assert!(status.pinned.is_some_and(|pinned| pinned.in_use_bytes > 0)); // buffers of the upload
    /// println!("{}", gpu.status()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if a driver call fails.
    pub fn status(&self) -> Result<GpuStatus, ArrayError> {
        let pinned = self.0.shared.pools.slot(MemoryKind::Host).and_then(OnceLock::get);
        Ok(GpuStatus {
            pool: self.pool().status()?,
            pinned: pinned.map(Pool::status).transpose()?,
            transfers: self.transfers(),
        })
    }

    pub(crate) fn transfer_counters(&self) -> &TransferCounters {
        &self.0.shared.transfers
    }

    /// The buffers and threads of copies from and to pageable memory.
    pub(crate) fn staging(&self) -> Arc<Staging> {
        if fork::is_child() {
            // The lock may be held forever. The copy fails at the driver.
            return Staging::new(StagingOptions::new(), &self.0.shared.transfers);
        }
        self.0.shared.staging.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The pool that arrays of kind [`DeviceLocal`](kind::DeviceLocal) are allocated from.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, 1 << 20)?;
    /// assert_eq!(gpu.pool().status()?.in_use_bytes, 4 << 20);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.0.shared.pools.first()
    }

    /// The stream that work is queued on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.0.stream
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.0.shared.pools.device()
    }

    /// Waits on the host until everything queued on this stream so far is done.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::<f32, _>::zeros(&gpu, 1000)?;
    /// x.fill(1.0)?; // queued
    /// gpu.synchronize()?; // done
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Pool`] or [`ArrayError::LostAfterKernel`] if the wait or earlier work failed.
    /// - [`ArrayError::Pool`] if the stream is retired, captures, or belongs to another thread.
    /// - [`ArrayError::Graph`] in the closure of a capture.
    pub fn synchronize(&self) -> Result<(), ArrayError> {
        self.check_thread("synchronize")?;
        self.0.stream.synchronize().map_err(|error| self.with_kernel_name(error.into()))
    }

    /// Loads kernels from their text, on a GPU or on the simulator; [`kernels!`](crate::kernels) declares one.
    ///
    /// The driver compiles PTX during this call, which can take a tenth of a second.
    ///
    /// CUDA text requires the feature `nvrtc` and the vendor's library of that name, which needs no GPU. It is compiled once per process,
    /// architecture and set of options, which takes a tenth of a second or more. Each call loads a new module, so keep the result.
    ///
    /// On the simulator, a launch is compared with what its kernel accesses: the kernel fails at the first access outside of the arrays
    /// that were passed, and at a write to an array that was passed to be read ([`Launch`](crate::Launch)).
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Compile`] if the compiler refuses the text or an option, or the driver refuses the text; the log has the line.
    /// - [`ArrayError::NoCompiler`] for CUDA text without the feature or the library.
    /// - [`ArrayError::ZeroByte`] if the text contains a zero byte, [`ArrayError::Pool`] if the driver refuses the text and logs no reason.
    pub fn compile(&self, source: &KernelSource<'_>) -> Result<Module, ArrayError> {
        Module::compile(self.device(), source)
    }

    pub(crate) fn library(&self) -> &Library {
        &self.0.shared.library
    }

    #[inline]
    pub(crate) fn pools(&self) -> &GpuPools {
        &self.0.shared.pools
    }

    /// A `Gpu` with the pools and kernels of this one, and an idle stream. After the copy the host waits, and drops it.
    pub(crate) fn copier(&self) -> Result<Copier<'_>, ArrayError> {
        let stream = self.pools().idle_stream()?;
        Ok(Copier { gpu: self.with(stream.clone()), _stream: stream })
    }

    /// Calls `copy` with a stage and a `Gpu` on its stream. The stage may be returned with work.
    pub(crate) fn with_stage<R>(
        &self,
        copy: impl FnOnce(&Self, &mut Stage) -> Result<R, ArrayError>,
    ) -> Result<R, ArrayError> {
        let mut stage = self.0.shared.stages.take(self.pools())?;
        let copied = copy(&self.with(stage.stream.clone()), &mut stage);
        self.0.shared.stages.give_back(stage);
        copied
    }

    /// The writes that a later download is likely to wait for.
    #[inline]
    pub(crate) fn downloads(&self) -> &Downloads {
        &self.0.history.downloads
    }

    /// The recording of the present or past capture on this stream.
    #[inline]
    pub(crate) fn recording(&self) -> Option<&CaptureRecording> {
        self.0.recording.as_ref()
    }

    /// The number of the capture on this stream, or 0.
    #[inline]
    pub(crate) fn capture_id(&self) -> u64 {
        self.0.recording.as_ref().map_or(0, CaptureRecording::id)
    }

    /// True if this library created the stream and nothing captures, no thread and no stream of the machine. Then the checks of the stream
    /// and of the thread succeed.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let stream = self.stream();
        self.0.recording.is_none()
            && !recording::is_any_open()
            && !stream.is_foreign()
            && !stream.is_any_capture_active()
    }

    /// Returns an error if this thread captures on another `Gpu`.
    #[inline]
    pub(crate) fn check_thread(&self, operation: &'static str) -> Result<(), ArrayError> {
        if recording::is_any_open() {
            recording::check_thread(self.capture_id(), operation)?;
        }
        Ok(())
    }

    /// Returns an error if work on the stream would become part of a capture.
    #[inline]
    pub(crate) fn check_runs(&self, operation: &'static str) -> Result<(), ArrayError> {
        self.check_thread(operation)?;
        if self.stream().is_capturing()? {
            Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { operation })).into())
        } else {
            Ok(())
        }
    }

    /// Notes that a kernel of the program is launched.
    #[inline]
    pub(crate) fn note_kernel(&self, name: &KernelName) {
        let last_kernel = &self.0.history.last_kernel;
        if last_kernel.load(Ordering::Relaxed) != name.number() {
            last_kernel.store(name.number(), Ordering::Relaxed);
            self.0.shared.last_kernel.store(name.number(), Ordering::Relaxed);
        }
    }

    /// Adds the name of the last kernel to an error that it may have caused: on this stream, otherwise on any stream.
    #[cold]
    pub(crate) fn with_kernel_name(&self, error: ArrayError) -> ArrayError {
        let numbers = [&self.0.history.last_kernel, &self.0.shared.last_kernel];
        let last = || numbers.iter().find_map(|number| KernelName::of_number(number.load(Ordering::Relaxed)));
        match error {
            ArrayError::Pool(error @ PoolError::Device(DeviceError::DeviceLost(_))) => match last() {
                Some(kernel) => ArrayError::LostAfterKernel { kernel: kernel.to_string(), error },
                None => error.into(),
            },
            other => other,
        }
    }

    /// True if the other is a clone of this `Gpu`: it has the same pools and the same stream.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns an error unless `found` is the device of this `Gpu`.
    #[inline]
    pub(crate) fn check(&self, found: &Device) -> Result<(), ArrayError> {
        check_device(self.device(), found)
    }
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, ThreadStreams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local!(static ENDS: ThreadEnd = const { ThreadEnd(RefCell::new(Vec::new())) });

/// Returns the streams of a thread when the thread ends. It keeps nothing alive.
struct ThreadEnd(RefCell<Vec<Weak<Shared>>>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let thread = std::thread::current().id();
        for shared in self.0.get_mut().drain(..).filter_map(|shared| shared.upgrade()) {
            let mut streams = shared.streams();
            if let Some(stream) = streams.used.remove(&thread) {
                streams.idle.push(stream);
            }
        }
    }
}

#[inline]
pub(crate) fn check_device(expected: &Device, found: &Device) -> Result<(), ArrayError> {
    if expected == found { Ok(()) } else { Err(wrong_device(expected, found)) }
}

#[cold]
fn wrong_device(expected: &Device, found: &Device) -> ArrayError {
    let [expected, found] = expected.names_apart(found);
    ArrayError::WrongDevice { expected, found }
}

/// Two `Gpu`s are equal if they have the same stream.
impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        self.stream().id() == other.stream().id()
    }
}

impl Eq for Gpu {}

debug_fields!(Gpu, it, device: it.device(), stream: it.stream());

/// A `Gpu` on a new simulator, for the examples in this crate's documentation.
#[cfg(feature = "sim")]
#[doc(hidden)]
pub fn example_gpu() -> Result<Gpu, ArrayError> {
    let driver = gpumem_sim::driver(gpumem_sim::SimConfig::new())?;
    Gpu::new(&Pool::new(&Device::new(&driver, 0)?)?)
}

fn driver_from_env() -> Result<gpumem_pool::sys::Driver, ArrayError> {
    #[cfg(feature = "sim")]
    return Ok(gpumem_sim::from_env()?);
    #[cfg(not(feature = "sim"))]
    return Ok(gpumem_pool::sys::Driver::from_env().map_err(PoolError::from)?);
}

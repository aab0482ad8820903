//! [`Stream`]: a queue of work on a device. Memory is allocated, used and freed in its order.
//!
//! Most streams are owned: created here, destroyed with the last clone. Blocks do not hold them: a stream may be
//! dropped while blocks on it are alive, and destroying a stream does not lose its queued work. A stream of another
//! library (`foreign`) is never destroyed here. The driver is called with its handle only in calls that name the
//! stream, unless its owner guarantees that it lives as long as the device.

mod borrow;
mod builder;
mod foreign;
mod point;
mod recent;

pub use builder::StreamBuilder;
pub use point::StreamPoint;
pub use recent::RecentStreams;

use crate::device::any_stream::{AnyStream, typed};
use crate::device::calls::Calls;
use crate::device::primary::PrimaryContext;
use crate::device::thread::ThreadNumber;
use crate::device::{Clocks, Device, Handle, Object, OrderEvent, StreamId, StreamIndex};
use crate::error::{DeviceError, StreamError};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_base::sync::Lock;
use gpumem_sys::text::debug_fields;
use gpumem_sys::types::{CUresult, CUstream, CUstream_st};
use gpumem_sys::{DriverError, fork};
use std::sync::{Arc, OnceLock};

/// A queue of work on a device. Clones share it.
///
/// ```
/// use gpumem_device::{Device, Event, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (compute, copy) = (Stream::new(&device)?, Stream::new(&device)?);
/// let uploaded = Event::new(&device)?;
/// uploaded.record(&copy)?;
/// compute.wait(&uploaded)?; // on the device: the host continues
/// compute.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Stream(Arc<StreamInner>);

struct StreamInner {
    device: Device,
    raw: Handle<CUstream_st>,
    id: StreamId,
    /// The driver's unique id of the stream, never reused; `None` for drivers before CUDA 12.0.
    driver_id: Option<u64>,
    kind: HandleKind,
    is_retired: AtomicBool,
    /// The driver refused to end a capture of the stream. It refuses to destroy such a stream, too.
    captures_for_good: AtomicBool,
    retirement: Lock<()>,
    /// The id while the fast path may compare it, otherwise 0.
    fast_path_id: AtomicU64,
    calls: Calls,
    /// The counted bytes that calls naming the stream allocated and freed since one of them last marked it.
    unmarked_bytes: AtomicU64,
    /// The unmarked bytes at which the next marker is due, as of the last query of the pool.
    due_bytes: AtomicU64,
    /// The address that the latest known work writes ([`Stream::note_write`]).
    last_written: AtomicU64,
    /// Keeps a stream of another library alive ([`Stream::from_raw_with_owner`]).
    owner: OnceLock<Owner>,
}

/// A value that keeps a stream of another library alive.
type Owner = Box<dyn Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandleKind {
    /// Created here, and destroyed with its last clone.
    Owned,
    /// A stream of another library, or the context's legacy stream. The clocks store its lifetime.
    Foreign,
    /// A thread's default stream: its handle means a different stream on every other thread.
    OfThread(ThreadNumber),
}

impl Stream {
    /// The device of the stream.
    #[inline]
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The driver's handle. The handle of an owned stream is alive as long as a clone of the stream.
    #[must_use]
    pub fn raw(&self) -> CUstream {
        self.0.raw.0
    }

    /// The identifier, unique in the process.
    #[inline]
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.0.id
    }

    /// Waits on the host until everything queued on this stream so far is done.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Stream`] if the stream was retired, or is another thread's default stream.
    /// - [`DeviceError::Capture`] if the stream is capturing.
    /// - [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if a call or earlier work failed.
    /// - [`DeviceError::AwaitedDeviceLost`] if a device is lost that another device has waited for.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.device().check_open()?;
        self.check_usable()?;
        self.check_runs("waiting on the host")?;
        let _bound = self.device().enter()?;
        self.device().maintenance().before_wait();
        self.finish()?;
        self.device().after_wait();
        self.device().watch().note(OrderEvent::StreamDone(self.id()));
        self.device().check_awaited()
    }

    /// True if everything queued on this stream so far is done.
    ///
    /// Never waits, but once a millisecond it may take up to the pools' `release_budget_us` to release
    /// memory above a soft limit.
    ///
    /// # Errors
    ///
    /// All errors of [`Stream::synchronize`], such as [`DeviceError::DeviceLost`] if earlier work failed.
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        self.device().check_open()?;
        self.check_usable()?;
        self.check_runs("querying a stream")?;
        let _entered = self.device().enter_relaxed()?;
        let observation = self.clocks().observe(self.id())?;
        // SAFETY: the stream is alive, and its context current.
        let is_complete =
            complete(self.device().noting(unsafe { self.device().driver().cuStreamQuery(self.raw()) }))?;
        if is_complete {
            self.clocks().saw(observation);
            self.device().watch().note(OrderEvent::StreamDone(self.id()));
        }
        self.device().serve();
        if is_complete {
            self.device().check_awaited()?;
        }
        Ok(is_complete)
    }

    #[doc(hidden)]
    pub fn finish(&self) -> Result<(), DriverError> {
        let _entered = self.device().enter_relaxed()?;
        let observation = self.clocks().observe(self.id())?;
        // SAFETY: the stream is alive, and its context current.
        self.device().noting(unsafe { self.device().driver().cuStreamSynchronize(self.raw()) })?;
        self.clocks().saw(observation);
        Ok(())
    }

    /// Like [`Stream::finish`], but without later work of other threads if a marker can be used.
    fn finish_so_far(&self) -> Result<(), DriverError> {
        let is_done = {
            let _entered = self.device().enter_relaxed()?;
            self.clocks().synchronize_so_far(self.stream_index())
        };
        if matches!(is_done, Ok(true)) { Ok(()) } else { self.finish() }
    }

    /// Checks that calls of this thread may name the stream. `Block::record_use` and
    /// `Block::free_on`, which return no error, do not order work of a stream that fails the check.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Stream`] if the stream was retired, or is another thread's default stream.
    #[inline]
    pub fn check_usable(&self) -> Result<(), DeviceError> {
        if self.0.kind == HandleKind::Owned { Ok(()) } else { self.0.check_usable_slow() }
    }

    /// True if this crate created it, so that any thread may use it while it exists.
    #[doc(hidden)]
    #[inline]
    pub fn is_owned(&self) -> bool {
        self.0.kind == HandleKind::Owned
    }

    /// The number of its id while threads may use the fast path for it, otherwise 0. For a thread's default stream, no other thread has a
    /// cache that the fast path could find.
    #[doc(hidden)]
    #[inline]
    pub fn fast_path_id(&self) -> u64 {
        self.0.fast_path_id.load(Ordering::Relaxed)
    }

    /// Part of every call that names the stream and takes more than a lookup in a cache: records a marker that other
    /// streams have requested and that only such calls can record.
    #[doc(hidden)]
    #[inline]
    pub fn note_named(&self) {
        if self.fast_path_id() == 0 {
            self.mark_if_wanted();
        }
    }

    #[cold]
    fn mark_if_wanted(&self) {
        if fork::is_child() {
            return;
        }
        if self.check_usable().is_err() || !self.clocks().mark_if_wanted(self.stream_index()) {
            return;
        }
        self.0.fast_path_id.store(self.id().as_u64(), Ordering::SeqCst);
        // Another thread may have retired it since: at least one of the two threads sees the other's store.
        if self.0.is_retired.load(Ordering::SeqCst) {
            self.0.fast_path_id.store(0, Ordering::SeqCst);
        }
    }

    /// Counts bytes that a call naming the stream has allocated or freed there. Returns true if a marker is due
    /// without a request: other calls cannot record one, and without a marker freed memory would stay with this stream. Up to
    /// `share_bytes` may stay.
    #[doc(hidden)]
    #[inline]
    pub fn is_mark_due(&self, size_bytes: u64, share_bytes: impl FnOnce() -> u64) -> bool {
        self.0.kind != HandleKind::Owned && self.is_turnover_due(size_bytes, share_bytes)
    }

    fn is_turnover_due(&self, size_bytes: u64, share_bytes: impl FnOnce() -> u64) -> bool {
        let unmarked_bytes = &self.0.unmarked_bytes;
        let sum_bytes = unmarked_bytes.fetch_add(size_bytes, Ordering::Relaxed).saturating_add(size_bytes);
        // Even while it is the only stream: another stream may inherit its memory later.
        if sum_bytes < self.0.due_bytes.load(Ordering::Relaxed) {
            return false;
        }
        // Queried once for each marker, or twice if the pool has grown, because the query takes the pool's lock.
        let due_bytes = share_bytes().max(UNMARKED_MIN_BYTES);
        self.0.due_bytes.store(due_bytes, Ordering::Relaxed);
        if sum_bytes < due_bytes {
            return false;
        }
        unmarked_bytes.store(0, Ordering::Relaxed);
        self.clocks().is_named_only(self.stream_index())
    }

    /// Records a marker in a call that names the stream. The next driver call reports a failure.
    #[doc(hidden)]
    #[cold]
    pub fn mark_named(&self) {
        if fork::is_child() {
            return;
        }
        if self.check_usable().is_ok() {
            let _ = self.clocks().record_marker_by_user(self.stream_index());
        }
    }

    /// The part that the rooms below hold.
    #[doc(hidden)]
    #[inline]
    pub fn shared(&self) -> Arc<dyn AnyStream> {
        Arc::<StreamInner>::clone(&self.0)
    }

    #[doc(hidden)]
    #[inline]
    pub fn of_shared(shared: Arc<dyn AnyStream>) -> Option<Self> {
        typed(shared).map(Self)
    }

    #[doc(hidden)]
    #[inline]
    pub fn stream_index(&self) -> StreamIndex {
        self.id().stream_index()
    }

    #[doc(hidden)]
    #[inline]
    pub fn clocks(&self) -> &Clocks {
        self.device().clocks()
    }
}

impl StreamInner {
    #[cold]
    fn check_usable_slow(&self) -> Result<(), DeviceError> {
        match self.kind {
            HandleKind::Owned => Ok(()),
            _ if self.is_retired.load(Ordering::SeqCst) => Err(DeviceError::Stream(StreamError::Retired)),
            HandleKind::OfThread(thread) if thread != ThreadNumber::current() => {
                Err(DeviceError::Stream(StreamError::WrongThread))
            }
            _ => Ok(()),
        }
    }

    fn new(device: &Device, raw: CUstream, id: StreamId, driver_id: Option<u64>, kind: HandleKind) -> Self {
        Self {
            device: device.clone(),
            raw: Handle(raw),
            id,
            driver_id,
            kind,
            is_retired: AtomicBool::new(false),
            captures_for_good: AtomicBool::new(false),
            retirement: Lock::new(()),
            fast_path_id: AtomicU64::new(id.as_u64()),
            calls: Calls::default(),
            unmarked_bytes: AtomicU64::new(0),
            due_bytes: AtomicU64::new(UNMARKED_MIN_BYTES),
            last_written: AtomicU64::new(0),
            owner: OnceLock::new(),
        }
    }
}

impl AnyStream for StreamInner {
    fn id(&self) -> StreamId {
        self.id
    }

    fn raw(&self) -> CUstream {
        self.raw.0
    }

    fn context(&self) -> &PrimaryContext {
        self.device.primary()
    }

    fn calls(&self) -> &Calls {
        &self.calls
    }

    fn is_usable(&self) -> bool {
        self.check_usable_slow().is_ok()
    }

    fn look_when_named(&self) {
        self.fast_path_id.store(0, Ordering::SeqCst);
    }

    fn leave_to_context(&self) {
        self.captures_for_good.store(true, Ordering::Relaxed);
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if fork::is_child() {
            // The owner's drop would call the driver.
            core::mem::forget(self.owner.take());
            return;
        }
        if let Some(owner) = self.owner.take() {
            return self.end_owned_elsewhere(owner);
        }
        match self.kind {
            HandleKind::Owned => {
                self.device.clocks().retire(self.id, self.driver_id);
                if !*self.captures_for_good.get_mut() {
                    self.device.destroy(Object::Stream(self.raw.0));
                }
            }
            _ if *self.is_retired.get_mut() => {}
            // Another library's stream must not be marked here: its queued work counts as done once the device has been waited for. A
            // thread's default stream lives as long as the thread.
            kind => {
                let is_alive = kind == HandleKind::OfThread(ThreadNumber::current());
                self.device.clocks().abandon(self.id, self.driver_id, is_alive);
            }
        }
    }
}

/// True if both are clones of one stream.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Stream {}

debug_fields!(Stream, it, id: it.id().as_u64(), device: it.device().ordinal());

/// A stream that only calls naming it may mark is marked at most once per this many bytes, unless other streams request
/// its memory: a marker takes the driver about a microsecond.
const UNMARKED_MIN_BYTES: u64 = 32 << 20;

/// Turns the result of a query into a bool: `CUDA_ERROR_NOT_READY` is `false`, any other failure is an error.
pub(crate) fn complete(answer: Result<(), DriverError>) -> Result<bool, DeviceError> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(error) => Err(error.into()),
    }
}

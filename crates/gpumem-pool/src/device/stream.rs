//! [`Stream`]: a queue of the device's, in whose order memory is allocated, used and freed.
//!
//! Most streams are this crate's own: made here, destroyed with the last clone. Blocks don't hold them: dropping "the"
//! stream while blocks live on it is safe, and destroying one with work queued does not lose the work. A stream of
//! somebody else's (`foreign`) is never destroyed here. It is touched only in calls that name it, unless its owner has
//! promised that it lives as long as the device.

mod borrow;
mod builder;
mod foreign;

pub use builder::StreamBuilder;
pub(crate) use foreign::{LEGACY, WeakStream};

use crate::device::{CaptureModeGuard, Clocks, Device, Event, Handle, OrderEvent, StreamId, StreamIndex};
use crate::error::PoolError;
use borrow::Borrows;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUresult, CUstream, CUstream_st};
use std::sync::Arc;
use std::thread::ThreadId;

/// A queue of work on a device. Clones share it.
///
/// ```
/// use gpumem_pool::{Device, Event, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (compute, copy) = (Stream::new(&device)?, Stream::new(&device)?);
/// let uploaded = Event::new(&device)?;
/// uploaded.record(&copy)?;
/// compute.wait(&uploaded)?; // on the device: the host goes on
/// compute.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    device: Device,
    raw: Handle<CUstream_st>,
    id: StreamId,
    /// The driver's own name for it, which is never used again either; `None` for drivers before CUDA 12.0.
    driver_id: Option<u64>,
    kind: Kind,
    is_retired: AtomicBool,
    /// The id, as long as a look at it is all that an allocation needs; else 0.
    fast_path_id: AtomicU64,
    /// Calls on other threads that its retirement waits for.
    borrows: Borrows,
    /// What calls that named the stream allocated and freed since the last of them marked it, as far as they were counted.
    unmarked_bytes: AtomicU64,
    /// At how many of them the next mark is due, as far as is known: a look at the pool tells more.
    due_bytes: AtomicU64,
}

/// Whose a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Made here, and destroyed with its last clone.
    Owned,
    /// Somebody else's, or the context's legacy stream. The clocks know how long it lives.
    Foreign,
    /// Its handle means another stream on every other thread.
    OfThread(ThreadId),
}

impl Stream {
    /// A new stream, independent of the legacy default stream.
    ///
    /// # Errors
    ///
    /// [`PoolError::TooManyStreams`], or what the driver says.
    pub fn new(device: &Device) -> Result<Self, PoolError> {
        Self::builder(device).build()
    }

    /// Starts from what [`Stream::new`] makes.
    pub fn builder(device: &Device) -> StreamBuilder {
        StreamBuilder::new(device)
    }

    /// The device whose work it queues.
    #[inline]
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The driver's handle. Of a stream that was made here it is alive for as long as a clone of this is.
    #[must_use]
    pub fn raw(&self) -> CUstream {
        self.0.raw.0
    }

    /// Its name, unique in the process.
    #[inline]
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.0.id
    }

    /// Waits on the host until everything queued on this stream so far is done.
    ///
    /// # Errors
    ///
    /// What the driver says, the failure of earlier work included; [`PoolError::StreamRetired`],
    /// [`PoolError::WrongThread`].
    pub fn synchronize(&self) -> Result<(), PoolError> {
        self.check_usable()?;
        self.check_runs("waiting on the host")?;
        let _bound = self.device().enter()?;
        self.device().maintenance().before_wait();
        self.finish()?;
        self.device().after_wait();
        self.device().watch().note(OrderEvent::StreamDone(self.id()));
        Ok(())
    }

    /// Whether everything queued on this stream so far is done. Never waits, but once a millisecond it may take as long as
    /// the pools' [`release_budget`](crate::Tuning::release_budget) to give back what is over a soft limit.
    ///
    /// # Errors
    ///
    /// As [`Stream::synchronize`].
    pub fn is_complete(&self) -> Result<bool, PoolError> {
        self.check_usable()?;
        self.check_runs("asking whether it is done")?;
        let _bound = self.device().enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device().driver())?;
        let observation = self.clocks().observe(self.id())?;
        // SAFETY: the stream is alive, and its context current.
        let is_complete =
            complete(self.device().noting(unsafe { self.device().driver().cuStreamQuery(self.raw()) }))?;
        if is_complete {
            self.clocks().saw(observation);
            self.device().watch().note(OrderEvent::StreamDone(self.id()));
        }
        self.device().serve();
        Ok(is_complete)
    }

    /// Makes work queued on this stream from now on wait, on the device, for what the event marks. The host goes on.
    ///
    /// The event may be another device's. One that was never recorded is waited for by nobody.
    ///
    /// # Errors
    ///
    /// [`PoolError::WrongDevice`] when the event belongs to another driver, else as [`Stream::synchronize`].
    pub fn wait(&self, event: &Event) -> Result<(), PoolError> {
        let _call = self.call()?;
        check_driver(self.device(), event.device())?;
        let joins = self.may_join()? && event.mark().is_none();
        let _alone = self.close_to_join(joins)?;
        if self.defers_wait(event)? {
            return Ok(());
        }
        event.make_wait(self)?;
        self.note_joined();
        self.device().watch().note(OrderEvent::WaitForMark { stream: self.id(), event: event.raw() });
        Ok(())
    }

    /// Makes work queued on this stream from now on wait, on the device, for everything queued on the other so far.
    ///
    /// # Errors
    ///
    /// As [`Stream::wait`].
    pub fn wait_for(&self, other: &Stream) -> Result<(), PoolError> {
        let _calls = (self.call()?, other.call()?);
        check_driver(self.device(), other.device())?;
        let joins = self != other && self.may_join()? && other.is_capturing()?;
        let _alone = self.close_to_join(joins)?;
        if self.defers_wait_for(other)? {
            return Ok(());
        }
        self.queue_wait_for(other)?;
        self.note_joined();
        self.device().watch().note(OrderEvent::Wait { stream: self.id(), source: other.id() });
        Ok(())
    }

    pub(crate) fn finish(&self) -> Result<(), DriverError> {
        let _bound = self.device().enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device().driver())?;
        let observation = self.clocks().observe(self.id())?;
        // SAFETY: the stream is alive, and its context current.
        self.device().noting(unsafe { self.device().driver().cuStreamSynchronize(self.raw()) })?;
        self.clocks().saw(observation);
        Ok(())
    }

    pub(crate) fn queue_wait_for(&self, other: &Stream) -> Result<(), PoolError> {
        let is_queued = self.id() == other.id()
            || self.clocks().queue_wait_for(self.stream_index(), other.stream_index())?;
        // Another thread may have retired it since that was looked at.
        if is_queued { Ok(()) } else { Err(PoolError::StreamRetired) }
    }

    /// Whether this call may touch it: it has not been retired, and its handle means this stream on this thread.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), PoolError> {
        match self.0.kind {
            Kind::Owned => Ok(()),
            _ if self.0.is_retired.load(Ordering::Acquire) => Err(PoolError::StreamRetired),
            Kind::OfThread(thread) if thread != std::thread::current().id() => Err(PoolError::WrongThread),
            _ => Ok(()),
        }
    }

    /// Whether it was made here, and so may be named by any thread for as long as it is there.
    #[inline]
    pub(crate) fn is_owned(&self) -> bool {
        self.0.kind == Kind::Owned
    }

    /// Its id's number, if any thread may name it now; else 0, which then says nothing.
    #[inline]
    pub(crate) fn fast_path_id(&self) -> u64 {
        self.0.fast_path_id.load(Ordering::Relaxed)
    }

    /// Part of every call that names the stream and takes more than a look at what is cached: makes the mark that others
    /// have wanted, where only such calls can.
    #[inline]
    pub(crate) fn note_named(&self) {
        if self.fast_path_id() == 0 {
            self.mark_if_wanted();
        }
    }

    #[cold]
    fn mark_if_wanted(&self) {
        if self.check_usable().is_err() || !self.clocks().mark_if_wanted(self.stream_index()) {
            return;
        }
        if !matches!(self.0.kind, Kind::OfThread(_)) {
            self.0.fast_path_id.store(self.id().as_u64(), Ordering::SeqCst);
            // Another thread may have retired it meanwhile: one of the two sees what the other did.
            if self.0.is_retired.load(Ordering::SeqCst) {
                self.0.fast_path_id.store(0, Ordering::SeqCst);
            }
        }
    }

    /// The next call that names the stream is to look whether a mark is wanted.
    pub(crate) fn look_when_named(&self) {
        self.0.fast_path_id.store(0, Ordering::SeqCst);
    }

    /// Counts what a call that names the stream has allocated or freed there. Says whether it is time for a mark that nobody
    /// has asked for: others can make none, and what was freed would stay this stream's. `share_bytes` is what may stay so.
    #[inline]
    pub(crate) fn is_mark_due(&self, size_bytes: u64, share_bytes: impl FnOnce() -> u64) -> bool {
        self.0.kind != Kind::Owned && self.is_turnover_due(size_bytes, share_bytes)
    }

    fn is_turnover_due(&self, size_bytes: u64, share_bytes: impl FnOnce() -> u64) -> bool {
        let unmarked_bytes = &self.0.unmarked_bytes;
        let sum_bytes = unmarked_bytes.fetch_add(size_bytes, Ordering::Relaxed).saturating_add(size_bytes);
        // Also while it is the only stream: the next one may be this one's heir.
        if sum_bytes < self.0.due_bytes.load(Ordering::Relaxed) {
            return false;
        }
        // Looked at once for each mark, or twice where the pool has grown: the look takes its lock.
        let due_bytes = share_bytes().max(UNMARKED_MIN_BYTES);
        self.0.due_bytes.store(due_bytes, Ordering::Relaxed);
        if sum_bytes < due_bytes {
            return false;
        }
        unmarked_bytes.store(0, Ordering::Relaxed);
        self.clocks().is_named_only(self.stream_index())
    }

    /// Marks the stream in a call that names it. What fails shows at the next call that the driver answers.
    #[cold]
    pub(crate) fn mark_named(&self) {
        if self.check_usable().is_ok() {
            let _ = self.clocks().record_marker_by_user(self.stream_index());
        }
    }

    pub(crate) fn stream_index(&self) -> StreamIndex {
        self.id().stream_index()
    }

    pub(crate) fn clocks(&self) -> &Clocks {
        self.device().clocks()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.kind {
            Kind::Owned => {
                self.device.clocks().retire(self.id, self.driver_id);
                builder::destroy(&self.device, self.raw.0);
            }
            _ if *self.is_retired.get_mut() => {}
            // Another's may not be marked any more: what is queued there counts as done once the device has been waited
            // for. A thread's own is alive as long as the thread.
            kind => {
                let is_alive = kind == Kind::OfThread(std::thread::current().id());
                self.device.clocks().abandon(self.id, self.driver_id, is_alive);
            }
        }
    }
}

/// Whether both are clones of one stream.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.id().as_u64())
            .field("device", &self.device().ordinal())
            .finish_non_exhaustive()
    }
}

/// A stream that is marked only in calls that name it is marked no more often than this, unless others want its memory:
/// a mark takes the driver about a microsecond.
const UNMARKED_MIN_BYTES: u64 = 32 << 20;

/// A query's answer: "not ready" is an answer, anything else that failed is an error.
pub(crate) fn complete(answer: Result<(), DriverError>) -> Result<bool, PoolError> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A handle of the simulator's must never reach the vendor's driver, which would follow it.
fn check_driver(device: &Device, other: &Device) -> Result<(), PoolError> {
    if device.driver().is_same_machine(other.driver()) { Ok(()) } else { Err(device.mismatch(other)) }
}

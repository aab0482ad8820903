//! [`StreamState`]: the driver's side of a stream index, and the markers that the clocks have recorded in the stream.
//!
//! A state's lock separates three operations that may come from different threads: recording a marker, waiting for one,
//! and the end of the stream or the beginning of a capture. While the lock is held, the stream stays alive or stays
//! gone.

use super::marker::{Marker, MarkerEvent};
use crate::device::any_stream::AnyStream;
use crate::device::context::Handle;
use crate::device::primary::{HeldContext, PrimaryContext, WeakContext};
use crate::device::thread::ThreadNumber;
use core::sync::atomic::AtomicU32;
use gpumem_base::order::{Epochs, Order, Stamp, StreamIndex};
use gpumem_base::sync::Lock;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUevent, CUstream, CUstream_st, CUstreamCaptureStatus};
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::time::Instant;

/// The properties of a new stream that the clocks need.
pub(crate) struct StreamParts {
    pub(crate) raw: CUstream,
    pub(crate) life: Life,
    /// The pool inserts no waits into it, and no waits for it into other streams.
    pub(crate) no_waits: bool,
    /// True if the legacy stream's work follows its work.
    pub(crate) is_blocking: bool,
    /// The thread whose default stream it is.
    pub(crate) thread: Option<ThreadNumber>,
}

/// The time during which the driver may be called with a stream's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Until its last clone is dropped: this crate owns it.
    Owned,
    /// Until it is retired, or the last device of its context is dropped: its owner guarantees that, and no clone is
    /// needed.
    Long,
    /// In calls that name it: its owner may destroy it at any other time.
    Named,
}

pub(super) struct StreamStates(Box<[OnceLock<Box<StreamSlot>>]>);

struct StreamSlot {
    state: Lock<StreamState>,
    /// The number of further markers that are worth recording before another stream waits for them: see [`Clocks::has_waiters`].
    ///
    /// [`Clocks::has_waiters`]: super::Clocks::has_waiters
    awaited_count: AtomicU32,
}

pub(super) struct StreamState {
    /// `None` if no stream has the index, or its stream is gone.
    stream: Option<LiveStream>,
    device: Option<WeakContext>,
    /// True if the stream is (or was, if it is gone) blocking.
    is_blocking: bool,
    /// The last capture that the stream is known to have joined, and the first epoch whose work belongs to it.
    captured: Option<(u64, u64)>,
    /// Markers that are not known to be complete, oldest first.
    ring: VecDeque<Arc<Marker>>,
    spare: Vec<MarkerEvent>,
}

struct LiveStream {
    raw: Handle<CUstream_st>,
    life: Life,
    no_waits: bool,
    thread: Option<ThreadNumber>,
    /// A marker was requested that only calls naming the stream can record: the next such call records it.
    is_wanted: bool,
    /// The stream whose next naming call takes the slow path. Set for streams that only calls naming them may mark.
    stream: Option<Weak<dyn AnyStream>>,
}

/// The origin of a request for a marker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// A call that names the stream: it is alive, and its user is responsible for the order of calls.
    User,
    /// Any other call, at any time.
    Pool,
}

/// A locked state and its device. The handle keeps the device alive past the lock, because dropping the device takes the
/// lock.
pub(super) struct Locked<'a> {
    state: MutexGuard<'a, StreamState>,
    pub(super) device: HeldContext,
}

impl StreamStates {
    pub(super) fn new() -> Self {
        Self((0..StreamIndex::COUNT_MAX).map(|_| OnceLock::new()).collect())
    }

    /// Locks a state. `None` if the index was never used, or its device is gone or was reset. The host has no state.
    pub(super) fn lock(&self, index: StreamIndex) -> Option<Locked<'_>> {
        if index == StreamIndex::HOST { None } else { Self::with_device(self.guard(index)) }
    }

    /// Like [`StreamStates::lock`], and `None` also if another thread holds the lock.
    pub(super) fn try_lock(&self, index: StreamIndex) -> Option<Locked<'_>> {
        self.state(index).try_lock().and_then(Self::with_device)
    }

    /// Locks a state, even if its device is gone.
    pub(super) fn guard(&self, index: StreamIndex) -> MutexGuard<'_, StreamState> {
        self.state(index).lock()
    }

    /// See [`Clocks::has_waiters`](super::Clocks::has_waiters). The host has no entry.
    #[inline]
    pub(super) fn awaited_count(&self, index: StreamIndex) -> &AtomicU32 {
        &self.entry(index).awaited_count
    }

    fn state(&self, index: StreamIndex) -> &Lock<StreamState> {
        &self.entry(index).state
    }

    #[inline]
    fn entry(&self, index: StreamIndex) -> &StreamSlot {
        self.0[usize::from(index.0) % StreamIndex::COUNT_MAX].get_or_init(|| {
            Box::new(StreamSlot { state: Lock::new(StreamState::empty()), awaited_count: AtomicU32::new(0) })
        })
    }

    fn with_device(state: MutexGuard<'_, StreamState>) -> Option<Locked<'_>> {
        let device = state.device.as_ref()?.upgrade()?;
        if device.is_reset() {
            // Unlocked before the device is dropped, which takes locks.
            drop(state);
            return None;
        }
        Some(Locked { state, device })
    }
}

impl StreamState {
    fn empty() -> Self {
        let (ring, spare) = (VecDeque::new(), Vec::new());
        Self { stream: None, device: None, is_blocking: false, captured: None, ring, spare }
    }

    /// Gives the index to a new stream. Returns the former stream's state, which is complete, to be dropped where no
    /// lock is held.
    pub(super) fn open(&mut self, device: &PrimaryContext, parts: &StreamParts) -> Self {
        let StreamParts { raw, life, no_waits, is_blocking, thread } = *parts;
        let stream = LiveStream { raw: Handle(raw), life, no_waits, thread, is_wanted: false, stream: None };
        let mut state =
            Self { stream: Some(stream), device: Some(device.downgrade()), is_blocking, ..Self::empty() };
        core::mem::swap(self, &mut state);
        state
    }

    pub(super) fn is_of(&self, device: &WeakContext) -> bool {
        self.device.as_ref().is_some_and(|own| own.is_same(device))
    }

    /// True if its stream lives on without a clone.
    pub(super) fn is_long_lived(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.life == Life::Long)
    }

    /// True if it has an owned stream, or one that lives on without a clone: no other stream has its handle.
    pub(super) fn has_own_handle(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.life != Life::Named)
    }

    /// Stores the clones' shared part, for a stream that only calls naming it may mark.
    pub(super) fn set_stream(&mut self, stream: Weak<dyn AnyStream>) {
        if let Some(state) = self.stream.as_mut().filter(|state| state.life == Life::Named) {
            state.stream = Some(stream);
        }
    }

    /// Applies another wrap of the stream: a longer promised life, or fewer inserted waits.
    pub(super) fn promise(&mut self, parts: &StreamParts) {
        if let Some(stream) = &mut self.stream {
            stream.no_waits |= parts.no_waits;
            if stream.life == Life::Named {
                stream.life = parts.life;
            }
        }
    }

    /// Records that the stream is gone without a last marker. False if there was none.
    pub(super) fn forget(&mut self) -> bool {
        self.stream.take().is_some()
    }

    /// Moves the pending markers to another `Device` of the context.
    pub(super) fn move_to(&mut self, heir: &PrimaryContext) {
        self.device = Some(heir.downgrade());
        let marks = self.ring.iter_mut().filter_map(Arc::get_mut).map(|mark| &mut mark.event);
        marks.chain(&mut self.spare).for_each(|event| event.move_to(heir));
    }

    /// Takes all events while the device is being dropped: nothing else holds them.
    pub(super) fn take_events(&mut self) -> Vec<MarkerEvent> {
        let marks = self.ring.drain(..).filter_map(Arc::into_inner).map(|mark| mark.event);
        marks.chain(self.spare.drain(..)).collect()
    }
}

impl Locked<'_> {
    pub(super) fn is_live(&self) -> bool {
        self.state.stream.is_some()
    }

    /// True if the stream is owned or long-lived, so that any call may mark it.
    pub(super) fn is_ours(&self) -> bool {
        self.state.stream.as_ref().is_some_and(|stream| stream.life != Life::Named)
    }

    /// True if only calls that name the stream may touch it.
    pub(super) fn is_named_only(&self) -> bool {
        self.state.stream.as_ref().is_some_and(|stream| stream.life == Life::Named)
    }

    /// True if it is the default stream of a thread other than this one.
    pub(super) fn is_of_other_thread(&self) -> bool {
        let thread = self.state.stream.as_ref().and_then(|stream| stream.thread);
        thread.is_some_and(|thread| thread != ThreadNumber::current())
    }

    /// Requests a marker that only a call naming the stream can record. Returns the stream whose fast path must be
    /// disabled.
    pub(super) fn want(&mut self) -> Option<Weak<dyn AnyStream>> {
        let stream = self.state.stream.as_mut().filter(|stream| stream.life == Life::Named)?;
        stream.is_wanted = true;
        stream.stream.clone()
    }

    /// True if the next call that names the stream must mark it.
    pub(super) fn is_wanted(&self) -> bool {
        self.state.stream.as_ref().is_some_and(|stream| stream.is_wanted)
    }

    /// The driver's handle. It is alive while the state is locked if the stream is owned or long-lived.
    pub(super) fn raw(&self) -> Option<CUstream> {
        self.state.stream.as_ref().map(|stream| stream.raw.0)
    }

    pub(super) fn has_marks(&self) -> bool {
        !self.state.ring.is_empty()
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.state.is_blocking
    }

    /// The last capture that the stream is known to have joined, and the first epoch whose work belongs to it.
    pub(super) fn captured(&self) -> Option<(u64, u64)> {
        self.state.captured
    }

    pub(super) fn set_captured(&mut self, graph: u64, epoch: u64) {
        self.state.captured = Some((graph, epoch));
    }

    /// True if the pool may insert waits into the stream, and waits for it into others.
    pub(super) fn allows_waits(&self) -> bool {
        self.state.stream.as_ref().is_none_or(|stream| !stream.no_waits)
    }

    /// True if a marker may be recorded now for this origin.
    pub(super) fn may_mark(&self, asker: Asker) -> bool {
        let stream = self.state.stream.as_ref();
        stream.is_some_and(|stream| stream.life != Life::Named || asker == Asker::User)
            && !self.is_capturing()
    }

    /// True if work queued now becomes part of a graph. The context is current.
    pub(super) fn is_capturing(&self) -> bool {
        let Some(stream) = &self.state.stream else { return false };
        let driver = self.device.driver();
        if driver.table().cuStreamIsCapturing.is_none() {
            return false;
        }
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `status` outlives the call; the stream is alive while the state is locked, or its user named it.
        let answer = unsafe { driver.cuStreamIsCapturing(stream.raw.0, &mut status) };
        answer.is_err() || status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
    }

    /// Closes the epoch, if a marker may be recorded for this origin: the next driver call covers the returned stamps.
    pub(super) fn close(
        &mut self,
        index: StreamIndex,
        epochs: &Epochs,
        asker: Asker,
    ) -> Option<Box<[Stamp]>> {
        if self.may_mark(asker) { epochs.close(index) } else { None }
    }

    /// Like [`Locked::close`], before a wait for the whole device, which does not touch the stream itself.
    pub(super) fn close_untouched(&mut self, index: StreamIndex, epochs: &Epochs) -> Option<Box<[Stamp]>> {
        let stream = self.state.stream.as_ref()?;
        if stream.life != Life::Named && self.is_capturing() { None } else { epochs.close(index) }
    }

    /// Records a marker behind everything queued so far. `None` if none may be recorded for this origin.
    pub(super) fn record_marker(
        &mut self,
        index: StreamIndex,
        epochs: &Epochs,
        asker: Asker,
    ) -> Result<Option<Arc<Marker>>, DriverError> {
        let Some(raw) = self.raw() else { return Ok(None) };
        if !self.may_mark(asker) {
            return Ok(None);
        }
        let event = self.event()?;
        #[cfg(gpumem_planted_bugs)]
        if gpumem_base::injected_bugs::has(gpumem_base::injected_bugs::Bug::EventBeforeEpoch) {
            event.record(&self.device, raw)?;
            return Ok(epochs.close(index).map(|covered| self.keep(event, covered)));
        }
        let Some(covered) = epochs.close(index) else { return Ok(None) };
        self.mark(event, covered, raw)
    }

    fn is_owned(&self) -> bool {
        self.state.stream.as_ref().is_some_and(|stream| stream.life == Life::Owned)
    }

    /// Records the last marker before the stream is destroyed. From here on the stream counts as gone.
    pub(super) fn finish(&mut self, index: StreamIndex, epochs: &Epochs) {
        if let Some(raw) = self.raw().filter(|_| self.may_mark(Asker::User)) {
            let covered = epochs.close_for_good(index);
            // Without this marker, the work counts as complete once the device has been waited for.
            let _ = self.event().and_then(|event| self.mark(event, covered, raw));
        }
        self.forget();
    }

    /// Records that the stream is gone without a last marker.
    pub(super) fn forget(&mut self) {
        self.state.forget();
    }

    fn event(&mut self) -> Result<MarkerEvent, DriverError> {
        match self.state.spare.pop() {
            Some(event) => Ok(event),
            None => MarkerEvent::create(&self.device),
        }
    }

    /// Records the event. `None` if the stream turns out to be capturing.
    fn mark(
        &mut self,
        event: MarkerEvent,
        covered: Box<[Stamp]>,
        raw: CUstream,
    ) -> Result<Option<Arc<Marker>>, DriverError> {
        event.record(&self.device, raw)?;
        // The owner of a stream may have begun a capture on another thread since the query: then the event covers no
        // work that runs. (Captures of this crate begin under the state's lock.)
        if !self.is_owned() && self.is_capturing() {
            self.state.spare.push(event);
            return Ok(None);
        }
        if let Some(stream) = &mut self.state.stream {
            stream.is_wanted = false;
        }
        Ok(Some(self.keep(event, covered)))
    }

    fn keep(&mut self, event: MarkerEvent, covered: Box<[Stamp]>) -> Arc<Marker> {
        if self.state.ring.len() >= RING_LENGTH_MAX {
            self.thin_out();
        }
        let mark = Arc::new(Marker { event, covered, made_at: Instant::now() });
        self.state.ring.push_back(Arc::clone(&mark));
        mark
    }

    /// Removes every other marker: the following one covers its work, but later.
    fn thin_out(&mut self) {
        let marks = core::mem::take(&mut self.state.ring);
        for (index, mark) in marks.into_iter().enumerate() {
            if index % 2 == 0 { self.recycle(mark) } else { self.state.ring.push_back(mark) }
        }
    }

    /// Makes the marker's event available again, unless another thread still waits for it.
    fn recycle(&mut self, mark: Arc<Marker>) {
        if let Some(mark) = Arc::into_inner(mark) {
            self.state.spare.push(mark.event);
        }
    }

    /// The earliest marker that covers a stamp of this stream.
    pub(super) fn marker_of(&self, stamp: Stamp) -> Option<Arc<Marker>> {
        self.state.ring.iter().find(|mark| mark.closed().epoch() >= stamp.epoch()).cloned()
    }

    /// The time at which the oldest marker that is not known to be complete was recorded.
    pub(super) fn oldest_mark(&self) -> Option<Instant> {
        self.state.ring.front().map(|mark| mark.made_at)
    }

    /// Queries markers, oldest first, until one is incomplete. True if any was complete.
    pub(super) fn poll(&mut self, epochs: &Epochs) -> Result<bool, DriverError> {
        let mut moved = false;
        self.settle(epochs);
        while let Some(mark) = self.state.ring.front()
            && mark.event.query(&self.device)?
        {
            moved |= epochs.raise_complete(&mark.covered);
            self.settle(epochs);
        }
        Ok(moved)
    }

    /// Removes markers that are known to be complete, and all spare events once no stream will use them.
    pub(super) fn settle(&mut self, epochs: &Epochs) {
        while self.state.ring.front().is_some_and(|mark| epochs.is_complete(mark.closed())) {
            self.state.ring.pop_front().into_iter().for_each(|mark| self.recycle(mark));
        }
        if !self.is_live() && self.state.ring.is_empty() {
            self.state.spare.clear();
        }
    }

    /// Queues a wait for a live event. True if the order takes effect now: not in a capture.
    pub(super) fn queue_wait(&self, event: CUevent) -> Result<bool, DriverError> {
        let Some(stream) = &self.state.stream else { return Ok(false) };
        // Queried before the call, which may make the stream join the event's capture.
        let is_capturing = self.is_capturing();
        // SAFETY: the stream is alive while the state is locked, or its user named it. The caller keeps the event alive
        // during the call, and the driver keeps what it needs beyond it.
        unsafe { self.device.driver().cuStreamWaitEvent(stream.raw.0, event, 0)? };
        Ok(!is_capturing)
    }

    /// Records a new event without closing the epoch. `None` if the stream is gone.
    pub(super) fn record_apart(&mut self) -> Result<Option<MarkerEvent>, DriverError> {
        let Some(raw) = self.raw() else { return Ok(None) };
        let event = MarkerEvent::create(&self.device)?;
        event.record(&self.device, raw)?;
        Ok(Some(event))
    }

    /// Records an event of the user. Returns the stamps that it covers; `None` if it became part of a capture.
    pub(super) fn record(
        &mut self,
        index: StreamIndex,
        epochs: &Epochs,
        event: CUevent,
    ) -> Result<Option<Box<[Stamp]>>, DriverError> {
        let Some(raw) = self.raw() else { return Ok(None) };
        let covered = self.close(index, epochs, Asker::User);
        // SAFETY: the caller keeps the event alive; the stream is alive, because its user named it.
        unsafe { self.device.driver().cuEventRecord(event, raw)? };
        Ok(covered)
    }
}

/// The maximum number of markers of a state; beyond it, older markers are thinned out.
const RING_LENGTH_MAX: usize = 16;

//! [`StreamState`]: a slot's stream as the driver knows it, and the marks that the clocks have made there.
//!
//! A state's lock keeps three things apart that may come from different threads: making a mark, waiting for one, and the
//! end of the stream or the beginning of a capture. Whoever holds it finds the stream alive or gone, and it stays so.

use super::marker::{Marker, MarkerEvent};
use super::{Order, Stamp, StreamIndex};
use crate::device::{Device, Handle, WeakDevice, WeakStream};
use gpumem_heap::order::Epochs;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUevent, CUstream, CUstream_st, CUstreamCaptureStatus};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Instant;

/// What a new stream is, to the clocks.
pub(crate) struct StreamParts {
    pub(crate) raw: CUstream,
    pub(crate) life: Life,
    /// The pool makes it wait for nothing, and nothing wait for it, on its own account.
    pub(crate) no_waits: bool,
    /// Whether the legacy stream's work comes after its work.
    pub(crate) is_blocking: bool,
}

/// When the driver may be called with a stream's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Until its last clone is dropped: it is this crate's own.
    Owned,
    /// Until it is retired, or the last device of its context ends: its owner has promised that, and needs no clone here.
    Long,
    /// In calls that name it: its owner may destroy it at any other time.
    Named,
}

/// One for each slot ever used.
pub(super) struct StreamStates(Box<[OnceLock<Box<Mutex<StreamState>>>]>);

pub(super) struct StreamState {
    /// `None` where no stream has the slot, or it is gone.
    stream: Option<LiveStream>,
    device: WeakDevice,
    /// Whether the stream is blocking, or was before it went.
    is_blocking: bool,
    /// The capture that the stream is known to have become part of last, and the first epoch whose work is the capture's.
    captured: Option<(u64, u64)>,
    /// Marks that are not known to be passed, oldest first.
    ring: VecDeque<Arc<Marker>>,
    spare: Vec<MarkerEvent>,
}

struct LiveStream {
    raw: Handle<CUstream_st>,
    life: Life,
    no_waits: bool,
    /// A marker was wanted and could not be made outside of calls that name the stream: the next such call makes it.
    is_wanted: bool,
    /// For the flag that sends the next such call here. Set for streams that are marked in such calls alone.
    stream: Option<WeakStream>,
}

/// Who wants a mark made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// Who was handed the stream for this call: it is alive, and what its user does is his business.
    User,
    /// Anyone else, at any time.
    Pool,
}

/// A state, locked, and its device, which so outlives the lock: its end would take the lock again.
pub(super) struct Locked<'a> {
    state: MutexGuard<'a, StreamState>,
    pub(super) device: Device,
}

impl StreamStates {
    pub(super) fn new() -> Self {
        Self((0..StreamIndex::COUNT_MAX).map(|_| OnceLock::new()).collect())
    }

    /// `None` where the slot was never used, or its device is gone. The host has no state.
    pub(super) fn lock(&self, slot: StreamIndex) -> Option<Locked<'_>> {
        if slot == StreamIndex::HOST { None } else { Self::with_device(self.guard(slot)) }
    }

    /// The same, and `None` also while somebody else has it.
    pub(super) fn try_lock(&self, slot: StreamIndex) -> Option<Locked<'_>> {
        match self.state(slot).try_lock() {
            Ok(state) => Self::with_device(state),
            Err(TryLockError::Poisoned(poisoned)) => Self::with_device(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whatever has become of the device.
    pub(super) fn guard(&self, slot: StreamIndex) -> MutexGuard<'_, StreamState> {
        self.state(slot).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self, slot: StreamIndex) -> &Mutex<StreamState> {
        self.0[usize::from(slot.0) % StreamIndex::COUNT_MAX]
            .get_or_init(|| Box::new(Mutex::new(StreamState::empty())))
    }

    fn with_device(state: MutexGuard<'_, StreamState>) -> Option<Locked<'_>> {
        let device = state.device.upgrade()?;
        Some(Locked { state, device })
    }
}

impl StreamState {
    fn empty() -> Self {
        let (device, ring) = (WeakDevice::default(), VecDeque::new());
        Self { stream: None, device, is_blocking: false, captured: None, ring, spare: Vec::new() }
    }

    /// A new stream has the slot. What the former one leaves behind is complete, and is returned, to be dropped where no lock is held.
    pub(super) fn open(&mut self, device: &Device, parts: &StreamParts) -> Self {
        let StreamParts { raw, life, no_waits, is_blocking } = *parts;
        let stream = LiveStream { raw: Handle(raw), life, no_waits, is_wanted: false, stream: None };
        let mut state =
            Self { stream: Some(stream), device: device.downgrade(), is_blocking, ..Self::empty() };
        core::mem::swap(self, &mut state);
        state
    }

    pub(super) fn is_of(&self, device: &WeakDevice) -> bool {
        self.device.is_same(device)
    }

    /// Whether its stream lives on without a clone.
    pub(super) fn is_long_lived(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.life == Life::Long)
    }

    /// Where to reach the handles of a stream that is marked only in calls that name it.
    pub(super) fn set_stream(&mut self, stream: WeakStream) {
        if let Some(state) = self.stream.as_mut().filter(|state| state.life == Life::Named) {
            state.stream = Some(stream);
        }
    }

    /// The stream's owner promises more, or asks for less, than when the slot was given to it.
    pub(super) fn promise(&mut self, parts: &StreamParts) {
        if let Some(stream) = &mut self.stream {
            stream.no_waits |= parts.no_waits;
            if stream.life == Life::Named {
                stream.life = parts.life;
            }
        }
    }

    /// The stream is gone and was not marked. Says whether there was one.
    pub(super) fn forget(&mut self) -> bool {
        self.stream.take().is_some()
    }

    /// Another holder of the same context takes over what is pending.
    pub(super) fn move_to(&mut self, heir: &Device) {
        self.device = heir.downgrade();
        let marks = self.ring.iter_mut().filter_map(Arc::get_mut).map(|mark| &mut mark.event);
        marks.chain(&mut self.spare).for_each(|event| event.move_to(heir));
    }

    /// All of its events, which nobody else holds: the device is at its end.
    pub(super) fn take_events(&mut self) -> Vec<MarkerEvent> {
        let marks = self.ring.drain(..).filter_map(Arc::into_inner).map(|mark| mark.event);
        marks.chain(self.spare.drain(..)).collect()
    }
}

impl Locked<'_> {
    /// Whether a stream has the slot.
    pub(super) fn is_live(&self) -> bool {
        self.state.stream.is_some()
    }

    /// Whether the stream is alive, and may be marked in any call.
    pub(super) fn is_ours(&self) -> bool {
        self.state.stream.as_ref().is_some_and(|stream| stream.life != Life::Named)
    }

    /// Whether the stream is alive as far as calls that name it know, and must not be touched in others.
    pub(super) fn is_named_only(&self) -> bool {
        self.state.stream.as_ref().is_some_and(|stream| stream.life == Life::Named)
    }

    /// Notes that a marker is wanted that only a call that names the stream can make. The stream's handles are to be told.
    pub(super) fn want(&mut self) -> Option<WeakStream> {
        let stream = self.state.stream.as_mut().filter(|stream| stream.life == Life::Named)?;
        stream.is_wanted = true;
        stream.stream.clone()
    }

    /// Whether the next call that names the stream is to mark it.
    pub(super) fn is_wanted(&self) -> bool {
        self.state.stream.as_ref().is_some_and(|stream| stream.is_wanted)
    }

    /// The driver's handle, alive while the state is locked if the stream is ours.
    pub(super) fn raw(&self) -> Option<CUstream> {
        self.state.stream.as_ref().map(|stream| stream.raw.0)
    }

    /// Whether there is anything to ask the driver about.
    pub(super) fn has_marks(&self) -> bool {
        !self.state.ring.is_empty()
    }

    /// Whether a marker in the legacy stream covers the stream's work.
    pub(super) fn is_blocking(&self) -> bool {
        self.state.is_blocking
    }

    /// The last capture that the stream is known to have become part of, and the first epoch whose work is the capture's.
    pub(super) fn captured(&self) -> Option<(u64, u64)> {
        self.state.captured
    }

    pub(super) fn set_captured(&mut self, graph: u64, epoch: u64) {
        self.state.captured = Some((graph, epoch));
    }

    /// Whether waits may be put into the stream, or for it, that nobody asked for.
    pub(super) fn allows_waits(&self) -> bool {
        self.state.stream.as_ref().is_none_or(|stream| !stream.no_waits)
    }

    /// Whether this asker may make a mark now.
    pub(super) fn may_mark(&self, asker: Asker) -> bool {
        let stream = self.state.stream.as_ref();
        stream.is_some_and(|stream| stream.life != Life::Named || asker == Asker::User)
            && !self.is_capturing()
    }

    /// Whether what is queued now becomes part of a graph. The context is current.
    pub(super) fn is_capturing(&self) -> bool {
        let Some(stream) = &self.state.stream else { return false };
        let driver = self.device.driver();
        if driver.table().cuStreamIsCapturing.is_none() {
            return false;
        }
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `status` outlives the call; the stream is alive while the state is locked, or named by its user.
        let answer = unsafe { driver.cuStreamIsCapturing(stream.raw.0, &mut status) };
        answer.is_err() || status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
    }

    /// Closes the epoch, if this asker may make a mark: what a call to the driver from now on covers.
    pub(super) fn close(&mut self, slot: StreamIndex, epochs: &Epochs, asker: Asker) -> Option<Box<[Stamp]>> {
        if self.may_mark(asker) { epochs.close(slot) } else { None }
    }

    /// The same before a wait for the whole device, which asks nothing of the stream itself.
    pub(super) fn close_untouched(&mut self, slot: StreamIndex, epochs: &Epochs) -> Option<Box<[Stamp]>> {
        let stream = self.state.stream.as_ref()?;
        if stream.life != Life::Named && self.is_capturing() { None } else { epochs.close(slot) }
    }

    /// A record_marker: a mark behind everything queued so far. `None` if this asker may not make one.
    pub(super) fn record_marker(
        &mut self,
        slot: StreamIndex,
        epochs: &Epochs,
        asker: Asker,
    ) -> Result<Option<Arc<Marker>>, DriverError> {
        let Some(raw) = self.raw() else { return Ok(None) };
        if !self.may_mark(asker) {
            return Ok(None);
        }
        let event = self.event()?;
        #[cfg(gpumem_planted_bugs)]
        if crate::injected_bugs::has(crate::injected_bugs::Bug::EventBeforeEpoch) {
            event.record(&self.device, raw)?;
            return Ok(epochs.close(slot).map(|covered| self.keep(event, covered)));
        }
        let Some(covered) = epochs.close(slot) else { return Ok(None) };
        self.mark(event, covered, raw)
    }

    fn is_owned(&self) -> bool {
        self.state.stream.as_ref().is_some_and(|stream| stream.life == Life::Owned)
    }

    /// The last mark, made by who destroys the stream next: from here on it is gone.
    pub(super) fn finish(&mut self, slot: StreamIndex, epochs: &Epochs) {
        if let Some(raw) = self.raw().filter(|_| self.may_mark(Asker::User)) {
            let covered = epochs.close_for_good(slot);
            // Unmarked, it counts as complete once the device has been waited for.
            let _ = self.event().and_then(|event| self.mark(event, covered, raw));
        }
        self.forget();
    }

    /// The stream is gone and was not marked.
    pub(super) fn forget(&mut self) {
        self.state.forget();
    }

    /// Whether the stream lives on without a clone.
    pub(super) fn is_long_lived(&self) -> bool {
        self.state.is_long_lived()
    }

    fn event(&mut self) -> Result<MarkerEvent, DriverError> {
        match self.state.spare.pop() {
            Some(event) => Ok(event),
            None => MarkerEvent::create(&self.device),
        }
    }

    /// `None` if the stream has turned out to be captured.
    fn mark(
        &mut self,
        event: MarkerEvent,
        covered: Box<[Stamp]>,
        raw: CUstream,
    ) -> Result<Option<Arc<Marker>>, DriverError> {
        event.record(&self.device, raw)?;
        // The owner of a stream may have begun a capture, on another thread, since the driver was asked: then the event stands
        // for nothing that runs. (The captures of this crate begin under the state's lock.)
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

    /// Every other mark goes: the next one covers what it did, only later.
    fn thin_out(&mut self) {
        let marks = core::mem::take(&mut self.state.ring);
        for (index, mark) in marks.into_iter().enumerate() {
            if index % 2 == 0 { self.recycle(mark) } else { self.state.ring.push_back(mark) }
        }
    }

    /// An event that somebody still waits for is not recorded again.
    fn recycle(&mut self, mark: Arc<Marker>) {
        if let Some(mark) = Arc::into_inner(mark) {
            self.state.spare.push(mark.event);
        }
    }

    /// The earliest mark that covers a stamp of this slot.
    pub(super) fn marker_of(&self, stamp: Stamp) -> Option<Arc<Marker>> {
        self.state.ring.iter().find(|mark| mark.closed().epoch() >= stamp.epoch()).cloned()
    }

    /// When the oldest mark was made that is not known to be passed.
    pub(super) fn oldest_mark(&self) -> Option<Instant> {
        self.state.ring.front().map(|mark| mark.made_at)
    }

    /// Asks the driver about marks, oldest first, until one is still ahead. Says whether any has been passed.
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

    /// Lets go of marks that are known to be passed, and of all events where no stream will want them again.
    pub(super) fn settle(&mut self, epochs: &Epochs) {
        while self.state.ring.front().is_some_and(|mark| epochs.is_complete(mark.closed())) {
            self.state.ring.pop_front().into_iter().for_each(|mark| self.recycle(mark));
        }
        if !self.is_live() && self.state.ring.is_empty() {
            self.state.spare.clear();
        }
    }

    /// Queues a wait for an event that is alive. Says whether the order counts from here on: not in a capture.
    pub(super) fn queue_wait(&self, event: CUevent) -> Result<bool, DriverError> {
        let Some(stream) = &self.state.stream else { return Ok(false) };
        // Before the call, which may make the stream part of the event's capture.
        let is_capturing = self.is_capturing();
        // SAFETY: the stream is alive while the state is locked, or named by its user; the caller keeps the event alive,
        // and the driver what it needs of it beyond the call.
        unsafe { self.device.driver().cuStreamWaitEvent(stream.raw.0, event, 0)? };
        Ok(!is_capturing)
    }

    /// Records an event that stands for nothing but itself. `None` if the stream is gone.
    pub(super) fn record_apart(&mut self) -> Result<Option<MarkerEvent>, DriverError> {
        let Some(raw) = self.raw() else { return Ok(None) };
        let event = MarkerEvent::create(&self.device)?;
        event.record(&self.device, raw)?;
        Ok(Some(event))
    }

    /// Records an event of the user's. What it covers, unless it became part of a capture.
    pub(super) fn record(
        &mut self,
        slot: StreamIndex,
        epochs: &Epochs,
        event: CUevent,
    ) -> Result<Option<Box<[Stamp]>>, DriverError> {
        let Some(raw) = self.raw() else { return Ok(None) };
        let covered = self.close(slot, epochs, Asker::User);
        // SAFETY: the caller keeps the event alive; the stream is named by its user.
        unsafe { self.device.driver().cuEventRecord(event, raw)? };
        Ok(covered)
    }
}

/// Marks that a state keeps; beyond it, older ones become coarser.
const RING_LENGTH_MAX: usize = 16;

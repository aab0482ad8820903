//! Everything that makes the clocks move: marks, waits of streams, queries and waits of the host.

use super::marker::{Marker, MarkerEvent};
use super::stream_state::{Asker, Locked};
use super::{Clocks, Order, Stamp, StreamId, StreamIndex};
use crate::device::{CaptureModeGuard, Device, WeakStream};
use core::sync::atomic::Ordering;
use core::time::Duration;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUevent, CUstream};
use std::sync::Arc;
use std::time::Instant;

/// What a query or a wait of the host is about to show, noted before the driver is asked.
#[must_use = "what was seen is reported with `Clocks::saw`"]
pub(crate) struct Observation(Option<Box<[Stamp]>>);

impl Clocks {
    /// Makes a mark in a stream, for anyone who wants what was freed there. False if it may not be made now: the
    /// stream is being captured, is gone, or is marked only in calls that name it. The next such call makes it then.
    pub(crate) fn record_marker(&self, slot: StreamIndex) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let ticked = self.with_stream_state(slot, |state| {
            let mark = state.record_marker(slot, &self.epochs, Asker::Pool)?;
            Ok((mark.is_some(), if mark.is_some() { None } else { state.want() }))
        })?;
        let (is_marked, named) = ticked.unwrap_or_default();
        tell(named);
        Ok(is_marked)
    }

    /// The same by somebody who was handed the stream for this call, which allows it on another's too.
    pub(crate) fn record_marker_by_user(&self, slot: StreamIndex) -> Result<bool, DriverError> {
        self.with_stream_state(slot, |state| {
            Ok(state.record_marker(slot, &self.epochs, Asker::User)?.is_some())
        })
        .map(Option::unwrap_or_default)
    }

    /// Whether a stream is marked only in calls that name it.
    pub(crate) fn is_named_only(&self, slot: StreamIndex) -> bool {
        self.stream_states.lock(slot).is_some_and(|state| state.is_named_only())
    }

    /// What is pending on these streams waits for marks that only calls that name them can make: the next ones do. For
    /// drops: waits for nobody. A stream that another thread is marking just now is left to whoever asks for its memory.
    pub(crate) fn want_marks(&self, slots: impl Iterator<Item = StreamIndex>) {
        if self.has_named_streams() {
            slots.for_each(|slot| {
                let named = self.stream_states.try_lock(slot).and_then(|mut state| state.want());
                tell(named);
            });
        }
    }

    /// A call that names a stream makes the mark that others have wanted. False if one is still wanted: the stream is
    /// being captured, or the driver refuses.
    pub(crate) fn mark_if_wanted(&self, slot: StreamIndex) -> bool {
        // Locked once more below: the context is entered for a mark alone.
        match self.stream_states.lock(slot).is_some_and(|state| state.is_wanted()) {
            false => true,
            // What fails shows at the next call that the driver answers.
            true => self.record_marker_by_user(slot).unwrap_or(false),
        }
    }

    /// Asks the driver which marks have been passed, oldest first, stream by stream, until the time is over; no time is
    /// no question. Says whether anything is complete that was not known to be.
    pub(crate) fn poll(&self, budget: Duration) -> Result<bool, DriverError> {
        let start = Instant::now();
        self.poll_while(|_| start.elapsed() < budget)
    }

    /// The same for so many streams, the next time for those after them: whatever the time, the same is asked.
    pub(crate) fn poll_next(&self, stream_count: usize) -> Result<bool, DriverError> {
        self.poll_while(|asked_count| asked_count < stream_count)
    }

    /// Each stream is asked about once at most.
    fn poll_while(&self, goes_on: impl Fn(usize) -> bool) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let mut moved = false;
        let count = self.slot_count.load(Ordering::Acquire);
        let first = self.cursor.load(Ordering::Relaxed);
        for step in (0..count).take_while(|step| goes_on(*step)) {
            let index = (first + step) % count;
            moved |= self.poll_stream(StreamIndex(index as u16))?;
            self.cursor.store(index + 1, Ordering::Relaxed);
        }
        Ok(moved)
    }

    /// Asks about one state's marks until one is still ahead. A state that somebody else has is left to him.
    pub(super) fn poll_stream(&self, slot: StreamIndex) -> Result<bool, DriverError> {
        let Some(mut state) = self.stream_states.try_lock(slot).filter(Locked::has_marks) else {
            return Ok(false);
        };
        let device = state.device.clone();
        let _bound = device.enter()?;
        state.poll(&self.epochs)
    }

    /// Makes `waiter`, which the caller was handed for this call, wait on the device for what the stamp stands for: for the
    /// earliest mark that covers it, or a new one. False if a stream forbids it, or can't be marked in this call.
    pub(crate) fn insert_wait(&self, stamp: Stamp, waiter: StreamIndex) -> Result<bool, DriverError> {
        if self.is_ordered(stamp, waiter) {
            return Ok(true);
        }
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let allows = |state: &Locked<'_>| state.allows_waits() && !state.is_capturing();
        if self.with_stream_state(waiter, |state| Ok(allows(state)))? != Some(true) {
            return Ok(false);
        }
        let Some((_device, mark)) = self.marker_for(stamp, |state| state.allows_waits())? else {
            return Ok(false);
        };
        // Asked again: the lock was free meanwhile, and a capture may have begun.
        let waited = self.with_stream_state(waiter, |state| {
            let counts = allows(state) && state.queue_wait(mark.event.raw())?;
            if counts {
                self.epochs.raise_order(waiter, &mark.covered);
            }
            Ok(counts)
        });
        waited.map(Option::unwrap_or_default)
    }

    /// The same for a free, which its user has asked for: a stream that allows no waits is waited for too. False if the
    /// waiter is gone, another's or allows no waits, if the stamp's stream would have to be marked and may not be now, or if
    /// the waiter is being captured and that stream is not.
    pub(crate) fn order_free(&self, stamp: Stamp, waiter: StreamId) -> Result<bool, DriverError> {
        let (source, slot) = (stamp.stream_index(), waiter.stream_index());
        let Some(waiter_captures) = self.open_capture(waiter)? else { return Ok(false) };
        if waiter_captures {
            let source_captures =
                self.with_stream_state(source, |state| Ok(state.is_ours() && state.is_capturing()))?;
            return Ok(source_captures == Some(true) && self.queue_fork(slot, source)?);
        }
        if self.is_ordered(stamp, slot) {
            return Ok(true);
        }
        let Some((_device, mark)) = self.marker_for(stamp, |_| true)? else { return Ok(false) };
        self.queue_wait(slot, mark.event.raw(), Some(&mark.covered))?;
        // Not if it ended meanwhile, and another stream has been made to wait.
        Ok(self.open_capture(waiter)?.is_some())
    }

    /// Whether a stream that is ours, alive and allows waits is being captured; `None` if it is not all that.
    fn open_capture(&self, stream: StreamId) -> Result<Option<bool>, DriverError> {
        let is_capturing = self.with_stream_state(stream.stream_index(), |state| {
            let is_open = self.is_open(state, stream) && state.allows_waits();
            Ok(is_open.then(|| state.is_capturing()))
        });
        is_capturing.map(Option::flatten)
    }

    /// Calls the driver with a stream that is ours, which is alive meanwhile. `None` if it is gone, or another's.
    pub(crate) fn with_open<T>(
        &self,
        stream: StreamId,
        call: impl FnOnce(CUstream) -> Result<T, DriverError>,
    ) -> Result<Option<T>, DriverError> {
        let called = self.with_stream_state(stream.stream_index(), |state| {
            let raw = state.raw().filter(|_| self.is_open(state, stream));
            raw.map(call).transpose()
        });
        called.map(Option::flatten)
    }

    /// Queues work on a stream behind what the stamps stand for. False if it is gone, another's or captures, or can't be
    /// made to wait for one of them.
    pub(crate) fn queue_behind(
        &self,
        stamps: impl Iterator<Item = Stamp>,
        stream: StreamId,
        call: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        for stamp in stamps.filter(|stamp| stamp.stream_index() != stream.stream_index()) {
            if self.open_capture(stream)? != Some(false) || !self.order_free(stamp, stream)? {
                return Ok(false);
            }
        }
        let queued = self.with_stream_state(stream.stream_index(), |state| {
            let raw = state.raw().filter(|_| self.is_open(state, stream) && !state.is_capturing());
            raw.map(call).transpose()
        });
        Ok(queued?.flatten().is_some())
    }

    fn is_open(&self, state: &Locked<'_>, stream: StreamId) -> bool {
        state.is_ours() && self.epochs.stream_in(stream.stream_index()) == stream
    }

    /// The device that a slot's stream is of, or was.
    pub(crate) fn device_of(&self, slot: StreamIndex) -> Option<Device> {
        self.stream_states.lock(slot).map(|state| state.device.clone())
    }

    /// Waits on the host for everything that the stamps stand for. False if the deadline came first, or if a stream
    /// may not be marked now, so that there is nothing to wait for but the whole device.
    pub(crate) fn wait_on_host(&self, stamps: &[Stamp], deadline: Instant) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let pending = stamps.iter().filter(|stamp| !self.is_complete(**stamp));
        let marks: Vec<_> =
            pending.map(|stamp| self.marker_for(*stamp, |_| true)).collect::<Result<_, _>>()?;
        for mark in marks {
            let Some((device, mark)) = mark else { return Ok(false) };
            if !self.wait_for_mark(&device, mark, deadline)? {
                return Ok(false);
            }
        }
        Ok(stamps.iter().all(|stamp| self.is_complete(*stamp)))
    }

    /// The driver has no wait with an end: it is asked again and again, ever less often.
    pub(super) fn wait_for_mark(
        &self,
        device: &Device,
        mark: Arc<Marker>,
        deadline: Instant,
    ) -> Result<bool, DriverError> {
        let _bound = device.enter()?;
        let mut pause = PAUSE_MIN;
        while !self.is_complete(mark.closed()) {
            if mark.event.query(device)? {
                mark.event.show(device)?;
                self.epochs.raise_complete(&mark.covered);
            } else if Instant::now() >= deadline {
                return Ok(false);
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        Ok(true)
    }

    /// Makes a mark in each stream of a device that is ours and has work without one, unless it captures.
    pub(crate) fn mark_streams(&self, device: &Device) -> Result<(), DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        for slot in self.unfinished_slots(device) {
            self.marker_for(self.stamp(slot), |state| state.is_ours())?;
        }
        Ok(())
    }

    /// Adds an event of its own, for [`MarkerEvent::show`], for each stream of a device that has none yet: of ours, and unless
    /// it captures.
    pub(crate) fn mark_each(
        &self,
        device: &Device,
        marks: &mut Vec<(StreamIndex, MarkerEvent)>,
    ) -> Result<(), DriverError> {
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let marked_count = marks.len();
        for slot in self.used_slots() {
            if marks[..marked_count].iter().any(|(marked, _)| *marked == slot) {
                continue;
            }
            if let Some(mut state) = self.stream_states.lock(slot).filter(|state| state.device == *device)
                && state.may_mark(Asker::Pool)
            {
                marks.extend(state.record_apart()?.map(|event| (slot, event)));
            }
        }
        Ok(())
    }

    /// The streams of a device whose work is not known to be done, each with when its oldest mark was made that has not been
    /// passed: no mark is made in others' streams. Of ours that have no mark, all work before the last one is done.
    pub(crate) fn unfinished(&self, device: &Device) -> Vec<(StreamId, Option<Instant>)> {
        let mut unfinished = Vec::new();
        for slot in self.unfinished_slots(device) {
            let Some(state) = self.stream_states.lock(slot) else { continue };
            let marked_at = state.oldest_mark();
            if marked_at.is_some() || state.is_live() && !state.is_ours() {
                unfinished.push((self.stream_in(slot), marked_at));
            }
        }
        unfinished
    }

    fn unfinished_slots(&self, device: &Device) -> Vec<StreamIndex> {
        let is_of =
            |slot: &StreamIndex| self.stream_states.lock(*slot).is_some_and(|state| state.device == *device);
        self.used_slots().filter(|slot| !self.is_complete(self.stamp(*slot)) && is_of(slot)).collect()
    }

    /// The earliest mark that covers a stamp, or a new one; with the device that its event needs. `None` if there is
    /// none and none may be made, or if the state does not please.
    pub(super) fn marker_for(
        &self,
        stamp: Stamp,
        pleases: impl Fn(&Locked<'_>) -> bool,
    ) -> Result<Option<(Device, Arc<Marker>)>, DriverError> {
        let found = self.with_stream_state(stamp.stream_index(), |state| {
            if !pleases(state) {
                return Ok((None, None));
            }
            let mark = match state.marker_of(stamp) {
                None => state.record_marker(stamp.stream_index(), &self.epochs, Asker::Pool)?,
                found => found,
            };
            let named = if mark.is_some() { None } else { state.want() };
            Ok((mark.map(|mark| (state.device.clone(), mark)), named))
        })?;
        let (found, named) = found.unwrap_or_default();
        tell(named);
        Ok(found)
    }

    /// Whether a wait on the device for what the stamp stands for can be queued in a call that does not name its stream.
    pub(crate) fn allows_wait_for(&self, stamp: Stamp) -> bool {
        let state = self.stream_states.lock(stamp.stream_index());
        state.is_none_or(|state| {
            state.allows_waits() && (!state.is_named_only() || state.marker_of(stamp).is_some())
        })
    }

    /// Makes a stream wait for an event that is alive and covers these. Says whether the order counts. One that nothing is known
    /// of may be a capture's, which the stream joins then: what is queued there by then is marked first.
    pub(crate) fn queue_wait(
        &self,
        waiter: StreamIndex,
        event: CUevent,
        covered: Option<&[Stamp]>,
    ) -> Result<bool, DriverError> {
        let raised = self.with_stream_state(waiter, |state| {
            if covered.is_none() {
                self.mark_before_capture(state, waiter)?;
            }
            let counts = state.queue_wait(event)?;
            if covered.is_none() && counts {
                self.note_captured(state, waiter);
            }
            if counts && let Some(covered) = covered {
                self.epochs.raise_order(waiter, covered);
            }
            Ok(counts)
        });
        raised.map(Option::unwrap_or_default)
    }

    /// Makes a stream wait for everything queued so far on another that the caller has in his hands. False if that has
    /// been retired.
    pub(crate) fn queue_wait_for(
        &self,
        waiter: StreamIndex,
        source: StreamIndex,
    ) -> Result<bool, DriverError> {
        let mark = self
            .with_stream_state(source, |state| state.record_marker(source, &self.epochs, Asker::User))?
            .flatten();
        let Some(mark) = mark else { return self.queue_fork(waiter, source) };
        self.queue_wait(waiter, mark.event.raw(), Some(&mark.covered))?;
        Ok(true)
    }

    /// Makes a stream wait for another that is being captured, which raises nothing: the driver makes it part of the
    /// capture, or refuses.
    fn queue_fork(&self, waiter: StreamIndex, source: StreamIndex) -> Result<bool, DriverError> {
        let Some(event) = self.with_stream_state(source, |state| state.record_apart())?.flatten() else {
            return Ok(false);
        };
        self.queue_wait(waiter, event.raw(), None)?;
        Ok(true)
    }

    /// Records an event of the user's on a stream that he has in his hands. What it covers; `None` in a capture.
    pub(crate) fn record(
        &self,
        slot: StreamIndex,
        event: CUevent,
    ) -> Result<Option<Box<[Stamp]>>, DriverError> {
        self.with_stream_state(slot, |state| state.record(slot, &self.epochs, event)).map(Option::flatten)
    }

    /// Before the driver is asked about a stream, by its user. If another thread has retired it meanwhile, and another stream
    /// has its slot, nothing of that is seen.
    pub(crate) fn observe(&self, stream: StreamId) -> Result<Observation, DriverError> {
        let slot = stream.stream_index();
        let covered = self.with_stream_state(slot, |state| {
            let is_its_own = self.epochs.stream_in(slot) == stream;
            Ok(if is_its_own { state.close(slot, &self.epochs, Asker::User) } else { None })
        })?;
        Ok(Observation(covered.flatten()))
    }

    /// Before the driver is asked about a whole device: its streams, and those that are gone.
    pub(crate) fn observe_device(&self, device: &Device) -> Observation {
        let mut all = Vec::new();
        for slot in self.used_slots() {
            let Some(mut state) = self.stream_states.lock(slot).filter(|state| state.device == *device)
            else {
                continue;
            };
            if !state.is_live() {
                all.push(self.stamp(slot));
            } else if let Some(covered) = state.close_untouched(slot, &self.epochs) {
                all.extend(covered);
            }
        }
        Observation(Some(all.into()))
    }

    /// The driver has said that a device is done.
    pub(crate) fn saw_device(&self, device: &Device, observation: Observation) {
        self.saw(observation);
        for slot in self.used_slots() {
            let state = self.stream_states.lock(slot).filter(|state| state.device == *device);
            state.into_iter().for_each(|mut state| state.settle(&self.epochs));
        }
    }

    /// The driver has said that it is done.
    pub(crate) fn saw(&self, observation: Observation) {
        self.raise_complete(&observation.0.unwrap_or_default());
    }

    /// A mark that covers these has been passed.
    pub(crate) fn raise_complete(&self, covered: &[Stamp]) {
        self.epochs.raise_complete(covered);
    }

    /// Works on a state with its context current. `None` if the slot's device is gone.
    pub(super) fn with_stream_state<T>(
        &self,
        slot: StreamIndex,
        work: impl FnOnce(&mut Locked<'_>) -> Result<T, DriverError>,
    ) -> Result<Option<T>, DriverError> {
        let Some(mut state) = self.stream_states.lock(slot) else { return Ok(None) };
        let device = state.device.clone();
        let _bound = device.enter()?;
        work(&mut state).map(Some)
    }
}

/// The next call that names the stream is to look here. With no lock held: this may be its last handle.
fn tell(stream: Option<WeakStream>) {
    if let Some(stream) = stream.and_then(|stream| stream.upgrade()) {
        stream.look_when_named();
    }
}

const PAUSE_MIN: Duration = Duration::from_micros(1);
pub(super) const PAUSE_MAX: Duration = Duration::from_micros(100);

//! The operations that advance the clocks: markers, waits of streams, queries and waits of the host.

use super::clocks::Clocks;
use super::marker::{Marker, MarkerEvent};
use super::stream_state::{Asker, Locked};
use crate::device::any_stream::AnyStream;
use crate::device::context::CaptureModeGuard;
use crate::device::primary::{HeldContext, PrimaryContext};
use core::sync::atomic::Ordering;
use core::time::Duration;
use gpumem_base::order::{Order, Stamp, StreamId, StreamIndex};
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUevent, CUstream};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The stamps that a query or wait of the host is about to show as complete, collected before the driver call.
#[must_use = "report the result with `Clocks::saw`"]
pub(crate) struct Observation(Option<Box<[Stamp]>>);

impl Clocks {
    /// Records a marker in a stream, for any request that needs memory freed there. False if none may be recorded now:
    /// the stream is capturing, is gone, or only calls naming it may mark it. In the last case, the next such call
    /// records it.
    pub fn record_marker(&self, index: StreamIndex) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let ticked = self.with_stream_state(index, |state| {
            let mark = state.record_marker(index, &self.epochs, Asker::Pool)?;
            Ok((mark.is_some(), if mark.is_some() { None } else { state.want() }))
        })?;
        let (is_marked, named) = ticked.unwrap_or_default();
        disable_fast_path(named);
        Ok(is_marked)
    }

    /// Like [`Clocks::record_marker`], in a call that names the stream, which allows markers in another library's
    /// stream too.
    pub fn record_marker_by_user(&self, index: StreamIndex) -> Result<bool, DriverError> {
        self.with_stream_state(index, |state| {
            Ok(state.record_marker(index, &self.epochs, Asker::User)?.is_some())
        })
        .map(Option::unwrap_or_default)
    }

    /// True if only calls that name the stream may mark it.
    pub(crate) fn is_named_only(&self, index: StreamIndex) -> bool {
        self.stream_states.lock(index).is_some_and(|state| state.is_named_only())
    }

    /// True if the stream may be the default stream of a thread other than this one. For drops, so it never blocks: a stream whose state
    /// another thread holds, perhaps in a call of the driver, may be.
    pub fn may_be_of_other_thread(&self, index: StreamIndex) -> bool {
        self.stream_states.try_lock(index).is_none_or(|state| state.is_of_other_thread())
    }

    /// Requests markers from the next calls that name these streams, for memory that is pending there. For drops, so it never blocks. A
    /// stream whose state another thread holds is skipped; a later request for its memory marks it.
    pub fn want_marks(&self, indices: impl Iterator<Item = StreamIndex>) {
        if self.has_named_streams() {
            indices.for_each(|index| {
                let named = self.stream_states.try_lock(index).and_then(|mut state| state.want());
                disable_fast_path(named);
            });
        }
    }

    /// Records a requested marker in a call that names the stream. False if it is still requested: the stream is
    /// capturing, or the driver refuses.
    pub(crate) fn mark_if_wanted(&self, index: StreamIndex) -> bool {
        // Locked again below: the context is entered only if a marker is recorded.
        match self.stream_states.lock(index).is_some_and(|state| state.is_wanted()) {
            false => true,
            // The next driver call reports a failure.
            true => self.record_marker_by_user(index).unwrap_or(false),
        }
    }

    /// Queries which markers are complete, oldest first, stream by stream, until the budget is used up; a zero budget
    /// makes no query. True if anything is newly known to be complete.
    pub fn poll(&self, budget: Duration) -> Result<bool, DriverError> {
        let start = Instant::now();
        self.poll_while(|_| start.elapsed() < budget)
    }

    /// Like [`Clocks::poll`], for `stream_count` streams, beginning after those of the last call. Independent of time,
    /// so the queries are reproducible.
    #[inline]
    pub fn poll_next(&self, stream_count: usize) -> Result<bool, DriverError> {
        self.poll_while(|asked_count| asked_count < stream_count)
    }

    fn poll_while(&self, goes_on: impl Fn(usize) -> bool) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let mut moved = false;
        let count = self.index_count.load(Ordering::Acquire);
        let first = self.cursor.load(Ordering::Relaxed);
        for step in (0..count).take_while(|step| goes_on(*step)) {
            let index = (first + step) % count;
            moved |= self.poll_stream(StreamIndex(index as u16))?;
            self.cursor.store(index + 1, Ordering::Relaxed);
        }
        Ok(moved)
    }

    /// Like [`Clocks::poll`], for one stream.
    pub fn poll_one(&self, index: StreamIndex) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        self.poll_stream(index)
    }

    /// Queries the markers of one state until one is incomplete. Skips a state that another thread holds.
    pub(super) fn poll_stream(&self, index: StreamIndex) -> Result<bool, DriverError> {
        let Some(mut state) = self.stream_states.try_lock(index).filter(Locked::has_marks) else {
            return Ok(false);
        };
        let device = state.device.clone();
        let _bound = device.enter()?;
        state.poll(&self.epochs)
    }

    /// Makes `waiter`, which this call names, wait on the device for a stamp. False if either stream forbids inserted
    /// waits, if the waiter captures, or if the stamp's stream cannot be marked in this call.
    #[inline]
    pub fn insert_wait(&self, stamp: Stamp, waiter: StreamIndex) -> Result<bool, DriverError> {
        self.wait_on_device(stamp, waiter, |_| true, |source| source.allows_waits())
    }

    /// Like [`Clocks::insert_wait`], for work that the program has requested, and in a call that does not name the waiter: the stamp's
    /// stream may forbid inserted waits, and the waiter must be owned or long-lived.
    pub(super) fn order_request(&self, stamp: Stamp, waiter: StreamId) -> Result<bool, DriverError> {
        self.wait_on_device(stamp, waiter.stream_index(), |state| self.is_open(state, waiter), |_| true)
    }

    /// Makes a stream wait on the device for a stamp: for the earliest marker that covers it, or a new one.
    fn wait_on_device(
        &self,
        stamp: Stamp,
        waiter: StreamIndex,
        may_wait: impl Fn(&Locked<'_>) -> bool,
        may_be_marked: impl Fn(&Locked<'_>) -> bool,
    ) -> Result<bool, DriverError> {
        if self.is_ordered(stamp, waiter) {
            return Ok(true);
        }
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let allows = |state: &Locked<'_>| may_wait(state) && state.allows_waits() && !state.is_capturing();
        if self.with_stream_state(waiter, |state| Ok(allows(state)))? != Some(true) {
            return Ok(false);
        }
        let Some((_device, mark)) = self.marker_for(stamp, may_be_marked)? else { return Ok(false) };
        // Queried again: the lock was released, and a capture may have begun.
        let waited = self.with_stream_state(waiter, |state| {
            let counts = allows(state) && state.queue_wait(mark.event.raw())?;
            if counts {
                self.epochs.raise_order(waiter, &mark.covered);
            }
            Ok(counts)
        });
        let counts = waited?.unwrap_or_default();
        if counts {
            self.note_awaited(waiter, &mark.covered);
        }
        Ok(counts)
    }

    /// Queues work on a stream behind the stamps. False if the stream is gone, another library's or capturing, or
    /// cannot be made to wait for one of them.
    pub(in crate::device) fn queue_behind(
        &self,
        stamps: impl Iterator<Item = Stamp>,
        stream: StreamId,
        call: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        for stamp in stamps.filter(|stamp| stamp.stream_index() != stream.stream_index()) {
            if !self.order_request(stamp, stream)? {
                return Ok(false);
            }
        }
        // In a call that does not name the stream, so it must be owned or long-lived. It stays alive during the call.
        let queued = self.with_stream_state(stream.stream_index(), |state| {
            let raw = state.raw().filter(|_| self.is_open(state, stream) && !state.is_capturing());
            raw.map(call).transpose()
        });
        Ok(queued?.flatten().is_some())
    }

    /// Waits until each [`Clocks::queue_behind`] that began before this call has queued its work.
    #[inline]
    pub fn let_calls_end(&self) {
        self.used_indices().for_each(|index| drop(self.stream_states.guard(index)));
    }

    fn is_open(&self, state: &Locked<'_>, stream: StreamId) -> bool {
        state.is_ours() && self.epochs.stream_in(stream.stream_index()) == stream
    }

    /// The device of the index's stream, or of the last stream that had it.
    pub(crate) fn device_of(&self, index: StreamIndex) -> Option<HeldContext> {
        self.stream_states.lock(index).map(|state| state.device.clone())
    }

    /// Adds the waits for the work of other devices that a stream makes by waiting for `covered`.
    fn note_awaited(&self, waiter: StreamIndex, covered: &[Stamp]) {
        if !self.awaited.is_expected() {
            return;
        }
        let Some(waiter) = self.device_of(waiter) else { return };
        for stamp in covered.iter().filter(|stamp| !self.is_complete(**stamp)) {
            // The streams of its own device are ordered behind their waits.
            if let Some(source) = self.device_of(stamp.stream_index()).filter(|source| **source != *waiter) {
                self.awaited.add(&waiter, &source, *stamp);
            }
        }
    }

    /// Waits on the host for the stamps. False if the deadline came first, or if a stream cannot be marked now, so that
    /// only a wait for the whole device would cover it.
    pub fn wait_on_host(&self, stamps: &[Stamp], deadline: Instant) -> Result<bool, DriverError> {
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

    /// Queries a marker at growing intervals until it is complete or the deadline has passed: the driver has no wait
    /// with a timeout.
    pub(super) fn wait_for_mark(
        &self,
        device: &PrimaryContext,
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

    /// Records a marker in each owned or long-lived stream of a device that has unmarked work and is not capturing.
    pub(crate) fn mark_streams(&self, device: &PrimaryContext) -> Result<(), DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        for index in self.unfinished_indices(device) {
            self.marker_for(self.stamp(index), |state| state.is_ours())?;
        }
        Ok(())
    }

    /// Adds a separate event, for [`MarkerEvent::show`], for each owned or long-lived stream of a device that has none
    /// in `marks` yet and is not capturing.
    pub fn mark_each(
        &self,
        device: &PrimaryContext,
        marks: &mut Vec<(StreamIndex, MarkerEvent)>,
    ) -> Result<(), DriverError> {
        let _entered = device.enter_relaxed()?;
        let marked_count = marks.len();
        for index in self.used_indices() {
            if marks[..marked_count].iter().any(|(marked, _)| *marked == index) {
                continue;
            }
            if let Some(mut state) = self.stream_states.lock(index).filter(|state| *state.device == *device)
                && state.may_mark(Asker::Pool)
            {
                marks.extend(state.record_apart()?.map(|event| (index, event)));
            }
        }
        Ok(())
    }

    /// The streams of a device whose work is not known to be complete, each with the time of its oldest incomplete
    /// marker. Other libraries' streams have no marker. For an owned or long-lived stream without one, all work before
    /// the last marker is complete.
    pub fn unfinished(&self, device: &PrimaryContext) -> Vec<(StreamId, Option<Instant>)> {
        let mut unfinished = Vec::new();
        for index in self.unfinished_indices(device) {
            let Some(state) = self.stream_states.lock(index) else { continue };
            let marked_at = state.oldest_mark();
            if marked_at.is_some() || state.is_live() && !state.is_ours() {
                unfinished.push((self.stream_in(index), marked_at));
            }
        }
        unfinished
    }

    fn unfinished_indices(&self, device: &PrimaryContext) -> Vec<StreamIndex> {
        let is_of = |index: &StreamIndex| {
            self.stream_states.lock(*index).is_some_and(|state| *state.device == *device)
        };
        self.used_indices().filter(|index| !self.is_complete(self.stamp(*index)) && is_of(index)).collect()
    }

    /// The earliest marker that covers a stamp, or a new one, with the device that its event needs. `None` if there is
    /// none and none may be recorded, or if the predicate `pleases` rejects the state.
    pub(super) fn marker_for(
        &self,
        stamp: Stamp,
        pleases: impl Fn(&Locked<'_>) -> bool,
    ) -> Result<Option<(HeldContext, Arc<Marker>)>, DriverError> {
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
        disable_fast_path(named);
        Ok(found)
    }

    /// True if a wait for the stamp can be queued in a call that does not name the stamp's stream.
    pub fn allows_wait_for(&self, stamp: Stamp) -> bool {
        let state = self.stream_states.lock(stamp.stream_index());
        state.is_none_or(|state| {
            state.allows_waits() && (!state.is_named_only() || state.marker_of(stamp).is_some())
        })
    }

    /// Makes a stream wait for a live event that covers these stamps. True if the order takes effect now. An event
    /// without known stamps may belong to a capture, which the stream joins then: its queued work is marked first.
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
        let counts = raised?.unwrap_or_default();
        if counts && let Some(covered) = covered {
            self.note_awaited(waiter, covered);
        }
        Ok(counts)
    }

    /// Makes a stream wait for everything queued so far on another stream that the call names. False if the other stream was retired.
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

    /// Makes a stream wait for another one that is capturing. Nothing is raised: the driver makes the waiter join the
    /// capture, or refuses.
    pub(crate) fn queue_fork(&self, waiter: StreamIndex, source: StreamIndex) -> Result<bool, DriverError> {
        let Some(event) = self.with_stream_state(source, |state| state.record_apart())?.flatten() else {
            return Ok(false);
        };
        self.queue_wait(waiter, event.raw(), None)?;
        Ok(true)
    }

    /// Makes `waiter`, which this call names, wait on the device for a stamp: for the earliest marker that covers it, or a new one. This
    /// includes streams that forbid inserted waits. False if the stamp's stream is gone, or cannot be marked in a call that does not name
    /// it.
    pub(crate) fn wait_for_stamp(&self, stamp: Stamp, waiter: StreamIndex) -> Result<bool, DriverError> {
        if self.is_ordered(stamp, waiter) {
            return Ok(true);
        }
        let source = stamp.stream_index();
        self.stream_states.awaited_count(source).store(MARKERS_AHEAD, Ordering::Relaxed);
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        if let Some((_device, mark)) = self.marker_for(stamp, |_| true)? {
            return self.queue_wait(waiter, mark.event.raw(), Some(&mark.covered)).map(|_| true);
        }
        let is_ours = self.stream_states.lock(source).is_some_and(|state| state.is_ours());
        // The stream is in a capture that was begun without this crate: the waiter joins it, or the driver refuses.
        if is_ours { self.queue_fork(waiter, source) } else { Ok(false) }
    }

    /// Waits on the host for the earliest marker that covers a stamp, or a new one. False if there is none and none may
    /// be recorded now. The context is current.
    pub(crate) fn synchronize_stamp(&self, stamp: Stamp) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let Some((device, mark)) = self.marker_for(stamp, |_| true)? else {
            return Ok(self.is_complete(stamp));
        };
        self.synchronize_marker(&device, &mark)?;
        Ok(true)
    }

    /// Waits on the host for everything queued so far on a stream that the call names, but not for later work of other
    /// threads. False if no marker may be recorded now.
    pub(crate) fn synchronize_so_far(&self, index: StreamIndex) -> Result<bool, DriverError> {
        let found = self.with_stream_state(index, |state| {
            let mark = state.record_marker(index, &self.epochs, Asker::User)?;
            Ok(mark.map(|mark| (state.device.clone(), mark)))
        })?;
        let Some((device, mark)) = found.flatten() else { return Ok(false) };
        self.synchronize_marker(&device, &mark)?;
        Ok(true)
    }

    /// Records a marker behind everything queued so far on a stream that the call names. `None` if none may be recorded
    /// now.
    pub(crate) fn marker_by_user(&self, index: StreamIndex) -> Result<Option<Arc<Marker>>, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        self.with_stream_state(index, |state| state.record_marker(index, &self.epochs, Asker::User))
            .map(Option::flatten)
    }

    pub(crate) fn synchronize_marker(
        &self,
        device: &PrimaryContext,
        mark: &Marker,
    ) -> Result<(), DriverError> {
        let _bound = device.enter()?;
        device.noting(mark.event.synchronize(device))?;
        self.epochs.raise_complete(&mark.covered);
        Ok(())
    }

    pub(crate) fn query_marker(&self, device: &PrimaryContext, mark: &Marker) -> Result<bool, DriverError> {
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let is_complete = device.noting(mark.event.query(device))?;
        if is_complete {
            self.epochs.raise_complete(&mark.covered);
        }
        Ok(is_complete)
    }

    /// True if a stream can later be waited for up to a stamp: there is a marker, which this call may record.
    pub(crate) fn ensure_marker(&self, stamp: Stamp) -> Result<bool, DriverError> {
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        Ok(self.marker_for(stamp, |_| true)?.is_some())
    }

    /// True if other streams have recently waited for the stream, so that its next work is worth a marker. A marker costs about a
    /// microsecond, so each wait is followed by at most [`MARKERS_AHEAD`] markers.
    #[inline]
    pub(crate) fn has_waiters(&self, index: StreamIndex) -> bool {
        self.stream_states.awaited_count(index).load(Ordering::Relaxed) > 0
    }

    /// Stops recording markers ahead, until another stream waits again.
    pub(crate) fn expect_no_waiters(&self, index: StreamIndex) {
        self.stream_states.awaited_count(index).store(0, Ordering::Relaxed);
    }

    /// Counts a marker that was recorded for later waiters.
    pub(crate) fn use_up_waiter(&self, index: StreamIndex) {
        let less = |count: u32| count.checked_sub(1);
        let count = self.stream_states.awaited_count(index);
        let _news = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// True if the work that a stamp stands for is part of an active capture of this crate.
    pub(crate) fn is_captured(&self, stamp: Stamp) -> bool {
        let captured = self.stream_states.lock(stamp.stream_index()).and_then(|state| state.captured());
        captured.is_some_and(|(graph, epoch)| stamp.epoch() >= epoch && self.captures.knows(graph))
    }

    /// Records an event of the user on a stream that the call names. Returns the stamps that it covers; `None` in a
    /// capture.
    pub(crate) fn record(
        &self,
        index: StreamIndex,
        event: CUevent,
    ) -> Result<Option<Box<[Stamp]>>, DriverError> {
        self.with_stream_state(index, |state| state.record(index, &self.epochs, event)).map(Option::flatten)
    }

    /// Prepares a query of a stream in a call that names it. If another thread has retired it since and its index belongs to another
    /// stream, the observation is empty.
    pub(crate) fn observe(&self, stream: StreamId) -> Result<Observation, DriverError> {
        let index = stream.stream_index();
        let covered = self.with_stream_state(index, |state| {
            let is_its_own = self.epochs.stream_in(index) == stream;
            Ok(if is_its_own { state.close(index, &self.epochs, Asker::User) } else { None })
        })?;
        Ok(Observation(covered.flatten()))
    }

    /// Prepares a query of a whole device: of its streams, and of those that are gone.
    pub(crate) fn observe_device(&self, device: &PrimaryContext) -> Observation {
        let mut all = Vec::new();
        for index in self.used_indices() {
            let Some(mut state) = self.stream_states.lock(index).filter(|state| *state.device == *device)
            else {
                continue;
            };
            if !state.is_live() {
                all.push(self.stamp(index));
            } else if let Some(covered) = state.close_untouched(index, &self.epochs) {
                all.extend(covered);
            }
        }
        Observation(Some(all.into()))
    }

    /// Records that the driver reported a device as complete.
    pub(crate) fn saw_device(&self, device: &PrimaryContext, observation: Observation) {
        self.saw(observation);
        for index in self.used_indices() {
            let state = self.stream_states.lock(index).filter(|state| *state.device == *device);
            state.into_iter().for_each(|mut state| state.settle(&self.epochs));
        }
    }

    /// Records that the driver reported the observed work as complete.
    pub(crate) fn saw(&self, observation: Observation) {
        self.raise_complete(&observation.0.unwrap_or_default());
    }

    /// Records that a marker covering these stamps is complete.
    pub(crate) fn raise_complete(&self, covered: &[Stamp]) {
        self.epochs.raise_complete(covered);
    }

    /// Locks a state with its context current. `None` if the device is gone.
    pub(super) fn with_stream_state<T>(
        &self,
        index: StreamIndex,
        work: impl FnOnce(&mut Locked<'_>) -> Result<T, DriverError>,
    ) -> Result<Option<T>, DriverError> {
        let Some(mut state) = self.stream_states.lock(index) else { return Ok(None) };
        let device = state.device.clone();
        let _bound = device.enter()?;
        work(&mut state).map(Some)
    }
}

/// Makes the next call that names the stream check for a requested marker. Called without a lock: this may drop the
/// last handle.
fn disable_fast_path(stream: Option<Weak<dyn AnyStream>>) {
    if let Some(stream) = stream.and_then(|stream| stream.upgrade()) {
        stream.look_when_named();
    }
}

/// The number of markers of a stream that are recorded ahead of waits, after each wait of another stream.
const MARKERS_AHEAD: u32 = 64;
const PAUSE_MIN: Duration = Duration::from_micros(1);
pub(super) const PAUSE_MAX: Duration = Duration::from_micros(100);

//! The assignment of stream indices, over the lives of streams and devices.
//!
//! A stream that ends leaves a last marker. Its index is reused once that marker is complete, so that no stamp of the former stream can be
//! mistaken for queued work of the new one.
//!
//! No `Device` is dropped while a lock is held here: dropping the last clone takes these locks again.

use super::clocks::{Clocks, NamedStream};
use super::marker::MarkerEvent;
use super::stream_state::{Life, StreamParts, StreamState};
use crate::device::any_stream::{AnyStream, typed};
use crate::device::context::{CaptureModeGuard, ContextGuard};
use crate::device::primary::{PrimaryContext, WeakContext, loss_of_current};
use crate::error::DeviceError;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::order::{Order, StreamId, StreamIndex};
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUcontext, CUstream};
use std::sync::{Arc, Weak};

impl Clocks {
    pub(crate) fn add_device(&self, device: &PrimaryContext) {
        if self.devices_with_reset().iter().any(|other| **other != *device) {
            self.awaited.expect_waits();
        }
        self.table.lock().devices.push(device.downgrade());
    }

    /// Gives a new stream its index and identity. It is alive until [`Clocks::retire`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::TooManyStreams`] if all indices are in use.
    pub(crate) fn open(&self, device: &PrimaryContext, parts: &StreamParts) -> Result<StreamId, DeviceError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let index = self.free_slot()?;
        let stream = StreamId::new(NEXT.fetch_add(1, Ordering::Relaxed), index);
        let former = self.stream_states.guard(index).open(device, parts);
        drop(former);
        self.stream_states.awaited_count(index).store(0, Ordering::Relaxed);
        // From here on the index has incomplete stamps: a thread that finds one also finds the state to mark.
        self.epochs.open(stream);
        self.add_live(parts);
        Ok(stream)
    }

    fn add_live(&self, parts: &StreamParts) {
        if parts.life == Life::Named {
            // Never unset: a stream that is wrapped again, or is declared long-lived, may still have pending memory.
            self.had_named.store(true, Ordering::Relaxed);
        }
    }

    /// The live stream with this driver id, otherwise one that `make` creates from an index and identity. A stream that was abandoned
    /// without a last marker gets its former index and identity if they are still free.
    pub(crate) fn find_or_open<S: AnyStream>(
        &self,
        device: &PrimaryContext,
        parts: &StreamParts,
        driver_id: Option<u64>,
        make: impl FnOnce(StreamId) -> Arc<S>,
    ) -> Result<Arc<S>, DeviceError> {
        let Some(driver_id) = driver_id else {
            let stream = make(self.open(device, parts)?);
            self.set_stream(&stream);
            return Ok(stream);
        };
        // Dropped after the lock: dropping the last clone of a stream takes it.
        let found;
        let mut names = self.names.lock();
        let known = names.get(&driver_id);
        found = known.and_then(|name| name.stream.upgrade()).and_then(typed::<S>);
        if let Some(stream) = found.as_ref().filter(|stream| stream.is_usable()) {
            self.stream_states.guard(stream.id().stream_index()).promise(parts);
            return Ok(Arc::clone(stream));
        }
        let is_kept = |id: StreamId| found.is_none() && self.is_kept(id, parts);
        let known = known.map(|name| name.id);
        let id = match known.filter(|id| is_kept(*id) || self.adopt(*id, device, parts)) {
            Some(id) => id,
            None => self.open(device, parts)?,
        };
        let stream = make(id);
        self.set_stream(&stream);
        names.retain(|_, name| self.epochs.stream_in(name.id.stream_index()) == name.id);
        names.insert(driver_id, name_of(&stream));
        Ok(stream)
    }

    /// Stores the driver id of an owned stream: its handle may be wrapped later.
    pub(crate) fn name<S: AnyStream>(&self, driver_id: Option<u64>, stream: &Arc<S>) {
        if let Some(driver_id) = driver_id {
            self.names.lock().insert(driver_id, name_of(stream));
        }
    }

    fn set_stream<S: AnyStream>(&self, stream: &Arc<S>) {
        let shared: Weak<dyn AnyStream> = Arc::<S>::downgrade(stream);
        self.stream_states.guard(stream.id().stream_index()).set_stream(shared);
    }

    /// Returns the driver id of the owned or long-lived stream that has this handle, which no other stream has while that one lives.
    pub(crate) fn name_of_handle(&self, device: &PrimaryContext, raw: CUstream) -> Option<u64> {
        let device = device.downgrade();
        let is_it = |name: &NamedStream| {
            let index = name.id.stream_index();
            let state = self.stream_states.guard(index);
            name.handle == raw as usize
                && self.epochs.stream_in(index) == name.id
                && state.has_own_handle()
                && state.is_of(&device)
        };
        self.names.lock().iter().find(|(_, name)| is_it(name)).map(|(driver_id, _)| *driver_id)
    }

    /// Renames a stream that was recognised by its handle, now that its driver id is known.
    pub(crate) fn rename(&self, handle: u64, driver_id: u64) {
        let mut names = self.names.lock();
        if !names.contains_key(&driver_id)
            && let Some(name) = names.remove(&handle)
        {
            names.insert(driver_id, name);
        }
    }

    /// True if a stream lives on without a clone and is not retired.
    fn is_kept(&self, stream: StreamId, parts: &StreamParts) -> bool {
        let mut state = self.stream_states.guard(stream.stream_index());
        let is_kept = state.is_long_lived() && self.epochs.stream_in(stream.stream_index()) == stream;
        if is_kept {
            state.promise(parts);
        }
        is_kept
    }

    /// Reopens an abandoned stream, unless its index was reused.
    fn adopt(&self, stream: StreamId, device: &PrimaryContext, parts: &StreamParts) -> bool {
        let mut table = self.table.lock();
        let at = table.retired.binary_search(&stream.stream_index());
        let Some(at) = at.ok().filter(|_| self.epochs.stream_in(stream.stream_index()) == stream) else {
            return false;
        };
        // Host waits in the meantime do not cover work queued from now on.
        if self.epochs.close(stream.stream_index()).is_none() {
            return false;
        }
        table.retired.remove(at);
        drop(table);
        let former = self.stream_states.guard(stream.stream_index()).open(device, parts);
        drop(former);
        self.add_live(parts);
        true
    }

    /// Records the last marker of a stream that is about to end. From here on no other code touches it.
    ///
    /// A failure cannot be reported. Without the marker, the stream's queued work counts as complete once the device
    /// has been waited for.
    pub(crate) fn retire(&self, stream: StreamId, driver_id: Option<u64>) {
        let index = stream.stream_index();
        if driver_id.is_some() {
            // By identity: the stream may have been renamed since it was opened.
            self.names.lock().retain(|_, name| name.id != stream);
        }
        self.last_mark(index);
        self.give_up(index);
    }

    /// Like [`Clocks::retire`], for a stream without clones that lives on until its owner is dropped. If it has been wrapped again since,
    /// returns that wrap instead, which has the same id.
    pub(crate) fn retire_unless_wrapped<S: AnyStream>(&self, stream: StreamId) -> Option<Arc<S>> {
        let mut names = self.names.lock();
        let mut own = names.values().filter(|name| name.id == stream);
        if let Some(wrapped) = own.find_map(|name| typed(name.stream.upgrade()?)) {
            return Some(wrapped);
        }
        names.retain(|_, name| name.id != stream);
        drop(names);
        self.last_mark(stream.stream_index());
        self.give_up(stream.stream_index());
        None
    }

    /// Closes a stream without clones, whose owner may have destroyed it. It is not touched, unless the caller knows
    /// that it is alive. It may be wrapped again. A stream that lives on without a clone is unchanged.
    pub(crate) fn abandon(&self, stream: StreamId, driver_id: Option<u64>, is_alive: bool) {
        let _names = driver_id.map(|_| self.names.lock());
        if self.stream_states.guard(stream.stream_index()).is_long_lived() {
            return;
        }
        if is_alive && !self.is_complete(self.stamp(stream.stream_index())) {
            self.last_mark(stream.stream_index());
        } else if let Some(mut state) = self.stream_states.lock(stream.stream_index()) {
            state.forget();
        }
        self.give_up(stream.stream_index());
    }

    fn last_mark(&self, index: StreamIndex) {
        let Some(mut state) = self.stream_states.lock(index) else { return };
        let device = state.device.clone();
        match device.enter() {
            Ok(_bound) => state.finish(index, &self.epochs),
            Err(_) => state.forget(),
        }
    }

    fn give_up(&self, index: StreamIndex) {
        let mut table = self.table.lock();
        let at = table.retired.partition_point(|other| *other < index);
        table.retired.insert(at, index);
    }

    /// The lowest free index: low indices are cheap to store in a block.
    fn free_slot(&self) -> Result<StreamIndex, DeviceError> {
        if let Some(index) = self.take_complete() {
            return Ok(index);
        }
        let retired = self.table.lock().retired.clone();
        // A query would break active captures.
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        for index in retired {
            // A stream that cannot be queried now keeps its index.
            if self.poll_stream(index).is_ok_and(|moved| moved && self.is_complete(self.stamp(index))) {
                break;
            }
        }
        self.take_complete().map_or_else(|| self.fresh_slot(), Ok)
    }

    fn take_complete(&self) -> Option<StreamIndex> {
        let mut table = self.table.lock();
        let at = table.retired.iter().position(|index| self.is_complete(self.stamp(*index)))?;
        Some(table.retired.remove(at))
    }

    fn fresh_slot(&self) -> Result<StreamIndex, DeviceError> {
        let _one_at_a_time = self.table.lock();
        let next = self.index_count.load(Ordering::Relaxed);
        if next == StreamIndex::COUNT_MAX {
            return Err(DeviceError::TooManyStreams { limit: StreamIndex::COUNT_MAX });
        }
        self.index_count.store(next + 1, Ordering::Release);
        Ok(StreamIndex(next as u16))
    }

    /// Records that all work of a device that is being dropped is done.
    pub(crate) fn saw_end(&self, ending: &WeakContext) {
        let own = self.each_of(ending, |_, index| self.stamp(index));
        self.epochs.raise_complete(&own);
    }

    /// Calls `work` with the state of each stream of a device, including streams that are gone, while it is locked: at any other time, the
    /// index of a stream that is gone may be reused by another device's stream.
    fn each_of<T>(&self, device: &WeakContext, work: impl Fn(&mut StreamState, StreamIndex) -> T) -> Vec<T> {
        let called = |index| {
            let mut state = self.stream_states.guard(index);
            state.is_of(device).then(|| work(&mut state, index))
        };
        self.used_indices().filter_map(called).collect()
    }

    /// Closes a device before its context is released. Pending work on its streams goes to another `Device` of the context. If there is
    /// none, waits for the work if the machine has other devices, whose pools may ask for its completion.
    pub(crate) fn close_device(&self, ending: &WeakContext, context: CUcontext) {
        self.table.lock().devices.retain(|device| !device.is_same(ending));
        let others = self.devices();
        if let Some(heir) = others.iter().find(|other| other.context() == context) {
            self.each_of(ending, |state, _| state.move_to(heir));
            return;
        }
        // A host function may not call the driver: waiting is impossible, and the events are destroyed later.
        let enter = || ContextGuard::enter(&self.driver, context);
        let bound = enter().or_else(|_| enter());
        if let Err(error) = &bound
            && !error.is_not_permitted()
        {
            return self.awaited.end(context, || Some(*error));
        }
        let mut pending = self.each_of(ending, |_, index| self.stamp(index));
        pending.retain(|stamp| !self.is_complete(*stamp));
        if bound.is_ok() && !pending.is_empty() && !others.is_empty() {
            // SAFETY: the context is current and alive.
            let waited = unsafe { self.driver.cuCtxSynchronize() };
            if waited.is_ok() {
                self.epochs.raise_complete(&pending);
            }
        }
        self.awaited.end(context, || loss_of_current(&self.driver).filter(|_| bound.is_ok()));
        let events = self.end_streams(ending);
        events.into_iter().for_each(|event| event.destroy(&self.driver, context));
    }

    /// Long-lived streams live until their device is dropped, which is now. Returns the events of all streams of the device.
    fn end_streams(&self, ending: &WeakContext) -> Vec<MarkerEvent> {
        let ended =
            self.each_of(ending, |state, index| (state.take_events(), state.forget().then_some(index)));
        let (events, kept): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        kept.into_iter().flatten().for_each(|index| self.give_up(index));
        events.into_iter().flatten().collect()
    }

    /// The end of a device that was reset: its work has ended, and its objects are gone.
    pub(crate) fn drop_device(&self, ending: &WeakContext, context: CUcontext, error: DriverError) {
        self.awaited.end(context, || Some(error));
        self.table.lock().devices.retain(|device| !device.is_same(ending));
        self.saw_end(ending);
        // Their drops find no device, and do nothing.
        drop(self.end_streams(ending));
    }
}

fn name_of<S: AnyStream>(stream: &Arc<S>) -> NamedStream {
    let shared: Weak<dyn AnyStream> = Arc::<S>::downgrade(stream);
    NamedStream { stream: shared, id: stream.id(), handle: stream.raw() as usize }
}

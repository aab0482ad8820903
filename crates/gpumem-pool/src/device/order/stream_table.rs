//! Who has which slot: streams that come and go, and devices that end.
//!
//! A stream that ends leaves its last mark behind. Its slot goes to another stream once that mark has been passed, so
//! that no stamp of the former stream can be taken for work of the new one that is still queued.
//!
//! No `Device` is let go of while a lock is held here: its end takes the locks again.

use super::marker::MarkerEvent;
use super::{Clocks, Life, Order, Stamp, StreamId, StreamIndex, StreamParts};
use crate::device::{CaptureModeGuard, ContextGuard, Device, Stream, WeakDevice, WeakStream};
use crate::error::PoolError;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_sys::types::CUcontext;
use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

/// What is known of slots and devices as a whole.
#[derive(Default)]
pub(super) struct StreamTable {
    /// Their streams are gone; lowest first.
    retired: Vec<StreamIndex>,
    devices: Vec<WeakDevice>,
}

/// A stream by the driver's id: the wrap that is alive, or the slot that the last one had.
pub(super) struct Name {
    stream: WeakStream,
    id: StreamId,
}

impl Clocks {
    pub(crate) fn add_device(&self, device: &Device) {
        self.slots().devices.push(device.downgrade());
    }

    /// All that are open. Not to be let go of under a lock of the clocks.
    pub(crate) fn devices(&self) -> Vec<Device> {
        self.slots().devices.iter().filter_map(WeakDevice::upgrade).collect()
    }

    /// Gives a new stream its slot and name. It is alive until [`Clocks::retire`].
    ///
    /// # Errors
    ///
    /// [`PoolError::TooManyStreams`].
    pub(crate) fn open(&self, device: &Device, parts: &StreamParts) -> Result<StreamId, PoolError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let slot = self.free_slot()?;
        let stream = StreamId::new(NEXT.fetch_add(1, Ordering::Relaxed), slot);
        let former = self.stream_states.guard(slot).open(device, parts);
        drop(former);
        // From here on the slot has stamps that are not complete: whoever finds one also finds the state to mark.
        self.epochs.open(stream);
        self.add_live(parts);
        Ok(stream)
    }

    fn add_live(&self, parts: &StreamParts) {
        self.live_count.fetch_add(1, Ordering::Relaxed);
        if parts.life == Life::Named {
            // Never fewer: a stream that comes again, or is promised to live longer, changes nothing of what may be pending.
            self.had_named.store(true, Ordering::Relaxed);
        }
    }

    /// The stream that the driver knows by this id, if anyone holds it; else one that `make` makes of its slot and name.
    /// One that was let go of without its last mark gets its former slot and name, if that is still to be had.
    pub(crate) fn find_or_open(
        &self,
        device: &Device,
        parts: &StreamParts,
        driver_id: Option<u64>,
        make: impl FnOnce(StreamId) -> Stream,
    ) -> Result<Stream, PoolError> {
        let Some(driver_id) = driver_id else {
            let stream = make(self.open(device, parts)?);
            self.stream_states.guard(stream.stream_index()).set_stream(stream.downgrade());
            return Ok(stream);
        };
        // Let go of after the lock: the end of a stream takes it.
        let found;
        let mut names = self.names();
        let known = names.get(&driver_id);
        found = known.and_then(|name| name.stream.upgrade());
        if let Some(stream) = found.as_ref().filter(|stream| stream.check_usable().is_ok()) {
            self.stream_states.guard(stream.stream_index()).promise(parts);
            return Ok(stream.clone());
        }
        let is_kept = |id: StreamId| found.is_none() && self.is_kept(id, parts);
        let known = known.map(|name| name.id);
        let id = match known.filter(|id| is_kept(*id) || self.adopt(*id, device, parts)) {
            Some(id) => id,
            None => self.open(device, parts)?,
        };
        let stream = make(id);
        self.stream_states.guard(stream.stream_index()).set_stream(stream.downgrade());
        names.retain(|_, name| self.epochs.stream_in(name.id.stream_index()) == name.id);
        names.insert(driver_id, Name { stream: stream.downgrade(), id });
        Ok(stream)
    }

    /// Notes the driver's id of a stream that has been made here: somebody may come with its handle.
    pub(crate) fn name(&self, driver_id: Option<u64>, stream: &Stream) {
        if let Some(driver_id) = driver_id {
            self.names().insert(driver_id, Name { stream: stream.downgrade(), id: stream.id() });
        }
    }

    /// Whether a stream lives on without a clone, and is not retired.
    fn is_kept(&self, stream: StreamId, parts: &StreamParts) -> bool {
        let mut state = self.stream_states.guard(stream.stream_index());
        let is_kept = state.is_long_lived() && self.epochs.stream_in(stream.stream_index()) == stream;
        if is_kept {
            state.promise(parts);
        }
        is_kept
    }

    /// Takes a stream up again that has been abandoned, unless its slot has gone to another.
    fn adopt(&self, stream: StreamId, device: &Device, parts: &StreamParts) -> bool {
        let mut slots = self.slots();
        let at = slots.retired.binary_search(&stream.stream_index());
        let Some(at) = at.ok().filter(|_| self.epochs.stream_in(stream.stream_index()) == stream) else {
            return false;
        };
        // What is queued from now on is not what waits of the host have seen meanwhile.
        if self.epochs.close(stream.stream_index()).is_none() {
            return false;
        }
        slots.retired.remove(at);
        drop(slots);
        let former = self.stream_states.guard(stream.stream_index()).open(device, parts);
        drop(former);
        self.add_live(parts);
        true
    }

    /// The stream is about to end: makes its last mark. From here on nobody else touches it.
    ///
    /// Nobody is there to tell of a failure. Without the mark, what the stream has queued counts as complete once the
    /// device has been waited for.
    pub(crate) fn retire(&self, stream: StreamId, driver_id: Option<u64>) {
        let slot = stream.stream_index();
        if let Some(driver_id) = driver_id {
            let mut names = self.names();
            if names.get(&driver_id).is_some_and(|name| name.id == stream) {
                names.remove(&driver_id);
            }
        }
        self.last_mark(slot);
        self.give_up(slot);
    }

    /// Nobody holds the stream, whose owner may have destroyed it: it is not touched, unless the caller knows that it
    /// is alive. It may come again. One that lives on without a clone stays as it is.
    pub(crate) fn abandon(&self, stream: StreamId, driver_id: Option<u64>, is_alive: bool) {
        let _names = driver_id.map(|_| self.names());
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

    fn last_mark(&self, slot: StreamIndex) {
        let Some(mut state) = self.stream_states.lock(slot) else { return };
        let device = state.device.clone();
        match device.enter() {
            Ok(_bound) => state.finish(slot, &self.epochs),
            Err(_) => state.forget(),
        }
    }

    fn give_up(&self, slot: StreamIndex) {
        self.live_count.fetch_sub(1, Ordering::Relaxed);
        let mut slots = self.slots();
        let at = slots.retired.partition_point(|other| *other < slot);
        slots.retired.insert(at, slot);
    }

    /// The lowest that can be had: low slots are cheap to name in a block.
    fn free_slot(&self) -> Result<StreamIndex, PoolError> {
        if let Some(slot) = self.take_complete() {
            return Ok(slot);
        }
        let retired = self.slots().retired.clone();
        // A query would break captures that go on.
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        for slot in retired {
            // What can't be asked now stays where it is.
            if self.poll_stream(slot).is_ok_and(|moved| moved && self.is_complete(self.stamp(slot))) {
                break;
            }
        }
        self.take_complete().map_or_else(|| self.fresh_slot(), Ok)
    }

    fn take_complete(&self) -> Option<StreamIndex> {
        let mut slots = self.slots();
        let at = slots.retired.iter().position(|slot| self.is_complete(self.stamp(*slot)))?;
        Some(slots.retired.remove(at))
    }

    fn fresh_slot(&self) -> Result<StreamIndex, PoolError> {
        let _one_at_a_time = self.slots();
        let next = self.slot_count.load(Ordering::Relaxed);
        if next == StreamIndex::COUNT_MAX {
            return Err(PoolError::TooManyStreams { limit: StreamIndex::COUNT_MAX });
        }
        self.slot_count.store(next + 1, Ordering::Release);
        Ok(StreamIndex(next as u16))
    }

    /// The end of a device, before its context is released. What is pending on its streams goes to another holder of
    /// the context; if there is none but the machine has other devices, whose pools may ask for it, it is waited for.
    pub(crate) fn close_device(&self, ending: &WeakDevice, context: CUcontext) {
        self.slots().devices.retain(|device| !device.is_same(ending));
        let others = self.devices();
        let own: Vec<StreamIndex> =
            self.used_slots().filter(|slot| self.stream_states.guard(*slot).is_of(ending)).collect();
        if let Some(heir) = others.iter().find(|other| other.context() == context) {
            own.iter().for_each(|slot| self.stream_states.guard(*slot).move_to(heir));
            return;
        }
        let Ok(_bound) = ContextGuard::enter(&self.driver, context) else { return };
        let pending: Vec<Stamp> =
            own.iter().map(|slot| self.stamp(*slot)).filter(|stamp| !self.is_complete(*stamp)).collect();
        // SAFETY: the context is current and alive.
        if !pending.is_empty() && !others.is_empty() && unsafe { self.driver.cuCtxSynchronize() }.is_ok() {
            self.epochs.raise_complete(&pending);
        }
        // Those that live on without a clone, until their device ends: it has.
        let kept = own.iter().filter(|slot| self.stream_states.guard(**slot).forget());
        kept.for_each(|slot| self.give_up(*slot));
        let events: Vec<MarkerEvent> =
            own.iter().flat_map(|slot| self.stream_states.guard(*slot).take_events()).collect();
        events.into_iter().for_each(|event| event.destroy(&self.driver));
    }

    pub(super) fn used_slots(&self) -> impl Iterator<Item = StreamIndex> + use<> {
        (0..self.slot_count.load(Ordering::Acquire)).map(|index| StreamIndex(index as u16))
    }

    /// Taken before the lock of the slots.
    fn names(&self) -> MutexGuard<'_, HashMap<u64, Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, StreamTable> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

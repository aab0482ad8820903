//! [`Clocks`]: which uses of memory are ordered before a stream's next operation, and which are done.
//!
//! A free asks the driver nothing: it takes a [`Stamp`], the stream's slot and its epoch. Whoever wants the memory
//! later compares two numbers ([`Order`]). Marks in the streams, which make those numbers move, are made only when
//! somebody needs them (a *record_marker*), before a stream captures, since none can be made then, and by everything in this
//! crate that orders or observes streams anyway.
//!
//! One `Clocks` serves a machine: its devices and all threads share it, since streams of two devices may wait for each
//! other. The numbers and their rules are [`gpumem_heap::order`]; `state` is a stream's side of it, which calls the driver;
//! `slots` hands slots out and takes them back.
//!
//! *Steps, always in this order.* A record_marker closes the epoch, notes what is ordered before the stream, records the event,
//! and lists it if that went well. A wait calls the driver, then raises what is ordered. A query or a wait of the host
//! closes the epoch, calls the driver, and raises what is complete if the driver says so. In a capture nothing is raised:
//! what is queued there runs when the graph does, if ever.
//!
//! *Locks.* Each state has one, held around short calls to the driver; `StreamTable` has one that is taken before a state's. A
//! state's lock is taken before the driver's teardown lock, and never inside it.

#[allow(unsafe_code)]
mod capture;
mod finish;
#[allow(unsafe_code)]
mod marker;
#[allow(unsafe_code)]
mod stream_state;
#[allow(unsafe_code)]
mod stream_table;
pub(crate) mod uses;
mod wait;

use crate::device::Captures;
pub(crate) use capture::Part;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub use gpumem_heap::order::StreamId;
use gpumem_heap::order::{Epochs, Seen};
pub(crate) use gpumem_heap::order::{Order, Stamp, StreamIndex};
use gpumem_sys::Driver;
pub(crate) use marker::MarkerEvent;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use stream_state::StreamStates;
pub(crate) use stream_state::{Life, StreamParts};
use stream_table::{Name, StreamTable};
pub(crate) use uses::GRAPH_BIT;
pub(crate) use wait::Observation;

/// The clocks of one machine.
pub(crate) struct Clocks {
    driver: Driver,
    epochs: Epochs,
    stream_states: StreamStates,
    slots: Mutex<StreamTable>,
    /// By the driver's id.
    names: Mutex<HashMap<u64, Name>>,
    live_count: AtomicUsize,
    /// Whether there ever was a stream that is marked only in calls that name it.
    had_named: AtomicBool,
    /// StreamTable below this were ever used.
    slot_count: AtomicUsize,
    /// Where the next poll begins.
    cursor: AtomicUsize,
    /// What captures, and graphs made by them, keep from being used otherwise.
    captures: Captures,
    /// What the last check found.
    seen: Mutex<Seen>,
}

impl Clocks {
    /// The one of the machine behind a driver, for as long as anybody holds it.
    pub(crate) fn of(driver: &Driver) -> Arc<Self> {
        static MACHINES: Mutex<Vec<Weak<Clocks>>> = Mutex::new(Vec::new());
        let mut machines = MACHINES.lock().unwrap_or_else(PoisonError::into_inner);
        let live: Vec<_> = machines.iter().filter_map(Weak::upgrade).collect();
        let found = live.iter().find(|clocks| clocks.driver.is_same_machine(driver)).cloned();
        let clocks = found.unwrap_or_else(|| Arc::new(Self::new(driver)));
        machines.retain(|clocks| clocks.strong_count() > 0);
        if !live.iter().any(|known| Arc::ptr_eq(known, &clocks)) {
            machines.push(Arc::downgrade(&clocks));
        }
        // The last holder of another machine's may have let go meanwhile: its end must not find the list locked.
        drop(machines);
        clocks
    }

    fn new(driver: &Driver) -> Self {
        Self {
            driver: driver.clone(),
            epochs: Epochs::new(),
            stream_states: StreamStates::new(),
            slots: Mutex::default(),
            names: Mutex::default(),
            live_count: AtomicUsize::new(0),
            had_named: AtomicBool::new(false),
            slot_count: AtomicUsize::new(0),
            cursor: AtomicUsize::new(0),
            captures: Captures::default(),
            seen: Mutex::default(),
        }
    }

    /// Stands for everything queued on the slot's stream by now.
    #[inline]
    pub(crate) fn stamp(&self, slot: StreamIndex) -> Stamp {
        self.epochs.stamp(slot)
    }

    /// The same by the stream's name, or [`Stamp::COMPLETE`] if its slot has gone to another: then its work is complete.
    #[inline]
    pub(crate) fn stamp_of(&self, stream: StreamId) -> Stamp {
        self.epochs.stamp_of(stream)
    }

    /// The uses of a block that are not known to be done: the owner stream's, then those of the slots that are told of.
    pub(crate) fn uses(&self, owner_stream: StreamId, uses: u64) -> impl Iterator<Item = Stamp> {
        // A slot that is just being given to its first stream has no work yet, and nothing that could be waited for.
        let had_stream = |slot: &StreamIndex| self.epochs.stream_in(*slot) != StreamId::from_u64(0);
        let used = self.used(uses).filter(had_stream).map(|slot| self.stamp(slot));
        core::iter::once(self.stamp_of(owner_stream)).chain(used).filter(|stamp| !self.is_complete(*stamp))
    }

    /// The stream that has a slot, or had it last.
    pub(crate) fn stream_in(&self, slot: StreamIndex) -> StreamId {
        self.epochs.stream_in(slot)
    }

    /// The slots that [`uses`] tells of.
    pub(crate) fn used(&self, uses: u64) -> impl Iterator<Item = StreamIndex> + use<> {
        uses::slots(uses, self.slot_count.load(Ordering::Acquire))
    }

    /// The streams that [`uses`] tells of.
    pub(crate) fn users(&self, uses: u64) -> impl Iterator<Item = StreamId> {
        let slots = if uses == 0 { None } else { Some(self.used(uses)) };
        slots.into_iter().flatten().map(|slot| self.stream_in(slot))
    }

    #[inline]
    pub(crate) fn captures(&self) -> &Captures {
        &self.captures
    }

    /// Whether no clock has gone back since this was last asked: says the first that has.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.epochs.check(self.slot_count.load(Ordering::Acquire), &mut seen)
    }

    /// Whether streams may be about that are marked only in calls that name them.
    pub(crate) fn has_named_streams(&self) -> bool {
        self.had_named.load(Ordering::Relaxed)
    }

    /// Streams that are alive. With only one, nothing ever needs a mark.
    pub(crate) fn active_streams(&self) -> usize {
        self.live_count.load(Ordering::Relaxed)
    }
}

impl Order for Clocks {
    #[inline]
    fn is_ordered(&self, stamp: Stamp, before: StreamIndex) -> bool {
        #[cfg(gpumem_planted_bugs)]
        if crate::injected_bugs::has(crate::injected_bugs::Bug::InvertedClocks) {
            return stamp.stream_index() == before || !self.epochs.is_ordered(stamp, before);
        }
        self.epochs.is_ordered(stamp, before)
    }

    #[inline]
    fn is_complete(&self, stamp: Stamp) -> bool {
        self.epochs.is_complete(stamp)
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

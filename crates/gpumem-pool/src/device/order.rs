//! [`Clocks`] determines which uses of memory are ordered before a stream's next operation, and which are complete.
//!
//! A free makes no driver call: it takes a [`Stamp`], the stream's index and its epoch. A later request for the memory
//! compares two numbers ([`Order`]). Markers, events in the streams that advance those numbers, are recorded only when
//! a request needs one, before a stream captures (a capturing stream takes none), and by every operation of this crate
//! that orders or observes streams.
//!
//! One `Clocks` serves a machine: its devices and all threads share it, because streams of two devices may wait for each other.
//! [`gpumem_heap::order`] has the numbers and their rules. `stream_state` is a stream's side, which calls the driver. `stream_table`
//! assigns and reclaims stream indices.
//!
//! *Steps, always in this order.* Recording a marker closes the epoch, stores what is ordered before the stream,
//! records the event, and lists the marker if that succeeded. A stream's wait calls the driver, then raises the order.
//! A query or wait of the host closes the epoch, calls the driver, and raises completion if the driver reports it.
//! During a capture nothing is raised: captured work runs when the graph is launched, if ever.
//!
//! *Locks.* Each state has a lock, held around short driver calls. The lock of `StreamTable` is taken before a state's
//! lock. A state's lock is taken before the lock under which the driver destroys objects, and never inside it.

#[allow(unsafe_code)]
mod awaited;
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

use crate::device::{Captures, Sleepers};
use awaited::Awaited;
pub(crate) use capture::Part;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub use gpumem_heap::order::StreamId;
use gpumem_heap::order::{Epochs, Seen};
pub(crate) use gpumem_heap::order::{Order, Stamp, StreamIndex};
use gpumem_sys::Driver;
pub(crate) use marker::{Marker, MarkerEvent};
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
    table: Mutex<StreamTable>,
    /// By the driver's unique stream id.
    names: Mutex<HashMap<u64, Name>>,
    /// True if there was ever a stream that may be marked only by calls that name it.
    had_named: AtomicBool,
    /// True if there were ever two devices, which can wait for each other.
    had_several_devices: AtomicBool,
    /// The waits of devices for each other's work.
    awaited: Mutex<Vec<Awaited>>,
    /// True if there are any such waits. Each wait of the host checks it.
    has_awaited: AtomicBool,
    /// All stream indices ever used are below this.
    index_count: AtomicUsize,
    /// The index at which the next poll begins.
    cursor: AtomicUsize,
    /// The active captures and the graphs made from captures.
    captures: Captures,
    /// The memory that sleeps. Every device may use the memory of the others.
    sleepers: Sleepers,
    /// The values of the last [`Clocks::check`].
    seen: Mutex<Seen>,
}

impl Clocks {
    /// The clocks of a driver's machine. They exist as long as a device holds them.
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
        // Unlocked first: another machine's clocks may be dropped here, which takes the lock of the list.
        drop(machines);
        clocks
    }

    fn new(driver: &Driver) -> Self {
        Self {
            driver: driver.clone(),
            epochs: Epochs::new(),
            stream_states: StreamStates::new(),
            table: Mutex::default(),
            names: Mutex::default(),
            had_named: AtomicBool::new(false),
            had_several_devices: AtomicBool::new(false),
            awaited: Mutex::default(),
            has_awaited: AtomicBool::new(false),
            index_count: AtomicUsize::new(0),
            cursor: AtomicUsize::new(0),
            captures: Captures::default(),
            sleepers: Sleepers::default(),
            seen: Mutex::default(),
        }
    }

    pub(crate) fn sleepers(&self) -> &Sleepers {
        &self.sleepers
    }

    /// A stamp for everything queued on the stream so far.
    #[inline]
    pub(crate) fn stamp(&self, index: StreamIndex) -> Stamp {
        self.epochs.stamp(index)
    }

    /// Like [`Clocks::stamp`], by identity. [`Stamp::COMPLETE`] if the index belongs to another stream now: then the
    /// work is complete.
    #[inline]
    pub(crate) fn stamp_of(&self, stream: StreamId) -> Stamp {
        self.epochs.stamp_of(stream)
    }

    /// The uses of a block that are not known to be complete: the owner stream's, then those of the streams in the word
    /// `uses`.
    pub(crate) fn uses(&self, owner_stream: StreamId, uses: u64) -> impl Iterator<Item = Stamp> {
        // An index that is being assigned to its first stream has no work yet.
        let had_stream = |index: &StreamIndex| self.epochs.stream_in(*index) != StreamId::from_u64(0);
        let used = self.used(uses).filter(had_stream).map(|index| self.stamp(index));
        core::iter::once(self.stamp_of(owner_stream)).chain(used).filter(|stamp| !self.is_complete(*stamp))
    }

    /// The stream that has this index, or had it last.
    pub(crate) fn stream_in(&self, index: StreamIndex) -> StreamId {
        self.epochs.stream_in(index)
    }

    /// The stream indices in a word of [`uses`].
    pub(crate) fn used(&self, uses: u64) -> impl Iterator<Item = StreamIndex> + use<> {
        uses::indices(uses, self.index_count.load(Ordering::Acquire))
    }

    /// The streams in a word of [`uses`].
    pub(crate) fn users(&self, uses: u64) -> impl Iterator<Item = StreamId> {
        let indices = if uses == 0 { None } else { Some(self.used(uses)) };
        indices.into_iter().flatten().map(|index| self.stream_in(index))
    }

    #[inline]
    pub(crate) fn captures(&self) -> &Captures {
        &self.captures
    }

    /// Checks that no clock has gone back since the last check. The error names the first that has.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.epochs.check(self.index_count.load(Ordering::Acquire), &mut seen)
    }

    /// True if there may be streams that only calls naming them may mark.
    pub(crate) fn has_named_streams(&self) -> bool {
        self.had_named.load(Ordering::Relaxed)
    }

    /// The number of live streams.
    #[cfg(test)]
    pub(crate) fn active_streams(&self) -> usize {
        let is_live =
            |index: &StreamIndex| self.stream_states.lock(*index).is_some_and(|state| state.is_live());
        self.used_indices().filter(is_live).count()
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

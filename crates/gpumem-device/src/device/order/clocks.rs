//! [`Clocks`]: the clocks of one machine, and what they say without a driver call.

use super::awaited::AwaitedWork;
use super::stream_state::StreamStates;
use super::uses::indices;
use crate::device::any_stream::AnyStream;
use crate::device::captures::Captures;
use crate::device::primary::{HeldContext, WeakContext};
use crate::device::sleepers::Sleepers;
use crate::error::DeviceError;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use gpumem_base::order::{Epochs, Order, Seen, Stamp, StreamId, StreamIndex};
use gpumem_base::sync::Lock;
use gpumem_sys::Driver;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The clocks of one machine.
pub struct Clocks {
    pub(super) driver: Driver,
    pub(super) epochs: Epochs,
    pub(super) stream_states: StreamStates,
    pub(super) table: Lock<StreamTable>,
    /// By the driver's unique stream id. Locked before the table.
    pub(super) names: Lock<HashMap<u64, NamedStream>>,
    /// True if there was ever a stream that may be marked only by calls that name it.
    pub(super) had_named: AtomicBool,
    pub(super) awaited: AwaitedWork,
    /// All stream indices ever used are below this.
    pub(super) index_count: AtomicUsize,
    /// The index at which the next poll begins.
    pub(super) cursor: AtomicUsize,
    /// The active captures and the graphs made from captures.
    pub(super) captures: Captures,
    sleepers: Sleepers,
    /// The values of the last [`Clocks::check`].
    seen: Lock<Seen>,
}

#[derive(Default)]
pub(super) struct StreamTable {
    /// The indices whose streams are gone; lowest first.
    pub(super) retired: Vec<StreamIndex>,
    pub(super) devices: Vec<WeakContext>,
}

/// A stream by the driver's unique id: the live wrap, or the identity of the last one.
pub(super) struct NamedStream {
    pub(super) stream: Weak<dyn AnyStream>,
    pub(super) id: StreamId,
    /// The driver's handle, as a number.
    pub(super) handle: usize,
}

impl Clocks {
    /// The clocks of a driver's machine. They exist as long as a device holds them.
    pub(crate) fn of(driver: &Driver) -> Arc<Self> {
        static MACHINES: Lock<Vec<Weak<Clocks>>> = Lock::new(Vec::new());
        let mut machines = MACHINES.lock();
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
            table: Lock::default(),
            names: Lock::default(),
            had_named: AtomicBool::new(false),
            awaited: AwaitedWork::default(),
            index_count: AtomicUsize::new(0),
            cursor: AtomicUsize::new(0),
            captures: Captures::default(),
            sleepers: Sleepers::default(),
            seen: Lock::default(),
        }
    }

    pub(crate) fn sleepers(&self) -> &Sleepers {
        &self.sleepers
    }

    /// A stamp for everything queued on the stream so far.
    #[inline]
    pub fn stamp(&self, index: StreamIndex) -> Stamp {
        self.epochs.stamp(index)
    }

    /// Like [`Clocks::stamp`], by identity. [`Stamp::COMPLETE`] if the index belongs to another stream now: then the
    /// work is complete.
    #[inline]
    pub fn stamp_of(&self, stream: StreamId) -> Stamp {
        self.epochs.stamp_of(stream)
    }

    /// The uses of a block that are not known to be complete: the owner stream's, then those of the streams in the word
    /// `uses`.
    #[inline]
    pub fn uses(&self, owner_stream: StreamId, uses: u64) -> impl Iterator<Item = Stamp> {
        // An index that is being assigned to its first stream has no work yet.
        let had_stream = |index: &StreamIndex| self.epochs.stream_in(*index) != StreamId::from_u64(0);
        let used = self.used(uses).filter(had_stream).map(|index| self.stamp(index));
        core::iter::once(self.stamp_of(owner_stream)).chain(used).filter(|stamp| !self.is_complete(*stamp))
    }

    /// The stream that has this index, or had it last.
    #[inline]
    pub fn stream_in(&self, index: StreamIndex) -> StreamId {
        self.epochs.stream_in(index)
    }

    /// The stream indices in a word of [`uses`].
    #[inline]
    pub fn used(&self, uses: u64) -> impl Iterator<Item = StreamIndex> + use<> {
        indices(uses, self.index_count.load(Ordering::Acquire))
    }

    /// The streams in a word of [`uses`].
    #[inline]
    pub fn users(&self, uses: u64) -> impl Iterator<Item = StreamId> {
        let indices = if uses == 0 { None } else { Some(self.used(uses)) };
        indices.into_iter().flatten().map(|index| self.stream_in(index))
    }

    /// The captures that are active on the machine.
    #[inline]
    pub fn captures(&self) -> &Captures {
        &self.captures
    }

    /// The numbers behind the clocks.
    #[inline]
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// The contexts of all open devices, except those that were reset. Do not drop them under a lock of the clocks.
    pub(crate) fn devices(&self) -> Vec<HeldContext> {
        let mut devices = self.devices_with_reset();
        devices.retain(|device| !device.is_reset());
        devices
    }

    /// Like [`Clocks::devices`], with those that the program has reset.
    pub(crate) fn devices_with_reset(&self) -> Vec<HeldContext> {
        self.table.lock().devices.iter().filter_map(WeakContext::upgrade).collect()
    }

    /// Returns an error if a device is lost that another device has waited for. Called after each wait of the host that the program
    /// requests.
    ///
    /// # Errors
    ///
    /// [`DeviceError::AwaitedDeviceLost`].
    #[inline]
    pub(crate) fn check_awaited(&self) -> Result<(), DeviceError> {
        if self.awaited.is_empty() {
            return Ok(());
        }
        self.awaited.find_lost_source(&self.devices_with_reset(), |stamp| self.is_complete(stamp))
    }

    pub(super) fn used_indices(&self) -> impl Iterator<Item = StreamIndex> + use<> {
        (0..self.index_count.load(Ordering::Acquire)).map(|index| StreamIndex(index as u16))
    }

    /// Checks that no clock has gone back since the last check. The error names the first that has.
    pub fn check(&self) -> Result<(), String> {
        let mut seen = self.seen.lock();
        self.epochs.check(self.index_count.load(Ordering::Acquire), &mut seen)
    }

    /// True if there may be streams that only calls naming them may mark.
    #[inline]
    pub fn has_named_streams(&self) -> bool {
        self.had_named.load(Ordering::Relaxed)
    }

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
        if gpumem_base::injected_bugs::has(gpumem_base::injected_bugs::Bug::InvertedClocks) {
            return stamp.stream_index() == before || !self.epochs.is_ordered(stamp, before);
        }
        self.epochs.is_ordered(stamp, before)
    }

    #[inline]
    fn is_complete(&self, stamp: Stamp) -> bool {
        self.epochs.is_complete(stamp)
    }
}

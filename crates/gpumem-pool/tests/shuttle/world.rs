//! What the ladder stands in, small enough for many schedules: a heap whose pieces are all alike, streams whose work is
//! done when somebody waits for it, and a pool's front and its drains put together as in the library's `shared.rs`.

use crate::counters::Counters;
use crate::front::{Front, Spill};
use crate::magazine::{Own, Piece};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) mod clock {
    pub(crate) use crate::stamp::{Order, Slot, Stamp};
    use gpumem_sys::DriverError;
    use shuttle::rand::{Rng, thread_rng};
    use shuttle::sync::Mutex;
    use std::time::{Duration, Instant};

    const SLOT_COUNT: usize = 4;

    /// Of each stream the epoch, and the last that is complete.
    pub(crate) struct Clocks(Mutex<[(u64, u64); SLOT_COUNT]>);

    impl Clocks {
        pub(crate) fn new() -> Self {
            Self(Mutex::new([(1, 0); SLOT_COUNT]))
        }

        pub(crate) fn stamp(&self, slot: Slot) -> Stamp {
            Stamp::new(slot, self.0.lock().unwrap()[usize::from(slot.0)].0)
        }

        pub(crate) fn tick(&self, slot: Slot) -> Result<bool, DriverError> {
            self.0.lock().unwrap()[usize::from(slot.0)].0 += 1;
            Ok(true)
        }

        /// Sees some streams done, up to their last marks.
        pub(crate) fn poll(&self, _: Duration) -> Result<bool, DriverError> {
            let mut is_news = false;
            for (epoch, complete) in self.0.lock().unwrap().iter_mut().filter(|_| thread_rng().r#gen()) {
                is_news |= *complete < *epoch - 1;
                *complete = *epoch - 1;
            }
            Ok(is_news)
        }

        pub(crate) fn insert_wait(&self, _: Stamp, _: Slot) -> Result<bool, DriverError> {
            Ok(false)
        }

        pub(crate) fn wait_on_host(&self, stamps: &[Stamp], _: Instant) -> Result<bool, DriverError> {
            let mut streams = self.0.lock().unwrap();
            for stamp in stamps {
                let (epoch, complete) = &mut streams[usize::from(stamp.slot().0)];
                *complete = stamp.epoch().max(*complete);
                *epoch = (*complete + 1).max(*epoch);
            }
            Ok(true)
        }

        pub(super) fn finish(&self) {
            for (epoch, complete) in self.0.lock().unwrap().iter_mut() {
                *complete = *epoch;
                *epoch += 1;
            }
        }
    }

    impl Order for Clocks {
        fn is_ordered(&self, stamp: Stamp, before: Slot) -> bool {
            stamp.slot() == before || self.is_complete(stamp)
        }

        fn is_complete(&self, stamp: Stamp) -> bool {
            stamp == Stamp::NONE || self.0.lock().unwrap()[usize::from(stamp.slot().0)].1 >= stamp.epoch()
        }
    }
}

pub(crate) mod heap {
    use super::clock::{Order, Slot, Stamp};
    use super::{BTreeMap, BTreeSet, Piece, Vmm};
    use gpumem_sys::DriverError;

    #[derive(Clone, Copy)]
    pub(crate) struct Request {
        pub(crate) size_bytes: u64,
        pub(crate) slot: Slot,
    }

    /// Pieces of one size, which takes `PIECE_BYTES` of physical memory each.
    #[derive(Default)]
    pub(crate) struct Heap {
        free: BTreeMap<u32, Stamp>,
        pub(super) out: BTreeSet<u32>,
        reserved_bytes: u64,
        next_record: u32,
    }

    pub(crate) const PIECE_BYTES: u64 = 2 << 20;

    impl Heap {
        pub(crate) fn take_ready(&mut self, request: &Request, order: &impl Order) -> Option<Piece> {
            let found = self.free.iter().find(|(_, stamp)| order.is_ordered(**stamp, request.slot));
            let record = *found?.0;
            self.free.remove(&record);
            Some(self.taken(record))
        }

        pub(crate) fn take_recycled(
            &mut self,
            _: &Request,
            _: &impl Order,
            _: &mut Vmm,
        ) -> Result<Option<Piece>, DriverError> {
            Ok(None)
        }

        pub(crate) fn take_leftover(&mut self, _: &Request, _: &impl Order) -> Option<Piece> {
            None
        }

        pub(crate) fn take_grown(
            &mut self,
            _: &Request,
            _: &impl Order,
            _: &mut Vmm,
            most_bytes: u64,
        ) -> Result<Option<Piece>, DriverError> {
            if self.reserved_bytes + PIECE_BYTES > most_bytes {
                return Ok(None);
            }
            self.reserved_bytes += PIECE_BYTES;
            self.next_record += 1;
            Ok(Some(self.taken(self.next_record)))
        }

        fn taken(&mut self, record: u32) -> Piece {
            assert!(self.out.insert(record), "two hands hold {record}");
            Piece { address: u64::from(record), record }
        }

        pub(crate) fn give(&mut self, record: u32, stamp: Stamp) {
            assert!(self.out.remove(&record), "{record} came back twice");
            self.free.insert(record, stamp);
        }

        pub(crate) fn trim(&mut self, _: u64, order: &impl Order, _: &mut Vmm) -> Result<(), DriverError> {
            let before_count = self.free.len();
            self.free.retain(|_, stamp| !order.is_complete(*stamp));
            self.reserved_bytes -= (before_count - self.free.len()) as u64 * PIECE_BYTES;
            Ok(())
        }

        pub(crate) fn blockers(&self, request: &Request, order: &impl Order) -> Vec<Stamp> {
            let blocks = |stamp: &&Stamp| !order.is_ordered(**stamp, request.slot);
            self.free.values().find(blocks).into_iter().copied().collect()
        }

        pub(crate) fn has_pending_of_others(&self, request: &Request) -> bool {
            self.free.values().any(|stamp| stamp.slot() != request.slot)
        }

        pub(crate) fn latest_pending(&self, request: &Request, order: &impl Order) -> Vec<Stamp> {
            self.blockers(request, order)
        }

        pub(crate) fn growth_target_bytes(&self, _: &Request) -> u64 {
            PIECE_BYTES
        }

        pub(crate) fn reserved_bytes(&self) -> u64 {
            self.reserved_bytes
        }

        pub(crate) fn free_bytes(&self, _: Slot) -> i64 {
            self.free.len() as i64 * PIECE_BYTES as i64
        }

        pub(crate) fn pending_bytes(&self) -> u64 {
            0
        }

        pub(crate) fn largest_free_bytes(&self, _: &impl Order) -> u64 {
            0
        }

        pub(crate) fn kept_windows(&self) -> usize {
            usize::MAX
        }

        pub(crate) fn is_unmapping_due(&self, _: usize) -> bool {
            false
        }

        pub(crate) fn unmap_empty(
            &mut self,
            _: usize,
            _: &impl Order,
            _: &mut Vmm,
        ) -> Result<(), DriverError> {
            Ok(())
        }

        pub(crate) fn has_plenty(&self) -> bool {
            false
        }

        pub(crate) fn settle(&mut self, _: &impl Order) {}
    }
}

pub(crate) struct Vmm;

pub(crate) mod shared {
    use super::clock::{Clocks, Slot, Stamp};
    use super::heap::Heap;
    use super::{Counters, Device, Dials, Front, Member, Own, Piece, Spill, Vmm};
    use crate::out_of_memory::Attempt;
    use gpumem_sys::DriverError;
    use shuttle::sync::{Arc, Mutex, MutexGuard};

    #[derive(Default)]
    pub(crate) struct Lack {
        pub(crate) said: Option<DriverError>,
        pub(crate) attempts: Vec<Attempt>,
    }

    pub(crate) struct Shared {
        pub(crate) device: Device,
        pub(crate) dials: Dials,
        pub(crate) limit_bytes: u64,
        pub(crate) front: Front<Stamp>,
        core: Mutex<Core>,
        draining: Mutex<()>,
    }

    #[derive(Default)]
    pub(crate) struct Core {
        pub(crate) heap: Heap,
        pub(crate) counters: Counters,
    }

    pub(crate) struct Look(Counters);

    impl Shared {
        pub(crate) fn new(limit_bytes: u64) -> Self {
            Self {
                device: Device(Arc::new(Clocks::new())),
                dials: Dials::default(),
                limit_bytes,
                front: Front::new(0),
                core: Mutex::default(),
                draining: Mutex::new(()),
            }
        }

        pub(crate) fn clocks(&self) -> &Clocks {
            &self.device.0
        }

        pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
            self.core.lock().unwrap()
        }

        pub(crate) fn vmm(&self) -> Vmm {
            Vmm
        }

        pub(crate) fn limit_bytes(&self, _: &Heap) -> u64 {
            self.limit_bytes
        }

        /// The calling thread gives up its own before it climbs.
        pub(crate) fn drain_own(&self) -> bool {
            false
        }

        pub(crate) fn drain_own_recent(&self) -> bool {
            false
        }

        pub(crate) fn drain_all_recent(&self) -> bool {
            let _turn = self.draining.lock().unwrap();
            let mut spill = Vec::new();
            self.front.drain_recent(&mut spill);
            self.give_all(&spill)
        }

        pub(crate) fn drain_all(&self) -> bool {
            let _turn = self.draining.lock().unwrap();
            let mut spill = Vec::new();
            self.front.drain(|stream| self.clocks().stamp(Slot(stream as u16)), &mut spill);
            self.give_all(&spill)
        }

        fn give_all(&self, spill: &Spill<Stamp>) -> bool {
            let mut core = self.core();
            spill.iter().for_each(|(piece, stamp)| core.heap.give(piece.record, *stamp));
            !spill.is_empty()
        }

        /// With the heap locked, so that nobody looks in between.
        pub(crate) fn give_recent(&self, core: &mut Core, set: Own<'_>) {
            set.empty_recent(|large| core.heap.give(large.piece.record, large.stamp.into()));
        }

        fn counters(&self) -> Counters {
            let front = self.front.counters();
            front + self.core().counters
        }

        pub(crate) fn begin_look(&self) -> Look {
            Look(self.counters())
        }

        pub(crate) fn may_look_again(&self, before: &Look, size_bytes: u64) -> bool {
            let counters = self.counters();
            let moves = |counters: &Counters| (counters.allocation_count(), counters.block_count());
            moves(&before.0) != moves(&counters) && counters.in_use_bytes() + size_bytes <= self.limit_bytes
        }

        pub(crate) fn short_family(&self) -> Vec<Member> {
            Vec::new()
        }

        pub(crate) fn settle_extents(&self) -> Result<(), DriverError> {
            Ok(())
        }
    }

    impl Core {
        pub(crate) fn is_out(&self, piece: Piece) -> bool {
            self.heap.out.contains(&piece.record)
        }
    }
}

pub(crate) struct Member;

impl Member {
    pub(crate) fn give_back_all(&self) {}
}

pub(crate) struct Device(shuttle::sync::Arc<clock::Clocks>);

/// Its context, current.
pub(crate) struct Bound;

pub(crate) struct MemoryInfo {
    pub(crate) free_bytes: u64,
}

impl Device {
    pub(crate) fn driver(&self) {}

    pub(crate) fn enter(&self) -> Result<Bound, gpumem_sys::DriverError> {
        Ok(Bound)
    }

    pub(crate) fn memory_info(&self) -> Result<MemoryInfo, gpumem_sys::DriverError> {
        Ok(MemoryInfo { free_bytes: u64::MAX })
    }

    pub(crate) fn finish(&self) -> Result<(), gpumem_sys::DriverError> {
        self.0.finish();
        Ok(())
    }

    pub(crate) fn after_wait(&self) {}
}

pub(crate) struct Dials {
    pub(crate) poll_budget: Duration,
    pub(crate) inserted_waits: bool,
    pub(crate) empty_windows_max: u32,
    pub(crate) wait_deadline: Duration,
}

impl Default for Dials {
    fn default() -> Self {
        let (poll_budget, wait_deadline) = (Duration::from_micros(1), Duration::from_secs(10));
        Self { poll_budget, inserted_waits: true, empty_windows_max: 8, wait_deadline }
    }
}

impl Dials {
    pub(crate) fn spares_magazines(&self) -> bool {
        false
    }
}

pub(crate) mod context {
    pub(crate) struct Relaxed;

    impl Relaxed {
        pub(crate) fn enter(_: ()) -> Result<Self, gpumem_sys::DriverError> {
            Ok(Self)
        }
    }
}

pub(crate) mod error {
    #[derive(Debug)]
    pub(crate) struct PoolError(#[allow(dead_code, reason = "to be printed")] gpumem_sys::DriverError);

    impl From<gpumem_sys::DriverError> for PoolError {
        fn from(error: gpumem_sys::DriverError) -> Self {
            Self(error)
        }
    }
}

pub(crate) mod out_of_memory {
    use std::time::Duration;

    pub(crate) struct Attempt {
        pub(crate) name: &'static str,
        pub(crate) gained_bytes: u64,
        pub(crate) took: Duration,
        pub(crate) failures: Vec<String>,
    }
}

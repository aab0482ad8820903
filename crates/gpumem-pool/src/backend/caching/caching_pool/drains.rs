//! Taking from threads what they keep at hand.

use super::CachingPool;
use crate::device::Stamp;
use gpumem_heap::cache;
use gpumem_heap::cache::Spill;
use gpumem_heap::sync::MutexGuard;
use std::sync::PoisonError;

impl CachingPool {
    /// What this thread keeps at hand. Says whether there was anything. Of those who drain, one after another gives to the heap
    /// what he has taken: whoever comes next finds it there.
    pub(in super::super) fn drain_own(&self) -> bool {
        let _turn = self.draining();
        let mut spill = Vec::new();
        cache::each_cache(self.id, |set| {
            self.front.drain_own(set, |stream| self.stamp_of(stream), &mut spill)
        });
        self.give_all(spill)
    }

    /// What other threads may keep at hand, after [`drain_own`](Self::drain_own).
    pub(in super::super) fn kept_by_others_bytes(&self) -> u64 {
        self.front.allowance_bytes()
    }

    /// The same, of blocks beyond the classes only.
    pub(in super::super) fn drain_own_large(&self) -> bool {
        let (mut is_any, mut core) = (false, self.core());
        cache::each_cache(self.id, |set| {
            is_any |= set.has_large();
            set.empty_large(|large| core.give_large(large));
        });
        is_any
    }

    /// The same, of all threads.
    pub(in super::super) fn drain_all_recent(&self) -> bool {
        let _turn = self.draining();
        let mut spill = Vec::new();
        self.front.drain_large(&mut spill);
        self.give_all(spill)
    }

    pub(in super::super) fn drain_all(&self) -> bool {
        let _turn = self.draining();
        let mut spill = Vec::new();
        self.front.drain(|stream| self.stamp_of(stream), &mut spill);
        self.give_all(spill)
    }

    fn draining(&self) -> MutexGuard<'_, ()> {
        self.draining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give_all(&self, spill: Spill<Stamp>) -> bool {
        if spill.is_empty() {
            return false;
        }
        let mut core = self.core();
        spill.iter().for_each(|(allocation, stamp)| core.heap.give(allocation.record, &[*stamp]));
        true
    }
}

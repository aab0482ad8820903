//! [`Upkeep`]: what a device does for its pools when the host waits: soft limits are looked at, and memory that pools
//! left behind is given back.
//!
//! A pool ends without waiting. What queued work may still use stays here, with the device, until that work is done; the
//! end of the device, which has no pool any more, waits for the rest.

use crate::clock::Clocks;
use crate::context::Relaxed;
use crate::family::Member;
use crate::reclaim::Registry;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use gpumem_sys::Driver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

#[derive(Default)]
pub(crate) struct Upkeep {
    work: Mutex<Work>,
    /// Whether there is any: looked at after every wait.
    is_needed: AtomicBool,
    /// How often the host has waited.
    wait_count: AtomicU64,
    /// When allocations last had anything done.
    served_at: Mutex<Option<Instant>>,
    /// Who can make room on the device.
    registry: Arc<Registry>,
}

#[derive(Default)]
struct Work {
    pools: Vec<Weak<dyn Waiting>>,
    left: Vec<Box<dyn Left>>,
    /// All pools that keep memory.
    members: Vec<Weak<dyn Member>>,
}

/// A pool that wants to know when the host has waited.
pub(crate) trait Waiting: Send + Sync {
    /// The host is about to wait for a stream or the device.
    fn before_wait(&self);

    /// The host has waited for a stream or the device. The device's context is current.
    fn after_wait(&self);

    /// A pool of the device has allocated the long way, this one or another.
    fn while_allocating(&self);
}

/// Memory of a pool that is gone.
pub(crate) trait Left: Send {
    /// Gives back what no work uses any more, as the clocks know, or all of it if all work is done. True once nothing is
    /// left. The device's context is current.
    fn give_back(&mut self, driver: &Driver, clocks: &Clocks, is_all_done: bool) -> bool;
}

impl Upkeep {
    pub(crate) fn add_pool(&self, pool: Weak<dyn Waiting>) {
        let mut work = self.work();
        work.pools.retain(|other| other.strong_count() > 0);
        work.pools.push(pool);
        self.is_needed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn add_member(&self, member: Weak<dyn Member>) {
        let mut work = self.work();
        work.members.retain(|other| other.strong_count() > 0);
        work.members.push(member);
    }

    /// All pools of the device that keep memory.
    pub(crate) fn members(&self) -> Vec<Arc<dyn Member>> {
        self.work().members.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The end of a pool.
    pub(crate) fn add_left(&self, left: Box<dyn Left>) {
        self.work().left.push(left);
        self.is_needed.store(true, Ordering::Relaxed);
    }

    /// The host is about to wait.
    pub(crate) fn before_wait(&self) {
        self.wait_count.fetch_add(1, Ordering::Relaxed);
        if self.is_needed.load(Ordering::Relaxed) {
            let pools: Vec<_> = self.work().pools.iter().filter_map(Weak::upgrade).collect();
            pools.iter().for_each(|pool| pool.before_wait());
        }
    }

    /// How often the host has begun to wait, for a stream, a mark or the device.
    pub(crate) fn wait_count(&self) -> u64 {
        self.wait_count.load(Ordering::Relaxed)
    }

    /// A pool of the device has allocated the long way.
    pub(crate) fn while_allocating(&self) {
        if self.is_needed.load(Ordering::Relaxed) && self.is_due() {
            let pools: Vec<_> = self.work().pools.iter().filter_map(Weak::upgrade).collect();
            pools.iter().for_each(|pool| pool.while_allocating());
        }
    }

    /// So that allocations spend no more than a part of their time on this.
    fn is_due(&self) -> bool {
        // Whoever has it is at it.
        let Ok(mut served_at) = self.served_at.try_lock() else { return false };
        let is_due = served_at.is_none_or(|served_at| served_at.elapsed() >= SERVED_EVERY);
        if is_due {
            *served_at = Some(Instant::now());
        }
        is_due
    }

    /// The host has waited. The device's context is current.
    pub(crate) fn after_wait(&self, driver: &Driver, clocks: &Clocks) {
        if !self.is_needed.load(Ordering::Relaxed) {
            return;
        }
        // What is given back here must break no capture.
        let Ok(_relaxed) = Relaxed::enter(driver) else { return };
        let mut work = self.work();
        work.left.retain_mut(|left| !left.give_back(driver, clocks, false));
        let pools: Vec<_> = work.pools.iter().filter_map(Weak::upgrade).collect();
        work.pools.retain(|pool| pool.strong_count() > 0);
        self.is_needed.store(!(work.pools.is_empty() && work.left.is_empty()), Ordering::Relaxed);
        // A pool may end here, if its last handle went meanwhile: that takes the lock.
        drop(work);
        pools.iter().for_each(|pool| pool.after_wait());
    }

    /// Whether a pool left memory behind.
    pub(crate) fn has_left(&self) -> bool {
        !self.work().left.is_empty()
    }

    /// The end of the device: all its work is done.
    pub(crate) fn finish(&self, driver: &Driver, clocks: &Clocks) {
        // What can't be given back goes with the context.
        for mut left in self.work().left.drain(..) {
            left.give_back(driver, clocks, true);
        }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a pool has gone without an allocation for so long that it gives back what it keeps.
pub(crate) struct Idle {
    after: Option<Duration>,
    /// How often it had allocated when that was last seen to change, and when that was.
    seen: Mutex<(u64, Instant)>,
}

impl Idle {
    pub(crate) fn new(after: Option<Duration>) -> Self {
        Self { after, seen: Mutex::new((0, Instant::now())) }
    }

    /// Whether there is a time at all.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.after.is_some()
    }

    /// True once for each time that has passed.
    pub(crate) fn is_over(&self, allocation_count: impl FnOnce() -> u64) -> bool {
        let Some(after) = self.after else { return false };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now_count = allocation_count();
        let is_over = seen.0 == now_count && seen.1.elapsed() >= after;
        if is_over || seen.0 != now_count {
            *seen = (now_count, Instant::now());
        }
        is_over
    }
}

/// Between two times that allocations have something done.
const SERVED_EVERY: Duration = Duration::from_millis(1);

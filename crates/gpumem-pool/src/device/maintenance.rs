//! [`Maintenance`]: what a device does for its pools where the host waits, asks whether work is done, or allocates the long way:
//! soft limits are looked at, idle pools trimmed, and memory that pools left behind is given back.
//!
//! | where | how much | what is released by calls that wait for the device (plain segments, host memory) |
//! | --- | --- | --- |
//! | after a wait of the host | all that is due | released |
//! | after a query, and after an allocation that took the slow path | once a millisecond, for `release_budget` | only while the device is idle |
//!
//! A pool ends without waiting. What queued work may still use stays here, with the device, until that work is done; the
//! end of the device, which has no pool any more, waits for the rest.

use crate::config::MemoryKind;
use crate::device::{CaptureModeGuard, Clocks, Device};
use crate::limits::Trimmable;
use crate::reclaim::Registry;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use gpumem_sys::{Driver, DriverError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

#[derive(Default)]
pub(crate) struct Maintenance {
    work: Mutex<Work>,
    /// Whether there is any: looked at after every wait.
    is_needed: AtomicBool,
    /// Whether a pool of the device has, or had, its memory from one of the driver's.
    has_driver_pools: AtomicBool,
    /// How often the host has waited.
    wait_count: AtomicU64,
    /// When a query or an allocation last had anything done.
    served_at: Mutex<Option<Instant>>,
    /// Who can make room on the device.
    registry: Arc<Registry>,
}

#[derive(Default)]
struct Work {
    pools: Vec<Weak<dyn Waiting>>,
    left: Vec<Box<dyn DeferredRelease>>,
    /// All pools that keep memory.
    trimmables: Vec<Weak<dyn Trimmable>>,
}

/// A pool that wants to know when the host has waited.
pub(crate) trait Waiting: Send + Sync {
    /// The host is about to wait for a stream or the device.
    fn before_wait(&self);

    /// The host has waited for a stream or the device. The device's context is current.
    fn after_wait(&self);

    /// A pool of the device has allocated the long way, this one or another, or the host has asked whether work is done.
    /// Neither may take long, and a query never waits.
    fn serve(&self);
}

/// Memory of a pool that is gone.
pub(crate) trait DeferredRelease: Send {
    /// Whose memory it is.
    fn kind(&self) -> MemoryKind;

    /// Whether the calls that release it wait for the device.
    fn waits(&self) -> bool;

    /// Gives back what no work uses any more, as far as that is known. True once nothing is left. The device's context is
    /// current.
    fn give_back(&mut self, driver: &Driver, clocks: &Clocks, how: HowFar) -> bool;
}

/// How far memory of ended pools is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowFar {
    /// What the clocks know to be unused, for no longer than this.
    Until(Instant),
    /// What the clocks know to be unused.
    Known,
    /// All of it: all work of the device is done.
    All,
}

impl HowFar {
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Until(until) if Instant::now() >= until)
    }
}

impl Maintenance {
    pub(crate) fn add_pool(&self, pool: Weak<dyn Waiting>) {
        let mut work = self.work();
        work.pools.retain(|other| other.strong_count() > 0);
        work.pools.push(pool);
        self.is_needed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn add_trimmable(&self, member: Weak<dyn Trimmable>) {
        let mut work = self.work();
        work.trimmables.retain(|other| other.strong_count() > 0);
        work.trimmables.push(member);
    }

    /// From now on waits for the device let the driver's pools see what is done.
    pub(crate) fn add_driver_pool(&self) {
        self.has_driver_pools.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_driver_pools(&self) -> bool {
        self.has_driver_pools.load(Ordering::Relaxed)
    }

    /// All pools of the device that keep memory.
    pub(crate) fn trimmables(&self) -> Vec<Arc<dyn Trimmable>> {
        self.work().trimmables.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The end of a pool.
    pub(crate) fn add_left(&self, left: Box<dyn DeferredRelease>) {
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

    /// A pool of the device has allocated the long way, or the host has asked whether work is done: does what is due, for a
    /// short time. One look at a flag where no pool of the device wants anything.
    #[inline]
    pub(crate) fn serve(&self, device: &Device) {
        if self.is_needed.load(Ordering::Relaxed) {
            self.serve_if_due(device);
        }
    }

    #[cold]
    fn serve_if_due(&self, device: &Device) {
        if !self.is_due() {
            return;
        }
        let pools: Vec<_> = self.work().pools.iter().filter_map(Weak::upgrade).collect();
        pools.iter().for_each(|pool| pool.serve());
        // What can't be done now is done later.
        let _ = self.serve_left(device);
    }

    /// Gives back some of what ended pools left.
    fn serve_left(&self, device: &Device) -> Result<(), DriverError> {
        if !self.has_left() {
            return Ok(());
        }
        let (driver, clocks) = (device.driver(), device.clocks());
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(driver)?;
        clocks.poll(LEFT_POLL_BUDGET)?;
        let is_idle = self.work().left.iter().any(|left| left.waits()) && device.is_idle()?;
        let how = HowFar::Until(Instant::now() + LEFT_BUDGET);
        let mut work = self.work();
        work.left.retain_mut(|left| {
            let is_skipped = how.is_over() || left.waits() && !is_idle;
            is_skipped || !left.give_back(driver, clocks, how)
        });
        Ok(())
    }

    /// So that callers spend no more than a part of their time on this.
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
        let Ok(_relaxed) = CaptureModeGuard::enter(driver) else { return };
        let mut work = self.work();
        work.left.retain_mut(|left| !left.give_back(driver, clocks, HowFar::Known));
        let pools: Vec<_> = work.pools.iter().filter_map(Weak::upgrade).collect();
        work.pools.retain(|pool| pool.strong_count() > 0);
        self.is_needed.store(!(work.pools.is_empty() && work.left.is_empty()), Ordering::Relaxed);
        // A pool may end here, if its last handle went meanwhile: that takes the lock.
        drop(work);
        pools.iter().for_each(|pool| pool.after_wait());
    }

    /// The same where the device could not be waited for in time: what waits for it when it is released stays.
    pub(crate) fn after_late_wait(&self, driver: &Driver, clocks: &Clocks) {
        if self.is_needed.load(Ordering::Relaxed) {
            let give_back =
                |left: &mut Box<dyn DeferredRelease>| left.give_back(driver, clocks, HowFar::Known);
            self.work().left.retain_mut(|left| left.waits() || !give_back(left));
        }
    }

    /// Whether a pool left memory behind.
    pub(crate) fn has_left(&self) -> bool {
        !self.work().left.is_empty()
    }

    /// Whether a pool left memory behind that helps a kind which is short.
    pub(crate) fn has_left_for(&self, kind: MemoryKind) -> bool {
        self.work().left.iter().any(|left| left.kind().helps(kind))
    }

    /// The end of the device: all its work is done.
    pub(crate) fn finish(&self, driver: &Driver, clocks: &Clocks) {
        // What can't be given back goes with the context.
        for mut left in self.work().left.drain(..) {
            left.give_back(driver, clocks, HowFar::All);
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

    /// Whether the time has passed without an allocation, since the last one or since [`Idle::begin_again`].
    pub(crate) fn is_over(&self, allocation_count: impl FnOnce() -> u64) -> bool {
        let Some(after) = self.after else { return false };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now_count = allocation_count();
        if seen.0 != now_count {
            *seen = (now_count, Instant::now());
        }
        seen.1.elapsed() >= after
    }

    /// What an idle pool keeps has been given back as far as possible: the time starts again.
    pub(crate) fn begin_again(&self) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).1 = Instant::now();
    }
}

/// Between two times that queries or allocations have something done.
const SERVED_EVERY: Duration = Duration::from_millis(1);

/// What ended pools left has no tuning options any more: as those are by default.
const LEFT_BUDGET: Duration = Duration::from_micros(200);
const LEFT_POLL_BUDGET: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests {
    use super::*;

    struct Quiet;

    impl Waiting for Quiet {
        fn before_wait(&self) {}
        fn after_wait(&self) {}
        fn serve(&self) {}
    }

    /// A device that outlives many pools keeps no trace of them.
    #[test]
    fn ended_pools_are_forgotten() {
        let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(), 0).unwrap();
        let maintenance = Maintenance::default();
        let add = || {
            let pool: Arc<dyn Waiting> = Arc::new(Quiet);
            maintenance.add_pool(Arc::downgrade(&pool));
            pool
        };
        let alive = add();
        for _ in 0..3 {
            drop(add());
        }
        assert_eq!(maintenance.work().pools.len(), 2);
        let _bound = device.bind().unwrap();
        maintenance.after_wait(device.driver(), device.clocks());
        assert_eq!(maintenance.work().pools.len(), 1);
        assert!(maintenance.is_needed.load(Ordering::Relaxed));
        drop(alive);
        maintenance.after_wait(device.driver(), device.clocks());
        assert!(!maintenance.is_needed.load(Ordering::Relaxed));
    }
}

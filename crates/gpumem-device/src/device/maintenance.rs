//! [`Maintenance`]: the work that a device does for its pools when the host waits, when it queries completion, and when
//! an allocation takes the slow path: enforcing soft limits, trimming idle pools, and releasing the memory of dropped
//! pools.
//!
//! | when | how much | memory whose release waits for the device (plain segments, host memory) |
//! | --- | --- | --- |
//! | after a host wait | everything that is due | released |
//! | after a query, and after an allocation on the slow path | once a millisecond, for `release_budget` | released only while the device is idle |
//!
//! Dropping a pool does not wait. Memory that queued work may still use stays with the device until that work is done. Dropping the device,
//! when it has no pools left, waits for the rest.

use super::context::CaptureModeGuard;
use super::order::Clocks;
use super::primary::PrimaryContext;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use gpumem_base::sync::Lock;
use gpumem_sys::{Driver, DriverError};
use std::sync::Weak;
use std::time::Instant;

/// The work that waits and queries do for the pools of a GPU.
#[derive(Default)]
pub struct Maintenance {
    work: Lock<PoolWork>,
    /// True if any work is registered: checked after every wait.
    is_needed: AtomicBool,
    /// True if a pool of the device uses, or used, a memory pool of the driver.
    has_driver_pools: AtomicBool,
    /// The last time that a query or an allocation did maintenance.
    served_at: Lock<Option<Instant>>,
}

#[derive(Default)]
struct PoolWork {
    pools: Vec<Weak<dyn PoolMaintenance>>,
    deferred: Vec<DeferredRelease>,
}

/// A pool that does maintenance around host waits.
pub trait PoolMaintenance: Send + Sync {
    /// Called before the host waits for a stream or the device.
    fn before_wait(&self) {}

    /// Called after the host has waited for a stream or the device. The device's context is current.
    fn after_wait(&self);

    /// Called after any pool of the device allocated on the slow path, or after the host queried completion. Both must return soon, and a
    /// query must not wait.
    fn serve(&self);
}

struct DeferredRelease {
    /// True for memory of the host, false for memory of devices, to which unified memory counts.
    is_host: bool,
    /// True if the calls that release it wait for the device.
    waits: bool,
    release: Box<ReleaseFn>,
}

/// Releases memory that is known to be unused. Returns true once nothing is left. The device's context is current, and the capture mode
/// relaxed.
type ReleaseFn = dyn FnMut(&Driver, &Clocks, HowFar) -> bool + Send;

impl DeferredRelease {
    fn release(&mut self, driver: &Driver, clocks: &Clocks, how: HowFar) -> bool {
        // Releasing memory must not break a capture.
        CaptureModeGuard::enter(driver).is_ok_and(|_relaxed| (self.release)(driver, clocks, how))
    }
}

/// The extent to which memory of dropped pools is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowFar {
    /// Memory that the clocks know to be unused, until this time.
    Until(Instant),
    /// Memory that the clocks know to be unused.
    Known,
    /// All memory: all work of the device is done.
    All,
}

impl HowFar {
    /// True once the time is over.
    #[inline]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Until(until) if Instant::now() >= until)
    }
}

impl Maintenance {
    /// Calls the pool in waits and queries until it is dropped.
    pub fn add_pool(&self, pool: Weak<dyn PoolMaintenance>) {
        let mut work = self.work.lock();
        work.pools.retain(|other| other.strong_count() > 0);
        work.pools.push(pool);
        self.is_needed.store(true, Ordering::Relaxed);
    }

    /// From here on, host waits also let the driver's memory pools notice completed work.
    #[inline]
    pub fn add_driver_pool(&self) {
        self.has_driver_pools.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_driver_pools(&self) -> bool {
        self.has_driver_pools.load(Ordering::Relaxed)
    }

    /// Takes over the memory of a dropped pool, and calls `release` until it returns true. `waits`: the calls in it wait for the
    /// device.
    pub fn defer_release(
        &self,
        is_host: bool,
        waits: bool,
        release: impl FnMut(&Driver, &Clocks, HowFar) -> bool + Send + 'static,
    ) {
        self.work.lock().deferred.push(DeferredRelease { is_host, waits, release: Box::new(release) });
        self.is_needed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn before_wait(&self) {
        if self.is_needed.load(Ordering::Relaxed) {
            let pools: Vec<_> = self.work.lock().pools.iter().filter_map(Weak::upgrade).collect();
            pools.iter().for_each(|pool| pool.before_wait());
        }
    }

    /// Runs after a slow-path allocation or a query: does due maintenance for a short time. Costs one load of a flag if
    /// no pool of the device has any.
    #[inline]
    pub(crate) fn serve(
        &self,
        device: &PrimaryContext,
        clocks: &Clocks,
        is_idle: impl FnOnce() -> Result<bool, DriverError>,
    ) {
        if self.is_needed_on(device) {
            self.serve_if_due(device, clocks, is_idle);
        }
    }

    /// True if there is any work, for pools or of refused objects.
    #[inline]
    fn is_needed_on(&self, device: &PrimaryContext) -> bool {
        self.is_needed.load(Ordering::Relaxed) || device.refused().has_any()
    }

    #[cold]
    fn serve_if_due(
        &self,
        device: &PrimaryContext,
        clocks: &Clocks,
        is_idle: impl FnOnce() -> Result<bool, DriverError>,
    ) {
        if !self.is_due() {
            return;
        }
        let pools: Vec<_> = self.work.lock().pools.iter().filter_map(Weak::upgrade).collect();
        pools.iter().for_each(|pool| pool.serve());
        device.refused().destroy(device.driver());
        // A failure is ignored: the next call tries again.
        let _ = self.serve_deferred(device, clocks, is_idle);
    }

    /// Releases some of the memory of dropped pools.
    fn serve_deferred(
        &self,
        device: &PrimaryContext,
        clocks: &Clocks,
        is_idle: impl FnOnce() -> Result<bool, DriverError>,
    ) -> Result<(), DriverError> {
        if !self.has_deferred() {
            return Ok(());
        }
        let driver = device.driver();
        let _entered = device.enter_relaxed()?;
        clocks.poll(DEFERRED_POLL_BUDGET)?;
        let is_idle = self.work.lock().deferred.iter().any(|memory| memory.waits) && is_idle()?;
        let how = HowFar::Until(Instant::now() + DEFERRED_BUDGET);
        let mut work = self.work.lock();
        work.deferred.retain_mut(|memory| {
            let is_skipped = how.is_over() || memory.waits && !is_idle;
            is_skipped || !memory.release(driver, clocks, how)
        });
        Ok(())
    }

    /// True if maintenance is due, so that callers spend only a fraction of their time on it.
    fn is_due(&self) -> bool {
        // If another thread holds the lock, that thread does the maintenance.
        let Some(mut served_at) = self.served_at.try_lock() else { return false };
        let is_due = served_at.is_none_or(|served_at| served_at.elapsed() >= SERVED_EVERY);
        if is_due {
            *served_at = Some(Instant::now());
        }
        is_due
    }

    /// Runs after a host wait. The device's context is current.
    pub(crate) fn after_wait(&self, device: &PrimaryContext, clocks: &Clocks) {
        if !self.is_needed_on(device) {
            return;
        }
        let driver = device.driver();
        // Releasing memory must not break a capture.
        let Ok(_relaxed) = CaptureModeGuard::enter(driver) else { return };
        device.refused().destroy(driver);
        let mut work = self.work.lock();
        work.deferred.retain_mut(|memory| !memory.release(driver, clocks, HowFar::Known));
        let pools: Vec<_> = work.pools.iter().filter_map(Weak::upgrade).collect();
        work.pools.retain(|pool| pool.strong_count() > 0);
        let is_idle = work.pools.is_empty() && work.deferred.is_empty();
        self.is_needed.store(!is_idle, Ordering::Relaxed);
        // Unlocked first: if a pool's last handle was dropped in the meantime, the pool is dropped here and takes the lock.
        drop(work);
        pools.iter().for_each(|pool| pool.after_wait());
    }

    /// Like [`Maintenance::after_wait`], for a wait that ended at its deadline: memory whose release waits for the
    /// device stays.
    pub(crate) fn after_late_wait(&self, driver: &Driver, clocks: &Clocks) {
        if self.is_needed.load(Ordering::Relaxed) {
            let is_kept =
                |memory: &mut DeferredRelease| memory.waits || !memory.release(driver, clocks, HowFar::Known);
            self.work.lock().deferred.retain_mut(is_kept);
        }
    }

    /// True if a dropped pool left memory behind.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.work.lock().deferred.is_empty()
    }

    /// True if a dropped pool left memory of the host or of devices behind.
    #[inline]
    pub fn has_deferred_for(&self, is_host: bool) -> bool {
        self.work.lock().deferred.iter().any(|memory| memory.is_host == is_host)
    }

    /// Releases everything when the device is dropped: all its work is done.
    pub(crate) fn finish(&self, driver: &Driver, clocks: &Clocks) {
        let mut deferred = core::mem::take(&mut self.work.lock().deferred);
        for _ in 0..TRIES {
            deferred.retain_mut(|memory| !memory.release(driver, clocks, HowFar::All));
        }
        // Memory that cannot be released goes with the context.
        drop(deferred);
    }

    /// The end of the device, before its context: nothing is kept any longer.
    pub(crate) fn end(&self, device: &PrimaryContext) {
        // Dropped outside the lock; the drop may keep objects.
        let deferred = core::mem::take(&mut self.work.lock().deferred);
        drop(deferred);
        device.refused().destroy_at_end(device.driver());
    }
}

/// Detects that a pool has gone without an allocation for its idle time.
pub struct Idle {
    after: Option<Duration>,
    /// The allocation count when it was last seen to change, and the time of that.
    seen: Lock<(u64, Instant)>,
}

impl Idle {
    /// `after`: the idle time; `None` never ends.
    #[inline]
    pub fn new(after: Option<Duration>) -> Self {
        Self { after, seen: Lock::new((0, Instant::now())) }
    }

    /// True if an idle time is configured.
    #[inline]
    pub fn is_asked_for(&self) -> bool {
        self.after.is_some()
    }

    /// True if the idle time has passed since the last allocation or [`Idle::begin_again`].
    pub fn is_over(&self, allocation_count: impl FnOnce() -> u64) -> bool {
        let Some(after) = self.after else { return false };
        let mut seen = self.seen.lock();
        let now_count = allocation_count();
        if seen.0 != now_count {
            *seen = (now_count, Instant::now());
        }
        seen.1.elapsed() >= after
    }

    /// Restarts the idle time, after cached memory was released where possible.
    #[inline]
    pub fn begin_again(&self) {
        self.seen.lock().1 = Instant::now();
    }
}

/// The minimum time between two rounds of maintenance by queries or allocations.
const SERVED_EVERY: Duration = Duration::from_millis(1);

/// The number of times that the end of a device repeats refused calls.
const TRIES: usize = 3;

/// Budgets for memory of dropped pools, whose tuning options are gone: the defaults of those options.
const DEFERRED_BUDGET: Duration = Duration::from_micros(200);
const DEFERRED_POLL_BUDGET: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use std::sync::Arc;

    struct Quiet;

    impl PoolMaintenance for Quiet {
        fn after_wait(&self) {}
        fn serve(&self) {}
    }

    /// A device that outlives many pools keeps no references to them.
    #[test]
    fn ended_pools_are_forgotten() {
        let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(), 0).unwrap();
        let maintenance = Maintenance::default();
        let add = || {
            let pool: Arc<dyn PoolMaintenance> = Arc::new(Quiet);
            maintenance.add_pool(Arc::downgrade(&pool));
            pool
        };
        let alive = add();
        for _ in 0..3 {
            drop(add());
        }
        assert_eq!(maintenance.work.lock().pools.len(), 2);
        let _bound = device.bind().unwrap();
        maintenance.after_wait(device.primary(), device.clocks());
        assert_eq!(maintenance.work.lock().pools.len(), 1);
        assert!(maintenance.is_needed.load(Ordering::Relaxed));
        drop(alive);
        maintenance.after_wait(device.primary(), device.clocks());
        assert!(!maintenance.is_needed.load(Ordering::Relaxed));
    }
}

//! The size of a pool: changes of its limits, memory given back and memory reserved ahead.

use super::State;
use crate::backend::Source;
use crate::config::{Limit, MemoryKind, Profile, Tuning};
use crate::device::{CaptureModeGuard, processes};
use crate::error::{Advice, Maker, OutOfMemory, PoolError, RefusedBy};
use crate::limits::{Limits, Trimmable};
use std::sync::Arc;

/// The memory that other pools hold on the device, and how much of it is cached.
#[derive(Default)]
struct Others {
    held_bytes: u64,
    cached_bytes: u64,
}

impl State {
    pub(crate) fn reclaim(&self) -> Result<u64, PoolError> {
        self.giving_back(|state| {
            state.ask_holders();
            state.backend.reclaim()
        })
    }

    pub(crate) fn trim_to(&self, keep_bytes: u64) -> Result<u64, PoolError> {
        self.giving_back(|state| state.backend.trim_to(keep_bytes))
    }

    pub(crate) fn reserve(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.check_usable()?;
        let request = || {
            self.check_size(size_bytes)?;
            self.backend.reserve(size_bytes)
        };
        self.with_report(self.retry_with_reclaim(request))
    }

    pub(crate) fn set_hard_limit(&self, limit: Limit) -> Result<(), PoolError> {
        self.check_usable()?;
        let limit_bytes = Limits::resolve_hard(Some(limit), self.config().kind, self.device.total_bytes())?;
        self.backend.allow_hard_limit(limit_bytes);
        let excess_bytes = self.limits.node().set_limit_bytes(limit_bytes);
        if excess_bytes > 0 {
            self.backend.limits_changed()?;
            let keep_bytes = self.reserved_bytes()?.saturating_sub(excess_bytes);
            self.backend.trim_to(keep_bytes)?;
        }
        Ok(())
    }

    pub(crate) fn set_soft_limit(&self, limit: Limit) -> Result<(), PoolError> {
        self.check_usable()?;
        let limit_bytes = limit.resolve_for(self.config().kind, self.device.total_bytes())?;
        self.limits.set_soft_bytes(limit_bytes);
        self.backend.limits_changed()?;
        match self.reserved_bytes()? > limit_bytes {
            true => self.backend.trim_to(limit_bytes),
            false => Ok(()),
        }
    }

    /// Adds the holders to an out-of-memory report, and passes each refusal for lack of memory to the observer.
    /// Called once, around everything that answers a request.
    pub(crate) fn with_report<T>(&self, result: Result<T, PoolError>) -> Result<T, PoolError> {
        result.map_err(|mut error| {
            if let Some(report) = error.out_of_memory_mut() {
                self.describe(report);
            }
            if let Some(observer) = &self.setup.observer
                && error.is_want_of_memory()
            {
                observer.tell(&error);
            }
            error
        })
    }

    /// Adds the facts that only the pool has to a refusal by its backend.
    fn describe(&self, report: &mut OutOfMemory) {
        let (kind, backend) = (self.setup.config.kind, self.backend.kind());
        report.kind = kind;
        report.holders = self.tags.holders();
        report.graph_bytes = self.graph_memory.kept_bytes(self).min(report.in_use_bytes);
        // Stays empty if the device query fails.
        let others = self.others(report).unwrap_or_default();
        report.other_pools_bytes = others.held_bytes.min(report.others_bytes());
        let is_by_own = self.limits.node().is_of(report.refused_by, report.limit_bytes);
        let is_by_limit = matches!(report.refused_by, RefusedBy::HardLimit | RefusedBy::Quota);
        let above = self.limits.node().above().filter(|_| is_by_own);
        report.maker = Maker {
            is_limit_above: is_by_limit && !is_by_own,
            limit_above_bytes: above
                .and_then(|above| Some(above.full_for(report.requested_bytes)?.limit_bytes)),
            backend: Some(backend),
            can_map: self.backend.growing().is_some(),
            is_tight: self.setup.config.tuning == Tuning::of(Profile::Tight),
            others_cached_bytes: others.cached_bytes,
        };
        if report.advice() == Advice::FreeTheDevice {
            report.processes = processes::of(&self.device);
        }
    }

    /// Returns the memory of other pools on the device: the total minus this pool's own.
    fn others(&self, report: &OutOfMemory) -> Result<Others, PoolError> {
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let trimmables = self.device.maintenance().trimmables();
        let sum = |of: fn(&Arc<dyn Trimmable>) -> u64| trimmables.iter().map(of).fold(0, u64::saturating_add);
        let held_bytes =
            self.device.budget().device_bytes().saturating_add(sum(|pool| pool.uncounted_bytes()));
        let cached_bytes = sum(|pool| pool.cached_bytes());
        let is_on_device = self.setup.config.kind == MemoryKind::Device;
        let own = |bytes| if is_on_device { bytes } else { 0 };
        Ok(Others {
            held_bytes: held_bytes.saturating_sub(own(report.reserved_bytes)),
            cached_bytes: cached_bytes.saturating_sub(own(report.cached_bytes())),
        })
    }

    fn giving_back(&self, work: impl FnOnce(&Self) -> Result<(), PoolError>) -> Result<u64, PoolError> {
        self.check_usable()?;
        let before_bytes = self.reserved_bytes()?;
        work(self)?;
        Ok(before_bytes.saturating_sub(self.reserved_bytes()?))
    }

    /// Returns the reserved bytes. For a backend that reserves only its blocks, these are the bytes in use.
    pub(super) fn reserved_bytes(&self) -> Result<u64, PoolError> {
        let reserved = self.backend.reserved()?;
        Ok(reserved.map_or_else(|| self.backend.counts().in_use_bytes, |reserved| reserved.current_bytes))
    }
}

//! The report of a refused request: [`State::out_of_memory_error`] states the figures at the end of the ladder, and [`State::with_report`]
//! adds who holds the memory, once the request leaves the pool.

use super::State;
use crate::backend::Shortage;
use crate::config::{MemoryKind, Profile};
use crate::device::processes;
use crate::error::{Advice, Attempt, OutOfMemory, PoolError, PoolFacts, Refusal, RefusedBy};
use crate::limits::Trimmable;
use std::sync::Arc;

/// The memory that other pools hold on the device, and how much of it is cached.
#[derive(Default)]
struct Others {
    held_bytes: u64,
    cached_bytes: u64,
}

impl State {
    /// Builds the error of a request that found no memory: `PoolError::LimitReached` if a limit refused it, else
    /// `PoolError::OutOfMemory`. Without the figures of the device, the driver's own refusal.
    pub(super) fn out_of_memory_error(&self, shortage: &Shortage, attempts: Vec<Attempt>) -> PoolError {
        let Shortage { requested_bytes, alignment, admitted_bytes, refusal } = *shortage;
        let mut report = OutOfMemory { requested_bytes, alignment, attempts, ..OutOfMemory::default() };
        if let Some(limit) = refusal.and_then(Refusal::limit) {
            report.set_limit(limit, admitted_bytes);
        }
        let figures = self.device.memory_info().and_then(|info| {
            (report.device_free_bytes, report.device_total_bytes) = (info.free_bytes, info.total_bytes);
            self.backend.describe(&mut report)
        });
        match (figures, refusal) {
            (Err(_), Some(Refusal::Driver(error))) => return error.into(),
            (Err(error), _) => return error,
            (Ok(()), _) => {}
        }
        report.unfinished = self.device.unfinished_of_request();
        PoolError::refused(report)
    }

    /// Completes the report of a refused request with the facts that only the program needs, and passes each refusal for lack
    /// of memory to the observer. Called once, when the request is outside of all adaptors: an adaptor that serves the request
    /// from elsewhere spares the look-ups, and an adaptor's own report is completed too.
    pub(crate) fn with_report<T>(&self, result: Result<T, PoolError>) -> Result<T, PoolError> {
        result.map_err(|mut error| {
            if let Some(report) = error.out_of_memory_mut() {
                self.describe(report);
            }
            if let Some(observer) = &self.setup.observer
                && error.is_want_of_memory()
            {
                observer.notify(&error);
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
        let parent = self.limits.node().parent().filter(|_| is_by_own);
        report.facts = PoolFacts {
            is_parent_limit: is_by_limit && !is_by_own,
            parent_limit_bytes: parent
                .and_then(|parent| Some(parent.limit_exceeded_by(report.requested_bytes)?.limit_bytes)),
            backend: Some(backend),
            can_map: self.backend.growing().is_some(),
            is_tight: self.setup.config.tuning == Profile::Tight.into(),
            others_cached_bytes: others.cached_bytes,
        };
        if report.advice() == Advice::FreeTheDevice {
            report.processes = processes::of(&self.device);
        }
    }

    /// Returns the memory of other pools on the device: the total minus this pool's own.
    fn others(&self, report: &OutOfMemory) -> Result<Others, PoolError> {
        let _entered = self.device.enter_relaxed()?;
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
}

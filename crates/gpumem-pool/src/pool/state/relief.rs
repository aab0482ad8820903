//! Retries after the backend has run out of memory: the pool reclaims memory elsewhere and repeats the request.
//!
//! | source | when | cost |
//! | --- | --- | --- |
//! | registered reclaim callbacks: purge, then release | always | their cached memory |
//! | other pools of the device | unless this pool's own limit refused | their caches, and a wait for the device |
//!
//! Only sources whose memory helps the requested kind take part: device memory and unified memory help each other,
//! pinned memory helps pinned memory. After each source, the request is repeated from the beginning. No lock is
//! held. All retries share one deadline.

use super::State;
use crate::backend::Source;
use crate::device::{CaptureModeGuard, deadline};
use crate::error::{Attempt, OutOfMemory, PoolError, RefusedBy};
use crate::reclaim::{Extent, OTHERS_TIME_MAX};
use std::time::Instant;

/// The failures of a source; `None` if there is no source.
type Asked = Option<Vec<String>>;

type Relief = fn(&State, &OutOfMemory) -> Asked;

const RELIEFS: [(&str, Relief); 3] = [
    ("ask holders to purge", |state, _| state.ask(Extent::Purge, state.until())),
    ("ask holders to release", |state, _| state.ask(Extent::Release, state.until())),
    ("trim other pools of the device", State::trim_others),
];

impl State {
    /// Runs a request. While it fails for lack of memory, runs the next source and repeats it.
    pub(crate) fn retry_with_reclaim<T>(
        &self,
        request: impl Fn() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let _request = deadline::Request::begin();
        let result = request();
        match result.as_ref().err().and_then(PoolError::out_of_memory) {
            None => result,
            Some(_) => self.relieve(result, request),
        }
    }

    #[cold]
    fn relieve<T>(
        &self,
        mut result: Result<T, PoolError>,
        request: impl Fn() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let mut attempts = result.as_mut().err().map(PoolError::take_attempts).unwrap_or_default();
        for (name, relief) in RELIEFS {
            let Some(report) = result.as_ref().err().and_then(PoolError::out_of_memory) else { break };
            let (start, before) = (Instant::now(), self.room());
            let Some(failures) = relief(self, report) else { continue };
            let gained_bytes = self.room().saturating_sub(before).max(0).unsigned_abs();
            Attempt { name, gained_bytes, took: start.elapsed(), failures }.add_to(&mut attempts);
            result = request();
            let again = result.as_mut().err().map(PoolError::take_attempts).unwrap_or_default();
            again.into_iter().for_each(|attempt| attempt.add_to(&mut attempts));
        }
        result.map_err(|error| error.after(attempts))
    }

    /// Runs a request through the adaptors. While a budget refuses it, runs the reclaim callbacks and repeats it.
    /// Other pools' caches do not count against the budget, so they are not trimmed.
    pub(crate) fn retry_over_budget<T>(
        &self,
        request: impl Fn() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let _request = deadline::Request::begin();
        self.again_over_budget(request(), request)
    }

    /// Repeats a request that has already failed once with this result.
    #[cold]
    pub(crate) fn again_over_budget<T>(
        &self,
        mut result: Result<T, PoolError>,
        request: impl Fn() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let _request = deadline::Request::begin();
        for extent in [Extent::Purge, Extent::Release] {
            let is_short = matches!(&result, Err(PoolError::OverBudget { requested_bytes, limit_bytes, .. })
                if requested_bytes <= limit_bytes);
            if is_short && self.ask(extent, self.until()).is_some() {
                result = request();
            }
        }
        result
    }

    /// Runs all registered reclaim callbacks to their full extent.
    pub(super) fn ask_holders(&self) {
        for extent in [Extent::Purge, Extent::Release] {
            // A callback that fails is treated like one that has nothing to release.
            let _ = self.ask(extent, Instant::now() + OTHERS_TIME_MAX);
        }
    }

    fn ask(&self, extent: Extent, until: Instant) -> Asked {
        self.device.maintenance().registry().ask(extent, self.setup.config.kind, until)
    }

    /// Returns the deadline for waits of this thread's request.
    fn until(&self) -> Instant {
        deadline::until(self.setup.config.tuning.wait_deadline)
    }

    /// Waits until the device is idle, then releases the cached memory of other pools, and the memory left by pools
    /// that ended.
    fn trim_others(&self, report: &OutOfMemory) -> Asked {
        // The comparison of limits is not sufficient alone: another limit may have the same value.
        let is_ours = matches!(report.refused_by, RefusedBy::HardLimit | RefusedBy::Quota)
            && report.limit_bytes == self.limits.hard_bytes()
            && self.limits.node().is_full_for(report.requested_bytes);
        let kind = self.setup.config.kind;
        let mut trimmables = self.device.maintenance().trimmables();
        trimmables.retain(|member| member.kind().helps(kind));
        // One of the entries is this pool itself.
        let has_others = trimmables.len() > usize::from(self.backend.keeps_memory())
            || self.device.maintenance().has_left_for(kind);
        if is_ours || !has_others {
            return None;
        }
        trimmables.iter().for_each(|member| member.before_giving());
        let trimmed = CaptureModeGuard::enter(self.device.driver()).and_then(|_relaxed| {
            let _bound = self.device.enter()?;
            let is_idle = self.device.finish_until(self.until())?;
            self.device.after_wait_until(is_idle);
            trimmables.iter().for_each(|member| member.give_back_all(is_idle));
            Ok(())
        });
        Some(trimmed.err().iter().map(ToString::to_string).collect())
    }

    /// Returns the device's free bytes minus this pool's bytes in use. The difference before and after a source
    /// measures its gain.
    fn room(&self) -> i64 {
        let free_bytes = self.device.memory_info().map_or(0, |info| info.free_bytes);
        i64::try_from(free_bytes).unwrap_or(0)
            - i64::try_from(self.backend.counts().in_use_bytes).unwrap_or(0)
    }
}

//! What a pool does when its backend has done all that it can by itself: it asks others to make room.
//!
//! | who | when | what it costs |
//! | --- | --- | --- |
//! | holders that registered: purge, then release | always | what they had cached |
//! | other pools of the device | where not our own limit refuses | their caches, and a wait for the device |
//!
//! Only those are asked whose memory helps the kind that is short: the device's memory and unified memory help each other,
//! pinned memory helps pinned memory. After each the request is made again, from the beginning. No lock is held. All of it
//! has one deadline.

use super::State;
use crate::backend::Source;
use crate::device::{CaptureModeGuard, deadline};
use crate::error::{Attempt, OutOfMemory, PoolError, RefusedBy};
use crate::reclaim::{Extent, OTHERS_TIME_MAX};
use std::time::Instant;

/// What went wrong; `None` if there is nobody to ask.
type Asked = Option<Vec<String>>;

type Relief = fn(&State, &OutOfMemory) -> Asked;

const RELIEFS: [(&str, Relief); 3] = [
    ("ask holders to purge", |state, _| state.ask(Extent::Purge, state.until())),
    ("ask holders to release", |state, _| state.ask(Extent::Release, state.until())),
    ("trim other pools of the device", State::trim_others),
];

impl State {
    /// Makes a request, and again after each relief for as long as it is refused for want of memory.
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

    /// Makes a request through the adaptors, and again after holders were asked, for as long as a budget has no room. Others'
    /// caches are no part of it.
    pub(crate) fn retry_over_budget<T>(
        &self,
        request: impl Fn() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let _request = deadline::Request::begin();
        self.again_over_budget(request(), request)
    }

    /// Makes a request again that has been made once, with this result.
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

    /// Asks everybody who is registered for all that they can do without.
    pub(super) fn ask_holders(&self) {
        for extent in [Extent::Purge, Extent::Release] {
            // Who fails is no worse than who has nothing.
            let _ = self.ask(extent, Instant::now() + OTHERS_TIME_MAX);
        }
    }

    fn ask(&self, extent: Extent, until: Instant) -> Asked {
        self.device.maintenance().registry().ask(extent, self.setup.config.kind, until)
    }

    /// Until when this thread's request may wait.
    fn until(&self) -> Instant {
        deadline::until(self.setup.config.tuning.wait_deadline)
    }

    /// All that other pools keep without using it, and that ended ones left, once the device is idle.
    fn trim_others(&self, report: &OutOfMemory) -> Asked {
        // Another limit may have the same number.
        let is_ours = matches!(report.refused_by, RefusedBy::HardLimit | RefusedBy::Quota)
            && report.limit_bytes == self.limits.hard_bytes()
            && self.limits.node().is_full_for(report.requested_bytes);
        let kind = self.setup.config.kind;
        let mut trimmables = self.device.maintenance().trimmables();
        trimmables.retain(|member| member.kind().helps(kind));
        // One is this pool.
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

    /// Free on the device, and what our blocks don't hold: a measure of what is gained.
    fn room(&self) -> i64 {
        let free_bytes = self.device.memory_info().map_or(0, |info| info.free_bytes);
        i64::try_from(free_bytes).unwrap_or(0)
            - i64::try_from(self.backend.counts().in_use_bytes).unwrap_or(0)
    }
}

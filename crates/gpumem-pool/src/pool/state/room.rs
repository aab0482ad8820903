//! The size of a pool: changes of its limits, memory given back and memory reserved ahead.

use super::State;
use crate::backend::Answer;
use crate::config::Limit;
use crate::error::PoolError;
use crate::limits::Limits;

impl State {
    pub(crate) fn reclaim(&self) -> Result<u64, PoolError> {
        self.giving_back(|state| {
            state.run_all_callbacks();
            state.backend.reclaim()
        })
    }

    pub(crate) fn trim_to(&self, keep_bytes: u64) -> Result<u64, PoolError> {
        self.giving_back(|state| state.backend.trim_to(keep_bytes))
    }

    pub(crate) fn reserve(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.check_usable()?;
        let reserved = self.check_size(size_bytes).and_then(|()| match self.backend.reserve(size_bytes) {
            Answer::Found(()) => Ok(()),
            Answer::Short(mut search) => self.climb(&mut *search),
        });
        self.with_report(reserved)
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

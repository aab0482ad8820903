//! [`Admission`]: the limits that a pool's memory counts against (its own, its parents', and the device's budget).

use crate::config::{Config, MemoryKind};
use crate::error::LimitExceeded;
use crate::limits::{DeviceBudget, LimitNode, Limits};
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Admission {
    node: Arc<LimitNode>,
    budget: Arc<DeviceBudget>,
    pub(crate) kind: MemoryKind,
    oversubscribes: bool,
}

impl Admission {
    pub(crate) fn new(config: &Config, limits: &Limits, budget: &Arc<DeviceBudget>) -> Self {
        Self {
            node: Arc::clone(&limits.node),
            budget: Arc::clone(budget),
            kind: config.kind,
            oversubscribes: config.oversubscribes,
        }
    }

    /// Counts the bytes as held, or returns the limit that refuses.
    pub(crate) fn admit(&self, size_bytes: u64) -> Result<(), LimitExceeded> {
        self.budget.admit(self.kind, size_bytes, self.oversubscribes)?;
        self.node.admit(size_bytes).inspect_err(|_| self.budget.give_back(self.kind, size_bytes))
    }

    pub(crate) fn give_back(&self, size_bytes: u64) {
        self.budget.give_back(self.kind, size_bytes);
        self.node.give_back(size_bytes);
    }

    #[cfg(feature = "backend-caching")]
    pub(crate) fn room_bytes(&self) -> u64 {
        let family_bytes = self.node.room_bytes();
        if self.oversubscribes {
            family_bytes
        } else {
            family_bytes.min(self.budget.room_bytes(self.kind).unwrap_or(0))
        }
    }

    #[cfg(feature = "backend-caching")]
    pub(crate) fn limit_exceeded_by(&self, size_bytes: u64) -> Option<LimitExceeded> {
        let budget = || self.budget.limit_exceeded_by(self.kind, size_bytes).filter(|_| !self.oversubscribes);
        self.node.limit_exceeded_by(size_bytes).or_else(budget)
    }
}

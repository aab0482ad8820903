//! Limits: how many bytes a pool may hold, alone and together with others. Pure.

#[cfg_attr(
    not(feature = "backend-caching"),
    allow(dead_code, reason = "what only the caching backend asks for")
)]
pub(crate) mod admission;
#[cfg_attr(
    not(feature = "backend-caching"),
    allow(dead_code, reason = "what only the caching backend asks for")
)]
pub(crate) mod device_budget;
#[cfg_attr(
    not(feature = "backend-caching"),
    allow(dead_code, reason = "what only the caching backend asks for")
)]
pub(crate) mod limit_node;

pub(crate) use admission::Admission;
pub(crate) use device_budget::DeviceBudget;
pub(crate) use limit_node::{LimitNode, Trimmable};

use crate::config::{ConfigError, Limit, MemoryKind};
use crate::error::{LimitExceeded, PoolError};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The limits of one pool as they are now. Clones are the same limits.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Keeps the hard one.
    node: Arc<LimitNode>,
    soft_bytes: Arc<AtomicU64>,
}

impl Limits {
    /// What an option comes to on a device; nothing is no limit.
    pub(crate) fn resolve(
        limit: Option<Limit>,
        kind: MemoryKind,
        device_bytes: u64,
    ) -> Result<u64, ConfigError> {
        limit.map_or(Ok(NO_LIMIT), |limit| limit.resolve_for(kind, device_bytes))
    }

    /// As [`Limits::resolve`], where some memory has to be allowed.
    pub(crate) fn resolve_hard(
        limit: Option<Limit>,
        kind: MemoryKind,
        device_bytes: u64,
    ) -> Result<u64, PoolError> {
        match Self::resolve(limit, kind, device_bytes)? {
            limit_bytes if limit_bytes < HARD_LIMIT_MIN_BYTES => {
                Err(PoolError::LimitTooSmall { limit_bytes, minimum_bytes: HARD_LIMIT_MIN_BYTES })
            }
            limit_bytes => Ok(limit_bytes),
        }
    }

    pub(crate) fn new(node: Arc<LimitNode>, soft_bytes: u64) -> Self {
        Self { node, soft_bytes: Arc::new(AtomicU64::new(soft_bytes)) }
    }

    pub(crate) fn node(&self) -> &Arc<LimitNode> {
        &self.node
    }

    pub(crate) fn hard_bytes(&self) -> Option<u64> {
        Some(self.node.limit_bytes()).filter(|limit_bytes| *limit_bytes != NO_LIMIT)
    }

    /// A part of what may be held: of the hard limit, or of the device where that is less.
    pub(crate) fn part_bytes(&self, share: f64, device_bytes: u64) -> u64 {
        (self.node.limit_bytes().min(device_bytes) as f64 * share) as u64
    }

    /// The hard limit, if there is one, for the report of a request that it refused with so much held.
    pub(crate) fn passed(&self, held_bytes: u64) -> Option<LimitExceeded> {
        self.hard_bytes().map(|_| self.node.passed(held_bytes))
    }

    pub(crate) fn soft_bytes(&self) -> Option<u64> {
        Some(self.soft_bytes.load(Ordering::Relaxed)).filter(|limit_bytes| *limit_bytes != NO_LIMIT)
    }

    pub(crate) fn set_soft_bytes(&self, limit_bytes: u64) {
        self.soft_bytes.store(limit_bytes, Ordering::Relaxed);
    }
}

/// As many bytes as this are no limit.
const NO_LIMIT: u64 = u64::MAX;

/// The driver hands out physical memory in pieces of 2 MiB: below that, a limit leaves room for nothing.
const HARD_LIMIT_MIN_BYTES: u64 = 2 << 20;

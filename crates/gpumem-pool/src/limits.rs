//! Limits: the bytes that a pool may hold, alone and together with other pools; and what the program and other pools release when memory
//! is short.

pub(crate) mod admission;
pub(crate) mod device_budget;
pub(crate) mod limit_node;
pub(crate) mod reclaim;
pub(crate) mod spills;
pub(crate) mod trimmable;

pub(crate) use admission::Admission;
pub(crate) use device_budget::DeviceBudget;
pub(crate) use limit_node::LimitNode;
pub(crate) use trimmable::{Trimmable, WeakList};

use crate::config::{Limit, MemoryKind, PoolName};
use crate::error::{BadArgument, LimitExceeded, PoolError};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The current limits of one pool. Clones share them.
#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) node: Arc<LimitNode>,
    soft_bytes: Arc<AtomicU64>,
}

impl Limits {
    /// The bytes of an optional limit on a device; [`NO_LIMIT`] for `None`. `free_bytes` queries the free memory, for a share of it.
    pub(crate) fn resolve(
        limit: Option<Limit>,
        kind: MemoryKind,
        device_bytes: u64,
        free_bytes: impl FnOnce() -> Result<u64, PoolError>,
    ) -> Result<u64, PoolError> {
        let Some(limit) = limit else { return Ok(NO_LIMIT) };
        limit.check_for(kind)?;
        let free_bytes = match limit {
            Limit::PercentFree(_) => free_bytes()?.min(device_bytes),
            _ => 0,
        };
        Ok(limit.resolve(device_bytes, free_bytes)?)
    }

    /// Like [`Limits::resolve`], for a hard limit, which must allow some memory.
    pub(crate) fn resolve_hard(
        pool: &PoolName,
        limit: Option<Limit>,
        kind: MemoryKind,
        device_bytes: u64,
        free_bytes: impl FnOnce() -> Result<u64, PoolError>,
    ) -> Result<u64, PoolError> {
        match Self::resolve(limit, kind, device_bytes, free_bytes)? {
            limit_bytes if limit_bytes < HARD_LIMIT_MIN_BYTES => {
                let pool = pool.as_str().into();
                Err(PoolError::BadArgument(BadArgument::LimitTooSmall {
                    pool,
                    limit_bytes,
                    minimum_bytes: HARD_LIMIT_MIN_BYTES,
                }))
            }
            limit_bytes => Ok(limit_bytes),
        }
    }

    pub(crate) fn new(node: Arc<LimitNode>, soft_bytes: u64) -> Self {
        Self { node, soft_bytes: Arc::new(AtomicU64::new(soft_bytes)) }
    }

    pub(crate) fn hard_bytes(&self) -> Option<u64> {
        Some(self.node.limit_bytes()).filter(|limit_bytes| *limit_bytes != NO_LIMIT)
    }

    /// A share of the hard limit, or of the device's memory if that is smaller.
    pub(crate) fn part_bytes(&self, share: f64, device_bytes: u64) -> u64 {
        (self.node.limit_bytes().min(device_bytes) as f64 * share) as u64
    }

    /// The hard limit, if any, for the report of a request that it refused at this level of held bytes.
    pub(crate) fn exceeded_at(&self, held_bytes: u64) -> Option<LimitExceeded> {
        self.hard_bytes().map(|_| self.node.exceeded_at(held_bytes))
    }

    pub(crate) fn soft_bytes(&self) -> Option<u64> {
        Some(self.soft_bytes.load(Ordering::Relaxed)).filter(|limit_bytes| *limit_bytes != NO_LIMIT)
    }

    pub(crate) fn set_soft_bytes(&self, limit_bytes: u64) {
        self.soft_bytes.store(limit_bytes, Ordering::Relaxed);
    }
}

const NO_LIMIT: u64 = u64::MAX;

/// The driver allocates physical memory in pages of 2 MiB: a lower limit could not hold one.
pub(crate) const HARD_LIMIT_MIN_BYTES: u64 = 2 << 20;

//! [`PoolUsage`]: the name and the memory of one pool, for lists of pools.

use crate::config::{BackendKind, MemoryKind, PoolId};

/// The name and the memory of one pool; see [`Pool::list`](crate::Pool::list).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolUsage {
    /// The identity of the pool.
    pub id: PoolId,
    /// The name of the pool ([`Pool::name`](crate::Pool::name)).
    pub name: String,
    /// The pool that this one is private to ([`Pool::private`](crate::Pool::private)).
    pub parent: Option<PoolId>,
    /// The backend of the pool.
    pub backend: BackendKind,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// Bytes in live blocks.
    pub in_use_bytes: u64,
    /// Bytes held from the device: blocks and cached memory.
    pub reserved_bytes: u64,
    /// Sleeping memory ([`Pool::sleep`](crate::Pool::sleep)). It is not on the device, and not part of
    /// [`reserved_bytes`](Self::reserved_bytes).
    pub asleep_bytes: u64,
    /// The bytes that count against hard limits.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) counted_bytes: u64,
    /// The number of live blocks, empty ones excluded.
    pub block_count: u64,
    /// The hard limit or quota, if any.
    pub hard_limit_bytes: Option<u64>,
}

//! Kinds of pools, and the users of their memory.
//!
//! | kind | its segments | used by devices | used by the host |
//! | --- | --- | --- | --- |
//! | of a device | that device's memory | its own, and those that were given access | never |
//! | pinned host memory | this process's, at one address for all | those that were given access | always |
//! | managed memory | this process's, with a record of its pages | all | always |
//!
//! The driver treats pinned memory of a pool as host memory only: in copies that state a direction it is always the host's side.

use crate::base::handle::Handle;
use crate::memory::allocated_by::AllocatedBy;

/// The kind of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    Device,
    Pinned,
    Managed,
}

impl PoolKind {
    pub(crate) fn allocated_by(self, pool: Handle) -> AllocatedBy {
        match self {
            Self::Device => AllocatedBy::Pool(pool),
            Self::Pinned => AllocatedBy::PinnedPool(pool),
            Self::Managed => AllocatedBy::ManagedPool(pool),
        }
    }
}

/// A user of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Device(usize),
    Host,
}

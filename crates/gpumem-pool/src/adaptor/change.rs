//! [`Change`]: a block that grows has more memory, or less.

use super::PoolId;
use crate::device::Device;
use core::fmt;

/// How the memory of a [`GrowableBlock`](crate::GrowableBlock) changes.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    pub(crate) address: u64,
    pub(crate) from_bytes: u64,
    pub(crate) to_bytes: u64,
    pub(crate) device: &'a Device,
    pub(crate) pool: PoolId,
}

impl<'a> Change<'a> {
    /// Where it starts, for as long as it lives.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size before.
    #[must_use]
    pub fn from_bytes(&self) -> u64 {
        self.from_bytes
    }

    /// Its size afterwards.
    #[must_use]
    pub fn to_bytes(&self) -> u64 {
        self.to_bytes
    }

    /// The pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The pool that it is of.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Backwards.
    pub(crate) fn undone(self) -> Self {
        Self { from_bytes: self.to_bytes, to_bytes: self.from_bytes, ..self }
    }
}

impl fmt::Debug for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("address", &format_args!("{:#x}", self.address))
            .field("from_bytes", &self.from_bytes)
            .field("to_bytes", &self.to_bytes)
            .finish_non_exhaustive()
    }
}

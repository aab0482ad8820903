//! [`Sleeping`]: memory that leaves the device for a time and keeps its addresses.

use super::Search;
use crate::error::PoolError;
use core::ops::Range;

/// The fate of the contents of memory that sleeps; see [`Pool::sleep`](crate::Pool::sleep).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// They are copied to pinned host memory, and copied back.
    OnHost,
    /// They are lost: the memory is zero afterwards.
    Nothing,
}

/// The bytes that a pool has put to sleep; see [`Pool::sleep`](crate::Pool::sleep).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Slept {
    /// The physical memory that went back to the device, with the free memory of the pool.
    pub released_bytes: u64,
    /// The physical memory that the pool still has on the device.
    pub kept_bytes: u64,
    /// The contents that were copied to host memory.
    pub copied_bytes: u64,
}

/// The bytes that a pool has woken; see [`Pool::wake`](crate::Pool::wake).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Woken {
    /// The physical memory that was created on the device.
    pub created_bytes: u64,
    /// The contents that were copied from host memory.
    pub copied_bytes: u64,
}

/// A backend whose memory can sleep. The pool above lets no operation use the addresses meanwhile, and requests no block.
pub(crate) trait Sleeping {
    /// The addresses that sleep.
    fn addresses(&self) -> Vec<Range<u64>>;

    /// Prepares sleep, before the wait for the device: memory that thread caches return after the wait is not covered by it.
    fn prepare(&self);

    /// Puts the memory to sleep. All work of the device is complete. An error may leave a part asleep: [`is_asleep`](Self::is_asleep).
    fn sleep(&self, keep: Keep) -> Result<Slept, PoolError>;

    /// Wakes the memory. Also after an error, it can be repeated.
    fn wake(&self) -> Box<dyn Search<Woken> + '_>;

    /// Returns whether a part of the memory sleeps.
    fn is_asleep(&self) -> bool;
}

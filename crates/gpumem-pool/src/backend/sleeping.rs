//! [`Sleeping`]: memory that temporarily leaves the device and keeps its addresses.

use super::Search;
use crate::error::PoolError;
use core::ops::Range;

/// The fate of the contents of sleeping memory; see [`Pool::sleep`](crate::Pool::sleep).
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
    /// The physical memory that was returned to the device, including the pool's free memory.
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

/// A backend whose memory can sleep. During sleep the pool above lets no operation use the addresses, and requests no block.
pub(crate) trait Sleeping {
    /// The addresses that sleep.
    fn addresses(&self) -> Vec<Range<u64>>;

    /// Prepares sleep. Called before the wait for the device, which does not cover memory that thread caches return later.
    fn prepare(&self);

    /// Puts the memory to sleep. All work of the device is complete. An error may leave a part asleep: [`is_asleep`](Self::is_asleep).
    fn sleep(&self, keep: Keep) -> Result<Slept, PoolError>;

    /// Wakes the memory. It can be repeated, even after an error.
    fn wake(&self) -> Box<dyn Search<Woken> + '_>;

    /// True if a part of the memory sleeps.
    fn is_asleep(&self) -> bool;
}

//! Sleeping memory, as a program chooses and sees it: [`Keep`], [`Slept`], [`Woken`].

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

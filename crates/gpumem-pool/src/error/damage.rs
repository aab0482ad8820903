//! [`Damage`]: what [`Guard`](crate::adaptor::Guard) finds.

use crate::config::{Bytes, PoolId};
use core::fmt;
use gpumem_heap::order::StreamId;
use gpumem_sys::types::CUdeviceptr;

/// Somebody wrote past an end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// Where the block started.
    pub address: CUdeviceptr,
    /// How large it was.
    pub size_bytes: u64,
    /// The stream that it was of.
    pub stream: StreamId,
    /// The pool that it was of.
    pub pool: PoolId,
    /// At which end.
    pub side: Side,
    /// How many bytes lie between the block and the nearest byte that was written.
    pub distance_bytes: u64,
    /// How many of the guard's bytes were written.
    pub count: u64,
    /// What the nearest one holds.
    pub found: u8,
}

/// An end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Its first byte's.
    Before,
    /// Its last byte's.
    Behind,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, size_bytes, stream, distance_bytes, count, found, .. } = *self;
        let side = match self.side {
            Side::Before => "before",
            Side::Behind => "behind",
        };
        write!(
            f,
            "{count} bytes {side} a block of {} at {address:#x}, of {stream}, were written: the nearest is \
             {distance_bytes} bytes from it and holds {found:#04x}",
            Bytes(size_bytes)
        )
    }
}

//! [`Damage`]: an out-of-bounds write that [`Guard`](crate::adaptor::Guard) detected.

use crate::config::PoolId;
use core::fmt;
use gpumem_device::{Bytes, StreamId};
use gpumem_sys::text::Shown;
use gpumem_sys::types::CUdeviceptr;
use std::sync::Arc;

/// A write beyond an end of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The address of the block.
    pub address: CUdeviceptr,
    /// The size of the block.
    pub size_bytes: u64,
    /// The stream that the block was allocated on.
    pub stream: StreamId,
    /// The pool of the block.
    pub pool: PoolId,
    /// The name of that pool ([`Pool::name`](crate::Pool::name)).
    pub pool_name: Arc<str>,
    /// The tag of the block ([`Pool::scope`](crate::Pool::scope)).
    pub tag: Option<Arc<str>>,
    /// The end that was exceeded.
    pub side: Side,
    /// The number of bytes between the block and the nearest overwritten byte.
    pub distance_bytes: u64,
    /// The number of overwritten guard bytes.
    pub count: u64,
    /// The value of the nearest overwritten byte.
    pub found: u8,
}

/// An end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before the first byte.
    Before,
    /// After the last byte.
    Behind,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, size_bytes, stream, distance_bytes, count, found, .. } = *self;
        let pool_name = Shown::name(&self.pool_name);
        let tag = self.tag.as_ref().map_or(String::new(), |tag| format!(", tag `{}`", Shown::name(tag)));
        let (side, end) = match self.side {
            Side::Before => ("before", "start"),
            Side::Behind => ("after", "end"),
        };
        let overwritten = match count {
            1 => format!("1 byte {side}"),
            _ => format!("{count} bytes {side}"),
        };
        let were = if count == 1 { "was" } else { "were" };
        let nearest = match distance_bytes {
            0 => format!("directly {side} its {end}"),
            1 => format!("1 byte from its {end}"),
            distance_bytes => format!("{distance_bytes} bytes from its {end}"),
        };
        write!(
            f,
            "{overwritten} a block of {} at {address:#x}, of {stream} (pool {pool_name}{tag}), {were} overwritten: the nearest lies {nearest} \
             and holds {found:#04x}",
            Bytes(size_bytes)
        )
    }
}

//! Memory pools: stream-ordered allocation, reuse, and the release of memory to the device.
//!
//! A pool reserves segments of 32 MiB or more. `pool_reuse` decides which streams may reuse a freed block. The policies affect the
//! amount of reserved memory and the result of a missing wait; a correct program does not rely on them.
//!
//! Segments that are entirely free are released at synchronisation, down to the release threshold, when the pool is trimmed, or
//! when another allocation finds the device full.

use crate::backing::{Backing, Bytes};
use crate::base::codes::Answer;
use crate::base::extents::Extents;
use crate::memory::pending::Pending;
use crate::memory::plain::{ALIGNMENT_BYTES, SMALL_BYTES_MAX, room_bytes, round_up};
use crate::memory::pool_file::Sharing;
pub(crate) use crate::memory::pool_kind::PoolKind;
use crate::memory::pool_reuse::Policies;
use std::collections::{BTreeMap, BTreeSet};

/// One pool.
pub(crate) struct Pool {
    pub(crate) kind: PoolKind,
    /// The device of its memory, or of its creator for other kinds.
    pub(crate) device: usize,
    pub(crate) is_default: bool,
    pub(crate) is_closing: bool,
    /// The maximum of reserved bytes.
    pub(crate) bytes_max: u64,
    pub(crate) segments: BTreeMap<u64, Segment>,
    /// The ranges that are free for all streams.
    pub(crate) free: Extents,
    pub(crate) pending: Pending,
    pub(crate) reserved: Gauge,
    pub(crate) used: Gauge,
    pub(crate) release_threshold_bytes: u64,
    pub(crate) policies: Policies,
    /// The other devices that may use its memory.
    pub(crate) shared_with: BTreeSet<usize>,
    /// True if the host was given access to managed memory, which it always has.
    pub(crate) is_hosts: bool,
    pub(crate) sharing: Sharing,
}

pub(crate) struct Segment {
    pub(crate) backing: Backing,
    pub(crate) size_bytes: u64,
    /// The offset in the pool's file, if it has one.
    pub(crate) file_offset_bytes: u64,
}

/// A number of bytes, and its peak.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauge {
    pub(crate) current: u64,
    pub(crate) high: u64,
}

impl Gauge {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }
}

impl Pool {
    pub(crate) fn new(device: usize, is_default: bool, bytes_max: u64) -> Self {
        Self {
            kind: PoolKind::Device,
            device,
            is_default,
            is_closing: false,
            bytes_max: reserve_max_bytes(bytes_max),
            segments: BTreeMap::new(),
            free: Extents::default(),
            pending: Pending::default(),
            reserved: Gauge::default(),
            used: Gauge::default(),
            release_threshold_bytes: 0,
            policies: Policies::default(),
            shared_with: BTreeSet::new(),
            is_hosts: false,
            sharing: Sharing::Private,
        }
    }

    pub(crate) fn shared(self, sharing: Sharing) -> Self {
        Self { sharing, ..self }
    }

    /// The room that a block takes. Large ones fill their segments, and those of a pool with a maximum fill it, as the driver's do.
    pub(crate) fn room_bytes(&self, size_bytes: u64) -> Answer<u64> {
        let is_exact = size_bytes > SMALL_BYTES_MAX || self.bytes_max != u64::MAX;
        if is_exact { round_up(size_bytes, ALIGNMENT_BYTES) } else { room_bytes(size_bytes) }
    }

    pub(crate) fn bytes_at(&self, address: u64) -> Option<Bytes> {
        let (base, segment) = self.segments.range(..=address).next_back()?;
        (address - base < segment.size_bytes).then(|| segment.backing.bytes().at(address - base))
    }

    /// The offset of an address in the file of the pool.
    pub(crate) fn file_offset_of(&self, address: u64) -> Option<u64> {
        let (base, segment) = self.segments.range(..=address).next_back()?;
        Some(segment.file_offset_bytes + (address - base))
    }

    /// The address of an offset in the pool's file.
    pub(crate) fn address_at(&self, file_offset_bytes: u64) -> Option<u64> {
        self.segments.iter().find_map(|(base, segment)| {
            let offset_bytes = file_offset_bytes.checked_sub(segment.file_offset_bytes)?;
            (offset_bytes < segment.size_bytes).then_some(base + offset_bytes)
        })
    }

    /// The segment without blocks that has the largest address.
    pub(crate) fn idle_segment(&self) -> Option<(u64, u64)> {
        let idle = |&(&base, segment): &(&u64, &Segment)| self.free.is_whole(base, segment.size_bytes);
        self.segments.iter().rev().find(idle).map(|(&base, segment)| (base, segment.size_bytes))
    }
}

/// The value of an attribute, in the width that the driver writes.
pub(crate) enum PoolValue {
    Int(u32),
    Long(u64),
}

/// The maximum of reserved bytes for a `maxSize`: whole segments; 0 means no bound.
fn reserve_max_bytes(max_size_bytes: u64) -> u64 {
    match max_size_bytes {
        0 => u64::MAX,
        max => max.checked_next_multiple_of(SEGMENT_BYTES).unwrap_or(u64::MAX),
    }
}

pub(crate) const SEGMENT_BYTES: u64 = 32 << 20;

//! [`RecordedEvent`]: a recorded event. [`Raw`]: its form in rings and files, a kind and four words.

use crate::error::{KeptBy, RefusedBy};
use crate::pool::{Figures, MoveKind, SpillMove};

/// A recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// The time, in nanoseconds since the trace began.
    pub time_ns: u64,
    /// The thread, numbered in the order of first events.
    pub thread: u32,
    /// The recorded operation.
    pub what: What,
}

/// A recorded operation. Streams, pools and the driver's events are identified by opaque numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// A block was allocated.
    Alloc {
        /// The pool.
        pool: u32,
        /// The address.
        address: u64,
        /// The size.
        size_bytes: u64,
        /// The owner stream.
        stream: u64,
        /// The number of the tag, which [`Recording::tag`](super::Recording::tag) maps to the name; 0 for none.
        tag: u32,
    },
    /// A block that is about to be freed or to shrink has been used on a stream other than its owner stream.
    Use {
        /// The pool.
        pool: u32,
        /// The address.
        address: u64,
        /// The other stream.
        stream: u64,
    },
    /// A block was freed.
    Free {
        /// The pool.
        pool: u32,
        /// The address.
        address: u64,
        /// The owner stream.
        stream: u64,
        /// Its size; 0 in files before version 3.
        size_bytes: u64,
        /// True if all its uses were known to be complete.
        is_complete: bool,
    },
    /// A request ended without memory.
    Refused {
        /// The pool.
        pool: u32,
        /// The requested size; for a growable block, the bytes of the growth.
        size_bytes: u64,
        /// The stream of the request; `None` for a reservation.
        stream: Option<u64>,
        /// The number of the tag, as in [`What::Alloc`].
        tag: u32,
        /// The limit, device or adaptor that refused; `None` for a request that is larger than the device.
        by: Option<RefusedBy>,
    },
    /// The contents of an array were moved to the host to make room ([`PoolBuilder::spill`](crate::PoolBuilder::spill)). The free of its
    /// block is an event of its own.
    MovedOut {
        /// The pool.
        pool: u32,
        /// The address that the array had.
        address: u64,
        /// The size.
        size_bytes: u64,
        /// The stream that its memory is freed on, behind the copy.
        stream: u64,
        /// The number of the tag, as in [`What::Alloc`].
        tag: u32,
        /// False if the host had the contents.
        is_copied: bool,
    },
    /// The contents of an array were moved back. The allocation of its block is an event of its own.
    MovedBack {
        /// The pool.
        pool: u32,
        /// The new address.
        address: u64,
        /// The size.
        size_bytes: u64,
        /// The stream of the copy.
        stream: u64,
        /// The number of the tag, as in [`What::Alloc`].
        tag: u32,
        /// True if it moved ahead of its use.
        is_early: bool,
    },
    /// Arrays that could not move for the refused request before, and the reason.
    Kept {
        /// The pool.
        pool: u32,
        /// The reason; `None` for memory that is not of arrays.
        by: Option<KeptBy>,
        /// The bytes.
        bytes: u64,
        /// The number of arrays; 0 for memory that is not of arrays.
        array_count: u64,
    },
    /// The memory that a pool holds from the device. Pools of the backend `caching` record each change, at the next
    /// allocation; all pools record it when they refuse and when they end.
    Reserved {
        /// The pool.
        pool: u32,
        /// The bytes now.
        reserved_bytes: u64,
        /// The highest number of bytes so far ([`Status::reserved_peak_bytes`](crate::Status::reserved_peak_bytes)).
        peak_bytes: u64,
    },
    /// The memory in blocks of a pool, recorded when it refuses and when it ends.
    InUse {
        /// The pool.
        pool: u32,
        /// The bytes in blocks.
        in_use_bytes: u64,
        /// The number of blocks, growable ones excluded.
        block_count: u64,
    },
    /// A stream was made to wait for all work queued on another.
    Wait {
        /// The waiting stream.
        stream: u64,
        /// The other stream.
        source: u64,
    },
    /// A driver event was recorded.
    Mark {
        /// The event.
        event: u64,
        /// The stream that it was recorded on.
        stream: u64,
    },
    /// A stream was made to wait for the last record of an event.
    WaitForMark {
        /// The event.
        event: u64,
        /// The waiting stream.
        stream: u64,
    },
    /// The host has observed that all work queued on a stream is done.
    StreamDone {
        /// The stream.
        stream: u64,
    },
    /// The host has observed that an event is complete.
    MarkDone {
        /// The event.
        event: u64,
    },
    /// The host has waited for all work of a device.
    DeviceDone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum EventKind {
    Alloc = 1,
    Use = 2,
    Free = 3,
    Wait = 4,
    Mark = 5,
    WaitForMark = 6,
    StreamDone = 7,
    MarkDone = 8,
    DeviceDone = 9,
    Refused = 10,
    Reserved = 11,
    InUse = 12,
    MovedOut = 13,
    MovedBack = 14,
    Kept = 15,
}

/// An event without its time: address or event, size or other number, stream, and pool with tag. The value of a free is
/// its size, with the lowest bit for `is_complete`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raw {
    pub(super) kind: EventKind,
    pub(super) words: [u64; 4],
}

impl EventKind {
    pub(super) fn of(number: u8) -> Option<Self> {
        let all = [
            Self::Alloc,
            Self::Use,
            Self::Free,
            Self::Wait,
            Self::Mark,
            Self::WaitForMark,
            Self::StreamDone,
            Self::MarkDone,
            Self::DeviceDone,
            Self::Refused,
            Self::Reserved,
            Self::InUse,
            Self::MovedOut,
            Self::MovedBack,
            Self::Kept,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

impl Raw {
    /// `whose` contains the pool and the tag.
    #[inline]
    pub(super) fn alloc(whose: u64, address: u64, size_bytes: u64, stream: u64) -> Self {
        Self { kind: EventKind::Alloc, words: [address, size_bytes, stream, whose] }
    }

    pub(super) fn free(pool: u32, address: u64, size_bytes: u64, stream: u64, is_complete: bool) -> Self {
        let value = size_bytes << 1 | u64::from(is_complete);
        Self { kind: EventKind::Free, words: [address, value, stream, u64::from(pool)] }
    }

    /// `whose` contains the pool and the tag of the request.
    pub(super) fn refused(whose: u64, size_bytes: u64, stream: Option<u64>, by: Option<RefusedBy>) -> Self {
        let by = REFUSED_BY.iter().position(|known| Some(*known) == by).unwrap_or(REFUSED_BY.len()) as u64;
        let stream = stream.map_or(0, |stream| stream.wrapping_add(1));
        Self { kind: EventKind::Refused, words: [by, size_bytes, stream, whose] }
    }

    pub(super) fn reserved(pool: u32, figures: &Figures) -> Self {
        let Figures { reserved_bytes, reserved_peak_bytes, .. } = *figures;
        Self { kind: EventKind::Reserved, words: [reserved_peak_bytes, reserved_bytes, 0, u64::from(pool)] }
    }

    pub(super) fn in_use(pool: u32, figures: &Figures) -> Self {
        let Figures { in_use_bytes, block_count, .. } = *figures;
        Self { kind: EventKind::InUse, words: [in_use_bytes, block_count, 0, u64::from(pool)] }
    }

    /// `whose` contains the pool and the tag of the array.
    pub(super) fn moved(whose: u64, moved: &SpillMove) -> Self {
        let (kind, flag) = match moved.kind {
            MoveKind::Out { is_copied } => (EventKind::MovedOut, is_copied),
            MoveKind::Back { is_early } => (EventKind::MovedBack, is_early),
        };
        let value = moved.size_bytes << 1 | u64::from(flag);
        Self { kind, words: [moved.address, value, moved.stream.as_u64(), whose] }
    }

    pub(super) fn kept(pool: u32, by: Option<KeptBy>, bytes: u64, array_count: u64) -> Self {
        let by = by.map_or(0, |by| by as u64 + 1);
        Self { kind: EventKind::Kept, words: [by, bytes, array_count, u64::from(pool)] }
    }

    pub(super) fn whose(self) -> Option<(u32, u32)> {
        let [.., whose] = self.words;
        let (pool, tag) = (whose as u32, (whose >> 32) as u32);
        match self.kind {
            EventKind::Alloc | EventKind::Refused | EventKind::MovedOut | EventKind::MovedBack => {
                Some((pool, tag))
            }
            EventKind::Use | EventKind::Free | EventKind::Reserved | EventKind::InUse | EventKind::Kept => {
                Some((pool, 0))
            }
            _ => None,
        }
    }

    pub(super) fn what(self) -> What {
        let [address, value, stream, whose] = self.words;
        let (pool, tag) = (whose as u32, (whose >> 32) as u32);
        match self.kind {
            EventKind::Alloc => What::Alloc { pool, address, size_bytes: value, stream, tag },
            EventKind::Use => What::Use { pool, address, stream },
            EventKind::Free => {
                What::Free { pool, address, stream, size_bytes: value >> 1, is_complete: value & 1 != 0 }
            }
            EventKind::Refused => {
                let by = REFUSED_BY.get(address as usize).copied();
                let stream = (stream > 0).then(|| stream.wrapping_sub(1));
                What::Refused { pool, size_bytes: value, stream, tag, by }
            }
            EventKind::Reserved => What::Reserved { pool, reserved_bytes: value, peak_bytes: address },
            EventKind::InUse => What::InUse { pool, in_use_bytes: address, block_count: value },
            EventKind::MovedOut => {
                let is_copied = value & 1 != 0;
                What::MovedOut { pool, address, size_bytes: value >> 1, stream, tag, is_copied }
            }
            EventKind::MovedBack => {
                let is_early = value & 1 != 0;
                What::MovedBack { pool, address, size_bytes: value >> 1, stream, tag, is_early }
            }
            EventKind::Kept => {
                let by = address.checked_sub(1).and_then(|index| KeptBy::ALL.get(index as usize).copied());
                What::Kept { pool, by, bytes: value, array_count: stream }
            }
            EventKind::Wait => What::Wait { stream, source: value },
            EventKind::Mark => What::Mark { event: address, stream },
            EventKind::WaitForMark => What::WaitForMark { event: address, stream },
            EventKind::StreamDone => What::StreamDone { stream },
            EventKind::MarkDone => What::MarkDone { event: address },
            EventKind::DeviceDone => What::DeviceDone,
        }
    }
}

/// The causes of refusals, by their numbers in a file.
const REFUSED_BY: [RefusedBy; 6] = [
    RefusedBy::Device,
    RefusedBy::HardLimit,
    RefusedBy::Quota,
    RefusedBy::Margin,
    RefusedBy::Budget,
    RefusedBy::OnPurpose,
];

impl What {
    /// Orders events with equal times on several threads: memory is freed before it is allocated.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Alloc { .. } => 1,
            _ => 0,
        }
    }
}

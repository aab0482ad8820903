//! [`Event`]: a recorded event. [`Raw`]: its form in rings and files, a kind and four words.

/// A recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
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
    /// A block that is about to be freed, or to shrink, has been used on a stream other than its owner stream.
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
        /// True if all its uses were known to be complete.
        is_complete: bool,
    },
    /// A growable block changed its size.
    Resize {
        /// The pool.
        pool: u32,
        /// The address.
        address: u64,
        /// The new size; 0 at its end.
        size_bytes: u64,
        /// The owner stream.
        stream: u64,
        /// The number of the tag, as in [`What::Alloc`].
        tag: u32,
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

/// The kind of an event, by its number in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Alloc = 1,
    Use = 2,
    Free = 3,
    Wait = 4,
    Mark = 5,
    WaitForMark = 6,
    StreamDone = 7,
    MarkDone = 8,
    DeviceDone = 9,
    Resize = 10,
}

/// An event without its time: address or event, size or other number, stream, and pool with tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raw {
    pub(super) kind: Kind,
    pub(super) words: [u64; 4],
}

impl Kind {
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
            Self::Resize,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

impl Raw {
    /// The pool and the tag, if the event has a tag.
    pub(super) fn tag(self) -> Option<(u32, u32)> {
        let [.., whose] = self.words;
        let (pool, tag) = (whose as u32, (whose >> 32) as u32);
        (tag != 0 && matches!(self.kind, Kind::Alloc | Kind::Resize)).then_some((pool, tag))
    }

    pub(super) fn what(self) -> What {
        let [address, value, stream, whose] = self.words;
        let (pool, tag) = (whose as u32, (whose >> 32) as u32);
        match self.kind {
            Kind::Alloc => What::Alloc { pool, address, size_bytes: value, stream, tag },
            Kind::Use => What::Use { pool, address, stream },
            Kind::Free => What::Free { pool, address, stream, is_complete: value != 0 },
            Kind::Wait => What::Wait { stream, source: value },
            Kind::Mark => What::Mark { event: address, stream },
            Kind::WaitForMark => What::WaitForMark { event: address, stream },
            Kind::StreamDone => What::StreamDone { stream },
            Kind::MarkDone => What::MarkDone { event: address },
            Kind::DeviceDone => What::DeviceDone,
            Kind::Resize => What::Resize { pool, address, size_bytes: value, stream, tag },
        }
    }
}

impl What {
    /// Orders events with equal times on several threads: memory is freed before it is allocated.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Alloc { .. } => 1,
            _ => 0,
        }
    }
}

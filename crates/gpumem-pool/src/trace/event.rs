//! [`Event`]: what happened, and [`Raw`]: the same in four words and a kind, as it lies in rings and files.

/// Something that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When, in nanoseconds since the trace began.
    pub time_ns: u64,
    /// Which thread, counted in the order of their first events.
    pub thread: u32,
    /// What happened.
    pub what: What,
}

/// What happened. Streams, pools and the driver's events are named by numbers that mean nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// A block was handed out.
    Alloc {
        /// The pool.
        pool: u32,
        /// Where it starts.
        address: u64,
        /// How large it is.
        size_bytes: u64,
        /// Its owner stream.
        stream: u64,
        /// What it is for: a number that [`Recording::tag`](super::Recording::tag) has the name of. 0 is none.
        tag: u32,
    },
    /// A block that is about to be freed, or to shrink, has been used on another stream than its owner stream.
    Use {
        /// The pool.
        pool: u32,
        /// Where it starts.
        address: u64,
        /// The other stream.
        stream: u64,
    },
    /// A block was dropped.
    Free {
        /// The pool.
        pool: u32,
        /// Where it started.
        address: u64,
        /// Its owner stream.
        stream: u64,
        /// Whether all its uses were known to be done.
        is_complete: bool,
    },
    /// A block that grows in place has another size.
    Resize {
        /// The pool.
        pool: u32,
        /// Where it starts.
        address: u64,
        /// How large it is now; 0 at the end.
        size_bytes: u64,
        /// Its owner stream.
        stream: u64,
        /// As an allocation's.
        tag: u32,
    },
    /// A stream was made to wait for all that another had queued.
    Wait {
        /// The one that waits.
        stream: u64,
        /// The other.
        source: u64,
    },
    /// An event of the driver's was recorded.
    Mark {
        /// The event.
        event: u64,
        /// Where.
        stream: u64,
    },
    /// A stream was made to wait for where an event was last recorded.
    WaitForMark {
        /// The event.
        event: u64,
        /// The stream that waits.
        stream: u64,
    },
    /// The host has seen that all a stream had queued is done.
    StreamDone {
        /// The stream.
        stream: u64,
    },
    /// The host has seen that an event has been passed.
    MarkDone {
        /// The event.
        event: u64,
    },
    /// The host has waited for everything on a device.
    DeviceDone,
}

/// Which of them, by its number in a file.
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

/// An event without its time: an address or an event, a size or another number, a stream, and pool and tag.
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
    /// The pool and the tag of what has one.
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
    /// Of events at the same nanosecond on several threads, the memory is given back before it is handed out.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Alloc { .. } => 1,
            _ => 0,
        }
    }
}

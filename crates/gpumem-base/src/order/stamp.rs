//! [`StreamIndex`], [`StreamId`], [`Stamp`], and [`Order`], the two questions about a stamp.

use core::fmt;

/// The index of a stream: small and dense, so clocks can be arrays. It is reused for another stream only after all work of the former
/// stream is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamIndex(pub u16);

impl StreamIndex {
    /// The number of streams of a machine that may be alive, or have unfinished work, at once.
    pub const COUNT_MAX: usize = 4096;

    /// The host. It waits for no stream implicitly: only complete work is ordered before it.
    pub const HOST: Self = Self(u16::MAX);
}

/// Identifies a stream: unique in the process and never reused, unlike the driver's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StreamId(u64);

impl StreamId {
    /// An id from a generation, which is never used again, and an index, which may be.
    pub fn new(generation: u64, index: StreamIndex) -> Self {
        Self(generation << INDEX_BITS | u64::from(index.0))
    }

    /// The id with a number that [`StreamId::as_u64`] returned.
    #[inline]
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The id as a number.
    #[inline]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The stream's index.
    #[inline]
    pub fn stream_index(self) -> StreamIndex {
        StreamIndex(self.0 as u16)
    }
}

/// Everything queued on a stream up to one moment: the stream's index, and its epoch then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// Represents no work: always complete.
    pub const COMPLETE: Self = Self(0);

    /// The largest epoch that a stamp can hold.
    pub const EPOCH_MAX: u64 = (1 << EPOCH_BITS) - 1;

    /// The stamp of a stream in an epoch.
    #[inline]
    pub fn new(index: StreamIndex, epoch: u64) -> Self {
        Self(u64::from(index.0) << EPOCH_BITS | epoch & Self::EPOCH_MAX)
    }

    /// The stream's index.
    #[inline]
    pub fn stream_index(self) -> StreamIndex {
        StreamIndex((self.0 >> EPOCH_BITS) as u16)
    }

    /// The stream's epoch.
    #[inline]
    pub fn epoch(self) -> u64 {
        self.0 & Self::EPOCH_MAX
    }
}

/// The stamp as a word, for example to keep it in an atomic.
impl From<Stamp> for u64 {
    #[inline]
    fn from(stamp: Stamp) -> Self {
        stamp.0
    }
}

impl From<u64> for Stamp {
    #[inline]
    fn from(word: u64) -> Self {
        Self(word)
    }
}

/// Determines which work is ordered and which is complete. It is a trait so that the heap can be tested without streams. Called only after
/// a request has missed the thread caches.
pub trait Order {
    /// True if everything that the stamp stands for is ordered before the next operation on `before`, so that `before` may use the
    /// memory.
    fn is_ordered(&self, stamp: Stamp, before: StreamIndex) -> bool;

    /// True if everything that the stamp stands for is known to be complete.
    fn is_complete(&self, stamp: Stamp) -> bool;
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::COMPLETE => f.write_str("complete"),
            stamp => write!(f, "{}@{}", stamp.stream_index().0, stamp.epoch()),
        }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

const INDEX_BITS: u32 = 16;
const EPOCH_BITS: u32 = 48;

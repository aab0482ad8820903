//! [`StreamIndex`], [`StreamId`], [`Stamp`], and [`Order`], the two questions that may be asked of a stamp.

use core::fmt;

/// A small number that a stream has for its life, dense so that clocks are arrays. Another stream gets it only when
/// everything that the former one queued is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamIndex(pub u16);

impl StreamIndex {
    /// Streams of a machine that may be alive, or have work left, at once.
    pub const COUNT_MAX: usize = 4096;

    /// No stream's: only what is complete is ordered before it. It stands for the host, which waits for no stream by
    /// itself.
    pub const HOST: Self = Self(u16::MAX);
}

/// Names a stream: unique in the process and never used again, unlike the driver's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StreamId(u64);

impl StreamId {
    /// The generation is never used again; the slot is, by another stream.
    pub fn new(generation: u64, slot: StreamIndex) -> Self {
        Self(generation << SLOT_BITS | u64::from(slot.0))
    }

    /// The stream that [`StreamId::as_u64`] gave this number of.
    #[inline]
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// A number of its own.
    #[inline]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Where the clocks keep what they know of it.
    #[inline]
    pub fn slot(self) -> StreamIndex {
        StreamIndex(self.0 as u16)
    }
}

/// Everything queued on a slot's stream up to one moment: the slot, and its epoch then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// Stands for nothing: always complete.
    pub const COMPLETE: Self = Self(0);

    /// The last epoch that a stamp can hold.
    pub const EPOCH_MAX: u64 = (1 << EPOCH_BITS) - 1;

    /// The stamp of a stream in an epoch.
    #[inline]
    pub fn new(slot: StreamIndex, epoch: u64) -> Self {
        Self(u64::from(slot.0) << EPOCH_BITS | epoch & Self::EPOCH_MAX)
    }

    /// The index of the stream.
    #[inline]
    pub fn slot(self) -> StreamIndex {
        StreamIndex((self.0 >> EPOCH_BITS) as u16)
    }

    /// The epoch of the stream.
    #[inline]
    pub fn epoch(self) -> u64 {
        self.0 & Self::EPOCH_MAX
    }
}

/// The word that keeps it.
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

/// What the clocks answer. A trait, so that whoever asks can be tested without a driver.
pub trait Order {
    /// Whether what the stamp stands for is ordered before the next operation on `before`: there the memory may be used.
    fn is_ordered(&self, stamp: Stamp, before: StreamIndex) -> bool;

    /// Whether what the stamp stands for is known to be done.
    fn is_complete(&self, stamp: Stamp) -> bool;
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::COMPLETE => f.write_str("complete"),
            stamp => write!(f, "{}@{}", stamp.slot().0, stamp.epoch()),
        }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

const SLOT_BITS: u32 = 16;
const EPOCH_BITS: u32 = 48;

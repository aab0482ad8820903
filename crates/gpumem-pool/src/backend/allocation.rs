//! [`Allocation`]: the memory of one block. [`FreeRequest`]: its way back.

use gpumem_device::StreamId;
use gpumem_device::internal::{Clocks, Stamp};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;
#[cfg(unix)]
use gpumem_sys::types::CUmemGenericAllocationHandle;

/// An allocation of a backend: an address, a record and a class. The backend defines the record and the class, and
/// gets both back with the block. A block may add a tag.
///
/// Record, class and tag share one word, because blocks are moved often and the processor stalls when it reads memory with a different
/// width than the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) address: CUdeviceptr,
    /// From the lowest bit: 32 bits of record, 16 of class, 16 of tag.
    pub(crate) mark: u64,
}

impl Allocation {
    pub(crate) const EMPTY: Self = Self::new(0, 0, Self::NO_CLASS);

    /// The class of allocations without backend memory: an empty block, or a part of the memory that a graph retains.
    pub(crate) const NO_CLASS: u16 = u16::MAX;

    /// The class of blocks that adaptors track: the record is an index into the pool's own
    /// [`Stack`](crate::pool::adaptors::Stack). No backend uses this class.
    const SPECIAL: u16 = u16::MAX - 1;

    #[inline]
    pub(crate) const fn new(address: CUdeviceptr, record: u32, class: u16) -> Self {
        Self { address, mark: record as u64 | (class as u64) << CLASS_SHIFT }
    }

    pub(crate) fn special(address: CUdeviceptr, number: u32) -> Self {
        Self::new(address, number, Self::SPECIAL)
    }

    #[inline]
    pub(crate) fn is_special(self) -> bool {
        self.class() == Self::SPECIAL
    }

    #[inline]
    pub(crate) fn record(self) -> u32 {
        self.mark as u32
    }

    #[inline]
    pub(crate) fn class(self) -> u16 {
        (self.mark >> CLASS_SHIFT) as u16
    }

    /// The class, if there is no tag. With a tag, a value greater than every class.
    #[cfg(feature = "backend-caching")]
    #[inline]
    pub(crate) fn untagged_class(self) -> usize {
        (self.mark >> CLASS_SHIFT) as usize
    }

    /// The tag. 0 means that there is none.
    #[inline]
    pub(crate) fn tag(self) -> u16 {
        (self.mark >> TAG_SHIFT) as u16
    }

    #[inline]
    pub(crate) fn with_tag(self, tag: u16) -> Self {
        Self { mark: self.mark | u64::from(tag) << TAG_SHIFT, ..self }
    }

    #[inline]
    pub(crate) fn without_tag(self) -> Self {
        Self { mark: self.mark & ((1 << TAG_SHIFT) - 1), ..self }
    }

    pub(crate) fn from_mark(address: CUdeviceptr, mark: u64) -> Self {
        Self { address, mark }
    }
}

const CLASS_SHIFT: u32 = 32;
const TAG_SHIFT: u32 = 48;

#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeRequest {
    pub(crate) allocation: Allocation,
    pub(crate) size_bytes: u64,
    pub(crate) owner_stream: StreamId,
    /// The other streams that used the block, in the encoding that [`Clocks::uses`] reads.
    pub(crate) uses: u64,
    /// True if the caller guarantees that all uses of the block are complete.
    pub(crate) is_complete: bool,
    /// A stream that is behind all uses: the free waits for that stream alone.
    pub(crate) behind: Option<StreamId>,
}

impl FreeRequest {
    /// The uses that may still be pending. The owner stream's comes first.
    pub(crate) fn stamps(&self, clocks: &Clocks) -> impl Iterator<Item = Stamp> {
        let is_listed = !self.is_complete && self.behind.is_none();
        let uses = is_listed.then(|| clocks.uses(self.owner_stream, self.uses));
        self.behind.map(|stream| clocks.stamp_of(stream)).into_iter().chain(uses.into_iter().flatten())
    }
}

#[derive(Debug)]
#[must_use = "a failure poisons the pool"]
pub(crate) struct FreeOutcome {
    /// After an error the memory is not freed: it stays reserved, and is no longer in use.
    pub(crate) result: Result<(), DriverError>,
    /// True if the backend has removed the block from its counters. Once this is true, the pool may be gone, so the
    /// caller does not access it again.
    pub(crate) counted: bool,
}

/// Physical memory under an allocation: adjacent driver handles, each with its size.
#[cfg(unix)]
#[derive(Clone, Debug)]
pub(crate) struct Underlying {
    pub(crate) handles: Vec<(CUmemGenericAllocationHandle, u64)>,
    pub(crate) offset_bytes: u64,
}

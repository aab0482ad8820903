//! [`PartialPage`]: lets a block start with the free end of a page that an earlier block of its stream left over.
//!
//! A block of 90.5 pages takes 91, and half a page is left behind it. If several streams share a heap without slack, these ends add up,
//! because the large blocks of one stream cannot use the page of another. So a block may start with the free end of its own stream's page,
//! in a new mapping of that handle, and continue with whole pages. The bytes of that page are then resident in two mappings, each byte in
//! one of them, until all of them are free; then the whole page moves to one mapping.
//!
//! At a limit, where a request would be refused otherwise, a block may also end with the free start of a page, and either end may
//! belong to any stream that is ordered before the request ([`glued`](super::glue::glued)).

use super::mappings::MappingId;
use super::pages::Pages;
use super::record::RangeRecord;
use super::space::{PAGE_BYTES, PAGE_SHIFT};

/// The end of a handle that a block can start with, or the start of a handle that it can end with.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialPage {
    pub(super) handle: u32,
    /// The mapping where the bytes are resident now.
    pub(super) mapping: MappingId,
    pub(super) size_bytes: u64,
    pub(super) side: PageSide,
}

/// The side of a handle that has free bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageSide {
    Start,
    End,
}

impl PartialPage {
    /// The part of a page that a free record covers at one side of a handle.
    pub(super) fn at(record: &RangeRecord, side: PageSide, pages: &Pages) -> Option<Self> {
        let (slot, size_bytes) = match side {
            PageSide::Start => {
                let start = record.end() / PAGE_BYTES * PAGE_BYTES;
                (start >> PAGE_SHIFT, (start >= record.start).then(|| record.end() - start)?)
            }
            PageSide::End => {
                let end = record.start.next_multiple_of(PAGE_BYTES);
                ((end >> PAGE_SHIFT).checked_sub(1)?, (end <= record.end()).then(|| end - record.start)?)
            }
        };
        if size_bytes == 0 {
            return None;
        }
        let index = usize::from(record.space);
        let entry = pages.entry(index, slot)?;
        let mapping = MappingId::new(index, slot as u32 - entry.page());
        let partial = Self { handle: entry.handle(), mapping, size_bytes, side };
        (entry.page() == partial.page(pages) && !pages.is_pinned(partial.handle)).then_some(partial)
    }

    /// The page of the handle that has the bytes.
    pub(super) fn page(&self, pages: &Pages) -> u32 {
        match self.side {
            PageSide::Start => 0,
            PageSide::End => pages.handle(self.handle).page_count - 1,
        }
    }

    /// The offset of the bytes in the handle.
    pub(super) fn start(&self, pages: &Pages) -> u64 {
        match self.side {
            PageSide::Start => 0,
            PageSide::End => {
                (u64::from(pages.handle(self.handle).page_count) << PAGE_SHIFT) - self.size_bytes
            }
        }
    }
}

//! What others know of the heap's physical memory: where it is mapped, and what must stay there.

use super::Heap;
use super::record::Record;
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use crate::memory::RawHandle;

/// Where a live piece lies in physical memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockBacking {
    /// The handles under it from left to right, each with its size.
    pub handles: Vec<(RawHandle, u64)>,
    /// Where it starts in the first of them.
    pub offset_bytes: u64,
}

impl Heap {
    /// The handles under a live piece, for as long as they are kept: nothing of them moves to other mappings, and no new
    /// mapping is made of them. They are given back as others are, when nobody holds any of them.
    pub fn pin(&mut self, record: u32) {
        let Some(Record { start, size_bytes, space, .. }) = self.records.get(record).copied() else { return };
        let pages = start >> PAGE_SHIFT..(start + size_bytes).div_ceil(PAGE_BYTES);
        for slot in pages {
            if let Some(entry) = self.pages.entry(usize::from(space), slot) {
                self.pages.pin(entry.handle());
            }
        }
    }

    /// The handles under a live piece, which pins them: from left to right, and where in the first of them its address is.
    pub fn backing(&mut self, record: u32, address: u64) -> Option<BlockBacking> {
        self.pin(record);
        let Record { start, size_bytes, space, .. } = self.records.get(record).copied()?;
        let space = usize::from(space);
        let first = self.pages.mapping_at(space, start >> PAGE_SHIFT)?;
        let (mut slot, mut handles) = (u64::from(first.slot()), Vec::new());
        let offset_bytes = address - self.spaces[space].base - (slot << PAGE_SHIFT);
        while slot << PAGE_SHIFT < start + size_bytes {
            let handle = self.pages.handle(self.pages.entry(space, slot)?.handle());
            handles.push((handle.raw, u64::from(handle.page_count) << PAGE_SHIFT));
            slot += u64::from(handle.page_count);
        }
        Some(BlockBacking { handles, offset_bytes })
    }

    /// All stretches of addresses that handles are mapped at: each with its size.
    pub fn mappings(&self) -> impl Iterator<Item = (u64, u64)> {
        self.spaces.iter().enumerate().flat_map(|(index, space)| {
            self.pages.mappings_in(index).map(|(id, handle)| {
                let page_count = self.pages.handle(handle).page_count;
                let address = space.base + (u64::from(id.slot()) << PAGE_SHIFT);
                (address, u64::from(page_count) << PAGE_SHIFT)
            })
        })
    }
}

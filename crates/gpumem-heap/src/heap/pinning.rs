//! Pins handles: physical memory that other devices or processes use keeps its mappings.

use super::Heap;
use super::record::Record;
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use crate::memory::RawHandle;

/// The physical memory under a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockBacking {
    /// The handles from left to right, each with its size in bytes.
    pub handles: Vec<(RawHandle, u64)>,
    /// The offset of the block in the first handle.
    pub offset_bytes: u64,
}

impl Heap {
    /// Pins the handles under a block for as long as the handles exist: their pages do not move to other mappings, and they get no
    /// new mappings. They are released like other handles, once all their memory is free.
    pub fn pin(&mut self, record: u32) {
        let Some(Record { start, size_bytes, space, .. }) = self.records.get(record).copied() else { return };
        let pages = start >> PAGE_SHIFT..(start + size_bytes).div_ceil(PAGE_BYTES);
        for slot in pages {
            if let Some(entry) = self.pages.entry(usize::from(space), slot) {
                self.pages.pin(entry.handle());
            }
        }
    }

    /// Pins the handles under a block, and returns them with the offset of `address`. `None` if the record names no block.
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

    /// All mapped address ranges: start and size in bytes. Handles that sleep are not mapped.
    pub fn mappings(&self) -> impl Iterator<Item = (u64, u64)> {
        self.spaces.iter().enumerate().flat_map(|(index, space)| {
            let mapped = self.pages.mappings_in(index).filter(|(id, _)| !self.is_unmapped(*id));
            mapped.map(|(id, handle)| {
                let page_count = self.pages.handle(handle).page_count;
                let address = space.base + (u64::from(id.slot()) << PAGE_SHIFT);
                (address, u64::from(page_count) << PAGE_SHIFT)
            })
        })
    }
}

//! [`Mappings`]: the mappings of one space. One word for each page of addresses, and another that links a handle's mappings.
//!
//! Thousands of mappings whose memory has moved away are kept, and while the device is far behind none of them may be unmapped. So mappings
//! have no records: all data of a mapping is in the table of its page addresses. Such a page-sized place in the address range is a *slot*.

use super::record::NONE;

/// One mapping of a handle: its space, and its first slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MappingId(u32);

impl MappingId {
    pub(super) fn new(space: usize, slot: u32) -> Self {
        Self((space as u32) << SPACE_SHIFT | slot)
    }

    pub(super) fn space(self) -> usize {
        (self.0 >> SPACE_SHIFT) as usize
    }

    pub(super) fn slot(self) -> u32 {
        self.0 & !(1 << SPACE_SHIFT)
    }
}

/// The content of a slot: a handle's number, one of its pages, and whether all or part of that page is resident here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotEntry(u32);

impl SlotEntry {
    const NOTHING: Self = Self(NONE);

    fn new(handle: u32, page: u32) -> Self {
        Self(page << PAGE_AT | handle)
    }

    pub(super) fn handle(self) -> u32 {
        self.0 & (HANDLES_MAX as u32)
    }

    pub(super) fn page(self) -> u32 {
        self.0 >> PAGE_AT & 63
    }

    /// True if the page is resident here as a whole.
    pub(super) fn is_resident(self) -> bool {
        self.0 >> PART_AT == 0b10
    }

    /// True if some bytes of the page are resident here, and others elsewhere.
    pub(super) fn is_part(self) -> bool {
        self != Self::NOTHING && self.0 >> PART_AT == 0b11
    }
}

#[derive(Debug, Default)]
pub(super) struct Mappings {
    entries: Vec<SlotEntry>,
    /// At each mapping's first slot: the handle's next older mapping.
    older: Vec<u32>,
}

impl Mappings {
    #[inline]
    pub(super) fn entry(&self, slot: u64) -> Option<SlotEntry> {
        self.entries.get(slot as usize).copied().filter(|entry| *entry != SlotEntry::NOTHING)
    }

    /// The mappings from a slot on, by address, given the sizes of their handles: the first slot of each, and its handle.
    pub(super) fn from(
        &self,
        mut slot: u32,
        page_count: impl Fn(u32) -> u32,
    ) -> impl Iterator<Item = (u32, u32)> {
        core::iter::from_fn(move || {
            loop {
                let (entry, here) = (*self.entries.get(slot as usize)?, slot);
                if entry == SlotEntry::NOTHING {
                    slot += 1;
                    continue;
                }
                let handle = entry.handle();
                // Most mappings of a heap without slack have one page.
                let goes_on = self.entry(u64::from(slot) + 1).is_some_and(|next| next.page() > 0);
                slot += if goes_on { page_count(handle) - entry.page() } else { 1 };
                if entry.page() == 0 {
                    return Some((here, handle));
                }
            }
        })
    }

    /// The next older mapping of the handle whose mapping starts at a slot.
    pub(super) fn older(&self, slot: u32) -> Option<MappingId> {
        self.older.get(slot as usize).copied().filter(|older| *older != NONE).map(MappingId)
    }

    pub(super) fn set_older(&mut self, slot: u32, older: Option<MappingId>) {
        self.older[slot as usize] = older.map_or(NONE, |older| older.0);
    }

    /// Adds a mapping of a handle, in which nothing is resident yet.
    pub(super) fn add(&mut self, slot: u32, handle: u32, page_count: u32) {
        let end = (slot + page_count) as usize;
        if self.entries.len() < end {
            extend(&mut self.entries, end, SlotEntry::NOTHING);
            extend(&mut self.older, end, NONE);
        }
        for page in 0..page_count {
            self.entries[(slot + page) as usize] = SlotEntry::new(handle, page);
        }
    }

    pub(super) fn remove(&mut self, slot: u32, page_count: u32) {
        self.entries[slot as usize..(slot + page_count) as usize].fill(SlotEntry::NOTHING);
    }

    /// The pages that are resident in the mapping at a slot, as a whole and in part.
    pub(super) fn resident(&self, slot: u32, page_count: u32) -> (u64, u64) {
        let entries = &self.entries[slot as usize..(slot + page_count) as usize];
        entries.iter().rev().fold((0, 0), |(wholes, parts), entry| {
            (wholes << 1 | u64::from(entry.is_resident()), parts << 1 | u64::from(entry.is_part()))
        })
    }

    pub(super) fn set_resident(&mut self, slot: u32, page_count: u32, (wholes, parts): (u64, u64)) {
        let entries = &mut self.entries[slot as usize..(slot + page_count) as usize];
        for (page, entry) in entries.iter_mut().enumerate() {
            let (whole, part) = ((wholes >> page & 1) as u32, (parts >> page & 1) as u32);
            entry.0 = entry.0 & !(0b11 << PART_AT) | (whole << 1 | part << 1 | part) << PART_AT;
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<SlotEntry>() + self.older.capacity() * size_of::<u32>()
    }
}

/// Extends a table by little more than needed, because tables are most of the heap's host memory.
pub(super) fn extend<T: Copy>(table: &mut Vec<T>, length: usize, value: T) {
    if table.capacity() < length {
        table.reserve_exact(length + length / 16 - table.len());
    }
    table.resize(length, value);
}

/// The largest number of handles: 32 TiB of the smallest.
pub(super) const HANDLES_MAX: usize = (1 << PAGE_AT) - 1;
const PAGE_AT: u32 = 24;
const PART_AT: u32 = 30;
const SPACE_SHIFT: u32 = 31;

//! [`Pages`]: physical memory, and the addresses where it is mapped.
//!
//! A *handle* is 1 to 64 pages of 2 MiB, always mapped as a whole. A handle may have many *mappings* ([`Mappings`]). Each page is
//! *resident* in one of its handle's mappings: only there do records stand for its bytes, so no byte can be in two blocks. (A page that
//! blocks of one stream share may be resident in several mappings in part, each byte in one: [`partial_page`](super::partial_page).) A free
//! page can move to another mapping of its handle. Its former mapping stays mapped, so moving back needs no driver call. A handle keeps the
//! last uses of its pages at their former places, because those mappings may be unmapped only when these uses are complete.

use super::mappings::{MappingId, Mappings, SlotEntry};
use super::space::PAGE_SHIFT;
use super::stamps::join;
use crate::memory::RawHandle;
use gpumem_base::FreeVaRanges;
use gpumem_base::order::{Order, Stamp};
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub(super) struct PhysicalHandle {
    pub(super) raw: RawHandle,
    /// 1 to 64; 0 marks an unused number.
    pub(super) page_count: u32,
    newest: Option<MappingId>,
    /// The last uses of pages that have moved away, through any mapping.
    departed: Vec<Stamp>,
}

const _: () = assert!(size_of::<PhysicalHandle>() <= 48);

#[derive(Debug, Default)]
pub(super) struct Pages {
    pub(super) handles: Vec<PhysicalHandle>,
    unused_handles: Vec<u32>,
    /// The mappings of each space.
    mappings: [Mappings; 2],
    /// For each space, the slots whose mapping was unmapped.
    free_va_ranges: [FreeVaRanges; 2],
    mapping_count: usize,
    empty_count: usize,
    /// The position at which the search for empty mappings continues.
    hand: u32,
    /// Handles that get no new mappings, and whose pages do not move.
    pinned: BTreeSet<u32>,
    /// Pages that are resident in several mappings in part: handle and page.
    shared: BTreeSet<(u32, u32)>,
    pub(super) reserved_bytes: u64,
}

impl Pages {
    pub(super) fn handle(&self, handle: u32) -> &PhysicalHandle {
        &self.handles[handle as usize]
    }

    pub(super) fn handle_of(&self, id: MappingId) -> u32 {
        self.mappings[id.space()].entry(u64::from(id.slot())).map_or(0, SlotEntry::handle)
    }

    /// The handle's pages that are resident in a mapping as a whole.
    pub(super) fn resident(&self, id: MappingId) -> u64 {
        self.resident_of(id, self.handle_of(id)).0
    }

    /// The handle's pages that are resident in a mapping in part.
    pub(super) fn resident_of(&self, id: MappingId, handle: u32) -> (u64, u64) {
        self.mappings[id.space()].resident(id.slot(), self.handle(handle).page_count)
    }

    pub(super) fn handle_ids(&self) -> impl Iterator<Item = u32> {
        (0..self.handles.len() as u32).filter(|handle| self.handle(*handle).page_count > 0)
    }

    /// A handle's mappings, newest first.
    pub(super) fn mappings_of(&self, handle: u32) -> impl Iterator<Item = MappingId> {
        core::iter::successors(self.handle(handle).newest, |id| self.mappings[id.space()].older(id.slot()))
    }

    /// A space's mappings by address, and their handles.
    pub(super) fn mappings_in(&self, space: usize) -> impl Iterator<Item = (MappingId, u32)> {
        self.mappings[space]
            .from(0, |handle| self.handle(handle).page_count)
            .map(move |(slot, handle)| (MappingId::new(space, slot), handle))
    }

    pub(super) fn mapping_count(&self) -> usize {
        self.mapping_count
    }

    pub(super) fn mapping_at(&self, space: usize, slot: u64) -> Option<MappingId> {
        self.mappings[space].entry(slot).map(|entry| MappingId::new(space, slot as u32 - entry.page()))
    }

    #[inline]
    pub(super) fn entry(&self, space: usize, slot: u64) -> Option<SlotEntry> {
        self.mappings[space].entry(slot)
    }

    pub(super) fn add_handle(&mut self, raw: RawHandle, page_count: u32) -> u32 {
        self.reserved_bytes += u64::from(page_count) << PAGE_SHIFT;
        let handle = PhysicalHandle { raw, page_count, newest: None, departed: Vec::new() };
        match self.unused_handles.pop() {
            Some(id) => {
                self.handles[id as usize] = handle;
                id
            }
            None => {
                self.handles.push(handle);
                (self.handles.len() - 1) as u32
            }
        }
    }

    pub(super) fn pin(&mut self, handle: u32) {
        self.pinned.insert(handle);
    }

    pub(super) fn unpin(&mut self, handle: u32) {
        self.pinned.remove(&handle);
    }

    /// Gives a handle other physical memory of its size.
    pub(super) fn set_raw(&mut self, handle: u32, raw: RawHandle) {
        self.handles[handle as usize].raw = raw;
    }

    pub(super) fn pins_any(&self) -> bool {
        !self.pinned.is_empty()
    }

    pub(super) fn is_pinned(&self, handle: u32) -> bool {
        self.pinned.contains(&handle)
    }

    /// Removes a handle that is mapped nowhere and was released.
    pub(super) fn remove_handle(&mut self, id: u32) {
        let handle = &mut self.handles[id as usize];
        self.reserved_bytes -= u64::from(handle.page_count) << PAGE_SHIFT;
        handle.page_count = 0;
        handle.departed = Vec::new();
        self.pinned.remove(&id);
        self.unused_handles.push(id);
    }

    /// Adds a mapping at `slot`, in which nothing is resident yet.
    pub(super) fn add_mapping(&mut self, handle: u32, space: usize, slot: u64) -> MappingId {
        let PhysicalHandle { page_count, newest, .. } = *self.handle(handle);
        let id = MappingId::new(space, slot as u32);
        self.free_va_ranges[space].fill(slot, u64::from(page_count));
        self.mappings[space].add(id.slot(), handle, page_count);
        self.mappings[space].set_older(id.slot(), newest);
        self.handles[handle as usize].newest = Some(id);
        self.mapping_count += 1;
        self.empty_count += 1;
        id
    }

    /// Removes a mapping that was unmapped. Nothing was resident in it.
    pub(super) fn remove_mapping(&mut self, id: MappingId) {
        let handle = self.handle_of(id);
        let older = self.mappings[id.space()].older(id.slot());
        let newer = self
            .mappings_of(handle)
            .find(|newer| self.mappings[newer.space()].older(newer.slot()) == Some(id));
        match newer {
            Some(newer) => self.mappings[newer.space()].set_older(newer.slot(), older),
            None => self.handles[handle as usize].newest = older,
        }
        let page_count = self.handle(handle).page_count;
        self.mappings[id.space()].remove(id.slot(), page_count);
        self.free_va_ranges[id.space()].add(u64::from(id.slot()), u64::from(page_count));
        self.mapping_count -= 1;
        self.empty_count -= 1;
    }

    /// Mappings in which nothing is resident, and their handles. Successive searches go round, so that each mapping is kept for a
    /// round.
    pub(super) fn empty_mappings(&self) -> impl Iterator<Item = (MappingId, u32)> {
        let sizes = |handle| self.handle(handle).page_count;
        let rest = self.mappings[1].from(self.hand, sizes);
        let large = rest.chain(self.mappings[1].from(0, sizes).take_while(|(slot, _)| *slot < self.hand));
        let all = large.map(|(slot, handle)| (MappingId::new(1, slot), handle)).chain(self.mappings_in(0));
        all.filter(|(id, handle)| self.resident_of(*id, *handle) == (0, 0))
    }

    /// Continues the next search behind a mapping.
    pub(super) fn move_hand(&mut self, behind: MappingId) {
        if behind.space() == 1 {
            self.hand = behind.slot() + 1;
        }
    }

    pub(super) fn empty_count(&self) -> usize {
        self.empty_count
    }

    pub(super) fn set_resident(&mut self, id: MappingId, resident: (u64, u64)) {
        let page_count = self.handle(self.handle_of(id)).page_count;
        let mappings = &mut self.mappings[id.space()];
        self.empty_count += usize::from(resident == (0, 0));
        self.empty_count -= usize::from(mappings.resident(id.slot(), page_count) == (0, 0));
        mappings.set_resident(id.slot(), page_count, resident);
    }

    /// Adds the last uses of pages that have moved away from one of the handle's mappings.
    pub(super) fn note_departed(&mut self, handle: u32, stamps: &[Stamp]) {
        join(&mut self.handles[handle as usize].departed, stamps);
    }

    /// Notes that a part of a page has moved from one mapping, which may still hold another part, to a mapping that held none.
    pub(super) fn share(
        &mut self,
        handle: u32,
        page: u32,
        (from, is_left): (MappingId, bool),
        to: MappingId,
    ) {
        let bit = ones(page, 1);
        let (wholes, parts) = self.resident_of(from, handle);
        self.set_resident(from, (wholes & !bit, if is_left { parts | bit } else { parts & !bit }));
        let (wholes, parts) = self.resident_of(to, handle);
        self.set_resident(to, (wholes, parts | bit));
        self.shared.insert((handle, page));
    }

    /// Notes that pages of a handle are not resident in several mappings.
    pub(super) fn unshare(&mut self, handle: u32, mask: u64) {
        self.shared.retain(|(of, page)| *of != handle || mask >> page & 1 == 0);
    }

    /// Pages that are resident in several mappings in part, and those mappings.
    pub(super) fn shared(&self) -> impl Iterator<Item = (u32, u32, impl Iterator<Item = MappingId>)> {
        self.shared.iter().map(|(handle, page)| {
            let has_part = |id: &MappingId| self.resident_of(*id, *handle).1 & ones(*page, 1) != 0;
            (*handle, *page, self.mappings_of(*handle).filter(has_part))
        })
    }

    /// True if no work can access a handle through mappings that its pages have left.
    pub(super) fn is_left(&self, handle: u32, order: &impl Order) -> bool {
        may_unmap_early() || self.handle(handle).departed.iter().all(|stamp| order.is_complete(*stamp))
    }

    pub(super) fn free_va_ranges(&self, space: usize) -> &FreeVaRanges {
        &self.free_va_ranges[space]
    }

    pub(super) fn free_va_ranges_mut(&mut self, space: usize) -> &mut FreeVaRanges {
        &mut self.free_va_ranges[space]
    }

    /// The host memory of the tables.
    pub(super) fn size_bytes(&self) -> usize {
        let departed: usize = self.handles.iter().map(|handle| handle.departed.capacity()).sum();
        self.handles.capacity() * size_of::<PhysicalHandle>()
            + self.shared.len() * size_of::<(u32, u32)>() * 3 / 2
            + self.unused_handles.capacity() * size_of::<u32>()
            + departed * size_of::<Stamp>()
            + self.mappings.iter().map(Mappings::size_bytes).sum::<usize>()
            + self.free_va_ranges.iter().map(FreeVaRanges::size_bytes).sum::<usize>()
    }
}

/// The runs of ones in a word, lowest first: start and length.
pub(super) fn runs(mut mask: u64) -> impl Iterator<Item = (u32, u32)> {
    core::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let first = mask.trailing_zeros();
        let count = (mask >> first).trailing_ones();
        mask &= !ones(first, count);
        Some((first, count))
    })
}

/// A word with `count` ones from bit `first` on.
pub(super) fn ones(first: u32, count: u32) -> u64 {
    let ones = u64::MAX.checked_shr(64 - count).unwrap_or(0);
    ones << first
}

/// True while the bug `EarlyUnmap` is injected.
#[inline]
fn may_unmap_early() -> bool {
    #[cfg(gpumem_planted_bugs)]
    return gpumem_base::injected_bugs::has(gpumem_base::injected_bugs::Bug::EarlyUnmap);
    #[cfg(not(gpumem_planted_bugs))]
    false
}

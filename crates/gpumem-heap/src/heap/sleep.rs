//! Sleep: handles release their physical memory, while their blocks keep the addresses.
//!
//! 1. [`Heap::begin_sleep`] selects all handles. Their pages do not move from then on, so the caller can copy the blocks.
//! 2. [`Heap::put_to_sleep`] unmaps the selected handles, and then releases them.
//! 3. [`Heap::wake`] creates the handles again and maps each at the addresses where it was.
//! 4. [`Heap::end_sleep`] lets pages move again, after the caller has restored the blocks.
//!
//! Records are not affected: a block that is freed becomes a free record as usual. The caller takes no block between the first step and the
//! last. Each step that fails can be repeated, and step 3 undoes step 2, wherever it stopped.

use super::Heap;
use super::mappings::MappingId;
use super::pages::{move_pages, ones};
use super::record::{Kind, NONE};
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use crate::memory::PhysicalMemory;

/// A handle that sleeps, or is about to.
#[derive(Debug)]
pub(super) struct Sleeper {
    handle: u32,
    /// True while there is no physical memory.
    is_released: bool,
    /// The mappings that are not mapped.
    unmapped: Vec<MappingId>,
    /// The mappings that are mapped but not accessible: a call failed, and undoing it failed too.
    closed: Vec<MappingId>,
}

impl Heap {
    /// True if any handle is pinned. A heap with pinned handles must not sleep.
    pub fn pins_any(&self) -> bool {
        self.pages.pins_any()
    }

    /// True if handles sleep, or are about to.
    pub fn is_sleeping(&self) -> bool {
        !self.sleepers.is_empty()
    }

    /// Selects all handles, and removes their empty mappings. Returns the address ranges of the blocks, each within one mapping: start
    /// and size in bytes. All uses are complete, and nothing is pinned.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. No handle is selected then.
    pub fn begin_sleep<M: PhysicalMemory>(&mut self, backing: &mut M) -> Result<Vec<(u64, u64)>, M::Error> {
        let empty: Vec<MappingId> = self.pages.empty_mappings().map(|(mapping, _)| mapping).collect();
        empty.into_iter().try_for_each(|mapping| self.unmap(mapping, backing))?;
        let handles: Vec<u32> = self.pages.handle_ids().collect();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for handle in handles {
            for mapping in self.pages.mappings_of(handle) {
                let mut blocks = Vec::new();
                self.each_block(mapping, |start, end| match blocks.last_mut() {
                    Some((_, last)) if *last == start => *last = end,
                    _ => blocks.push((start, end)),
                });
                ranges.extend(blocks.into_iter().map(|(start, end)| (start, end - start)));
            }
            self.pages.pin(handle);
            let (unmapped, closed) = (Vec::new(), Vec::new());
            self.sleepers.push(Sleeper { handle, is_released: false, unmapped, closed });
        }
        Ok(ranges)
    }

    /// Unmaps the selected handles, and then releases them. Returns the bytes released.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. [`Heap::wake`] undoes the calls before it. Contents are lost only in
    /// handles that were released.
    pub fn put_to_sleep<M: PhysicalMemory>(&mut self, backing: &mut M) -> Result<u64, M::Error> {
        let mut sleepers = core::mem::take(&mut self.sleepers);
        let unmapped = sleepers.iter_mut().try_for_each(|sleeper| self.unmap_sleeper(sleeper, backing));
        let released = unmapped.and_then(|()| {
            sleepers.iter_mut().try_fold(0, |sum, sleeper| Ok(sum + self.release_sleeper(sleeper, backing)?))
        });
        self.sleepers = sleepers;
        released
    }

    /// Creates the handles that were released and maps them where they were. Handles whose blocks were all freed during the sleep are
    /// forgotten. Returns the bytes created.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed, out of memory included. A further call continues, and
    /// [`Heap::put_to_sleep`] releases the memory again.
    pub fn wake<M: PhysicalMemory>(&mut self, backing: &mut M) -> Result<u64, M::Refusal> {
        let mut sleepers = core::mem::take(&mut self.sleepers);
        sleepers.retain(|sleeper| !self.forgets(sleeper));
        let woken =
            sleepers.iter_mut().try_fold(0, |sum, sleeper| Ok(sum + self.wake_sleeper(sleeper, backing)?));
        self.sleepers = sleepers;
        woken
    }

    /// Ends the sleep of a heap whose handles are all mapped: their pages may move again.
    pub fn end_sleep(&mut self) {
        debug_assert!(
            self.sleepers.iter().all(|sleeper| !sleeper.is_released && sleeper.unmapped.is_empty())
        );
        for sleeper in core::mem::take(&mut self.sleepers) {
            self.pages.unpin(sleeper.handle);
        }
    }

    /// True if an address that belonged to a block has a mapping: it has none once its handle was forgotten.
    pub fn has_mapping(&self, address: u64) -> bool {
        self.spaces.iter().enumerate().any(|(index, space)| {
            let slot = address.checked_sub(space.base).map(|offset| offset >> PAGE_SHIFT);
            slot.is_some_and(|slot| self.pages.entry(index, slot).is_some())
        })
    }

    /// The memory that sleeps, in bytes.
    pub fn sleeping_bytes(&self) -> u64 {
        self.sleepers.iter().filter(|sleeper| sleeper.is_released).map(|sleeper| self.size_of(sleeper)).sum()
    }

    /// Forgets the handles that sleep, for a heap without blocks. What is still mapped is left to [`Heap::trim`].
    pub fn forget_sleepers(&mut self) {
        for sleeper in core::mem::take(&mut self.sleepers) {
            if self.forgets(&sleeper) {
                continue;
            }
            self.pages.unpin(sleeper.handle);
            // A step had failed: some mappings exist.
            let all = ones(0, self.pages.handle(sleeper.handle).page_count);
            let mapped = self.pages.mappings_of(sleeper.handle).find(|id| !sleeper.unmapped.contains(id));
            if let Some(mapped) = mapped {
                let away = all & !self.pages.resident(mapped);
                move_pages(&mut self.pages, &mut self.spaces, &mut self.records, mapped, away);
                sleeper.unmapped.iter().for_each(|id| self.pages.remove_mapping(*id));
            } else {
                let (raw, size_bytes) = (self.pages.handle(sleeper.handle).raw, self.size_of(&sleeper));
                self.vacate_sleeper(&sleeper);
                self.pages.remove_handle(sleeper.handle);
                self.lost.add(raw, size_bytes);
            }
        }
    }

    /// True if a mapping is unmapped while its handle sleeps.
    pub(super) fn is_unmapped(&self, mapping: MappingId) -> bool {
        self.sleepers.iter().any(|sleeper| sleeper.unmapped.contains(&mapping))
    }

    /// True if a handle sleeps, or is about to.
    pub(super) fn is_sleeper(&self, handle: u32) -> bool {
        self.sleepers.iter().any(|sleeper| sleeper.handle == handle)
    }

    fn size_of(&self, sleeper: &Sleeper) -> u64 {
        u64::from(self.pages.handle(sleeper.handle).page_count) << PAGE_SHIFT
    }

    /// Calls `work` for each block within a mapping, with the addresses of its part there: start and end.
    fn each_block(&self, mapping: MappingId, mut work: impl FnMut(u64, u64)) {
        let space = &self.spaces[mapping.space()];
        let (start, end) = self.range_of(mapping);
        let mut id = space.at(&self.records, start);
        while id != NONE && self.records[id].start < end {
            let record = &self.records[id];
            if record.kind == Kind::Live {
                work(space.base + record.start.max(start), space.base + record.end().min(end));
            }
            id = record.next;
        }
    }

    /// The offsets of a mapping in its space.
    fn range_of(&self, mapping: MappingId) -> (u64, u64) {
        let page_count = self.pages.handle(self.pages.handle_of(mapping)).page_count;
        let start = u64::from(mapping.slot()) << PAGE_SHIFT;
        (start, start + u64::from(page_count) * PAGE_BYTES)
    }

    /// The address and the size of a mapping.
    fn place_of(&self, mapping: MappingId) -> (u64, u64) {
        let (start, end) = self.range_of(mapping);
        (self.spaces[mapping.space()].base + start, end - start)
    }

    fn unmap_sleeper<M: PhysicalMemory>(
        &self,
        sleeper: &mut Sleeper,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        for mapping in self.pages.mappings_of(sleeper.handle) {
            if !sleeper.unmapped.contains(&mapping) {
                let (address, size_bytes) = self.place_of(mapping);
                backing.unmap(address, size_bytes)?;
                sleeper.closed.retain(|closed| *closed != mapping);
                sleeper.unmapped.push(mapping);
            }
        }
        Ok(())
    }

    fn release_sleeper<M: PhysicalMemory>(
        &mut self,
        sleeper: &mut Sleeper,
        backing: &mut M,
    ) -> Result<u64, M::Error> {
        if sleeper.is_released {
            return Ok(0);
        }
        let size_bytes = self.size_of(sleeper);
        backing.release(self.pages.handle(sleeper.handle).raw, size_bytes)?;
        sleeper.is_released = true;
        self.pages.reserved_bytes -= size_bytes;
        Ok(size_bytes)
    }

    fn wake_sleeper<M: PhysicalMemory>(
        &mut self,
        sleeper: &mut Sleeper,
        backing: &mut M,
    ) -> Result<u64, M::Refusal> {
        let mut created_bytes = 0;
        if sleeper.is_released {
            created_bytes = self.size_of(sleeper);
            self.pages.set_raw(sleeper.handle, backing.create(created_bytes)?);
            self.pages.reserved_bytes += created_bytes;
            sleeper.is_released = false;
            self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
        }
        let raw = self.pages.handle(sleeper.handle).raw;
        while let Some(mapping) = sleeper.unmapped.last().copied() {
            let (address, size_bytes) = self.place_of(mapping);
            backing.map(address, size_bytes, raw)?;
            sleeper.unmapped.pop();
            sleeper.closed.push(mapping);
        }
        while let Some(mapping) = sleeper.closed.last().copied() {
            let (address, size_bytes) = self.place_of(mapping);
            backing.set_access(address, size_bytes)?;
            sleeper.closed.pop();
        }
        Ok(created_bytes)
    }

    /// Forgets a handle that was released and has no block. Returns true if it did.
    fn forgets(&mut self, sleeper: &Sleeper) -> bool {
        if !sleeper.is_released {
            return false;
        }
        let mut has_blocks = false;
        for mapping in self.pages.mappings_of(sleeper.handle) {
            self.each_block(mapping, |_, _| has_blocks = true);
        }
        if has_blocks {
            return false;
        }
        self.vacate_sleeper(sleeper);
        // Its bytes were subtracted when it was released.
        self.pages.reserved_bytes += self.size_of(sleeper);
        self.pages.remove_handle(sleeper.handle);
        true
    }

    /// Removes the memory of a handle that is mapped nowhere and has no block.
    fn vacate_sleeper(&mut self, sleeper: &Sleeper) {
        self.pages.forget_shared(sleeper.handle);
        for mapping in &sleeper.unmapped {
            let (start, end) = self.range_of(*mapping);
            self.spaces[mapping.space()].vacate(&mut self.records, start, end, |records, _, _, pending| {
                records.stamp_sets.drop(pending)
            });
            self.pages.set_resident(*mapping, (0, 0));
            self.pages.remove_mapping(*mapping);
        }
    }
}

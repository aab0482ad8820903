//! [`SleepingHandles`]: handles that release their physical memory, while their blocks keep the addresses.
//!
//! 1. [`SleepingHandles::begin`] selects all handles. Their pages do not move from then on, so the caller can copy the blocks.
//! 2. [`SleepingHandles::release`] unmaps the selected handles, and then releases them.
//! 3. [`SleepingHandles::wake`] creates the handles again and maps each at the addresses where it was.
//! 4. [`SleepingHandles::end`] lets pages move again, after the caller has restored the blocks.
//!
//! Records are not affected: a block that is freed becomes a free record as usual. The caller takes no block between the first step and the
//! last. Each step that fails can be repeated, and step 3 undoes step 2, wherever it stopped.

use super::lost::Lost;
use super::mappings::MappingId;
use super::memory_map::MemoryMap;
use super::pages::{Pages, ones};
use crate::memory::PhysicalMemory;

/// The handles that sleep, or are about to.
#[derive(Debug, Default)]
pub(super) struct SleepingHandles {
    list: Vec<Sleeper>,
}

#[derive(Debug)]
struct Sleeper {
    handle: u32,
    /// True while there is no physical memory.
    is_released: bool,
    /// The mappings that are not mapped.
    unmapped: Vec<MappingId>,
    /// The mappings that are mapped but not accessible: a call failed, and undoing it failed too.
    closed: Vec<MappingId>,
}

impl SleepingHandles {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// True if a handle sleeps, or is about to.
    pub(super) fn has(&self, handle: u32) -> bool {
        self.list.iter().any(|sleeper| sleeper.handle == handle)
    }

    /// True if a mapping is unmapped while its handle sleeps.
    pub(super) fn is_unmapped(&self, mapping: MappingId) -> bool {
        self.list.iter().any(|sleeper| sleeper.unmapped.contains(&mapping))
    }

    /// The memory that sleeps, in bytes.
    pub(super) fn bytes(&self, map: &MemoryMap) -> u64 {
        self.list
            .iter()
            .filter(|sleeper| sleeper.is_released)
            .map(|sleeper| map.handle_bytes(sleeper.handle))
            .sum()
    }

    /// Selects all handles, and removes their empty mappings. Returns the address ranges of the blocks, each within one mapping.
    pub(super) fn begin<M: PhysicalMemory>(
        &mut self,
        map: &mut MemoryMap,
        backing: &mut M,
    ) -> Result<Vec<(u64, u64)>, M::Error> {
        let empty: Vec<MappingId> = map.pages.empty_mappings().map(|(mapping, _)| mapping).collect();
        empty.into_iter().try_for_each(|mapping| map.unmap(mapping, backing))?;
        let handles: Vec<u32> = map.pages.handle_ids().collect();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for handle in handles {
            for mapping in map.pages.mappings_of(handle) {
                let mut blocks = Vec::new();
                map.each_block(mapping, |start, end| match blocks.last_mut() {
                    Some((_, last)) if *last == start => *last = end,
                    _ => blocks.push((start, end)),
                });
                ranges.extend(blocks.into_iter().map(|(start, end)| (start, end - start)));
            }
            map.pages.pin(handle);
            let (unmapped, closed) = (Vec::new(), Vec::new());
            self.list.push(Sleeper { handle, is_released: false, unmapped, closed });
        }
        Ok(ranges)
    }

    /// Unmaps the selected handles, and then releases them. Returns the bytes released.
    pub(super) fn release<M: PhysicalMemory>(
        &mut self,
        map: &mut MemoryMap,
        backing: &mut M,
    ) -> Result<u64, M::Error> {
        self.list.iter_mut().try_for_each(|sleeper| sleeper.unmap(map, backing))?;
        self.list.iter_mut().try_fold(0, |sum, sleeper| Ok(sum + sleeper.release(map, backing)?))
    }

    /// Creates the handles that were released and maps them where they were. Returns the bytes created.
    pub(super) fn wake<M: PhysicalMemory>(
        &mut self,
        map: &mut MemoryMap,
        backing: &mut M,
    ) -> Result<u64, M::Refusal> {
        self.list.retain(|sleeper| !sleeper.forgets(map));
        self.list.iter_mut().try_fold(0, |sum, sleeper| Ok(sum + sleeper.wake(map, backing)?))
    }

    /// Ends the sleep of handles that are all mapped: their pages may move again.
    pub(super) fn end(&mut self, pages: &mut Pages) {
        debug_assert!(self.list.iter().all(|sleeper| !sleeper.is_released && sleeper.unmapped.is_empty()));
        self.list.drain(..).for_each(|sleeper| pages.unpin(sleeper.handle));
    }

    /// Forgets the handles that sleep, for a heap without blocks.
    pub(super) fn forget(&mut self, map: &mut MemoryMap, lost: &mut Lost) {
        for sleeper in self.list.drain(..) {
            if sleeper.forgets(map) {
                continue;
            }
            map.pages.unpin(sleeper.handle);
            // A step had failed: some mappings exist.
            let handle = map.pages.handle(sleeper.handle);
            let (raw, all) = (handle.raw, ones(0, handle.page_count));
            let mapped = map.pages.mappings_of(sleeper.handle).find(|id| !sleeper.unmapped.contains(id));
            if let Some(mapped) = mapped {
                let away = all & !map.pages.resident(mapped);
                map.move_pages(mapped, away);
                sleeper.unmapped.iter().for_each(|id| map.pages.remove_mapping(*id));
            } else {
                let size_bytes = map.handle_bytes(sleeper.handle);
                sleeper.remove_mappings(map);
                map.pages.remove_handle(sleeper.handle);
                lost.add(raw, size_bytes);
            }
        }
    }
}

impl Sleeper {
    fn unmap<M: PhysicalMemory>(&mut self, map: &MemoryMap, backing: &mut M) -> Result<(), M::Error> {
        for mapping in map.pages.mappings_of(self.handle) {
            if !self.unmapped.contains(&mapping) {
                let (address, size_bytes) = map.address_of(mapping);
                backing.unmap(address, size_bytes)?;
                self.closed.retain(|closed| *closed != mapping);
                self.unmapped.push(mapping);
            }
        }
        Ok(())
    }

    fn release<M: PhysicalMemory>(&mut self, map: &mut MemoryMap, backing: &mut M) -> Result<u64, M::Error> {
        if self.is_released {
            return Ok(0);
        }
        let size_bytes = map.handle_bytes(self.handle);
        backing.release(map.pages.handle(self.handle).raw, size_bytes)?;
        self.is_released = true;
        map.pages.reserved_bytes -= size_bytes;
        Ok(size_bytes)
    }

    fn wake<M: PhysicalMemory>(&mut self, map: &mut MemoryMap, backing: &mut M) -> Result<u64, M::Refusal> {
        let mut created_bytes = 0;
        if self.is_released {
            created_bytes = map.handle_bytes(self.handle);
            map.pages.set_raw(self.handle, backing.create(created_bytes)?);
            map.pages.reserved_bytes += created_bytes;
            self.is_released = false;
        }
        let raw = map.pages.handle(self.handle).raw;
        while let Some(mapping) = self.unmapped.last().copied() {
            let (address, size_bytes) = map.address_of(mapping);
            backing.map(address, size_bytes, raw)?;
            self.unmapped.pop();
            self.closed.push(mapping);
        }
        while let Some(mapping) = self.closed.last().copied() {
            let (address, size_bytes) = map.address_of(mapping);
            backing.set_access(address, size_bytes)?;
            self.closed.pop();
        }
        Ok(created_bytes)
    }

    /// Removes a handle that was released and has no block. True if it did.
    fn forgets(&self, map: &mut MemoryMap) -> bool {
        if !self.is_released {
            return false;
        }
        let mut has_blocks = false;
        for mapping in map.pages.mappings_of(self.handle) {
            map.each_block(mapping, |_, _| has_blocks = true);
        }
        if has_blocks {
            return false;
        }
        self.remove_mappings(map);
        // Its bytes were subtracted when it was released.
        map.pages.reserved_bytes += map.handle_bytes(self.handle);
        map.pages.remove_handle(self.handle);
        true
    }

    /// Removes the memory of a handle that is mapped nowhere and has no block.
    fn remove_mappings(&self, map: &mut MemoryMap) {
        map.pages.unshare(self.handle, u64::MAX);
        self.unmapped.iter().for_each(|mapping| map.remove_mapping(*mapping));
    }
}

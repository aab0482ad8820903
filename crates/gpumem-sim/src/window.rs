//! Windows: which mappings of virtual memory management this process has mapped as well.
//!
//! A window opens when work first follows the addresses of a mapping, not when the program maps it: a system lets a
//! process have some tens of thousands of mappings, fewer than a large device has handles of the least size. Once there
//! are many, all close before the next operation, and open again as they are needed; the bytes are in the file.

use super::codes::{Answer, INVALID_VALUE};
use super::machine::Machine;
use super::memory::Allocation;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The open windows of an instance, with their sizes. A cell: a kernel that runs opens some while it reads the machine.
#[derive(Default)]
pub(super) struct Windows(RefCell<BTreeMap<u64, u64>>);

impl Machine {
    /// Makes sure that this process can follow addresses that were found alive, until the operation that runs is over.
    pub(super) fn open_windows(&self, found: &Allocation, address: u64, size_bytes: u64) -> Answer<()> {
        if !found.is_mapped() {
            return Ok(());
        }
        let end = address.saturating_add(size_bytes.max(1));
        let first = self.memory.at_run.range(..=address).next_back().map_or(address, |(&base, _)| base);
        let mut open = self.virtual_memory.windows.0.borrow_mut();
        for (&base, mapping) in self.memory.at_run.range(first..end) {
            if let Entry::Vacant(window) = open.entry(base) {
                self.virtual_memory.show(mapping)?;
                window.insert(mapping.size_bytes);
            }
        }
        Ok(())
    }

    /// Nothing follows any address now.
    pub(super) fn close_windows_if_many(&self) {
        let mut open = self.virtual_memory.windows.0.borrow_mut();
        if open.len() > WINDOWS_MAX {
            // One that can't be closed stays open.
            open.retain(|&base, &mut size_bytes| self.virtual_memory.hide(base, size_bytes).is_err());
        }
    }

    /// Mappings are about to go, whole.
    pub(super) fn close_windows(&self, base: u64, size_bytes: u64) -> Answer<()> {
        let mut open = self.virtual_memory.windows.0.borrow_mut();
        if open.range(base..base + size_bytes).next().is_none() {
            return Ok(());
        }
        self.virtual_memory.hide(base, size_bytes)?;
        while let Some((&closed, _)) = open.range(base..base + size_bytes).next() {
            open.remove(&closed);
        }
        Ok(())
    }
}

impl super::virtual_memory::VirtualMemory {
    fn show(&self, mapping: &Allocation) -> Answer<()> {
        let (start, reservation) = self.reservation(mapping.base, mapping.size_bytes)?;
        let (file, file_offset_bytes) = self.pages_of(mapping).ok_or(INVALID_VALUE)?;
        // SAFETY: this mapping has no open window, so nothing could follow its addresses yet. A kernel that runs may
        // refer to other mappings.
        unsafe { reservation.range.map(mapping.base - start, mapping.size_bytes, file, file_offset_bytes) }
    }

    fn hide(&self, base: u64, size_bytes: u64) -> Answer<()> {
        let (start, reservation) = self.reservation(base, size_bytes)?;
        // SAFETY: windows close between operations, and references into them end with the operation.
        unsafe { reservation.range.unmap(base - start, size_bytes) }
    }
}

/// As many as stay open from one operation to the next. Each may split its surroundings in two, and other instances
/// have theirs.
const WINDOWS_MAX: usize = 4096;

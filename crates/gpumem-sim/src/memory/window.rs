//! Windows: the mappings of virtual memory management that are also mapped in this process.
//!
//! A window opens when work first accesses the addresses of a mapping, not when the program maps it: a system allows a process
//! some tens of thousands of mappings, and a large device can have more handles of the minimum size. If there are many, all close
//! before the next operation and reopen as needed; the bytes are in the file.

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::memory::Allocation;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The open windows of an instance, with their sizes. A cell, because a running kernel opens windows while it borrows the
/// machine.
#[derive(Default)]
pub(crate) struct Windows(pub(crate) RefCell<BTreeMap<u64, u64>>);

impl crate::memory::virtual_memory::VirtualMemory {
    pub(crate) fn show(&self, mapping: &Allocation) -> Answer<()> {
        let (start, reservation) = self.reservation(mapping.base, mapping.size_bytes)?;
        let (file, file_offset_bytes) = self.pages_of(mapping).ok_or(INVALID_VALUE)?;
        // SAFETY: this mapping has no open window, so no reference to its addresses exists. A running kernel may refer to other
        // mappings.
        unsafe { reservation.range.map(mapping.base - start, mapping.size_bytes, file, file_offset_bytes) }
    }

    pub(crate) fn hide(&self, base: u64, size_bytes: u64) -> Answer<()> {
        let (start, reservation) = self.reservation(base, size_bytes)?;
        // SAFETY: windows close between operations, and references into them end with the operation.
        unsafe { reservation.range.unmap(base - start, size_bytes) }
    }
}

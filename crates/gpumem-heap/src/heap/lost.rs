//! [`Lost`]: memory that could not be released when the heap tried. It counts as reserved. Each release of memory tries again.

use super::pages::Pages;
use super::space::PAGE_SHIFT;
use crate::memory::{PhysicalMemory, RawHandle};

/// Physical memory that could not be released.
#[derive(Debug, Default)]
pub struct Lost {
    /// Handles without mappings, each with its size.
    handles: Vec<(RawHandle, u64)>,
    rows: Vec<LostMappings>,
    bytes: u64,
}

/// A row of mappings that was not completed and could not be undone.
#[derive(Debug)]
struct LostMappings {
    space: usize,
    slot: u64,
    page_count: u64,
    /// The mappings that still exist: address and size.
    mapped: Vec<(u64, u64)>,
    /// The handles created for the row, each with its size.
    created: Vec<(RawHandle, u64)>,
}

impl Lost {
    /// The size of all handles, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if nothing is lost.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty() && self.rows.is_empty()
    }

    /// Adds a handle that is not mapped.
    pub fn add(&mut self, handle: RawHandle, size_bytes: u64) {
        self.handles.push((handle, size_bytes));
        self.bytes += size_bytes;
    }

    /// Tries to release all handles again.
    ///
    /// # Errors
    ///
    /// The first error. All handles were tried.
    pub fn release<M: PhysicalMemory>(&mut self, backing: &mut M) -> Result<(), M::Error> {
        let Self { handles, bytes, .. } = self;
        let mut released = Ok(());
        handles.retain(|(handle, size_bytes)| match backing.release(*handle, *size_bytes) {
            Ok(()) => {
                *bytes -= size_bytes;
                false
            }
            Err(error) => {
                released = released.and(Err(error));
                true
            }
        });
        released
    }

    /// Adds a row of mappings that was not completed. Its addresses are not used before it is unmapped.
    pub(super) fn add_row(
        &mut self,
        (space, start): (usize, u64),
        size_bytes: u64,
        mapped: Vec<(u64, u64)>,
        created: Vec<(RawHandle, u64)>,
    ) {
        self.bytes += created.iter().map(|(_, size_bytes)| size_bytes).sum::<u64>();
        let (slot, page_count) = (start >> PAGE_SHIFT, size_bytes >> PAGE_SHIFT);
        self.rows.push(LostMappings { space, slot, page_count, mapped, created });
    }

    /// Tries to unmap all rows again. The handles of rows that are unmapped can be released then.
    pub(super) fn unmap<M: PhysicalMemory>(
        &mut self,
        pages: &mut Pages,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        let mut unmapped = Ok(());
        for mut row in core::mem::take(&mut self.rows) {
            row.mapped.retain(|(address, size_bytes)| {
                let result = backing.unmap(*address, *size_bytes);
                unmapped = unmapped.and(result);
                result.is_err()
            });
            if row.mapped.is_empty() {
                pages.free_va_ranges_mut(row.space).add(row.slot, row.page_count);
                self.handles.append(&mut row.created);
            } else {
                self.rows.push(row);
            }
        }
        unmapped
    }

    pub(super) fn check(&self) -> bool {
        let created = self.rows.iter().flat_map(|row| &row.created);
        let sum = self.handles.iter().chain(created).map(|(_, size_bytes)| size_bytes).sum::<u64>();
        sum == self.bytes && self.rows.iter().all(|row| !row.mapped.is_empty())
    }
}

//! Opens mappings in this process before their bytes are accessed.

use crate::base::codes::Answer;
use crate::machine::Machine;
use crate::memory::Allocation;
use std::collections::btree_map::Entry;

impl Machine {
    /// Opens the mappings of live addresses, so that this process can access them until the current operation is complete.
    pub(crate) fn open_windows(&self, found: &Allocation, address: u64, size_bytes: u64) -> Answer<()> {
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

    /// Closes mappings while no operation accesses any.
    pub(crate) fn close_windows_if_many(&self) {
        let mut open = self.virtual_memory.windows.0.borrow_mut();
        if open.len() > WINDOWS_MAX {
            // A mapping that cannot be closed stays open.
            open.retain(|&base, &mut size_bytes| self.virtual_memory.hide(base, size_bytes).is_err());
        }
    }

    /// Closes mappings that are about to be unmapped, each as a whole.
    pub(crate) fn close_windows(&self, base: u64, size_bytes: u64) -> Answer<()> {
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

/// The maximum number of mappings that stay open between operations. Each may split a mapping of the process in two, and other
/// instances have open mappings too.
const WINDOWS_MAX: usize = 4096;

//! Frees of every kind of memory, and the end of the memory of a destroyed context.

pub(crate) mod host;
pub(crate) mod import;
pub(crate) mod ipc;
pub(crate) mod managed;
pub(crate) mod managed_range;
pub(crate) mod plain;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod pool_file;
pub(crate) mod pool_kind;
pub(crate) mod pool_reuse;
pub(crate) mod virtual_memory;
pub(crate) mod virtual_memory_shared;
pub(crate) mod window;

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::{Allocation, GONE_MAX};
use crate::order::Point;

impl Machine {
    /// Frees the memory of a context; for a primary context, also the blocks of its device's pools.
    pub(crate) fn memory_forget(&mut self, context: Handle, device: Option<usize>) {
        let owned = |allocation: &&Allocation| match allocation.allocated_by {
            AllocatedBy::Pool(_)
            | AllocatedBy::PinnedPool(_)
            | AllocatedBy::ManagedPool(_)
            | AllocatedBy::Imported(_) => Some(allocation.device) == device,
            // Handles belong to no context.
            AllocatedBy::Mapped { .. } => false,
            _ => allocation.context == context,
        };
        let bases: Vec<u64> = self.memory.at_call.values().filter(owned).map(|found| found.base).collect();
        for base in bases {
            // Each address is allocated, so no free can fail.
            let _ = self.free_any(base);
        }
        if let Some(device) = device {
            self.pools_trim(device);
        }
    }

    /// Frees device memory or pinned memory of either kind, once its uses are complete.
    fn free_any(&mut self, base: u64) -> Answer<()> {
        let allocated_by = self.memory.at_call.get(&base).ok_or(INVALID_VALUE)?.allocated_by;
        match allocated_by {
            AllocatedBy::Plain
            | AllocatedBy::Pool(_)
            | AllocatedBy::PinnedPool(_)
            | AllocatedBy::ManagedPool(_)
            | AllocatedBy::Imported(_)
            | AllocatedBy::Managed
            | AllocatedBy::Mapped { .. } => self.free(base),
            AllocatedBy::Opened => {
                self.import_close(base);
                Ok(())
            }
            AllocatedBy::Variable => {
                self.free_variable(base);
                Ok(())
            }
            AllocatedBy::Graph => {
                self.graph_memory_remove(base);
                Ok(())
            }
            AllocatedBy::Host { .. } => self.host_free(base),
            AllocatedBy::Registered { .. } => self.host_unregister(base),
        }
    }

    /// Frees device memory for the host and the device at once. The device's work is complete.
    pub(crate) fn free(&mut self, base: u64) -> Answer<()> {
        let allocation = self.device_allocation(base)?;
        self.retire(base);
        self.release(&allocation, None);
        Ok(())
    }

    /// The freeable device memory that begins at an address. Mapped memory is not freeable: it is unmapped.
    pub(crate) fn device_allocation(&self, base: u64) -> Answer<Allocation> {
        let found = *self.memory.at_call.get(&base).ok_or(INVALID_VALUE)?;
        match found.allocated_by {
            AllocatedBy::Plain
            | AllocatedBy::Pool(_)
            | AllocatedBy::PinnedPool(_)
            | AllocatedBy::ManagedPool(_)
            | AllocatedBy::Imported(_)
            | AllocatedBy::Managed => Ok(found),
            AllocatedBy::Graph if self.graph_memory_is_live(base) => Ok(found),
            AllocatedBy::Host { .. }
            | AllocatedBy::Registered { .. }
            | AllocatedBy::Mapped { .. }
            | AllocatedBy::Opened
            | AllocatedBy::Variable
            | AllocatedBy::Graph => Err(INVALID_VALUE),
        }
    }

    /// The host's side of a free: from now on the program may not pass the address to the driver.
    pub(crate) fn retire(&mut self, base: u64) {
        // A graph keeps its addresses.
        if self.memory.at_call.get(&base).is_some_and(|found| found.allocated_by == AllocatedBy::Graph) {
            return self.graph_memory_retire(base);
        }
        let Some(allocation) = self.memory.at_call.remove(&base) else { return };
        if self.memory.retired.len() == GONE_MAX {
            self.memory.retired.pop_front();
        }
        self.memory.retired.push_back(base);
        if let Some(pool) = allocation.allocated_by.pool() {
            self.pool_retire(pool, allocation.size_bytes);
        }
    }

    /// The point at which the device allocates the memory, if the point is not reached yet.
    pub(crate) fn unborn(&self, allocation: &Allocation) -> Option<Point> {
        allocation.born.filter(|&born| !self.is_done(born))
    }

    /// The device's side of a free: the bytes may be reused. `at` is the point of a stream-ordered free.
    pub(crate) fn release(&mut self, allocation: &Allocation, at: Option<Point>) {
        match self.unborn(allocation) {
            Some(born) => self.memory.stillborn.push(born),
            None => self.memory.free_now(allocation.base),
        }
        self.note_free(allocation);
        match allocation.allocated_by {
            AllocatedBy::Plain | AllocatedBy::Variable => self.plain_release(allocation),
            AllocatedBy::Graph => self.graph_memory_released(allocation.base),
            AllocatedBy::Pool(pool) => {
                self.imports_lose(allocation);
                self.pool_release(pool, allocation.base, allocation.size_bytes, at);
            }
            AllocatedBy::PinnedPool(pool) | AllocatedBy::ManagedPool(pool) => {
                self.pool_release(pool, allocation.base, allocation.size_bytes, at);
            }
            AllocatedBy::Imported(_) | AllocatedBy::Opened => self.import_release(allocation.base),
            AllocatedBy::Managed => self.managed_release(allocation.base),
            AllocatedBy::Host { .. } | AllocatedBy::Registered { .. } | AllocatedBy::Mapped { .. } => {}
        }
    }
}

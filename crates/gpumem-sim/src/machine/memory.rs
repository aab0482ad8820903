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
use crate::memory::owner::Owner;
use crate::memory::{Allocation, GONE_MAX};
use crate::order::Point;

impl Machine {
    /// Frees the memory of a context; for a primary context, also the blocks of its device's pools.
    pub(crate) fn memory_forget(&mut self, context: Handle, device: Option<usize>) {
        let owned = |allocation: &&Allocation| match allocation.owner {
            Owner::Pool(_) | Owner::PinnedPool(_) | Owner::ManagedPool(_) | Owner::Imported(_) => {
                Some(allocation.device) == device
            }
            // Handles belong to no context.
            Owner::Mapped { .. } => false,
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
        let owner = self.memory.at_call.get(&base).ok_or(INVALID_VALUE)?.owner;
        match owner {
            Owner::Plain
            | Owner::Pool(_)
            | Owner::PinnedPool(_)
            | Owner::ManagedPool(_)
            | Owner::Imported(_)
            | Owner::Managed
            | Owner::Mapped { .. } => self.free(base),
            Owner::Opened => {
                self.import_close(base);
                Ok(())
            }
            Owner::Graph => {
                self.graph_memory_remove(base);
                Ok(())
            }
            Owner::Host { .. } => self.host_free(base),
            Owner::Registered { .. } => self.host_unregister(base),
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
        match found.owner {
            Owner::Plain
            | Owner::Pool(_)
            | Owner::PinnedPool(_)
            | Owner::ManagedPool(_)
            | Owner::Imported(_)
            | Owner::Managed => Ok(found),
            Owner::Graph if self.graph_memory_is_live(base) => Ok(found),
            Owner::Host { .. }
            | Owner::Registered { .. }
            | Owner::Mapped { .. }
            | Owner::Opened
            | Owner::Graph => Err(INVALID_VALUE),
        }
    }

    /// The host's side of a free: from now on the program may not pass the address to the driver.
    pub(crate) fn retire(&mut self, base: u64) {
        // A graph keeps its addresses.
        if self.memory.at_call.get(&base).is_some_and(|found| found.owner == Owner::Graph) {
            return self.graph_memory_retire(base);
        }
        let Some(allocation) = self.memory.at_call.remove(&base) else { return };
        if self.memory.retired.len() == GONE_MAX {
            self.memory.retired.pop_front();
        }
        self.memory.retired.push_back(base);
        if let Some(pool) = allocation.owner.pool() {
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
        match allocation.owner {
            Owner::Plain => self.plain_release(allocation),
            Owner::Graph => self.graph_memory_released(allocation.base),
            Owner::Pool(pool) => {
                self.imports_lose(allocation);
                self.pool_release(pool, allocation.base, allocation.size_bytes, at);
            }
            Owner::PinnedPool(pool) | Owner::ManagedPool(pool) => {
                self.pool_release(pool, allocation.base, allocation.size_bytes, at);
            }
            Owner::Imported(_) | Owner::Opened => self.import_release(allocation.base),
            Owner::Managed => self.managed_release(allocation.base),
            Owner::Host { .. } | Owner::Registered { .. } | Owner::Mapped { .. } => {}
        }
    }
}

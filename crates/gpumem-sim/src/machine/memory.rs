//! Frees of every kind of memory, and what a destroyed context leaves behind.

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
    /// Takes away what a context owns, and with a primary context what its device's pools have handed out.
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
            // Each is known, so none can be refused.
            let _ = self.free_any(base);
        }
        if let Some(device) = device {
            self.pools_trim(device);
        }
    }

    /// Frees device memory or pinned memory of either kind, once nothing uses it.
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

    /// Frees device memory for the host and the device at once. The device's work has run.
    pub(crate) fn free(&mut self, base: u64) -> Answer<()> {
        let allocation = self.device_allocation(base)?;
        self.retire(base);
        self.release(&allocation, None);
        Ok(())
    }

    /// The device memory that begins at an address and can be freed there. What is mapped is unmapped instead.
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

    /// The host's side of a free: the address may not be passed to the driver any more.
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

    /// The point at which the device will have the memory, if it has not been there yet.
    pub(crate) fn unborn(&self, allocation: &Allocation) -> Option<Point> {
        allocation.born.filter(|&born| !self.is_done(born))
    }

    /// The device's side: the bytes may be handed out again. `at` is the point of a free in stream order.
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

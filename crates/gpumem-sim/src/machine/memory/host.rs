//! Pinned host memory: allocated by the driver, or registered by the program.
//!
//! Both kinds have one address for the host and for the devices of all contexts.

use crate::backing::{Backing, Bytes};
use crate::base::address::is_device_address;
use crate::base::codes::{
    Answer, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_CONTEXT, INVALID_VALUE,
};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::machine::call_cost::{
    PIN_NS_PER_MIB, REGISTER_NS_PER_MIB, UNPIN_NS_PER_MIB, UNREGISTER_NS_PER_MIB,
};
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::report::finding::AccessKind;

impl Machine {
    pub(crate) fn host_alloc(&mut self, context: Handle, size_bytes: u64, flags: u32) -> Answer<u64> {
        if size_bytes == 0 || flags & !ALLOC_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let backing = Backing::new(size_bytes)?;
        let base = backing.bytes().0.expose_provenance() as u64;
        self.pin(context, base, size_bytes, AllocatedBy::Host { flags })?;
        self.host.insert(base, backing);
        self.charge_pages(size_bytes, PIN_NS_PER_MIB);
        Ok(base)
    }

    /// Frees pinned memory. The devices' work is complete.
    pub(crate) fn host_free(&mut self, base: u64) -> Answer<()> {
        let size_bytes = self.host.get(&base).ok_or(INVALID_VALUE)?.size_bytes();
        self.charge_pages(size_bytes, UNPIN_NS_PER_MIB);
        self.note_host_free(base, AccessKind::Free);
        self.memory.remove(base);
        self.host.remove(&base);
        Ok(())
    }

    pub(crate) fn host_register(
        &mut self,
        context: Handle,
        base: u64,
        size_bytes: u64,
        flags: u32,
    ) -> Answer<()> {
        if base == 0 || size_bytes == 0 || flags & !REGISTER_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let last =
            base.checked_add(size_bytes - 1).filter(|&last| !is_device_address(last)).ok_or(INVALID_VALUE)?;
        let before = self.memory.at_call.range(..=last).next_back();
        if before.is_some_and(|(_, found)| found.base + found.size_bytes > base) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.charge_pages(size_bytes, REGISTER_NS_PER_MIB);
        self.pin(context, base, size_bytes, AllocatedBy::Registered { flags })
    }

    /// Unregisters memory. The devices' work is complete. Uses that the host has not waited for are findings.
    pub(crate) fn host_unregister(&mut self, base: u64) -> Answer<()> {
        match self.memory.at_call.get(&base).copied() {
            Some(Allocation { allocated_by: AllocatedBy::Registered { .. }, size_bytes, .. }) => {
                self.charge_pages(size_bytes, UNREGISTER_NS_PER_MIB);
                self.note_host_free(base, AccessKind::Unregister);
                self.memory.remove(base);
                Ok(())
            }
            _ => Err(HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// The pinned allocation that contains an address, with its flags.
    pub(crate) fn host_flags(&self, address: u64) -> Answer<u32> {
        match self.memory.known(address, 1).map(|found| found.allocated_by) {
            Some(AllocatedBy::Host { flags } | AllocatedBy::Registered { flags }) => Ok(flags),
            _ => Err(INVALID_VALUE),
        }
    }

    fn pin(&mut self, context: Handle, base: u64, size_bytes: u64, allocated_by: AllocatedBy) -> Answer<()> {
        let device = self.contexts.get(context).ok_or(INVALID_CONTEXT)?.device;
        let bytes = Bytes(core::ptr::with_exposed_provenance_mut(base as usize));
        let call = self.made_here();
        self.memory.insert(Allocation {
            base,
            size_bytes,
            bytes,
            device,
            context,
            allocated_by,
            call,
            born: None,
        });
        Ok(())
    }
}

/// Portable, mapped, write-combined.
const ALLOC_FLAGS: u32 = 7;
/// Portable, mapped, memory-mapped, read-only.
const REGISTER_FLAGS: u32 = 15;

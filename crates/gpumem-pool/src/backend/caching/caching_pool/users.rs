//! Access to a pool's memory from other devices and processes, and pinning for them.

use super::CachingPool;
use crate::backend::{
    Allocation, Underlying, caching::access::Memory, caching::access::all_of, caching::access::none_of, plain,
};
use crate::config::MemoryKind;
use crate::device::{CaptureModeGuard, Device};
use crate::error::PoolError;
use gpumem_heap::heap::BlockBacking;

impl CachingPool {
    /// Gives a peer device access to all mapped memory, present and future.
    pub(in super::super) fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        if let Memory::Segments(kind) = self.access.memory() {
            return Ok(plain::enable_peer_access(&self.device, kind, peer)?);
        }
        let _bound = self.device.enter()?;
        let (core, vmm) = (self.core(), self.vmm());
        if self.access.is_granted(peer.raw()) {
            return Ok(());
        }
        let mappings: Vec<(u64, u64)> = core.heap.mappings().chain(core.extents.mappings()).collect();
        for (index, (address, size_bytes)) in mappings.iter().enumerate() {
            if let Err(error) = vmm.set_access_of(*address, *size_bytes, &all_of(peer.raw())) {
                for (address, size_bytes) in &mappings[..index] {
                    // If this fails too, the peer keeps an access that was not granted.
                    let _ = vmm.set_access_of(*address, *size_bytes, &none_of(peer.raw()));
                }
                return Err(error.into());
            }
        }
        self.access.grant(peer.raw());
        Ok(())
    }

    /// The physical memory under a live allocation, if the handles are exportable.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only exports ask for it, which are for Unix"))]
    pub(in super::super) fn backing(&self, allocation: &Allocation) -> Option<Underlying> {
        let mut core = self.core();
        let BlockBacking { handles, offset_bytes } = self
            .access
            .is_exportable()
            .then(|| core.heap.backing(allocation.record(), allocation.address))??;
        let handles = handles.into_iter().map(|(handle, size_bytes)| (handle.0, size_bytes)).collect();
        Some(Underlying { handles, offset_bytes })
    }

    pub(in super::super) fn has_plain_segments(&self) -> bool {
        self.access.memory() == Memory::Segments(MemoryKind::Device)
    }

    /// Whether the memory is host-accessible. If so, only complete memory is free.
    pub(in super::super) fn is_for_host(&self) -> bool {
        self.access.memory().kind().is_host_accessible()
    }

    pub(in super::super) fn can_map(&self) -> bool {
        self.access.memory() == Memory::Virtual
    }

    /// Pins the physical memory of a live allocation under its addresses.
    pub(in super::super) fn pin(&self, record: u32) {
        self.core().heap.pin(record);
    }
}

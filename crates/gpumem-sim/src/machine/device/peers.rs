//! Peers: linked devices, and their access to each other's memory.
//!
//! Access to another device's memory is granted in three ways, by the kind of memory: to a context for all plain memory of
//! another context (here), to a device for a pool (`pool`), to a device for a mapping (`virtual_memory`). Each requires a link. A
//! copy requires none: without access it goes through the host.

use crate::base::codes::{
    Answer, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED, PEER_ACCESS_UNSUPPORTED,
};
use crate::base::handle::Handle;
use crate::machine::Machine;
use gpumem_sys::types::CUdevice_P2PAttribute as Attribute;

impl Machine {
    /// True if two devices can be given access to each other's memory. A device is not a peer of itself.
    pub(crate) fn is_linked(&self, device: usize, peer: usize) -> bool {
        let pair = (device.min(peer) as u32, device.max(peer) as u32);
        device != peer && !self.config.severed.contains(&pair)
    }

    /// Checks that a device can be given access to memory of a device.
    pub(crate) fn check_reach(&self, device: usize, owner: usize) -> Answer<()> {
        if device == owner || self.is_linked(device, owner) { Ok(()) } else { Err(INVALID_DEVICE) }
    }

    /// The attributes of a link between two devices. All links are equal.
    pub(crate) fn peer_attribute(&self, attribute: Attribute, device: usize, peer: usize) -> Answer<i32> {
        if device == peer {
            return Err(INVALID_DEVICE);
        }
        let is_linked = i32::from(self.is_linked(device, peer));
        match attribute {
            // The best rank, because there is one kind of link.
            Attribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => Ok(0),
            Attribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
            | Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
            | Attribute::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => Ok(is_linked),
            Attribute::CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => Ok(0),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn enable_peer(&mut self, current: Handle, peer: Handle) -> Answer<()> {
        let peer_device = self.contexts.get(peer).ok_or(INVALID_CONTEXT)?.device;
        let device = self.contexts.get(current).ok_or(INVALID_CONTEXT)?.device;
        if device == peer_device {
            return Err(INVALID_DEVICE);
        }
        if !self.is_linked(device, peer_device) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let context = self.contexts.get_mut(current).ok_or(INVALID_CONTEXT)?;
        if context.peers.insert(peer) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    pub(crate) fn disable_peer(&mut self, current: Handle, peer: Handle) -> Answer<()> {
        self.contexts.get(peer).ok_or(INVALID_CONTEXT)?;
        let context = self.contexts.get_mut(current).ok_or(INVALID_CONTEXT)?;
        if context.peers.remove(&peer) { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }
}

//! The attributes of a pointer.

use crate::backing::pages;
use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use gpumem_sys::types::{CUmemorytype, CUpointer_attribute as Attribute};

/// The value of an attribute, in the width that the driver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointerValue {
    Bool(bool),
    Int(u32),
    Long(u64),
    /// An attribute that the simulator does not support.
    Unsupported,
}

impl Machine {
    /// An attribute of a known address; an error for an unknown address.
    pub(crate) fn pointer_attribute(&self, attribute: Attribute, address: u64) -> Answer<PointerValue> {
        let found = self.memory.known(address, 1).ok_or(INVALID_VALUE)?;
        match self.pointer_value(attribute, &found, address)? {
            // Device memory has no host address, and pinned memory of a pool has no device address.
            PointerValue::Long(0)
                if attribute == Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER
                    || attribute == Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER =>
            {
                Err(INVALID_VALUE)
            }
            value => Ok(value),
        }
    }

    /// For the call that returns several attributes at once: zeros for an unknown address.
    pub(crate) fn pointer_attribute_or_zero(
        &self,
        attribute: Attribute,
        address: u64,
    ) -> Answer<PointerValue> {
        match self.memory.known(address, 1) {
            Some(found) => self.pointer_value(attribute, &found, address),
            None => Ok(zero(attribute)),
        }
    }

    fn pointer_value(&self, attribute: Attribute, found: &Allocation, address: u64) -> Answer<PointerValue> {
        match attribute {
            Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
                let types = match found.allocated_by {
                    AllocatedBy::Pool(pool) => self.pools.get(pool).map(|pool| pool.sharing.handle_types()),
                    AllocatedBy::Mapped { handle, .. } => Some(self.virtual_memory.handle_types(handle)),
                    _ => None,
                };
                Ok(PointerValue::Long(types.map_or(0, |types| u64::from(types.0))))
            }
            Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
                Ok(PointerValue::Bool(pages::IS_SUPPORTED && found.allocated_by == AllocatedBy::Plain))
            }
            _ => value(attribute, found, address),
        }
    }
}

fn value(attribute: Attribute, found: &Allocation, address: u64) -> Answer<PointerValue> {
    let (is_host, is_managed) = (found.allocated_by.is_host(), found.allocated_by.is_managed());
    Ok(match attribute {
        // Memory of pools and mapped memory belong to no context.
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT
            if found.allocated_by.pool().is_some()
                || matches!(found.allocated_by, AllocatedBy::Imported(_) | AllocatedBy::Mapped { .. }) =>
        {
            PointerValue::Long(0)
        }
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT => PointerValue::Long(found.context.to_bits()),
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE if is_host => {
            PointerValue::Int(CUmemorytype::CU_MEMORYTYPE_HOST.0)
        }
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            PointerValue::Int(CUmemorytype::CU_MEMORYTYPE_DEVICE.0)
        }
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
            if matches!(found.allocated_by, AllocatedBy::PinnedPool(_)) =>
        {
            PointerValue::Long(0)
        }
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => PointerValue::Long(address),
        Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER if is_host || is_managed => PointerValue::Long(address),
        Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER => PointerValue::Long(0),
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED => PointerValue::Bool(is_managed),
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => PointerValue::Int(found.device as u32),
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => PointerValue::Long(found.base),
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => PointerValue::Long(found.size_bytes),
        Attribute::CU_POINTER_ATTRIBUTE_MAPPED => PointerValue::Bool(true),
        Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => PointerValue::Long(match found.allocated_by {
            AllocatedBy::Imported(pool) => pool.to_bits(),
            allocated_by => allocated_by.pool().map_or(0, Handle::to_bits),
        }),
        Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID => PointerValue::Long(found.base),
        _ => PointerValue::Unsupported,
    })
}

fn zero(attribute: Attribute) -> PointerValue {
    match attribute {
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => PointerValue::Int(0),
        // No device.
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => PointerValue::Int(-2_i32 as u32),
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED
        | Attribute::CU_POINTER_ATTRIBUTE_MAPPED
        | Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => PointerValue::Bool(false),
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT
        | Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER
        | Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        | Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
        | Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID => PointerValue::Long(0),
        _ => PointerValue::Unsupported,
    }
}

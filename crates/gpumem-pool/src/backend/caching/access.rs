//! [`MemoryAccess`]: the type and purpose of a pool's memory, the devices with access to it, its limits, and the counters of driver calls.

use crate::backend::source::BackendSetup;
use crate::config::{HandleUse, MemoryKind};
use crate::figures::ActivityCounters;
use crate::limits::{Admission, DeviceBudget};
use gpumem_sys::types::{
    CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use std::sync::{Arc, PoisonError, RwLock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeapMemory {
    /// Handles, mapped where the heap needs them.
    Virtual,
    /// Segments, each at the address that the driver chooses.
    Segments(MemoryKind),
}

impl HeapMemory {
    pub(super) fn kind(self) -> MemoryKind {
        match self {
            Self::Virtual => MemoryKind::Device,
            Self::Segments(kind) => kind,
        }
    }
}

pub(super) struct MemoryAccess {
    pub(super) memory: HeapMemory,
    device: CUdevice,
    pub(super) handle_use: HandleUse,
    pub(super) admission: Admission,
    pub(super) activity: Arc<ActivityCounters>,
    /// The devices with access; the pool's own device comes first. Entries are added only under the heap's lock, so
    /// that no mapping misses a change.
    granted: RwLock<Vec<CUmemAccessDesc>>,
}

impl MemoryAccess {
    pub(super) fn new(memory: HeapMemory, setup: BackendSetup<'_>) -> Self {
        let BackendSetup { device, config, limits, activity, .. } = setup;
        Self {
            memory,
            device: device.raw(),
            handle_use: config.handle_use,
            admission: Admission::new(config, limits, &DeviceBudget::on(device)),
            activity: Arc::clone(activity),
            granted: RwLock::new(vec![all_of(device.raw())]),
        }
    }

    /// A copy for an orphaned heap: it counts against the same limits, and grants no access.
    pub(super) fn for_orphaned_heap(&self) -> Self {
        let (admission, activity) = (self.admission.clone(), Arc::clone(&self.activity));
        Self { admission, activity, granted: RwLock::default(), ..*self }
    }

    #[cfg(unix)]
    pub(super) fn is_exportable(&self) -> bool {
        self.handle_use.exportable
    }

    pub(super) fn grant(&self, peer: CUdevice) {
        self.granted.write().unwrap_or_else(PoisonError::into_inner).push(all_of(peer));
    }

    pub(super) fn is_granted(&self, peer: CUdevice) -> bool {
        self.with(|granted| granted.iter().any(|access| access.location.id == peer))
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&[CUmemAccessDesc]) -> R) -> R {
        work(&self.granted.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn props(&self) -> CUmemAllocationProp {
        let requested = if self.handle_use.exportable {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        } else {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE
        };
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: requested,
            location: location(self.device),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                gpuDirectRDMACapable: u8::from(self.handle_use.rdma),
                ..Default::default()
            },
            ..Default::default()
        }
    }
}

pub(super) fn all_of(device: CUdevice) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(device),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

pub(super) fn none_of(device: CUdevice) -> CUmemAccessDesc {
    CUmemAccessDesc { location: location(device), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE }
}

fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

//! The processes with memory on a device, looked up when their memory causes a refusal.
//!
//! The driver reports only a sum. With the feature `nvml`, the vendor's management library is queried; it is loaded
//! once and stays loaded. If it is missing or reports no process, the report has only the sum. A driver with an
//! extension, such as the simulator, lists its processes itself.

use crate::device::Device;
use gpumem_sys::ProcessUsage;

/// The memory of processes on a device.
pub struct ProcessMemory {
    /// The memory of this process, if it is known.
    pub own_bytes: Option<u64>,
    /// The other known processes, the largest first.
    pub others: Vec<ProcessUsage>,
}

/// Queries the processes that have memory on the device.
pub fn on(device: &Device) -> ProcessMemory {
    let mut processes = all_on(device);
    let own = processes.iter().find(|process| process.id == Some(std::process::id()));
    let own_bytes = own.and_then(|process| process.in_use_bytes);
    processes.retain(|process| process.id != Some(std::process::id()) && process.in_use_bytes != Some(0));
    processes.sort_by_key(|process| core::cmp::Reverse(process.in_use_bytes));
    processes.truncate(COUNT_MAX);
    ProcessMemory { own_bytes, others: processes }
}

/// Limits the length of the table.
const COUNT_MAX: usize = 5;

fn all_on(device: &Device) -> Vec<ProcessUsage> {
    if let Some(extension) = device.driver().extension() {
        return extension.processes(device.ordinal());
    }
    #[cfg(feature = "nvml")]
    return nvml::on(device).unwrap_or_default();
    #[cfg(not(feature = "nvml"))]
    Vec::new()
}

#[cfg(feature = "nvml")]
mod nvml {
    use super::ProcessUsage;
    use crate::device::Device;
    use gpumem_sys::types::CUdevice_attribute as Attribute;
    use nvml_wrapper::Nvml;
    use nvml_wrapper::enums::device::UsedGpuMemory;
    use nvml_wrapper::struct_wrappers::device::ProcessInfo;
    use std::sync::OnceLock;

    /// `None` if the library is missing or a query fails.
    pub(super) fn on(device: &Device) -> Option<Vec<ProcessUsage>> {
        static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
        let nvml = LIBRARY.get_or_init(|| Nvml::init().ok()).as_ref()?;
        // NVML's indices include devices hidden from this program, so the device is found by its PCI address.
        let part = |attribute| device.attribute(attribute).ok();
        let place = format!(
            "{:08x}:{:02x}:{:02x}.0",
            part(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            part(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            part(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        );
        let found = nvml.device_by_pci_bus_id(place).ok()?;
        let computing = found.running_compute_processes().unwrap_or_default();
        let drawing = found.running_graphics_processes().unwrap_or_default();
        let mut processes = [computing, drawing].concat();
        processes.sort_by_key(|process| process.pid);
        processes.dedup_by_key(|process| process.pid);
        Some(processes.iter().map(usage).collect())
    }

    fn usage(process: &ProcessInfo) -> ProcessUsage {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid)).ok();
        let mut usage = ProcessUsage::default();
        usage.id = Some(process.pid);
        usage.name = name.map(|name| name.trim().to_string()).filter(|name| !name.is_empty());
        usage.in_use_bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(size_bytes) => Some(size_bytes),
            UsedGpuMemory::Unavailable => None,
        };
        usage
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use gpumem_sys::Driver;

        #[test]
        #[ignore = "needs a GPU with its management library, outside of a container"]
        fn this_process_is_found() {
            let device = Device::new(&Driver::cuda().unwrap(), 0).unwrap();
            let processes = on(&device).expect("the library says nothing");
            let own = processes.iter().find(|process| process.id == Some(std::process::id()));
            assert!(own.is_some_and(|own| own.name.is_some()), "{processes:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_sim::SimConfig;

    #[test]
    fn this_process_is_told_from_others() {
        let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
        assert!(on(&device).others.is_empty());
        let sim = gpumem_sim::Sim::of(device.driver()).unwrap();
        sim.take_memory(0, 1 << 20);
        let ProcessMemory { own_bytes, others } = on(&device);
        let in_use_bytes: Vec<_> = others.iter().map(|process| process.in_use_bytes).collect();
        assert_eq!((own_bytes, in_use_bytes), (Some(0), vec![Some(1 << 20)]));
        let mut address = 0;
        let _bound = device.bind().unwrap();
        // SAFETY: the address outlives the call, and the memory is not used.
        unsafe { device.driver().cuMemAlloc_v2(&mut address, 3 << 20).unwrap() };
        assert_eq!(on(&device).own_bytes, Some(4 << 20));
        // SAFETY: the address came from the call above.
        unsafe { device.driver().cuMemFree_v2(address).unwrap() };
    }
}

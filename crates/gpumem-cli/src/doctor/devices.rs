//! The driver and its devices: their memory, and what they lack.

use super::rows::{Grade, Rows, section_of};
use super::speed;
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::pool::sys::types::CUdevice_attribute;
use gpumem_trace::pool::sys::{Driver, DriverKind, LoadError};
use gpumem_trace::pool::{Bytes, Device};

/// The vendor's driver, or the simulator if `GPUMEM_DRIVER` names it.
pub(super) fn driver(rows: &mut Rows) -> Option<Driver> {
    match gpumem_sim::from_env() {
        Ok(driver) => {
            let version = cuda_version(&driver);
            let name = if driver.kind() == DriverKind::Cuda {
                "NVIDIA's driver"
            } else {
                "the simulator (GPUMEM_DRIVER)"
            };
            let found = format!("{name}, for CUDA {}.{}", version / 1000, version % 1000 / 10);
            rows.good("driver", "library", found);
            Some(driver)
        }
        Err(error @ gpumem_sim::SimError::Env(_)) => {
            rows.add(
                "driver",
                "library",
                "not looked at, because of a variable below".into(),
                Grade::Note,
                None,
            );
            rows.variable_error = Some(error.to_string());
            None
        }
        Err(error) => {
            let is_missing = matches!(
                error,
                gpumem_sim::SimError::Load(LoadError::NoLibrary { .. } | LoadError::NoDevice(_))
            );
            let advice = if is_missing {
                "install NVIDIA's driver, and in a container start it with the GPU (--gpus all); programs and tests run on the simulator without"
            } else {
                "set GPUMEM_DRIVER to cuda, sim or drop-in, or unset it"
            };
            rows.add("driver", "library", error.to_string(), Grade::Bad, Some(advice.into()));
            None
        }
    }
}

/// The newest version of CUDA that a driver supports, such as 13000.
#[allow(unsafe_code)]
fn cuda_version(driver: &Driver) -> i32 {
    let mut version = 0;
    // SAFETY: the target is valid for the write.
    match unsafe { driver.cuDriverGetVersion(&mut version) } {
        Ok(()) => version,
        Err(_) => 0,
    }
}

pub(super) fn look(rows: &mut Rows, driver: &Driver, is_quick: bool) {
    let count = match Device::count(driver) {
        Ok(count) => count,
        Err(error) => {
            return rows.add(
                "devices",
                "devices",
                error.to_string(),
                Grade::Bad,
                Some("see nvidia-smi".into()),
            );
        }
    };
    let mut devices = Vec::new();
    for ordinal in 0..count {
        match Device::new(driver, ordinal) {
            Ok(device) => devices.push(device),
            Err(error) => {
                let advice = "see nvidia-smi, and CUDA_VISIBLE_DEVICES";
                rows.add(
                    "devices",
                    &format!("device {ordinal}"),
                    error.to_string(),
                    Grade::Bad,
                    Some(advice.into()),
                );
            }
        }
    }
    for device in &devices {
        capabilities(rows, device);
        let linked: Vec<String> = devices
            .iter()
            .filter(|other| other.ordinal() != device.ordinal() && has_link(device, other))
            .map(|other| other.ordinal().to_string())
            .collect();
        if devices.len() > 1 {
            let found =
                if linked.is_empty() { "none: copies go through the host".into() } else { linked.join(", ") };
            rows.good(section_of(device), "links to devices", found);
        }
        if !is_quick {
            speed::measure(rows, device);
        }
    }
}

/// The memory of a device, and which kinds of it there are.
fn capabilities(rows: &mut Rows, device: &Device) {
    let section = section_of(device);
    let (major, minor) = device.compute_capability();
    rows.good(section, "name", format!("{}, compute capability {major}.{minor}", Shown::name(device.name())));
    match device.memory_info() {
        Ok(info) => {
            let (free, total) = (info.free_bytes, info.total_bytes);
            let is_full = free < total / 10;
            let advice = "other programs hold most of it: nvidia-smi lists them";
            let grade = if is_full { Grade::Note } else { Grade::Good };
            rows.add(
                section,
                "memory",
                format!("{} free of {}", Bytes(free), Bytes(total)),
                grade,
                is_full.then(|| advice.into()),
            );
        }
        Err(error) => {
            rows.add(section, "memory", error.to_string(), Grade::Bad, Some("see nvidia-smi".into()))
        }
    }
    type Attribute = CUdevice_attribute;
    let lacking = [
        (
            "virtual memory",
            Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            "pools use plain segments, and idle memory may lie in pieces",
        ),
        (
            "memory pools",
            Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            "the backend `native` is refused; `caching` works",
        ),
        (
            "managed memory",
            Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
            "pools of unified memory are refused",
        ),
        (
            "concurrent managed memory",
            Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
            "the host reads unified memory only while the device is idle",
        ),
        (
            "pageable host memory",
            Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
            "kernels cannot read host memory that is not pinned; usual without NVLink-C2C or HMM",
        ),
    ];
    for (name, attribute, without) in lacking {
        match device.attribute(attribute) {
            Ok(0) => rows.add(section, name, format!("no: {without}"), Grade::Note, None),
            Ok(_) => rows.good(section, name, "yes".into()),
            Err(error) => rows.add(section, name, error.to_string(), Grade::Note, None),
        }
    }
}

/// True if a device can use the memory of another.
#[allow(unsafe_code)]
fn has_link(device: &Device, other: &Device) -> bool {
    let mut can = 0;
    // SAFETY: the target is valid for the write.
    let asked = unsafe { device.driver().cuDeviceCanAccessPeer(&mut can, device.raw(), other.raw()) };
    asked.is_ok() && can != 0
}

//! Memory that one process hands to another, or takes back from itself. Each case holds on the software driver and on
//! a GPU. Where a refusal's code is not documented, only that it is one.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_tests::cases;
use gpumem_tests::raw::{Raw, code};
use gpumem_tests::sys::types::*;
use gpumem_tests::sys::{CUresult, Driver, DriverError, DriverKind};
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

const PIECE: usize = 2 << 20;
const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const NONE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

cases! {
    /// Descriptors are supported, for handles and for pools.
    fn attributes(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let handles = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        assert_eq!(gpu.attribute(handles), 1);
    }

    /// A handle that is imported where it was created is the same bytes, and is released by itself.
    fn a_handle_imported_at_home(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let handle = gpu.create(POSIX).unwrap();
        let import = gpu.import(gpu.export(handle).unwrap().as_raw_fd()).unwrap();
        let (here, there) = (gpu.place(handle), gpu.place(import));
        // SAFETY: the addresses are mapped.
        unsafe { driver.cuMemsetD8_v2(here, 7, PIECE).unwrap() };
        assert_eq!(gpu.read(there + 1000, 2).unwrap(), [7; 2]);
        gpu.take_away(here, handle);
        assert_eq!(gpu.read(there, 1).unwrap(), [7]);
        gpu.take_away(there, import);
    }

    /// The memory is there for as long as a descriptor of it.
    fn a_descriptor_keeps_memory(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let handle = gpu.create(POSIX).unwrap();
        let base = gpu.place(handle);
        // SAFETY: the address is mapped.
        unsafe { driver.cuMemsetD8_v2(base, 9, PIECE).unwrap() };
        assert_eq!(gpu.read(base, 1).unwrap(), [9]);
        let descriptor = gpu.export(handle).unwrap();
        gpu.take_away(base, handle);
        let again = gpu.import(descriptor.as_raw_fd()).unwrap();
        let base = gpu.place(again);
        assert_eq!(gpu.read(base + 77, 1).unwrap(), [9]);
        gpu.take_away(base, again);
    }

    /// What a handle was created for is told, and the handle of an address is the one that was mapped there.
    fn properties(driver: &Driver) {
        let gpu = Sharing::new(driver);
        for types in [NONE, POSIX] {
            let handle = gpu.create(types).unwrap();
            let base = gpu.place(handle);
            let (mut properties, mut again) = (CUmemAllocationProp::default(), 0);
            let address = std::ptr::without_provenance_mut(base as usize);
            // SAFETY: locals outlive the calls; the address is mapped.
            unsafe {
                driver.cuMemGetAllocationPropertiesFromHandle(&mut properties, handle).unwrap();
                assert_eq!(properties.requestedHandleTypes, types);
                driver.cuMemRetainAllocationHandle(&mut again, address).unwrap();
                assert_eq!(again, handle);
                driver.cuMemRelease(again).unwrap();
            }
            gpu.take_away(base, handle);
        }
    }

    /// A handle that was not created for it is not exported, and what is no export is not imported.
    fn refusals_of_handles(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let private = gpu.create(NONE).unwrap();
        assert_ne!(code(gpu.export(private).map(drop)), SUCCESS);
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_ne!(code(gpu.import(file.as_raw_fd()).map(drop)), SUCCESS);
        // SAFETY: the handle is live.
        unsafe { driver.cuMemRelease(private).unwrap() };
    }

    /// Another process writes into a handle that it has a descriptor of.
    fn a_handle_in_another_process(driver: &Driver) {
        let gpu = Sharing::new(driver);
        if is_child() {
            let handle = gpu.import(0).unwrap();
            let base = gpu.place(handle);
            assert_eq!(gpu.read(base + 5, 1).unwrap(), [1]);
            // SAFETY: the address is mapped.
            unsafe { driver.cuMemsetD8_v2(base, 2, PIECE / 2).unwrap() };
            assert_eq!(gpu.read(base, 1).unwrap(), [2]);
            return gpu.take_away(base, handle);
        }
        let handle = gpu.create(POSIX).unwrap();
        let base = gpu.place(handle);
        // SAFETY: the address is mapped.
        unsafe { driver.cuMemsetD8_v2(base, 1, PIECE).unwrap() };
        assert_eq!(gpu.read(base, 1).unwrap(), [1]);
        run_child(driver, "a_handle_in_another_process", gpu.export(handle).unwrap(), &[]);
        assert_eq!(gpu.read(base + PIECE as u64 / 2 - 1, 2).unwrap(), [2, 1]);
        gpu.take_away(base, handle);
    }
}

/// Runs a case once more, in a process that has a descriptor as its standard input and bytes in its environment.
fn run_child(driver: &Driver, case: &str, descriptor: impl Into<Stdio>, bytes: &[u8]) {
    let mounted = if driver.kind() == DriverKind::Cuda { "cuda" } else { "sim" };
    let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{mounted}::{case}"), "--nocapture"])
        .env(CHILD, bytes)
        .stdin(descriptor)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("1 passed"), "the other process: {text}");
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

const CHILD: &str = "SHARING_CHILD";

/// Device 0 with its primary context current, and memory of it to share.
struct Sharing(Raw);

impl Deref for Sharing {
    type Target = Raw;

    fn deref(&self) -> &Raw {
        &self.0
    }
}

impl Sharing {
    fn new(driver: &Driver) -> Self {
        Self(Raw::new(driver).unwrap())
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> i32 {
        let mut value = 0;
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuDeviceGetAttribute(&mut value, attribute, self.device).unwrap() };
        value
    }

    fn location(&self) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.device }
    }

    fn create(&self, types: CUmemAllocationHandleType) -> Result<u64, DriverError> {
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: types,
            location: self.location(),
            ..Default::default()
        };
        let mut handle = 0;
        // SAFETY: locals outlive the call.
        unsafe { self.driver.cuMemCreate(&mut handle, PIECE, &properties, 0)? };
        Ok(handle)
    }

    fn export(&self, handle: u64) -> Result<OwnedFd, DriverError> {
        let mut descriptor = -1;
        // SAFETY: a local outlives the call, and the descriptor is the caller's.
        unsafe {
            self.driver.cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0)?;
            Ok(OwnedFd::from_raw_fd(descriptor))
        }
    }

    fn import(&self, descriptor: i32) -> Result<u64, DriverError> {
        let mut handle = 0;
        let shareable = std::ptr::without_provenance_mut(descriptor as usize);
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuMemImportFromShareableHandle(&mut handle, shareable, POSIX)? };
        Ok(handle)
    }

    /// Maps a handle at an address of its own.
    fn place(&self, handle: u64) -> u64 {
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let wish = CUmemAccessDesc { location: self.location(), flags };
        let mut base = 0;
        // SAFETY: locals outlive the calls; the handle is live and the range was just reserved.
        unsafe {
            self.driver.cuMemAddressReserve(&mut base, PIECE, 0, 0, 0).unwrap();
            self.driver.cuMemMap(base, PIECE, 0, handle, 0).unwrap();
            self.driver.cuMemSetAccess(base, PIECE, &wish, 1).unwrap();
        }
        base
    }

    /// Undoes [`Sharing::place`] and releases the handle.
    fn take_away(&self, base: u64, handle: u64) {
        // SAFETY: what was queued for the range has been waited for.
        unsafe {
            self.driver.cuCtxSynchronize().unwrap();
            self.driver.cuMemUnmap(base, PIECE).unwrap();
            self.driver.cuMemAddressFree(base, PIECE).unwrap();
            self.driver.cuMemRelease(handle).unwrap();
        }
    }
}

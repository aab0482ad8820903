//! Memory exported to other instances and processes: tests that need the simulator.

#![cfg(target_os = "linux")]

use super::virtual_memory::{PIECE, device, free_bytes, grant, map, reserve, unmap};
use super::*;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;

fn create(gpu: &Machine, size_bytes: usize, types: CUmemAllocationHandleType) -> Result<u64, DriverError> {
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: types,
        location: device(0),
        ..Default::default()
    };
    let mut handle = 0;
    // SAFETY: locals outlive the call.
    unsafe { gpu.cuMemCreate(&mut handle, size_bytes, &properties, 0)? };
    Ok(handle)
}

fn export(gpu: &Machine, handle: u64) -> Result<OwnedFd, DriverError> {
    let mut descriptor = -1;
    // SAFETY: locals outlive the call, and the descriptor is the caller's.
    unsafe {
        gpu.cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0)?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

fn import(gpu: &Machine, descriptor: i32) -> Result<u64, DriverError> {
    let mut handle = 0;
    let shareable = std::ptr::without_provenance_mut(descriptor as usize);
    // SAFETY: locals outlive the call.
    unsafe { gpu.cuMemImportFromShareableHandle(&mut handle, shareable, POSIX)? };
    Ok(handle)
}

/// Maps a handle at a new address.
fn place(gpu: &Machine, handle: u64) -> u64 {
    let base = reserve(gpu, PIECE);
    map(gpu, base, handle).unwrap();
    grant(gpu, base, PIECE, 0).unwrap();
    base
}

fn release(gpu: &Machine, handle: u64) {
    // SAFETY: handles are checked by the driver under test.
    unsafe { gpu.cuMemRelease(handle).unwrap() };
}

fn attribute(gpu: &Machine, attribute: CUdevice_attribute) -> i32 {
    let mut value = -1;
    // SAFETY: locals outlive the call.
    unsafe { gpu.cuDeviceGetAttribute(&mut value, attribute, 0).unwrap() };
    value
}

#[test]
fn an_import_within_an_instance_is_another_holder_and_counts_once() {
    let gpu = machine(SimConfig::new().memory_bytes(8 << 20));
    let before = free_bytes(&gpu);
    let handle = create(&gpu, PIECE, POSIX).unwrap();
    let descriptor = export(&gpu, handle).unwrap();
    let import = import(&gpu, descriptor.as_raw_fd()).unwrap();
    let (here, there) = (place(&gpu, handle), place(&gpu, import));
    let stream = gpu.stream();
    gpu.fill(stream, here, 7, PIECE);
    assert_eq!(gpu.download(stream, there + 9, 3), [7; 3]);
    assert_eq!(free_bytes(&gpu), before - PIECE);
    unmap(&gpu, here, PIECE);
    release(&gpu, handle);
    assert_eq!(gpu.download(stream, there, 1), [7]);
    assert_eq!(gpu.sim().report().handle_count, 1);
    release(&gpu, import);
    unmap(&gpu, there, PIECE);
    assert_eq!((free_bytes(&gpu), gpu.sim().report().handle_count), (before, 0));
}

#[test]
fn another_instance_has_the_same_bytes_and_keeps_them() {
    let (a, b) = (seeded(1), seeded(2));
    let before = free_bytes(&b);
    let handle = create(&a, PIECE, POSIX).unwrap();
    let here = place(&a, handle);
    let imported = import(&b, export(&a, handle).unwrap().as_raw_fd()).unwrap();
    let there = place(&b, imported);
    let (stream_a, stream_b) = (a.stream(), b.stream());
    a.fill(stream_a, here, 3, PIECE);
    a.sync(stream_a);
    assert_eq!(b.download(stream_b, there + 100, 2), [3; 2]);
    b.fill(stream_b, there, 4, 16);
    b.sync(stream_b);
    assert_eq!(a.download(stream_a, here + 15, 2), [4, 3]);

    // An import can be exported again, and an import into the creator is the original memory.
    let mut properties = CUmemAllocationProp::default();
    // SAFETY: a local outlives the call.
    unsafe { b.cuMemGetAllocationPropertiesFromHandle(&mut properties, imported).unwrap() };
    assert_eq!((properties.requestedHandleTypes, properties.location.id), (POSIX, 0));
    let home = import(&a, export(&b, imported).unwrap().as_raw_fd()).unwrap();
    assert_eq!(home, handle);

    drop(a);
    assert_eq!(b.download(stream_b, there + 15, 2), [4, 3]);
    assert_eq!(free_bytes(&b), before);
    unmap(&b, there, PIECE);
    release(&b, imported);
    assert_eq!((free_bytes(&b), b.sim().report().handle_count), (before, 0));
}

#[test]
fn a_descriptor_keeps_the_memory_of_a_handle_that_is_gone() {
    let gpu = seeded(3);
    let handle = create(&gpu, PIECE, POSIX).unwrap();
    let base = place(&gpu, handle);
    let stream = gpu.stream();
    gpu.fill(stream, base, 5, PIECE);
    gpu.sync(stream);
    let descriptor = export(&gpu, handle).unwrap();
    unmap(&gpu, base, PIECE);
    release(&gpu, handle);
    let again = import(&gpu, descriptor.as_raw_fd()).unwrap();
    assert_eq!(gpu.download(stream, place(&gpu, again) + 1, 1), [5]);
}

#[test]
fn an_import_is_an_alias_to_the_race_detector() {
    for seed in 0..20 {
        let gpu = seeded(seed);
        let handle = create(&gpu, PIECE, POSIX).unwrap();
        let import = import(&gpu, export(&gpu, handle).unwrap().as_raw_fd()).unwrap();
        let (here, there) = (place(&gpu, handle), place(&gpu, import));
        let (a, b) = (gpu.stream(), gpu.stream());
        gpu.fill(a, here, 1, 100);
        gpu.order(a, b);
        gpu.fill(b, there, 2, 100);
        gpu.order(b, a);
        assert!(gpu.sim().report().findings.is_empty());
        gpu.fill(a, here, 3, 100);
        gpu.fill(b, there + 99, 4, 1);
        gpu.sync(a);
        gpu.sync(b);
        let names: Vec<_> = gpu.sim().take_findings().iter().map(gpumem_sim::Finding::name).collect();
        assert_eq!(names, ["unordered use through an alias"], "seed {seed}");
    }
}

#[test]
fn a_file_that_is_no_export_is_refused() {
    let gpu = machine(SimConfig::new().devices(2));
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    for foreign in [-1, i32::MAX, 100_000, file.as_raw_fd()] {
        assert_eq!(code(import(&gpu, foreign)), INVALID_VALUE, "{foreign}");
    }
    let private = create(&gpu, PIECE, CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE).unwrap();
    assert_eq!(code(export(&gpu, private)), INVALID_VALUE);
    assert_eq!(code(create(&gpu, PIECE, FABRIC)), NOT_SUPPORTED);
    let shared = create(&gpu, PIECE, POSIX).unwrap();
    let (mut target, mut handle) = (-1_i32, 0);
    let target = (&raw mut target).cast();
    // SAFETY: locals outlive the calls; handles are checked by the driver under test.
    unsafe {
        assert_eq!(code(gpu.cuMemExportToShareableHandle(target, shared, FABRIC, 0)), NOT_SUPPORTED);
        assert_eq!(code(gpu.cuMemExportToShareableHandle(target, shared, POSIX, 1)), INVALID_VALUE);
        assert_eq!(code(gpu.cuMemExportToShareableHandle(null_mut(), shared, POSIX, 0)), INVALID_VALUE);
        assert_eq!(code(gpu.cuMemExportToShareableHandle(target, 77, POSIX, 0)), INVALID_VALUE);
        let huge = std::ptr::without_provenance_mut(usize::MAX);
        assert_eq!(code(gpu.cuMemImportFromShareableHandle(&mut handle, huge, POSIX)), INVALID_VALUE);
        release(&gpu, shared);
        assert_eq!(code(gpu.cuMemExportToShareableHandle(target, shared, POSIX, 0)), INVALID_VALUE);
    }
    // Memory of a device that does not exist here.
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: POSIX,
        location: device(1),
        ..Default::default()
    };
    // SAFETY: locals outlive the call.
    unsafe { gpu.cuMemCreate(&mut handle, PIECE, &properties, 0).unwrap() };
    let descriptor = export(&gpu, handle).unwrap();
    let refused = import(&seeded(1), descriptor.as_raw_fd());
    assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn attributes_list_the_supported_handle_types() {
    let gpu = seeded(1);
    use CUdevice_attribute as Attribute;
    assert_eq!(
        attribute(&gpu, Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
        1
    );
    assert_eq!(attribute(&gpu, Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED), 1);
    // An H200 also supports fabric handles: 9.
    assert_eq!(attribute(&gpu, Attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES), 1);
    assert_eq!(attribute(&gpu, Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED), 0);
}

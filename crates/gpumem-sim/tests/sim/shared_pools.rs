//! Pools and their blocks, exported to other instances and back.

#![cfg(target_os = "linux")]

use super::virtual_memory::free_bytes;
use super::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn pool(gpu: &Machine, types: CUmemAllocationHandleType) -> Result<CUmemoryPool, DriverError> {
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let props = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: types,
        location,
        ..Default::default()
    };
    let mut pool = null_mut();
    // SAFETY: locals outlive the call.
    unsafe { gpu.cuMemPoolCreate(&mut pool, &props)? };
    Ok(pool)
}

fn alloc_from(
    gpu: &Machine,
    pool: CUmemoryPool,
    stream: CUstream,
    size_bytes: usize,
) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: a local outlives the call; handles are checked by the driver under test.
    unsafe { gpu.cuMemAllocFromPoolAsync(&mut address, size_bytes, pool, stream)? };
    Ok(address)
}

fn export(gpu: &Machine, pool: CUmemoryPool) -> Result<OwnedFd, DriverError> {
    let mut descriptor = -1;
    // SAFETY: a local outlives the call, and the descriptor is the caller's.
    unsafe {
        gpu.cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), pool, POSIX, 0)?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

fn import(gpu: &Machine, descriptor: i32) -> Result<CUmemoryPool, DriverError> {
    let mut pool = null_mut();
    let shareable = std::ptr::without_provenance_mut(descriptor as usize);
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuMemPoolImportFromShareableHandle(&mut pool, shareable, POSIX, 0)? };
    Ok(pool)
}

fn export_pointer(gpu: &Machine, address: u64) -> Result<CUmemPoolPtrExportData, DriverError> {
    let mut data = CUmemPoolPtrExportData::default();
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuMemPoolExportPointer(&mut data, address)? };
    Ok(data)
}

fn import_pointer(
    gpu: &Machine,
    pool: CUmemoryPool,
    mut data: CUmemPoolPtrExportData,
) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: locals outlive the call.
    unsafe { gpu.cuMemPoolImportPointer(&mut address, pool, &mut data)? };
    Ok(address)
}

/// A pool, its import in another instance or the same one, a block, and the import of the block.
fn shared(a: &Machine, b: &Machine, stream: CUstream) -> (CUmemoryPool, CUmemoryPool, u64, u64) {
    let exporter = pool(a, POSIX).unwrap();
    let importer = import(b, export(a, exporter).unwrap().as_raw_fd()).unwrap();
    let block = alloc_from(a, exporter, stream, 1000).unwrap();
    let alias = import_pointer(b, importer, export_pointer(a, block).unwrap()).unwrap();
    (exporter, importer, block, alias)
}

fn destroy(gpu: &Machine, pool: CUmemoryPool) {
    // SAFETY: handles are checked by the driver under test.
    unsafe { gpu.cuMemPoolDestroy(pool).unwrap() };
}

fn names(gpu: &Machine) -> Vec<&'static str> {
    gpu.sim().take_findings().iter().map(gpumem_sim::Finding::name).collect()
}

#[test]
fn an_import_at_home_is_another_address_for_the_same_bytes() {
    for seed in 0..20 {
        let gpu = seeded(seed);
        let (a, b) = (gpu.stream(), gpu.stream());
        let (exporter, importer, block, alias) = shared(&gpu, &gpu, a);
        assert_ne!(block, alias);
        gpu.fill(a, block, 7, 1000);
        gpu.order(a, b);
        assert_eq!(gpu.download(b, alias + 998, 2), [7; 2]);
        gpu.fill(b, alias, 8, 10);
        gpu.free_on(b, alias);
        gpu.order(b, a);
        assert_eq!(gpu.download(a, block + 9, 2), [8, 7]);
        gpu.free_on(a, block);
        gpu.sync(a);
        destroy(&gpu, importer);
        destroy(&gpu, exporter);
        let report = gpu.sim().report();
        assert!(report.silent_findings().is_empty() && report.faults.is_empty(), "seed {seed}: {report}");
    }
}

#[test]
fn another_instance_has_the_same_bytes() {
    let (a, b) = (seeded(1), seeded(2));
    let before = free_bytes(&b);
    let (stream_a, stream_b) = (a.stream(), b.stream());
    let (exporter, importer, block, alias) = shared(&a, &b, stream_a);
    a.fill(stream_a, block, 3, 1000);
    a.sync(stream_a);
    assert_eq!(b.download(stream_b, alias + 999, 1), [3]);
    b.fill(stream_b, alias, 4, 500);
    b.sync(stream_b);
    assert_eq!(a.download(stream_a, block + 499, 2), [4, 3]);
    assert_eq!(free_bytes(&b), before);

    // SAFETY: addresses are checked by the driver under test.
    unsafe { b.cuMemFree_v2(alias).unwrap() };
    assert_eq!(code(b.try_download(stream_b, alias, 1)), INVALID_VALUE);
    a.free_on(stream_a, block);
    a.sync(stream_a);
    destroy(&b, importer);
    destroy(&a, exporter);
    assert_eq!((free_bytes(&a), a.sim().report().allocations.len()), (free_bytes(&b), 0));
}

#[test]
fn blocks_that_come_later_are_imported_through_the_same_pool() {
    let (a, b) = (seeded(3), seeded(4));
    let (stream_a, stream_b) = (a.stream(), b.stream());
    let (exporter, importer, ..) = shared(&a, &b, stream_a);
    for round in 0..20 {
        let block = alloc_from(&a, exporter, stream_a, 1 << (6 + round)).unwrap();
        let alias = import_pointer(&b, importer, export_pointer(&a, block).unwrap()).unwrap();
        a.fill(stream_a, block + (1 << (6 + round)) - 1, round, 1);
        a.sync(stream_a);
        assert_eq!(b.download(stream_b, alias + (1 << (6 + round)) - 1, 1), [round]);
        if round % 2 == 0 {
            b.free_on(stream_b, alias);
            b.sync(stream_b);
            a.free_on(stream_a, block);
        }
    }
}

#[test]
fn an_imported_pool_allocates_nothing() {
    let gpu = seeded(5);
    let stream = gpu.stream();
    let (_, importer, _, alias) = shared(&gpu, &gpu, stream);
    assert_eq!(code(alloc_from(&gpu, importer, stream, 100)), INVALID_VALUE);
    assert_eq!(code(export(&gpu, importer)), INVALID_VALUE);
    assert_eq!(code(export_pointer(&gpu, alias)), INVALID_VALUE);
    // SAFETY: handles are checked by the driver under test.
    unsafe { assert_eq!(code(gpu.cuDeviceSetMemPool(0, importer)), INVALID_VALUE) };
}

#[test]
fn a_file_that_is_no_export_is_refused() {
    let gpu = seeded(6);
    let stream = gpu.stream();
    let (exporter, importer, block, _) = shared(&gpu, &gpu, stream);
    let private = pool(&gpu, CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE).unwrap();
    assert_eq!(code(export(&gpu, private)), INVALID_VALUE);
    assert_eq!(
        code(pool(&gpu, CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC)),
        CUresult::CUDA_ERROR_NOT_SUPPORTED
    );
    assert_eq!(code(import(&gpu, -1)), INVALID_VALUE);
    let own = alloc_from(&gpu, private, stream, 100).unwrap();
    for address in [own, gpu.alloc(100), block + 4, 0, 77] {
        assert_eq!(code(export_pointer(&gpu, address)), INVALID_VALUE, "{address:#x}");
    }
    // Through an invalid pool, a pool that was not imported, or another import; with truncated data; of freed memory.
    let data = export_pointer(&gpu, block).unwrap();
    let other = import(&gpu, export(&gpu, pool(&gpu, POSIX).unwrap()).unwrap().as_raw_fd()).unwrap();
    for wrong in [null_mut(), exporter, private, other] {
        assert_eq!(code(import_pointer(&gpu, wrong, data)), INVALID_VALUE);
    }
    let mut short = data;
    short.reserved[40..].fill(0);
    assert_eq!(code(import_pointer(&gpu, importer, short)), INVALID_VALUE);
    assert_eq!(code(import_pointer(&gpu, importer, CUmemPoolPtrExportData::default())), INVALID_VALUE);
    gpu.free_on(stream, block);
    assert_eq!(code(import_pointer(&gpu, importer, data)), INVALID_VALUE);
    // SAFETY: bad pointers are refused, not followed.
    unsafe {
        assert_eq!(code(gpu.cuMemPoolImportPointer(&mut 0, importer, null_mut())), INVALID_VALUE);
        assert_eq!(code(gpu.cuMemPoolExportPointer(null_mut(), own)), INVALID_VALUE);
    }
}

#[test]
fn an_import_that_outlives_its_block_faults_and_breaks_nothing() {
    let gpu = seeded(7);
    let (a, b) = (gpu.stream(), gpu.stream());
    let (exporter, importer, block, alias) = shared(&gpu, &gpu, a);
    gpu.free_on(a, block);
    gpu.sync(a);
    destroy(&gpu, exporter);
    gpu.fill(b, alias, 1, 1000);
    assert_eq!(code(gpu.try_sync(b)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(names(&gpu), ["use after free"]);
    // SAFETY: handles are checked by the driver under test.
    unsafe {
        gpu.cuMemPoolDestroy(importer).unwrap();
        gpu.cuDevicePrimaryCtxRelease_v2(0).unwrap();
    }
    assert_eq!(gpu.sim().report().allocations, []);
}

#[test]
fn unordered_uses_and_frees_of_an_import_are_found() {
    for seed in 0..20 {
        let gpu = seeded(seed);
        let (a, b, c) = (gpu.stream(), gpu.stream(), gpu.stream());
        let (_, importer, block, alias) = shared(&gpu, &gpu, a);
        gpu.order(a, b);
        gpu.order(a, c);
        gpu.fill(a, block, 1, 1000);
        gpu.fill(b, alias + 999, 2, 1);
        [a, b].into_iter().for_each(|stream| gpu.sync(stream));
        assert_eq!(names(&gpu), ["unordered use through an alias"], "seed {seed}");

        // The free of an import waits only for uses of the import.
        gpu.fill(a, block, 3, 1000);
        gpu.free_on(c, alias);
        [a, c].into_iter().for_each(|stream| gpu.sync(stream));
        assert!(names(&gpu).is_empty(), "seed {seed}");

        let alias = import_pointer(&gpu, importer, export_pointer(&gpu, block).unwrap()).unwrap();
        gpu.fill(b, alias, 4, 10);
        gpu.free_on(c, alias);
        let _ = [b, c].map(|stream| gpu.try_sync(stream));
        let found = names(&gpu);
        assert!(
            found == ["free not ordered after a use"] || found == ["use after free"],
            "seed {seed}: {found:?}"
        );
    }
}

#[test]
fn the_memory_is_released_to_the_device_and_reused() {
    let gpu = machine(SimConfig::new().memory_bytes(128 << 20));
    let before = free_bytes(&gpu);
    let stream = gpu.stream();
    let exporter = pool(&gpu, POSIX).unwrap();
    for round in 0..4 {
        let block = alloc_from(&gpu, exporter, stream, 100 << 20).unwrap();
        assert_eq!(code(alloc_from(&gpu, exporter, stream, 100 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        gpu.fill(stream, block, round, 100 << 20);
        assert_eq!(gpu.download(stream, block + (100 << 20) - 1, 1), [round]);
        gpu.free_on(stream, block);
        gpu.sync(stream);
        assert_eq!(free_bytes(&gpu), before);
    }
}

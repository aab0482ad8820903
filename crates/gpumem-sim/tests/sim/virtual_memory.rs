//! Virtual memory management on the simulator: tests that a GPU cannot run.

#![cfg(target_os = "linux")]

use super::*;

pub(super) const PIECE: usize = 2 << 20;

/// Reserves addresses, and maps handles of device 0 side by side from their start.
pub(super) fn mapped(gpu: &Machine, handle_count: usize) -> (u64, Vec<u64>) {
    let base = reserve(gpu, handle_count * PIECE);
    let handles: Vec<u64> = (0..handle_count).map(|_| create(gpu, PIECE).unwrap()).collect();
    for (index, &handle) in handles.iter().enumerate() {
        map(gpu, base + (index * PIECE) as u64, handle).unwrap();
    }
    grant(gpu, base, handle_count * PIECE, 0).unwrap();
    (base, handles)
}

/// Maps one handle of device 0 at two addresses.
pub(super) fn aliased(gpu: &Machine) -> (u64, u64) {
    let (base, handles) = mapped(gpu, 1);
    let alias = reserve(gpu, PIECE);
    map(gpu, alias, handles[0]).unwrap();
    grant(gpu, alias, PIECE, 0).unwrap();
    (base, alias)
}

pub(super) fn reserve(gpu: &Machine, size_bytes: usize) -> u64 {
    let mut base = 0;
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuMemAddressReserve(&mut base, size_bytes, 0, 0, 0).unwrap() };
    base
}

pub(super) fn create(gpu: &Machine, size_bytes: usize) -> Result<u64, DriverError> {
    let mut handle = 0;
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: device(0),
        ..Default::default()
    };
    // SAFETY: locals outlive the call.
    unsafe { gpu.cuMemCreate(&mut handle, size_bytes, &properties, 0)? };
    Ok(handle)
}

pub(super) fn map(gpu: &Machine, base: u64, handle: u64) -> Result<(), DriverError> {
    // SAFETY: addresses and handles are checked by the driver under test.
    unsafe { gpu.cuMemMap(base, PIECE, 0, handle, 0) }
}

pub(super) fn unmap(gpu: &Machine, base: u64, size_bytes: usize) {
    // SAFETY: addresses are checked by the driver under test.
    unsafe { gpu.cuMemUnmap(base, size_bytes).unwrap() };
}

pub(super) fn grant(gpu: &Machine, base: u64, size_bytes: usize, id: i32) -> Result<(), DriverError> {
    set_access(gpu, base, size_bytes, id, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
}

pub(super) fn set_access(
    gpu: &Machine,
    base: u64,
    size_bytes: usize,
    id: i32,
    flags: CUmemAccess_flags,
) -> Result<(), DriverError> {
    let wish = CUmemAccessDesc { location: device(id), flags };
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuMemSetAccess(base, size_bytes, &wish, 1) }
}

pub(super) fn device(id: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id }
}

pub(super) fn free_bytes(gpu: &Machine) -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: locals outlive the call.
    unsafe { gpu.cuMemGetInfo_v2(&mut free, &mut total).unwrap() };
    free
}

/// Checks that a change of an address with queued work is found, under some seeds, when the work runs.
fn faults_when_work_runs(disturb: impl Fn(&Machine, CUdeviceptr), found: &str) {
    let mut lost = 0;
    for seed in 0..50 {
        let gpu = seeded(seed);
        let (base, _) = mapped(&gpu, 2);
        let stream = gpu.stream();
        gpu.fill(stream, base, 1, 2 * PIECE);
        disturb(&gpu, base);
        if code(gpu.try_sync(stream)) != CUresult::CUDA_SUCCESS {
            lost += 1;
            let report = gpu.sim().report();
            assert!(report.faults[0].contains(found), "{report}");
        }
    }
    assert!((1..50).contains(&lost), "{lost}");
}

#[test]
fn work_queued_for_an_address_that_is_unmapped_faults_when_it_runs() {
    faults_when_work_runs(|gpu, base| unmap(gpu, base + PIECE as u64, PIECE), "memset writes 4194304 bytes");
}

#[test]
fn access_taken_away_under_queued_work_is_named() {
    let none = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    let take_away = |gpu: &Machine, base| set_access(gpu, base, PIECE, 0, none).unwrap();
    faults_when_work_runs(take_away, "has no access to all of it");
}

#[test]
fn a_mapping_keeps_a_released_handle_and_its_bytes() {
    let gpu = machine(SimConfig::new().memory_bytes(8 << 20));
    let before = free_bytes(&gpu);
    let (base, handles) = mapped(&gpu, 1);
    let stream = gpu.stream();
    gpu.fill(stream, base, 9, PIECE);
    // SAFETY: addresses and handles are checked by the driver under test.
    unsafe {
        gpu.cuMemRelease(handles[0]).unwrap();
        assert_eq!(code(gpu.cuMemRelease(handles[0])), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(code(map(&gpu, base, handles[0])), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    assert_eq!(free_bytes(&gpu), before - PIECE);
    assert_eq!(gpu.download(stream, base + 5, 3), [9; 3]);
    let report = gpu.sim().report();
    assert_eq!((report.handle_count, report.reservation_count, report.allocations.len()), (0, 1, 1));
    unmap(&gpu, base, PIECE);
    assert_eq!(free_bytes(&gpu), before);
    // SAFETY: nothing is mapped there.
    unsafe { gpu.cuMemAddressFree(base, PIECE).unwrap() };
    assert_eq!(gpu.sim().report().reservation_count, 0);
}

#[test]
fn the_device_is_full_for_every_kind_of_memory_alike() {
    let gpu = machine(SimConfig::new().memory_bytes(8 << 20));
    let handle = create(&gpu, 3 * PIECE).unwrap();
    assert_eq!(code(create(&gpu, 2 * PIECE)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(code(gpu.try_alloc(2 * PIECE)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    gpu.alloc(PIECE);
    assert_eq!(code(create(&gpu, PIECE)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    // SAFETY: nothing is mapped there.
    unsafe { gpu.cuMemRelease(handle).unwrap() };
    create(&gpu, 3 * PIECE).unwrap();
}

#[test]
fn a_terabyte_of_addresses_and_a_large_handle_cost_what_is_touched() {
    let gpu = machine(SimConfig::new().memory_bytes(141 << 30));
    let base = reserve(&gpu, 4 << 40);
    let handle = create(&gpu, 128 << 30).unwrap();
    // SAFETY: addresses and handles are checked by the driver under test.
    unsafe { gpu.cuMemMap(base + (1 << 40), 128 << 30, 0, handle, 0).unwrap() };
    grant(&gpu, base + (1 << 40), 128 << 30, 0).unwrap();
    let stream = gpu.stream();
    gpu.fill(stream, base + (1 << 40) + (100 << 30), 5, 4096);
    assert_eq!(gpu.download(stream, base + (1 << 40) + (100 << 30) + 4095, 1), [5]);
}

#[test]
fn thousands_of_handles_are_one_range() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 30));
    let (base, handles) = mapped(&gpu, 4096);
    let stream = gpu.stream();
    let around = base + (2048 * PIECE) as u64 - 8;
    gpu.upload(stream, around, b"side by side");
    assert_eq!(gpu.download(stream, around, 12), b"side by side");
    unmap(&gpu, base, 4096 * PIECE);
    // SAFETY: handles are checked by the driver under test.
    handles.into_iter().for_each(|handle| unsafe { gpu.cuMemRelease(handle).unwrap() });
}

#[test]
fn aliases_are_the_same_bytes_to_the_race_detector() {
    for seed in 0..50 {
        let gpu = seeded(seed);
        let (base, handles) = mapped(&gpu, 2);
        let alias = reserve(&gpu, PIECE);
        map(&gpu, alias, handles[1]).unwrap();
        grant(&gpu, alias, PIECE, 0).unwrap();
        let (a, b) = (gpu.stream(), gpu.stream());
        gpu.fill(a, base, 1, 2 * PIECE);
        gpu.order(a, b);
        gpu.fill(b, alias, 2, 16);
        gpu.sync(b);
        assert!(gpu.sim().report().findings.is_empty());
        gpu.fill(a, base + PIECE as u64 - 8, 3, 16);
        gpu.sync(a);
        assert!(gpu.sim().report().findings.is_empty());
        gpu.fill(b, alias + 16, 4, 16);
        gpu.fill(a, base + PIECE as u64, 5, 24);
        gpu.sync(a);
        gpu.sync(b);
        let names: Vec<_> = gpu.sim().take_findings().iter().map(gpumem_sim::Finding::name).collect();
        assert_eq!(names, ["unordered use through an alias"], "seed {seed}");
    }
}

#[test]
fn a_mapping_that_goes_while_it_may_be_in_use_is_found() {
    for seed in 0..50 {
        let gpu = seeded(seed);
        let (base, _) = mapped(&gpu, 1);
        let stream = gpu.stream();
        gpu.fill(stream, base, 1, 16);
        unmap(&gpu, base, PIECE);
        let _ = gpu.try_sync(stream);
        let names: Vec<_> = gpu.sim().take_findings().iter().map(gpumem_sim::Finding::name).collect();
        assert!(
            names == ["unmapping not ordered after a use"] || names == ["use after unmap"],
            "seed {seed}: {names:?}"
        );
    }
}

//! Handles of plain memory and events for other processes; other instances stand in for the processes.

#![cfg(target_os = "linux")]

use super::virtual_memory::free_bytes;
use super::*;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;
const INTERPROCESS: u32 = 4 | 2;

fn export(gpu: &Machine, address: u64) -> Result<CUipcMemHandle, DriverError> {
    let mut handle = CUipcMemHandle::default();
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuIpcGetMemHandle(&mut handle, address)? };
    Ok(handle)
}

fn open(gpu: &Machine, handle: CUipcMemHandle) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuIpcOpenMemHandle_v2(&mut address, handle, 1)? };
    Ok(address)
}

fn close(gpu: &Machine, address: u64) -> Result<(), DriverError> {
    // SAFETY: addresses are checked by the driver under test.
    unsafe { gpu.cuIpcCloseMemHandle(address) }
}

fn event(gpu: &Machine, flags: u32) -> CUevent {
    let mut event = null_mut();
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuEventCreate(&mut event, flags).unwrap() };
    event
}

fn export_event(gpu: &Machine, event: CUevent) -> Result<CUipcEventHandle, DriverError> {
    let mut handle = CUipcEventHandle::default();
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuIpcGetEventHandle(&mut handle, event)? };
    Ok(handle)
}

fn open_event(gpu: &Machine, handle: CUipcEventHandle) -> Result<CUevent, DriverError> {
    let mut event = null_mut();
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuIpcOpenEventHandle(&mut event, handle)? };
    Ok(event)
}

#[test]
fn another_instance_opens_memory_with_what_is_in_it() {
    let (a, b) = (seeded(1), seeded(2));
    let before = free_bytes(&b);
    let (stream_a, stream_b) = (a.stream(), b.stream());
    for size_bytes in [1000, 5 << 20] {
        let neighbour = a.alloc(1000);
        let memory = a.alloc(size_bytes);
        a.fill(stream_a, neighbour, 9, 1000);
        a.fill(stream_a, memory, 1, size_bytes);
        a.sync(stream_a);
        let opened = open(&b, export(&a, memory).unwrap()).unwrap();
        assert_eq!(b.download(stream_b, opened, size_bytes), vec![1; size_bytes]);
        b.fill(stream_b, opened + 10, 2, 10);
        b.sync(stream_b);
        assert_eq!(a.download(stream_a, memory + 9, 12), [[1].as_slice(), &[2; 10], &[1]].concat());
        assert_eq!(a.download(stream_a, neighbour, 1000), [9; 1000]);
        assert_eq!(free_bytes(&b), before);

        // One mapping for each context, with a reference count.
        assert_eq!(open(&b, export(&a, memory).unwrap()).unwrap(), opened);
        close(&b, opened).unwrap();
        assert_eq!(b.download(stream_b, opened + 19, 2), [2, 1]);
        close(&b, opened).unwrap();
        assert_eq!(code(b.try_download(stream_b, opened, 1)), INVALID_VALUE);
        assert_eq!(code(close(&b, opened)), INVALID_VALUE);
    }
    assert_eq!(b.sim().report().allocations, []);
}

#[test]
fn closing_waits_and_a_context_closes_what_it_leaves() {
    let (a, b) = (seeded(3), seeded(4));
    let memory = a.alloc(4 << 20);
    let opened = open(&b, export(&a, memory).unwrap()).unwrap();
    let stream = b.stream();
    b.fill(stream, opened, 5, 4 << 20);
    close(&b, opened).unwrap();
    assert_eq!(a.download(a.stream(), memory + 77, 1), [5]);
    open(&b, export(&a, memory).unwrap()).unwrap();
    // SAFETY: handles are checked by the driver under test.
    unsafe { b.cuDevicePrimaryCtxRelease_v2(0).unwrap() };
    assert_eq!(b.sim().report().allocations, []);
}

#[test]
fn memory_that_was_handed_out_is_not_kept_for_another_use() {
    let (a, b) = (seeded(5), seeded(6));
    let memory = a.alloc(4 << 20);
    let opened = open(&b, export(&a, memory).unwrap()).unwrap();
    // SAFETY: addresses are checked by the driver under test.
    unsafe { a.cuMemFree_v2(memory).unwrap() };
    let (stream_a, stream_b) = (a.stream(), b.stream());
    let next = a.alloc(4 << 20);
    a.fill(stream_a, next, 1, 4 << 20);
    b.fill(stream_b, opened, 2, 4 << 20);
    b.sync(stream_b);
    assert_eq!(a.download(stream_a, next, 1), [1]);
}

#[test]
fn handles_of_memory_that_are_none() {
    let (a, b) = (machine(SimConfig::new().devices(2)), seeded(8));
    let stream = a.stream();
    for address in [a.alloc_on(stream, 100), a.pinned(100).as_ptr() as u64, 77, 0] {
        assert_eq!(code(export(&a, address)), INVALID_VALUE, "{address:#x}");
    }
    let memory = a.alloc(100);
    let handle = export(&a, memory).unwrap();
    assert_eq!(code(open(&a, handle)), INVALID_CONTEXT);
    let mut short = handle;
    short.reserved[32..].fill(0);
    assert_eq!(code(open(&b, short)), INVALID_HANDLE);
    assert_eq!(code(open(&b, CUipcMemHandle::default())), INVALID_HANDLE);
    assert_eq!(code(close(&b, memory)), INVALID_VALUE);
    // SAFETY: bad pointers are refused, not followed.
    unsafe {
        assert_eq!(code(b.cuIpcOpenMemHandle_v2(&mut 0, handle, 0)), INVALID_VALUE);
        assert_eq!(code(b.cuIpcOpenMemHandle_v2(null_mut(), handle, 1)), INVALID_VALUE);
        assert_eq!(code(a.cuIpcGetMemHandle(null_mut(), memory)), INVALID_VALUE);
        let opened = open(&b, handle).unwrap();
        assert_eq!(code(b.cuMemFree_v2(opened)), INVALID_VALUE);
        close(&b, opened).unwrap();
        // The whole chunk is freed with its only allocation.
        a.cuMemFree_v2(memory).unwrap();
    }
    assert_eq!(code(open(&b, handle)), INVALID_HANDLE);
}

#[test]
fn work_before_a_shared_event_has_run_when_its_recording_returns() {
    for seed in 0..50 {
        let (a, b) = (seeded(seed), seeded(seed + 100));
        let memory = a.alloc(1000);
        let opened = open(&b, export(&a, memory).unwrap()).unwrap();
        let done = event(&a, INTERPROCESS);
        let seen = open_event(&b, export_event(&a, done).unwrap()).unwrap();
        let (stream_a, stream_b) = (a.stream(), b.stream());
        a.fill(stream_a, memory, 6, 1000);
        // SAFETY: handles are checked by the driver under test.
        unsafe {
            a.cuEventRecord(done, stream_a).unwrap();
            b.cuStreamWaitEvent(stream_b, seen, 0).unwrap();
        }
        assert_eq!(b.download(stream_b, opened + 999, 1), [6], "seed {seed}");
        // And in the other direction.
        b.fill(stream_b, opened, 7, 1000);
        // SAFETY: handles are checked by the driver under test.
        unsafe {
            b.cuEventRecord(seen, stream_b).unwrap();
            a.cuEventQuery(done).unwrap();
        }
        assert_eq!(a.download(stream_a, memory, 1), [7], "seed {seed}");
    }
}

#[test]
fn a_recording_that_was_pending_is_done_when_the_event_is_exported() {
    for seed in 0..50 {
        let gpu = seeded(seed);
        let (memory, host) = (gpu.alloc(100), gpu.pinned(100));
        let (stream, done) = (gpu.stream(), event(&gpu, INTERPROCESS));
        gpu.fill(stream, memory, 3, 100);
        gpu.download_to(stream, host, memory);
        // SAFETY: handles are checked by the driver under test.
        unsafe { gpu.cuEventRecord(done, stream).unwrap() };
        export_event(&gpu, done).unwrap();
        assert_eq!(bytes_of(host), [3; 100], "seed {seed}");
    }
}

#[test]
fn handles_of_events_that_are_none() {
    let (a, b) = (seeded(1), seeded(2));
    assert_eq!(code(export_event(&a, event(&a, 2))), INVALID_VALUE);
    assert_eq!(code(export_event(&a, null_mut())), INVALID_HANDLE);
    let handle = export_event(&a, event(&a, INTERPROCESS)).unwrap();
    assert_eq!(code(open_event(&a, handle)), INVALID_CONTEXT);
    assert_eq!(code(open_event(&b, CUipcEventHandle::default())), INVALID_HANDLE);
    let mut changed = handle;
    changed.reserved[20] ^= 1;
    assert_eq!(code(open_event(&b, changed)), INVALID_HANDLE);
    // SAFETY: locals outlive the call.
    let timed = unsafe { a.cuEventCreate(&mut null_mut(), 4) };
    assert_eq!(code(timed), INVALID_VALUE);
}

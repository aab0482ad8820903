//! Plain memory and events, exported by IPC handle.

use crate::sharing::child::{child_bytes, is_child, run_child};
use crate::sharing::fixture::{PIECE, SUCCESS, Sharing};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::code;
use gpumem_tests::sys::CUresult;
use gpumem_tests::sys::types::*;
use std::ffi::c_char;
use std::process::Stdio;
use std::ptr::null_mut;

cases! {
    /// Only other processes can open a handle of plain memory: the creator gets the error for a wrong context.
    fn memory_handles_at_home(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let memory = gpu.alloc(PIECE).unwrap();
        let (mut handle, mut opened) = (CUipcMemHandle::default(), 0);
        // SAFETY: locals outlive the calls; the memory is freed once.
        unsafe {
            driver.cuIpcGetMemHandle(&mut handle, memory).unwrap();
            let refused = driver.cuIpcOpenMemHandle_v2(&mut opened, handle, LAZY_PEERS);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_CONTEXT);
            driver.cuMemFree_v2(memory).unwrap();
        }
    }

    /// Only other processes can open a handle of an event.
    fn event_handles_at_home(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let (event, mut opened) = (gpu.interprocess_event(), null_mut());
        let mut handle = CUipcEventHandle::default();
        // SAFETY: locals outlive the calls.
        unsafe {
            driver.cuIpcGetEventHandle(&mut handle, event).unwrap();
            let refused = driver.cuIpcOpenEventHandle(&mut opened, handle);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_CONTEXT);
            driver.cuEventDestroy_v2(event).unwrap();
        }
    }

    /// Memory of a pool, and events created without the IPC flag, have no IPC handles; an event with the flag has no timing.
    fn refusals_of_handles_for_processes(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let (stream, event) = (gpu.stream(), gpu.event().unwrap());
        // SAFETY: the block is live until it is freed; the stream and locals outlive the calls.
        unsafe {
            let block = gpu.alloc_async(PIECE, stream).unwrap();
            let of_pool = driver.cuIpcGetMemHandle(&mut CUipcMemHandle::default(), block);
            assert_eq!(code(of_pool), CUresult::CUDA_ERROR_INVALID_VALUE);
            let of_event = driver.cuIpcGetEventHandle(&mut CUipcEventHandle::default(), event);
            assert_ne!(code(of_event), SUCCESS);
            let timed = driver.cuEventCreate(&mut null_mut(), CUevent_flags::CU_EVENT_INTERPROCESS.0);
            assert_eq!(code(timed), CUresult::CUDA_ERROR_INVALID_VALUE);
            let nobody = driver.cuIpcOpenMemHandle_v2(&mut 0, CUipcMemHandle::default(), LAZY_PEERS);
            assert_ne!(code(nobody), SUCCESS);
            driver.cuMemFreeAsync(block, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuEventDestroy_v2(event).unwrap();
        }
    }

    /// Another process opens plain memory and writes into it.
    fn plain_memory_in_another_process(driver: &Driver) {
        let gpu = Sharing::new(driver);
        if is_child() {
            let handle = CUipcMemHandle { reserved: child_bytes().map(|byte| byte as c_char) };
            let (mut memory, mut again) = (0, 0);
            // SAFETY: locals outlive the calls; the memory is open while it is used.
            unsafe {
                driver.cuIpcOpenMemHandle_v2(&mut memory, handle, LAZY_PEERS).unwrap();
                driver.cuIpcOpenMemHandle_v2(&mut again, handle, LAZY_PEERS).unwrap();
                assert_eq!(memory, again);
                driver.cuIpcCloseMemHandle(again).unwrap();
                assert_eq!(gpu.read(memory + 5, 1).unwrap(), [1]);
                driver.cuMemsetD8_v2(memory, 2, PIECE / 2).unwrap();
                driver.cuCtxSynchronize().unwrap();
                driver.cuIpcCloseMemHandle(memory).unwrap();
            }
            return;
        }
        let memory = gpu.alloc(PIECE).unwrap();
        let mut handle = CUipcMemHandle::default();
        // SAFETY: a local outlives the call; the other process has ended before the memory is freed.
        unsafe {
            driver.cuMemsetD8_v2(memory, 1, PIECE).unwrap();
            driver.cuCtxSynchronize().unwrap();
            driver.cuIpcGetMemHandle(&mut handle, memory).unwrap();
            let bytes = handle.reserved.map(|byte| byte as u8);
            run_child(driver, module_path!(), "plain_memory_in_another_process", Stdio::null(), &bytes);
            assert_eq!(gpu.read(memory + PIECE as u64 / 2 - 1, 2).unwrap(), [2, 1]);
            driver.cuMemFree_v2(memory).unwrap();
        }
    }

    /// Another process waits for an event, on the host and on a stream, and records it.
    fn an_event_in_another_process(driver: &Driver) {
        let (gpu, stream) = Sharing::with_stream(driver);
        if is_child() {
            let handle = CUipcEventHandle { reserved: child_bytes().map(|byte| byte as c_char) };
            let mut event = null_mut();
            // SAFETY: a local outlives the call; stream and event are live.
            unsafe {
                driver.cuIpcOpenEventHandle(&mut event, handle).unwrap();
                driver.cuEventSynchronize(event).unwrap();
                driver.cuStreamWaitEvent(stream, event, 0).unwrap();
                driver.cuEventRecord(event, stream).unwrap();
                driver.cuStreamSynchronize(stream).unwrap();
                driver.cuEventQuery(event).unwrap();
                driver.cuEventDestroy_v2(event).unwrap();
            }
            return;
        }
        let (event, memory) = (gpu.interprocess_event(), gpu.alloc(PIECE).unwrap());
        let mut handle = CUipcEventHandle::default();
        // SAFETY: a local outlives the call; stream, event and memory are live.
        unsafe {
            driver.cuIpcGetEventHandle(&mut handle, event).unwrap();
            driver.cuMemsetD8Async(memory, 1, PIECE, stream).unwrap();
            driver.cuEventRecord(event, stream).unwrap();
            let bytes = handle.reserved.map(|byte| byte as u8);
            run_child(driver, module_path!(), "an_event_in_another_process", Stdio::null(), &bytes);
            driver.cuEventSynchronize(event).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuEventDestroy_v2(event).unwrap();
            driver.cuMemFree_v2(memory).unwrap();
        }
    }
}

pub(crate) const LAZY_PEERS: u32 = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;

//! Pools, plain memory and events that processes share.

use crate::backing::pages;
use crate::base::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, check_place, put, take};
use crate::entry::entries;
use crate::entry::event::run_if_shared;
use crate::entry::virtual_memory::{check_shareable, descriptor};
use core::ffi::{c_char, c_uint, c_ulonglong, c_void};
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUdeviceptr, CUevent, CUipcEventHandle, CUipcMem_flags, CUipcMemHandle, CUmemAllocationHandleType,
    CUmemPoolPtrExportData, CUmemoryPool, CUresult,
};

entries! {
    fn cuMemPoolExportToShareableHandle(
        call,
        target: Target<c_void>,
        pool: CUmemoryPool,
        handle_type: CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        check_shareable(handle_type)?;
        check_place(target)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a file descriptor, the only type of handle, is an `int`.
        put(unsafe { target.cast::<i32>() }, call.pool_export(Handle::from_ptr(pool))?)
    }

    fn cuMemPoolImportFromShareableHandle(
        call,
        target: Target<CUmemoryPool>,
        shareable: *mut c_void,
        handle_type: CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        check_shareable(handle_type)?;
        check_place(target)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        put(target, call.pool_import(descriptor(shareable)?)?.to_ptr())
    }

    fn cuMemPoolExportPointer(call, target: Target<CUmemPoolPtrExportData>, address: CUdeviceptr) {
        put(target, CUmemPoolPtrExportData { reserved: call.pool_export_pointer(address)?.encode() })
    }

    fn cuMemPoolImportPointer(
        call,
        target: Target<CUdeviceptr>,
        pool: CUmemoryPool,
        data: Target<CUmemPoolPtrExportData>,
    ) {
        check_place(target)?;
        put(target, call.pool_import_pointer(Handle::from_ptr(pool), &take(data)?.reserved)?)
    }

    fn cuIpcGetMemHandle(call, target: Target<CUipcMemHandle>, address: CUdeviceptr) {
        check_processes()?;
        check_place(target)?;
        call.context(call.thread)?;
        put(target, CUipcMemHandle { reserved: call.ipc_export(address)?.encode().map(|byte| byte as c_char) })
    }

    fn cuIpcOpenMemHandle_v2(
        call,
        target: Target<CUdeviceptr>,
        handle: CUipcMemHandle,
        flags: c_uint,
    ) {
        check_processes()?;
        let context = call.context(call.thread)?;
        check_place(target)?;
        if flags != CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0 {
            return Err(INVALID_VALUE);
        }
        put(target, call.ipc_open(context, &handle.reserved.map(|byte| byte.to_ne_bytes()[0]))?)
    }

    fn cuIpcCloseMemHandle(call, address: CUdeviceptr) {
        check_processes()?;
        call.context(call.thread)?;
        call.refuse_unsafe()?;
        if let Some(device) = call.ipc_unopen(address)? {
            call.wait_for_device(device)?;
            call.import_close(address);
        }
        Ok(())
    }

    fn cuIpcGetEventHandle(call, target: Target<CUipcEventHandle>, event: CUevent) {
        check_processes()?;
        call.context(call.thread)?;
        let ticket = call.ipc_export_event(Handle::from_ptr(event))?;
        run_if_shared(call, Handle::from_ptr(event))?;
        put(target, CUipcEventHandle { reserved: ticket.encode().map(|byte| byte as c_char) })
    }

    fn cuIpcOpenEventHandle(call, target: Target<CUevent>, handle: CUipcEventHandle) {
        check_processes()?;
        let context = call.context(call.thread)?;
        check_place(target)?;
        put(target, call.ipc_open_event(context, &handle.reserved.map(|byte| byte.to_ne_bytes()[0]))?.to_ptr())
    }
}

/// True if this system lets processes share memory.
fn check_processes() -> Answer<()> {
    if pages::IS_SUPPORTED { Ok(()) } else { Err(NOT_SUPPORTED) }
}

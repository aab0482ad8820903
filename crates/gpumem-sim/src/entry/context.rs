//! Contexts: the primary one of a device, others, and the calling thread's stack.

use crate::base::codes::{INVALID_CONTEXT, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, check_place, put};
use crate::entry::entries;
use crate::stream::{GREATEST_PRIORITY, LEAST_PRIORITY};
use core::ffi::{c_int, c_uint, c_ulonglong};
use core::ptr::null_mut;
use gpumem_sys::Table;
use gpumem_sys::types::{CUcontext, CUctxCreateParams, CUdevice, CUresult};

entries! {
    fn cuDevicePrimaryCtxRetain(call, target: Target<CUcontext>, device: CUdevice) {
        check_place(target)?;
        let device = call.device_index(device)?;
        put(target, call.primary_retain(device)?.to_ptr())
    }

    fn cuDevicePrimaryCtxRelease_v2(call, device: CUdevice) {
        let device = call.device_index(device)?;
        if let Some(context) = call.primary_release(device)? {
            call.wait_until(|machine| machine.is_context_idle(context))?;
            call.context_destroy(context);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(call, device: CUdevice) {
        let device = call.device_index(device)?;
        if let Some(context) = call.devices[device].primary.take() {
            call.devices[device].primary_count = 0;
            call.wait_until(|machine| machine.is_context_idle(context))?;
            call.context_destroy(context);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(call, device: CUdevice, flags: Target<c_uint>, active: Target<c_int>) {
        let device = call.device_index(device)?;
        put(flags, call.devices[device].primary_flags)?;
        put(active, c_int::from(call.devices[device].primary.is_some()))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(call, device: CUdevice, flags: c_uint) {
        let device = call.device_index(device)?;
        call.devices[device].primary_flags = flags;
        Ok(())
    }

    fn cuCtxCreate_v2(call, target: Target<CUcontext>, _flags: c_uint, device: CUdevice) {
        check_place(target)?;
        let device = call.device_index(device)?;
        let context = call.context_create(device, false)?;
        let thread = call.thread;
        call.push_current(thread, context)?;
        put(target, context.to_ptr())
    }

    fn cuCtxCreate_v4(
        call,
        target: Target<CUcontext>,
        _parameters: *mut CUctxCreateParams,
        _flags: c_uint,
        device: CUdevice,
    ) {
        check_place(target)?;
        let device = call.device_index(device)?;
        let context = call.context_create(device, false)?;
        let thread = call.thread;
        call.push_current(thread, context)?;
        put(target, context.to_ptr())
    }

    fn cuCtxDestroy_v2(call, context: CUcontext) {
        let context = Handle::from_ptr(context);
        if call.contexts.get(context).ok_or(INVALID_CONTEXT)?.is_primary {
            return Err(INVALID_CONTEXT);
        }
        call.wait_until(|machine| machine.is_context_idle(context))?;
        call.context_destroy(context);
        Ok(())
    }

    fn cuCtxGetCurrent(call, target: Target<CUcontext>) {
        put(target, call.current_handle(call.thread).map_or(null_mut(), Handle::to_ptr))
    }

    fn cuCtxSetCurrent(call, context: CUcontext) {
        let thread = call.thread;
        call.set_current(thread, (!context.is_null()).then(|| Handle::from_ptr(context)))
    }

    fn cuCtxPushCurrent_v2(call, context: CUcontext) {
        let thread = call.thread;
        call.push_current(thread, Handle::from_ptr(context))
    }

    fn cuCtxPopCurrent_v2(call, target: Target<CUcontext>) {
        let thread = call.thread;
        let popped = call.pop_current(thread)?;
        if target.is_null() { Ok(()) } else { put(target, popped.to_ptr()) }
    }

    fn cuCtxGetDevice(call, target: Target<CUdevice>) {
        let context = call.current_handle(call.thread).ok_or(INVALID_CONTEXT)?;
        put(target, call.contexts.get(context).ok_or(INVALID_CONTEXT)?.device as CUdevice)
    }

    fn cuCtxGetApiVersion(call, context: CUcontext, version: Target<c_uint>) {
        if !context.is_null() {
            call.contexts.get(Handle::from_ptr(context)).ok_or(INVALID_CONTEXT)?;
        }
        put(version, 13_000)
    }

    fn cuCtxGetId(call, context: CUcontext, id: Target<c_ulonglong>) {
        let context = if context.is_null() { call.context(call.thread)? } else { Handle::from_ptr(context) };
        call.contexts.get(context).ok_or(INVALID_CONTEXT)?;
        put(id, context.to_bits())
    }

    fn cuCtxGetStreamPriorityRange(call, least: Target<c_int>, greatest: Target<c_int>) {
        call.context(call.thread)?;
        put(least, LEAST_PRIORITY)?;
        put(greatest, GREATEST_PRIORITY)
    }

    fn cuCtxSynchronize(call) {
        let context = call.context(call.thread)?;
        call.capture_check_context(context)?;
        call.wait_for_context(context)?;
        call.pools_synchronised();
        Ok(())
    }

    fn cuCtxEnablePeerAccess(call, peer: CUcontext, flags: c_uint) {
        let context = call.context(call.thread)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        call.enable_peer(context, Handle::from_ptr(peer))
    }

    fn cuCtxDisablePeerAccess(call, peer: CUcontext) {
        let context = call.context(call.thread)?;
        call.disable_peer(context, Handle::from_ptr(peer))
    }
}

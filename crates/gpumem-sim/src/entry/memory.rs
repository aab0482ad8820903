//! Device and pinned memory, and attributes of addresses.

use crate::base::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, check_place, put, put_at, put_if_wanted, take_at};
use crate::entry::call::Call;
use crate::entry::entries;
use crate::machine::memory::pointer::PointerValue;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::plain::{ALIGNMENT_BYTES, round_up};
use core::ffi::{c_uint, c_void};
use gpumem_sys::Table;
use gpumem_sys::types::{CUdeviceptr, CUpointer_attribute, CUresult, CUstream};

entries! {
    fn cuMemGetInfo_v2(call, free: Target<usize>, total: Target<usize>) {
        let context = call.context(call.thread)?;
        let device = call.context_device(context)?;
        put(free, call.reported_free_bytes(device) as usize)?;
        put(total, call.devices[device].total_bytes as usize)
    }

    fn cuMemAlloc_v2(call, target: Target<CUdeviceptr>, size_bytes: usize) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        call.refuse_unsafe()?;
        put(target, call.alloc(context, size_bytes as u64)?)
    }

    fn cuMemAllocPitch_v2(
        call,
        target: Target<CUdeviceptr>,
        pitch: Target<usize>,
        width_bytes: usize,
        height: usize,
        element_bytes: c_uint,
    ) {
        let context = call.context(call.thread)?;
        call.refuse_unsafe()?;
        check_place(target)?;
        if !matches!(element_bytes, 4 | 8 | 16) {
            return Err(INVALID_VALUE);
        }
        let pitch_bytes = round_up(width_bytes as u64, ALIGNMENT_BYTES)?;
        let size_bytes = pitch_bytes.checked_mul(height as u64).ok_or(OUT_OF_MEMORY)?;
        put(pitch, pitch_bytes as usize)?;
        put(target, call.alloc(context, size_bytes)?)
    }

    fn cuMemFree_v2(call, address: CUdeviceptr) {
        let answer = if address == 0 { Ok(()) } else { free(call, address) };
        call.note_if_refused(address, answer)
    }

    fn cuMemAllocAsync(call, target: Target<CUdeviceptr>, size_bytes: usize, stream: CUstream) {
        check_place(target)?;
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.refuse_outside_capture(stream)?;
        call.make_room(stream)?;
        let pool = call.pool_of_stream(stream)?;
        put(target, call.alloc_async(pool, size_bytes as u64, stream)?)
    }

    fn cuMemFreeAsync(call, address: CUdeviceptr, stream: CUstream) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream));
        let stream = call.note_if_refused(address, stream)?;
        call.refuse_outside_capture(stream)?;
        call.make_room(stream)?;
        let answer = free_on(call, address, stream);
        call.note_if_refused(address, answer)
    }

    fn cuMemHostAlloc(call, target: Target<*mut c_void>, size_bytes: usize, flags: c_uint) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        call.refuse_unsafe()?;
        let base = call.host_alloc(context, size_bytes as u64, flags)?;
        put(target, core::ptr::with_exposed_provenance_mut(base as usize))
    }

    fn cuMemAllocHost_v2(call, target: Target<*mut c_void>, size_bytes: usize) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        call.refuse_unsafe()?;
        let base = call.host_alloc(context, size_bytes as u64, 0)?;
        put(target, core::ptr::with_exposed_provenance_mut(base as usize))
    }

    fn cuMemFreeHost(call, host: *mut c_void) {
        call.context(call.thread)?;
        call.refuse_unsafe()?;
        call.wait_for_all()?;
        call.host_free(host.addr() as u64)
    }

    fn cuMemHostRegister_v2(call, host: *mut c_void, size_bytes: usize, flags: c_uint) {
        let context = call.context(call.thread)?;
        call.refuse_unsafe()?;
        call.host_register(context, host.expose_provenance() as u64, size_bytes as u64, flags)
    }

    fn cuMemHostUnregister(call, host: *mut c_void) {
        call.context(call.thread)?;
        call.refuse_unsafe()?;
        // Runs the work, so that the work finds its memory. The host does not count as synchronised by this call: the driver does
        // not document that unregistering waits.
        call.wait_until(|machine| machine.active.is_empty())?;
        call.host_unregister(host.addr() as u64)
    }

    fn cuMemHostGetDevicePointer_v2(call, target: Target<CUdeviceptr>, host: *mut c_void, flags: c_uint) {
        call.context(call.thread)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        call.host_flags(host.addr() as u64)?;
        put(target, host.addr() as u64)
    }

    fn cuMemHostGetFlags(call, flags: Target<c_uint>, host: *mut c_void) {
        call.context(call.thread)?;
        put(flags, call.host_flags(host.addr() as u64)?)
    }

    fn cuMemGetAddressRange_v2(
        call,
        base: Target<CUdeviceptr>,
        size_bytes: Target<usize>,
        address: CUdeviceptr,
    ) {
        call.context(call.thread)?;
        // The driver treats it as host memory.
        let is_range = |found: &Allocation| !matches!(found.allocated_by, AllocatedBy::PinnedPool(_));
        let found = call.memory.known(address, 1).filter(is_range).ok_or(crate::base::codes::NOT_FOUND)?;
        put_if_wanted(base, found.base)?;
        put_if_wanted(size_bytes, found.size_bytes as usize)
    }

    fn cuPointerGetAttribute(
        call,
        data: *mut c_void,
        attribute: CUpointer_attribute,
        address: CUdeviceptr,
    ) {
        let value = call.pointer_attribute(attribute, address)?;
        // SAFETY: the caller has room for a value of the attribute's type.
        unsafe { put_pointer_value(data, value) }
    }

    fn cuPointerGetAttributes(
        call,
        count: c_uint,
        attributes: *mut CUpointer_attribute,
        data: *mut *mut c_void,
        address: CUdeviceptr,
    ) {
        for index in 0..count as usize {
            // SAFETY: both lists have `count` elements.
            let (attribute, target) =
                unsafe { (take_at(attributes.wrapping_add(index))?, take_at(data.wrapping_add(index))?) };
            let value = call.pointer_attribute_or_zero(attribute, address)?;
            // SAFETY: the caller has room for a value of the attribute's type.
            unsafe { put_pointer_value(target, value)? };
        }
        Ok(())
    }
}

fn free(call: &mut Call<'_>, address: CUdeviceptr) -> Answer<()> {
    call.context(call.thread)?;
    call.refuse_unsafe()?;
    let found = call.device_allocation(address)?;
    if found.allocated_by.is_managed() || found.allocated_by.is_host() {
        call.wait_for_all()?;
    }
    call.wait_for_device(found.device)?;
    call.context(call.thread)?;
    call.free(address)
}

fn free_on(call: &mut Call<'_>, address: CUdeviceptr, stream: Handle) -> Answer<()> {
    if call.is_managed(address) && !call.is_capturing(stream) {
        // The host may also access the address, so it cannot be freed in a stream's order.
        call.device_allocation(address)?;
        call.wait_for_all()?;
        return call.free(address);
    }
    call.free_async(address, stream)
}

/// Writes an attribute in its width.
///
/// # Safety
///
/// The pointer is null or may be written with a value of the attribute's type.
unsafe fn put_pointer_value(data: *mut c_void, value: PointerValue) -> Answer<()> {
    // SAFETY: the caller guarantees room for a value of the attribute's type, which is the type of the value.
    unsafe {
        match value {
            PointerValue::Bool(value) => put_at(data.cast::<u8>(), u8::from(value)),
            PointerValue::Int(value) => put_at(data.cast::<u32>(), value),
            PointerValue::Long(value) => put_at(data.cast::<u64>(), value),
            PointerValue::Unsupported => Err(NOT_SUPPORTED),
        }
    }
}

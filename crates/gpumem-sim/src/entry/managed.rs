//! Managed memory.

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, check_place, put, put_at, take_at};
use crate::entry::call::Call;
use crate::entry::entries;
use crate::memory::managed::Place;
use core::ffi::{c_uint, c_void};
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUdevice, CUdeviceptr, CUmem_advise, CUmem_range_attribute, CUmemLocation, CUresult, CUstream,
};

entries! {
    fn cuMemAllocManaged(call, target: Target<CUdeviceptr>, size_bytes: usize, flags: c_uint) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        call.refuse_unsafe()?;
        put(target, call.managed_alloc(context, size_bytes as u64, flags)?)
    }

    // All devices have concurrent access, so attaching memory to a stream restricts no access.
    fn cuStreamAttachMemAsync(
        call,
        stream: CUstream,
        address: CUdeviceptr,
        size_bytes: usize,
        flags: c_uint,
    ) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.capture_check_outside(stream)?;
        if !matches!(flags, 1 | 2 | 4) {
            return Err(INVALID_VALUE);
        }
        if call.is_managed(address) {
            call.check_managed(address, size_bytes.max(1) as u64)
        } else {
            Err(INVALID_VALUE)
        }
    }

    fn cuMemPrefetchAsync(
        call,
        address: CUdeviceptr,
        size_bytes: usize,
        device: CUdevice,
        stream: CUstream,
    ) {
        let to = call.place_of_device(device)?;
        prefetch(call, address, size_bytes, to, stream)
    }

    fn cuMemPrefetchAsync_v2(
        call,
        address: CUdeviceptr,
        size_bytes: usize,
        location: CUmemLocation,
        flags: c_uint,
        stream: CUstream,
    ) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let to = call.place(&location)?;
        prefetch(call, address, size_bytes, to, stream)
    }

    fn cuMemAdvise(
        call,
        address: CUdeviceptr,
        size_bytes: usize,
        advice: CUmem_advise,
        device: CUdevice,
    ) {
        call.managed_advise((address, size_bytes as u64), advice, || call.place_of_device(device))
    }

    fn cuMemAdvise_v2(
        call,
        address: CUdeviceptr,
        size_bytes: usize,
        advice: CUmem_advise,
        location: CUmemLocation,
    ) {
        call.managed_advise((address, size_bytes as u64), advice, || call.place(&location))
    }

    fn cuMemRangeGetAttribute(
        call,
        data: *mut c_void,
        data_bytes: usize,
        attribute: CUmem_range_attribute,
        address: CUdeviceptr,
        size_bytes: usize,
    ) {
        let found = call.managed_attribute(attribute, address, size_bytes as u64, data_bytes)?;
        // SAFETY: the caller has room for `data_bytes`, and there are no more.
        unsafe { put_all(data, &found) }
    }

    fn cuMemRangeGetAttributes(
        call,
        data: *mut *mut c_void,
        data_bytes: *mut usize,
        attributes: *mut CUmem_range_attribute,
        count: usize,
        address: CUdeviceptr,
        size_bytes: usize,
    ) {
        for index in 0..count {
            // SAFETY: each of the three lists has `count` elements.
            let (attribute, target, room_bytes) = unsafe {
                (
                    take_at(attributes.wrapping_add(index))?,
                    take_at(data.wrapping_add(index))?,
                    take_at(data_bytes.wrapping_add(index))?,
                )
            };
            let found = call.managed_attribute(attribute, address, size_bytes as u64, room_bytes)?;
            // SAFETY: the caller has room for `room_bytes`, and there are no more.
            unsafe { put_all(target, &found)? };
        }
        Ok(())
    }
}

fn prefetch(
    call: &mut Call<'_>,
    address: CUdeviceptr,
    size_bytes: usize,
    to: Place,
    stream: CUstream,
) -> Answer<()> {
    let thread = call.thread;
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    call.make_room(stream)?;
    call.managed_prefetch((address, size_bytes as u64), to, stream)
}

/// Writes several numbers.
///
/// # Safety
///
/// The pointer is null, or that many numbers may be written to it.
unsafe fn put_all(data: *mut c_void, values: &[i32]) -> Answer<()> {
    let data = data.cast::<i32>();
    for (index, value) in values.iter().enumerate() {
        let target = if data.is_null() { data } else { data.wrapping_add(index) };
        // SAFETY: null, or within the room that the caller guarantees.
        unsafe { put_at(target, *value)? };
    }
    Ok(())
}

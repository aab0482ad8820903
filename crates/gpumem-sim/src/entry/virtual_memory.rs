//! Virtual memory management.

use crate::backing::pages;
use crate::base::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::entry::argument::{Source, Target, check_place, put, take, take_at};
use crate::entry::entries;
use crate::memory::virtual_memory::GRANULARITY_BYTES;
use core::ffi::{c_ulonglong, c_void};
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation, CUresult,
};

entries! {
    fn cuMemGetAllocationGranularity(
        call,
        granularity_bytes: Target<usize>,
        properties: Source<CUmemAllocationProp>,
        option: CUmemAllocationGranularity_flags,
    ) {
        call.check_properties(&take(properties)?)?;
        match option {
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM
            | CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED => {
                put(granularity_bytes, GRANULARITY_BYTES as usize)
            }
            _ => Err(INVALID_VALUE),
        }
    }

    // The address is only a hint: the simulator chooses addresses.
    fn cuMemAddressReserve(
        call,
        target: Target<CUdeviceptr>,
        size_bytes: usize,
        alignment_bytes: usize,
        _hint: CUdeviceptr,
        flags: c_ulonglong,
    ) {
        if !pages::IS_SUPPORTED {
            return Err(NOT_SUPPORTED);
        }
        check_place(target)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        put(target, call.address_reserve(size_bytes as u64, alignment_bytes as u64)?)
    }

    fn cuMemAddressFree(call, base: CUdeviceptr, size_bytes: usize) {
        call.address_free(base, size_bytes as u64)
    }

    fn cuMemCreate(
        call,
        target: Target<CUmemGenericAllocationHandle>,
        size_bytes: usize,
        properties: Source<CUmemAllocationProp>,
        flags: c_ulonglong,
    ) {
        check_place(target)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        put(target, call.physical_create(size_bytes as u64, &take(properties)?)?.to_bits())
    }

    fn cuMemRelease(call, handle: CUmemGenericAllocationHandle) {
        call.physical_release(Handle::from_bits(handle))
    }

    fn cuMemRetainAllocationHandle(
        call,
        target: Target<CUmemGenericAllocationHandle>,
        address: *mut c_void,
    ) {
        check_place(target)?;
        put(target, call.physical_retain(address.addr() as u64)?.to_bits())
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        call,
        target: Target<CUmemAllocationProp>,
        handle: CUmemGenericAllocationHandle,
    ) {
        put(target, call.physical_properties(Handle::from_bits(handle))?)
    }

    fn cuMemExportToShareableHandle(
        call,
        target: Target<c_void>,
        handle: CUmemGenericAllocationHandle,
        handle_type: CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        check_shareable(handle_type)?;
        if flags != 0 || target.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a file descriptor, the only type of handle, is an `int`.
        put(unsafe { target.cast::<i32>() }, call.physical_export(Handle::from_bits(handle))?)
    }

    fn cuMemImportFromShareableHandle(
        call,
        target: Target<CUmemGenericAllocationHandle>,
        shareable: *mut c_void,
        handle_type: CUmemAllocationHandleType,
    ) {
        check_shareable(handle_type)?;
        if target.is_null() {
            return Err(INVALID_VALUE);
        }
        put(target, call.physical_import(descriptor(shareable)?)?.to_bits())
    }

    fn cuMemMap(
        call,
        base: CUdeviceptr,
        size_bytes: usize,
        offset_bytes: usize,
        handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) {
        if offset_bytes != 0 {
            return Err(NOT_SUPPORTED);
        }
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        call.map(base, size_bytes as u64, Handle::from_bits(handle))
    }

    fn cuMemUnmap(call, base: CUdeviceptr, size_bytes: usize) {
        call.unmap(base, size_bytes as u64)
    }

    fn cuMemSetAccess(
        call,
        base: CUdeviceptr,
        size_bytes: usize,
        wishes: *const CUmemAccessDesc,
        count: usize,
    ) {
        if wishes.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller guarantees `count` of them.
        let wishes = unsafe { (0..count).map(|index| take_at(wishes.wrapping_add(index))).collect::<Answer<Vec<_>>>()? };
        call.set_access(base, size_bytes as u64, &wishes)
    }

    fn cuMemGetAccess(
        call,
        flags: Target<c_ulonglong>,
        location: Source<CUmemLocation>,
        address: CUdeviceptr,
    ) {
        put(flags, c_ulonglong::from(call.access(address, &take(location)?)?.0))
    }
}

/// The supported ways to share memory.
pub(crate) fn check_shareable(handle_type: CUmemAllocationHandleType) -> Answer<()> {
    match handle_type {
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE => Err(INVALID_VALUE),
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if pages::IS_SUPPORTED => Ok(()),
        _ => Err(NOT_SUPPORTED),
    }
}

/// A descriptor, which the driver takes as a number in a pointer: 0 is a null pointer.
pub(crate) fn descriptor(shareable: *mut c_void) -> Answer<i32> {
    if shareable.is_null() {
        return Err(INVALID_VALUE);
    }
    i32::try_from(shareable.addr()).map_err(|_| INVALID_VALUE)
}

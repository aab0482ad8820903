//! Memory pools.

use crate::base::codes::INVALID_VALUE;
use crate::base::handle::Handle;
use crate::entry::argument::{Source, Target, check_place, put, take, take_at};
use crate::entry::entries;
use crate::machine::Machine;
use crate::memory::pool::{PoolKind, PoolValue};
use core::ffi::c_void;
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};

entries! {
    fn cuDeviceGetDefaultMemPool(call, target: Target<CUmemoryPool>, device: CUdevice) {
        let device = call.device_index(device)?;
        put(target, call.devices[device].default_pool.to_ptr())
    }

    fn cuDeviceGetMemPool(call, target: Target<CUmemoryPool>, device: CUdevice) {
        let device = call.device_index(device)?;
        put(target, call.devices[device].pool.to_ptr())
    }

    fn cuDeviceSetMemPool(call, device: CUdevice, pool: CUmemoryPool) {
        let (device, pool) = (call.device_index(device)?, Handle::from_ptr(pool));
        let found = call.pool_to_take_from(pool)?;
        if found.kind != PoolKind::Device || found.device != device {
            return Err(INVALID_VALUE);
        }
        call.devices[device].pool = pool;
        Ok(())
    }

    fn cuMemPoolCreate(call, target: Target<CUmemoryPool>, props: Source<CUmemPoolProps>) {
        check_place(target)?;
        let props = take(props)?;
        let home = call.context(call.thread).and_then(|context| call.context_device(context));
        put(target, call.pool_create(&props, home.unwrap_or(0))?.to_ptr())
    }

    fn cuMemPoolDestroy(call, pool: CUmemoryPool) {
        call.pool_destroy(Handle::from_ptr(pool))
    }

    fn cuMemAllocFromPoolAsync(
        call,
        target: Target<CUdeviceptr>,
        size_bytes: usize,
        pool: CUmemoryPool,
        stream: CUstream,
    ) {
        check_place(target)?;
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.refuse_outside_capture(stream)?;
        call.make_room(stream)?;
        put(target, call.alloc_async(Handle::from_ptr(pool), size_bytes as u64, stream)?)
    }

    fn cuMemPoolTrimTo(call, pool: CUmemoryPool, keep_bytes: usize) {
        call.pool(Handle::from_ptr(pool))?;
        call.refuse_unsafe()?;
        call.pool_trim_all(Handle::from_ptr(pool), keep_bytes as u64);
        Ok(())
    }

    fn cuMemPoolGetAttribute(
        call,
        pool: CUmemoryPool,
        attribute: CUmemPool_attribute,
        value: Target<c_void>,
    ) {
        call.refuse_unsafe()?;
        match call.pool_attribute(Handle::from_ptr(pool), attribute)? {
            // SAFETY: the caller has room for a value of the attribute's type, which is this one's.
            PoolValue::Int(int) => put(unsafe { value.cast() }, int),
            // SAFETY: the caller has room for a value of the attribute's type, which is this one's.
            PoolValue::Long(long) => put(unsafe { value.cast() }, long),
        }
    }

    fn cuMemPoolSetAttribute(
        call,
        pool: CUmemoryPool,
        attribute: CUmemPool_attribute,
        value: Target<c_void>,
    ) {
        let value = match Machine::is_policy(attribute) {
            // SAFETY: a policy is an `int`.
            true => u64::from(take(unsafe { value.cast::<u32>() })?),
            // SAFETY: all other attributes are numbers of 64 bits.
            false => take(unsafe { value.cast::<u64>() })?,
        };
        call.pool_set_attribute(Handle::from_ptr(pool), attribute, value)
    }

    fn cuMemPoolSetAccess(call, pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) {
        for index in 0..count {
            // SAFETY: there are `count` of them.
            let wish = unsafe { take_at(map.wrapping_add(index))? };
            let user = call.user(&wish.location)?;
            call.pool_set_access(Handle::from_ptr(pool), user, wish.flags)?;
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(
        call,
        flags: Target<CUmemAccess_flags>,
        pool: CUmemoryPool,
        location: Target<CUmemLocation>,
    ) {
        let user = call.user(&take(location)?)?;
        put(flags, call.pool_access(Handle::from_ptr(pool), user)?)
    }
}

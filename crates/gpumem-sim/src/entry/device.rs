//! Initialisation, and the properties of devices.
//!
//! A simulated machine is initialised from its start, like NVIDIA's driver once `Driver::cuda` has returned. `cuInit` only reports
//! whether there is a device.

use crate::base::codes::{INVALID_DEVICE, INVALID_VALUE, NO_DEVICE};
use crate::device;
use crate::entry::argument::{Target, put, put_at};
use crate::entry::entries;
use core::ffi::{CStr, c_char, c_int, c_uint};
use gpumem_sys::Table;
use gpumem_sys::types::{CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUresult, CUuuid};

entries! {
    fn cuInit(call, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if call.devices.is_empty() {
            return Err(NO_DEVICE);
        }
        Ok(())
    }

    fn cuDriverGetVersion(_call, version: Target<c_int>) {
        put(version, 13_000)
    }

    fn cuDeviceGetCount(call, count: Target<c_int>) {
        put(count, call.devices.len() as c_int)
    }

    fn cuDeviceGet(call, target: Target<CUdevice>, ordinal: c_int) {
        put(target, call.device_index(ordinal)? as CUdevice)
    }

    fn cuDeviceGetName(call, name: *mut c_char, len: c_int, device: CUdevice) {
        call.device_index(device)?;
        if name.is_null() || len <= 0 {
            return Err(INVALID_VALUE);
        }
        let count = device::NAME.len().min(len as usize - 1);
        // SAFETY: the caller has room for `len` characters, which are more than `count`.
        unsafe {
            core::ptr::copy_nonoverlapping(device::NAME.as_ptr().cast::<c_char>(), name, count);
            put_at(name.add(count), 0)
        }
    }

    fn cuDeviceTotalMem_v2(call, size_bytes: Target<usize>, device: CUdevice) {
        let device = call.device_index(device)?;
        put(size_bytes, call.devices[device].total_bytes as usize)
    }

    fn cuDeviceGetAttribute(call, value: Target<c_int>, attribute: CUdevice_attribute, device: CUdevice) {
        let device = call.device_index(device)?;
        let is_integrated = call.config.page_cache_bytes.is_some();
        put(value, device::attribute(attribute, device, is_integrated).ok_or(INVALID_VALUE)?)
    }

    fn cuDeviceComputeCapability(call, major: Target<c_int>, minor: Target<c_int>, device: CUdevice) {
        call.device_index(device)?;
        put(major, 9)?;
        put(minor, 0)
    }

    fn cuDeviceGetUuid(call, uuid: Target<CUuuid>, device: CUdevice) {
        let device = call.device_index(device)?;
        put(uuid, CUuuid { bytes: device::uuid(call.instance, device).map(|byte| byte as c_char) })
    }

    fn cuDeviceGetUuid_v2(call, uuid: Target<CUuuid>, device: CUdevice) {
        let device = call.device_index(device)?;
        put(uuid, CUuuid { bytes: device::uuid(call.instance, device).map(|byte| byte as c_char) })
    }

    fn cuDeviceGetPCIBusId(call, target: *mut c_char, len: c_int, device: CUdevice) {
        let name = device::bus_name(call.device_index(device)?);
        if target.is_null() || usize::try_from(len).map_or(true, |len| len <= name.len()) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has room for `len` characters, which are more than the name's.
        unsafe {
            core::ptr::copy_nonoverlapping(name.as_ptr().cast::<c_char>(), target, name.len());
            put_at(target.add(name.len()), 0)
        }
    }

    fn cuDeviceGetByPCIBusId(call, target: Target<CUdevice>, name: *const c_char) {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller has a string there that ends in NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let is_named = |&device: &usize| device::bus_name(device).as_bytes().eq_ignore_ascii_case(name);
        put(target, (0..call.devices.len()).find(is_named).ok_or(INVALID_DEVICE)? as CUdevice)
    }

    fn cuDeviceCanAccessPeer(call, can: Target<c_int>, device: CUdevice, peer: CUdevice) {
        let (device, peer) = (call.device_index(device)?, call.device_index(peer)?);
        put(can, c_int::from(call.is_linked(device, peer)))
    }

    fn cuDeviceGetP2PAttribute(
        call,
        value: Target<c_int>,
        attribute: CUdevice_P2PAttribute,
        device: CUdevice,
        peer: CUdevice,
    ) {
        let (device, peer) = (call.device_index(device)?, call.device_index(peer)?);
        put(value, call.peer_attribute(attribute, device, peer)?)
    }
}

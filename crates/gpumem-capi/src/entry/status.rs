//! A pool's counters, as a structure and as text.

#![allow(non_camel_case_types)]

use super::arguments::{self, Versioned, check, put_text};
use super::pools::{self, gpumem_pool};
use crate::error::{gpumem_result, guarded};
use core::ffi::c_char;

/// A pool's counters at one moment, in bytes unless they count. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_status {
    /// `sizeof(gpumem_status)`
    pub struct_size: usize,
    /// In live blocks.
    pub in_use_bytes: u64,
    /// Held from the device: blocks and cached memory.
    pub reserved_bytes: u64,
    /// Cached for reuse.
    pub cached_bytes: u64,
    /// The peak of memory in use.
    pub in_use_peak_bytes: u64,
    /// The peak of reserved memory.
    pub reserved_peak_bytes: u64,
    /// The number of live blocks, empty ones excluded.
    pub block_count: u64,
    /// The number of allocations ever made, empty ones excluded.
    pub allocation_count: u64,
    /// The hard limit; `UINT64_MAX` if there is none.
    pub hard_limit_bytes: u64,
    /// The soft limit; `UINT64_MAX` if there is none.
    pub soft_limit_bytes: u64,
    /// In use on the whole device, by all processes.
    pub device_used_bytes: u64,
    /// The total memory of the device.
    pub device_total_bytes: u64,
    /// The number of requests that were refused because memory or a limit ran out.
    pub refusal_count: u64,
    /// The number of allocations that no cache of the calling thread served.
    pub slow_allocation_count: u64,
    /// Returned to the driver since the pool was created.
    pub trimmed_bytes: u64,
    /// The number of calls of the driver that obtain, map, trim or release memory.
    pub driver_call_count: u64,
    /// The number of waits that the pool has inserted into streams, on the device.
    pub inserted_wait_count: u64,
    /// The number of waits of the host for the device.
    pub host_wait_count: u64,
    /// The bytes of blocks that sleep (`gpumem_pool_sleep`), whose memory is not on the device.
    pub asleep_bytes: u64,
}

// SAFETY: all fields are 64-bit numbers, so there is no padding, and the size is first.
unsafe impl Versioned for gpumem_status {
    const SIZES: &[usize] = &[size_of::<Self>()];
}

/// Writes a pool's counters.
///
/// # Safety
///
/// `status` is null, or points to a `struct_size` and to as many bytes as that states.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_status(
    pool: *mut gpumem_pool,
    status: *mut gpumem_status,
) -> gpumem_result {
    guarded(|| {
        check(status, "status")?;
        let found = pools::with(pool, |entry| Ok(entry.pool.status()?))?;
        let value = gpumem_status {
            struct_size: size_of::<gpumem_status>(),
            in_use_bytes: found.in_use_bytes,
            reserved_bytes: found.reserved_bytes,
            cached_bytes: found.cached_bytes,
            in_use_peak_bytes: found.in_use_peak_bytes,
            reserved_peak_bytes: found.reserved_peak_bytes,
            block_count: found.block_count,
            allocation_count: found.allocation_count,
            hard_limit_bytes: found.hard_limit_bytes.unwrap_or(u64::MAX),
            soft_limit_bytes: found.soft_limit_bytes.unwrap_or(u64::MAX),
            device_used_bytes: found.device_used_bytes,
            device_total_bytes: found.device_total_bytes,
            refusal_count: found.counters.refusal_count,
            slow_allocation_count: found.counters.slow_allocation_count,
            trimmed_bytes: found.counters.trimmed_bytes,
            driver_call_count: found.counters.driver_call_count,
            inserted_wait_count: found.counters.inserted_wait_count,
            host_wait_count: found.counters.host_wait_count,
            asleep_bytes: found.asleep_bytes,
        };
        // SAFETY: the caller promises the bytes that the size states.
        unsafe { arguments::write(status, value, "status") }
    })
}

/// Writes a pool's counters as text that ends with a zero byte, cut to `capacity_bytes`. `length_bytes`, which may be null, becomes the
/// length of the whole text without the zero byte; pass a null `text` to get only the length.
///
/// # Safety
///
/// `text` is null or points to `capacity_bytes`; `length_bytes` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_status_text(
    pool: *mut gpumem_pool,
    text: *mut c_char,
    capacity_bytes: usize,
    length_bytes: *mut usize,
) -> gpumem_result {
    guarded(|| {
        let found = pools::with(pool, |entry| Ok(entry.pool.status()?))?;
        // SAFETY: the caller promises the places.
        unsafe { put_text(&found.to_string(), text, capacity_bytes, length_bytes) }
    })
}

/// Resets the peaks that `gpumem_pool_status` reports.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_reset_peaks(pool: *mut gpumem_pool) -> gpumem_result {
    guarded(|| pools::with(pool, |entry| Ok(entry.pool.reset_peaks()?)))
}

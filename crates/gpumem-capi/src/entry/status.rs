//! A pool's counters, as a structure, as text and as JSON.

#![allow(non_camel_case_types)]

use super::arguments::{self, Versioned, check, put_text};
use super::interface_of;
use super::pools::{self, gpumem_pool};
use crate::blocks;
use crate::error::{Failure, gpumem_result, guarded};
use ::gpumem_pool::{Interface, Status};
use core::ffi::{c_char, c_void};

/// A pool's counters at one moment, in bytes unless they count. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_status {
    /// `sizeof(gpumem_status)`
    pub struct_size: usize,
    /// `cargo xtask header` writes the figures of gpumem-pool's table here, each as a field in the order of its position.
    pub figures: [u64; Status::C_FIGURES],
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
        let value = gpumem_status { struct_size: size_of::<gpumem_status>(), figures: found.c_figures() };
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

/// Writes a pool's counters as JSON, those of its tags and streams included. The text is written like that of `gpumem_pool_status_text`.
///
/// # Safety
///
/// `text` is null or points to `capacity_bytes`; `length_bytes` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_status_json(
    pool: *mut gpumem_pool,
    text: *mut c_char,
    capacity_bytes: usize,
    length_bytes: *mut usize,
) -> gpumem_result {
    guarded(|| {
        let found = pools::with(pool, |entry| Ok(entry.pool.status()?))?;
        let json = serde_json::to_string(&found)
            .map_err(|error| Failure::state(format!("the counters cannot be written as JSON: {error}")))?;
        // SAFETY: the caller promises the places.
        unsafe { put_text(&json, text, capacity_bytes, length_bytes) }
    })
}

/// Writes the report of a request that the driver has refused to another library, which allocates from this pool
/// (`gpumem_pool_make_current`): the memory in use and its holders, the limits, and advice. It describes the state at the call; no request
/// is made. The text is written like that of `gpumem_pool_status_text`, with the names of an interface, such as `GPUMEM_INTERFACE_C`.
///
/// # Safety
///
/// `text` is null or points to `capacity_bytes`; `length_bytes` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_explain_refusal(
    pool: *mut gpumem_pool,
    size_bytes: u64,
    interface: u32,
    text: *mut c_char,
    capacity_bytes: usize,
    length_bytes: *mut usize,
) -> gpumem_result {
    guarded(|| {
        let report = pools::with(pool, |entry| Ok(entry.pool.explain_refusal(size_bytes)?))?.to_string();
        let report = interface_of(interface).unwrap_or(Interface::C).translate(&report);
        // SAFETY: the caller promises the places.
        unsafe { put_text(&report, text, capacity_bytes, length_bytes) }
    })
}

/// The range is memory that the pool holds from the device: its blocks, and what is free between them.
pub const GPUMEM_RANGE_RESERVED: u32 = 0;
/// The range is a live block, with the requested size.
pub const GPUMEM_RANGE_BLOCK: u32 = 1;

/// Receives a range of `gpumem_pool_ranges`, and what it is, such as `GPUMEM_RANGE_BLOCK`. It must return: no exception or `longjmp` may
/// leave it.
pub type gpumem_range_fn =
    Option<unsafe extern "C" fn(kind: u32, address: *mut c_void, size_bytes: u64, user_data: *mut c_void)>;

/// Calls `visit` with each range of memory that the pool holds from the device, in order, and then with each live block of its device that
/// this library has allocated, from any pool, in order. The call describes one moment; `visit` runs after it, without a lock, and may call
/// any function of this library. Pools of the backends `native` and `none` have blocks only.
///
/// Errors: `INVALID_ARGUMENT` for a null pointer.
///
/// # Safety
///
/// `visit` may be called with `user_data` until this call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_ranges(
    pool: *mut gpumem_pool,
    visit: gpumem_range_fn,
    user_data: *mut c_void,
) -> gpumem_result {
    guarded(|| {
        let visit = visit.ok_or_else(|| Failure::argument("visit is null; pass a function"))?;
        let (device, reserved) =
            pools::with(pool, |entry| Ok((entry.pool.device().clone(), entry.pool.reserved_ranges()?)))?;
        let mut held = Vec::new();
        blocks::for_each(|block| {
            if *block.device() == device {
                held.push((block.address(), block.size_bytes()));
            }
        })?;
        held.sort_unstable();
        let reserved = reserved
            .into_iter()
            .map(|range| (GPUMEM_RANGE_RESERVED, range.start, range.end.saturating_sub(range.start)));
        let held = held.into_iter().map(|(address, size_bytes)| (GPUMEM_RANGE_BLOCK, address, size_bytes));
        for (kind, address, size_bytes) in reserved.chain(held) {
            let address = core::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: the caller allows the call.
            unsafe { visit(kind, address, size_bytes, user_data) };
        }
        Ok(())
    })
}

/// Resets the peaks that `gpumem_pool_status` reports.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_reset_peaks(pool: *mut gpumem_pool) -> gpumem_result {
    guarded(|| pools::with(pool, |entry| Ok(entry.pool.reset_peaks()?)))
}

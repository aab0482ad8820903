//! Allocation and free.

use super::arguments::{check, put};
use super::pools::{self, gpumem_pool};
use super::streams::{self, gpumem_stream};
use crate::blocks;
use crate::error::{CallResult, Failure, caught, ending, gpumem_result, guarded};
use ::gpumem_pool::{Device, MemoryRange, Stream};
use core::ffi::c_void;

/// Allocates memory for work that is queued on `stream` from now on. `address` becomes a device address (`CUdeviceptr`), which is also a
/// host pointer for pools of host or unified memory. For 0 bytes it becomes null, which need not be freed.
///
/// Errors: `OUT_OF_MEMORY`, with the report as text; `STATE` for a stream of another device or one that was retired.
///
/// # Safety
///
/// `address` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_alloc(
    pool: *mut gpumem_pool,
    size_bytes: u64,
    stream: *mut gpumem_stream,
    address: *mut *mut c_void,
) -> gpumem_result {
    caught(|| {
        check(address, "address")?;
        let allocated = pools::with(pool, |pool_entry| {
            streams::with(stream, |stream_entry| {
                // Stored immediately: passing a block on through memory costs more than its allocation.
                Ok(blocks::keep(pool_entry.pool.alloc(size_bytes, stream_entry.stream())?))
            })
        })?;
        // SAFETY: the caller promises a place.
        unsafe { put(address, core::ptr::with_exposed_provenance_mut(allocated as usize), "address") }
    })
}

/// Like `gpumem_alloc`, on a stream (`CUstream`, `cudaStream_t`) that another library created and may destroy after the call. Null is the
/// default stream. It is for allocators that receive the stream with each request; `gpumem_alloc` with a handle is faster.
///
/// Errors: `OUT_OF_MEMORY`, with the report as text; `STATE` for a stream of another context, and for one that is part of a capture, unless
/// captures were announced (`gpumem_captures_expect`). The capture continues.
///
/// # Safety
///
/// `raw` is null or a live stream of the device's primary context; `address` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_alloc_borrowed(
    pool: *mut gpumem_pool,
    size_bytes: u64,
    raw: *mut c_void,
    address: *mut *mut c_void,
) -> gpumem_result {
    guarded(|| {
        check(address, "address")?;
        let allocated = pools::with(pool, |entry| {
            // SAFETY: the caller promises a live stream. A later call names it only with the same promise.
            let stream = unsafe { entry.borrowed.wrap(entry.pool.device(), raw.cast()) }?;
            Ok(blocks::keep(entry.pool.alloc(size_bytes, &stream)?))
        })?;
        // SAFETY: the caller promises a place.
        unsafe { put(address, core::ptr::with_exposed_provenance_mut(allocated as usize), "address") }
    })
}

/// Frees memory of any pool by its address. It is reused once the work queued so far on its stream, and on the streams of
/// `gpumem_record_use`, is complete; the call does not wait. Null is ignored. In a forked child the memory stays the parent's.
///
/// Errors: `UNKNOWN_ADDRESS` for an address that was freed, lies inside a block, or came from another allocator.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_free(address: *mut c_void) -> gpumem_result {
    caught(|| {
        if !address.is_null() {
            blocks::end(address.addr() as u64, drop)?;
        }
        Ok(())
    })
}

/// Like `gpumem_free`, in a call that names the stream that used the memory last. For borrowed streams this lets other streams reuse the
/// memory earlier.
///
/// Errors: those of `gpumem_free`; `INVALID_HANDLE` or `STATE` for a wrong stream, such as a retired one. The memory is then not freed.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_free_on(address: *mut c_void, stream: *mut gpumem_stream) -> gpumem_result {
    ending(|| streams::with(stream, |entry| free_on(address, entry.stream())))
}

/// Like `gpumem_free_on`, on a stream (`CUstream`, `cudaStream_t`) that another library created and may destroy after the call. Null is the
/// default stream.
///
/// Errors: those of `gpumem_free`; `STATE` for a stream of another context, and for one that is part of a capture, unless captures were
/// announced. The memory is then not freed.
///
/// # Safety
///
/// `raw` is null or a live stream of the primary context of the memory's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_free_borrowed(address: *mut c_void, raw: *mut c_void) -> gpumem_result {
    ending(|| {
        if address.is_null() {
            return Ok(());
        }
        let device = blocks::with(address.addr() as u64, |block| Ok(block.device().clone()))?;
        // SAFETY: the caller promises a live stream, and no later call names this one.
        free_on(address, &unsafe { Stream::from_raw(&device, raw.cast()) }?)
    })
}

fn free_on(address: *mut c_void, stream: &Stream) -> CallResult {
    if address.is_null() {
        return Ok(stream.check_usable()?);
    }
    let address = address.addr() as u64;
    // Recorded in a call that a retirement waits for. The free itself may come after the retirement: the use already counts.
    stream.queue_work(MemoryRange::NONE, |_| {
        blocks::with(address, |block| {
            check_device(block.device(), stream)?;
            block.record_use(stream);
            Ok(())
        })
    })??;
    blocks::end(address, |block| block.free_on(stream))
}

/// Records that work on another stream uses the memory: the free waits, on the device, for all work queued on that stream before the free.
/// Make that stream wait for the memory's own stream before its first use (`gpumem_stream_wait_for`).
///
/// Errors: `UNKNOWN_ADDRESS` for an address without a live block; `STATE` for a stream that was retired, or another thread's default
/// stream. Nothing is then recorded.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_record_use(address: *mut c_void, stream: *mut gpumem_stream) -> gpumem_result {
    guarded(|| {
        streams::with(stream, |entry| {
            let stream = entry.stream();
            if address.is_null() {
                return Ok(stream.check_usable()?);
            }
            // In a call that a retirement waits for: a stream that is retired between a check and the record would lose the use.
            stream.queue_work(MemoryRange::NONE, |_| {
                blocks::with(address.addr() as u64, |block| {
                    block.record_use(stream);
                    Ok(())
                })
            })?
        })
    })
}

/// Returns the size that was requested for the block at an address.
///
/// Errors: `UNKNOWN_ADDRESS` for an address without a live block.
///
/// # Safety
///
/// `size_bytes` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_size(address: *mut c_void, size_bytes: *mut u64) -> gpumem_result {
    guarded(|| {
        let size = if address.is_null() {
            0
        } else {
            blocks::with(address.addr() as u64, |block| Ok(block.size_bytes()))?
        };
        // SAFETY: the caller promises a place.
        unsafe { put(size_bytes, size, "size_bytes") }
    })
}

/// Returns the device of the block at an address, counted from 0.
///
/// Errors: `UNKNOWN_ADDRESS` for an address without a live block.
///
/// # Safety
///
/// `ordinal` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_ordinal(address: *mut c_void, ordinal: *mut u32) -> gpumem_result {
    guarded(|| {
        let found = blocks::with(address.addr() as u64, |block| Ok(block.device().ordinal()))?;
        // SAFETY: the caller promises a place.
        unsafe { put(ordinal, found, "ordinal") }
    })
}

pub(super) fn check_device(device: &Device, stream: &Stream) -> CallResult {
    match device == stream.device() {
        true => Ok(()),
        false => Err(Failure {
            code: gpumem_result::GPUMEM_ERROR_STATE,
            text: format!(
                "the memory belongs to {device}, and the stream to {}; pass a stream of the memory's device",
                stream.device()
            ),
        }),
    }
}

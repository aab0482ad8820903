//! Streams: the library's own, and those of other libraries.

#![allow(non_camel_case_types)]

use super::arguments::{check, put};
use super::pools::{self, gpumem_pool};
use crate::error::{CallResult, ending, gpumem_result, guarded};
use crate::handles::HandleTable;
use ::gpumem_pool::Stream;
use core::cell::RefCell;
use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A stream of a device. The pointer is a number that only this library reads.
pub struct gpumem_stream {
    _private: [u8; 0],
}

/// A stream behind a handle.
pub(super) struct StreamEntry {
    stream: Stream,
    /// The key under which a long-lived stream is found again.
    key: Option<StreamKey>,
}

/// A context and a handle of the driver.
type StreamKey = (usize, usize);

impl StreamEntry {
    #[inline]
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }
}

static STREAMS: HandleTable<StreamEntry> = HandleTable::new(2, "stream");

/// Calls `work` with the stream of a handle.
#[inline]
pub(super) fn with<R>(
    stream: *mut gpumem_stream,
    work: impl FnOnce(&StreamEntry) -> CallResult<R>,
) -> CallResult<R> {
    STREAMS.with(stream.addr() as u64, work)
}

fn add(stream: Stream, key: Option<StreamKey>) -> CallResult<*mut gpumem_stream> {
    let handle = STREAMS.add(StreamEntry { stream, key })?;
    Ok(core::ptr::without_provenance_mut(handle as usize))
}

/// The handles of long-lived streams.
fn long_lived() -> MutexGuard<'static, HashMap<StreamKey, usize>> {
    static LONG_LIVED: OnceLock<Mutex<HashMap<StreamKey, usize>>> = OnceLock::new();
    LONG_LIVED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a stream on the pool's device. `gpumem_stream_destroy` ends it.
///
/// # Safety
///
/// `stream` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_stream_create(
    pool: *mut gpumem_pool,
    stream: *mut *mut gpumem_stream,
) -> gpumem_result {
    guarded(|| {
        check(stream, "stream")?;
        let made = pools::with(pool, |entry| Ok(Stream::new(entry.pool.device())?))?;
        // SAFETY: the caller promises a place.
        unsafe { put(stream, add(made, None)?, "stream") }
    })
}

/// Wraps a stream (`CUstream`, `cudaStream_t`) that another library created and will destroy. Null is the default stream.
///
/// Errors: `STATE` for a stream of another context, and for one that is part of a capture, unless captures were announced
/// (`gpumem_captures_expect`). The capture continues.
///
/// # Safety
///
/// - `raw` is null or a stream of the device's primary context, alive in every call that uses the result.
/// - Before it is destroyed, call `gpumem_stream_retire`, or do not use the result in later calls.
/// - `stream` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_stream_borrow(
    pool: *mut gpumem_pool,
    raw: *mut c_void,
    stream: *mut *mut gpumem_stream,
) -> gpumem_result {
    guarded(|| {
        check(stream, "stream")?;
        let wrapped = pools::with(pool, |entry| {
            // SAFETY: the caller passes on the promise of the stream's owner.
            Ok(unsafe { Stream::from_raw(entry.pool.device(), raw.cast()) }?)
        })?;
        // SAFETY: the caller promises a place.
        unsafe { put(stream, add(wrapped, None)?, "stream") }
    })
}

/// Wraps a stream of another library that lives as long as the process uses the device, such as PyTorch's. Every call with one stream
/// returns the same handle until it is retired or destroyed, so a program that has only the `CUstream` may call this for each request.
/// `CU_STREAM_PER_THREAD` (2) is the calling thread's default stream: each thread has its own handle, which is destroyed when the thread
/// ends.
///
/// Errors: `STATE` for a stream of another context, and, in the first call with a stream, for one that is part of a capture
/// (`gpumem_captures_expect`).
///
/// # Safety
///
/// - `raw` is null or a stream of the device's primary context, and is not destroyed before `gpumem_stream_retire` has returned.
/// - `stream` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_stream_long_lived(
    pool: *mut gpumem_pool,
    raw: *mut c_void,
    stream: *mut *mut gpumem_stream,
) -> gpumem_result {
    guarded(|| {
        check(stream, "stream")?;
        let handle = pools::with(pool, |entry| {
            let device = entry.pool.device();
            // SAFETY: the caller passes on the promise of the stream's owner.
            let wrap = || Ok(unsafe { Stream::from_raw_long_lived(device, raw.cast()) }?);
            let context = device.context().addr();
            if raw.addr() == PER_THREAD {
                return own_default_stream(context, wrap);
            }
            let key = (context, raw.addr());
            let known = long_lived().get(&key).copied();
            if let Some(handle) = known.and_then(usable) {
                return Ok(handle);
            }
            let wrapped = wrap()?;
            let mut known = long_lived();
            // Another thread may have added it since.
            if let Some(handle) = known.get(&key).copied().and_then(usable) {
                return Ok(handle);
            }
            let handle = add(wrapped, Some(key))?;
            known.insert(key, handle.addr());
            Ok(handle)
        })?;
        // SAFETY: the caller promises a place.
        unsafe { put(stream, handle, "stream") }
    })
}

/// Returns the handle of a stream that was neither destroyed nor retired.
fn usable(handle: usize) -> Option<*mut gpumem_stream> {
    let handle = core::ptr::without_provenance_mut(handle);
    with(handle, |entry| Ok(entry.stream.check_usable()?)).is_ok().then_some(handle)
}

/// The handle of the calling thread's default stream. It is destroyed when the thread ends.
fn own_default_stream(
    context: usize,
    wrap: impl FnOnce() -> CallResult<Stream>,
) -> CallResult<*mut gpumem_stream> {
    let known =
        OWN.try_with(|own| own.0.borrow().iter().find(|known| known.0 == context).map(|known| known.1));
    if let Some(handle) = known.ok().flatten().and_then(usable) {
        return Ok(handle);
    }
    let handle = add(wrap()?, None)?;
    // A thread that is ending keeps no handle: the program must destroy it.
    let _ = OWN.try_with(|own| {
        let mut own = own.0.borrow_mut();
        own.retain(|known| known.0 != context);
        own.push((context, handle.addr()));
    });
    Ok(handle)
}

/// Contexts, and the handles of a thread's default stream in them.
struct OwnStreams(RefCell<Vec<StreamKey>>);

impl Drop for OwnStreams {
    /// Runs while the thread ends, where a panic would abort the process.
    fn drop(&mut self) {
        let _ = ending(|| {
            for (_, handle) in self.0.take() {
                // The program may have destroyed it.
                let _ = STREAMS.remove(handle as u64);
            }
            Ok(())
        });
    }
}

thread_local! {
    static OWN: OwnStreams = const { OwnStreams(RefCell::new(Vec::new())) };
}

/// `CU_STREAM_PER_THREAD`
const PER_THREAD: usize = 2;

/// Declares that the owner of a borrowed or long-lived stream is about to destroy it. Only work queued so far counts, and later calls that
/// name the stream are errors.
///
/// Errors: `STATE` if it was retired before.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_stream_retire(stream: *mut gpumem_stream) -> gpumem_result {
    guarded(|| {
        with(stream, |entry| {
            forget(entry, stream);
            Ok(entry.stream.retire()?)
        })
    })
}

/// Ends the use of a handle. A stream of `gpumem_stream_create` is destroyed; a stream of another library is not.
///
/// Errors: `INVALID_HANDLE` for a null pointer or a stream that was destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_stream_destroy(stream: *mut gpumem_stream) -> gpumem_result {
    ending(|| {
        with(stream, |entry| {
            forget(entry, stream);
            Ok(())
        })?;
        STREAMS.remove(stream.addr() as u64)
    })
}

/// Removes a long-lived stream from those that are found again.
fn forget(entry: &StreamEntry, handle: *mut gpumem_stream) {
    let Some(key) = entry.key else { return };
    let mut known = long_lived();
    if known.get(&key) == Some(&handle.addr()) {
        known.remove(&key);
    }
}

/// Returns the driver's handle of a stream (`CUstream`, `cudaStream_t`).
///
/// # Safety
///
/// `raw` is null or points to a place.
#[expect(clippy::disallowed_methods, reason = "the program queues work by the handle")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_stream_raw(
    stream: *mut gpumem_stream,
    raw: *mut *mut c_void,
) -> gpumem_result {
    guarded(|| {
        let handle = with(stream, |entry| Ok(entry.stream.raw()))?;
        // SAFETY: the caller promises a place.
        unsafe { put(raw, handle.cast(), "raw") }
    })
}

/// Makes later work on `stream` wait, on the device, for the work queued so far on `other`.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_stream_wait_for(
    stream: *mut gpumem_stream,
    other: *mut gpumem_stream,
) -> gpumem_result {
    guarded(|| with(stream, |stream| with(other, |other| Ok(stream.stream.wait_for(&other.stream)?))))
}

/// Waits on the host for the work queued on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_stream_synchronize(stream: *mut gpumem_stream) -> gpumem_result {
    guarded(|| with(stream, |entry| Ok(entry.stream.synchronize()?)))
}

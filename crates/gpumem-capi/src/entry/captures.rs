//! Captures of CUDA graphs that another library begins and ends.

#![allow(non_camel_case_types)]

use super::arguments::{check, put};
use super::pools::{self, gpumem_pool};
use super::streams::{self, gpumem_stream};
use crate::error::{ending, gpumem_result, guarded};
use crate::handles::HandleTable;
use ::gpumem_pool::ForeignCaptures;

/// Captures that another library begins and ends. The pointer is a number that only this library reads.
pub struct gpumem_captures {
    _private: [u8; 0],
}

static CAPTURES: HandleTable<ForeignCaptures> = HandleTable::new(3, "set of captures");

/// Announces that another library is about to begin captures (`cuStreamBeginCapture`) on streams of the pool's device. From now on calls
/// that name a stream ask the driver whether it captures.
///
/// # Safety
///
/// `captures` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_captures_expect(
    pool: *mut gpumem_pool,
    captures: *mut *mut gpumem_captures,
) -> gpumem_result {
    guarded(|| {
        check(captures, "captures")?;
        let expected = pools::with(pool, |entry| Ok(ForeignCaptures::expect(entry.pool.device())))?;
        let handle = CAPTURES.add(expected)?;
        // SAFETY: the caller promises a place.
        unsafe { put(captures, core::ptr::without_provenance_mut(handle as usize), "captures") }
    })
}

/// Announces further captures, after `gpumem_captures_end`. They share memory with the earlier ones: later captures reuse what earlier ones
/// have freed. Their graphs must run one after another, in the order of their captures. Before `gpumem_captures_end` it has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_captures_expect_more(captures: *mut gpumem_captures) -> gpumem_result {
    guarded(|| {
        CAPTURES.with(captures.addr() as u64, |captures| {
            captures.expect_more();
            Ok(())
        })
    })
}

/// Adds the capture that a stream is part of, if any. Call it before each allocation on a stream that may capture: memory that is
/// allocated, freed or used in the capture from now on is kept until `gpumem_captures_destroy`.
///
/// Errors: `STATE` if the stream's capture is broken.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_captures_add(
    captures: *mut gpumem_captures,
    stream: *mut gpumem_stream,
) -> gpumem_result {
    guarded(|| {
        CAPTURES.with(captures.addr() as u64, |captures| {
            streams::with(stream, |entry| {
                captures.add(entry.stream())?;
                Ok(())
            })
        })
    })
}

/// Declares that the captures have ended (`cuStreamEndCapture`). Waits until their graphs may be launched on any stream.
///
/// A capture that is still active continues and keeps its memory, and the call succeeds: the next call ends it, or another set that has
/// added it. After the call no capture is added, until `gpumem_captures_expect_more`.
///
/// Errors: `STATE` if another capture prevents the wait; the next call waits again.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_captures_end(captures: *mut gpumem_captures) -> gpumem_result {
    guarded(|| CAPTURES.with(captures.addr() as u64, |captures| Ok(captures.end()?)))
}

/// Declares that the graphs of the captures will not be launched again. Waits for the device, and releases their memory.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_captures_destroy(captures: *mut gpumem_captures) -> gpumem_result {
    ending(|| CAPTURES.remove(captures.addr() as u64))
}

//! [`RecentStreams`]: wraps of other libraries' streams, kept between calls that have only the handle.

use super::Stream;
use crate::device::Device;
use crate::device::order::LEGACY;
use crate::error::DeviceError;
use gpumem_base::sync::Lock;
use gpumem_sys::types::CUstream;

/// Keeps the wraps of the most recently named streams. A call that has only the handle finds the stream here; [`Stream::from_raw`] would
/// open it, and dropping the wrap would abandon it.
///
/// The driver is called with a handle only in calls that name it, as for every stream of another library. A kept wrap is returned only if
/// the driver confirms that the handle still means its stream: the owner may have destroyed the stream, and the driver may have reused the
/// handle.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct RecentStreams([Shelf; SHELF_COUNT]);

/// The latest wraps of some handles, oldest first; each handle once.
#[derive(Debug, Default)]
struct Shelf(Lock<Vec<Stream>>);

impl RecentStreams {
    /// Like [`Stream::from_raw`], for streams of one device.
    ///
    /// # Safety
    ///
    /// The requirements of [`Stream::from_raw`] apply.
    ///
    /// # Errors
    ///
    /// All errors of [`Stream::from_raw`], such as [`DeviceError::WrongDevice`] for a stream of another context.
    pub unsafe fn wrap(&self, device: &Device, raw: CUstream) -> Result<Stream, DeviceError> {
        let raw = if raw.is_null() { LEGACY as CUstream } else { raw };
        let shelf = &self.0[shelf_of(raw)];
        if let Some(stream) = shelf.find(raw).filter(Stream::has_its_handle) {
            return Ok(stream);
        }
        // SAFETY: the caller upholds this function's contract.
        let stream = unsafe { Stream::from_raw(device, raw) }?;
        if stream.may_be_kept() {
            shelf.keep(&stream);
        }
        Ok(stream)
    }
}

impl Shelf {
    fn find(&self, raw: CUstream) -> Option<Stream> {
        self.0.lock().iter().find(|stream| stream.raw() == raw).cloned()
    }

    fn keep(&self, stream: &Stream) {
        let mut kept = self.0.lock();
        let same = kept.iter().position(|kept| kept.raw() == stream.raw());
        let replaced =
            same.or_else(|| (kept.len() >= SHELF_LENGTH_MAX).then_some(0)).map(|at| kept.remove(at));
        kept.push(stream.clone());
        // The drop of a last clone takes other locks.
        drop(kept);
        drop(replaced);
    }
}

/// Threads with separate streams rarely contend for one lock.
fn shelf_of(raw: CUstream) -> usize {
    (raw.addr().wrapping_mul(SPREAD) >> (usize::BITS - SHELF_BITS)) & (SHELF_COUNT - 1)
}

const SHELF_BITS: u32 = 4;
const SHELF_COUNT: usize = 1 << SHELF_BITS;
const SHELF_LENGTH_MAX: usize = 8;
/// Fibonacci hashing: handles are addresses, multiples of powers of two.
const SPREAD: usize = 0x9E37_79B9_7F4A_7C15_u64 as usize;

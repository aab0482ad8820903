//! Streams of somebody else's: another library's, the context's legacy stream, a thread's own.
//!
//! Such a stream may be destroyed, or captured, whenever its owner likes. So it is never marked behind his back: only in
//! calls that name it, and for the last time in [`Stream::retire`]. The driver's handle may come again for another
//! stream, its id does not: two wraps of one stream are clones, and a stream that was wrapped before is known again.

use super::borrow::Borrows;
use super::{Inner, Kind, Stream};
use crate::clock::{StreamId, StreamParts};
use crate::context::Handle;
use crate::device::Device;
use crate::error::PoolError;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUstream, CUstream_flags};
use std::sync::{Arc, Weak};

/// A stream that may be gone.
#[derive(Clone)]
pub(crate) struct WeakStream(Weak<Inner>);

impl Stream {
    /// Wraps a stream that somebody else made and will destroy: cudarc, cuBLAS, PyTorch. Null and the driver's two
    /// special handles become [`Stream::legacy`] and [`Stream::per_thread`]; a handle that this crate made is its stream.
    ///
    /// The pool puts no waits into it, and lets nothing wait for it, on its own account. What was freed on it becomes
    /// free for other streams when a later call that names it marks it, when it is retired, or when the whole device is
    /// waited for.
    ///
    /// # Safety
    ///
    /// - `raw` is a stream of this device's primary context, alive in every call that names the result or a clone.
    /// - Before it is destroyed, either [`Stream::retire`] has returned, or nobody makes such a call any more.
    /// - Work that uses a block of the pool's is queued on it only while a clone lives that is not retired.
    ///
    /// # Errors
    ///
    /// [`PoolError::WrongDevice`] for a stream of another context, [`PoolError::TooManyStreams`], or what the driver
    /// says.
    pub unsafe fn from_raw(device: &Device, raw: CUstream) -> Result<Self, PoolError> {
        match raw as usize {
            0 | LEGACY => return Self::legacy(device),
            PER_THREAD => return Self::per_thread(device),
            _ => {}
        }
        let _bound = device.enter()?;
        let mut context = core::ptr::null_mut();
        // SAFETY: `context` outlives the call, and the stream is alive by the caller's promise.
        unsafe { device.driver().cuStreamGetCtx(raw, &mut context)? };
        if context != device.context() {
            return Err(PoolError::WrongDevice {
                expected: format!("a stream of {device}"),
                found: "another context".into(),
            });
        }
        Self::wrap(device, raw, Kind::Foreign)
    }

    /// The default stream of the device's context, with which streams of others that did not opt out are in order.
    /// [`Stream::new`] opts out.
    ///
    /// # Errors
    ///
    /// [`PoolError::TooManyStreams`], or what the driver says.
    pub fn legacy(device: &Device) -> Result<Self, PoolError> {
        Self::wrap(device, LEGACY as CUstream, Kind::Foreign)
    }

    /// The calling thread's own default stream. Calls that name it on another thread are [`PoolError::WrongThread`]:
    /// there the driver's handle means another stream.
    ///
    /// # Errors
    ///
    /// [`PoolError::TooManyStreams`], or what the driver says.
    pub fn per_thread(device: &Device) -> Result<Self, PoolError> {
        Self::wrap(device, PER_THREAD as CUstream, Kind::OfThread(std::thread::current().id()))
    }

    /// Says that the stream's owner is about to destroy it: what it has queued so far is the last that counts. Without
    /// this, what was freed on it is used again only after the whole device has been waited for. A stream that was made
    /// here does this by itself. Waits for calls on other threads that are inside of [`Stream::run_borrowed`] with it.
    ///
    /// # Errors
    ///
    /// [`PoolError::StreamRetired`] the second time, [`PoolError::WrongThread`].
    pub fn retire(&self) -> Result<(), PoolError> {
        self.check_usable()?;
        if self.0.kind != Kind::Owned && !self.0.is_retired.swap(true, Ordering::AcqRel) {
            self.0.near_id.store(0, Ordering::Relaxed);
            // The handle is the owner's to destroy once this returns, and a call that began before may still use it.
            self.0.borrows.wait_for_all();
            self.clocks().retire(self.id(), self.0.driver_id);
        }
        Ok(())
    }

    /// The one that is known by the driver's id, else a new one.
    fn wrap(device: &Device, raw: CUstream, kind: Kind) -> Result<Self, PoolError> {
        let _bound = device.enter()?;
        let driver_id = driver_id(device, raw)?;
        let is_blocking = is_blocking(device, raw);
        let parts = StreamParts { raw, is_ours: false, no_waits: true, is_blocking };
        let make = |id: StreamId| {
            let is_retired = AtomicBool::new(false);
            let near_id = AtomicU64::new(if kind == Kind::Foreign { id.0 } else { 0 });
            let device = device.clone();
            Self(Arc::new(Inner {
                device,
                raw: Handle(raw),
                id,
                driver_id,
                kind,
                is_retired,
                near_id,
                borrows: Borrows::default(),
            }))
        };
        device.clocks().find_or_open(device, &parts, driver_id, make)
    }

    pub(crate) fn downgrade(&self) -> WeakStream {
        WeakStream(Arc::downgrade(&self.0))
    }
}

impl WeakStream {
    pub(crate) fn upgrade(&self) -> Option<Stream> {
        self.0.upgrade().map(Stream)
    }
}

/// The driver's name for a stream. The device's context is current.
pub(super) fn driver_id(device: &Device, raw: CUstream) -> Result<Option<u64>, PoolError> {
    let mut id = 0;
    // SAFETY: `id` outlives the call, and the caller has an alive stream or a special handle.
    match unsafe { device.driver().cuStreamGetId(raw, &mut id) } {
        Ok(()) => Ok(Some(id)),
        Err(DriverError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the legacy stream waits for it, as far as the driver says. The device's context is current.
fn is_blocking(device: &Device, raw: CUstream) -> bool {
    if matches!(raw as usize, LEGACY | PER_THREAD) {
        return true;
    }
    let mut flags = 0;
    // SAFETY: `flags` outlives the call, and the caller has an alive stream.
    let answer = unsafe { device.driver().cuStreamGetFlags(raw, &mut flags) };
    answer.is_ok() && flags & CUstream_flags::CU_STREAM_NON_BLOCKING.0 == 0
}

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`, which are macros in the driver's header.
pub(crate) const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

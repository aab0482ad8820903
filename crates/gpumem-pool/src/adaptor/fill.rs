//! [`Fill`]: sets the bytes of every block to a value, at allocation or at free.

use super::{Adaptor, Grant, Next, Release, Request};
use crate::error::PoolError;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_device::{CaptureError, DeviceError, MemoryRange, Stream};
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError};

/// Sets the bytes of blocks, in stream order: at allocation, before later work of their stream; at free, after all
/// uses.
///
/// | | sets | purpose |
/// | --- | --- | --- |
/// | [`Fill::zero_on_alloc`] | allocated memory to 0 | one tenant must not read another's bytes, including those left by the driver |
/// | [`Fill::zero_on_free`] | freed memory to 0 | isolation among the pool's own tenants, with the cost at the free |
/// | [`Fill::debug`] | allocated memory to 0xA5, freed memory to 0x5A | reads of uninitialised or freed memory |
///
/// A free sets the bytes if work can be queued on the block's owner stream: this crate owns it, it is alive, and it may wait for the other
/// users. After the first block for which this is impossible, the adaptor also sets all blocks at allocation, so that no block exposes the
/// contents of another. Memory that is new from the driver keeps the driver's contents.
///
/// A graph's memory is set when it is allocated and when it is released with the graph. It is not set between launches,
/// or between the parts that a capture makes of it. Growable blocks are refused ([`PoolError::Refused`]).
#[derive(Debug, Default)]
pub struct Fill {
    on_alloc: Option<u8>,
    on_free: Option<u8>,
    has_missed: AtomicBool,
}

impl Fill {
    /// Sets allocated memory to 0.
    #[must_use]
    pub fn zero_on_alloc() -> Self {
        Self { on_alloc: Some(0), ..Self::default() }
    }

    /// Sets freed memory to 0.
    #[must_use]
    pub fn zero_on_free() -> Self {
        Self { on_free: Some(0), ..Self::default() }
    }

    /// Sets allocated and freed memory to conspicuous values.
    #[must_use]
    pub fn debug() -> Self {
        Self { on_alloc: Some(0xA5), on_free: Some(0x5A), ..Self::default() }
    }

    /// True if all blocks are set at allocation because one could not be set at free.
    #[must_use]
    pub fn has_missed(&self) -> bool {
        self.has_missed.load(Ordering::Relaxed)
    }

    fn value_on_alloc(&self) -> Option<u8> {
        self.on_alloc.or_else(|| self.on_free.filter(|_| self.has_missed()))
    }
}

impl Adaptor for Fill {
    fn name(&self) -> &str {
        "fill"
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let grant = next.alloc(request)?;
        if let Some(value) = self.value_on_alloc() {
            set_now(request.stream(), &grant, grant.address(), value, grant.size_bytes())?;
        }
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        // The fill at allocation may still be queued, even if the user's own work is complete.
        release.set_used();
        let Some(value) = self.on_free else { return };
        let set = |driver: &Driver, owner_stream| {
            set(driver, release.address(), value, release.size_bytes(), owner_stream)
        };
        if !release.queue(set) {
            self.has_missed.store(true, Ordering::Relaxed);
        }
    }
}

/// Sets bytes of memory that was just granted on a stream, which the call names.
pub(super) fn set_now(
    stream: &Stream,
    grant: &Grant,
    address: CUdeviceptr,
    value: u8,
    size_bytes: u64,
) -> Result<(), PoolError> {
    if grant.is_for_host() {
        let host: *mut u8 = core::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the range is granted, and its earlier uses are complete; the host has it at this address. The user
        // may write there as soon as the block is returned, so the write must not be queued on the stream.
        unsafe { host.write_bytes(value, size_bytes as usize) };
        return Ok(());
    }
    let _bound = stream.device().enter()?;
    stream.queue_work([MemoryRange::new(address, size_bytes)], |raw| {
        // Another thread may have begun a capture since the request was checked. The graph would then fill the memory at each launch
        // instead of now.
        if stream.clocks().captures().is_open() && stream.captures_for()?.is_some() {
            return Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable {
                operation: "filling memory that was requested before the capture",
            })));
        }
        Ok(set(stream.device().driver(), address, value, size_bytes, raw)?)
    })?
}

/// Queues a fill. The memory is granted or about to be released, so only the caller uses it; the stream is alive, and
/// its context current.
pub(super) fn set(
    driver: &Driver,
    address: CUdeviceptr,
    value: u8,
    size_bytes: u64,
    stream: CUstream,
) -> Result<(), DriverError> {
    // SAFETY: the caller guarantees that the range is granted to it alone and is released behind this fill, and that
    // the stream is alive with its context current.
    unsafe { driver.cuMemsetD8Async(address, value, size_bytes as usize, stream) }
}

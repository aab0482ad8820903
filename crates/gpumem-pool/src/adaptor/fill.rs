//! [`Fill`]: bytes of every block set to a value, when it is handed out or when it comes back.

use super::{Adaptor, Change, Grant, Next, Release, Request};
use crate::device::Stream;
use crate::error::PoolError;
use crate::pool::After;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError};

/// Sets the bytes of blocks, in stream order: when they are handed out, before whatever their stream does next; when they
/// come back, after all that used them.
///
/// | | sets | for |
/// | --- | --- | --- |
/// | [`Fill::zero_on_alloc`] | what is handed out to 0 | one tenant must not read another's bytes, the driver's included |
/// | [`Fill::zero_on_free`] | what comes back to 0 | the same among the pool's own tenants, with the time paid at the free |
/// | [`Fill::debug`] | one to 0xA5, the other to 0x5A | reads of what was never written, or not any more |
///
/// A free sets them where its owner stream can be made to: that stream is this crate's own, is alive, and may wait for the
/// other users. The first that can't be, makes the adaptor set all blocks from then on when they are handed out, too, so
/// that no block ever shows what another left. Memory that is fresh from the driver it leaves as the driver gives it.
///
/// A graph's memory is set when it is allocated and when it goes with the graph: not between the launches, nor between the
/// parts that a capture makes of it. Of blocks that grow, what they have more is set before they have it, which the growth
/// waits for, and what they leave when they leave it.
#[derive(Default)]
pub struct Fill {
    on_alloc: Option<u8>,
    on_free: Option<u8>,
    /// Whether a block has come back that could not be set.
    has_missed: AtomicBool,
}

impl Fill {
    /// Zeroes what is handed out.
    #[must_use]
    pub fn zero_on_alloc() -> Self {
        Self { on_alloc: Some(0), ..Self::default() }
    }

    /// Zeroes what comes back.
    #[must_use]
    pub fn zero_on_free() -> Self {
        Self { on_free: Some(0), ..Self::default() }
    }

    /// Sets both, to bytes that are seen at once.
    #[must_use]
    pub fn debug() -> Self {
        Self { on_alloc: Some(0xA5), on_free: Some(0x5A), ..Self::default() }
    }

    /// Whether all blocks are set when they are handed out because one could not be when it came back.
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
        // What was set when it was handed out may still be on its way, whatever its user knows of his own work.
        release.set_used();
        let Some(value) = self.on_free else { return };
        let set = |driver: &Driver, owner_stream| {
            set(driver, release.address(), value, release.size_bytes(), owner_stream)
        };
        if !release.queue(set) {
            self.has_missed.store(true, Ordering::Relaxed);
        }
    }

    fn grown(&self, change: &Change<'_>) -> Result<(), PoolError> {
        let (start, size_bytes) =
            (change.address() + change.from_bytes(), change.to_bytes().saturating_sub(change.from_bytes()));
        match self.value_on_alloc() {
            Some(value) => change.do_now(After::Cut, |driver, owner_stream| {
                set(driver, start, value, size_bytes, owner_stream)
            }),
            // Its user does not know of what was queued when it left this memory.
            None if self.on_free.is_some() && change.is_cut_pending() => {
                change.do_now(After::Cut, |_, _| Ok(()))
            }
            None => Ok(()),
        }
    }

    fn shrink(&self, change: &Change<'_>) {
        let Some(value) = self.on_free.filter(|_| !change.is_undone()) else { return };
        let (start, size_bytes) =
            (change.address() + change.to_bytes(), change.from_bytes().saturating_sub(change.to_bytes()));
        if !change.queue(|driver, owner_stream| set(driver, start, value, size_bytes, owner_stream)) {
            self.has_missed.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fill")
            .field("on_alloc", &self.on_alloc)
            .field("on_free", &self.on_free)
            .field("has_missed", &self.has_missed())
            .finish()
    }
}

/// Bytes of memory that was just granted on a stream, which the caller has in his hands.
pub(super) fn set_now(
    stream: &Stream,
    grant: &Grant,
    address: CUdeviceptr,
    value: u8,
    size_bytes: u64,
) -> Result<(), PoolError> {
    if grant.is_for_host() {
        let host: *mut u8 = core::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the range is granted, and what used it before is done; the host has it at the same address. Its user may
        // write there as soon as he has it, so this may not be left to the stream.
        unsafe { host.write_bytes(value, size_bytes as usize) };
        return Ok(());
    }
    let _bound = stream.device().enter()?;
    let _call = stream.call()?;
    // Another thread may have begun it since the request was looked at: the graph would fill the memory at each launch, and
    // nothing before.
    if stream.clocks().captures().is_open() && stream.captures_for()?.is_some() {
        return Err(PoolError::NotInCapture { operation: "filling memory that was asked for before it" });
    }
    Ok(set(stream.device().driver(), address, value, size_bytes, stream.raw())?)
}

/// The memory is granted or about to be released, and so nobody else's; the stream is alive, and its context current.
pub(super) fn set(
    driver: &Driver,
    address: CUdeviceptr,
    value: u8,
    size_bytes: u64,
    stream: CUstream,
) -> Result<(), DriverError> {
    // SAFETY: by the caller's promises the range is granted to nobody else and is given back behind this fill, and the stream is
    // alive with its context current.
    unsafe { driver.cuMemsetD8Async(address, value, size_bytes as usize, stream) }
}

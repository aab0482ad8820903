//! [`GrowableBlock`]: contiguous addresses whose memory grows and shrinks at the end.

use crate::backend::{GROWTH_UNIT_BYTES, Growing, Source};
use crate::config::MemoryKind;
use crate::device::{Device, Stamp, Stream, StreamId, order::uses};
use crate::error::PoolError;
use crate::pool::{Pool, Subject, scope};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_sys::types::CUdeviceptr;
use std::sync::Arc;

/// A stretch of device memory that can grow in place, up to a size that is known from the start: what it holds stays
/// where it is, and no pointer changes.
///
/// Only addresses are taken at first. Its memory counts as reserved by the pool and against its limits, in pieces of
/// 2 MiB; what a shrunk one leaves goes back to the driver, not to other blocks. Like a [`Block`](crate::Block) it has a
/// owner stream, in whose order it is freed when dropped, and other users, who are recorded, and the tag of the scope that it is
/// made in, for which its bytes count; as a block it counts nowhere. A graph does not keep it: it must live for as long as
/// graphs that use it are launched.
///
/// ```
/// use gpumem_pool::{BackendKind, Device, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// # #[cfg(feature = "backend-caching")] {
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).backend(BackendKind::Caching).build()?;
/// let stream = Stream::new(&device)?;
///
/// let mut log = pool.growable(256 << 20, &stream)?;
/// log.grow_to(3 << 20)?;
/// let address = log.address();
/// log.grow_to(100 << 20)?;
/// assert_eq!((log.address(), log.size_bytes()), (address, 100 << 20));
/// log.shrink_to(1 << 20)?;
/// stream.synchronize()?;
/// pool.trim_to(0)?;
/// assert!(pool.status()?.reserved_bytes <= 8 << 20);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it frees it"]
pub struct GrowableBlock {
    pool: Pool,
    id: u64,
    address: CUdeviceptr,
    size_bytes: u64,
    max_bytes: u64,
    owner_stream: StreamId,
    tag: u16,
    /// The other streams that used it, in the form of [`uses`].
    uses: AtomicU64,
    /// When it last shrank: what might still use the memory that it left.
    cut: Vec<Stamp>,
}

impl Pool {
    /// Addresses for up to `max_bytes`, without memory yet; see [`GrowableBlock`].
    ///
    /// # Errors
    ///
    /// [`PoolError::NotWithBackend`] unless the backend is `caching`; [`PoolError::NeedsVirtualMemory`] where that is over
    /// plain segments, [`PoolError::NotWithKind`] for unified and host memory; [`PoolError::TooLarge`] for more than the device
    /// has; [`PoolError::WrongDevice`] for another device's stream; or what the driver says.
    pub fn growable(&self, max_bytes: u64, stream: &Stream) -> Result<GrowableBlock, PoolError> {
        self.0.check_request(max_bytes, stream)?;
        let (id, address) = self.growing()?.add(max_bytes.max(1))?;
        Ok(GrowableBlock {
            pool: self.clone(),
            id,
            address,
            size_bytes: 0,
            max_bytes,
            owner_stream: stream.id(),
            tag: scope::innermost(self.0.tags()),
            uses: AtomicU64::new(0),
            cut: Vec::new(),
        })
    }

    fn growing(&self) -> Result<&dyn Growing, PoolError> {
        let what = "grow a block in place";
        self.0.backend().growing().ok_or_else(|| match (self.kind(), self.0.backend().has_plain_segments()) {
            (MemoryKind::Device, false) => {
                PoolError::NotWithBackend { backend: self.backend(), what, instead: "`caching`" }
            }
            (MemoryKind::Device, true) => PoolError::NeedsVirtualMemory { what },
            (kind, _) => PoolError::not_with_kind(kind, what),
        })
    }
}

impl GrowableBlock {
    /// Where it starts in the device's address space, for as long as it lives: a multiple of 2 MiB.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// How many bytes of it may be used.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// How far it can grow.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The name of the stream in whose order it is freed. That stream may be gone.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.owner_stream
    }

    /// The device that it is memory of.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.pool.device()
    }

    /// Has at least `size_bytes` from here on, for all work queued from now on; the new bytes hold whatever they hold. One
    /// that is as large already stays so. When limit or device are full, what the pool can give back is given back first,
    /// which waits for the device. [`Fill`](crate::adaptor::Fill) and [`Guard`](crate::adaptor::Guard) make it wait, too.
    ///
    /// What it had before it shrank it may get again at once: work that used that is this block's own, and what is queued
    /// from now on comes behind it only as far as their streams are in order.
    ///
    /// # Errors
    ///
    /// [`PoolError::BeyondMaximum`], [`PoolError::LimitReached`], [`PoolError::OutOfMemory`], [`PoolError::DeviceLost`]
    /// or [`PoolError::Poisoned`], or what an adaptor says: `Fill` and `Guard` [`PoolError::NotInCapture`] while a stream
    /// captures and this block has left memory meanwhile. It is as large as before then.
    pub fn grow_to(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        self.pool.0.check_usable()?;
        if size_bytes > self.max_bytes {
            return Err(PoolError::BeyondMaximum {
                requested_bytes: size_bytes,
                maximum_bytes: self.max_bytes,
            });
        }
        if size_bytes > self.size_bytes {
            let grown = self.pool.0.retry_over_budget(|| self.grow_adapted(size_bytes));
            self.pool.0.with_report(grown)?;
            scope::count_change(self.pool.0.tags(), self.tag, self.size_bytes, size_bytes);
            self.size_bytes = size_bytes;
        }
        Ok(())
    }

    fn grow_adapted(&self, size_bytes: u64) -> Result<(), PoolError> {
        let growing = self.pool.growing()?;
        let grow = || self.pool.0.retry_with_reclaim(|| growing.grow_to(self.id, size_bytes));
        let Some(stack) = self.pool.0.stack() else { return grow() };
        // What can't be given back now waits for the next time.
        let shrink = || drop(growing.shrink_to(self.id, self.size_bytes, &self.stamps()));
        stack.grow(&self.subject(), (self.size_bytes, size_bytes), grow, shrink)
    }

    /// Has at most `size_bytes` from here on: no work that is queued from now on may use what lies behind. What queued
    /// work may still use stays until that is done; what is done goes back now, the rest when this changes again, or the
    /// pool gives memory back. Handles go as a whole: up to a sixteenth of it may stay.
    ///
    /// # Errors
    ///
    /// What the driver says; it is as small as asked for even so.
    pub fn shrink_to(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        if size_bytes >= self.size_bytes {
            return Ok(());
        }
        self.tell_of_shrinking(size_bytes);
        self.size_bytes = size_bytes;
        self.cut = self.stamps();
        self.pool.growing()?.shrink_to(self.id, size_bytes, &self.cut)
    }

    /// Says that work queued on `stream` uses it, as [`Block::record_use`](crate::Block::record_use) does.
    pub fn record_use(&self, stream: &Stream) {
        if stream.id() != self.owner_stream && Arc::ptr_eq(stream.device().clocks(), self.device().clocks()) {
            uses::add(&self.uses, uses::with(0, stream.stream_index()));
            stream.note_named();
        }
    }

    fn tell_of_shrinking(&self, to_bytes: u64) {
        if let Some(stack) = self.pool.0.stack() {
            stack.shrink(&self.subject(), self.size_bytes, to_bytes);
        }
        scope::count_change(self.pool.0.tags(), self.tag, self.size_bytes, to_bytes);
    }

    /// As adaptors are told of it.
    fn subject(&self) -> Subject<'_> {
        let Self { address, ref pool, owner_stream, tag, ref uses, ref cut, .. } = *self;
        let (device, uses) = (pool.device(), uses.load(Ordering::Relaxed));
        Subject { address, device, tag, owner_stream, uses, cut, unit_bytes: GROWTH_UNIT_BYTES }
    }

    fn stamps(&self) -> Vec<Stamp> {
        self.device().clocks().uses(self.owner_stream, self.uses.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for GrowableBlock {
    fn drop(&mut self) {
        self.tell_of_shrinking(0);
        if let Ok(growing) = self.pool.growing() {
            growing.remove(self.id, &self.stamps());
        }
    }
}

impl fmt::Debug for GrowableBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrowableBlock")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size_bytes", &self.size_bytes)
            .field("max_bytes", &self.max_bytes)
            .field("home", &self.owner_stream)
            .finish_non_exhaustive()
    }
}

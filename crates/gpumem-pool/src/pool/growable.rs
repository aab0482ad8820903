//! [`GrowableBlock`]: contiguous addresses whose memory grows and shrinks at the end.

use crate::backend::{CachingPool, MemorySource};
use crate::config::MemoryKind;
use crate::error::{PoolError, Unsupported};
use crate::pool::frames;
use crate::pool::hub::Hub;
use crate::pool::request::{Origin, check, ladder};
use crate::pool::state::PoolHandle;
use crate::stats::Name;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_device::internal::{Stamp, not_forked, uses};
use gpumem_device::{Device, Stream, StreamId};
use gpumem_sys::fork;
use gpumem_sys::text::debug_fields;
use gpumem_sys::types::CUdeviceptr;
use std::sync::Arc;

/// A range of device memory that can grow in place, up to a maximum size given at creation. Its contents stay where
/// they are, and pointers to them stay valid.
///
/// At creation only addresses are reserved. Its memory counts as reserved by the pool and against its limits, in units of 2 MiB. Memory
/// that a shrink removes is released to the driver, not reused for other blocks. Like a [`Block`](crate::Block), a growable block has an
/// owner stream, in whose order it is freed when dropped. Uses on other streams are recorded, and its bytes count for the tag of the scope
/// that it was created in. It is not counted as a block. A graph does not keep it: it must live while graphs that use it are launched.
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
    pool: PoolHandle,
    id: u64,
    address: CUdeviceptr,
    size_bytes: u64,
    max_bytes: u64,
    owner_stream: StreamId,
    tag: Option<Arc<Name>>,
    /// The other streams that used the block, in the format of [`uses`].
    uses: AtomicU64,
}

impl GrowableBlock {
    pub(super) fn new(pool: &PoolHandle, max_bytes: u64, stream: &Stream) -> Result<Self, PoolError> {
        check::usable(pool, stream)?;
        let origin = Origin { size_bytes: Some(max_bytes), stream: Some(stream.id()), tag: 0 };
        pool.with_report(check::size(pool, max_bytes), &origin)?;
        pool.check_awake()?;
        if let Some(stack) = pool.stack() {
            pool.with_report(stack.check_growable(max_bytes), &origin)?;
        }
        let (id, address) = growing(pool)?.add(max_bytes.max(1))?;
        Ok(Self {
            pool: pool.clone(),
            id,
            address,
            size_bytes: 0,
            max_bytes,
            owner_stream: stream.id(),
            tag: pool.tags.names.hold(frames::innermost(&pool.tags)),
            uses: AtomicU64::new(0),
        })
    }

    /// Returns the start address in the device's address space: a multiple of 2 MiB, constant for the block's
    /// lifetime.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Returns the current size: the number of bytes that may be used.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the maximum size.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Returns the identifier of the owner stream. The stream itself may no longer exist.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.owner_stream
    }

    /// Returns the pool's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.pool.device()
    }

    /// Grows the block to at least `size_bytes`, for all work queued after this call. The contents of the new bytes
    /// are unspecified. A block that is already large enough stays unchanged. When the limit or the device is full,
    /// the pool waits for the device and releases its cached memory first.
    ///
    /// Memory that an earlier shrink removed may be added again immediately. Earlier work on that memory belongs to this block, so order
    /// new work on other streams after it.
    ///
    /// # Errors
    ///
    /// The block keeps its size after an error.
    ///
    /// - [`PoolError::BeyondMaximum`] if `size_bytes` exceeds the maximum.
    /// - [`PoolError::LimitReached`] if a hard limit or quota refuses.
    /// - [`PoolError::OutOfMemory`] if the device has no free memory.
    /// - [`DeviceError::Asleep`](crate::DeviceError::Asleep) if the pool sleeps.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails.
    pub fn grow_to(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        self.pool.check_usable()?;
        self.pool.check_awake()?;
        if size_bytes > self.max_bytes {
            return Err(PoolError::BeyondMaximum {
                pool: self.pool.name().as_str().into(),
                requested_bytes: size_bytes,
                maximum_bytes: self.max_bytes,
            });
        }
        if size_bytes > self.size_bytes {
            let growing = growing(&self.pool)?;
            let grown = growing.grow_to(self.id, size_bytes, |search| ladder::climb(&self.pool, search));
            let origin = Origin { size_bytes: None, stream: Some(self.owner_stream), tag: self.tag_number() };
            self.pool.with_report(grown, &origin)?;
            self.count_change(size_bytes);
            self.size_bytes = size_bytes;
        }
        Ok(())
    }

    /// Shrinks the block to at most `size_bytes`: work queued after this call must not use the bytes beyond the new size. Memory that
    /// queued work may still use stays until that work is complete. Unused memory is released immediately, the rest at the next change of
    /// the block or when the pool releases memory. Handles are released as a whole, so up to a sixteenth of the block may stay.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`](crate::DeviceError::Driver) or [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) if a call fails. The block has its new size even then.
    pub fn shrink_to(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        not_forked()?;
        if size_bytes >= self.size_bytes {
            return Ok(());
        }
        self.count_change(size_bytes);
        self.size_bytes = size_bytes;
        growing(&self.pool)?.shrink_to(self.id, size_bytes, &self.stamps())
    }

    /// Records that work queued on `stream` uses the block, like [`Block::record_use`](crate::Block::record_use).
    pub fn record_use(&self, stream: &Stream) {
        if stream.id() != self.owner_stream && Arc::ptr_eq(stream.device().clocks(), self.device().clocks()) {
            uses::add(&self.uses, uses::with(0, stream.stream_index()));
            stream.note_named();
        }
    }

    fn count_change(&self, to_bytes: u64) {
        frames::count_change(&self.pool.tags, self.tag_number(), self.size_bytes, to_bytes);
    }

    fn tag_number(&self) -> u16 {
        self.tag.as_ref().map_or(0, |tag| tag.number)
    }

    fn stamps(&self) -> Vec<Stamp> {
        self.device().clocks().uses(self.owner_stream, self.uses.load(Ordering::Relaxed)).collect()
    }
}

fn growing(hub: &Hub) -> Result<&CachingPool, PoolError> {
    let what = "grow a block in place";
    hub.backend.growing().ok_or_else(|| match (hub.config().kind, hub.backend.has_plain_segments()) {
        (MemoryKind::Device, false) => PoolError::not_on(hub.backend.kind(), what, "`caching`"),
        (MemoryKind::Device, true) => PoolError::Unsupported(Unsupported::OnSegments { what }),
        (kind, _) => PoolError::not_with_kind(kind, what),
    })
}

impl Drop for GrowableBlock {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.count_change(0);
        if let Ok(growing) = growing(&self.pool) {
            growing.remove(self.id, &self.stamps());
        }
    }
}

debug_fields!(
    GrowableBlock, it,
    address: format_args!("{:#x}", it.address),
    size_bytes: it.size_bytes,
    max_bytes: it.max_bytes,
    home: it.owner_stream,
);

//! [`GpuPools`]: the pools of one `Gpu` and its forks, and streams for copies that must not wait behind other work.

use crate::error::ArrayError;
use core::ops::Deref;
use gpumem_pool::sys::fork;
use gpumem_pool::{Device, MemoryKind, Pool, Stream, not_forked};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A pool for each kind of memory, and idle streams of their device.
pub(crate) struct GpuPools {
    /// The pool that the `Gpu` was created with. It may be of any kind.
    first: Pool,
    unified: OnceLock<Pool>,
    pinned: OnceLock<Pool>,
    idle: Mutex<Vec<Stream>>,
}

/// A stream that nothing was queued on when it was lent. The host waits for the work on it before the drop, which returns it.
pub(crate) struct IdleStream<'a> {
    stream: Stream,
    pools: &'a GpuPools,
}

impl GpuPools {
    pub(super) fn new(first: &Pool) -> Self {
        let (unified, pinned, idle) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Self { first: first.clone(), unified, pinned, idle }
    }

    pub(super) fn first(&self) -> &Pool {
        &self.first
    }

    pub(super) fn device(&self) -> &Device {
        self.first.device()
    }

    /// The pool for memory of a kind, created at its first use.
    pub(crate) fn of(&self, kind: MemoryKind) -> Result<&Pool, ArrayError> {
        let Some(slot) = self.slot(kind) else { return Ok(&self.first) };
        if let Some(pool) = slot.get() {
            return Ok(pool);
        }
        let pool = if self.first.kind() == kind {
            self.first.clone()
        } else {
            Pool::builder(self.device()).kind(kind).build()?
        };
        // If another thread was faster, its pool is used, and this empty one is dropped.
        Ok(slot.get_or_init(|| pool))
    }

    /// The place of the pool for a kind that the host can access.
    pub(super) fn slot(&self, kind: MemoryKind) -> Option<&OnceLock<Pool>> {
        match kind {
            MemoryKind::Unified => Some(&self.unified),
            MemoryKind::Host => Some(&self.pinned),
            _ => None,
        }
    }

    pub(super) fn idle_stream(&self) -> Result<IdleStream<'_>, ArrayError> {
        not_forked()?;
        let idle = self.lock_idle().pop();
        let stream = match idle {
            Some(stream) => stream,
            None => Stream::new(self.device())?,
        };
        Ok(IdleStream { stream, pools: self })
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for IdleStream<'_> {
    type Target = Stream;
    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for IdleStream<'_> {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.pools.lock_idle().push(self.stream.clone());
    }
}

//! How a pool's adaptors are called: see [`adaptor`](crate::adaptor).

mod change;
mod grant;
mod peak;
mod request;
mod stack;

pub(crate) use change::After;
pub use change::Change;
pub(crate) use change::Subject;
pub use grant::{Grant, Release};
pub(crate) use peak::Peak;
pub use request::Request;
use stack::Call;
pub use stack::Next;
pub(crate) use stack::{Behind, Stack};

use crate::backend::{Allocation, FreeRequest};
pub use crate::config::pool_id::PoolId;
use crate::device::{Device, Stream};
use crate::error::PoolError;
#[cfg(doc)]
use crate::pool::block::Block;
use crate::pool::{StateRef, scope};
use crate::stats::Names;
use core::fmt;
use std::sync::Arc;

/// One behaviour around what a pool hands out; see [`PoolBuilder::adaptor`](crate::PoolBuilder::adaptor) and the ones that
/// are there: [`Budget`](crate::adaptor::Budget), [`Failures`](crate::adaptor::Failures), [`Guard`](crate::adaptor::Guard),
/// [`Fill`](crate::adaptor::Fill), [`Tracking`](crate::adaptor::Tracking), [`Fallback`](crate::adaptor::Fallback),
/// [`Trace`](crate::adaptor::Trace).
///
/// Hooks are called by any threads at once, `free` inside of drops. They may use this crate in any way, other pools
/// included; using the very pool that calls them calls them again.
///
/// ```
/// use gpumem_pool::{Device, Pool, PoolError, Stream};
/// use gpumem_sim::SimConfig;
/// use gpumem_pool::adaptor::{Adaptor, Grant, Next, Release, Request};
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
///
/// /// Counts the blocks that are larger than a megabyte.
/// #[derive(Default)]
/// struct Large(AtomicU64);
///
/// impl Adaptor for Large {
///     fn name(&self) -> &str {
///         "large"
///     }
///
///     fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
///         let grant = next.alloc(request)?;
///         self.0.fetch_add(u64::from(grant.size_bytes() > 1 << 20), Ordering::Relaxed);
///         Ok(grant)
///     }
///
///     fn free(&self, release: &Release<'_>) {
///         self.0.fetch_sub(u64::from(release.size_bytes() > 1 << 20), Ordering::Relaxed);
///     }
/// }
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let large = Arc::new(Large::default());
/// let pool = Pool::builder(&device).adaptor(large.clone()).build()?;
/// let stream = Stream::new(&device)?;
/// let blocks = [pool.alloc(100, &stream)?, pool.alloc(2 << 20, &stream)?];
/// assert_eq!(large.0.load(Ordering::Relaxed), 1);
/// drop(blocks);
/// assert_eq!(large.0.load(Ordering::Relaxed), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Adaptor: Send + Sync {
    /// What errors and `Debug` call it.
    fn name(&self) -> &str {
        core::any::type_name::<Self>()
    }

    /// A pool is made with it.
    fn open(&self, opening: &Opening<'_>) {
        let _ = opening;
    }

    /// Memory for a request: from `next`, usually, or from another pool ([`Grant::from_block`]).
    ///
    /// # Errors
    ///
    /// Whatever it refuses, [`PoolError::Refused`] if nothing else fits. What it was granted and does not return is freed.
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        next.alloc(request)
    }

    /// Memory that it returned from [`Adaptor::alloc`] is about to be given back. Books are changed here, so before somebody
    /// else can have the same address. Must not wait.
    fn free(&self, release: &Release<'_>) {
        let _ = release;
    }

    /// A block that grows is about to have more memory.
    ///
    /// # Errors
    ///
    /// Whatever it refuses. Those that had agreed before hear of [`Adaptor::shrink`] then.
    fn grow(&self, change: &Change<'_>) -> Result<(), PoolError> {
        let _ = change;
        Ok(())
    }

    /// It has it, and its user not yet. The innermost hears of it first.
    ///
    /// # Errors
    ///
    /// Whatever it could not do. The block becomes as small as it was then.
    fn grown(&self, change: &Change<'_>) -> Result<(), PoolError> {
        let _ = change;
        Ok(())
    }

    /// A block that grows is about to have less memory, in the end none; or it has not become as large as it was to be
    /// ([`Change::is_undone`]). Must not wait.
    fn shrink(&self, change: &Change<'_>) {
        let _ = change;
    }

    /// The last handle of a pool goes. Its blocks that are still there are freed later.
    fn close(&self, pool: PoolId) {
        let _ = pool;
    }
}

impl fmt::Debug for dyn Adaptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A pool that is made with an adaptor.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    device: &'a Device,
    stack: &'a Stack,
}

impl<'a> Opening<'a> {
    /// Its name, for as long as it lives.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.stack.id()
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Of its tags, present ones and to come.
    pub(crate) fn names(&self) -> &'a Arc<Names> {
        self.stack.names()
    }
}

impl fmt::Debug for Opening<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("pool", &self.pool()).field("device", self.device).finish()
    }
}

impl StateRef {
    /// Memory through all adaptors, for a request that has been looked at; `finish` has what is no plain allocation. Part of its
    /// caller, so that an allocation's fields go from the answer to where they are wanted.
    #[inline(always)]
    pub(crate) fn alloc_adapted(
        self,
        stack: &Stack,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
        finish: impl FnOnce(Result<Allocation, PoolError>) -> Result<(Allocation, u64), PoolError>,
    ) -> Result<(Allocation, u64), PoolError> {
        let call = Call { stack, pool: self, stream, tag: scope::innermost(self.tags()) };
        let request = Request::new(size_bytes, alignment, &call);
        let answer = call.begin(&request);
        if let Some(allocation) = call.plain_allocation(&answer, &request) {
            // It is the block's now.
            core::mem::forget(answer);
            return Ok((allocation, 0));
        }
        finish(call.finish(answer, &request))
    }

    /// A block of a pool with adaptors is dropped. The pool may be gone afterwards.
    #[inline]
    pub(crate) fn free_adapted(self, stack: &Stack, freed: &FreeRequest) {
        match freed.allocation.is_special() {
            false => self.release_plain(stack, freed),
            true => {
                // It is there: the number is this block's alone.
                if let Some(holding) = stack.take_back(freed.allocation.record()) {
                    self.release(holding, freed.uses, freed.is_complete);
                }
            }
        }
    }
}

//! The calls of a pool's adaptors; see [`adaptor`](crate::adaptor).

mod change;
mod grant;
mod peak;
mod request;
mod settings;
mod stack;

pub use change::Change;
pub(crate) use change::Subject;
pub use grant::{Grant, Release};
pub(crate) use peak::Peak;
pub use request::Request;
pub use settings::PoolSettings;
pub(crate) use settings::{Figures, Gauge};
use stack::Call;
pub use stack::Next;
pub(crate) use stack::{BackingAllocation, Stack};

use crate::backend::{Allocation, FreeRequest};
pub use crate::config::PoolId;
use crate::device::{Device, PeerDevice, Stream};
use crate::error::PoolError;
#[cfg(doc)]
use crate::pool::block::Block;
use crate::pool::{Origin, StateRef, Witness, scope};
use crate::stats::Names;
use core::fmt;
use gpumem_sys::fork;
use gpumem_sys::text::Shown;
use std::sync::Arc;

/// Behaviour around a pool's allocations and frees; see [`PoolBuilder::adaptor`](crate::PoolBuilder::adaptor). The crate provides
/// [`Budget`](crate::adaptor::Budget), [`Failures`](crate::adaptor::Failures), [`Guard`](crate::adaptor::Guard),
/// [`Fill`](crate::adaptor::Fill), [`Tracking`](crate::adaptor::Tracking), [`Fallback`](crate::adaptor::Fallback) and
/// [`Trace`](crate::adaptor::Trace).
///
/// Threads may call the hooks concurrently, and `free` runs inside drops. Hooks may use this crate in any way, including other pools. A
/// hook that uses its own pool is called recursively.
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
#[allow(unused_variables, reason = "the default functions do nothing")]
pub trait Adaptor: Send + Sync {
    /// Returns the name for errors and `Debug`.
    fn name(&self) -> &str {
        core::any::type_name::<Self>()
    }

    /// Called when a pool is built with this adaptor.
    fn open(&self, opening: &Opening<'_>) {}

    /// Returns memory for a request, usually from `next`, or from another pool ([`Grant::from_block`]).
    ///
    /// # Errors
    ///
    /// The adaptor's refusal: [`PoolError::Refused`] if no other variant fits. Grants that are not returned are
    /// freed.
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        next.alloc(request)
    }

    /// Called before memory that the adaptor returned from [`Adaptor::alloc`] is freed. Update bookkeeping here, before
    /// another allocation can get this address. Must not wait.
    fn free(&self, release: &Release<'_>) {}

    /// Called before a growable block gets more memory.
    ///
    /// # Errors
    ///
    /// The adaptor's refusal: [`PoolError::Refused`] if no other variant fits. [`Adaptor::shrink`] is then called on the adaptors that have already agreed.
    fn grow(&self, change: &Change<'_>) -> Result<(), PoolError> {
        Ok(())
    }

    /// Called after a growable block has grown, and before the program may use the new memory. The innermost adaptor is
    /// called first.
    ///
    /// # Errors
    ///
    /// The adaptor's failure: [`PoolError::Refused`] if no other variant fits. The block then returns to its earlier size.
    fn grown(&self, change: &Change<'_>) -> Result<(), PoolError> {
        Ok(())
    }

    /// Called before a growable block loses memory, including when it is dropped or when a growth fails ([`Change::is_undone`]). Must not
    /// wait.
    fn shrink(&self, change: &Change<'_>) {}

    /// Lets another device use the memory of other pools that the adaptor's grants come from.
    ///
    /// # Errors
    ///
    /// The errors of [`Pool::enable_peer_access`](crate::Pool::enable_peer_access).
    #[doc(hidden)]
    fn open_to(&self, peer: PeerDevice) -> Result<(), PoolError> {
        Ok(())
    }

    /// Called when the last handle of a pool is dropped. Blocks that are still alive are freed later.
    fn close(&self, pool: PoolId) {}
}

impl fmt::Debug for dyn Adaptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown::name(self.name()).fmt(f)
    }
}

/// A pool that is built with an adaptor.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    device: &'a Device,
    stack: &'a Stack,
    settings: &'a PoolSettings,
    gauge: &'a Gauge,
}

impl<'a> Opening<'a> {
    /// Returns the pool's identifier, which is constant for the pool's lifetime.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.stack.id()
    }

    /// Returns the pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Returns the settings of the pool.
    pub(crate) fn settings(&self) -> &'a PoolSettings {
        self.settings
    }

    /// Returns the pool's gauge.
    pub(crate) fn gauge(&self) -> &'a Gauge {
        self.gauge
    }

    /// Passes the refusals that end a request of this pool to `witness`.
    pub(crate) fn add_witness(&self, witness: Arc<dyn Witness>) {
        self.stack.add_witness(witness);
    }

    /// Returns the names of the pool's tags, including those added later.
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
    /// Allocates through all adaptors, for a request that has been checked. Returns the allocation and its initial uses: none. Inlined, so
    /// that the allocation's fields move directly to where the caller needs them.
    #[inline(always)]
    pub(crate) fn alloc_adapted(
        self,
        stack: &Stack,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<(Allocation, u64), PoolError> {
        let call = Call { stack, pool: self, stream, tag: scope::innermost(self.tags()) };
        let request = Request::new(size_bytes, alignment, &call);
        let answer = call.begin(&request);
        if let Some(allocation) = call.plain_allocation(&answer, &request) {
            // The allocation belongs to the block now.
            core::mem::forget(answer);
            return Ok((allocation, 0));
        }
        self.finish_adapted(&call, answer, &request)
    }

    /// Handles every answer that is not a plain allocation. A refusal by a budget runs the reclaim callbacks and repeats
    /// the request.
    #[inline(never)]
    fn finish_adapted(
        self,
        call: &Call<'_>,
        answer: Result<Grant, PoolError>,
        request: &Request<'_>,
    ) -> Result<(Allocation, u64), PoolError> {
        let again = || call.finish(call.begin(request), request);
        let finished = call.finish(answer, request);
        let finished = finished.or_else(|error| self.retry_over_budget(error, again));
        let origin =
            Origin { size_bytes: Some(request.size_bytes()), stream: Some(call.stream.id()), tag: call.tag };
        Ok((self.with_report(finished, &origin)?, 0))
    }

    /// Frees a block of a pool with adaptors. The pool may be gone afterwards.
    #[inline]
    pub(crate) fn free_adapted(self, stack: &Stack, freed: &FreeRequest) {
        if fork::is_child() {
            return;
        }
        match freed.allocation.is_special() {
            false => self.release_plain(stack, freed),
            true => {
                // The entry exists, because its number belongs to this block alone.
                if let Some(holding) = stack.take_back(freed.allocation.record()) {
                    self.release(holding, freed.uses, freed.is_complete);
                }
            }
        }
    }
}

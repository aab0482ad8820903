//! The calls of a pool's adaptors; see [`adaptor`](crate::adaptor). [`Stack`]: a pool's adaptors, and the records of blocks that are not
//! plain backend allocations. [`Grant`]: memory that passes through the adaptors to the program.
//!
//! A grant, and a [`Release`] on the way back, are views of a [`Holding`], which records the source of the memory and how each adaptor has
//! narrowed it. A holding that is an unchanged backend allocation needs no record besides the block. Any other holding is an entry of the
//! [`Stack`], and its block stores the entry's number instead of the backend's record. Each such block therefore has its own entry, even if
//! other blocks start at the same address, and the holding ends with that block.

mod opening;
mod release;
mod request;
mod settings;

pub use opening::Opening;
pub use release::Release;
pub use request::Request;
pub(crate) use settings::Figures;
pub use settings::PoolSettings;

use crate::backend::{Allocation, FreeRequest};
use crate::config::ALIGNMENT_MIN;
pub use crate::config::PoolId;
use crate::error::PoolError;
use crate::pool::alignment::check_alignment;
use crate::pool::block::Block;
use crate::pool::frames;
use crate::pool::hub::Hub;
use crate::pool::request::found;
use crate::pool::state::StateRef;
use core::cell::Cell;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_base::sync::Lock;
use gpumem_device::internal::{PeerDevice, catch_panic, forget};
use gpumem_device::{CaptureError, DeviceError, Stream, StreamId};
use gpumem_sys::fork;
use gpumem_sys::text::{Shown, debug_fields};
use gpumem_sys::types::CUdeviceptr;
use request::RequestedFrom;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

    /// True if a pool with this adaptor may have growable blocks. The adaptor does not see them.
    #[doc(hidden)]
    fn allows_growable_blocks(&self) -> bool {
        false
    }

    /// True if the adaptor sees requests only at some times, which it decides. Unless another adaptor of its pool sees all of them, the
    /// pool's requests take the fast path at other times.
    #[doc(hidden)]
    fn starts_idle(&self) -> bool {
        false
    }

    /// True while an adaptor that [`starts_idle`](Self::starts_idle) sees no requests.
    #[doc(hidden)]
    fn is_idle(&self) -> bool {
        false
    }

    /// Called for each pool when the adaptor stops being idle, and for pools that are built later, before their first request.
    #[doc(hidden)]
    fn begin(&self, opening: &Opening<'_>) {}

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

pub(crate) struct Stack {
    adaptors: Box<[Arc<dyn Adaptor>]>,
    /// False while all adaptors are idle: requests and frees pass none of them.
    is_open: AtomicBool,
    /// True if one of the adaptors is never idle.
    #[cfg(feature = "status-socket")]
    stays_open: bool,
    /// The holdings of blocks that are not plain backend allocations.
    holdings: Lock<Holdings>,
}

/// Holdings by number. Each belongs to the block whose record is its number. An address would not identify a holding, because nested blocks
/// may start at the same address.
#[derive(Default)]
struct Holdings {
    all: Vec<Option<Holding>>,
    free: Vec<u32>,
}

/// A request of the program, on its way through all adaptors.
pub(crate) struct AdaptedCall<'a> {
    stack: &'a Stack,
    pool: StateRef,
    from: RequestedFrom<'a>,
}

/// The adaptors inside the current one, and the backend.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    call: &'a AdaptedCall<'a>,
    level: usize,
}

impl Next<'_> {
    /// Passes a request to the next adaptor or to the backend. May be called any number of times: grants that are not
    /// returned are freed.
    ///
    /// # Errors
    ///
    /// - The errors of [`Pool::alloc`](crate::Pool::alloc).
    /// - [`PoolError::BadArgument`] for an invalid alignment.
    /// - [`PoolError::Refused`] if an adaptor returns memory that does not match the request.
    /// - [`DeviceError::Capture`] if an adaptor has made the stream begin a capture.
    /// - Any other error of an adaptor.
    pub fn alloc(&self, request: &Request<'_>) -> Result<Grant, PoolError> {
        let Self { call, level } = *self;
        // Only size and alignment come from `request`, which may belong to another call.
        let (size_bytes, alignment) = (request.size_bytes(), request.alignment());
        if alignment > ALIGNMENT_MIN || !call.from.stream.is_owned() {
            call.check_request(alignment)?;
        }
        match call.stack.adaptors.get(level) {
            Some(adaptor) => call.ask(&**adaptor, &call.request(size_bytes, alignment), level),
            None => call.alloc_inside(size_bytes, alignment),
        }
    }
}

impl<'a> AdaptedCall<'a> {
    #[inline(always)]
    pub(crate) fn new(stack: &'a Stack, pool: &'a StateRef, stream: &'a Stream) -> Self {
        let from = RequestedFrom { hub: pool, stream, tag: frames::innermost(&pool.tags) };
        Self { stack, pool: *pool, from }
    }

    #[inline(always)]
    pub(crate) fn request(&self, size_bytes: u64, alignment: u64) -> Request<'_> {
        Request::new(size_bytes, alignment, &self.from)
    }

    /// Starts at the outermost adaptor, with a request that has been checked.
    #[inline(always)]
    pub(crate) fn begin(&self, request: &Request<'_>) -> Result<Grant, PoolError> {
        match self.stack.adaptors.first() {
            Some(outermost) => outermost.alloc(request, Next { call: self, level: 1 }),
            None => self.alloc_inside(request.size_bytes(), request.alignment()),
        }
    }

    /// Returns the allocation of an answer that is a plain backend allocation of exactly the requested size.
    #[inline(always)]
    pub(crate) fn plain_allocation(
        &self,
        answer: &Result<Grant, PoolError>,
        request: &Request<'_>,
    ) -> Option<Allocation> {
        let grant = answer.as_ref().ok().filter(|_| self.is_fast_path())?;
        let (allocation, size_bytes) = grant.plain_answer(request, self, 0)?;
        if size_bytes == request.size_bytes() { Some(allocation) } else { None }
    }

    /// Handles every other answer of `begin`.
    #[inline(never)]
    pub(crate) fn finish(
        &self,
        answer: Result<Grant, PoolError>,
        request: &Request<'_>,
    ) -> Result<Allocation, PoolError> {
        let mut grant = answer?;
        self.check_answer(&mut grant, request, 0)?;
        self.hand_out(grant, request.size_bytes())
    }

    #[inline]
    fn ask(&self, adaptor: &dyn Adaptor, request: &Request<'_>, level: usize) -> Result<Grant, PoolError> {
        let mut answer = adaptor.alloc(request, Next { call: self, level: level + 1 });
        if let Ok(grant) = &mut answer {
            if self.is_fast_path()
                && let Some((allocation, size_bytes)) = grant.plain_answer(request, self, level)
            {
                // Builds a new grant from known values instead of copying the answer. The copy would load the fields with a different width
                // than their preceding stores, which stalls the processor.
                core::mem::forget(answer);
                return Ok(Grant::own(self, allocation, size_bytes, level));
            }
            self.check_answer(grant, request, level)?;
        }
        answer
    }

    #[cold]
    fn check_request(&self, alignment: u64) -> Result<(), PoolError> {
        check_alignment(alignment)?;
        // The adaptor may call from a different thread than the program, or may have retired the stream.
        Ok(self.from.stream.check_usable()?)
    }

    #[inline(always)]
    fn alloc_inside(&self, size_bytes: u64, alignment: u64) -> Result<Grant, PoolError> {
        let allocation = match self.pool.hit(size_bytes, alignment, self.from.stream) {
            Some(allocation) => allocation,
            None => {
                self.check_no_capture()?;
                found::from_backend(&self.pool, size_bytes, alignment, self.from.stream)?
            }
        };
        Ok(Grant::own(self, allocation, size_bytes, self.stack.adaptors.len()))
    }

    #[inline]
    fn is_fast_path(&self) -> bool {
        self.from.stream.is_owned() && !self.pool.has_captures()
    }

    /// Adaptors are never called for a capturing stream, but an adaptor can begin a capture.
    fn check_no_capture(&self) -> Result<(), PoolError> {
        if self.pool.has_captures() && self.from.stream.captures_for()?.is_some() {
            Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable {
                operation: "allocating after an adaptor began it",
            })))
        } else {
            Ok(())
        }
    }

    #[inline(never)]
    fn check_answer(&self, grant: &mut Grant, request: &Request<'_>, level: usize) -> Result<(), PoolError> {
        self.from.stream.check_usable()?;
        self.check_no_capture()?;
        if let Some(reason) = grant.mismatch(request, self.pool, level) {
            return Err(self.stack.refusal(level, request.size_bytes(), reason));
        }
        if grant.is_pending_for_host() {
            self.from.stream.finish()?;
        }
        grant.pass(self.pool, level);
        Ok(())
    }

    /// Converts a grant that has passed all adaptors to the allocation of a block of this size.
    fn hand_out(&self, grant: Grant, size_bytes: u64) -> Result<Allocation, PoolError> {
        if let Some(allocation) = grant.plain_allocation(size_bytes) {
            core::mem::forget(grant);
            return Ok(allocation);
        }
        let (address, stack) = (grant.address(), self.stack);
        // Unlocked first: a release may lock it again.
        let added = stack.holdings.lock().add(grant.into_holding());
        added.map(|number| Allocation::special(address, number)).map_err(|holding| {
            stack.release(self.pool, holding, 0, false);
            let reason = "returned more blocks that are not the backend's than can be counted";
            stack.refusal(0, size_bytes, reason)
        })
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.call.stack.adaptors.iter().skip(self.level)).finish()
    }
}

impl Holdings {
    /// Returns the number of the new entry, or the holding if numbers ran out.
    fn add(&mut self, holding: Holding) -> Result<u32, Holding> {
        let free = self.free.pop();
        let Some(number) = free.or_else(|| u32::try_from(self.all.len()).ok()) else { return Err(holding) };
        match self.all.get_mut(number as usize) {
            Some(entry) => *entry = Some(holding),
            None => self.all.push(Some(holding)),
        }
        Ok(number)
    }

    fn get(&self, number: u32) -> Option<&Holding> {
        self.all.get(number as usize)?.as_ref()
    }

    fn take(&mut self, number: u32) -> Option<Holding> {
        let holding = self.all.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(holding)
    }
}

impl Stack {
    pub(crate) fn new(added: &[Arc<dyn Adaptor>]) -> Option<Self> {
        if added.is_empty() {
            return None;
        }
        let stays_open = added.iter().any(|adaptor| !adaptor.starts_idle());
        Some(Self {
            adaptors: added.iter().rev().cloned().collect(),
            is_open: AtomicBool::new(stays_open),
            #[cfg(feature = "status-socket")]
            stays_open,
            holdings: Lock::default(),
        })
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Opens the stack for adaptors that were idle, or closes it unless other adaptors need it.
    #[cfg(feature = "status-socket")]
    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open || self.stays_open, Ordering::SeqCst);
    }

    pub(crate) fn open(&self, hub: &Hub) {
        let opening = Opening { hub, settings: &PoolSettings::new(hub) };
        self.adaptors.iter().for_each(|adaptor| adaptor.open(&opening));
    }

    pub(crate) fn close(&self, pool: PoolId) {
        // A drop must not panic.
        self.adaptors.iter().for_each(|adaptor| drop(catch_panic(|| adaptor.close(pool))));
    }

    fn refusal(&self, level: usize, requested_bytes: u64, reason: &str) -> PoolError {
        let adaptor = self.adaptors.get(level).map(|adaptor| adaptor.name().into()).unwrap_or_default();
        PoolError::Refused { adaptor, requested_bytes, reason: reason.into(), origin: None }
    }

    /// Returns the allocation that contains a live block, for blocks that are not plain allocations, and its pool if that is another one.
    pub(crate) fn backing_allocation(&self, number: u32) -> Option<(Option<StateRef>, Allocation)> {
        if fork::is_child() {
            return None;
        }
        self.holdings.lock().get(number).and_then(|holding| match &holding.memory {
            HeldMemory::Whole(mark) => Some((None, Allocation::from_mark(holding.address, *mark))),
            HeldMemory::Special(special) => Some(match &special.source {
                Lender::Own { allocation, .. } => (None, *allocation),
                Lender::Other(block) => (Some(block.pool), block.allocation()),
            }),
            HeldMemory::Gone => None,
        })
    }

    pub(crate) fn nesting(&self, number: u32) -> usize {
        if fork::is_child() {
            return 0;
        }
        self.holdings.lock().get(number).map_or(0, Holding::nesting)
    }

    /// Refuses a growable block if an adaptor must see every byte of its pool.
    pub(crate) fn check_growable(&self, max_bytes: u64) -> Result<(), PoolError> {
        match self.adaptors.iter().position(|adaptor| !adaptor.allows_growable_blocks()) {
            Some(level) => Err(self.refusal(level, max_bytes, "does not support growable blocks")),
            None => Ok(()),
        }
    }

    #[inline]
    pub(crate) fn free(&self, pool: StateRef, freed: &FreeRequest) {
        if fork::is_child() {
            return;
        }
        match freed.allocation.is_special() {
            false => self.release_plain(pool, freed),
            true => {
                // The entry exists, because its number belongs to this block alone. Unlocked before the release, which may lock it again.
                let taken = self.holdings.lock().take(freed.allocation.record());
                if let Some(holding) = taken {
                    self.release(pool, holding, freed.uses, freed.is_complete);
                }
            }
        }
    }

    /// Frees a block that is a backend allocation: notifies all adaptors, outermost first, and returns the memory. The pool may be gone
    /// afterwards.
    fn release_plain(&self, pool: StateRef, freed: &FreeRequest) {
        let FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete, .. } = *freed;
        let is_complete = Cell::new(is_complete);
        let place = (allocation.address, size_bytes);
        let release = released(&pool, place, place, (owner_stream, uses), &is_complete);
        let mut adaptors = self.adaptors.iter();
        while !notify_free(&mut adaptors, &release) {}
        // No adaptor runs after this point, so the free may end the pool and its adaptors.
        pool.free_own(allocation, size_bytes, owner_stream, uses, is_complete.get());
    }

    /// Notifies the adaptors that the holding has passed, and returns the memory. The pool may be gone afterwards.
    fn release(&self, pool: StateRef, mut holding: Holding, uses: u64, is_complete: bool) {
        let is_complete = Cell::new(is_complete);
        for (level, adaptor) in self.adaptors.iter().enumerate().take(holding.depth).skip(holding.level) {
            let whole = holding.widen_to(level);
            let Holding { address, size_bytes, owner_stream, .. } = holding;
            let place = (address, size_bytes);
            let release = released(&pool, place, whole, (owner_stream, uses), &is_complete);
            // A drop must not panic.
            let _ = catch_panic(|| adaptor.free(&release));
        }
        let is_complete = is_complete.get();
        // No adaptor runs after this point, so the free may end the pool and its adaptors.
        match holding.memory {
            HeldMemory::Whole(mark) => {
                let allocation = Allocation::from_mark(holding.address, mark);
                pool.free_own(allocation, holding.size_bytes, holding.owner_stream, uses, is_complete);
            }
            HeldMemory::Special(special) => match special.source {
                Lender::Own { allocation, size_bytes } => {
                    pool.free_own(allocation, size_bytes, holding.owner_stream, uses, is_complete);
                }
                Lender::Other(block) => pool.free_other(block, uses, is_complete),
            },
            HeldMemory::Gone => {}
        }
    }

    /// Frees a grant that an adaptor has dropped. While streams capture, the memory stays for a graph, like that of a block.
    fn drop_granted(&self, pool: StateRef, holding: Holding) {
        if !pool.has_captures() {
            return self.release(pool, holding, 0, false);
        }
        let (address, size_bytes, owner_stream) = (holding.address, holding.size_bytes, holding.owner_stream);
        // Unlocked first: the free takes the lock.
        let added = self.holdings.lock().add(holding);
        match added {
            Ok(record) => {
                let allocation = Allocation::special(address, record);
                pool.free(&FreeRequest {
                    allocation,
                    size_bytes,
                    owner_stream,
                    uses: 0,
                    is_complete: false,
                    behind: None,
                });
            }
            Err(holding) => self.release(pool, holding, 0, false),
        }
    }
}

/// Returns the view of released memory for an adaptor: `place` is the range that it passed on, `whole` includes what it hid.
fn released<'a>(
    hub: &'a Hub,
    (address, size_bytes): (CUdeviceptr, u64),
    whole: (CUdeviceptr, u64),
    (owner_stream, uses): (StreamId, u64),
    is_complete: &'a Cell<bool>,
) -> Release<'a> {
    let (device, pool) = (hub.device(), hub.id());
    Release { address, size_bytes, whole, owner_stream, uses, device, pool, is_complete }
}

/// Memory that an adaptor obtained from the next adaptor, or from another source, and passes on. Dropping the grant
/// frees the memory.
#[must_use = "dropping it gives the memory back"]
pub struct Grant {
    holding: Holding,
    /// The pool whose adaptors the grant passes. `None` for another pool's block that has not passed an adaptor
    /// yet.
    pool: Option<StateRef>,
}

/// The source of the memory, and the usable range. The fields of an allocation are deliberately not adjacent: the compiler would read
/// adjacent fields in one wide load, which stalls right after two narrower stores.
#[repr(C)]
struct Holding {
    address: CUdeviceptr,
    size_bytes: u64,
    owner_stream: StreamId,
    /// The level of the last adaptor that the holding has left. The next one on the way out is at `level - 1`.
    level: usize,
    /// The end of the range of levels, starting at `level`, whose adaptors the holding has passed on its way out. Those adaptors are
    /// notified of its free.
    depth: usize,
    memory: HeldMemory,
}

enum HeldMemory {
    /// An allocation of the pool's own backend, as large as the holding. The value holds the allocation's data except its address.
    Whole(u64),
    /// Part of a backend allocation, or a block of another pool.
    Special(Box<Special>),
    Gone,
}

struct Special {
    source: Lender,
    /// The outermost narrowing comes last.
    narrowings: Vec<Narrowing>,
    /// The depth to which blocks of other pools are nested here.
    nesting: usize,
    /// True if the memory is unused since its pool allocated it. If so, and if the host may use it, earlier users
    /// are complete.
    is_fresh: bool,
}

enum Lender {
    Own { allocation: Allocation, size_bytes: u64 },
    Other(Block),
}

struct Narrowing {
    level: usize,
    address: CUdeviceptr,
    size_bytes: u64,
}

/// The maximum nesting of blocks. The free of each block frees the block within it.
const NESTING_MAX: usize = 64;

impl Grant {
    /// Creates a grant from a block of another pool. The block must be on the request's device and stream, and must
    /// have no recorded uses on other streams.
    ///
    /// Work queued on the block's stream may still use the block. If the host may use its memory too, the request therefore waits for that
    /// stream; [`Grant::from_pool`] avoids this wait.
    pub fn from_block(block: Block) -> Self {
        Self::lent(block, false)
    }

    /// Returns the start address.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.holding.address
    }

    /// Returns the usable size in bytes, which is at least the requested size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.holding.size_bytes
    }

    /// Narrows the grant to `size_bytes` after the first `front_bytes`. The bytes before and after are hidden from
    /// the outer adaptors and the program; the adaptor that narrows the grant finds them in [`Release::whole`].
    /// Returns false, without a change, if the grant is too small or if `size_bytes` is 0.
    #[must_use = "false if there is not as much"]
    pub fn narrow(&mut self, front_bytes: u64, size_bytes: u64) -> bool {
        let holding = &mut self.holding;
        let is_within =
            front_bytes.checked_add(size_bytes).is_some_and(|end_bytes| end_bytes <= holding.size_bytes);
        if !is_within || size_bytes == 0 {
            return false;
        }
        // The narrowing belongs to the adaptor that has the grant now. Repeated narrowings by one adaptor are
        // recorded as one.
        let level = holding.level.saturating_sub(1);
        let (address, whole_bytes) = (holding.address, holding.size_bytes);
        let Some(special) = holding.special() else { return false };
        if special.narrowings.last().is_none_or(|last| last.level != level) {
            special.narrowings.push(Narrowing { level, address, size_bytes: whole_bytes });
        }
        holding.address += front_bytes;
        holding.size_bytes = size_bytes;
        // Before the adaptor can write the hidden bytes.
        if let Some(pool) = self.origin() {
            pool.sleep_state.note_hidden_bytes();
        }
        true
    }

    pub(crate) fn lent(block: Block, is_fresh: bool) -> Self {
        let (owner_stream, address, size_bytes) = (block.stream_id(), block.address(), block.size_bytes());
        let nesting = block.nesting() + 1;
        let special = Special { source: Lender::Other(block), narrowings: Vec::new(), nesting, is_fresh };
        let memory = HeldMemory::Special(Box::new(special));
        Self {
            holding: Holding { address, size_bytes, owner_stream, level: 0, depth: 0, memory },
            pool: None,
        }
    }

    /// True if the host may use the memory immediately, because all earlier uses are complete.
    pub(crate) fn is_for_host(&self) -> bool {
        self.origin().is_some_and(|pool| pool.is_for_host)
    }

    fn origin(&self) -> Option<StateRef> {
        match self.holding.lent() {
            Some(block) => Some(block.origin()),
            None => self.pool,
        }
    }

    /// Creates a grant for a backend allocation that has left the adaptor at `level`, or that comes directly from
    /// the backend.
    #[inline]
    fn own(call: &AdaptedCall<'_>, allocation: Allocation, size_bytes: u64, level: usize) -> Self {
        let (owner_stream, depth, memory) =
            (call.from.stream.id(), call.stack.adaptors.len(), HeldMemory::Whole(allocation.mark));
        let holding = Holding { address: allocation.address, size_bytes, owner_stream, level, depth, memory };
        Self { holding, pool: Some(call.pool) }
    }

    /// Returns the backend's allocation and its size, if the grant is an unchanged answer of the next adaptor that
    /// matches this request of the adaptor at `level`.
    #[inline]
    fn plain_answer(
        &self,
        request: &Request<'_>,
        call: &AdaptedCall<'_>,
        level: usize,
    ) -> Option<(Allocation, u64)> {
        let HeldMemory::Whole(mark) = self.holding.memory else { return None };
        let Holding { address, size_bytes, .. } = self.holding;
        let is_answer = self.pool == Some(call.pool)
            && self.holding.level == level + 1
            && self.holding.owner_stream == request.stream().id()
            && size_bytes >= request.size_bytes()
            && address & (request.alignment() - 1) == 0;
        if is_answer { Some((Allocation::from_mark(address, mark), size_bytes)) } else { None }
    }

    /// Returns the backend's allocation, if a block of this size needs nothing else.
    #[inline]
    fn plain_allocation(&self, size_bytes: u64) -> Option<Allocation> {
        match self.holding.memory {
            HeldMemory::Whole(mark) if self.holding.size_bytes == size_bytes => {
                Some(Allocation::from_mark(self.holding.address, mark))
            }
            _ => None,
        }
    }

    /// Returns the reason why the grant is not a valid answer of the adaptor at `level` to a request of this pool, or `None` if it is
    /// valid.
    fn mismatch(&self, request: &Request<'_>, pool: StateRef, level: usize) -> Option<&'static str> {
        let Holding { owner_stream, address, size_bytes, .. } = self.holding;
        match (self.pool, self.holding.lent()) {
            (Some(own), _) if own != pool => Some("returned memory of another pool's adaptors"),
            (Some(_), _) if self.holding.level != level + 1 => {
                Some("returned memory that is not from the next adaptor")
            }
            (None, Some(block)) if block.device() != request.device() => {
                Some("returned a block of another device")
            }
            (None, Some(block)) if block.is_recorded() => Some("returned a block that other streams use"),
            (None, _) if self.holding.nesting() > NESTING_MAX => {
                Some("returned a block that is nested more than 64 pools deep")
            }
            _ if pool.is_for_host && !self.is_for_host() => Some("returned memory that the host cannot use"),
            _ if owner_stream != request.stream().id() => Some("returned memory of another stream"),
            _ if size_bytes < request.size_bytes() => Some("returned less than was asked for"),
            _ if !address.is_multiple_of(request.alignment()) => Some("returned memory that is not aligned"),
            _ => None,
        }
    }

    /// True if queued work may still use the memory although the host may access it immediately.
    fn is_pending_for_host(&self) -> bool {
        let is_fresh = match &self.holding.memory {
            HeldMemory::Special(special) => special.is_fresh,
            HeldMemory::Whole(_) | HeldMemory::Gone => true,
        };
        self.pool.is_none() && !is_fresh && self.is_for_host()
    }

    /// Marks the grant as having left the adaptor at `level`.
    fn pass(&mut self, pool: StateRef, level: usize) {
        if self.pool.is_none() {
            self.bring_in(pool, level);
        }
        self.holding.level = level;
    }

    /// Counts another pool's block as a block of this pool.
    fn bring_in(&mut self, pool: StateRef, level: usize) {
        self.holding.depth = level + 1;
        if let HeldMemory::Special(special) = &mut self.holding.memory {
            special.narrowings.iter_mut().for_each(|own| own.level = level);
        }
        self.pool = Some(pool);
        pool.count_other();
    }

    fn into_holding(mut self) -> Holding {
        self.holding.take()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let holding = self.holding.take();
        match self.pool {
            _ if matches!(holding.memory, HeldMemory::Gone) => {}
            Some(pool) => {
                if let Some(stack) = pool.stack_of_grants() {
                    stack.drop_granted(pool, holding);
                }
            }
            None => drop(holding),
        }
    }
}

debug_fields!(Grant, it, address: format_args!("{:#x}", it.address()), size_bytes: it.size_bytes());

impl Holding {
    #[inline]
    fn take(&mut self) -> Self {
        let Self { address, size_bytes, owner_stream, level, depth, ref mut memory } = *self;
        let memory = core::mem::replace(memory, HeldMemory::Gone);
        Self { address, size_bytes, owner_stream, level, depth, memory }
    }

    /// Returns the block of another pool that contains this memory.
    fn lent(&self) -> Option<&Block> {
        match &self.memory {
            HeldMemory::Special(special) => match &special.source {
                Lender::Own { .. } => None,
                Lender::Other(block) => Some(block),
            },
            HeldMemory::Whole(_) | HeldMemory::Gone => None,
        }
    }

    fn nesting(&self) -> usize {
        match &self.memory {
            HeldMemory::Special(special) => special.nesting,
            HeldMemory::Whole(_) | HeldMemory::Gone => 0,
        }
    }

    /// Converts the memory to `Special`, before a narrowing. Returns `None` if the memory has been moved out.
    fn special(&mut self) -> Option<&mut Special> {
        if let HeldMemory::Whole(mark) = self.memory {
            let allocation = Allocation::from_mark(self.address, mark);
            let source = Lender::Own { allocation, size_bytes: self.size_bytes };
            let special = Special { source, narrowings: Vec::new(), nesting: 0, is_fresh: true };
            self.memory = HeldMemory::Special(Box::new(special));
        }
        match &mut self.memory {
            HeldMemory::Special(special) => Some(special),
            HeldMemory::Whole(_) | HeldMemory::Gone => None,
        }
    }

    /// Undoes the narrowings of the adaptors outside `level`. Returns the whole range of the adaptor at `level`.
    fn widen_to(&mut self, level: usize) -> (CUdeviceptr, u64) {
        let Self { address, size_bytes, memory, .. } = self;
        let HeldMemory::Special(special) = memory else { return (*address, *size_bytes) };
        while let Some(outer) = special.narrowings.pop_if(|last| last.level < level) {
            (*address, *size_bytes) = (outer.address, outer.size_bytes);
        }
        let own = special.narrowings.last().filter(|last| last.level == level);
        own.map_or((*address, *size_bytes), |own| (own.address, own.size_bytes))
    }
}

/// Notifies adaptors of a free, up to and including the first that panics. Returns false if a panic cut the loop
/// short. A drop must not panic.
fn notify_free(adaptors: &mut core::slice::Iter<'_, Arc<dyn Adaptor>>, release: &Release<'_>) -> bool {
    // The iterator has moved past an adaptor that panicked, so it is not called again.
    let tell = || {
        for adaptor in adaptors.by_ref() {
            adaptor.free(release);
        }
    };
    catch_unwind(AssertUnwindSafe(tell)).map_err(forget).is_ok()
}

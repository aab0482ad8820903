//! [`Grant`]: memory that passes through the adaptors to the program. [`Release`]: memory on its way back.
//!
//! Both are views of a [`Holding`], which records the source of the memory and how each adaptor has narrowed it. A holding that is an
//! unchanged backend allocation needs no record besides the block. Any other holding is an entry of the [`Stack`], and its block stores the
//! entry's number instead of the backend's record. Each such block therefore has its own entry, even if other blocks start at the same
//! address, and the holding ends with that block.

use super::stack::Call;
use super::{PoolId, Request, Stack};
use crate::backend::{Allocation, FreeRequest};
use crate::device::catch_panic::{catch_panic, forget};
use crate::device::{Device, MemoryRange, StreamId};
use crate::error::PoolError;
use crate::pool::{Block, Pool, StateRef};
use core::cell::Cell;
use core::fmt;
use core::ops::Range;
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError, fork};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Memory that an adaptor obtained from the next adaptor, or from another source, and passes on. Dropping the grant
/// frees the memory.
#[must_use = "dropping it gives the memory back"]
pub struct Grant {
    /// Moved out when the grant becomes a block or is dropped.
    holding: Holding,
    /// The pool whose adaptors the grant passes. `None` for another pool's block that has not passed an adaptor
    /// yet.
    pool: Option<StateRef>,
}

/// The source of the memory, and the usable range. The fields of an allocation are deliberately not adjacent: the compiler would read
/// adjacent fields in one wide load, which stalls right after two narrower stores.
#[repr(C)]
pub(super) struct Holding {
    pub(super) address: CUdeviceptr,
    pub(super) size_bytes: u64,
    pub(super) owner_stream: StreamId,
    /// The level of the last adaptor that the holding has left. The next one on the way out is at `level - 1`.
    level: usize,
    /// The end of the range of levels, starting at `level`, whose adaptors the holding has passed on its way out. Those adaptors are
    /// notified of its free.
    depth: usize,
    pub(super) memory: Memory,
}

pub(super) enum Memory {
    /// An allocation of the pool's own backend, as large as the holding. The value holds the allocation's data except its address.
    Whole(u64),
    /// Part of a backend allocation, or a block of another pool.
    Special(Box<Special>),
    /// No memory: it has been moved out.
    Gone,
}

pub(super) struct Special {
    pub(super) source: Source,
    /// The outermost narrowing comes last.
    narrowings: Vec<Narrowing>,
    /// The depth to which blocks of other pools are nested here.
    pub(super) nesting: usize,
    /// True if the memory is unused since its pool allocated it. If so, and if the host may use it, earlier users
    /// are complete.
    is_fresh: bool,
}

pub(super) enum Source {
    /// An allocation of the pool's own backend.
    Own { allocation: Allocation, size_bytes: u64 },
    /// A block of another pool.
    Other(Block),
}

/// The range of an adaptor before it narrowed the memory.
struct Narrowing {
    level: usize,
    address: CUdeviceptr,
    size_bytes: u64,
}

/// The maximum nesting of blocks. The free of each block frees the block within it.
pub(super) const NESTING_MAX: usize = 64;

impl Grant {
    /// Creates a grant from a block of another pool. The block must be on the request's device and stream, and must
    /// have no recorded uses on other streams.
    ///
    /// Work queued on the block's stream may still use the block. If the host may use its memory too, the request therefore waits for that
    /// stream; [`Grant::from_pool`] avoids this wait.
    pub fn from_block(block: Block) -> Self {
        Self::lent(block, false)
    }

    /// Allocates memory from another pool for the request.
    ///
    /// # Errors
    ///
    /// All errors of [`Pool::alloc_aligned`], such as [`PoolError::OutOfMemory`].
    pub fn from_pool(pool: &Pool, request: &Request<'_>) -> Result<Self, PoolError> {
        let block = pool.alloc_aligned(request.size_bytes(), request.alignment(), request.stream())?;
        Ok(Self::lent(block, true))
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
            pool.sleep_state().note_hidden_bytes();
        }
        true
    }

    fn lent(block: Block, is_fresh: bool) -> Self {
        let (owner_stream, address, size_bytes) = (block.stream_id(), block.address(), block.size_bytes());
        let nesting = block.nesting() + 1;
        let special = Special { source: Source::Other(block), narrowings: Vec::new(), nesting, is_fresh };
        let memory = Memory::Special(Box::new(special));
        Self {
            holding: Holding { address, size_bytes, owner_stream, level: 0, depth: 0, memory },
            pool: None,
        }
    }

    /// True if the host may use the memory immediately, because all earlier uses are complete.
    pub(crate) fn is_for_host(&self) -> bool {
        self.origin().is_some_and(|pool| pool.is_for_host())
    }

    /// The pool whose backend has the memory.
    fn origin(&self) -> Option<StateRef> {
        match self.holding.lent() {
            Some(block) => Some(block.origin()),
            None => self.pool,
        }
    }

    /// Creates a grant for a backend allocation that has left the adaptor at `level`, or that comes directly from
    /// the backend.
    #[inline]
    pub(super) fn own(call: &Call<'_>, allocation: Allocation, size_bytes: u64, level: usize) -> Self {
        let (owner_stream, depth, memory) =
            (call.stream.id(), call.stack.adaptors().len(), Memory::Whole(allocation.mark()));
        let holding = Holding { address: allocation.address, size_bytes, owner_stream, level, depth, memory };
        Self { holding, pool: Some(call.pool) }
    }

    /// Returns the backend's allocation and its size, if the grant is an unchanged answer of the next adaptor that
    /// matches this request of the adaptor at `level`.
    #[inline]
    pub(super) fn plain_answer(
        &self,
        request: &Request<'_>,
        call: &Call<'_>,
        level: usize,
    ) -> Option<(Allocation, u64)> {
        let Memory::Whole(mark) = self.holding.memory else { return None };
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
    pub(super) fn plain_allocation(&self, size_bytes: u64) -> Option<Allocation> {
        match self.holding.memory {
            Memory::Whole(mark) if self.holding.size_bytes == size_bytes => {
                Some(Allocation::from_mark(self.holding.address, mark))
            }
            _ => None,
        }
    }

    /// Returns the reason why the grant is not a valid answer of the adaptor at `level` to a request of this pool, or `None` if it is
    /// valid.
    pub(super) fn mismatch(
        &self,
        request: &Request<'_>,
        pool: StateRef,
        level: usize,
    ) -> Option<&'static str> {
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
            _ if pool.is_for_host() && !self.is_for_host() => {
                Some("returned memory that the host cannot use")
            }
            _ if owner_stream != request.stream().id() => Some("returned memory of another stream"),
            _ if size_bytes < request.size_bytes() => Some("returned less than was asked for"),
            _ if !address.is_multiple_of(request.alignment()) => Some("returned memory that is not aligned"),
            _ => None,
        }
    }

    /// True if queued work may still use the memory although the host may access it immediately.
    pub(super) fn is_pending_for_host(&self) -> bool {
        let is_fresh = match &self.holding.memory {
            Memory::Special(special) => special.is_fresh,
            Memory::Whole(_) | Memory::Gone => true,
        };
        self.pool.is_none() && !is_fresh && self.is_for_host()
    }

    /// Marks the grant as having left the adaptor at `level`.
    pub(super) fn pass(&mut self, pool: StateRef, level: usize) {
        if self.pool.is_none() {
            self.bring_in(pool, level);
        }
        self.holding.level = level;
    }

    /// Counts another pool's block as a block of this pool.
    fn bring_in(&mut self, pool: StateRef, level: usize) {
        self.holding.depth = level + 1;
        if let Memory::Special(special) = &mut self.holding.memory {
            special.narrowings.iter_mut().for_each(|own| own.level = level);
        }
        self.pool = Some(pool);
        pool.count_other();
    }

    /// Takes the holding, which becomes a block.
    pub(super) fn into_holding(mut self) -> Holding {
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
            _ if matches!(holding.memory, Memory::Gone) => {}
            Some(pool) => pool.drop_granted(holding),
            None => drop(holding),
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

/// Memory that is about to be freed, with the address and size that the notified adaptor returned.
pub struct Release<'a> {
    address: CUdeviceptr,
    size_bytes: u64,
    /// The adaptor's range before it narrowed the memory.
    whole: (CUdeviceptr, u64),
    owner_stream: StreamId,
    uses: u64,
    device: &'a Device,
    pool: PoolId,
    /// Set to false as soon as an adaptor queues work on the memory.
    is_complete: &'a Cell<bool>,
}

impl<'a> Release<'a> {
    /// Returns the start address.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Returns the size in bytes that the adaptor passed on.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the whole range, including the bytes that the adaptor itself hid ([`Grant::narrow`]).
    #[must_use]
    pub fn whole(&self) -> Range<CUdeviceptr> {
        let (address, size_bytes) = self.whole;
        address..address + size_bytes
    }

    /// Returns the owner stream, in whose order the memory is freed. The stream itself may no longer exist.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.owner_stream
    }

    /// Returns the pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Returns the identifier of the pool that allocated the memory.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Returns the other streams that have used the memory.
    pub fn users(&self) -> impl Iterator<Item = StreamId> + use<'a> {
        self.device.clocks().users(self.uses)
    }

    /// True if the caller of the free has guaranteed that all uses are complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete.get()
    }

    /// Queues work on the owner stream behind all uses of the memory. The stream's context is current during the call. Returns false if the
    /// memory sleeps, or if a wait would be needed: the owner stream is gone, belongs to another library or captures, or must not wait for
    /// one of the other streams.
    pub(crate) fn queue(&self, work: impl FnOnce(&Driver, CUstream) -> Result<(), DriverError>) -> bool {
        let (device, whole) = (self.device, self.whole());
        let uses = (!self.is_complete.get()).then(|| device.clocks().uses(self.owner_stream, self.uses));
        let memory = [MemoryRange::new(whole.start, whole.end - whole.start)];
        let call = |owner_stream| work(device.driver(), owner_stream);
        // A refused driver call has queued nothing.
        let queued =
            device.queue_behind(uses.into_iter().flatten(), self.owner_stream, memory, call).unwrap_or(false);
        if queued {
            self.set_used();
        }
        queued
    }

    /// Marks the memory as in use by the device, regardless of the free's guarantee.
    pub(crate) fn set_used(&self) {
        self.is_complete.set(false);
    }
}

impl fmt::Debug for Release<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

impl Holding {
    #[inline]
    fn take(&mut self) -> Self {
        let Self { address, size_bytes, owner_stream, level, depth, ref mut memory } = *self;
        let memory = core::mem::replace(memory, Memory::Gone);
        Self { address, size_bytes, owner_stream, level, depth, memory }
    }

    /// Returns the block of another pool that contains this memory.
    pub(super) fn lent(&self) -> Option<&Block> {
        match &self.memory {
            Memory::Special(special) => match &special.source {
                Source::Own { .. } => None,
                Source::Other(block) => Some(block),
            },
            Memory::Whole(_) | Memory::Gone => None,
        }
    }

    pub(super) fn nesting(&self) -> usize {
        match &self.memory {
            Memory::Special(special) => special.nesting,
            Memory::Whole(_) | Memory::Gone => 0,
        }
    }

    /// Converts the memory to `Special`, before a narrowing. Returns `None` if the memory has been moved out.
    fn special(&mut self) -> Option<&mut Special> {
        if let Memory::Whole(mark) = self.memory {
            let allocation = Allocation::from_mark(self.address, mark);
            let source = Source::Own { allocation, size_bytes: self.size_bytes };
            let special = Special { source, narrowings: Vec::new(), nesting: 0, is_fresh: true };
            self.memory = Memory::Special(Box::new(special));
        }
        match &mut self.memory {
            Memory::Special(special) => Some(special),
            Memory::Whole(_) | Memory::Gone => None,
        }
    }

    /// Undoes the narrowings of the adaptors outside `level`. Returns the whole range of the adaptor at `level`.
    fn widen_to(&mut self, level: usize) -> (CUdeviceptr, u64) {
        let Self { address, size_bytes, memory, .. } = self;
        let Memory::Special(special) = memory else { return (*address, *size_bytes) };
        while let Some(outer) = special.narrowings.pop_if(|last| last.level < level) {
            (*address, *size_bytes) = (outer.address, outer.size_bytes);
        }
        let own = special.narrowings.last().filter(|last| last.level == level);
        own.map_or((*address, *size_bytes), |own| (own.address, own.size_bytes))
    }
}

impl StateRef {
    /// Frees a block that is a backend allocation: notifies all adaptors, outermost first, and returns the memory. The pool may be gone
    /// afterwards.
    pub(super) fn release_plain(self, stack: &Stack, freed: &FreeRequest) {
        let FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete } = *freed;
        let is_complete = Cell::new(is_complete);
        let place = (allocation.address, size_bytes);
        let release = self.released(stack, place, place, (owner_stream, uses), &is_complete);
        let mut adaptors = stack.adaptors().iter();
        while !notify_free(&mut adaptors, &release) {}
        // No adaptor runs after this point, so the free may end the pool and its adaptors.
        self.free_own(allocation, size_bytes, owner_stream, uses, is_complete.get());
    }

    /// Notifies the adaptors that the holding has passed, and returns the memory. The pool may be gone afterwards.
    pub(super) fn release(self, mut holding: Holding, uses: u64, is_complete: bool) {
        let is_complete = Cell::new(is_complete);
        if let Some(stack) = self.stack() {
            for (level, adaptor) in
                stack.adaptors().iter().enumerate().take(holding.depth).skip(holding.level)
            {
                let whole = holding.widen_to(level);
                let Holding { address, size_bytes, owner_stream, .. } = holding;
                let place = (address, size_bytes);
                let release = self.released(stack, place, whole, (owner_stream, uses), &is_complete);
                // A drop must not panic.
                let _ = catch_panic(|| adaptor.free(&release));
            }
        }
        let is_complete = is_complete.get();
        // No adaptor runs after this point, so the free may end the pool and its adaptors.
        match holding.memory {
            Memory::Whole(mark) => {
                let allocation = Allocation::from_mark(holding.address, mark);
                self.free_own(allocation, holding.size_bytes, holding.owner_stream, uses, is_complete);
            }
            Memory::Special(special) => match special.source {
                Source::Own { allocation, size_bytes } => {
                    self.free_own(allocation, size_bytes, holding.owner_stream, uses, is_complete);
                }
                Source::Other(block) => self.free_other(block, uses, is_complete),
            },
            Memory::Gone => {}
        }
    }

    /// Returns the view of released memory for an adaptor: `place` is the range that it passed on, `whole` includes what it hid.
    fn released<'a>(
        &'a self,
        stack: &Stack,
        (address, size_bytes): (CUdeviceptr, u64),
        whole: (CUdeviceptr, u64),
        (owner_stream, uses): (StreamId, u64),
        is_complete: &'a Cell<bool>,
    ) -> Release<'a> {
        let (device, pool) = (self.device(), stack.id());
        Release { address, size_bytes, whole, owner_stream, uses, device, pool, is_complete }
    }

    /// Frees a grant that an adaptor has dropped. While streams capture, the memory stays for a graph, like that of a block.
    fn drop_granted(self, holding: Holding) {
        if !self.has_captures() {
            return self.release(holding, 0, false);
        }
        let (address, size_bytes, owner_stream) = (holding.address, holding.size_bytes, holding.owner_stream);
        let Some(stack) = self.stack() else { return };
        match stack.add(holding) {
            Ok(record) => {
                let allocation = Allocation::special(address, record);
                self.free(&FreeRequest { allocation, size_bytes, owner_stream, uses: 0, is_complete: false });
            }
            Err(holding) => self.release(holding, 0, false),
        }
    }
}

/// Notifies adaptors of a free, up to and including the first that panics. Returns false if a panic cut the loop
/// short. A drop must not panic.
fn notify_free(adaptors: &mut core::slice::Iter<'_, Arc<dyn super::Adaptor>>, release: &Release<'_>) -> bool {
    // The iterator has moved past an adaptor that panicked, so it is not called again.
    let tell = || {
        for adaptor in adaptors.by_ref() {
            adaptor.free(release);
        }
    };
    catch_unwind(AssertUnwindSafe(tell)).map_err(forget).is_ok()
}

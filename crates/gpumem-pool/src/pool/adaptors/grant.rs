//! [`Grant`], an adaptor's memory on its way out, and [`Release`], the same on its way back.
//!
//! Both are views of a [`Holding`], which says where the memory is from and how each adaptor has narrowed it. A holding that is
//! a backend's allocation as it was is nothing but the block; any other is an entry of the [`Stack`], and the block has the
//! entry's number in place of a backend's record. So each block has an entry of its own, whatever other blocks start at the same
//! address, and a holding ends with the one block that has its number.

use super::stack::Call;
use super::{PoolId, Request, Stack};
use crate::backend::{Allocation, FreeRequest};
use crate::device::{Device, StreamId};
use crate::error::PoolError;
use crate::pool::{Block, Pool, StateRef};
use crate::reclaim::{catch_panic::catch_panic, catch_panic::forget};
use core::cell::Cell;
use core::fmt;
use core::ops::Range;
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Memory that an adaptor has from the next, or from elsewhere, and hands on. Dropped, it is given back.
#[must_use = "dropping it gives the memory back"]
pub struct Grant {
    /// Taken on the way out.
    holding: Holding,
    /// The pool whose adaptors it passes; none yet if it is another pool's block that was just brought in.
    pool: Option<StateRef>,
}

/// Where memory is from, and what of it may be used. In this order: what an allocation is made of is not side by side, and so not
/// read in one step, for which the processor would wait if it has just been written in two.
#[repr(C)]
pub(super) struct Holding {
    pub(super) address: CUdeviceptr,
    pub(super) size_bytes: u64,
    pub(super) owner_stream: StreamId,
    /// The innermost adaptor that has not had it yet is the one before this.
    level: usize,
    /// The adaptors from `level` to below this have had it on its way out, and so are told of its end.
    depth: usize,
    pub(super) memory: Memory,
}

pub(super) enum Memory {
    /// A piece of the pool's own backend, as large as the holding: what the piece is besides its address.
    Whole(u64),
    /// Part of such an allocation, or a block of another pool.
    Special(Box<Special>),
    /// None any more.
    Gone,
}

pub(super) struct Special {
    pub(super) source: Source,
    /// ReentrancyGuard last.
    narrowings: Vec<Narrowing>,
    /// How many blocks of other pools lie one in the other here.
    pub(super) nesting: usize,
    /// Nobody has used it since its pool handed it out: what used it before is complete, if the host may use it.
    is_fresh: bool,
}

pub(super) enum Source {
    /// The pool's own backend.
    Own { allocation: Allocation, size_bytes: u64 },
    /// A block of another pool.
    Other(Block),
}

/// What an adaptor had before it took the edges away.
struct Narrowing {
    level: usize,
    address: CUdeviceptr,
    size_bytes: u64,
}

/// How many blocks may lie one in the other: each is freed by the one around it.
pub(super) const NESTING_MAX: usize = 64;

impl Grant {
    /// A block of another pool instead of memory of this one. It must be of the request's device and stream, and not be
    /// recorded as used elsewhere.
    ///
    /// Work that its stream still has queued may use it. Where the host may use its memory too, the request therefore waits
    /// for that stream; [`Grant::from_pool`] does not have to.
    pub fn from_block(block: Block) -> Self {
        Self::lent(block, false)
    }

    /// Memory of another pool, allocated now as the request says.
    ///
    /// # Errors
    ///
    /// As [`Pool::alloc_aligned`].
    pub fn from_pool(pool: &Pool, request: &Request<'_>) -> Result<Self, PoolError> {
        let block = pool.alloc_aligned(request.size_bytes(), request.alignment(), request.stream())?;
        Ok(Self::lent(block, true))
    }

    /// Where it starts.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.holding.address
    }

    /// How many bytes whoever gets it may use, at least as many as asked for.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.holding.size_bytes
    }

    /// Keeps the first `front_bytes`, and all that is behind the next `size_bytes`, from whoever gets it: the adaptor that
    /// does so finds them in [`Release::whole`]. False, and no change, if there is not as much, or if nothing would be left.
    #[must_use = "false if there is not as much"]
    pub fn narrow(&mut self, front_bytes: u64, size_bytes: u64) -> bool {
        let holding = &mut self.holding;
        let is_within =
            front_bytes.checked_add(size_bytes).is_some_and(|end_bytes| end_bytes <= holding.size_bytes);
        if !is_within || size_bytes == 0 {
            return false;
        }
        // Of the adaptor that has it now; one after the other they count as one.
        let level = holding.level.saturating_sub(1);
        let (address, whole_bytes) = (holding.address, holding.size_bytes);
        let Some(special) = holding.special() else { return false };
        if special.narrowings.last().is_none_or(|last| last.level != level) {
            special.narrowings.push(Narrowing { level, address, size_bytes: whole_bytes });
        }
        holding.address += front_bytes;
        holding.size_bytes = size_bytes;
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

    /// Whether the host may use it from now on: nothing that used it before is under way.
    pub(crate) fn is_for_host(&self) -> bool {
        let pool = match self.holding.lent() {
            Some(block) => Some(block.origin()),
            None => self.pool,
        };
        pool.is_some_and(|pool| pool.is_for_host())
    }

    /// A piece of the backend's that has left the adaptor at `level`, or the backend itself inside of all adaptors.
    #[inline]
    pub(super) fn own(call: &Call<'_>, allocation: Allocation, size_bytes: u64, level: usize) -> Self {
        let (owner_stream, depth, memory) =
            (call.stream.id(), call.stack.adaptors().len(), Memory::Whole(allocation.mark()));
        let holding = Holding { address: allocation.address, size_bytes, owner_stream, level, depth, memory };
        Self { holding, pool: Some(call.pool) }
    }

    /// The backend's allocation and its size, if it is what the next adaptor has granted to just such a request of the one at `level`.
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

    /// The backend's allocation, if a block of this size is no more than that.
    #[inline]
    pub(super) fn plain_allocation(&self, size_bytes: u64) -> Option<Allocation> {
        match self.holding.memory {
            Memory::Whole(mark) if self.holding.size_bytes == size_bytes => {
                Some(Allocation::from_mark(self.holding.address, mark))
            }
            _ => None,
        }
    }

    /// What keeps it from being the answer of the adaptor at `level` to a request of this pool, in words.
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
                Some("returned a block that is lent from pool to pool too often")
            }
            _ if pool.is_for_host() && !self.is_for_host() => Some("returned memory that the host can't use"),
            _ if owner_stream != request.stream().id() => Some("returned memory of another stream"),
            _ if size_bytes < request.size_bytes() => Some("returned less than was asked for"),
            _ if !address.is_multiple_of(request.alignment()) => Some("returned memory that is not aligned"),
            _ => None,
        }
    }

    /// Whether work that is still queued may use it, though the host may as soon as it has it.
    pub(super) fn is_pending_for_host(&self) -> bool {
        let is_fresh = match &self.holding.memory {
            Memory::Special(special) => special.is_fresh,
            Memory::Whole(_) | Memory::Gone => true,
        };
        self.pool.is_none() && !is_fresh && self.is_for_host()
    }

    /// It leaves the adaptor at `level`.
    pub(super) fn pass(&mut self, pool: StateRef, level: usize) {
        if self.pool.is_none() {
            self.bring_in(pool, level);
        }
        self.holding.level = level;
    }

    /// Another pool's block becomes one of this pool.
    fn bring_in(&mut self, pool: StateRef, level: usize) {
        self.holding.depth = level + 1;
        if let Memory::Special(special) = &mut self.holding.memory {
            special.narrowings.iter_mut().for_each(|own| own.level = level);
        }
        self.pool = Some(pool);
        pool.count_other();
    }

    /// It becomes a block.
    pub(super) fn into_holding(mut self) -> Holding {
        self.holding.take()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
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

/// Memory that is about to be given back, as the adaptor that is told had returned it.
pub struct Release<'a> {
    address: CUdeviceptr,
    size_bytes: u64,
    /// What the adaptor had, before it narrowed it.
    whole: (CUdeviceptr, u64),
    owner_stream: StreamId,
    uses: u64,
    device: &'a Device,
    pool: PoolId,
    /// False from where an adaptor has queued work of its own on it.
    is_complete: &'a Cell<bool>,
}

impl<'a> Release<'a> {
    /// Where it starts.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// As many bytes as the adaptor had left of it.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// All of it: with what the adaptor itself has kept from the block ([`Grant::narrow`]).
    #[must_use]
    pub fn whole(&self) -> Range<CUdeviceptr> {
        let (address, size_bytes) = self.whole;
        address..address + size_bytes
    }

    /// The stream that it was allocated on, in whose order it is given back. It may be gone.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.owner_stream
    }

    /// The device that it is memory of.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The pool that handed it out.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The other streams that have used it.
    pub fn users(&self) -> impl Iterator<Item = StreamId> + use<'a> {
        self.device.clocks().users(self.uses)
    }

    /// Whether whoever dropped it knew that all uses are done.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete.get()
    }

    /// Queues work behind all uses of the memory, on its owner stream, whose context is current in the call. False if that
    /// can't be done without waiting: the owner stream is gone, another library's or captures, or may not wait for one of the others.
    pub(crate) fn queue(&self, work: impl FnOnce(&Driver, CUstream) -> Result<(), DriverError>) -> bool {
        let clocks = self.device.clocks();
        let uses = (!self.is_complete.get()).then(|| clocks.uses(self.owner_stream, self.uses));
        let call = |owner_stream| work(self.device.driver(), owner_stream);
        // What the driver refuses has not been done either.
        let queued =
            clocks.queue_behind(uses.into_iter().flatten(), self.owner_stream, call).unwrap_or(false);
        if queued {
            self.set_used();
        }
        queued
    }

    /// The device still works on it, whatever its last user knew.
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

    /// The block of another pool that it is part of.
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

    /// It is about to be less than all of its memory. `None` once that is gone.
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

    /// Takes back what adaptors outside of `level` had narrowed; what the one at `level` had.
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
    /// A block that is an allocation of the backend's and has been dropped: tells all adaptors, outermost first, and gives it back.
    /// The pool may be gone afterwards.
    pub(super) fn release_plain(self, stack: &Stack, freed: &FreeRequest) {
        let FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete } = *freed;
        let (address, is_complete) = (allocation.address, Cell::new(is_complete));
        let (device, pool) = (self.device(), stack.id());
        let whole = (address, size_bytes);
        let release = Release {
            address,
            size_bytes,
            whole,
            owner_stream,
            uses,
            device,
            pool,
            is_complete: &is_complete,
        };
        let mut adaptors = stack.adaptors().iter();
        while !tell_free(&mut adaptors, &release) {}
        // No adaptor is at work from here on: with this, the pool and they may end.
        self.free_own(allocation, size_bytes, owner_stream, uses, is_complete.get());
    }

    /// Tells the adaptors that have had it, and gives the memory back. The pool may be gone afterwards.
    pub(super) fn release(self, mut holding: Holding, uses: u64, is_complete: bool) {
        let is_complete = Cell::new(is_complete);
        if let Some(stack) = self.stack() {
            for (level, adaptor) in
                stack.adaptors().iter().enumerate().take(holding.depth).skip(holding.level)
            {
                let whole = holding.widen_to(level);
                let Holding { address, size_bytes, owner_stream, .. } = holding;
                let (device, pool) = (self.device(), stack.id());
                let release = Release {
                    address,
                    size_bytes,
                    whole,
                    owner_stream,
                    uses,
                    device,
                    pool,
                    is_complete: &is_complete,
                };
                // A drop does not panic.
                let _ = catch_panic(|| adaptor.free(&release));
            }
        }
        let is_complete = is_complete.get();
        // No adaptor is at work from here on: with this, the pool and they may end.
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

    /// An adaptor has dropped what it was granted. While streams capture, that stays for a graph as a block does.
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

/// Tells adaptors of a free, as far as the first that panics: false if that was not the last. A drop does not panic.
fn tell_free(adaptors: &mut core::slice::Iter<'_, Arc<dyn super::Adaptor>>, release: &Release<'_>) -> bool {
    // What has panicked is not asked again.
    let tell = || {
        for adaptor in adaptors.by_ref() {
            adaptor.free(release);
        }
    };
    catch_unwind(AssertUnwindSafe(tell)).map_err(forget).is_ok()
}

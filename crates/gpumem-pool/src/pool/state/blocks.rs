//! Allocation and free of blocks: the thread's cache first, then captures, adaptors and the backend.

use super::{Origin, StateRef};
use crate::backend::{self, Allocation, Answer, FreeRequest};
use crate::config::ALIGNMENT_MIN;
use crate::device::{GRAPH_BIT, Stream, StreamId};
use crate::error::{PoolError, is_sticky, not_forked};
use crate::pool::scope::Here;
use crate::pool::{Block, scope};
use crate::stats::Share;
use core::sync::atomic::AtomicU64;
use gpumem_sys::fork;

impl StateRef {
    /// Allocates a block at a multiple of `alignment`, which must be a power of two. A hit in the thread's cache reads nothing that threads
    /// share. Always inlined, so that the block's fields stay in registers: a block returned through memory is copied in wider pieces than
    /// it was written, and that store-forwarding stall costs more than the rest of the allocation.
    #[inline(always)]
    pub(crate) fn alloc(self, size_bytes: u64, alignment: u64, stream: &Stream) -> Result<Block, PoolError> {
        let cached = match self.fast_path_key() {
            Some(key) if alignment <= ALIGNMENT_MIN => backend::hit(key, size_bytes, stream.fast_path_id()),
            _ => None,
        };
        let (allocation, uses) = match cached {
            Some(allocation) => {
                let tagged = scope::if_any_open(|here| self.tagged_here(here, allocation, size_bytes));
                (tagged.unwrap_or(allocation), 0)
            }
            None => self.alloc_slow_in_scope(size_bytes, alignment, stream)?,
        };
        Ok(Block::from_parts(allocation, size_bytes, stream.id(), AtomicU64::new(uses), self))
    }

    /// Like `alloc`, for a tag instead of the thread's innermost scope.
    pub(crate) fn alloc_tagged(self, size_bytes: u64, stream: &Stream, tag: u16) -> Result<Block, PoolError> {
        let cached =
            self.fast_path_key().and_then(|key| backend::hit(key, size_bytes, stream.fast_path_id()));
        let (allocation, uses) = match cached {
            Some(allocation) => (allocation, 0),
            None => {
                not_forked()?;
                // Adaptors, reports and the memory of graphs see the tag of the innermost scope.
                let _open = scope::open(&self.tags, tag);
                self.noting(self.alloc_slow(size_bytes, ALIGNMENT_MIN, stream))?
            }
        };
        let is_tagged = size_bytes > 0 && uses & GRAPH_BIT == 0;
        if is_tagged {
            scope::count_out_as(&self.tags, tag, size_bytes);
        }
        let allocation = if is_tagged { allocation.with_tag(tag) } else { allocation };
        Ok(Block::from_parts(allocation, size_bytes, stream.id(), AtomicU64::new(uses), self))
    }

    /// The slow path of an allocation, counted for the thread's innermost scope. A part of a graph's memory gets no tag, because its
    /// chunk has one.
    #[inline(never)]
    fn alloc_slow_in_scope(
        self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<(Allocation, u64), PoolError> {
        let (allocation, uses) = self.noting(self.alloc_slow(size_bytes, alignment, stream))?;
        let is_tagged = scope::is_any_open() && size_bytes > 0 && uses & GRAPH_BIT == 0;
        Ok((if is_tagged { self.tagged(allocation, size_bytes) } else { allocation }, uses))
    }

    /// The slow path of an allocation: checks the request, then allocates from the graph that the stream captures, through
    /// the adaptors, or from the backend. Returns the allocation and its initial uses.
    #[inline(never)]
    fn alloc_slow(
        self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<(Allocation, u64), PoolError> {
        self.check_awake()?;
        if let Some(stack) = &self.stack
            && size_bytes > 0
            && self.has_only_adaptors_to_ask(stream)
        {
            return self.alloc_adapted(stack, size_bytes, alignment, stream);
        }
        self.check_usable()?;
        self.check_stream(stream)?;
        self.name(stream, size_bytes);
        if size_bytes == 0 {
            self.lifetime.count_in();
            return Ok((Allocation::EMPTY, 0));
        }
        if self.has_captures()
            && let Some(part) = self.alloc_captured(size_bytes, alignment, stream)?
        {
            return Ok(part);
        }
        match &self.stack {
            Some(stack) => self.alloc_adapted(stack, size_bytes, alignment, stream),
            None => {
                let allocated = self.alloc_from_backend(size_bytes, alignment, stream);
                Ok((
                    self.with_report(
                        allocated,
                        &Origin { size_bytes: Some(size_bytes), stream: Some(stream.id()), tag: 0 },
                    )?,
                    0,
                ))
            }
        }
    }

    /// Allocates up to `count_max` blocks of one size from free memory. With adaptors or captures it allocates none, because they must see
    /// each request.
    pub(crate) fn alloc_ready(
        self,
        size_bytes: u64,
        count_max: usize,
        stream: &Stream,
    ) -> Result<Vec<Block>, PoolError> {
        self.check_usable()?;
        self.check_awake()?;
        self.check_stream(stream)?;
        if size_bytes == 0 || self.stack.is_some() || self.has_captures() {
            return Ok(Vec::new());
        }
        let allocations = self.backend.alloc_ready(size_bytes, count_max, stream);
        self.name(stream, size_bytes.saturating_mul(allocations.len() as u64));
        let is_any_open = scope::is_any_open();
        let block = |allocation: Allocation| {
            let allocation = if is_any_open { self.tagged(allocation, size_bytes) } else { allocation };
            Block::from_parts(allocation, size_bytes, stream.id(), AtomicU64::new(0), self)
        };
        Ok(allocations.into_iter().map(block).collect())
    }

    /// Allocates from the backend, inside all adaptors, and counts the block. Climbs the ladder if no memory is free.
    pub(crate) fn alloc_from_backend(
        self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Allocation, PoolError> {
        self.activity.slow_allocation_count.add(1);
        self.event_slow_allocation(size_bytes, stream);
        self.check_size(size_bytes)?;
        let allocation = match self.backend.alloc(size_bytes, alignment, stream)? {
            Answer::Found(allocation) => allocation,
            Answer::Short(mut search) => self.climb(&mut *search)?,
        };
        if !self.backend.counts_blocks() {
            self.lifetime.count_in();
        }
        Ok(allocation)
    }

    /// Like [`tagged`](Self::tagged), for a caller that has looked up the thread's scopes. A lookup here would make the function save its
    /// registers.
    #[inline(never)]
    fn tagged_here(self, here: &Here, allocation: Allocation, size_bytes: u64) -> Allocation {
        let tagged = scope::count_out_here(here, &self.tags, size_bytes, |tag, share| match share {
            None => allocation.with_tag(tag),
            Some(share) => tagged_at_peak(share, allocation.with_tag(tag)),
        });
        tagged.unwrap_or_else(|| self.tagged(allocation, size_bytes))
    }

    /// Counts a new block for the thread's innermost scope, and gives it the scope's tag.
    #[inline(never)]
    fn tagged(self, allocation: Allocation, size_bytes: u64) -> Allocation {
        allocation.with_tag(scope::count_out(&self.tags, size_bytes))
    }

    /// Counts a block that is being dropped as freed for its tag if that is the tag of the innermost scope. Otherwise it counts nothing and
    /// returns false.
    #[inline(always)]
    pub(crate) fn untag_in_scope(self, allocation: &Allocation, size_bytes: u64) -> bool {
        let (serial, tag) = (self.tags.serial(), allocation.tag());
        scope::with_here(|here| scope::count_in_here(here, serial, tag, size_bytes, || true))
    }

    /// Counts a block that is being dropped as freed for its tag, if it has one.
    pub(crate) fn untag(self, allocation: Allocation, size_bytes: u64) -> Allocation {
        if allocation.tag() != 0 {
            scope::count_in(&self.tags, allocation.tag(), size_bytes);
        }
        allocation.without_tag()
    }

    /// Handles a call that names a stream and takes the slow path. Marks the stream now if it can be marked only in
    /// such calls, and if other streams want its memory or may soon.
    fn name(self, stream: &Stream, size_bytes: u64) {
        if self.is_mark_due(size_bytes, stream) { stream.mark_named() } else { stream.note_named() }
    }

    /// True if a call that names `stream` must mark it, after `size_bytes` more: an eighth of the pool may be used between two markers.
    pub(crate) fn is_mark_due(self, size_bytes: u64, stream: &Stream) -> bool {
        stream.is_mark_due(size_bytes, || self.reserved_bytes().unwrap_or(0) / 8)
    }

    /// Allocates from the thread's cache in a pool with adaptors. A pool without adaptors has already looked there.
    #[inline(always)]
    pub(crate) fn hit(self, size_bytes: u64, alignment: u64, stream: &Stream) -> Option<Allocation> {
        if alignment <= ALIGNMENT_MIN && self.clocks.captures().slow_path().is_none() {
            backend::hit(self.backend_cache_key, size_bytes, stream.fast_path_id())
        } else {
            None
        }
    }

    /// Called by a block's drop, when the free is ordered only on the owner stream. Returns false if the thread's cache cannot take the
    /// block, as for every large block.
    #[inline(always)]
    pub(crate) fn put_back_small(
        self,
        allocation: &Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> bool {
        match self.fast_path_key() {
            Some(key) => backend::put_back_small(key, allocation, size_bytes, owner_stream),
            None => false,
        }
    }

    /// Like `put_back_small`, for any size.
    pub(crate) fn put_back(self, allocation: &Allocation, size_bytes: u64, owner_stream: StreamId) -> bool {
        match self.fast_path_key() {
            Some(key) => self.backend.put_back(key, allocation, size_bytes, owner_stream),
            None => false,
        }
    }

    /// Called by a block's drop, which cannot return an error: a failure is kept for the next call. A graph may keep the memory; otherwise
    /// it goes through the adaptors to the backend.
    pub(crate) fn free(self, freed: &FreeRequest) {
        if fork::is_child() {
            return;
        }
        if freed.size_bytes == 0 {
            return self.drop_block();
        }
        let freed = match freed.uses & GRAPH_BIT != 0 || self.has_captures() {
            true => self.free_captured(*freed),
            false => Some(*freed),
        };
        match (freed, &self.stack) {
            (None, _) => {}
            (Some(freed), Some(stack)) => self.free_adapted(stack, &freed),
            (Some(freed), None) => self.free_to_backend(&freed),
        }
    }

    /// Frees to the backend, after all adaptors. The pool may be gone afterwards.
    pub(super) fn free_to_backend(self, freed: &FreeRequest) {
        // Streams that used the block and cannot be marked here are marked by the next calls that name them, and
        // this free waits for those markers. The request for markers follows the free's stamps, after which the
        // pool may be gone.
        let is_pending = freed.uses & !GRAPH_BIT != 0 && !freed.is_complete;
        let device = (is_pending && self.clocks.has_named_streams()).then(|| self.device().clone());
        let outcome = self.backend.free(freed);
        if let Err(cause) = outcome.result {
            let poison = match is_sticky(cause.code()) {
                true => PoolError::DeviceLost(cause),
                false => PoolError::Poisoned {
                    pool: self.setup.name.as_str().into(),
                    address: freed.allocation.address,
                    size_bytes: freed.size_bytes,
                    cause,
                },
            };
            self.event_poisoned(&poison);
            let _first_counts = self.poison.set(poison);
            self.take_cache_key();
        }
        if !outcome.counted {
            self.drop_block();
        }
        if let Some(device) = device {
            device.clocks().want_marks(device.clocks().used(freed.uses));
        }
    }
}

/// The rest of [`StateRef::tagged_here`] if the tag's memory is at its peak on this thread. All calls there are tail calls, so that it
/// saves no registers.
#[inline(never)]
fn tagged_at_peak(share: &Share, allocation: Allocation) -> Allocation {
    share.note_rise();
    allocation
}

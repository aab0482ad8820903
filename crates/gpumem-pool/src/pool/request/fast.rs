//! The thread's cache, which most requests hit, and the tags of blocks.

use super::slow;
use crate::backend::{self, Allocation, MemorySource};
use crate::config::ALIGNMENT_MIN;
use crate::error::PoolError;
use crate::pool::block::Block;
use crate::pool::frames::{self, Here};
use crate::pool::state::StateRef;
use crate::stats::Share;
use core::sync::atomic::AtomicU64;
use gpumem_device::Stream;
use gpumem_device::internal::{GRAPH_BIT, not_forked};

/// Allocates a block at a multiple of `alignment`, which must be a power of two. A hit in the thread's cache reads nothing that threads
/// share. Always inlined, so that the block's fields stay in registers: a block returned through memory is copied in wider pieces than
/// it was written, and that store-forwarding stall costs more than the rest of the allocation.
#[inline(always)]
pub(crate) fn alloc(
    state: StateRef,
    size_bytes: u64,
    alignment: u64,
    stream: &Stream,
) -> Result<Block, PoolError> {
    let cached = match state.fast_path_key() {
        Some(key) if alignment <= ALIGNMENT_MIN => backend::hit(key, size_bytes, stream.fast_path_id()),
        _ => None,
    };
    let (allocation, uses) = match cached {
        Some(allocation) => {
            let tagged = frames::if_any_open(|here| tagged_here(state, here, allocation, size_bytes));
            (tagged.unwrap_or(allocation), 0)
        }
        None => alloc_slow_in_scope(state, size_bytes, alignment, stream)?,
    };
    Ok(Block::from_parts(allocation, size_bytes, stream.id(), AtomicU64::new(uses), state))
}

/// Like `alloc`, for a tag instead of the thread's innermost scope.
pub(crate) fn alloc_tagged(
    state: StateRef,
    size_bytes: u64,
    stream: &Stream,
    tag: u16,
) -> Result<Block, PoolError> {
    let cached = state.fast_path_key().and_then(|key| backend::hit(key, size_bytes, stream.fast_path_id()));
    let (allocation, uses) = match cached {
        Some(allocation) => (allocation, 0),
        None => {
            not_forked()?;
            // Adaptors, reports and the memory of graphs see the tag of the innermost scope.
            let _open = frames::open(&state.tags, tag);
            state.noting(slow::alloc(state, size_bytes, ALIGNMENT_MIN, stream))?
        }
    };
    let is_tagged = size_bytes > 0 && uses & GRAPH_BIT == 0;
    if is_tagged {
        frames::count_out_as(&state.tags, tag, size_bytes);
    }
    let allocation = if is_tagged { allocation.with_tag(tag) } else { allocation };
    Ok(Block::from_parts(allocation, size_bytes, stream.id(), AtomicU64::new(uses), state))
}

/// The slow path of an allocation, counted for the thread's innermost scope. A part of a graph's memory gets no tag, because its
/// chunk has one.
#[inline(never)]
fn alloc_slow_in_scope(
    state: StateRef,
    size_bytes: u64,
    alignment: u64,
    stream: &Stream,
) -> Result<(Allocation, u64), PoolError> {
    let (allocation, uses) = state.noting(slow::alloc(state, size_bytes, alignment, stream))?;
    let is_tagged = frames::is_any_open() && size_bytes > 0 && uses & GRAPH_BIT == 0;
    Ok((if is_tagged { count_tagged(state, allocation, size_bytes) } else { allocation }, uses))
}

/// Allocates up to `count_max` blocks of one size from free memory. With adaptors or captures it allocates none, because they must see
/// each request.
pub(crate) fn alloc_ready(
    state: StateRef,
    size_bytes: u64,
    count_max: usize,
    stream: &Stream,
) -> Result<Vec<Block>, PoolError> {
    state.check_usable()?;
    state.check_awake()?;
    state.check_stream(stream)?;
    if size_bytes == 0 || state.stack().is_some() || state.has_captures() {
        return Ok(Vec::new());
    }
    let allocations = state.backend.alloc_ready(size_bytes, count_max, stream);
    state.name_stream(stream, size_bytes.saturating_mul(allocations.len() as u64));
    let is_any_open = frames::is_any_open();
    let block = |allocation: Allocation| {
        let allocation = if is_any_open { count_tagged(state, allocation, size_bytes) } else { allocation };
        Block::from_parts(allocation, size_bytes, stream.id(), AtomicU64::new(0), state)
    };
    Ok(allocations.into_iter().map(block).collect())
}

/// Like [`count_tagged`], for a caller that has looked up the thread's scopes. A lookup here would make the function save its
/// registers.
#[inline(never)]
fn tagged_here(state: StateRef, here: &Here, allocation: Allocation, size_bytes: u64) -> Allocation {
    let tagged = frames::count_out_here(here, &state.tags, size_bytes, |tag, share| match share {
        None => allocation.with_tag(tag),
        Some(share) => tagged_at_peak(share, allocation.with_tag(tag)),
    });
    tagged.unwrap_or_else(|| count_tagged(state, allocation, size_bytes))
}

/// Counts a new block for the thread's innermost scope, and gives it the scope's tag.
#[inline(never)]
fn count_tagged(state: StateRef, allocation: Allocation, size_bytes: u64) -> Allocation {
    allocation.with_tag(frames::count_out(&state.tags, size_bytes))
}

/// The rest of [`tagged_here`] if the tag's memory is at its peak on this thread. All calls there are tail calls, so that it
/// saves no registers.
#[inline(never)]
fn tagged_at_peak(share: &Share, allocation: Allocation) -> Allocation {
    share.note_rise();
    allocation
}

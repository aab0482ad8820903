//! [`BlockSearch`]: a block that found no free memory, and the rungs that make room for it. The cheapest rung comes first, and
//! each rung is followed by a new search.
//!
//! | rung | where the memory comes from | cost |
//! | --- | --- | --- |
//! | `own_magazines` | the blocks that this thread has cached; for a large block, its large ones only | its next hits |
//! | `one_handle` | for a small block, one handle from the driver, up to 2 MiB beyond the target of `growth_to_target`, if the
//! profile has slack and other threads have cached more than nothing and less than 2 MiB | memory |
//! | `all_magazines` | the blocks that all threads have cached; for a large block, large ones only | their next hits |
//! | `completed` | blocks freed by other streams whose markers have been passed | queries, within a budget |
//! | `growth_to_target` | the driver, up to the peak in use and the slack | one handle or a few |
//! | `recycled` | idle memory, moved or mapped to other addresses | one mapping or a few |
//! | `spared_magazines` | for a small block, the blocks that all threads have cached, where the slack is larger than their sum or
//! much is ready | their next hits |
//! | `device_waits` | blocks freed by other streams, behind waits between the streams; where a stream can be marked by its users alone,
//! once the device is idle | concurrency of streams |
//! | `outgrown` | the driver, in exchange for smaller segments that are free as a whole, once the heap would hold half as much again
//! as blocks have needed | a wait for the device, up to 100 ms |
//! | `growth_to_limit` | the driver, and all idle memory that fits beside it | memory |
//! | `leftover` | for a small block, free memory between larger blocks | larger blocks, later |
//! | `host_wait` | the blocks of `device_waits`, once the host has waited for them | the caller's time, up to the deadline |
//! | `synchronised` | all memory that is free once the device is idle, or at the deadline; released and reallocated; near a limit,
//! also the free ends of pages that other blocks hold | everybody's time |
//!
//! Memory over segments cannot be moved or mapped elsewhere, so `recycled` finds only memory that was free before. Host-accessible blocks
//! are free only when their work is complete: `completed` records the markers that it then queries, `device_waits` inserts no waits,
//! and `outgrown` does not wait. Over virtual memory, `outgrown` does nothing.
//!
//! After the last rung, the ladder (`pool/request/ladder`) makes room outside the pool and starts again here.
//!
//! No rung splits a handle: an idle handle can be mapped as it is, next to parts of others, and the driver cannot release part of a handle.
//! When the driver has less memory left than the pool's limit allows, growth stops there, and the rungs below it search the pool's memory.

use super::caching_pool::{BlockSearch, CachingPool};
use crate::backend::allocation::Allocation;
use crate::backend::search::{Outcome, Search, Shortage, WAIT_AND_TRIM, WAIT_FOR_FREES};
use crate::config::ALIGNMENT_MIN;
use crate::error::{PoolError, Refusal};
use gpumem_device::internal::{Order, StreamIndex, deadline};
use gpumem_heap::heap::BlockRequest;
use gpumem_heap::{HeapBlock, SizeClass};

/// Makes room. [`Outcome::Short`] means that more memory may be free now.
type Rung = fn(&mut BlockSearch<'_>, &BlockRequest) -> Result<Outcome<HeapBlock>, PoolError>;

/// The names of the rungs, and the rungs that follow one that has made room, if ready memory does not suffice.
const RUNGS: [(&str, Rung, &[Rung]); 13] = [
    ("use blocks that this thread has cached", own_magazines, &[]),
    ("reserve one more page of 2 MiB", one_handle, &[]),
    ("use blocks that all threads have cached", all_magazines, &[]),
    ("check which frees are complete", completed, &[]),
    ("reserve more memory", growth_to_target, &[]),
    ("remap idle memory", recycled, &[]),
    ("use the last blocks that all threads have cached", spared_magazines, &[]),
    ("make the stream wait for other streams' frees", device_waits, &[recycled]),
    ("exchange free segments for a larger one", outgrown, &[]),
    ("reserve memory up to the limit", growth_to_limit, &[]),
    ("use the rest of large blocks", leftover, &[]),
    (WAIT_FOR_FREES, host_wait, &[recycled, growth_to_limit, leftover]),
    (WAIT_AND_TRIM, synchronised, &[recycled, growth_to_limit, leftover, glued]),
];

/// From this rung on, memory is short and the size is not rounded up.
const FIRST_EXACT: usize = 9;

impl BlockSearch<'_> {
    /// Searches ready memory after a rung has made room, then continues with the next rung.
    fn search(&mut self, request: &BlockRequest, further: &[Rung]) -> Result<Outcome<HeapBlock>, PoolError> {
        let ready = {
            let heap = &mut self.pool.core().heap;
            self.free_bytes = heap.free_bytes(request.stream);
            heap.take_ready(request, self.pool.clocks())
        };
        if let Some(block) = ready {
            return Ok(Outcome::Found(block));
        }
        for step in further {
            if let found @ Outcome::Found(_) = step(self, request)? {
                return Ok(found);
            }
        }
        Ok(Outcome::Short)
    }
}

impl Search<Allocation> for BlockSearch<'_> {
    fn rung(&self, rung: usize) -> Option<&'static str> {
        RUNGS.get(rung).map(|(name, ..)| *name)
    }

    fn begin(&mut self, is_first: bool) -> Result<Outcome<Allocation>, PoolError> {
        let pool = self.pool;
        self.before = pool.counts();
        if !is_first && let Some(found) = self.take_ready() {
            return Ok(Outcome::Found(found));
        }
        pool.collect_garbage(self.size_bytes)?;
        let heap = &mut pool.core_with_limit().heap;
        // Read once, because other threads may change it before the rung that compensates for it.
        self.spares_magazines = is_small(&self.request) && heap.spares_magazines();
        self.has_slack = heap.tuning().has_slack();
        self.free_bytes = heap.free_bytes(self.request.stream);
        Ok(Outcome::Short)
    }

    fn climb(&mut self, rung: usize) -> Result<Outcome<Allocation>, PoolError> {
        let Some((_, make_room, further)) = RUNGS.get(rung) else { return Ok(Outcome::Skipped) };
        let request = if rung < FIRST_EXACT { self.request } else { self.exact() };
        let outcome = match make_room(self, &request)? {
            Outcome::Short => self.search(&request, further)?,
            outcome => outcome,
        };
        Ok(outcome.map(|block| self.finish(block)))
    }

    fn free_bytes(&self) -> Result<i64, PoolError> {
        Ok(self.free_bytes)
    }

    fn may_repeat(&self) -> bool {
        self.pool.may_repeat(&self.before, self.exact().size_bytes)
    }

    fn requested_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn shortage(&self) -> Result<Shortage, PoolError> {
        let alignment = if self.alignment > ALIGNMENT_MIN { self.alignment } else { 0 };
        Ok(Shortage { alignment, ..self.pool.describe_shortage(self.size_bytes, self.refusal) })
    }
}

/// Small blocks cannot form a large block, so a large request drains large blocks only.
fn own_magazines(
    search: &mut BlockSearch<'_>,
    request: &BlockRequest,
) -> Result<Outcome<HeapBlock>, PoolError> {
    Ok(ready_if(if is_small(request) {
        !search.spares_magazines && search.pool.drain_own()
    } else {
        search.pool.drain_own_large()
    }))
}

/// Threads that free blocks of other threads always cache a few. While they cache less than one handle, they would be drained every few
/// allocations, so the heap grows by one handle instead.
fn one_handle(search: &mut BlockSearch<'_>, request: &BlockRequest) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    let is_taken_first = is_small(request) && !search.spares_magazines;
    if !is_taken_first || !search.has_slack {
        return Ok(Outcome::Skipped);
    }
    if !(1..HANDLE_BYTES).contains(&pool.kept_by_others_bytes()) {
        return Ok(Outcome::Skipped);
    }
    let most_bytes = {
        let heap = &pool.core().heap;
        heap.growth_target_bytes(request).saturating_add(HANDLE_BYTES).min(pool.reservable_max_bytes(heap))
    };
    grow(search, request, most_bytes)
}

fn all_magazines(
    search: &mut BlockSearch<'_>,
    request: &BlockRequest,
) -> Result<Outcome<HeapBlock>, PoolError> {
    Ok(ready_if(if is_small(request) {
        !search.spares_magazines && search.pool.drain_all()
    } else {
        search.pool.drain_all_large()
    }))
}

fn spared_magazines(search: &mut BlockSearch<'_>, _: &BlockRequest) -> Result<Outcome<HeapBlock>, PoolError> {
    Ok(ready_if(search.spares_magazines && search.pool.drain_all()))
}

fn ready_if(is_any: bool) -> Outcome<HeapBlock> {
    if is_any { Outcome::Short } else { Outcome::Skipped }
}

/// Polls for completed work. If nothing new is complete, records markers in the streams whose memory the request
/// could use, for the next poll.
fn completed(search: &mut BlockSearch<'_>, request: &BlockRequest) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    let (clocks, budget) = (pool.clocks(), pool.tuning.poll_budget);
    if budget.is_zero() || !pool.core().heap.has_pending_of_others(request) {
        return Ok(Outcome::Skipped);
    }
    // A host request has no stream whose memory it could use, and new driver memory is expensive. Markers recorded before the poll detect
    // idle memory immediately.
    if request.stream == StreamIndex::HOST {
        mark_pending(pool, request)?;
    }
    if clocks.poll(budget)? {
        pool.core().heap.settle(clocks);
        return Ok(Outcome::Short);
    }
    mark_pending(pool, request)?;
    Ok(Outcome::Skipped)
}

fn mark_pending(pool: &CachingPool, request: &BlockRequest) -> Result<(), PoolError> {
    let clocks = pool.clocks();
    let pending = pool.core().heap.latest_pending(request, clocks);
    for stamp in pending.into_iter().filter(|stamp| clocks.stamp(stamp.stream_index()) == *stamp) {
        clocks.record_marker(stamp.stream_index())?;
    }
    Ok(())
}

fn growth_to_target(
    search: &mut BlockSearch<'_>,
    request: &BlockRequest,
) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    let most_bytes = {
        let heap = &pool.core().heap;
        heap.growth_target_bytes(request).min(pool.reservable_max_bytes(heap))
    };
    grow(search, request, most_bytes)
}

fn recycled(search: &mut BlockSearch<'_>, request: &BlockRequest) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    let (clocks, mut vmm) = (pool.clocks(), pool.vmm());
    let mut core = pool.core();
    let kept_count = core.heap.kept_mappings();
    if core.heap.is_unmapping_due(kept_count) {
        drop(core);
        if !pool.tuning.poll_budget.is_zero() {
            // The caller passed the stream to this call, so the stream may be marked.
            clocks.record_marker_by_user(request.stream)?;
            clocks.poll(pool.tuning.poll_budget)?;
        }
        core = pool.core();
        core.heap.unmap_empty(kept_count.saturating_sub(UNMAPPED_AT_ONCE), clocks, &mut vmm)?;
    }
    unless_short(core.heap.take_recycled(request, clocks, &mut vmm))
}

fn device_waits(
    search: &mut BlockSearch<'_>,
    request: &BlockRequest,
) -> Result<Outcome<HeapBlock>, PoolError> {
    let (pool, clocks) = (search.pool, search.pool.clocks());
    let can_wait = |stamp| pool.tuning.inserted_waits && clocks.allows_wait_for(stamp);
    let waits = pool.core().heap.blockers(request, clocks, can_wait);
    if waits.is_empty() {
        // No other thread may mark the default stream of a thread, which may be idle for good.
        let is_idle = clocks.has_named_streams()
            && pool.core().heap.has_pending_of_others(request)
            && pool.device.is_idle()?;
        if is_idle {
            pool.core().heap.settle(clocks);
        }
        return Ok(ready_if(is_idle));
    }
    for stamp in &waits {
        let is_new = !clocks.is_ordered(*stamp, request.stream);
        if !clocks.insert_wait(*stamp, request.stream)? {
            return Ok(Outcome::Skipped);
        }
        pool.activity().inserted_wait_count.add(u64::from(is_new));
    }
    Ok(Outcome::Short)
}

/// The driver's plain free waits for the device without a deadline, so nothing is released while it is busy.
fn outgrown(search: &mut BlockSearch<'_>, request: &BlockRequest) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    if !pool.core().heap.has_outgrown(request) || !pool.finish_for_exchange()? {
        return Ok(Outcome::Skipped);
    }
    let (clocks, mut vmm) = (pool.clocks(), pool.vmm());
    let mut core = pool.core();
    core.heap.settle(clocks);
    if let Some(block) = core.heap.take_ready(request, clocks) {
        return Ok(Outcome::Found(block));
    }
    // A segment that the driver fails to release does not fail this request.
    let _ = core.heap.release_outgrown(request, clocks, &mut vmm);
    drop(core);
    let limit_bytes = pool.reservable_max_bytes(&pool.core().heap);
    grow(search, request, limit_bytes)
}

fn growth_to_limit(
    search: &mut BlockSearch<'_>,
    request: &BlockRequest,
) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    let limit_bytes = pool.reservable_max_bytes(&pool.core().heap);
    match grow(search, request, limit_bytes)? {
        Outcome::Skipped => {}
        found => return Ok(found),
    }
    // Other pools or processes may use the memory that the limit allows.
    let Ok(info) = pool.device.memory_info() else { return Ok(Outcome::Skipped) };
    let most_bytes = pool.core().heap.reserved_bytes().saturating_add(info.free_bytes);
    if most_bytes >= limit_bytes {
        return Ok(Outcome::Skipped);
    }
    let refusal = search.refusal.take();
    let made = grow(search, request, most_bytes)?;
    if let Outcome::Skipped = made {
        // The driver's lack of memory caused the second attempt, so its refusal is kept.
        search.refusal = search.refusal.or(refusal);
    }
    Ok(made)
}

fn grow(
    search: &mut BlockSearch<'_>,
    request: &BlockRequest,
    reserved_max_bytes: u64,
) -> Result<Outcome<HeapBlock>, PoolError> {
    let (pool, mut vmm) = (search.pool, search.pool.vmm());
    let grown = pool.core().heap.take_grown(request, pool.clocks(), &mut vmm, reserved_max_bytes);
    search.refusal = grown.err().map(Refusal::if_out_of_memory).transpose()?;
    Ok(made(grown.ok().flatten()))
}

/// Skips a rung that runs out of memory without growing the heap: the request fails for another reason.
fn unless_short(taken: Result<Option<HeapBlock>, Refusal>) -> Result<Outcome<HeapBlock>, PoolError> {
    match taken {
        Ok(block) => Ok(made(block)),
        Err(refusal) => refusal.if_out_of_memory().map(|_| Outcome::Skipped),
    }
}

fn made(block: Option<HeapBlock>) -> Outcome<HeapBlock> {
    block.map_or(Outcome::Skipped, Outcome::Found)
}

fn leftover(search: &mut BlockSearch<'_>, request: &BlockRequest) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    Ok(made(is_small(request).then(|| pool.core().heap.take_leftover(request, pool.clocks())).flatten()))
}

fn host_wait(search: &mut BlockSearch<'_>, request: &BlockRequest) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    pool.drain_all();
    let clocks = pool.clocks();
    let waits = pool.core().heap.blockers(request, clocks, |_| true);
    let deadline = deadline::until(pool.tuning.wait_deadline);
    if waits.is_empty() || !pool.activity().host_wait(|| clocks.wait_on_host(&waits, deadline))? {
        return Ok(Outcome::Short);
    }
    pool.core().heap.settle(clocks);
    Ok(Outcome::Short)
}

fn synchronised(
    search: &mut BlockSearch<'_>,
    _request: &BlockRequest,
) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    let is_idle = pool.wait_for_room()?;
    let (clocks, mut vmm) = (pool.clocks(), pool.vmm());
    let mut core = pool.core();
    // A handle that the driver fails to release does not fail this request, because other memory may suffice.
    let _ = core.heap.release_lost(&mut vmm);
    core.heap.settle(clocks);
    core.heap.unmap_empty(0, clocks, &mut vmm)?;
    if is_idle || pool.releases_at_once() {
        let _ = core.heap.trim(0, clocks, &mut vmm);
    }
    Ok(Outcome::Short)
}

fn glued(search: &mut BlockSearch<'_>, request: &BlockRequest) -> Result<Outcome<HeapBlock>, PoolError> {
    let pool = search.pool;
    let (clocks, mut vmm, mut core) = (pool.clocks(), pool.vmm(), pool.core());
    let most_bytes = pool.reservable_max_bytes(&core.heap);
    unless_short(core.heap.take_glued(request, clocks, &mut vmm, most_bytes))
}

fn is_small(request: &BlockRequest) -> bool {
    request.size_bytes <= SizeClass::SIZE_BYTES_MAX
}

const HANDLE_BYTES: u64 = 2 << 20;

/// The number of mappings below the kept count that are unmapped at a time: few, so that no allocation pays for many others.
const UNMAPPED_AT_ONCE: usize = 16;

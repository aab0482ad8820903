//! The ladder: the slow path of an allocation. The cheapest rung comes first, and each rung is followed by a new search.
//!
//! | rung | where the memory comes from | cost |
//! | --- | --- | --- |
//! | `own_magazines` | the blocks that this thread has cached; for a large block, its large ones only | its next hits |
//! | `one_handle` | for a small block, one handle from the driver, up to 2 MiB beyond the target of `growth_to_target`, if the profile has slack and other threads have cached less than that, but not nothing | memory |
//! | `all_magazines` | the blocks that all threads have cached; for a large block, large ones only | their next hits |
//! | `completed` | blocks freed by other streams whose markers have been passed | queries, within a budget |
//! | `growth_to_target` | the driver, up to the peak in use and the slack | one handle or a few |
//! | `recycled` | idle memory, moved or mapped to other addresses | one mapping or a few |
//! | `spared_magazines` | for a small block, the blocks that all threads have cached, where the slack is larger than their sum or much is ready | their next hits |
//! | `device_waits` | blocks freed by other streams, behind waits between the streams | concurrency of streams |
//! | `growth_to_limit` | the driver, and all idle memory that fits beside it | memory |
//! | `leftover` | for a small block, free memory between larger blocks | larger blocks, later |
//! | `host_wait` | the blocks of `device_waits`, once the host has waited for them | the caller's time, up to the deadline |
//! | `synchronised` | all memory that is free once the device is idle, or at the deadline; released and reallocated; near a limit, also the free ends of pages that other blocks hold | everybody's time |
//!
//! Over segments no memory can be moved or mapped elsewhere, so `recycled` finds only what was free before. Of memory that the
//! host may use, only blocks whose work is complete are free: `completed` records the markers that it then queries, and
//! `device_waits` does nothing.
//!
//! Below the last rung the pool asks the registered reclaim callbacks and the device's other pools for memory
//! (`pool/state/relief`), and the ladder starts again.
//!
//! No rung splits a handle: an idle handle can be mapped as it is, beside parts of others, and the driver releases no part
//! of a handle. When the driver has less memory left than the pool's limit allows, growth stops where the driver does, and
//! the rungs below it search what the pool has.

use super::caching_pool::{AllocFailure, CachingPool};
use crate::device::{CaptureModeGuard, StreamIndex, deadline};
use crate::error::{Attempt, PoolError};
use gpumem_heap::HeapBlock;
use gpumem_heap::SizeClass;
use gpumem_heap::heap::Request;
use gpumem_sys::types::CUresult;
use std::time::{Duration, Instant};

/// The outcome of a rung.
enum Step {
    Found(HeapBlock),
    /// More memory may be free now. The search continues up to this reach.
    Look(Reach),
    Nothing,
}

/// How far a search goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Ready,
    Recycled,
    Limit,
    /// The limit, and then the free parts of pages that other blocks use.
    Pages,
}

/// The memory that a rung has released and the time it took, summed over all passes of one request.
#[derive(Clone, Copy, Default)]
struct Tried {
    gained_bytes: u64,
    took: Duration,
}

impl Tried {
    fn named(self, name: &'static str) -> Attempt {
        Attempt { name, gained_bytes: self.gained_bytes, took: self.took, failures: Vec::new() }
    }
}

type Rung = fn(&CachingPool, &Request, &mut AllocFailure) -> Result<Step, PoolError>;

/// The rungs while memory is available.
const RUNGS: [(&str, Rung); 8] = [
    ("drain this thread's magazines", own_magazines),
    ("grow by one handle", one_handle),
    ("drain all magazines", all_magazines),
    ("ask which frees are complete", completed),
    ("grow to the target", growth_to_target),
    ("map idle memory anew", recycled),
    ("drain spared magazines", spared_magazines),
    ("make the stream wait for others", device_waits),
];

/// The rungs when memory is short. They serve the exact request, without rounding.
const LAST_RUNGS: [(&str, Rung); 4] = [
    ("grow to the limit", growth_to_limit),
    ("use what large blocks left over", leftover),
    ("wait for other streams' frees", host_wait),
    ("wait for the device and trim", synchronised),
];

/// The slow path of an allocation: finds a block for the request, or one of at least `least_bytes`. `None` when all
/// rungs have failed; `failure` then lists the attempts.
///
/// # Errors
///
/// `PoolError::Driver` or `PoolError::DeviceLost` if a call fails for another reason than a lack of memory.
#[cold]
pub(super) fn climb(
    pool: &CachingPool,
    request: &Request,
    least_bytes: u64,
    failure: &mut AllocFailure,
) -> Result<Option<HeapBlock>, PoolError> {
    let _relaxed = CaptureModeGuard::enter(pool.device.driver())?;
    let _bound = pool.device.enter()?;
    let mut tried = [Tried::default(); RUNGS.len() + LAST_RUNGS.len()];
    loop {
        let before = pool.begin_look();
        if let Some(allocation) = climb_once(pool, request, least_bytes, failure, &mut tried)? {
            return Ok(Some(allocation));
        }
        // Memory that other threads held during the search may be free now.
        let is_late = Instant::now() >= deadline::until(pool.tuning.wait_deadline);
        if is_late || !pool.may_look_again(&before, least_bytes) {
            let names = RUNGS.iter().chain(&LAST_RUNGS).map(|(name, _)| name);
            failure.attempts.extend(names.zip(tried).map(|(name, tried)| tried.named(name)));
            return Ok(None);
        }
        std::thread::yield_now();
    }
}

fn climb_once(
    pool: &CachingPool,
    request: &Request,
    least_bytes: u64,
    failure: &mut AllocFailure,
    tried: &mut [Tried],
) -> Result<Option<HeapBlock>, PoolError> {
    let least = Request { size_bytes: least_bytes.min(request.size_bytes), ..*request };
    let rungs = RUNGS.iter().map(|rung| (rung, request)).chain(LAST_RUNGS.iter().map(|rung| (rung, &least)));
    let mut free_bytes = {
        let heap = &mut pool.core_with_limit().heap;
        // Read once, because other threads may change it before the rung that compensates for it.
        failure.spares_magazines = is_small(request) && heap.spares_magazines();
        failure.has_slack = heap.tuning().has_slack();
        heap.free_bytes(request.stream)
    };
    let mut start = Instant::now();
    for (((_, rung), request), tried) in rungs.zip(tried) {
        let found = match rung(pool, request, failure)? {
            Step::Found(allocation) => Some(allocation),
            Step::Look(reach) => {
                let (now_bytes, ready) = {
                    let heap = &mut pool.core().heap;
                    (heap.free_bytes(request.stream), heap.take_ready(request, pool.clocks()))
                };
                tried.gained_bytes += now_bytes.saturating_sub(free_bytes).max(0).unsigned_abs();
                free_bytes = now_bytes;
                match ready {
                    Some(allocation) => Some(allocation),
                    None => search_further(pool, request, reach, failure)?,
                }
            }
            Step::Nothing => None,
        };
        if found.is_some() {
            return Ok(found);
        }
        let end = Instant::now();
        tried.took += end - start;
        start = end;
    }
    Ok(None)
}

/// Searches beyond ready memory, after a search of ready memory has failed.
fn search_further(
    pool: &CachingPool,
    request: &Request,
    reach: Reach,
    failure: &mut AllocFailure,
) -> Result<Option<HeapBlock>, PoolError> {
    let steps: &[Rung] = match reach {
        Reach::Ready => &[],
        Reach::Recycled => &[recycled],
        Reach::Limit => &[recycled, growth_to_limit, leftover],
        Reach::Pages => &[recycled, growth_to_limit, leftover, glued],
    };
    for step in steps {
        if let Step::Found(allocation) = step(pool, request, failure)? {
            return Ok(Some(allocation));
        }
    }
    Ok(None)
}

/// Small blocks cannot form a large block, so a large request drains large blocks only.
fn own_magazines(
    pool: &CachingPool,
    request: &Request,
    failure: &mut AllocFailure,
) -> Result<Step, PoolError> {
    Ok(ready_if(match is_small(request) {
        true => !failure.spares_magazines && pool.drain_own(),
        false => pool.drain_own_large(),
    }))
}

/// Threads that free blocks of other threads always cache a few. While they cache less than one handle, draining them
/// would recur every few allocations, so the heap grows by one handle instead.
fn one_handle(pool: &CachingPool, request: &Request, failure: &mut AllocFailure) -> Result<Step, PoolError> {
    let is_taken_first = is_small(request) && !failure.spares_magazines;
    if !is_taken_first || !failure.has_slack {
        return Ok(Step::Nothing);
    }
    if !(1..HANDLE_BYTES).contains(&pool.kept_by_others_bytes()) {
        return Ok(Step::Nothing);
    }
    let most_bytes = {
        let heap = &pool.core().heap;
        heap.growth_target_bytes(request).saturating_add(HANDLE_BYTES).min(pool.limit_bytes(heap))
    };
    grow(pool, request, most_bytes, failure)
}

fn all_magazines(
    pool: &CachingPool,
    request: &Request,
    failure: &mut AllocFailure,
) -> Result<Step, PoolError> {
    Ok(ready_if(match is_small(request) {
        true => !failure.spares_magazines && pool.drain_all(),
        false => pool.drain_all_recent(),
    }))
}

fn spared_magazines(pool: &CachingPool, _: &Request, failure: &mut AllocFailure) -> Result<Step, PoolError> {
    Ok(ready_if(failure.spares_magazines && pool.drain_all()))
}

fn ready_if(is_any: bool) -> Step {
    if is_any { Step::Look(Reach::Ready) } else { Step::Nothing }
}

/// Polls for completed work. If nothing new is complete, records markers in the streams whose memory the request
/// could use, for the next poll.
fn completed(pool: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    let (clocks, budget) = (pool.clocks(), pool.tuning.poll_budget);
    if budget.is_zero() || !pool.core().heap.has_pending_of_others(request) {
        return Ok(Step::Nothing);
    }
    // A host request has no stream whose own memory it could use, and other driver memory is expensive. Markers
    // before the poll detect idle memory at once.
    if request.stream == StreamIndex::HOST {
        mark_pending(pool, request)?;
    }
    if clocks.poll(budget)? {
        pool.core().heap.settle(clocks);
        return Ok(Step::Look(Reach::Ready));
    }
    mark_pending(pool, request)?;
    Ok(Step::Nothing)
}

fn mark_pending(pool: &CachingPool, request: &Request) -> Result<(), PoolError> {
    let clocks = pool.clocks();
    let pending = pool.core().heap.latest_pending(request, clocks);
    for stamp in pending.into_iter().filter(|stamp| clocks.stamp(stamp.stream_index()) == *stamp) {
        clocks.record_marker(stamp.stream_index())?;
    }
    Ok(())
}

fn growth_to_target(
    pool: &CachingPool,
    request: &Request,
    failure: &mut AllocFailure,
) -> Result<Step, PoolError> {
    let most_bytes = {
        let heap = &pool.core().heap;
        heap.growth_target_bytes(request).min(pool.limit_bytes(heap))
    };
    grow(pool, request, most_bytes, failure)
}

fn recycled(pool: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
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
    let allocation = core.heap.take_recycled(request, clocks, &mut vmm)?;
    Ok(allocation.map_or(Step::Nothing, Step::Found))
}

fn device_waits(pool: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    if !pool.tuning.inserted_waits {
        return Ok(Step::Nothing);
    }
    let clocks = pool.clocks();
    let waits = pool.core().heap.blockers(request, clocks, |stamp| clocks.allows_wait_for(stamp));
    for stamp in &waits {
        if !pool.clocks().insert_wait(*stamp, request.stream)? {
            return Ok(Step::Nothing);
        }
    }
    Ok(if waits.is_empty() { Step::Nothing } else { Step::Look(Reach::Recycled) })
}

fn growth_to_limit(
    pool: &CachingPool,
    request: &Request,
    failure: &mut AllocFailure,
) -> Result<Step, PoolError> {
    let limit_bytes = pool.limit_bytes(&pool.core().heap);
    match grow(pool, request, limit_bytes, failure)? {
        Step::Nothing => {}
        found => return Ok(found),
    }
    // Other pools or processes may use the memory that the limit allows.
    let Ok(info) = pool.device.memory_info() else { return Ok(Step::Nothing) };
    let most_bytes = pool.core().heap.reserved_bytes().saturating_add(info.free_bytes);
    if most_bytes >= limit_bytes {
        return Ok(Step::Nothing);
    }
    let said = failure.said.take();
    let step = grow(pool, request, most_bytes, failure)?;
    if let Step::Nothing = step {
        // The driver's lack of memory caused the second attempt, so its error is kept.
        failure.said = failure.said.take().or(said);
    }
    Ok(step)
}

fn grow(
    pool: &CachingPool,
    request: &Request,
    reserved_max_bytes: u64,
    failure: &mut AllocFailure,
) -> Result<Step, PoolError> {
    let mut vmm = pool.vmm();
    let grown = pool.core().heap.take_grown(request, pool.clocks(), &mut vmm, reserved_max_bytes);
    match grown {
        Ok(allocation) => {
            failure.said = None;
            Ok(allocation.map_or(Step::Nothing, Step::Found))
        }
        Err(error) if error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            failure.said = Some(vmm.said(error));
            Ok(Step::Nothing)
        }
        Err(error) => Err(error.into()),
    }
}

fn leftover(pool: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    let allocation =
        is_small(request).then(|| pool.core().heap.take_leftover(request, pool.clocks())).flatten();
    Ok(allocation.map_or(Step::Nothing, Step::Found))
}

fn host_wait(pool: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    pool.drain_all();
    let clocks = pool.clocks();
    let waits = pool.core().heap.blockers(request, clocks, |_| true);
    let deadline = deadline::until(pool.tuning.wait_deadline);
    if waits.is_empty() || !clocks.wait_on_host(&waits, deadline)? {
        return Ok(Step::Look(Reach::Limit));
    }
    pool.core().heap.settle(clocks);
    Ok(Step::Look(Reach::Limit))
}

fn synchronised(pool: &CachingPool, _request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    let others = pool.short_family();
    let is_idle = pool.finish_for(&others)?;
    pool.settle_extents()?;
    others.iter().for_each(|other| other.give_back_all(is_idle));
    let (clocks, mut vmm) = (pool.clocks(), pool.vmm());
    let mut core = pool.core();
    // A handle that the driver fails to release does not fail this request, because other memory may suffice.
    let _ = core.heap.release_lost(&mut vmm);
    core.heap.settle(clocks);
    core.heap.unmap_empty(0, clocks, &mut vmm)?;
    if is_idle || pool.releases_at_once() {
        let _ = core.heap.trim(0, clocks, &mut vmm);
    }
    Ok(Step::Look(Reach::Pages))
}

fn glued(pool: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    let (clocks, mut vmm, mut core) = (pool.clocks(), pool.vmm(), pool.core());
    let most_bytes = pool.limit_bytes(&core.heap);
    match core.heap.take_glued(request, clocks, &mut vmm, most_bytes) {
        Ok(allocation) => Ok(allocation.map_or(Step::Nothing, Step::Found)),
        Err(error) if error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(Step::Nothing),
        Err(error) => Err(error.into()),
    }
}

fn is_small(request: &Request) -> bool {
    request.size_bytes <= SizeClass::SIZE_BYTES_MAX
}

/// The smallest handle.
const HANDLE_BYTES: u64 = 2 << 20;

/// The number of mappings below the kept count that are unmapped at once: few, so that no allocation pays for many
/// others.
const UNMAPPED_AT_ONCE: usize = 16;

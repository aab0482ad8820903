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

/// What a rung came to.
enum Step {
    Found(HeapBlock),
    /// Something may be free now that was not: to be looked for as far as this.
    Look(Reach),
    Nothing,
}

/// How far a search goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Ready,
    Recycled,
    Limit,
    /// And into pages that others hold in part.
    Pages,
}

/// What a rung has given back, and what it took, each time that it was climbed.
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

/// As long as memory is to be had.
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

/// When it is short: for the very bytes that were asked for, without rounding.
const LAST_RUNGS: [(&str, Rung); 4] = [
    ("grow to the limit", growth_to_limit),
    ("use what large blocks left over", leftover),
    ("wait for other streams' frees", host_wait),
    ("wait for the device and trim", synchronised),
];

/// A piece for a request that nothing at hand was found for, or for so many bytes at least; `None` when all rungs have
/// failed: `lack` says then what was tried.
#[cold]
pub(super) fn climb(
    shared: &CachingPool,
    request: &Request,
    least_bytes: u64,
    lack: &mut AllocFailure,
) -> Result<Option<HeapBlock>, PoolError> {
    let _relaxed = CaptureModeGuard::enter(shared.device.driver())?;
    let _bound = shared.device.enter()?;
    let mut tried = [Tried::default(); RUNGS.len() + LAST_RUNGS.len()];
    loop {
        let before = shared.begin_look();
        if let Some(allocation) = climb_once(shared, request, least_bytes, lack, &mut tried)? {
            return Ok(Some(allocation));
        }
        // What others had in their hands while this looked may be free now.
        let is_late = Instant::now() >= deadline::until(shared.tuning.wait_deadline);
        if is_late || !shared.may_look_again(&before, least_bytes) {
            let names = RUNGS.iter().chain(&LAST_RUNGS).map(|(name, _)| name);
            lack.attempts.extend(names.zip(tried).map(|(name, tried)| tried.named(name)));
            return Ok(None);
        }
        std::thread::yield_now();
    }
}

fn climb_once(
    shared: &CachingPool,
    request: &Request,
    least_bytes: u64,
    lack: &mut AllocFailure,
    tried: &mut [Tried],
) -> Result<Option<HeapBlock>, PoolError> {
    let least = Request { size_bytes: least_bytes.min(request.size_bytes), ..*request };
    let rungs = RUNGS.iter().map(|rung| (rung, request)).chain(LAST_RUNGS.iter().map(|rung| (rung, &least)));
    let mut free_bytes = {
        let heap = &mut shared.core_with_limit().heap;
        // Looked at once: other threads may change it before the rung that makes up for it.
        lack.spares_magazines = is_small(request) && heap.spares_magazines();
        lack.has_slack = heap.tuning().has_slack();
        heap.free_bytes(request.stream)
    };
    let mut start = Instant::now();
    for (((_, rung), request), tried) in rungs.zip(tried) {
        let found = match rung(shared, request, lack)? {
            Step::Found(allocation) => Some(allocation),
            Step::Look(reach) => {
                let (now_bytes, ready) = {
                    let heap = &mut shared.core().heap;
                    (heap.free_bytes(request.stream), heap.take_ready(request, shared.clocks()))
                };
                tried.gained_bytes += now_bytes.saturating_sub(free_bytes).max(0).unsigned_abs();
                free_bytes = now_bytes;
                match ready {
                    Some(allocation) => Some(allocation),
                    None => search_further(shared, request, reach, lack)?,
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

/// After a look at what is ready.
fn search_further(
    shared: &CachingPool,
    request: &Request,
    reach: Reach,
    lack: &mut AllocFailure,
) -> Result<Option<HeapBlock>, PoolError> {
    let steps: &[Rung] = match reach {
        Reach::Ready => &[],
        Reach::Recycled => &[recycled],
        Reach::Limit => &[recycled, growth_to_limit, leftover],
        Reach::Pages => &[recycled, growth_to_limit, leftover, glued],
    };
    for step in steps {
        if let Step::Found(allocation) = step(shared, request, lack)? {
            return Ok(Some(allocation));
        }
    }
    Ok(None)
}

/// Small pieces are no part of a large block.
fn own_magazines(
    shared: &CachingPool,
    request: &Request,
    lack: &mut AllocFailure,
) -> Result<Step, PoolError> {
    Ok(ready_if(match is_small(request) {
        true => !lack.spares_magazines && shared.drain_own(),
        false => shared.drain_own_large(),
    }))
}

/// Threads that free what others allocate always have a little at hand. While that is less than a handle it would be taken
/// from them again and again, each time for a few allocations.
fn one_handle(shared: &CachingPool, request: &Request, lack: &mut AllocFailure) -> Result<Step, PoolError> {
    let is_taken_first = is_small(request) && !lack.spares_magazines;
    if !is_taken_first || !lack.has_slack {
        return Ok(Step::Nothing);
    }
    if !(1..HANDLE_BYTES).contains(&shared.kept_by_others_bytes()) {
        return Ok(Step::Nothing);
    }
    let most_bytes = {
        let heap = &shared.core().heap;
        heap.growth_target_bytes(request).saturating_add(HANDLE_BYTES).min(shared.limit_bytes(heap))
    };
    grow(shared, request, most_bytes, lack)
}

fn all_magazines(
    shared: &CachingPool,
    request: &Request,
    lack: &mut AllocFailure,
) -> Result<Step, PoolError> {
    Ok(ready_if(match is_small(request) {
        true => !lack.spares_magazines && shared.drain_all(),
        false => shared.drain_all_recent(),
    }))
}

fn spared_magazines(shared: &CachingPool, _: &Request, lack: &mut AllocFailure) -> Result<Step, PoolError> {
    Ok(ready_if(lack.spares_magazines && shared.drain_all()))
}

fn ready_if(is_any: bool) -> Step {
    if is_any { Step::Look(Reach::Ready) } else { Step::Nothing }
}

/// Asks what is complete. Where nothing new is, streams that hold what we could use get a mark, for the next time.
fn completed(shared: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    let (clocks, budget) = (shared.clocks(), shared.tuning.poll_budget);
    if budget.is_zero() || !shared.core().heap.has_pending_of_others(request) {
        return Ok(Step::Nothing);
    }
    // The host has no stream of its own to turn to, and the driver's other memory is dear: what is idle now is seen now.
    if request.stream == StreamIndex::HOST {
        mark_pending(shared, request)?;
    }
    if clocks.poll(budget)? {
        shared.core().heap.settle(clocks);
        return Ok(Step::Look(Reach::Ready));
    }
    mark_pending(shared, request)?;
    Ok(Step::Nothing)
}

fn mark_pending(shared: &CachingPool, request: &Request) -> Result<(), PoolError> {
    let clocks = shared.clocks();
    let pending = shared.core().heap.latest_pending(request, clocks);
    for stamp in pending.into_iter().filter(|stamp| clocks.stamp(stamp.stream_index()) == *stamp) {
        clocks.record_marker(stamp.stream_index())?;
    }
    Ok(())
}

fn growth_to_target(
    shared: &CachingPool,
    request: &Request,
    lack: &mut AllocFailure,
) -> Result<Step, PoolError> {
    let most_bytes = {
        let heap = &shared.core().heap;
        heap.growth_target_bytes(request).min(shared.limit_bytes(heap))
    };
    grow(shared, request, most_bytes, lack)
}

fn recycled(shared: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    let (clocks, mut vmm) = (shared.clocks(), shared.vmm());
    let mut core = shared.core();
    let kept_count = core.heap.kept_mappings();
    if core.heap.is_unmapping_due(kept_count) {
        drop(core);
        if !shared.tuning.poll_budget.is_zero() {
            // This call names the stream.
            clocks.record_marker_by_user(request.stream)?;
            clocks.poll(shared.tuning.poll_budget)?;
        }
        core = shared.core();
        core.heap.unmap_empty(kept_count.saturating_sub(UNMAPPED_AT_ONCE), clocks, &mut vmm)?;
    }
    let allocation = core.heap.take_recycled(request, clocks, &mut vmm)?;
    Ok(allocation.map_or(Step::Nothing, Step::Found))
}

fn device_waits(shared: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    if !shared.tuning.inserted_waits {
        return Ok(Step::Nothing);
    }
    let clocks = shared.clocks();
    let waits = shared.core().heap.blockers(request, clocks, |stamp| clocks.allows_wait_for(stamp));
    for stamp in &waits {
        if !shared.clocks().insert_wait(*stamp, request.stream)? {
            return Ok(Step::Nothing);
        }
    }
    Ok(if waits.is_empty() { Step::Nothing } else { Step::Look(Reach::Recycled) })
}

fn growth_to_limit(
    shared: &CachingPool,
    request: &Request,
    lack: &mut AllocFailure,
) -> Result<Step, PoolError> {
    let limit_bytes = shared.limit_bytes(&shared.core().heap);
    match grow(shared, request, limit_bytes, lack)? {
        Step::Nothing => {}
        found => return Ok(found),
    }
    // Others may have taken what the limit allows.
    let Ok(info) = shared.device.memory_info() else { return Ok(Step::Nothing) };
    let most_bytes = shared.core().heap.reserved_bytes().saturating_add(info.free_bytes);
    if most_bytes >= limit_bytes {
        return Ok(Step::Nothing);
    }
    let said = lack.said.take();
    let step = grow(shared, request, most_bytes, lack)?;
    if let Step::Nothing = step {
        // It is for want of the driver's memory that this was looked for.
        lack.said = lack.said.take().or(said);
    }
    Ok(step)
}

fn grow(
    shared: &CachingPool,
    request: &Request,
    reserved_max_bytes: u64,
    lack: &mut AllocFailure,
) -> Result<Step, PoolError> {
    let mut vmm = shared.vmm();
    let grown = shared.core().heap.take_grown(request, shared.clocks(), &mut vmm, reserved_max_bytes);
    match grown {
        Ok(allocation) => {
            lack.said = None;
            Ok(allocation.map_or(Step::Nothing, Step::Found))
        }
        Err(error) if error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            lack.said = Some(vmm.said(error));
            Ok(Step::Nothing)
        }
        Err(error) => Err(error.into()),
    }
}

fn leftover(shared: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    let allocation =
        is_small(request).then(|| shared.core().heap.take_leftover(request, shared.clocks())).flatten();
    Ok(allocation.map_or(Step::Nothing, Step::Found))
}

fn host_wait(shared: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    shared.drain_all();
    let clocks = shared.clocks();
    let waits = shared.core().heap.blockers(request, clocks, |_| true);
    let deadline = deadline::until(shared.tuning.wait_deadline);
    if waits.is_empty() || !clocks.wait_on_host(&waits, deadline)? {
        return Ok(Step::Look(Reach::Limit));
    }
    shared.core().heap.settle(clocks);
    Ok(Step::Look(Reach::Limit))
}

fn synchronised(shared: &CachingPool, _request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    let others = shared.short_family();
    let is_idle = shared.finish_for(&others)?;
    shared.settle_extents()?;
    others.iter().for_each(|other| other.give_back_all(is_idle));
    let (clocks, mut vmm) = (shared.clocks(), shared.vmm());
    let mut core = shared.core();
    // A handle that the driver refuses to take back is no reason to refuse this request: others may suffice.
    let _ = core.heap.release_lost(&mut vmm);
    core.heap.settle(clocks);
    core.heap.unmap_empty(0, clocks, &mut vmm)?;
    if is_idle || shared.releases_at_once() {
        let _ = core.heap.trim(0, clocks, &mut vmm);
    }
    Ok(Step::Look(Reach::Pages))
}

fn glued(shared: &CachingPool, request: &Request, _: &mut AllocFailure) -> Result<Step, PoolError> {
    let (clocks, mut vmm, mut core) = (shared.clocks(), shared.vmm(), shared.core());
    let most_bytes = shared.limit_bytes(&core.heap);
    match core.heap.take_glued(request, clocks, &mut vmm, most_bytes) {
        Ok(allocation) => Ok(allocation.map_or(Step::Nothing, Step::Found)),
        Err(error) if error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(Step::Nothing),
        Err(error) => Err(error.into()),
    }
}

fn is_small(request: &Request) -> bool {
    request.size_bytes <= SizeClass::SIZE_BYTES_MAX
}

/// The smallest.
const HANDLE_BYTES: u64 = 2 << 20;

/// So that no allocation pays for many others.
const UNMAPPED_AT_ONCE: usize = 16;

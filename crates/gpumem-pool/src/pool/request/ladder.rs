//! The ladder: makes room for a request that found no free memory, until it succeeds or nothing is left to try. This is the
//! only loop that repeats a request.
//!
//! A pass climbs the rungs of the backend, the cheapest first; its search lists them (`backend/caching/rungs`, `backend/caching/caching_pool/growing`,
//! `backend/direct`). After them come rungs outside the pool, each followed by a new pass:
//!
//! | rung | when | cost |
//! | --- | --- | --- |
//! | contents of arrays move to the host, before the first rung that waits on the host | the option `spill` | their copies, on the device |
//! | registered reclaim callbacks: purge, then release | always | their cached memory |
//! | other pools of the device | unless this pool's own limit or a budget refused | their caches, and a wait for the device |
//! | contents of other pools' arrays move to the host | the same, and their option `spill` | their copies, their caches, and a wait for the device |
//!
//! Only memory that helps the requested kind takes part: device memory and unified memory help each other, pinned memory helps
//! pinned memory. No lock is held during callbacks. All waits of a request share one deadline.

use super::ahead;
use super::report::{self, OTHERS_TRIMMED};
use crate::backend::{MemorySource, Outcome, Search, Shortage, waits_on_host};
use crate::config::{MemoryKind, PoolId};
use crate::error::{Attempt, PoolError, Refusal, RefusedBy};
use crate::figures::StepCounters;
use crate::limits::reclaim::{OTHERS_TIME_MAX, Registry, Round};
use crate::limits::spills::Spills;
use crate::limits::{Trimmable, WeakList};
use crate::pool::events;
use crate::pool::hub::Hub;
use gpumem_device::CaptureModeGuard;
use gpumem_device::internal::deadline;
use std::sync::Arc;
use std::time::Instant;

/// The rungs outside the pool: a round of reclaim callbacks, or `None` for the other pools.
const OUTSIDE: [(&str, Option<Round>); 3] = [
    ("run reclaim callbacks (purge)", Some(Round::Purge)),
    ("run reclaim callbacks (release)", Some(Round::Release)),
    (OTHERS_TRIMMED, None),
];

/// Climbs the ladder for a request, and returns what the request found.
///
/// # Errors
///
/// `PoolError::LimitReached` or `PoolError::OutOfMemory` with a report if no rung helps, or the search's own error. `DeviceError::Driver`
/// or `DeviceError::DeviceLost` if a call fails for a reason other than a shortage of memory.
#[cold]
pub(crate) fn climb<T>(hub: &Hub, search: &mut dyn Search<T>) -> Result<T, PoolError> {
    let _request = deadline::RequestScope::begin();
    let mut course = Course { attempts: Vec::with_capacity(ATTEMPTS_MAX), served_by: None };
    let found = climb_until_found(hub, search, &mut course);
    hub.activity.add_steps(course.attempts.iter().map(|attempt| StepCounters {
        name: attempt.name,
        gained_bytes: attempt.gained_bytes,
        served_count: u64::from(course.served_by == Some(attempt.name)),
        took: attempt.took,
    }));
    events::steps(hub, &course.attempts, course.served_by);
    match found? {
        Outcome::Found(found) => Ok(found),
        _ => Err(report::out_of_memory_error(hub, &search.shortage()?, course.attempts)),
    }
}

/// Makes passes until the request finds memory, or no rung is left.
fn climb_until_found<T>(
    hub: &Hub,
    search: &mut dyn Search<T>,
    course: &mut Course,
) -> Result<Outcome<T>, PoolError> {
    let (mut outside, mut is_first, mut spill_count) = (OUTSIDE.into_iter(), true, 0);
    loop {
        if let found @ Outcome::Found(_) = climb_once(hub, search, is_first, course)? {
            return Ok(found);
        }
        is_first = false;
        // Memory that other threads held during the pass may be free now.
        if !ahead::is_ahead_of_use() && search.may_repeat() && Instant::now() < deadline_of(hub) {
            std::thread::yield_now();
            continue;
        }
        if ahead::is_ahead_of_use() {
            return Ok(Outcome::Short);
        }
        if outside.any(|(name, round)| climb_outside(hub, search, name, round, course)) {
            continue;
        }
        spill_count += 1;
        if spill_count > SPILLS_MAX || !spill_others(hub, search, course) {
            return Ok(Outcome::Short);
        }
    }
}

fn climb_once<T>(
    hub: &Hub,
    search: &mut dyn Search<T>,
    is_first: bool,
    course: &mut Course,
) -> Result<Outcome<T>, PoolError> {
    if search.is_over_budget() {
        return search.begin(is_first);
    }
    let _entered = hub.device().enter_relaxed()?;
    if let found @ Outcome::Found(_) = search.begin(is_first)? {
        return Ok(found);
    }
    let (mut start, mut free_bytes) = (Instant::now(), None);
    let (mut index, mut spill_count) = (0, 0);
    loop {
        let name = search.rung(index);
        if name.is_none_or(waits_on_host) {
            if spill_count < SPILLS_MAX && spill(hub, search, course) {
                // The memory is free behind work of other streams, which the earlier rungs wait for on the device.
                (index, spill_count, free_bytes, start) = (0, spill_count + 1, None, Instant::now());
                if let found @ Outcome::Found(_) = search.begin(false)? {
                    course.served_by = Some(SPILLED);
                    return Ok(found);
                }
                continue;
            }
            if ahead::is_ahead_of_use() {
                break;
            }
        }
        let Some(name) = name else { break };
        let before_bytes = match free_bytes {
            Some(free_bytes) => free_bytes,
            None => search.free_bytes()?,
        };
        let now_bytes = match search.climb(index)? {
            found @ Outcome::Found(_) => {
                course.add(name, start, search.requested_bytes(), Vec::new());
                course.served_by = Some(name);
                return Ok(found);
            }
            Outcome::Short => search.free_bytes()?,
            Outcome::Skipped => before_bytes,
        };
        free_bytes = Some(now_bytes);
        start = course.add(name, start, gain(before_bytes, now_bytes), Vec::new());
        index += 1;
    }
    Ok(Outcome::Short)
}

/// Moves contents to the host. True if that has freed memory.
fn spill<T>(hub: &Hub, search: &dyn Search<T>, course: &mut Course) -> bool {
    let Some(spiller) = hub.spiller().filter(|_| !ahead::leaves_contents()) else { return false };
    let start = Instant::now();
    let freed_bytes = spiller.make_room(search.requested_bytes());
    let is_first = course.attempts.iter().all(|attempt| attempt.name != SPILLED);
    if freed_bytes == 0 && is_first && !ahead::is_ahead_of_use() {
        let report = || spiller.report(hub.backend.counts().in_use_bytes);
        events::nothing_moved(hub, search.requested_bytes(), report);
    }
    course.add(SPILLED, start, freed_bytes, Vec::new());
    freed_bytes > 0
}

/// Moves contents of other pools to the host, and releases their memory. True if that has freed memory.
fn spill_others<T>(hub: &Hub, search: &dyn Search<T>, course: &mut Course) -> bool {
    // A failure is that of a budget, which moves do not help.
    let Ok(shortage) = search.shortage() else { return false };
    let limit = shortage.refusal.and_then(Refusal::limit);
    let limit = limit.or_else(|| hub.limits.node.limit_exceeded_by(shortage.requested_bytes));
    let owner = limit.and_then(|limit| limit.owner);
    if hub.config().kind == MemoryKind::Host || owner == Some(hub.id()) {
        return false;
    }
    let (start, mut freed_bytes) = (Instant::now(), 0);
    for spiller in other_spillers(hub, owner) {
        if freed_bytes < shortage.requested_bytes {
            freed_bytes += spiller.make_room(shortage.requested_bytes - freed_bytes);
        }
    }
    if freed_bytes == 0 {
        return false;
    }
    let failures = trim_others(hub, &shortage).unwrap_or_default();
    course.add(OTHERS_SPILLED, start, freed_bytes, failures);
    true
}

/// The spillers of other pools that help requests which the hard limit of `owner` refuses, or with `None` the device.
pub(crate) fn other_spillers(hub: &Hub, owner: Option<PoolId>) -> Vec<Arc<dyn Spills>> {
    let mut spillers = WeakList::<dyn Spills>::on(hub.device()).live();
    let is_own = |other: &Arc<dyn Spills>| hub.spiller().is_some_and(|own| Arc::ptr_eq(own, other));
    spillers.retain(|other| !is_own(other) && other.helps(owner));
    spillers
}

/// Makes room outside the pool. Returns true if the rung applies.
fn climb_outside<T>(
    hub: &Hub,
    search: &dyn Search<T>,
    name: &'static str,
    round: Option<Round>,
    course: &mut Course,
) -> bool {
    let measure = || if search.is_over_budget() { 0 } else { room_bytes(hub) };
    let (start, before_bytes) = (Instant::now(), measure());
    let failures = match round {
        Some(round) => run_callbacks(hub, round, deadline_of(hub)),
        None => search.shortage().ok().and_then(|shortage| trim_others(hub, &shortage)),
    };
    let Some(failures) = failures else { return false };
    course.add(name, start, gain(before_bytes, measure()), failures);
    true
}

/// Repeats a request that a budget has refused, after each round of reclaim callbacks.
///
/// # Errors
///
/// The error of the last try: [`PoolError::Refused`] or [`PoolError::LimitReached`] of the budget, or the error of the inner
/// request.
#[cold]
pub(crate) fn retry_over_budget<T>(
    hub: &Hub,
    error: PoolError,
    request: impl FnMut() -> Result<T, PoolError>,
) -> Result<T, PoolError> {
    climb(hub, &mut OverBudget { error, request })
}

pub(crate) fn run_all_callbacks(hub: &Hub) {
    for round in [Round::Purge, Round::Release] {
        // A callback that fails is treated like one that has nothing to release.
        let _ = run_callbacks(hub, round, Instant::now() + OTHERS_TIME_MAX);
    }
}

/// Runs the callbacks of all holders that can help, and returns their failures. `None` if there are no such holders.
fn run_callbacks(hub: &Hub, round: Round, until: Instant) -> Option<Vec<String>> {
    Registry::on(hub.device()).ask(round, hub.config().kind, until)
}

fn deadline_of(hub: &Hub) -> Instant {
    deadline::until(hub.config().tuning.wait_deadline)
}

/// Waits until the device is idle, then releases the cached memory of other pools, and the memory left by pools that ended.
/// Returns the failures; `None` if there is no such memory, or if it cannot help.
fn trim_others(hub: &Hub, shortage: &Shortage) -> Option<Vec<String>> {
    // The limit is also named if the driver refused without a code.
    let limit = shortage.refusal.and_then(Refusal::limit);
    let is_ours = limit.is_some_and(|limit| limit.owner == Some(hub.id()))
        && hub.limits.node.is_exceeded_by(shortage.requested_bytes);
    let kind = hub.config().kind;
    let mut trimmables = WeakList::<dyn Trimmable>::on(hub.device()).live();
    trimmables.retain(|member| member.kind().helps(kind));
    // One of the entries is this pool itself.
    let has_others = trimmables.len() > usize::from(hub.backend.keeps_memory())
        || hub.device().maintenance().has_deferred_for(kind == MemoryKind::Host);
    if is_ours || !has_others {
        return None;
    }
    trimmables.iter().for_each(|member| member.before_giving());
    let trimmed = CaptureModeGuard::enter(hub.device().driver()).and_then(|_relaxed| {
        let _bound = hub.device().enter()?;
        let is_idle = hub.activity.host_wait(|| hub.device().finish_until(deadline_of(hub)))?;
        hub.device().after_wait_until(is_idle);
        trimmables.iter().for_each(|member| member.give_back_all(is_idle));
        Ok(())
    });
    Some(trimmed.err().iter().map(ToString::to_string).collect())
}

/// Returns the free bytes of the device and of this pool. Their growth is the gain of a rung outside the pool.
fn room_bytes(hub: &Hub) -> i64 {
    let free_bytes = hub.device().memory_info().map_or(0, |info| info.free_bytes);
    let in_use_bytes = hub.backend.counts().in_use_bytes;
    let cached_bytes =
        hub.reserved_bytes().map_or(0, |reserved_bytes| reserved_bytes.saturating_sub(in_use_bytes));
    i64::try_from(free_bytes.saturating_add(cached_bytes)).unwrap_or(i64::MAX)
}
struct Course {
    attempts: Vec<Attempt>,
    served_by: Option<&'static str>,
}

impl Course {
    /// Adds an attempt that began at `start`, and returns its end. A repeated rung adds to its earlier attempt.
    fn add(
        &mut self,
        name: &'static str,
        start: Instant,
        gained_bytes: u64,
        failures: Vec<String>,
    ) -> Instant {
        let end = Instant::now();
        let took = end - start;
        match self.attempts.iter_mut().find(|earlier| earlier.name == name) {
            None => self.attempts.push(Attempt { name, gained_bytes, took, failures }),
            Some(earlier) => {
                earlier.gained_bytes = earlier.gained_bytes.saturating_add(gained_bytes);
                earlier.took = earlier.took.saturating_add(took);
                earlier.failures.extend(failures);
            }
        }
        end
    }
}

fn gain(before_bytes: i64, now_bytes: i64) -> u64 {
    now_bytes.saturating_sub(before_bytes).max(0).unsigned_abs()
}

/// The number of rungs: at most this many attempts need no reallocation.
const ATTEMPTS_MAX: usize = 18;
/// Moves to the host in one pass. Each frees as much as the request needs, but perhaps not side by side.
const SPILLS_MAX: u32 = 16;
/// The name of that rung.
const SPILLED: &str = "move arrays to host memory";

/// The name of the rung that moves those of other pools.
const OTHERS_SPILLED: &str = "move arrays of other pools to host memory";

/// A request that the budget of an adaptor has refused. Each pass runs it through the adaptors again.
struct OverBudget<F> {
    error: PoolError,
    request: F,
}

impl<T, F: FnMut() -> Result<T, PoolError>> Search<T> for OverBudget<F> {
    fn is_over_budget(&self) -> bool {
        true
    }

    fn begin(&mut self, is_first: bool) -> Result<Outcome<T>, PoolError> {
        if !is_first {
            match (self.request)() {
                Ok(found) => return Ok(Outcome::Found(found)),
                Err(error) => self.error = error,
            }
        }
        match &self.error {
            PoolError::LimitReached(report)
                if report.refused_by == RefusedBy::Budget
                    && Some(report.requested_bytes) <= report.limit_bytes =>
            {
                Ok(Outcome::Short)
            }
            _ => Err(self.error.clone()),
        }
    }

    fn requested_bytes(&self) -> u64 {
        self.error.out_of_memory().map_or(0, |report| report.requested_bytes)
    }

    fn shortage(&self) -> Result<Shortage, PoolError> {
        Err(self.error.clone())
    }
}

//! The report of a refused request: [`out_of_memory_error`] states the figures at the end of the ladder. [`with_report`] adds
//! the holders of the memory once the request leaves the pool, and counts the refusal.

use super::ahead;
use crate::backend::{MemorySource, Shortage};
use crate::config::{MemoryKind, Profile};
use crate::error::{
    Advice, Attempt, OutOfMemory, PoolError, PoolFacts, PoolUsage, Refusal, RefusedBy, RequestOrigin,
    Requested, UnfinishedStream,
};
use crate::limits::{DeviceBudget, Trimmable, WeakList};
use crate::pool::hub::Hub;
use crate::pool::listing::Listing;
use crate::pool::{events, frames};
use core::cell::Cell;
use core::cmp::Reverse;
use core::ptr;
use core::sync::atomic::Ordering;
use gpumem_device::StreamId;
use gpumem_device::internal::{deadline, host, processes};
use std::sync::Arc;
use std::time::Instant;

/// The memory of a pool that captures and graphs keep, and that the program has dropped.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) bytes: u64,
    /// The part of captures that have not ended, and the stream of one of them.
    pub(crate) capture_bytes: u64,
    pub(crate) capture_stream: Option<StreamId>,
}

pub(crate) struct Origin {
    /// The size of a block before the adaptors changed it; `None` for a growth and a reservation.
    pub(crate) size_bytes: Option<u64>,
    /// `None` if the request is for no stream.
    pub(crate) stream: Option<StreamId>,
    /// 0 for the tag of the thread's innermost scope.
    pub(crate) tag: u16,
}

thread_local! {
    /// The pool from which this thread tries several sizes.
    static TRYING: Cell<*const Hub> = const { Cell::new(ptr::null()) };
}

/// The previous value of [`TRYING`], restored at the end of a call, even if an adaptor panics.
struct Outer(*const Hub);

impl Drop for Outer {
    fn drop(&mut self) {
        TRYING.set(self.0);
    }
}

pub(super) const OTHERS_TRIMMED: &str = "release cached memory of other pools";

/// Builds the error of a request that found no memory: `PoolError::LimitReached` if a limit refused it, otherwise
/// `PoolError::OutOfMemory`. If the device's figures are unavailable, returns the driver's refusal.
pub(crate) fn out_of_memory_error(hub: &Hub, shortage: &Shortage, attempts: Vec<Attempt>) -> PoolError {
    let Shortage { requested_bytes, alignment, admitted_bytes, refusal } = *shortage;
    let mut report = OutOfMemory { requested_bytes, alignment, attempts, ..OutOfMemory::default() };
    if let Some(limit) = refusal.and_then(Refusal::limit) {
        report.set_limit(limit, admitted_bytes);
    }
    if let Some(Refusal::Driver(error)) = refusal.filter(|_| report.limit_bytes.is_none()) {
        report.driver_error = (!error.is_out_of_memory()).then(|| error.to_string());
    }
    match (add_figures(hub, &mut report), refusal) {
        (Err(_), Some(Refusal::Driver(error))) => return error.into(),
        (Err(error), _) => return error,
        (Ok(()), _) => {}
    }
    report.unfinished = unfinished_of_request(hub);
    PoolError::refused(report)
}

fn add_figures(hub: &Hub, report: &mut OutOfMemory) -> Result<(), PoolError> {
    let info = hub.device().memory_info()?;
    (report.device_free_bytes, report.device_total_bytes) = (info.free_bytes, info.total_bytes);
    hub.backend.describe(report)?;
    report.other_libraries_bytes = hub.listing.other_libraries_bytes()?;
    report.in_use_bytes = report.in_use_bytes.saturating_add(report.other_libraries_bytes);
    Ok(())
}

/// The report of a request that the driver has refused to another library, like a report of this pool's own request.
pub(crate) fn explain_refusal(
    hub: &Hub,
    requested_bytes: u64,
    kept: impl FnOnce() -> Kept,
) -> Result<OutOfMemory, PoolError> {
    let mut report = OutOfMemory { requested_bytes, ..OutOfMemory::default() };
    add_figures(hub, &mut report)?;
    let wanted_bytes = requested_bytes.saturating_add(report.other_libraries_bytes);
    if let Some(limit) = hub.limits.node.limit_exceeded_by(wanted_bytes) {
        report.set_limit(limit, hub.backend.counts().in_use_bytes);
    }
    describe(hub, &mut report, kept());
    Ok(report)
}

/// Completes the report of a refused request with the facts that only the program needs, and passes each refusal for lack of memory to
/// the observer. Called once, when the request has left all adaptors: no lookups are made if an adaptor serves the request from
/// elsewhere, and an adaptor's own report is completed too.
pub(crate) fn with_report<T>(
    hub: &Hub,
    result: Result<T, PoolError>,
    origin: &Origin,
    kept: impl FnOnce() -> Kept,
) -> Result<T, PoolError> {
    result.map_err(|mut error| {
        let tag = || {
            let tag = if origin.tag == 0 { frames::innermost(&hub.tags) } else { origin.tag };
            hub.tags.names.get(tag).map(|name| (*name).into())
        };
        let stream = origin.stream;
        if let PoolError::TooLarge { requested_bytes, .. } = &mut error
            && let Some(size_bytes) = origin.size_bytes.filter(|bytes| Requested(*bytes).is_miscomputed())
        {
            // Without the adaptors' bytes, the number reveals the mistake.
            *requested_bytes = size_bytes;
        }
        if let PoolError::TooLarge { origin, .. } | PoolError::Refused { origin, .. } = &mut error {
            let (device_ordinal, pool) = (hub.device().ordinal(), hub.name().as_str().into());
            *origin = Some(Box::new(RequestOrigin { device_ordinal, pool, stream, tag: tag() }));
        } else if let Some(report) = error.out_of_memory_mut() {
            (report.tag, report.stream) = (tag(), stream);
            if let Some(size_bytes) = origin.size_bytes {
                report.added_bytes = report.requested_bytes.saturating_sub(size_bytes);
                report.requested_bytes = size_bytes;
            }
            describe(hub, report, kept());
        }
        announce(hub, &mut error);
        error
    })
}

/// Counts an error that is a refusal, and passes it to traces, to the flight recorder, to `tracing` and to the observer. Inside
/// [`alloc_one_of`] only the final refusal counts.
fn announce(hub: &Hub, error: &mut PoolError) {
    if error.is_want_of_memory() && !ptr::eq(TRYING.get(), hub) && !ahead::is_ahead_of_use() {
        let pool = hub.id();
        for witness in hub.witnesses() {
            let record = witness.refused(pool, error);
            if let (Some(record), Some(report)) = (record, error.out_of_memory_mut()) {
                report.flight_record = Some(record);
            }
        }
        hub.activity.refusal_count.add(1);
        events::refusal(hub, error);
        hub.setup.observer.iter().for_each(|observer| observer.notify(error));
    }
}

/// Calls `try_sizes`, which requests memory of this pool until a size is available. All of its requests count as one, and so do their
/// refusals.
pub(crate) fn alloc_one_of<T>(
    hub: &Hub,
    try_sizes: impl FnOnce() -> Result<T, PoolError>,
) -> Result<T, PoolError> {
    let outer = Outer(TRYING.replace(hub));
    let result = try_sizes();
    drop(outer);
    result.map_err(|mut error| {
        announce(hub, &mut error);
        error
    })
}

/// Adds the facts that only the pool has to a refusal by its backend.
fn describe(hub: &Hub, report: &mut OutOfMemory, kept: Kept) {
    let (kind, backend) = (hub.config().kind, hub.backend.kind());
    report.pool = hub.name().as_str().into();
    report.device_ordinal = hub.device().ordinal();
    report.kind = kind;
    if report.refused_by == RefusedBy::Budget {
        // The budget's refusal is the error even if a query fails: the report then lacks figures.
        let _ = add_figures(hub, report);
    }
    if kind == MemoryKind::Host {
        report.host_free_bytes = host::free_bytes();
    }
    report.counters = hub.activity.read();
    report.holders = hub.tags.holders();
    report.graph_bytes = kept.bytes.min(report.in_use_bytes);
    report.capture_bytes = kept.capture_bytes.min(report.graph_bytes);
    report.capture_stream = kept.capture_stream;
    match hub.spiller() {
        Some(spiller) => report.spilling = Some(spiller.report(report.in_use_bytes)),
        None => report.unspilled_bytes_max = unspilled_bytes_max(hub, report),
    }
    // Stays empty if the device query fails.
    let (held_bytes, cached_bytes) = others(hub, report).unwrap_or_default();
    report.other_pools_bytes = held_bytes.min(report.others_bytes());
    report.other_pools = other_pools(hub);
    let owner = report.facts.limit_owner;
    report.limit_pool = owner.and_then(|id| Some(hub.limits.node.of(id)?.name.as_str().into()));
    report.limit_sharers = sharers(hub, report);
    let is_by_own = owner == Some(hub.id());
    let parent = hub.limits.node.parent().filter(|_| is_by_own);
    report.facts = PoolFacts {
        interface: hub.config().interface,
        limit_owner: owner,
        is_parent_limit: owner.is_some() && !is_by_own,
        parent_limit_bytes: parent
            .and_then(|parent| Some(parent.limit_exceeded_by(report.requested_bytes)?.limit_bytes)),
        backend: Some(backend),
        can_map: hub.backend.growing().is_some(),
        limit_given_as: hub.config().given.hard_limit.as_ref().map(|(_, given_as)| *given_as),
        is_tight: hub.config().tuning == Profile::Tight.into(),
        is_integrated: hub.device().is_integrated(),
        others_cached_bytes: match report.attempts.iter().any(|attempt| attempt.name == OTHERS_TRIMMED) {
            true => 0,
            false => cached_bytes,
        },
    };
    if report.advice() == Advice::FreeTheDevice {
        let processes::ProcessMemory { own_bytes, others } = processes::on(hub.device());
        let pools_bytes = report.reserved_bytes.saturating_add(report.other_pools_bytes);
        report.own_outside_bytes = own_bytes.map(|own_bytes| own_bytes.saturating_sub(pools_bytes));
        report.processes = others;
    }
}

/// The memory in use that may be of arrays, of which a pool without spilling knows only whether it may have any.
fn unspilled_bytes_max(hub: &Hub, report: &OutOfMemory) -> u64 {
    if hub.config().kind != MemoryKind::Device || !hub.has_arrays.load(Ordering::Relaxed) {
        return 0;
    }
    let others = [report.growable_bytes, report.graph_bytes, report.other_libraries_bytes];
    others.iter().fold(report.in_use_bytes, |left, bytes| left.saturating_sub(*bytes))
}

/// The other pools of the device that hold memory, the largest first.
fn other_pools(hub: &Hub) -> Vec<PoolUsage> {
    let mut pools = Listing::usage_on(hub.device());
    pools.retain(|pool| pool.id != hub.id() && pool.reserved_bytes > 0);
    pools.sort_by_key(|pool| Reverse(pool.reserved_bytes));
    pools
}

/// The other pools whose memory counts against the limit that refused, the largest first.
fn sharers(hub: &Hub, report: &OutOfMemory) -> Vec<PoolUsage> {
    let mut pools = report.other_pools.clone();
    match report.facts.limit_owner {
        Some(owner) => {
            let family = hub.listing.family_of(owner);
            pools.retain(|pool| pool.id == owner || family.iter().any(|member| member.id() == pool.id));
        }
        None if report.refused_by == RefusedBy::Margin => {
            pools.retain(|pool| pool.kind != MemoryKind::Host);
        }
        None => return Vec::new(),
    }
    pools.retain(|pool| pool.counted_bytes > 0);
    pools.sort_by_key(|pool| Reverse(pool.counted_bytes));
    pools
}

/// Returns the streams with unfinished work if this thread's request reached its deadline, the longest wait first; otherwise empty.
fn unfinished_of_request(hub: &Hub) -> Vec<UnfinishedStream> {
    if !deadline::has_passed() {
        return Vec::new();
    }
    let (now, unfinished) = (Instant::now(), hub.clocks.unfinished(hub.device().primary()));
    let unfinished = unfinished.into_iter().map(|(stream, marked_at)| UnfinishedStream {
        stream,
        queued_ago: marked_at.map(|marked_at| now.saturating_duration_since(marked_at)),
    });
    let mut unfinished: Vec<_> = unfinished.collect();
    unfinished.sort_by_key(|stream| Reverse(stream.queued_ago));
    unfinished
}

/// The memory that other pools hold on the device, and how much of it is cached: the total minus this pool's own.
fn others(hub: &Hub, report: &OutOfMemory) -> Result<(u64, u64), PoolError> {
    let _entered = hub.device().enter_relaxed()?;
    let trimmables = WeakList::<dyn Trimmable>::on(hub.device()).live();
    let sum = |of: fn(&Arc<dyn Trimmable>) -> u64| trimmables.iter().map(of).fold(0, u64::saturating_add);
    let held_bytes =
        DeviceBudget::on(hub.device()).device_bytes().saturating_add(sum(|pool| pool.uncounted_bytes()));
    let cached_bytes = sum(|pool| pool.cached_bytes());
    let is_on_device = hub.config().kind == MemoryKind::Device;
    let own = |bytes| if is_on_device { bytes } else { 0 };
    let held_bytes = held_bytes.saturating_sub(own(report.reserved_bytes));
    Ok((held_bytes, cached_bytes.saturating_sub(own(report.cached_bytes()))))
}

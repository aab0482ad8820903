//! Events for the crate `tracing`, with the feature `tracing`; without it, each function is empty.
//!
//! | level | event |
//! | --- | --- |
//! | error | a free failed, and the pool is unusable |
//! | warn | a request was refused, with its report |
//! | info | a call has returned memory to the driver |
//! | debug | a step to make room for a request has gained memory or served it |
//! | debug | an array has moved to the host or back; arrays could not make room, with the reasons |
//! | trace | an allocation that no thread cache served |
//!
//! All events have the target `gpumem_pool` and the field `pool`. No lock is held during an event, so a subscriber may use the pool. An
//! allocation from a thread cache, or a free to one, produces no event.

use crate::error::{Attempt, PoolError, SpillReport};
use crate::pool::hub::Hub;
#[cfg(feature = "tracing")]
use crate::pool::observer::MoveKind;
use crate::pool::observer::SpillMove;
use gpumem_device::Stream;
#[cfg(feature = "tracing")]
use gpumem_device::internal::catch_panic;

#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $state:expr, $($rest:tt)+) => {
        tracing::$level!(target: "gpumem_pool", pool = $state.name().as_str(), $($rest)+)
    };
}

#[cfg(feature = "tracing")]
pub(super) fn slow_allocation(hub: &Hub, size_bytes: u64, stream: &Stream) {
    event!(trace, hub, size_bytes, stream = stream.id().as_u64(), "allocation beyond the thread's cache");
}

/// The steps of a request that gained memory or failed, and the one that served it.
#[cfg(feature = "tracing")]
pub(super) fn steps(hub: &Hub, attempts: &[Attempt], served_by: Option<&'static str>) {
    for Attempt { name, gained_bytes, took, failures } in attempts {
        let is_served = served_by == Some(*name);
        if is_served || *gained_bytes > 0 || !failures.is_empty() {
            event!(debug, hub, step = name, gained_bytes, is_served, ?took, ?failures, "step to make room");
        }
    }
}

#[cfg(feature = "tracing")]
pub(super) fn refusal(hub: &Hub, error: &PoolError) {
    event!(warn, hub, device = hub.device().ordinal(), %error, "request refused");
}

#[cfg(feature = "tracing")]
pub(super) fn released(hub: &Hub, released_bytes: u64) {
    event!(info, hub, released_bytes, "memory returned to the driver");
}

#[cfg(feature = "tracing")]
pub(super) fn moved(hub: &Hub, moved: &SpillMove) {
    let SpillMove { kind, size_bytes, stream, tag, .. } = *moved;
    let (stream, tag) = (stream.as_u64(), hub.tags.names.get(tag));
    let tag = tag.as_deref();
    match kind {
        MoveKind::Out { is_copied } => {
            event!(debug, hub, size_bytes, stream, tag, is_copied, "array moved to the host");
        }
        MoveKind::Back { is_early } => {
            event!(debug, hub, size_bytes, stream, tag, is_early, "array moved back to the device");
        }
    }
}

/// A request found nothing to move. `report` is read only for a subscriber.
#[cfg(feature = "tracing")]
pub(super) fn nothing_moved(hub: &Hub, requested_bytes: u64, report: impl FnOnce() -> SpillReport) {
    if tracing::enabled!(target: "gpumem_pool", tracing::Level::DEBUG) {
        let SpillReport { away_bytes, kept, other_bytes, .. } = report();
        event!(debug, hub, requested_bytes, away_bytes, ?kept, other_bytes, "no array could make room");
    }
}

/// This runs in a drop, and a subscriber may panic.
#[cfg(feature = "tracing")]
pub(super) fn poisoned(hub: &Hub, error: &PoolError) {
    let event = || event!(error, hub, device = hub.device().ordinal(), %error, "pool unusable");
    let _ = catch_panic(event);
}

#[cfg(not(feature = "tracing"))]
pub(super) fn slow_allocation(_: &Hub, _: u64, _: &Stream) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn steps(_: &Hub, _: &[Attempt], _: Option<&'static str>) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn refusal(_: &Hub, _: &PoolError) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn released(_: &Hub, _: u64) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn moved(_: &Hub, _: &SpillMove) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn nothing_moved(_: &Hub, _: u64, _: impl FnOnce() -> SpillReport) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn poisoned(_: &Hub, _: &PoolError) {}

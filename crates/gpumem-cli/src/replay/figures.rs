//! The figures of replays, as tables and as JSON. `cargo xtask replay` prints them too.

use crate::table;
use gpumem_trace::calls::Calls;
use gpumem_trace::pool::Bytes;
use gpumem_trace::pool::sys::DriverKind;
use gpumem_trace::{Outcome, TagSum, Trace};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One JSON object for a trace; without the outcome of a replay, what the trace itself has.
pub(crate) fn json(trace: &Trace, outcome: Option<&Outcome>) -> Value {
    let live = trace.peaks();
    let mut value = json!({
        "name": trace.name(),
        "operations": trace.operation_count(),
        "events": trace.events().len(),
        "peak_live_bytes": live.live_bytes,
        "peak_live_bytes_incl_deferred": live.live_incl_deferred_bytes,
        "floor_bytes": trace.floor_bytes(),
        "recorded_peak_reserved_bytes": trace.real_run().peak_reserved_bytes,
        "peer_ratios": peers(trace).map(|(name, ratio)| (name, json!(ratio))).collect::<Map<_, _>>(),
        "tags": trace.tags().iter().map(tag_json).collect::<Vec<_>>(),
    });
    let Some(outcome) = outcome else { return value };
    let figures = json!({
        "backend": outcome.backend.to_string(),
        "peak_reserved_bytes": outcome.peak_reserved_bytes,
        "record_bytes": outcome.record_bytes,
        "ratio": outcome.ratio(),
        "driver_calls": outcome.calls.total(),
        "driver_calls_by_name": outcome.calls.by_name().into_iter().collect::<BTreeMap<_, _>>(),
        "mapping_calls": mapping_calls(&outcome.calls),
        "mapping_calls_second_half": mapping_calls(&outcome.late_calls),
        "inserted_waits": outcome.calls.cuStreamWaitEvent,
        "device_waits": outcome.device_wait_count(),
        "recorded_refusals": outcome.recorded_refusal_count,
        "refusals": outcome.refusal_count,
        "driver_ns": outcome.driver_time.as_nanos() as u64,
        "driver_share_of_run": driver_share(trace, outcome),
        "host_ns_per_op": outcome.host_ns_per_op(),
    });
    if let (Value::Object(value), Value::Object(figures)) = (&mut value, figures) {
        value.extend(figures);
    }
    value
}

fn tag_json(sum: &TagSum) -> Value {
    json!({
        "tag": sum.tag,
        "allocations": sum.allocation_count,
        "allocated_bytes": sum.allocated_bytes,
        "peak_bytes": sum.peak_bytes,
        "left_bytes": sum.left_bytes,
    })
}

/// Two tables: the figures, and the driver calls.
pub(crate) fn text(outcomes: &[(&Trace, Outcome)], driver: DriverKind) -> String {
    let headings = [
        "trace",
        "backend",
        "operations",
        "peak live",
        "peak reserved",
        "ratio",
        "floor",
        "peers' ratios",
        "driver ms",
        "% of run",
        "host ns/op",
    ];
    let rows = outcomes.iter().map(|(trace, outcome)| {
        let peers = peers(trace).map(|(name, ratio)| format!("{name} {ratio:.3}"));
        [
            trace.name().to_string(),
            outcome.backend.to_string(),
            outcome.operation_count.to_string(),
            Bytes(outcome.live.live_incl_deferred_bytes).to_string(),
            Bytes(outcome.peak_reserved_bytes).to_string(),
            format!("{:.3}", outcome.ratio()),
            format!(
                "{:.3}",
                trace.floor_bytes() as f64 / outcome.live.live_incl_deferred_bytes.max(1) as f64
            ),
            peers.collect::<Vec<_>>().join(", "),
            format!("{:.2}", outcome.driver_time.as_secs_f64() * 1e3),
            driver_share(trace, outcome).map_or("-".into(), |share| format!("{:.2}", share * 100.0)),
            format!("{:.0}", outcome.host_ns_per_op()),
        ]
    });
    let mut text = table::render(headings, &rows.collect::<Vec<_>>());
    let clock = match driver {
        DriverKind::Cuda => "the host's clock",
        _ => "the virtual clock",
    };
    let _ = writeln!(
        text,
        "\npeak live counts deferred frees, and ratio is against it; floor: without any wait; driver ms by {clock}; host ns/op without the driver's \
         calls\n"
    );
    let headings =
        ["trace", "calls", "create", "map", "access", "unmap", "release", "waits", "synced", "2nd half"];
    let rows = outcomes.iter().map(|(trace, outcome)| {
        let calls = &outcome.calls;
        let counts = [
            calls.total(),
            calls.cuMemCreate,
            calls.cuMemMap,
            calls.cuMemSetAccess,
            calls.cuMemUnmap,
            calls.cuMemRelease,
            calls.cuStreamWaitEvent,
            outcome.device_wait_count(),
            mapping_calls(&outcome.late_calls),
        ];
        let mut cells = [const { String::new() }; 10];
        cells[0] = trace.name().to_string();
        cells[1..].iter_mut().zip(counts).for_each(|(cell, count)| *cell = count.to_string());
        cells
    });
    text + &table::render(headings, &rows.collect::<Vec<_>>())
        + "\nwaits: inserted between streams; synced: the pool waited for the device; 2nd half: create, map and unmap calls in the second \
           half of the events\n"
}

/// The peers' peak of reserved memory divided by the peak of live memory.
fn peers(trace: &Trace) -> impl Iterator<Item = (String, f64)> {
    let live_bytes = trace.peaks().live_incl_deferred_bytes.max(1);
    trace.header().peers().map(move |peer| (peer.name, peer.peak_reserved_bytes as f64 / live_bytes as f64))
}

/// The driver time as a share of the recorded program's time.
pub(crate) fn driver_share(trace: &Trace, outcome: &Outcome) -> Option<f64> {
    trace.header().run_seconds.map(|seconds| outcome.driver_time.as_secs_f64() / seconds)
}

fn mapping_calls(calls: &Calls) -> u64 {
    calls.cuMemCreate + calls.cuMemMap + calls.cuMemUnmap
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_sim::SimConfig;
    use gpumem_trace::{Setup, replay};

    /// These keys are a format that other programs read.
    #[test]
    fn the_object_of_a_trace_is_one_line_with_the_promised_keys() {
        let trace = Trace::read_from(&b"#{\"format\":1}\na,1,4194304,0\nf,1,0\n"[..], "small").unwrap();
        let driver = gpumem_sim::driver(SimConfig::h200().races(false)).unwrap();
        let outcome = replay(&trace, &driver, &Setup::default(), |_| ()).unwrap();
        let object = json(&trace, Some(&outcome));
        assert_eq!(object["name"], "small");
        for key in ["operations", "peak_live_bytes", "peak_reserved_bytes", "driver_calls", "driver_ns"] {
            assert!(object[key].as_u64().is_some_and(|value| value > 0), "{key}: {object}");
        }
        assert!(object["host_ns_per_op"].is_f64() && !object.to_string().contains('\n'), "{object}");
    }
}

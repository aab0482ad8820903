//! `--pareto`: the reserved memory and the driver time of each setting of the pool, beside the peers, as Markdown.
//!
//! Driver time depends on prices, so this always runs on the simulator: once with the prices of an idle H200, once with those of
//! a busy one. The peers' reserved memory comes from the headers of the traces, their driver time from the stored figures, at
//! idle prices. A setting is *dominated* if a peer reserves no more and takes no more time. Of the combinations of handle size
//! and slack, the table has those that no other one dominates.

use super::Machine;
use crate::peers::{PeerFigure, stored};
use anyhow::Result;
use gpumem_tests::driver::virtual_time;
use gpumem_tests::pool::{BackendKind, Profile};
use gpumem_trace::{Outcome, Peer, Setup, Trace, Waits, replay};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A setting to try.
struct Point {
    label: String,
    /// Shown only if no other setting of the same kind dominates it.
    is_tuning: bool,
    setup: Setup,
}

/// The settings: the profiles, with inserted waits and without; handle sizes and slack around `balanced`; the driver's own pool,
/// as the simulator models it.
fn points(trace: &Trace) -> Vec<Point> {
    let mut points = Vec::new();
    for &profile in Profile::ALL {
        points.push(Point::new(format!("**{profile}**"), BackendKind::Caching, of(profile), false));
        // A single stream has no other stream to wait for.
        if trace.stream_count() > 1 {
            points.push(Point::new(format!("**{profile}**, waits"), BackendKind::Caching, of(profile), true));
        }
    }
    for handle_mib in [2, 8, 32, 128] {
        for slack in [0, 3, 10, 30, 50, 100, 200] {
            let tuning = format!("handle_bytes_max:{handle_mib}MiB,growth_slack:{slack}");
            let label = format!("handles to {handle_mib} MiB, slack {}.{} %", slack / 10, slack % 10);
            points.push(Point { is_tuning: true, ..Point::new(label, BackendKind::Caching, tuning, false) });
        }
    }
    points.push(Point::new("native".into(), BackendKind::Native, String::new(), false));
    points
}

/// The options that select a profile.
fn of(profile: Profile) -> String {
    format!("profile:{profile}")
}

impl Point {
    fn new(label: String, backend: BackendKind, tuning: String, may_wait: bool) -> Self {
        let waits = if may_wait { Waits::On } else { Waits::Off };
        Self {
            label,
            is_tuning: false,
            setup: Setup {
                backend: Some(backend),
                tuning,
                waits,
                clock: Some(virtual_time),
                ..Setup::default()
            },
        }
    }
}

/// A table for each trace.
pub(super) fn markdown(traces: &[Trace], runs: &Path) -> Result<String> {
    let stored = stored(runs)?;
    let points: Vec<Vec<Point>> = traces.iter().map(points).collect();
    let tasks =
        traces.iter().zip(&points).flat_map(|(trace, points)| points.iter().map(move |point| (trace, point)));
    let mut tried = all(&tasks.collect::<Vec<_>>())?.into_iter();
    let mut text = String::from(PREFACE);
    for (trace, points) in traces.iter().zip(&points) {
        let tried: Vec<_> = tried.by_ref().take(points.len()).collect();
        table(&mut text, trace, &tried, &peers(trace, &stored));
    }
    text.truncate(text.trim_end().len());
    Ok(text + "\n")
}

const PREFACE: &str = "\
# Memory against driver time

This page compares the memory that the backend `caching` reserves for each recorded trace with its driver time, over its profiles and
tuning, beside PyTorch's allocators in the recorded program. `cargo xtask replay --pareto` prints it.

Reserved and live are peaks; live includes deferred frees. Driver time is the simulator's virtual clock, at the prices of
an idle and of a busy H200. The peers' reserved memory (in italics) is from the headers of the traces, their driver time from
the recorded runs (docs/runs). `native` is the driver's own pool as the simulator models it.
*Dominated by* names the peers that reserve no more and cost no more. Handle size and slack vary around `balanced`; a combination is
shown if no other is better. In rows with *waits* the pool may make one stream wait for another, and the waits are counted. In a
program, `balanced` and `tight` may do so unless `inserted_waits` is off.

";

/// A setting and its results.
struct Tried<'a> {
    point: &'a Point,
    outcome: Outcome,
    busy_ms: f64,
}

/// Runs all tasks on one thread for each core, and returns the results in the order of the tasks.
fn all<'a>(tasks: &[(&Trace, &'a Point)]) -> Result<Vec<Tried<'a>>> {
    let progress = ProgressBar::new(tasks.len() as u64);
    progress.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} {eta}")?);
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Tried<'a>)>> {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((trace, point)) = tasks.get(index) else { return Ok(done) };
            done.push((index, tried(trace, point)?));
            progress.inc(1);
        }
    };
    let thread_count = thread::available_parallelism().map_or(1, usize::from);
    let mut done = thread::scope(|scope| {
        let threads: Vec<_> = (0..thread_count).map(|_| scope.spawn(work)).collect();
        let parts = threads.into_iter().map(|thread| match thread.join() {
            Ok(part) => part,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        Ok::<_, anyhow::Error>(parts.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect::<Vec<_>>())
    })?;
    progress.finish_and_clear();
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, tried)| tried).collect())
}

fn tried<'a>(trace: &Trace, point: &'a Point) -> Result<Tried<'a>> {
    let at = |is_busy| {
        replay(trace, &Machine::simulated(Some(is_busy))?, &point.setup, |_| ()).map_err(anyhow::Error::from)
    };
    let (outcome, busy) = (at(false)?, at(true)?);
    Ok(Tried { point, outcome, busy_ms: ms(&busy) })
}

/// The figures of a peer.
struct PeerPoint {
    name: String,
    ratio: f64,
    driver_ms: Option<f64>,
}

fn peers(trace: &Trace, stored: &[PeerFigure]) -> Vec<PeerPoint> {
    let live_bytes = trace.peaks().live_incl_deferred_bytes.max(1) as f64;
    let bench = format!("replay/{}/driver", trace.name());
    let point = |peer: Peer| PeerPoint {
        ratio: peer.peak_reserved_bytes as f64 / live_bytes,
        driver_ms: stored
            .iter()
            .find(|figure| figure.bench == bench && figure.peer == peer.name)
            .map(|figure| figure.value),
        name: peer.name,
    };
    trace.header().peers().map(point).collect()
}

/// The peers that reserve no more and take no more time.
fn dominating(ratio: f64, driver_ms: f64, peers: &[PeerPoint]) -> impl Iterator<Item = &str> {
    let is_better = move |peer: &&PeerPoint| {
        let Some(peer_ms) = peer.driver_ms else { return false };
        peer.ratio <= ratio && peer_ms <= driver_ms && (peer.ratio < ratio || peer_ms < driver_ms)
    };
    peers.iter().filter(is_better).map(|peer| peer.name.as_str())
}

fn is_shown(one: &Tried<'_>, tried: &[Tried<'_>]) -> bool {
    let place = |tried: &Tried<'_>| (tried.outcome.peak_reserved_bytes, tried.outcome.driver_time);
    let (bytes, time) = place(one);
    let beats = |(other_bytes, other_time)| {
        other_bytes <= bytes && other_time <= time && (other_bytes, other_time) != (bytes, time)
    };
    !one.point.is_tuning || !tried.iter().any(|other| other.point.is_tuning && beats(place(other)))
}

fn table(text: &mut String, trace: &Trace, tried: &[Tried<'_>], peers: &[PeerPoint]) {
    let run_ms = trace.header().run_seconds.map(|seconds| seconds * 1e3);
    let share = |ms: f64| run_ms.map_or("–".into(), |run_ms| format!("{:.2}", 100.0 * ms / run_ms));
    let _ = writeln!(text, "## {}\n", trace.name());
    let _ = writeln!(
        text,
        "| setting | reserved / live | driver ms, idle | % of run | driver ms, busy | waits | dominated by |"
    );
    let _ = writeln!(text, "| --- | ---: | ---: | ---: | ---: | ---: | --- |");
    for peer in peers {
        let driver =
            peer.driver_ms.map_or(["–".into(), "–".into()], |ms| [format!("{ms:.1}"), share(ms)]);
        let _ = writeln!(
            text,
            "| *{}* | {:.3} | {} | {} | – | – | |",
            peer.name, peer.ratio, driver[0], driver[1]
        );
    }
    for Tried { point, outcome, busy_ms } in tried.iter().filter(|one| is_shown(one, tried)) {
        let (ratio, idle_ms) = (outcome.ratio(), ms(outcome));
        let by: Vec<&str> = dominating(ratio, idle_ms, peers).collect();
        let _ = writeln!(
            text,
            "| {} | {ratio:.3} | {idle_ms:.1} | {} | {busy_ms:.1} | {} | {} |",
            point.label,
            share(idle_ms),
            outcome.calls.cuStreamWaitEvent,
            by.join(", ")
        );
    }
    text.push('\n');
}

fn ms(outcome: &Outcome) -> f64 {
    outcome.driver_time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::super::Recorded;
    use super::super::figures::driver_share;
    use super::*;

    #[test]
    fn peers_that_reserve_less_and_cost_less_dominate() {
        let peer = |name: &str, ratio, driver_ms| PeerPoint { name: name.into(), ratio, driver_ms };
        let peers =
            [peer("tight", 1.0, Some(90.0)), peer("fast", 1.3, Some(1.0)), peer("unknown", 1.0, None)];
        let by = |ratio, driver_ms| dominating(ratio, driver_ms, &peers).collect::<Vec<_>>();
        assert_eq!(by(1.1, 50.0), Vec::<&str>::new());
        assert_eq!(by(1.1, 90.0), ["tight"]);
        assert_eq!(by(1.0, 90.0), Vec::<&str>::new());
        assert_eq!(by(1.4, 100.0), ["tight", "fast"]);
    }

    /// The goals of the default profile and of `tight`, on every recorded trace, at idle prices and without waits.
    #[test]
    fn profiles_keep_to_what_they_are_for_on_every_trace() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let recorded =
            Recorded { folder: Some(root.join("tests/traces")), runs: Some(root.join("docs/runs")) };
        let traces = recorded.read().unwrap();
        assert_eq!(traces.len(), 6);
        let stored = stored(&recorded.runs().unwrap()).unwrap();
        for (trace, profile) in
            traces.iter().flat_map(|trace| Profile::ALL.iter().map(move |profile| (trace, *profile)))
        {
            let point = Point::new(String::new(), BackendKind::Caching, of(profile), false);
            let outcome =
                replay(trace, &Machine::simulated(Some(false)).unwrap(), &point.setup, |_| ()).unwrap();
            let (peers, what) = (peers(trace, &stored), format!("{} {profile}: {outcome:?}", trace.name()));
            assert!(peers.len() == 3 && peers.iter().all(|peer| peer.driver_ms.is_some()), "{what}");
            let by: Vec<&str> = dominating(outcome.ratio(), ms(&outcome), &peers).collect();
            assert!(by.is_empty(), "{by:?} better in both, {what}");
            assert!(outcome.record_bytes * 1000 <= outcome.peak_reserved_bytes, "records, {what}");
            assert_eq!(outcome.calls.cuStreamWaitEvent, 0, "{what}");
            match profile {
                Profile::Balanced => {
                    assert!(peers.iter().all(|peer| outcome.ratio() <= peer.ratio), "ratio, {what}");
                    assert!(driver_share(trace, &outcome).unwrap() <= 0.01, "driver's time, {what}");
                }
                Profile::Tight => {
                    let floor_bytes = trace.floor_bytes() as f64;
                    assert!(outcome.peak_reserved_bytes as f64 <= 1.02 * floor_bytes, "floor, {what}");
                }
                _ => {}
            }
        }
    }
}

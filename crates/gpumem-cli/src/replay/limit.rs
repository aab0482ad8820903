//! `--find-limit`: the smallest limit that each record fits into.

use super::parallel::{in_parallel, progress};
use super::{Args, ROWS, growth_json, holders_json, open_end_sentence};
use crate::describe::holders_table;
use crate::output::{BAD, GOOD, HEADING, Verdict, print, styled};
use crate::table;
use anyhow::{Result, ensure};
use core::fmt::Write as _;
use gpumem_trace::fit::{self, CANDIDATES, Candidate, SmallestLimit};
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::pool::{BackendKind, Bytes, Profile};
use gpumem_trace::{Setup, Trace};
use serde_json::{Value, json};

pub(super) fn run(args: &Args, traces: &[Trace]) -> Result<Verdict> {
    let candidates: Vec<Candidate> = CANDIDATES.into_iter().filter(|one| args.allows(*one)).collect();
    ensure!(!candidates.is_empty(), "only the backend caching has profiles: leave out --profile");
    let tasks: Vec<(&Trace, Candidate)> =
        traces.iter().flat_map(|trace| candidates.iter().map(move |candidate| (trace, *candidate))).collect();
    let progress = progress()?;
    let found = in_parallel(args.machine(), &tasks, |(trace, candidate)| {
        let watch = |limit_bytes: Option<u64>| {
            let limit = limit_bytes.map_or("no limit".into(), |bytes| Bytes(bytes).to_string());
            progress.set_message(format!("{}, {candidate}: {limit}", Shown::name(trace.name())));
            progress.inc(1);
        };
        fit::find_limit(trace, *candidate, &args.base(), || args.machine().driver(trace), watch)
    })?;
    progress.finish_and_clear();
    let mut is_good = true;
    for (trace, found) in traces.iter().zip(found.chunks(candidates.len())) {
        let found: Vec<(Candidate, Option<&SmallestLimit>)> =
            candidates.iter().copied().zip(found.iter().map(Option::as_ref)).collect();
        // The setting that the program has or would have, and the smallest limit if that setting is none of the candidates.
        let own = args.own_candidate(trace);
        let answer = found.iter().find(|(candidate, _)| *candidate == own).or(found.first());
        let Some((candidate, answer)) = answer else { continue };
        is_good &= answer.is_some();
        if args.json {
            found.iter().try_for_each(|(candidate, found)| {
                print(&format!("{}\n", limit_json(trace, *candidate, *found)))
            })?;
            continue;
        }
        print(&text(args, trace, *candidate, *answer, &found))?;
    }
    Ok(Verdict::of(is_good))
}

/// The answer, and a table of all settings.
fn text(
    args: &Args,
    trace: &Trace,
    candidate: Candidate,
    answer: Option<&SmallestLimit>,
    found: &[(Candidate, Option<&SmallestLimit>)],
) -> String {
    let name = Shown::name(trace.name());
    let open_end = open_end_sentence(trace);
    let mut text = match (answer, &open_end) {
        (None, _) => format!(
            "{name}: {} a device of {} with {candidate}; its live blocks need {}\n",
            styled(BAD, "does not fit on"),
            Bytes(args.machine().memory_bytes(trace)),
            Bytes(trace.peaks().live_bytes)
        ),
        (Some(found), Some(open_end)) => {
            format!("{name}: {} {}: {open_end}\n", styled(BAD, "at least"), Bytes(found.limit_bytes))
        }
        (Some(found), None) => {
            format!("{name}: {} {}, with {candidate}\n", styled(GOOD, "fits in"), Bytes(found.limit_bytes))
        }
    };
    let rows = found.iter().map(|(candidate, found)| {
        let cell = |value: fn(&SmallestLimit, &Trace) -> String| {
            found.map_or("-".into(), |found| value(found, trace))
        };
        [
            format!("  {candidate}"),
            cell(|found, _| Bytes(found.limit_bytes).to_string()),
            cell(|found, trace| format!("{:.3}", times_live(found.limit_bytes, trace))),
            cell(|found, _| Bytes(found.free_peak_reserved_bytes).to_string()),
            cell(|found, _| format!("{:.2}", found.outcome.driver_time.as_secs_f64() * 1e3)),
            cell(|found, _| found.outcome.calls.cuStreamWaitEvent.to_string()),
            cell(|found, _| found.outcome.device_wait_count().to_string()),
        ]
    });
    let limit = if open_end.is_some() { "limit, at least" } else { "smallest limit" };
    let headings = ["  settings", limit, "x live", "reserved, no limit", "driver ms", "waits", "synced"];
    text += &table::render(headings, &rows.collect::<Vec<_>>());
    if args.verbose {
        let _ = writeln!(
            text,
            "\n  x live: of peak live bytes, deferred frees included; driver ms, waits (between streams) and synced (waits for the\n  \
             device) are those at the limit; limits are found to 2 MiB or 1/512 of the peak"
        );
    }
    let at = trace.peak_event() + 1;
    let growth = trace.growth(trace.last_refusal().unwrap_or(trace.events().len()));
    let _ = writeln!(
        text,
        "\n{}\n{}",
        styled(HEADING, "held at the peak"),
        holders_table(&trace.holders(at), &growth, ROWS)
    );
    text
}

fn limit_json(trace: &Trace, candidate: Candidate, found: Option<&SmallestLimit>) -> Value {
    let open_end = trace.open_end();
    let limit_bytes = found.map(|found| found.limit_bytes);
    json!({
        "name": trace.name(),
        "conf": candidate.conf(),
        // Never both: an open record has no upper bound.
        "smallest_limit_bytes": limit_bytes.filter(|_| open_end.is_none()),
        "at_least_bytes": limit_bytes.filter(|_| open_end.is_some()),
        "open_end": open_end.map(|end| end.to_string()),
        "step_bytes": found.map(|found| found.step_bytes),
        "peak_live_bytes_incl_deferred": trace.peaks().live_incl_deferred_bytes,
        "peak_reserved_bytes_without_limit": found.map(|found| found.free_peak_reserved_bytes),
        "driver_ns": found.map(|found| found.outcome.driver_time.as_nanos() as u64),
        "holders": holders_json(trace, trace.peak_event() + 1),
        "growth": growth_json(trace, trace.last_refusal().unwrap_or(trace.events().len())),
    })
}

impl Args {
    /// True if `--find-limit` tries a candidate: by default those of the recorded backend, else of `caching`.
    fn allows(&self, candidate: Candidate) -> bool {
        candidate.backend == self.backend.unwrap_or(BackendKind::Caching)
            && (self.profile.is_none() || self.profile == candidate.profile)
    }

    /// The candidate that the program has or would have.
    fn own_candidate(&self, trace: &Trace) -> Candidate {
        let recorded = Setup::of_recording(trace).unwrap_or_default();
        let backend = self.backend.or(recorded.backend).unwrap_or(BackendKind::Caching);
        let recorded =
            recorded.tuning.split(',').find_map(|item| item.strip_prefix("profile:")?.parse().ok());
        let profile = self.profile.or(recorded).unwrap_or(Profile::Balanced);
        Candidate { backend, profile: (backend == BackendKind::Caching).then_some(profile) }
    }
}

pub(super) fn times_live(size_bytes: u64, trace: &Trace) -> f64 {
    size_bytes as f64 / trace.peaks().live_incl_deferred_bytes.max(1) as f64
}

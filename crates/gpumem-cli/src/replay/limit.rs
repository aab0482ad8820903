//! `--find-limit`: the smallest limit that each record fits into.

use super::parallel::{in_parallel, progress};
use super::{Args, ROWS, growth_json, holders_json, open_end_sentence};
use crate::describe::{holders_table, was_growing};
use crate::output::{BAD, GOOD, HEADING, Verdict, print, styled};
use crate::table;
use anyhow::Result;
use core::fmt::Write as _;
use gpumem_trace::fit::{self, CANDIDATES, Candidate, SmallestLimit};
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::pool::{BackendKind, Bytes, Profile};
use gpumem_trace::{Setup, Trace};
use serde_json::{Value, json};

/// Settings that a limit is found for.
struct Choice {
    name: String,
    conf: String,
    setup: Setup,
}

pub(super) fn run(args: &Args, traces: &[Trace]) -> Result<Verdict> {
    let choices: Vec<Vec<Choice>> = traces.iter().map(|trace| args.choices(trace)).collect();
    let tasks: Vec<(&Trace, &Choice)> = traces
        .iter()
        .zip(&choices)
        .flat_map(|(trace, own)| own.iter().map(move |choice| (trace, choice)))
        .collect();
    let progress = progress()?;
    let found = in_parallel(args.machine(), &tasks, |(trace, choice)| {
        let watch = |limit_bytes: Option<u64>| {
            let limit = limit_bytes.map_or("no limit".into(), |bytes| Bytes(bytes).to_string());
            progress.set_message(format!("{}, {}: {limit}", Shown::name(trace.name()), choice.name));
            progress.inc(1);
        };
        fit::find_limit_of(trace, &choice.setup, || args.machine().driver(trace), watch)
    })?;
    progress.finish_and_clear();
    let mut is_good = true;
    let mut found = found.into_iter();
    for (trace, choices) in traces.iter().zip(&choices) {
        let found: Vec<(&Choice, Option<SmallestLimit>)> = choices.iter().zip(found.by_ref()).collect();
        // The settings that the program has or would have are the first.
        is_good &= found.first().is_some_and(|(_, answer)| answer.is_some());
        if args.json {
            found.iter().try_for_each(|(choice, found)| {
                print(&format!("{}\n", limit_json(trace, choice, found.as_ref())))
            })?;
        } else {
            print(&text(args, trace, &found))?;
        }
    }
    Ok(Verdict::of(is_good))
}

/// The answer, and a table of all settings.
fn text(args: &Args, trace: &Trace, found: &[(&Choice, Option<SmallestLimit>)]) -> String {
    let name = Shown::name(trace.name());
    let open_end = open_end_sentence(trace);
    let (candidate, answer) =
        found.first().map_or(("", None), |(choice, answer)| (&*choice.name, answer.as_ref()));
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
    let rows = found.iter().map(|(choice, found)| {
        let cell = |value: fn(&SmallestLimit, &Trace) -> String| {
            found.as_ref().map_or("-".into(), |found| value(found, trace))
        };
        [
            format!("  {}", choice.name),
            cell(|found, _| Bytes(found.limit_bytes).to_string()),
            cell(|found, trace| format!("{:.3}", times_live(found.limit_bytes, trace))),
            cell(|found, _| Bytes(found.free_peak_reserved_bytes).to_string()),
            cell(|found, _| format!("{:.2}", found.outcome.driver_time.as_secs_f64() * 1e3)),
            cell(|found, _| found.outcome.calls.cuStreamWaitEvent.to_string()),
            cell(|found, _| found.outcome.device_wait_count().to_string()),
        ]
    });
    if let (Some(first), None) = (trace.growth(trace.events().len()).first(), &open_end) {
        let _ = writeln!(
            text,
            "  but       {} until the end; a longer run needs more",
            was_growing(trace, first)
        );
    }
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

fn limit_json(trace: &Trace, choice: &Choice, found: Option<&SmallestLimit>) -> Value {
    let open_end = trace.open_end();
    let limit_bytes = found.map(|found| found.limit_bytes);
    json!({
        "name": trace.name(),
        "conf": choice.conf,
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
    /// The settings that the program has or would have, and then those of the other profiles of its backend.
    fn choices(&self, trace: &Trace) -> Vec<Choice> {
        let own = Setup { hard_limit: None, ..self.setup(trace) };
        let backend = own.backend.unwrap_or(BackendKind::Caching);
        let profile = match &*own.tuning {
            "" => Some(Profile::Balanced),
            tuning => tuning.strip_prefix("profile:").and_then(|name| name.parse().ok()),
        };
        // Settings that are none of the candidates: with options of their own.
        let own_candidate = profile.map(|profile| Candidate {
            backend,
            profile: (backend == BackendKind::Caching).then_some(profile),
        });
        let first = match own_candidate {
            Some(candidate) => self.choice(candidate),
            None => Choice {
                name: format!("{backend}, {} (as recorded)", Shown::sentence(&own.tuning)),
                conf: format!("backend:{backend},{}", own.tuning),
                setup: Setup { backend: Some(backend), ..own },
            },
        };
        let is_other =
            |one: &Candidate| one.backend == backend && self.profile.is_none() && Some(*one) != own_candidate;
        let others = CANDIDATES.into_iter().filter(is_other).map(|candidate| self.choice(candidate));
        [first].into_iter().chain(others).collect()
    }

    fn choice(&self, candidate: Candidate) -> Choice {
        Choice { name: candidate.to_string(), conf: candidate.conf(), setup: candidate.setup(&self.base()) }
    }
}

pub(super) fn times_live(size_bytes: u64, trace: &Trace) -> f64 {
    size_bytes as f64 / trace.peaks().live_incl_deferred_bytes.max(1) as f64
}

//! `--compare`: which settings a record fits with.

use super::figures::{self, driver_share};
use super::parallel::{in_parallel, progress};
use super::{Args, open_end_sentence};
use crate::output::{BAD, GOOD, NOTE, Verdict, print, styled};
use crate::table;
use anyhow::Result;
use core::fmt::Write as _;
use gpumem_trace::fit::{self, Attempt, CANDIDATES, Candidate, SmallestLimit};
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::pool::{Bytes, Limit};
use gpumem_trace::{Outcome, Setup, Trace};
use serde_json::{Value, json};

pub(super) fn run(args: &Args, traces: &[Trace]) -> Result<Verdict> {
    let tasks: Vec<(&Trace, Candidate)> = traces
        .iter()
        .flat_map(|trace| CANDIDATES.into_iter().map(move |candidate| (trace, candidate)))
        .collect();
    let progress = progress()?;
    let attempts = in_parallel(args.machine(), &tasks, |(trace, candidate)| {
        progress.set_message(format!("{}, {candidate}", Shown::name(trace.name())));
        progress.inc(1);
        let setup = Setup { hard_limit: args.limit(trace), ..args.base() };
        Ok(candidate.attempt(trace, &args.machine().driver(trace)?, &setup)?)
    })?;
    progress.finish_and_clear();
    let mut attempts = attempts.into_iter();
    let mut is_good = true;
    for trace in traces {
        let own: Vec<(Candidate, Attempt)> = CANDIDATES.into_iter().zip(attempts.by_ref()).collect();
        is_good &= fit::best(&own).is_some();
        if args.json {
            own.iter().try_for_each(|(candidate, attempt)| {
                print(&format!("{}\n", attempt_json(trace, *candidate, attempt)))
            })?;
            print(&format!("{}\n", best_json(args, trace, &own)?))?;
        } else {
            print(&text(args, trace, &own)?)?;
        }
    }
    Ok(Verdict::of(is_good))
}

/// The answer, and a table of all settings.
fn text(args: &Args, trace: &Trace, own: &[(Candidate, Attempt)]) -> Result<String> {
    let name = Shown::name(trace.name());
    let mut text = match fit::best(own) {
        Some(best) => {
            let fits = match trace.open_end() {
                Some(_) => styled(NOTE, "what is recorded fits best with"),
                None => styled(GOOD, "fits best with"),
            };
            format!("{name}: {fits} GPUMEM_CONF={}\n", conf(args, trace, best))
        }
        None => no_fit(args, trace)?,
    };
    if let Some(sentence) = open_end_sentence(trace) {
        let _ = writeln!(text, "  but  {sentence}");
    }
    let rows: Vec<_> = own.iter().map(|(candidate, attempt)| row(trace, *candidate, attempt)).collect();
    let headings = [
        "  settings",
        "fits",
        "peak reserved",
        "x live",
        "driver ms",
        "% of run",
        "calls",
        "waits",
        "synced",
        "host ns/op",
    ];
    text += &table::render(headings, &rows);
    text += "  waits: inserted between streams; synced: the pool waited for the device\n";
    for peer in trace.header().peers() {
        let _ = writeln!(text, "  {} reserved {}", Shown::name(&peer.name), Bytes(peer.peak_reserved_bytes));
    }
    own.iter().for_each(|(candidate, attempt)| text += &refusal(trace, *candidate, attempt));
    Ok(text + "\n")
}

impl Args {
    fn limit(&self, trace: &Trace) -> Option<Limit> {
        self.limit.map(|limit| limit.of(trace)).or_else(|| Setup::of_recording(trace)?.hard_limit)
    }
}

/// The options that select a candidate and the limit.
fn conf(args: &Args, trace: &Trace, candidate: Candidate) -> String {
    let limit = args.limit(trace).map_or(String::new(), |limit| format!(",hard_limit:{limit}"));
    let more = if args.conf.is_empty() { String::new() } else { format!(",{}", args.conf) };
    format!("{}{limit}{more}", candidate.conf())
}

/// The sentence about a trace that no candidate fits with.
fn no_fit(args: &Args, trace: &Trace) -> Result<String> {
    let (name, no) = (Shown::name(trace.name()), styled(BAD, "does not fit"));
    Ok(match smallest_limit(args, trace)? {
        Some((_, limit_bytes)) if trace.open_end().is_some() => {
            format!("{name}: {no}; it needs at least {}\n", Bytes(limit_bytes))
        }
        Some((candidate, limit_bytes)) => format!(
            "{name}: {no}; the smallest limit is {}, with GPUMEM_CONF={}\n",
            Bytes(limit_bytes),
            conf_with_limit(candidate, limit_bytes)
        ),
        None => format!(
            "{name}: {no} on this device with any limit; its live blocks need {}\n",
            Bytes(trace.peaks().live_bytes)
        ),
    })
}

/// The candidate with the smallest limit that a trace fits into.
fn smallest_limit(args: &Args, trace: &Trace) -> Result<Option<(Candidate, u64)>> {
    let mut smallest: Option<(Candidate, u64)> = None;
    for candidate in CANDIDATES {
        let found = fit::find_limit(trace, candidate, &args.base(), || args.machine().driver(trace), |_| ())?;
        if let Some(SmallestLimit { limit_bytes, .. }) = found
            && smallest.is_none_or(|(_, least_bytes)| limit_bytes < least_bytes)
        {
            smallest = Some((candidate, limit_bytes));
        }
    }
    Ok(smallest)
}

fn conf_with_limit(candidate: Candidate, limit_bytes: u64) -> String {
    format!("{},hard_limit:{}", candidate.conf(), Limit::Bytes(limit_bytes))
}

/// The result of `--compare` for a trace: `best_conf`, which is null if no candidate fits, and then the smallest limit.
fn best_json(args: &Args, trace: &Trace, own: &[(Candidate, Attempt)]) -> Result<Value> {
    let best = fit::best(own);
    let mut value = json!({
        "name": trace.name(),
        "best_conf": best.map(|best| conf(args, trace, best)),
        "open_end": trace.open_end().map(|end| end.to_string()),
    });
    if best.is_none() {
        let smallest = smallest_limit(args, trace)?;
        if trace.open_end().is_some() {
            value["at_least_bytes"] = json!(smallest.map(|(_, limit_bytes)| limit_bytes));
        } else {
            value["smallest_limit_bytes"] = json!(smallest.map(|(_, limit_bytes)| limit_bytes));
            value["smallest_limit_conf"] =
                json!(smallest.map(|(candidate, limit_bytes)| conf_with_limit(candidate, limit_bytes)));
        }
    }
    Ok(value)
}

fn row(trace: &Trace, candidate: Candidate, attempt: &Attempt) -> [String; 10] {
    let setting = format!("  {candidate}");
    let Attempt::Completed(outcome) = attempt else {
        let none = || "-".to_string();
        return [setting, "no".into(), none(), none(), none(), none(), none(), none(), none(), none()];
    };
    [
        setting,
        if attempt.fit().is_some() { "yes".into() } else { "no".into() },
        Bytes(outcome.peak_reserved_bytes).to_string(),
        format!("{:.3}", outcome.ratio()),
        format!("{:.2}", ms(outcome)),
        driver_share(trace, outcome).map_or("-".into(), |share| format!("{:.2}", share * 100.0)),
        outcome.calls.total().to_string(),
        outcome.calls.cuStreamWaitEvent.to_string(),
        outcome.device_wait_count().to_string(),
        format!("{:.0}", outcome.host_ns_per_op()),
    ]
}

/// A line about what a candidate refused; empty if it fits.
fn refusal(trace: &Trace, candidate: Candidate, attempt: &Attempt) -> String {
    match attempt {
        Attempt::Refused { event, refusal } => {
            let place = format!("  {candidate}: event {} of {} is refused", event + 1, trace.events().len());
            match refusal.out_of_memory() {
                Some(report) => format!(
                    "{place}, {} with {} in use and {} reserved\n",
                    Bytes(report.requested_bytes),
                    Bytes(report.in_use_bytes),
                    Bytes(report.reserved_bytes)
                ),
                None => format!("{place}: {refusal}\n"),
            }
        }
        Attempt::Completed(outcome) if outcome.refusal_count > 0 => format!(
            "  {candidate}: {} of the {} requests that the recorded program was refused are refused again\n",
            outcome.refusal_count, outcome.recorded_refusal_count
        ),
        Attempt::Completed(_) => String::new(),
    }
}

fn attempt_json(trace: &Trace, candidate: Candidate, attempt: &Attempt) -> Value {
    let mut value = match attempt {
        Attempt::Completed(outcome) => figures::json(trace, Some(outcome)),
        Attempt::Refused { event, refusal } => json!({
            "name": trace.name(),
            "backend": candidate.backend.to_string(),
            "refused_event": event,
            "refused_bytes": attempt.refused_bytes(),
            "in_use_bytes": refusal.out_of_memory().map(|report| report.in_use_bytes),
            "reserved_bytes": refusal.out_of_memory().map(|report| report.reserved_bytes),
        }),
    };
    value["conf"] = json!(candidate.conf());
    value["fits"] = json!(attempt.fit().is_some());
    value
}

fn ms(outcome: &Outcome) -> f64 {
    outcome.driver_time.as_secs_f64() * 1e3
}

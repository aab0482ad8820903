//! `--find-limit` and `--compare`: which settings and limits a program fits with.

use super::report::driver_share;
use super::{Args, Machine};
use crate::table;
use anyhow::{Result, ensure};
use gpumem_tests::driver::virtual_time;
use gpumem_tests::pool::{BackendKind, Bytes, Limit};
use gpumem_tests::sys::DriverKind;
use gpumem_trace::fit::{self, Attempt, CANDIDATES, Candidate, SmallestLimit};
use gpumem_trace::{Outcome, Setup, Trace};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `--find-limit`.
pub(super) fn find_limits(args: &Args, machine: &Machine, traces: &[Trace]) -> Result<()> {
    let candidates: Vec<Candidate> = CANDIDATES.into_iter().filter(|one| args.allows(*one)).collect();
    ensure!(!candidates.is_empty(), "only the backend caching has profiles: leave out --profile");
    let tasks = tasks(traces, &candidates);
    let progress = progress()?;
    let found = in_parallel(machine, &tasks, |(trace, candidate)| {
        let setup = args.base();
        let watch = |limit_bytes: Option<u64>| {
            let limit = limit_bytes.map_or("no limit".into(), |bytes| Bytes(bytes).to_string());
            progress.set_message(format!("{}, {candidate}: {limit}", trace.name()));
            progress.inc(1);
        };
        fit::find_limit(trace, *candidate, &setup, || machine.driver(), watch)
    })?;
    progress.finish_and_clear();
    if args.json {
        for ((trace, candidate), found) in tasks.iter().zip(&found) {
            println!("{}", limit_json(trace, *candidate, found.as_ref()));
        }
        return Ok(());
    }
    let rows = tasks.iter().zip(&found).map(|((trace, candidate), found)| match found {
        None => [
            trace.name().into(),
            candidate.to_string(),
            "none".into(),
            "-".into(),
            "-".into(),
            "-".into(),
            "-".into(),
            "-".into(),
        ],
        Some(found) => [
            trace.name().into(),
            candidate.to_string(),
            Bytes(found.limit_bytes).to_string(),
            format!("{:.3}", times_live(found.limit_bytes, trace)),
            Bytes(found.free_peak_reserved_bytes).to_string(),
            format!("{:.2}", ms(&found.outcome)),
            found.outcome.calls.cuStreamWaitEvent.to_string(),
            found.outcome.device_wait_count().to_string(),
        ],
    });
    let headings = [
        "trace",
        "setting",
        "smallest limit",
        "x live",
        "reserved, no limit",
        "driver ms",
        "waits",
        "synced",
    ];
    print!("{}", table::render(headings, &rows.collect::<Vec<_>>()));
    println!(
        "\nx live: of peak live bytes, deferred frees included; driver ms, waits (between streams) and synced (waits for the \
         device) are those at the limit; limits are found to {} or 1/512 of the peak",
        Bytes(2 << 20)
    );
    Ok(())
}

/// `--compare`.
pub(super) fn compare(args: &Args, machine: &Machine, traces: &[Trace]) -> Result<()> {
    let tasks = tasks(traces, &CANDIDATES);
    let progress = progress()?;
    let attempts = in_parallel(machine, &tasks, |(trace, candidate)| {
        progress.set_message(format!("{}, {candidate}", trace.name()));
        progress.inc(1);
        let setup = Setup { hard_limit: args.limit(trace), ..args.base() };
        Ok(candidate.attempt(trace, &machine.driver()?, &setup)?)
    })?;
    progress.finish_and_clear();
    let mut attempts = attempts.into_iter();
    let attempts: Vec<(&Trace, Vec<_>)> =
        traces.iter().map(|trace| (trace, CANDIDATES.into_iter().zip(attempts.by_ref()).collect())).collect();
    if args.json {
        for (trace, own) in &attempts {
            own.iter()
                .for_each(|(candidate, attempt)| println!("{}", attempt_json(trace, *candidate, attempt)));
        }
        for (trace, own) in &attempts {
            println!("{}", best_json(args, machine, trace, own)?);
        }
        return Ok(());
    }
    let rows = attempts
        .iter()
        .flat_map(|(trace, own)| own.iter().map(move |(candidate, attempt)| row(trace, *candidate, attempt)));
    let headings = [
        "trace",
        "setting",
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
    print!("{}", table::render(headings, &rows.collect::<Vec<_>>()));
    println!("\nwaits: inserted between streams; synced: the pool waited for the device");
    let mut unfit_count = 0;
    for (trace, own) in &attempts {
        println!();
        for peer in trace.header().peers() {
            println!("{}: {} reserved {}", trace.name(), peer.name, Bytes(peer.peak_reserved_bytes));
        }
        own.iter().for_each(|(candidate, attempt)| print!("{}", refusal(trace, *candidate, attempt)));
        match fit::best(own) {
            Some(best) => println!("{} fits best with GPUMEM_CONF={}", trace.name(), conf(args, trace, best)),
            None => {
                unfit_count += 1;
                println!("{}", no_fit(args, machine, trace)?);
            }
        }
    }
    ensure!(unfit_count == 0, "{unfit_count} of {} traces fit with no setting", traces.len());
    Ok(())
}

impl Args {
    /// The settings that all candidates have.
    pub(super) fn base(&self) -> Setup {
        Setup {
            conf: self.conf.clone(),
            waits: self.waits,
            streams: self.streams,
            clock: Some(virtual_time),
            ..Setup::default()
        }
    }

    fn limit(&self, trace: &Trace) -> Option<Limit> {
        self.limit.first().map(|limit| limit.of(trace))
    }

    /// Returns whether `--find-limit` tries a candidate: by default those of `caching`.
    fn allows(&self, candidate: Candidate) -> bool {
        candidate.backend == self.backend.unwrap_or(BackendKind::Caching)
            && (self.profile.is_none() || self.profile == candidate.profile)
    }
}

/// The options that select a candidate and the limit.
fn conf(args: &Args, trace: &Trace, candidate: Candidate) -> String {
    let limit = args.limit(trace).map_or(String::new(), |limit| format!(",hard_limit:{limit}"));
    let more = if args.conf.is_empty() { String::new() } else { format!(",{}", args.conf) };
    format!("{}{limit}{more}", candidate.conf())
}

/// The sentence about a trace that no candidate fits with.
fn no_fit(args: &Args, machine: &Machine, trace: &Trace) -> Result<String> {
    let name = trace.name();
    Ok(match smallest_limit(args, machine, trace)? {
        Some((candidate, limit_bytes)) => format!(
            "{name} does not fit; the smallest limit is {}, with GPUMEM_CONF={}",
            Bytes(limit_bytes),
            conf_with_limit(candidate, limit_bytes)
        ),
        None => format!(
            "{name} does not fit on this device, with any limit; it needs {} for its live blocks",
            Bytes(trace.peaks().live_bytes)
        ),
    })
}

/// The candidate with the smallest limit that a trace fits into.
fn smallest_limit(args: &Args, machine: &Machine, trace: &Trace) -> Result<Option<(Candidate, u64)>> {
    let mut smallest: Option<(Candidate, u64)> = None;
    for candidate in CANDIDATES {
        let found = fit::find_limit(trace, candidate, &args.base(), || machine.driver(), |_| ())?;
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
fn best_json(args: &Args, machine: &Machine, trace: &Trace, own: &[(Candidate, Attempt)]) -> Result<Value> {
    let best = fit::best(own);
    let mut value = json!({
        "name": trace.name(),
        "best_conf": best.map(|best| conf(args, trace, best)),
    });
    if best.is_none() {
        let smallest = smallest_limit(args, machine, trace)?;
        value["smallest_limit_bytes"] = json!(smallest.map(|(_, limit_bytes)| limit_bytes));
        value["smallest_limit_conf"] =
            json!(smallest.map(|(candidate, limit_bytes)| conf_with_limit(candidate, limit_bytes)));
    }
    Ok(value)
}

fn row(trace: &Trace, candidate: Candidate, attempt: &Attempt) -> [String; 11] {
    let (name, setting) = (trace.name().to_string(), candidate.to_string());
    let Attempt::Completed(outcome) = attempt else {
        let none = || "-".to_string();
        return [name, setting, "no".into(), none(), none(), none(), none(), none(), none(), none(), none()];
    };
    [
        name,
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
            let place =
                format!("{}, {candidate}: event {event} of {} refused", trace.name(), trace.events().len());
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
            "{}, {candidate}: {} of the {} requests that the recorded program was refused are refused again\n",
            trace.name(),
            outcome.refusal_count,
            outcome.recorded_refusal_count
        ),
        Attempt::Completed(_) => String::new(),
    }
}

fn limit_json(trace: &Trace, candidate: Candidate, found: Option<&SmallestLimit>) -> Value {
    json!({
        "name": trace.name(),
        "conf": candidate.conf(),
        "smallest_limit_bytes": found.map(|found| found.limit_bytes),
        "step_bytes": found.map(|found| found.step_bytes),
        "peak_live_bytes_incl_deferred": trace.peaks().live_incl_deferred_bytes,
        "peak_reserved_bytes_without_limit": found.map(|found| found.free_peak_reserved_bytes),
        "driver_ns": found.map(|found| found.outcome.driver_time.as_nanos() as u64),
    })
}

fn attempt_json(trace: &Trace, candidate: Candidate, attempt: &Attempt) -> Value {
    let mut value = match attempt {
        Attempt::Completed(outcome) => super::report::json(trace, outcome),
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

fn tasks<'a>(traces: &'a [Trace], candidates: &[Candidate]) -> Vec<(&'a Trace, Candidate)> {
    let of = |trace: &'a Trace| candidates.iter().map(move |candidate| (trace, *candidate));
    traces.iter().flat_map(of).collect()
}

/// Runs all tasks and returns the results in the order of the tasks. On simulators one thread for each core, on a GPU one.
fn in_parallel<T: Sync, R: Send>(
    machine: &Machine,
    tasks: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let jobs = match machine.kind {
        DriverKind::Cuda => 1,
        _ => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let run = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(task) = tasks.get(index) else { return Ok(()) };
                let result = work(task)?;
                done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, result));
            }
        };
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

fn progress() -> Result<ProgressBar> {
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::with_template("{spinner} {pos} replays, {elapsed}: {msg}")?);
    Ok(progress)
}

fn times_live(size_bytes: u64, trace: &Trace) -> f64 {
    size_bytes as f64 / trace.peaks().live_incl_deferred_bytes.max(1) as f64
}

fn ms(outcome: &Outcome) -> f64 {
    outcome.driver_time.as_secs_f64() * 1e3
}

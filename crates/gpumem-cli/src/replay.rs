//! `gpumem replay`: runs a record through a pool, and says first whether it fits.

mod compare;
mod figures;
mod limit;
mod parallel;

use crate::describe::{count, counted, holders_table, moment, request, request_count, was_growing};
use crate::input;
use crate::machine::{Machine, parse_bytes, virtual_time};
use crate::output::{BAD, GOOD, HEADING, Verdict, command_name, complain, next, print, shell, styled};
use anyhow::{Context, Result, ensure};
use core::fmt::Write as _;
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::pool::{BackendKind, Bytes, Limit, PoolError, Profile};
use gpumem_trace::{
    Event, MoveSums, Outcome, ReplayError, Setup, StreamKind, Trace, TraceLimit, Waits, replay,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Recordings of GPUMEM_TRACE, flight records, memory snapshots of PyTorch, logs of RMM, or traces in text
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The limit: 8GiB, 500M, 50%; or 1.02x for a multiple of the record's peak [default: the recorded one, else the device's memory]
    #[arg(long, value_name = "SIZE")]
    limit: Option<TraceLimit>,
    /// The pool's backend: caching, native or none [default: the recorded one, else caching]
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendKind>,
    /// The profile of the backend `caching`: fast, balanced or tight [default: the recorded one, else balanced]
    #[arg(long, value_name = "NAME")]
    profile: Option<Profile>,
    /// Options of the pool by name, in the syntax of GPUMEM_CONF; they override the profile and the limit
    #[arg(long, value_name = "KEY:VALUE,…", default_value = "")]
    conf: String,
    /// Find the smallest limit that each record fits into
    #[arg(long, conflicts_with_all = ["limit", "compare", "max_peak", "baseline"])]
    find_limit: bool,
    /// Compare all backends and profiles within the limit, and print the GPUMEM_CONF that fits best
    #[arg(long, conflicts_with_all = ["backend", "profile", "max_peak", "baseline"])]
    compare: bool,
    /// The answer is no if the pool reserves more than this at its peak
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    max_peak: Option<u64>,
    /// The answer is no if the pool reserves more at its peak than for this record, by more than --max-growth
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// The growth beyond --baseline that is accepted, in percent
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = parse_percent, requires = "baseline")]
    max_growth: f64,
    /// Take the peak of a record that ends early, or lacks events, for the whole program's; without it the answer to --max-peak and
    /// --baseline is then no
    #[arg(long)]
    accept_open_end: bool,
    /// Let the pool make a stream wait for another to get its memory: profile (as the profile has it), on, or off. `--waits` alone is on
    #[arg(long, value_name = "WHEN", default_value_t, default_missing_value = "on", num_args = 0..=1, require_equals = true)]
    waits: Waits,
    /// The owner of the streams: own, foreign (another library's, named in each call as in PyTorch) or long-lived
    #[arg(long, value_name = "KIND", default_value_t)]
    streams: StreamKind,
    /// The memory of the simulated device [default: the recorded device's, else an H200's]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "gpu")]
    device: Option<u64>,
    /// Replay on this machine's GPU instead of the simulator
    #[arg(long)]
    gpu: bool,
    /// Print the driver calls and their time too
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON object a record, one a line; with --compare and --find-limit one a setting too
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    ensure!(!args.conf.contains("hard_limit"), "--conf has a hard_limit: name the limit with --limit");
    let traces: Vec<Trace> = args.files.iter().map(|file| input::record(file)).collect::<Result<_>>()?;
    if args.find_limit {
        return limit::run(args, &traces);
    }
    if args.compare {
        return compare::run(args, &traces);
    }
    let most = args.most()?;
    let (mut is_good, mut outcomes) = (true, Vec::new());
    for (trace, file) in traces.iter().zip(&args.files) {
        let answer = Answer::of(args, trace, file, most.as_ref())?;
        is_good &= answer.is_good();
        print(&if args.json { format!("{}\n", answer.json()) } else { answer.text() })?;
        outcomes.extend(answer.result.ok().map(|outcome| (trace, outcome)));
    }
    if args.verbose && !outcomes.is_empty() {
        print(&format!("\n{}", figures::text(&outcomes, args.machine().kind())))?;
    }
    Ok(Verdict::of(is_good))
}

/// A request that the pool refused, and the number of events before it.
struct Refused {
    event: usize,
    error: PoolError,
}

impl Args {
    fn machine(&self) -> Machine {
        Machine { is_gpu: self.gpu, memory_bytes: self.device }
    }

    /// The settings of a replay: those of the recorded program, unless some are given.
    fn setup(&self, trace: &Trace) -> Setup {
        let is_given = self.backend.is_some() || self.profile.is_some() || !self.conf.is_empty();
        let recorded = Setup::of_recording(trace).filter(|_| !is_given).unwrap_or_default();
        let profile = self.profile.map(|profile| format!("profile:{profile}"));
        Setup {
            backend: self.backend.or(recorded.backend),
            tuning: profile.unwrap_or(recorded.tuning),
            hard_limit: self.limit.map(|limit| limit.of(trace)).or(recorded.hard_limit),
            ..self.base()
        }
    }

    /// The settings that all replays have.
    fn base(&self) -> Setup {
        Setup {
            conf: self.conf.clone(),
            waits: self.waits,
            streams: self.streams,
            clock: Some(virtual_time),
            ..Setup::default()
        }
    }

    fn attempt(&self, trace: &Trace, setup: &Setup) -> Result<Result<Outcome, Refused>> {
        let progress = ProgressBar::new(trace.events().len() as u64);
        progress.set_style(ProgressStyle::with_template("{prefix} {bar:40} {human_pos}/{human_len} {eta}")?);
        progress.set_prefix(Shown::name(trace.name()).to_string());
        let driver = self.machine().driver(trace)?;
        let outcome = replay(trace, &driver, setup, |done_count| progress.set_position(done_count));
        progress.finish_and_clear();
        match outcome {
            Ok(outcome) => {
                outcome.ignored_options.iter().for_each(|notice| complain("warning", &notice.to_string()));
                Ok(Ok(outcome))
            }
            Err(ReplayError::Event { event, error, .. }) if error.is_out_of_memory() => {
                Ok(Err(Refused { event, error }))
            }
            Err(error) => Err(error).with_context(|| Shown::name(trace.name()).to_string()),
        }
    }

    /// The most that a pool may reserve.
    fn most(&self) -> Result<Option<Most>> {
        let given = self.max_peak.map(|bytes| Most { bytes, whose: "--max-peak".into() });
        let Some(file) = &self.baseline else { return Ok(given) };
        let trace = input::record(file)?;
        let outcome = match self.attempt(&trace, &self.setup(&trace))? {
            Ok(outcome) => outcome,
            Err(refused) => return Err(refused.error).context("the record of --baseline does not fit"),
        };
        let peak_bytes = outcome.peak_reserved_bytes;
        let bytes = (peak_bytes as f64 * (1.0 + self.max_growth / 100.0)) as u64;
        let whose = format!("{} % more than {} of {}", self.max_growth, Bytes(peak_bytes), Shown::path(file));
        let of_baseline = Most { bytes, whose };
        Ok(Some(match given {
            Some(given) if given.bytes < of_baseline.bytes => given,
            _ => of_baseline,
        }))
    }

    /// The limit, or the device if it is smaller, for a sentence.
    fn limit_text(&self, trace: &Trace, setup: &Setup) -> String {
        let device_bytes = (!self.gpu).then(|| self.machine().memory_bytes(trace));
        let limit_bytes = match (setup.hard_limit, device_bytes) {
            (Some(Limit::Bytes(bytes)), _) => Some(bytes),
            (Some(limit), Some(bytes)) => limit.resolve(bytes, bytes).ok(),
            _ => None,
        };
        match (limit_bytes, device_bytes, setup.hard_limit) {
            (Some(limit_bytes), Some(device_bytes), _) if limit_bytes > device_bytes => {
                format!("a device of {}", Bytes(device_bytes))
            }
            (Some(limit_bytes), ..) => Bytes(limit_bytes).to_string(),
            (None, _, Some(limit)) => limit.to_string(),
            (None, Some(device_bytes), None) => format!("a device of {}", Bytes(device_bytes)),
            (None, None, None) => "the GPU's memory".into(),
        }
    }
}

/// The most that a pool may reserve, and who says so.
struct Most {
    bytes: u64,
    whose: String,
}

/// A percentage, such as `5` or `5%`.
fn parse_percent(text: &str) -> Result<f64> {
    let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
    number
        .filter(|number| number.is_finite() && *number >= 0.0)
        .context("a percentage is needed here, such as 5")
}

/// The answer to one record.
struct Answer<'a> {
    args: &'a Args,
    trace: &'a Trace,
    file: &'a Path,
    setup: Setup,
    result: Result<Outcome, Refused>,
    most: Option<&'a Most>,
    /// The event of the first request that was refused.
    refused: Option<usize>,
    /// The event of the first request that is refused if streams finish with the blocks of others as late as they can.
    refused_late: Option<usize>,
    /// The answer to --max-peak and --baseline.
    is_within: Option<bool>,
}

impl<'a> Answer<'a> {
    /// Replays a record.
    fn of(args: &'a Args, trace: &'a Trace, file: &'a Path, most: Option<&'a Most>) -> Result<Self> {
        let setup = args.setup(trace);
        let result = args.attempt(trace, &setup)?;
        let refused = first_refused(trace, &result);
        let peak_bytes = result.as_ref().ok().map(|outcome| outcome.peak_reserved_bytes);
        let may_differ = refused.is_none() && setup.hard_limit.is_some() && trace.has_late_frees();
        let refused_late = if may_differ {
            first_refused(trace, &args.attempt(trace, &Setup { are_frees_late: true, ..setup.clone() })?)
        } else {
            None
        };
        let is_known = trace.open_end().is_none() || args.accept_open_end;
        let is_within = most.map(|most| is_known && peak_bytes.is_some_and(|bytes| bytes <= most.bytes));
        Ok(Self { args, trace, file, setup, result, most, refused, refused_late, is_within })
    }

    fn is_good(&self) -> bool {
        self.refused.or(self.refused_late).is_none() && self.is_within != Some(false)
    }

    /// The answer, the settings and figures, and who holds the memory.
    fn text(&self) -> String {
        let Self { args, trace, file, setup, result, most, .. } = self;
        let (name, total) = (Shown::name(trace.name()), request_count(trace, trace.events().len()));
        let limit = args.limit_text(trace, setup);
        let mut text = match (self.refused, self.refused_late, result) {
            (None, Some(event), _) => format!(
                "{name}: {} {limit}: request {} of {}, {}, is refused if other streams finish later than in the record\n",
                styled(BAD, "may not fit in"),
                count(request_count(trace, event) + 1),
                count(total),
                request(trace, event)
            ),
            (None, None, Ok(outcome)) => {
                let whole = if trace.open_end().is_some() { "what is recorded fits" } else { "fits" };
                let on = if limit.starts_with("a device") { "on" } else { "in" };
                format!(
                    "{name}: {} {limit}: peak {}, 0 of {} refused\n",
                    styled(GOOD, format!("{whole} {on}")),
                    Bytes(outcome.peak_reserved_bytes),
                    counted(total, "request")
                )
            }
            (Some(event), ..) => {
                let number = request_count(trace, event) + 1;
                let again = if matches!(trace.events()[event], Event::Refused { .. }) {
                    ", as in the program"
                } else {
                    ""
                };
                format!(
                    "{name}: {} {limit}: request {} of {}, {}, is refused{again}\n",
                    styled(
                        BAD,
                        if limit.starts_with("a device") { "does not fit on" } else { "does not fit in" }
                    ),
                    count(number),
                    count(total),
                    request(trace, event)
                )
            }
            // An error has an event.
            (None, None, Err(_)) => String::new(),
        };
        if let (Some(most), Ok(outcome)) = (most, result) {
            let peak_bytes = outcome.peak_reserved_bytes;
            let (style, answer) = match self.is_within {
                Some(true) => (GOOD, "within"),
                _ if peak_bytes <= most.bytes => (
                    BAD,
                    "unknown: the record does not show the whole program (--accept-open-end), but so far within",
                ),
                _ => (BAD, "above"),
            };
            let answer = styled(style, answer);
            let _ = writeln!(
                text,
                "  allowed   {answer} {} ({}): {}",
                Bytes(most.bytes),
                most.whose,
                Bytes(peak_bytes)
            );
        }
        text += &open_end(trace);
        let _ = writeln!(text, "  settings  {}", settings(args, trace, setup));
        let peak = trace.peak_event();
        let _ = writeln!(
            text,
            "  record    {} live at its peak, at {}",
            Bytes(trace.peaks().live_bytes),
            moment(trace, peak)
        );
        if let Ok(outcome) = result {
            let _ = writeln!(
                text,
                "  reserved  {} at most, {:.3} of live",
                Bytes(outcome.peak_reserved_bytes),
                outcome.ratio()
            );
        }
        text += &self.pytorch();
        text += &recorded(trace);
        let (at, heading) = match self.refused.or(self.refused_late) {
            Some(event) => (event, format!("held when it is refused, at {}", moment(trace, event))),
            None => (peak + 1, "held at the peak".into()),
        };
        let growth = trace.growth(self.refused.or(self.refused_late).unwrap_or(trace.events().len()));
        let _ = writeln!(
            text,
            "\n{}\n{}",
            styled(HEADING, heading),
            holders_table(&trace.holders(at), &growth, ROWS)
        );
        if self.refused.or(self.refused_late).is_some() {
            text += &next(&[(
                format!("{} replay {} --find-limit", command_name(), shell(file)),
                "the limit that it needs",
            )]);
        }
        text
    }

    /// The memory that the program may use: the limit, or that of the device.
    fn memory_bytes(&self) -> u64 {
        let device_bytes = self.args.machine().memory_bytes(self.trace);
        match self.setup.hard_limit {
            Some(Limit::Bytes(limit_bytes)) => limit_bytes.min(device_bytes),
            _ => device_bytes,
        }
    }

    /// A line: the memory that PyTorch's own allocator would reserve for the same requests.
    fn pytorch(&self) -> String {
        let (trace, memory_bytes) = (self.trace, self.memory_bytes());
        let live_bytes = trace.peaks().live_incl_deferred_bytes.max(1);
        match trace.pytorch_reserved_bytes(memory_bytes) {
            Some(bytes) => format!(
                "  pytorch   its own allocator would reserve {}, {:.3} of live\n",
                Bytes(bytes),
                bytes as f64 / live_bytes as f64
            ),
            None => format!("  pytorch   its own allocator would need more than {}\n", Bytes(memory_bytes)),
        }
    }

    fn json(&self) -> Value {
        let Self { args, trace, file, setup, result, most, .. } = self;
        let mut value = figures::json(trace, result.as_ref().ok());
        if let Err(refused) = result {
            let report = refused.error.out_of_memory();
            value["in_use_bytes"] = json!(report.map(|report| report.in_use_bytes));
            value["reserved_bytes"] = json!(report.map(|report| report.reserved_bytes));
        }
        let at = self.refused.or(self.refused_late).unwrap_or_else(|| trace.peak_event() + 1);
        value["file"] = json!(file.to_string_lossy());
        // Unknown if it depends on the time at which streams finish.
        value["fits"] = match self.refused_late {
            Some(_) => Value::Null,
            None => json!(self.refused.is_none()),
        };
        value["open_end"] = json!(trace.open_end().map(|end| end.to_string()));
        value["limit"] = json!(setup.hard_limit.map(|limit| limit.to_string()));
        value["pytorch_reserved_bytes"] = json!(trace.pytorch_reserved_bytes(self.memory_bytes()));
        value["device_bytes"] = json!((!args.gpu).then(|| args.machine().memory_bytes(trace)));
        value["settings"] = json!(settings(args, trace, setup));
        value["requests"] = json!(request_count(trace, trace.events().len()));
        let refused = self.refused.or(self.refused_late);
        value["refused_event"] = json!(refused);
        value["refused_request"] = json!(refused.map(|event| request_count(trace, event) + 1));
        value["max_peak_bytes"] = json!(most.map(|most| most.bytes));
        value["is_within_max_peak"] = json!(self.is_within);
        value["holders"] = holders_json(trace, at);
        value["growth"] = growth_json(trace, refused.unwrap_or(trace.events().len()));
        value
    }
}

/// The event of the first request that a replay refuses.
fn first_refused(trace: &Trace, result: &Result<Outcome, Refused>) -> Option<usize> {
    match result {
        Ok(outcome) => outcome.first_refusal,
        Err(refused) => Some(refused.event.min(trace.events().len() - 1)),
    }
}

/// The holders after the first events.
pub(crate) fn holders_json(trace: &Trace, event_count: usize) -> Value {
    let holders = trace.holders(event_count);
    let list = holders.list.iter().map(|holding| {
        json!({"holder": holding.holder.to_string(), "live_bytes": holding.live_bytes, "blocks": holding.block_count})
    });
    json!(list.collect::<Vec<_>>())
}

/// The holders that grew up to the end of the first events.
pub(crate) fn growth_json(trace: &Trace, event_count: usize) -> Value {
    let list = trace.growth(event_count).into_iter().map(|growth| {
        json!({
            "holder": growth.holder.to_string(),
            "gained_bytes": growth.gained_bytes,
            "gained_blocks": growth.gained_count,
            "since_event": growth.since_event,
            "took_ns": growth.took_ns,
        })
    });
    json!(list.collect::<Vec<_>>())
}

/// Why the program may need more than its record shows, and what was growing.
pub(crate) fn open_end_sentence(trace: &Trace) -> Option<String> {
    let end = trace.open_end()?;
    let at = trace.last_refusal().filter(|_| end == gpumem_trace::OpenEnd::Refused);
    let growth = trace.growth(at.unwrap_or(trace.events().len()));
    Some(match growth.first() {
        Some(first) => {
            format!("{end}, while {}; a limit only delays it", was_growing(trace, first))
        }
        None => format!("{end}; what the program needs after it is unknown"),
    })
}

fn open_end(trace: &Trace) -> String {
    open_end_sentence(trace).map_or(String::new(), |sentence| format!("  but       {sentence}\n"))
}

/// The backend, the profile and the options of a replay, and whose they are.
fn settings(args: &Args, trace: &Trace, setup: &Setup) -> String {
    let backend = setup.backend.map_or("caching".into(), |backend| backend.to_string());
    let options = [&*setup.tuning, &*setup.conf].into_iter().filter(|options| !options.is_empty());
    let options = options.map(|options| format!(", {}", Shown::sentence(options))).collect::<String>();
    let is_given = args.backend.is_some() || args.profile.is_some() || !args.conf.is_empty();
    let whose = match trace.real_run().settings() {
        Some(_) if !is_given => " (as recorded)",
        None if !is_given => " (the defaults)",
        _ => "",
    };
    format!("backend {backend}{options}{whose}")
}

/// The settings and figures of the program itself, as its record states them; empty for other traces.
fn recorded(trace: &Trace) -> String {
    let (real, mut text) = (trace.real_run(), String::new());
    for pool in &real.pools {
        let limit =
            pool.hard_limit_bytes.map_or("no limit".into(), |bytes| format!("limit {}", Bytes(bytes)));
        let _ = writeln!(
            text,
            "  recorded  pool {}, {limit}, on {} (device {}, {})",
            Shown::name(&pool.name),
            Shown::name(&pool.device),
            pool.device_ordinal,
            Bytes(pool.device_bytes)
        );
    }
    if let Some(peak_bytes) = real.peak_reserved_bytes {
        let _ = writeln!(text, "  recorded  the program reserved {} at most", Bytes(peak_bytes));
    }
    if real.moves != MoveSums::default() {
        let _ = writeln!(text, "  recorded  {}", moves_text(&real.moves));
    }
    if trace.refused_count() > 0 {
        let _ = writeln!(text, "  recorded  {} refused", counted(trace.refused_count(), "request"));
    }
    text
}

/// The arrays that moved to the host and back.
fn moves_text(moves: &MoveSums) -> String {
    let kept = match moves.kept_bytes {
        0 => String::new(),
        bytes => format!("; {} could not move", Bytes(bytes)),
    };
    format!(
        "{} moved to the host ({}, {} of them copied), {} back ({}, {} ahead of use){kept}",
        counted(moves.out_count, "array"),
        Bytes(moves.out_bytes),
        Bytes(moves.copied_bytes),
        count(moves.back_count),
        Bytes(moves.back_bytes),
        Bytes(moves.early_bytes)
    )
}

/// Rows of a table of holders.
pub(crate) const ROWS: usize = 12;

const EXAMPLES: &str = "\
Would it have fit?
  gpumem replay run.trace --limit 8GiB              with the recorded settings, in 8 GiB
  gpumem replay run.trace --find-limit              the smallest limit
  gpumem replay run.trace --compare --limit 8GiB    all backends and profiles, and the best GPUMEM_CONF
  gpumem replay snapshot.pickle --device 24GiB      a program that ran with PyTorch's own allocator
In a build: fail if the peak has grown by 5 %
  gpumem replay run.trace --baseline main.trace --max-growth 5";

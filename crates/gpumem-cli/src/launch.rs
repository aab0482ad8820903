//! `gpumem run`: starts a program with a recording, a limit or the flight recorder, and says at its end where its memory went.

use crate::describe::{
    EVENTS_OF_A_TREND, count, grown, holders_table, moment, named, nothing_recorded, request, request_count,
    seconds,
};
use crate::machine::parse_bytes;
use crate::output::{BAD, HEADING, NOTE, command_name, complain, styled};
use crate::replay::{ROWS, growth_json, holders_json};
use anyhow::{Context, Result, ensure};
use core::fmt::Write as _;
use gpumem_sim::SimConfig;
use gpumem_trace::Trace;
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::pool::{Bytes, Device, Limit, Pool, Profile};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
#[cfg(unix)]
use std::sync::{Arc, atomic::AtomicBool};
use std::time::{Instant, SystemTime};

#[derive(clap::Args)]
#[command(after_help = STATUS)]
pub(crate) struct Args {
    /// Record all requests into this file and keep it; `%p` is the process ID [default: a file that is read for the summary and deleted]
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Record nothing: the program runs at full speed, and there is no summary
    #[arg(long, conflicts_with = "record")]
    no_record: bool,
    /// Write the last requests into this file when a request is refused, or `on` for one in the folder for temporary files
    #[arg(long, value_name = "FILE")]
    flight_recorder: Option<PathBuf>,
    /// The hard limit of its pools (GPUMEM_HARD_LIMIT)
    #[arg(long, value_name = "SIZE")]
    limit: Option<Limit>,
    /// The profile of its pools: fast, balanced or tight (GPUMEM_PROFILE)
    #[arg(long, value_name = "NAME")]
    profile: Option<Profile>,
    /// More host memory for its arrays, such as host:32GiB (GPUMEM_SPILL)
    #[arg(long, value_name = "WHERE")]
    spill: Option<String>,
    /// Options of its pools by name (GPUMEM_CONF)
    #[arg(long, value_name = "KEY:VALUE,…")]
    conf: Option<String>,
    /// Without a GPU, on a simulated device of this size, such as 24GiB: kernels and copies are skipped, and results are zeros. Does it fit?
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "no_record")]
    simulate: Option<u64>,
    /// Print the summary as one line with a JSON object, on the standard error
    #[arg(long, conflicts_with = "no_record")]
    json: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// Returns the exit status.
pub(crate) fn run(args: &Args) -> Result<u8> {
    args.check()?;
    let folder = Scratch::new()?;
    let record = match (&args.record, args.no_record) {
        (_, true) => None,
        (Some(file), _) => Some(std::path::absolute(file)?),
        (None, _) => Some(folder.0.join("gpumem-%p.trace")),
    };
    let begin = (Instant::now(), SystemTime::now());
    let status = match args.start(record.as_deref()) {
        Ok(status) => status,
        Err(error) => {
            complain("error", &format!("cannot start {}: {error}", Shown::path(Path::new(&args.program[0]))));
            return Ok(if error.kind() == ErrorKind::NotFound { 127 } else { 126 });
        }
    };
    let took = begin.0.elapsed();
    let code = match (status.code(), signal(status)) {
        (Some(code), _) => code as u8,
        (None, number) => 128 + number as u8,
    };
    let Some(record) = record else { return Ok(code) };
    // The program may have removed their folder.
    let files = records(&record, begin.1).unwrap_or_default();
    if args.json {
        let records = files.iter().map(|file| summary_json(file, args.record.is_some()));
        let value = json!({
            "status": status.code(),
            "signal": status.code().is_none().then(|| signal(status)),
            "seconds": took.as_secs_f64(),
            "simulated_bytes": args.simulate,
            "records": records.collect::<Vec<_>>(),
        });
        _ = writeln!(io::stderr().lock(), "{value}");
        return Ok(code);
    }
    let mut text = format!(
        "\n{} {} after {:.1} s\n",
        styled(HEADING, format!("{} run:", command_name())),
        ended(status),
        took.as_secs_f64()
    );
    if files.is_empty() {
        let _ = writeln!(
            text,
            "  {} nothing is recorded: the program {}built no pool from the environment (Pool::from_env in Rust, GPUMEM_FROM_ENVIRONMENT in C, \
             gpumem.torch.install() or GPUMEM_INSTALL=torch in Python)",
            styled(NOTE, "note"),
            if code == 0 { "" } else { "ended before, or " }
        );
    }
    for file in &files {
        text += &summary(file, args.record.is_some());
    }
    if let Some(size_bytes) = args.simulate.filter(|_| !files.is_empty()) {
        let _ = writeln!(text, "\n  {} {}", styled(NOTE, "note"), simulated(size_bytes));
    }
    // The program's output is on the standard output.
    _ = anstream::stderr().lock().write_all(text.as_bytes());
    Ok(code)
}

impl Args {
    /// Refuses options that the program would refuse, before it starts.
    fn check(&self) -> Result<()> {
        if let Some(size_bytes) = self.simulate {
            let sizes = 2 << 20..=gpumem_sim::MEMORY_BYTES_MAX;
            ensure!(
                sizes.contains(&size_bytes),
                "the value of --simulate: the simulator has devices of 2 MiB to 4 TiB"
            );
        }
        let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
        let conf = self.conf.as_deref().unwrap_or_default();
        Pool::builder(&device).conf(conf).map(drop).context("the value of --conf")?;
        if let Some(spill) = &self.spill {
            let conf = format!("spill:{spill}");
            Pool::builder(&device).conf(&conf).map(drop).context("the value of --spill")?;
        }
        for file in [&self.record, &self.flight_recorder].into_iter().flatten() {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            ensure!(folder.is_dir(), "{}: there is no folder {}", Shown::path(file), Shown::path(folder));
            ensure!(!file.is_dir(), "{} is a folder: name a file in it", Shown::path(file));
        }
        Ok(())
    }

    /// Runs the program to its end. Interrupts are for it: this process waits for it, and passes on what asks it to end.
    fn start(&self, record: Option<&Path>) -> io::Result<ExitStatus> {
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]);
        let limit = self.limit.map(|limit| limit.to_string());
        let profile = self.profile.map(|profile| profile.to_string());
        // The program may change its folder.
        let flight_recorder = match &self.flight_recorder {
            Some(on) if on == Path::new("on") => Some(on.clone()),
            Some(file) => Some(std::path::absolute(file)?),
            None => None,
        };
        let memory = self.simulate.map(|size_bytes| size_bytes.to_string());
        let is_on_drop_in = std::env::var_os("GPUMEM_DRIVER").is_some_and(|driver| driver == "drop-in");
        let simulated = |value| self.simulate.map(|_| OsStr::new(value));
        let variables = [
            // A program of another library has the simulator as libcuda.so.1.
            ("GPUMEM_DRIVER", simulated("sim").filter(|_| !is_on_drop_in)),
            ("GPUMEM_SIM_WORK", simulated("skip")),
            ("GPUMEM_SIM_MEMORY", memory.as_deref().map(str::as_ref)),
            ("GPUMEM_TRACE", record.map(Path::as_os_str)),
            ("GPUMEM_FLIGHT_RECORDER", flight_recorder.as_deref().map(Path::as_os_str)),
            ("GPUMEM_HARD_LIMIT", limit.as_deref().map(str::as_ref)),
            ("GPUMEM_PROFILE", profile.as_deref().map(str::as_ref)),
            ("GPUMEM_SPILL", self.spill.as_deref().map(str::as_ref)),
            ("GPUMEM_CONF", self.conf.as_deref().map(str::as_ref)),
        ];
        for (name, value) in variables {
            value.into_iter().for_each(|value| _ = command.env(name, value));
        }
        let signals = Signals::watch()?;
        let mut child = command.spawn()?;
        let signals = signals.pass_on_to(child.id());
        let status = child.wait();
        signals.end();
        status
    }
}

/// A note: how a simulated device differs from a real one.
fn simulated(size_bytes: u64) -> String {
    format!(
        "this was a simulated device of {}; of a real one, some hundred MiB go to its context, and to the code and the work space of libraries",
        Bytes(size_bytes)
    )
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> i32 {
    std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0)
}

#[cfg(not(unix))]
fn signal(_status: ExitStatus) -> i32 {
    0
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(0) => "the program has ended".into(),
        Some(code) => format!("the program has {} with status {code}", styled(BAD, "ended")),
        None => format!("the program was {} by signal {}", styled(BAD, "ended"), signal(status)),
    }
}

/// Signals to this process while the program runs.
#[cfg(unix)]
struct Signals(signal_hook::iterator::Signals);

#[cfg(unix)]
impl Signals {
    /// A terminal sends its interrupts to the program too; they must not end this process first. Signals that this process was started to
    /// ignore, as by `nohup`, stay ignored, in the program too.
    fn watch() -> io::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
        let ignored = ignored();
        let watched = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
        let watched = watched.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        Ok(Self(signal_hook::iterator::Signals::new(watched)?))
    }

    /// Passes signals on to the program, until it has ended.
    fn pass_on_to(mut self, process: u32) -> PassedOn {
        use rustix::process::{Pid, Signal, kill_process};
        let handle = self.0.handle();
        let Some(process) = Pid::from_raw(process as i32) else { return PassedOn(handle) };
        std::thread::spawn(move || {
            for signal in self.0.forever() {
                let signal = match signal {
                    signal_hook::consts::SIGTERM => Signal::TERM,
                    signal_hook::consts::SIGHUP => Signal::HUP,
                    signal_hook::consts::SIGUSR1 => Signal::USR1,
                    signal_hook::consts::SIGUSR2 => Signal::USR2,
                    _ => continue,
                };
                _ = kill_process(process, signal);
            }
        });
        PassedOn(handle)
    }
}

#[cfg(unix)]
struct PassedOn(signal_hook::iterator::Handle);

#[cfg(unix)]
impl PassedOn {
    /// From now on signals end this process, as they do by default.
    fn end(self) {
        self.0.close();
        for signal in [
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGQUIT,
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
        ] {
            _ = signal_hook::flag::register_conditional_default(signal, Arc::new(AtomicBool::new(true)));
        }
    }
}

/// The signals that this process ignores, a bit each, where the system says so.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn watch() -> io::Result<Self> {
        Ok(Self)
    }

    fn pass_on_to(self, _process: u32) -> Self {
        self
    }

    fn end(self) {}
}

/// The files that the processes of the program have recorded: `%p` in the name stands for a number.
fn records(record: &Path, begin: SystemTime) -> Result<Vec<PathBuf>> {
    let name = record
        .file_name()
        .and_then(|name| name.to_str())
        .context("the file of --record has no name in UTF-8")?;
    let folder = record.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| Shown::path(folder).to_string())? {
        let entry = entry?;
        let is_new = || Some(entry.metadata().ok()?.modified().ok()? >= begin);
        let is_named = entry.file_name().to_str().is_some_and(|found| is_of(found, name));
        if is_named && is_new().unwrap_or(true) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// True if the name is the pattern with a number for each `%p`.
fn is_of(name: &str, pattern: &str) -> bool {
    match pattern.split_once("%p") {
        None => name == pattern,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            let digits = rest.chars().take_while(char::is_ascii_digit).count();
            digits > 0 && is_of(&rest[digits..], after)
        }),
    }
}

/// The summary of one process, from its record.
fn summary(file: &Path, is_kept: bool) -> String {
    let trace = match Trace::read(file) {
        Ok(trace) if !trace.events().is_empty() => trace,
        Ok(trace) => {
            return format!(
                "  {} no request is recorded; {}\n",
                styled(NOTE, "note"),
                nothing_recorded(&trace)
            );
        }
        Err(error) => return format!("  {} {error}\n", styled(NOTE, "note")),
    };
    let requests = request_count(&trace, trace.events().len());
    let mut text = format!("  requests  {}", count(requests));
    if let Some(time_ns) = trace.time_ns(trace.events().len() - 1).filter(|time_ns| *time_ns > 0) {
        let _ = write!(text, " in {}", seconds(time_ns));
    }
    let _ = writeln!(text, ", {} refused", count(trace.refused_count()));
    let peak = trace.peak_event();
    let _ =
        writeln!(text, "  peak      {} live at {}", Bytes(trace.peaks().live_bytes), moment(&trace, peak));
    if let Some(bytes) = trace.real_run().peak_reserved_bytes {
        let _ = writeln!(text, "  reserved  {} at most", Bytes(bytes));
    }
    if let Some(event) = trace.last_refusal() {
        let _ = writeln!(
            text,
            "  {}   {} at {}",
            styled(BAD, "refused"),
            request(&trace, event),
            moment(&trace, event)
        );
    }
    let growth = trace.growth(trace.events().len());
    if let Some(first) = growth.first() {
        let _ = writeln!(text, "  grew      {} {}", named(&first.holder), grown(&trace, first));
    } else if trace.events().len() >= EVENTS_OF_A_TREND {
        text += "  grew      nothing, steadily\n";
    }
    let _ = write!(
        text,
        "\n{}\n{}",
        styled(HEADING, "held at the peak"),
        holders_table(&trace.holders(peak + 1), &growth, ROWS)
    );
    if is_kept {
        let _ = writeln!(text, "\n  recorded  {0}; next: {1} report {0}", Shown::path(file), command_name());
    }
    text
}

/// The summary of one process, as JSON.
fn summary_json(file: &Path, is_kept: bool) -> Value {
    let path = is_kept.then(|| file.to_string_lossy());
    match Trace::read(file) {
        Err(error) => json!({"file": path, "error": error.to_string()}),
        Ok(trace) if trace.events().is_empty() => json!({"file": path, "requests": 0}),
        Ok(trace) => json!({
            "file": path,
            "requests": request_count(&trace, trace.events().len()),
            "refused": trace.refused_count(),
            "refused_event": trace.last_refusal(),
            "peak_live_bytes": trace.peaks().live_bytes,
            "peak_reserved_bytes": trace.real_run().peak_reserved_bytes,
            "holders": holders_json(&trace, trace.peak_event() + 1),
            "growth": growth_json(&trace, trace.events().len()),
        }),
    }
}

/// A folder that is deleted at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        // A process with this number may have been killed.
        let begin = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!("gpumem-run-{}-{}", std::process::id(), begin.as_nanos());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).with_context(|| Shown::path(&folder).to_string())?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0)
            && error.kind() != ErrorKind::NotFound
        {
            complain("warning", &format!("{} is left: {error}", Shown::path(&self.0)));
        }
    }
}

const STATUS: &str = "\
The exit status is the program's, or 128 and the number of the signal that ended it; 127 if it is not found, 126 if it cannot be started.
SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to it; a terminal sends its interrupts to both.
The program must use gpumem, in Rust, C, Python or as PyTorch's allocator, and build its pool from the environment.";

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn names_with_a_number_for_the_process_are_found() {
        assert!(is_of("run.trace", "run.trace") && !is_of("run.trace.1", "run.trace"));
        assert!(is_of("run-4711.trace", "run-%p.trace") && !is_of("run-.trace", "run-%p.trace"));
        assert!(!is_of("run-4711.trace.1", "run-%p.trace") && !is_of("other-1.trace", "run-%p.trace"));
    }
}

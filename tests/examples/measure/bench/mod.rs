//! `cargo xtask bench`: runs every bench of the workspace and the replay of the recorded traces, and prints one table with the
//! peers.
//!
//! A bench is a program that prints its figures as rows with `--rows` ([`row`]). Figures of peers from the same run come from
//! `--peer-file` or from a bench itself. Other figures are those of recorded runs (`docs/runs`) and are marked, because absolute times
//! differ between machines. `--record` writes this run into such a file.

mod record;
mod report;

use crate::beside::beside;
use crate::peers::{self, PeerFigure};
use crate::replay::{Machine, Recorded, figures::driver_share, watched};
use crate::row;
use crate::runs::Figure;
use anyhow::{Context, Result, bail, ensure};
use gpumem_tests::driver::virtual_time;
use gpumem_trace::{Outcome, Setup, Trace, Waits};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only this bench (a program's name, or `replay`); may be repeated [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Figures of peers from the same run, as printed by bench_rmm, bench_torch, bench_cudarc or interop-cuda-core; may be repeated
    #[arg(long, value_name = "FILE")]
    peer_file: Vec<PathBuf>,
    /// Do little work for each figure: this checks the benches and their rows, and the figures are worth nothing
    #[arg(long, conflicts_with = "record")]
    quick: bool,
    /// Print one JSON object a row, one row a line
    #[arg(long)]
    json: bool,
    /// Write the figures of this run, with the machine, the time and the command, into a new FILE such as docs/runs/2026-11-21-h200.jsonl
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// A remark for the recorded file
    #[arg(long, value_name = "TEXT", requires = "record")]
    note: Option<String>,
    /// The folder of the benches [default: benches/ beside this program]
    #[arg(long, value_name = "DIR", hide = true)]
    benches: Option<PathBuf>,
    #[command(flatten)]
    recorded: Recorded,
}

/// One bench: a program, started with `--rows`.
struct Program {
    name: String,
    path: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if let Some(file) = args.record.as_ref().filter(|file| file.exists()) {
        bail!("{} exists already: a run gets a file of its own", file.display());
    }
    let mut figures = Vec::new();
    for file in &args.peer_file {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        figures.extend(peers::measured(&text).with_context(|| file.display().to_string())?);
    }
    let wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|wanted| wanted == name);
    let programs = programs(args.benches.clone().map_or_else(|| beside("benches"), Ok)?)?;
    if let Some(name) =
        args.names.iter().find(|name| *name != REPLAY && !programs.iter().any(|known| known.name == **name))
    {
        let known: Vec<_> = programs.iter().map(|program| program.name.as_str()).collect();
        bail!("no bench is called {name}; there are: {}, {REPLAY}", known.join(", "));
    }
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for program in programs.iter().filter(|program| wanted(&program.name)) {
        eprintln!("{} …", program.name);
        match rows_of(program, args.quick) {
            Ok(printed) => rows.extend(printed),
            Err(error) => failed.push(format!("{}: {error:#}", program.name)),
        }
    }
    if wanted(REPLAY) {
        let (replayed, recorded) = replay(&args.recorded)?;
        rows.extend(replayed);
        figures.extend(recorded);
    }
    let of_this_run = rows.iter().cloned().chain(figures.iter().map(PeerFigure::to_figure)).collect();
    figures.extend(peers::stored(&args.recorded.runs()?)?);
    let lines = report::join(&rows, &figures);
    print!("{}", if args.json { report::json(&lines) } else { report::text(&lines) });
    ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
    if let Some(file) = &args.record {
        record::write(file, &args, of_this_run)?;
    }
    Ok(())
}

/// All benches in a folder.
fn programs(folder: PathBuf) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        programs.push(Program { name, path: entry.path() });
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// Starts a bench and parses its rows; all other output is passed on.
fn rows_of(program: &Program, is_quick: bool) -> Result<Vec<Figure>> {
    let mut command = Command::new(&program.path);
    // With the arguments of `cargo bench`.
    command.args(["--bench", "--rows"]).args(is_quick.then_some("--quick"));
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut rows = Vec::new();
    for line in BufReader::new(child.stdout.take().context("the program has no output")?).lines() {
        let line = line?;
        match row::parse(&line)? {
            Some(row) => rows.push(row),
            None => eprintln!("  {line}"),
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "ended with {status}");
    ensure!(!rows.is_empty(), "printed no row; it has to understand --rows");
    Ok(rows)
}

/// The recorded traces, replayed through the default pool, and the peers' figures in their headers.
fn replay(traces: &Recorded) -> Result<(Vec<Figure>, Vec<PeerFigure>)> {
    let (machine, mut rows, mut figures) = (Machine::find()?, Vec::new(), Vec::new());
    for trace in traces.read()? {
        eprintln!("{REPLAY} {} …", trace.name());
        // Without waits, like the peers and the recorded runs.
        let setup = Setup { waits: Waits::Off, clock: Some(virtual_time), ..Setup::default() };
        let outcome = watched(&trace, &machine.driver()?, &setup)?;
        rows.extend(rows_of_replay(&trace, &outcome));
        let live_bytes = outcome.live.live_incl_deferred_bytes.max(1) as f64;
        figures.extend(trace.header().peers().map(|peer| PeerFigure {
            bench: format!("{REPLAY}/{}/ratio", trace.name()),
            peer: peer.name,
            value: peer.peak_reserved_bytes as f64 / live_bytes,
            unit: "ratio".into(),
            stored: Some("trace".into()),
        }));
    }
    Ok((rows, figures))
}

fn rows_of_replay(trace: &Trace, outcome: &Outcome) -> Vec<Figure> {
    let row = |what: &str, value: f64, unit: &str| Figure {
        bench: format!("{REPLAY}/{}/{what}", trace.name()),
        value,
        unit: unit.into(),
        peer: None,
    };
    let mut rows = vec![
        row("ratio", outcome.ratio(), "ratio"),
        row("driver", outcome.driver_time.as_secs_f64() * 1e3, "ms"),
        row("host", outcome.host_ns_per_op(), "ns"),
    ];
    rows.extend(driver_share(trace, outcome).map(|share| row("driver_share", share * 100.0, "%")));
    rows
}

const REPLAY: &str = "replay";

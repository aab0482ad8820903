//! `gpumem report`: one screen about a record or a saved report: what was refused, who holds the memory, what grew, what to do.

mod saved;

use crate::describe::{count, grown, holders_table, moment, named, request, seconds};
use crate::output::{BAD, GOOD, HEADING, Verdict, command_name, complain, print, styled};
use crate::replay::{ROWS, growth_json, holders_json};
use anyhow::{Result, ensure};
use core::fmt::Write as _;
use gpumem_trace::pool::Bytes;
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::{Event, Trace};
use saved::Saved;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A recording of GPUMEM_TRACE, a flight record, a memory snapshot of PyTorch, a log of RMM, or a text with the report of a refusal, such as
    /// the log of a program
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    if let Some(saved) = Saved::read(&args.file)? {
        print(&if args.json { format!("{}\n", saved.json()) } else { saved.text(&args.file) })?;
        return Ok(Verdict::Yes);
    }
    let trace = Trace::read(&args.file)?;
    ensure!(
        !trace.events().is_empty(),
        "{}: no event is recorded; record the program from its beginning, with GPUMEM_TRACE=FILE",
        Shown::path(&args.file)
    );
    if args.json {
        print(&format!("{}\n", json_of(&trace)))?;
        return Ok(Verdict::Yes);
    }
    for note in trace.disagreements() {
        complain("warning", &Shown::sentence(&note).to_string());
    }
    print(&text_of(&trace, &args.file))?;
    Ok(Verdict::Yes)
}

fn text_of(trace: &Trace, file: &Path) -> String {
    let (name, last) = (Shown::name(trace.name()), trace.events().len());
    let refusal = trace.last_refusal();
    let mut text = match refusal {
        Some(event) => format!(
            "{name}: {} {} at {}\n",
            styled(BAD, "refused"),
            request(trace, event),
            moment(trace, event)
        ),
        None => format!(
            "{name}: {} in {} events{}\n",
            styled(GOOD, "nothing was refused"),
            count(last as u64),
            trace.time_ns(last - 1).map_or(String::new(), |time_ns| format!(", {}", seconds(time_ns)))
        ),
    };
    let report = trace.real_run().reports.last().and_then(|report| Saved::of(report));
    match (&report, refusal) {
        (Some(report), _) => text += &report.why(),
        (None, Some(event)) => text += &advice(trace, event),
        (None, None) => {}
    }
    if trace.refused_count() > 1 {
        let _ =
            writeln!(text, "  refused  {} requests in all; this is the last", count(trace.refused_count()));
    }
    let growth = trace.growth(refusal.unwrap_or(last));
    for growth in growth.iter().take(GROWTH_ROWS) {
        let _ = writeln!(text, "  grew     {} {}", named(&growth.holder), grown(trace, growth));
    }
    let peak = trace.peak_event();
    let _ = writeln!(text, "  peak     {} live at {}", Bytes(trace.peaks().live_bytes), moment(trace, peak));
    let (at, heading) = match refusal {
        Some(event) => (event, "held when it is refused"),
        None => (last, "held at the end"),
    };
    let held = trace.holders(at);
    // A flight record has the last requests only; the report in it counts older blocks by tag too.
    let table = report.as_ref().map(Saved::table).filter(|table| !table.is_empty());
    let table = table.unwrap_or_else(|| holders_table(&held, &growth, ROWS));
    let _ = write!(text, "\n{}\n{table}", styled(HEADING, heading));
    let at_peak = trace.holders(peak + 1);
    // Once more only if that is another picture.
    if at_peak.live_bytes > held.live_bytes.saturating_add(held.live_bytes / 10) {
        let _ =
            write!(text, "\n{}\n{}", styled(HEADING, "held at the peak"), holders_table(&at_peak, &[], ROWS));
    }
    text + &next(&[
        (
            format!("{} view {}", command_name(), shell(file)),
            "the memory over time, and the blocks at a moment",
        ),
        (format!("{} replay {} --find-limit", command_name(), shell(file)), "the limit that it needs"),
    ])
}

/// What to do about a refusal that has no report in its record.
fn advice(trace: &Trace, event: usize) -> String {
    let Event::Refused { size_bytes, .. } = trace.events()[event] else { return String::new() };
    let needed = Bytes(trace.holders(event).live_bytes.saturating_add(size_bytes));
    let limit = trace.real_run().settings().and_then(|pool| pool.hard_limit_bytes);
    match limit {
        Some(limit_bytes) => format!(
            "  advice   the limit is {}, and the live blocks and the request need {needed}: raise it (GPUMEM_HARD_LIMIT), or free blocks\n",
            Bytes(limit_bytes)
        ),
        None => format!(
            "  advice   the live blocks and the request need {needed}: free blocks, or use a larger device\n"
        ),
    }
}

/// The commands that answer the next questions.
fn next(commands: &[(String, &str)]) -> String {
    let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let lines = commands.iter().map(|(command, answers)| format!("  {command:<width$}  {answers}\n"));
    format!("\n{}\n{}", styled(HEADING, "next"), lines.collect::<String>())
}

/// A path as an argument of a shell.
fn shell(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = text.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-+,:@%".contains(letter));
    if is_plain && !text.is_empty() { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

fn json_of(trace: &Trace) -> Value {
    let refusal = trace.last_refusal();
    let at = refusal.unwrap_or(trace.events().len());
    let size_bytes = refusal.map(|event| match trace.events()[event] {
        Event::Refused { size_bytes, .. } => size_bytes,
        _ => 0,
    });
    json!({
        "name": trace.name(),
        "events": trace.events().len(),
        "notes": trace.disagreements(),
        "open_end": trace.open_end().map(|end| end.to_string()),
        "refusals": trace.refused_count(),
        "refused_event": refusal,
        "refused_bytes": size_bytes,
        "refused_time_ns": refusal.and_then(|event| trace.time_ns(event)),
        "reports": trace.real_run().reports,
        "live_bytes": trace.holders(at).live_bytes,
        "holders": holders_json(trace, at),
        "growth": growth_json(trace, at),
        "peak_live_bytes": trace.peaks().live_bytes,
        "peak_event": trace.peak_event(),
        "holders_at_peak": holders_json(trace, trace.peak_event() + 1),
    })
}

const GROWTH_ROWS: usize = 3;

//! `gpumem report`: one screen about a record or a saved report: what was refused, who holds the memory, what grew, what to do.

mod saved;

use crate::describe::{
    EVENTS_OF_A_TREND, RATE_NS_MIN, count, grown, holders_table, moment, named, nothing_recorded, request,
    seconds,
};
use crate::input::{self, Input};
use crate::machine::Machine;
use crate::output::{BAD, GOOD, HEADING, NOTE, Verdict, command_name, complain, next, print, shell, styled};
use crate::replay::{ROWS, growth_json, holders_json};
use anyhow::{Context, Result, bail};
use core::fmt::Write as _;
use gpumem_trace::pool::Bytes;
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::{Event, Growth, Trace};
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
    let trace = match input::read(&args.file)? {
        Input::Trace(trace) => *trace,
        Input::Text(text) => {
            let saved = Saved::of(&text).with_context(|| {
                format!(
                    "{}: this text has no report of a refusal (`out of GPU memory: …`), and is no record",
                    Shown::path(&args.file)
                )
            })?;
            print(&if args.json { format!("{}\n", saved.json()) } else { saved.text(&args.file) })?;
            return Ok(Verdict::Yes);
        }
    };
    if trace.events().is_empty() {
        let notes = trace.disagreements().join("; ");
        // A damaged flight record may have its report only.
        let Some(report) = trace.real_run().reports.last().and_then(|text| Saved::of(text)) else {
            let why = if notes.is_empty() { nothing_recorded(&trace) } else { &notes };
            bail!("{}: no event is recorded; {}", Shown::path(&args.file), Shown::sentence(why));
        };
        complain("warning", &Shown::sentence(&notes).to_string());
        print(&if args.json { format!("{}\n", report.json()) } else { report.text(&args.file) })?;
        return Ok(Verdict::Yes);
    }
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
            match trace.open_end() {
                Some(_) => styled(NOTE, "no refusal is recorded"),
                None => styled(GOOD, "nothing was refused"),
            },
            count(last as u64),
            last.checked_sub(1)
                .and_then(|last| trace.time_ns(last))
                .map_or(String::new(), |time_ns| format!(", {}", seconds(time_ns)))
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
    if let (None, Some(end)) = (refusal, trace.open_end()) {
        let _ = writeln!(text, "  but      {end}");
    }
    let growth = trace.growth(refusal.unwrap_or(last));
    if let (Some(first), Some(_)) = (growth.first(), refusal) {
        text += &advice_on_growth(trace, first);
    }
    for growth in growth.iter().take(GROWTH_ROWS) {
        let _ = writeln!(text, "  grew     {} {}", named(&growth.holder), grown(trace, growth));
    }
    if growth.is_empty() && last >= EVENTS_OF_A_TREND {
        text += "  grew     nothing, steadily\n";
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

/// Advice on a holder that grew until a request was refused.
fn advice_on_growth(trace: &Trace, growth: &Growth) -> String {
    let mut text = format!(
        "  advice   {} grew until the refusal, a leak or a cache without a bound: bound it or free it. A higher limit only delays the next one",
        named(&growth.holder)
    );
    if let Some(took_ns) = growth.took_ns.filter(|took_ns| *took_ns >= RATE_NS_MIN) {
        let live_bytes = trace.peaks().live_bytes;
        let lasts_ns = took_ns as f64 * (live_bytes as f64 / growth.gained_bytes.max(1) as f64);
        let _ = write!(text, "; another {} would last {}", Bytes(live_bytes), seconds(lasts_ns as u64));
    }
    text + "\n"
}

/// Advice on a refusal that has no report in its record.
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
        "pytorch_reserved_bytes": trace.pytorch_reserved_bytes(Machine::default().memory_bytes(trace)),
    })
}

const GROWTH_ROWS: usize = 3;

//! Sentences and tables about the memory of a trace, for all subcommands.

use crate::table;
use core::fmt::Write as _;
use gpumem_trace::pool::{BackendKind, Bytes};
use gpumem_trace::{Event, Growth, HolderName, Holders, Trace};

/// A holder in a sentence: tags in backticks.
pub(crate) fn named(holder: &HolderName) -> String {
    match holder {
        HolderName::Tag(_) => format!("`{holder}`"),
        _ => holder.to_string(),
    }
}

/// Why a record has no requests, and advice.
pub(crate) fn nothing_recorded(trace: &Trace) -> &'static str {
    let real = trace.real_run();
    let has_reserved = real.peak_reserved_bytes.is_some_and(|bytes| bytes > 0);
    if has_reserved || real.settings().is_some_and(|settings| settings.backend == BackendKind::Native) {
        "other libraries allocated from the driver's own pool, which is not recorded; allocate from gpumem's pool, in scopes, to see who holds memory"
    } else {
        "record the program from its beginning, with GPUMEM_TRACE=FILE"
    }
}

/// A record of fewer events does not show whether something grows.
pub(crate) const EVENTS_OF_A_TREND: usize = 256;

/// `kv-cache` was growing …
pub(crate) fn was_growing(trace: &Trace, growth: &Growth) -> String {
    let verb =
        if matches!(growth.holder, HolderName::Size(_) | HolderName::OtherSizes) { "were" } else { "was" };
    format!("{} {verb} growing {}", named(&growth.holder), grown(trace, growth))
}

/// The place of an event: its time, if the trace has times, and its number.
pub(crate) fn moment(trace: &Trace, event: usize) -> String {
    let number = format!("event {} of {}", count(event as u64 + 1), count(trace.events().len() as u64));
    match trace.time_ns(event) {
        Some(time_ns) => format!("{}, {number}", seconds(time_ns)),
        None => number,
    }
}

/// A time since the beginning of the record.
pub(crate) fn seconds(time_ns: u64) -> String {
    let seconds = time_ns as f64 / 1e9;
    match seconds {
        _ if seconds >= 100.0 => format!("{seconds:.0} s"),
        _ if seconds >= 1.0 => format!("{seconds:.1} s"),
        _ => format!("{:.1} ms", seconds * 1e3),
    }
}

/// A number with separators of thousands.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `by 210 MiB in 326 blocks since 0.4 s (70 MiB a second)`.
pub(crate) fn grown(trace: &Trace, growth: &Growth) -> String {
    let blocks = match growth.gained_count {
        0 => "in larger blocks".into(),
        1 => "in 1 block".into(),
        number => format!("in {} blocks", count(number)),
    };
    let mut text = format!(
        "by {} {blocks} since {}",
        Bytes(growth.gained_bytes),
        moment_short(trace, growth.since_event)
    );
    if let Some(took_ns) = growth.took_ns.filter(|took_ns| *took_ns >= RATE_NS_MIN) {
        let rate = growth.gained_bytes as f64 / (took_ns as f64 / 1e9);
        let _ = write!(text, ", {} a second", Bytes(rate as u64));
    }
    text
}

fn moment_short(trace: &Trace, event: usize) -> String {
    match (event, trace.time_ns(event)) {
        (0, _) => "the beginning of the record".into(),
        (_, Some(time_ns)) => seconds(time_ns),
        (_, None) => format!("event {}", count(event as u64 + 1)),
    }
}

/// A table of the holders, at most `rows` of them.
pub(crate) fn holders_table(holders: &Holders, grown: &[Growth], rows: usize) -> String {
    let share = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / holders.live_bytes.max(1) as f64);
    let gained = |holder: &HolderName| {
        let growth = grown.iter().find(|growth| growth.holder == *holder);
        growth.map_or(String::new(), |growth| format!("+{}", Bytes(growth.gained_bytes)))
    };
    let mut cells: Vec<[String; 5]> = holders
        .list
        .iter()
        .take(rows)
        .map(|holding| {
            [
                format!("  {}", holding.holder),
                Bytes(holding.live_bytes).to_string(),
                count(holding.block_count),
                share(holding.live_bytes),
                gained(&holding.holder),
            ]
        })
        .collect();
    if let Some(rest) = holders.list.get(rows..).filter(|rest| !rest.is_empty()) {
        let bytes = rest.iter().fold(0, |sum: u64, holding| sum.saturating_add(holding.live_bytes));
        let blocks = rest.iter().map(|holding| holding.block_count).sum();
        let name = format!("  {} others", rest.len());
        cells.push([name, Bytes(bytes).to_string(), count(blocks), share(bytes), String::new()]);
    }
    if holders.pending_bytes > 0 {
        let pending = "  (freed, in use by another stream)".to_string();
        cells.push([
            pending,
            Bytes(holders.pending_bytes).to_string(),
            String::new(),
            String::new(),
            String::new(),
        ]);
    }
    if cells.is_empty() {
        return "  nothing\n".into();
    }
    let grows = if grown.is_empty() { "" } else { "growing" };
    table::render(["  holder", "live", "blocks", "share", grows], &cells)
}

/// `1 request`, `12 requests`.
pub(crate) fn counted(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{} {one}s", count(number)) }
}

/// The number of requests for memory, those included that the recorded program was refused.
pub(crate) fn request_count(trace: &Trace, event_count: usize) -> u64 {
    let is_request = |event: &&Event| matches!(event, Event::Alloc { .. } | Event::Refused { .. });
    trace.events()[..event_count].iter().filter(is_request).count() as u64
}

/// The bytes and the holder of a request.
pub(crate) fn request(trace: &Trace, event: usize) -> String {
    let size_bytes = match trace.events()[event] {
        Event::Alloc { size_bytes, .. } | Event::Refused { size_bytes, .. } => size_bytes,
        _ => 0,
    };
    let tag = trace.origin(event).tag.and_then(|tag| trace.tags()[tag as usize].tag.as_deref());
    match tag {
        Some(tag) => format!("{} for {}", Bytes(size_bytes), named(&HolderName::Tag(tag.into()))),
        None => Bytes(size_bytes).to_string(),
    }
}

/// Shorter times give no useful rate.
pub(crate) const RATE_NS_MIN: u64 = 100_000_000;

//! Events for <https://ui.perfetto.dev> and `chrome://tracing`: a counter for each tag, and a slice for each refusal.

use super::series::Series;
use gpumem_trace::{Event, Trace};
use serde_json::{Value, json};
use std::io::{self, Write};

pub(super) fn write(trace: &Trace, output: &mut dyn Write) -> io::Result<()> {
    let series = Series::of(trace, TAG_COUNT_MAX);
    let process = json!({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": trace.name()}});
    write!(output, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{process}")?;
    let thread =
        json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "refused requests"}});
    write!(output, ",\n{thread}")?;
    counters(trace, &series, output)?;
    let mut events: Vec<Value> = Vec::new();
    for (event, bytes) in trace.reserved() {
        events.push(counter("reserved", at(trace, *event), *bytes));
    }
    if let Some(limit) = trace.real_run().settings().and_then(|settings| settings.hard_limit_bytes) {
        let last = trace.events().len().saturating_sub(1);
        events.extend([0, last].map(|event| counter("limit", at(trace, event), limit)));
    }
    for (index, event) in trace.events().iter().enumerate() {
        if let Event::Refused { stream, size_bytes } = event {
            let holder = series.group(index).map(|group| &*series.names[group]);
            events.push(
                json!({"name": "refused", "ph": "X", "pid": 1, "tid": 1, "ts": at(trace, index), "dur": 1,
                "args": {"bytes": size_bytes, "stream": stream, "holder": holder}}),
            );
        }
    }
    events.iter().try_for_each(|event| write!(output, ",\n{event}"))?;
    let unit = if has_times(trace) { "microseconds" } else { "event numbers: the record has no times" };
    writeln!(output, "\n],\"otherData\":{}}}", json!({"ts": unit, "notes": trace.disagreements()}))
}

/// Writes the counters. A long trace is divided into windows, each with the highest value of each counter.
fn counters(trace: &Trace, series: &Series<'_>, output: &mut dyn Write) -> io::Result<()> {
    let window_events = trace.events().len().div_ceil(WINDOW_COUNT_MAX).max(1);
    let mut window = Window::new(series.names.len() + 1);
    let mut written = Ok(());
    let last = trace.events().len().saturating_sub(1);
    series.walk(|event, live, changed| {
        window.note(
            live.len(),
            live.iter().fold(0, |sum, bytes| bytes.saturating_add(sum)),
            changed.is_some(),
        );
        if let Some(group) = changed {
            window.note(group, live[group], true);
        }
        if (event + 1) % window_events == 0 || event == last {
            let ts = at(trace, event + 1 - (event % window_events + 1));
            for (group, bytes) in window.take() {
                let name = series.names.get(group).map_or("live", |name| name);
                let event = counter(name, ts, bytes);
                if written.is_ok() {
                    written = write!(output, ",\n{event}");
                }
            }
        }
    });
    written
}

/// The highest value of each counter that changed.
struct Window {
    highest: Vec<Option<u64>>,
    changed: Vec<usize>,
}

impl Window {
    fn new(count: usize) -> Self {
        Self { highest: vec![None; count], changed: Vec::new() }
    }

    fn note(&mut self, group: usize, bytes: u64, is_changed: bool) {
        if !is_changed {
            return;
        }
        if self.highest[group].is_none() {
            self.changed.push(group);
        }
        self.highest[group] = self.highest[group].max(Some(bytes));
    }

    fn take(&mut self) -> Vec<(usize, u64)> {
        let Self { highest, changed } = self;
        changed.drain(..).filter_map(|group| highest[group].take().map(|bytes| (group, bytes))).collect()
    }
}

fn counter(name: &str, ts: f64, bytes: u64) -> Value {
    json!({"name": name, "ph": "C", "pid": 1, "ts": ts, "args": {"bytes": bytes}})
}

fn has_times(trace: &Trace) -> bool {
    trace.time_ns(0).is_some()
}

/// Microseconds, or the number of the event.
fn at(trace: &Trace, event: usize) -> f64 {
    let last = trace.events().len().saturating_sub(1);
    trace.time_ns(event.min(last)).map_or(event as f64, |ns| ns as f64 / 1e3)
}

const TAG_COUNT_MAX: usize = 30;
const WINDOW_COUNT_MAX: usize = 500_000;

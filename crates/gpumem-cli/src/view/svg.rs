//! A picture of the memory over time by tag, for a page or an issue: light and dark, as the reader's system.

use super::page::escaped;
use super::series::Series;
use core::fmt::Write;
use gpumem_trace::pool::Bytes;
use gpumem_trace::{Event, Trace};

/// The picture. Each column of it shows the moment with the most memory among its events, so no peak is lost.
pub(super) fn picture(trace: &Trace) -> String {
    let series = Series::of(trace, COLOR_COUNT);
    let columns = columns(trace, &series);
    let most = columns.iter().map(|column| sum(column)).max().unwrap_or(0);
    let limit = trace.real_run().settings().and_then(|settings| settings.hard_limit_bytes);
    let limit = limit.filter(|limit| *limit <= most.saturating_mul(2));
    let top = most.max(limit.unwrap_or(0)).max(1) as f64 * 1.05;
    let y = |bytes: u64| TOP + HEIGHT * (1.0 - bytes as f64 / top);
    let mut svg = head(trace);
    for step in grid(top) {
        let y = y(step);
        _ = write!(
            svg,
            "<path class=\"g\" d=\"M{LEFT} {y:.1}H{}\"/><text class=\"m\" text-anchor=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT + WIDTH,
            LEFT - 8.0,
            y + 4.0,
            if step == 0 { "0".into() } else { rounded(step) }
        );
    }
    for group in 0..series.names.len() {
        let is_other = group >= COLOR_COUNT;
        let class = if is_other { "o".into() } else { format!("c{group}") };
        _ = write!(svg, "<path class=\"{class}\" d=\"{}\"/>", area(&columns, group, y));
    }
    for (index, _) in trace
        .events()
        .iter()
        .enumerate()
        .filter(|(_, event)| matches!(event, Event::Refused { .. }))
        .take(REFUSAL_COUNT_MAX)
    {
        let x = LEFT + WIDTH * share(trace, index);
        _ = write!(svg, "<path class=\"b\" d=\"M{x:.1} {TOP}V{}\"/>", TOP + HEIGHT);
    }
    if let Some(limit) = limit {
        let y = y(limit);
        _ = write!(
            svg,
            "<path class=\"b d\" d=\"M{LEFT} {y:.1}H{}\"/><text class=\"bt\" x=\"{}\" y=\"{:.1}\">limit {}</text>",
            LEFT + WIDTH,
            LEFT + 6.0,
            y - 5.0,
            Bytes(limit)
        );
    }
    axis(trace, &mut svg);
    legend(&series, &mut svg);
    svg.push_str("</svg>\n");
    svg
}

fn head(trace: &Trace) -> String {
    let peak = Bytes(trace.peaks().live_bytes);
    let name = escaped(trace.name());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 400\" role=\"img\" aria-label=\"{name}: memory over time, at most {peak}\">\n\
         <style>{STYLE}</style>\n<rect class=\"s\" width=\"960\" height=\"400\" rx=\"8\"/>\
         <text class=\"h\" x=\"16\" y=\"26\">{name}</text><text class=\"m\" text-anchor=\"end\" x=\"944\" y=\"26\">peak {peak}</text>\n"
    )
}

/// The live bytes of each group, in the columns of the picture.
fn columns(trace: &Trace, series: &Series<'_>) -> Vec<Vec<u64>> {
    let mut columns: Vec<Option<Vec<u64>>> = vec![None; COLUMN_COUNT];
    let mut last = vec![0; series.names.len()];
    series.walk(|event, live, _| {
        let column = ((share(trace, event) * COLUMN_COUNT as f64) as usize).min(COLUMN_COUNT - 1);
        // What a column begins with lasts until its first event.
        let most = columns[column].get_or_insert_with(|| last.clone());
        if sum(live) > sum(most) {
            most.copy_from_slice(live);
        }
        last.copy_from_slice(live);
    });
    let mut shown = vec![0; series.names.len()];
    let mut ends = ends(trace, series).into_iter();
    let filled = columns.into_iter().map(|column| {
        let end = ends.next().flatten();
        let now = column.unwrap_or_else(|| shown.clone());
        if let Some(end) = end {
            shown = end;
        }
        now
    });
    filled.collect()
}

/// The live bytes behind the last event of each column that has events.
fn ends(trace: &Trace, series: &Series<'_>) -> Vec<Option<Vec<u64>>> {
    let mut ends = vec![None; COLUMN_COUNT];
    series.walk(|event, live, _| {
        let column = ((share(trace, event) * COLUMN_COUNT as f64) as usize).min(COLUMN_COUNT - 1);
        let end: &mut Vec<u64> = ends[column].get_or_insert_with(|| live.to_vec());
        end.copy_from_slice(live);
    });
    ends
}

/// Where an event is in the picture, from 0 to 1.
fn share(trace: &Trace, event: usize) -> f64 {
    let last = trace.events().len().saturating_sub(1);
    match (trace.time_ns(event), trace.time_ns(last)) {
        (Some(now), Some(end @ 1..)) => now as f64 / end as f64,
        _ => event as f64 / last.max(1) as f64,
    }
}

/// The path of a group, on top of those before.
fn area(columns: &[Vec<u64>], group: usize, y: impl Fn(u64) -> f64) -> String {
    let step = WIDTH / columns.len() as f64;
    let edge = |column: &[u64], groups: usize| y(sum(&column[..groups]));
    let (mut path, mut last) = (String::new(), f64::NAN);
    for (index, column) in columns.iter().enumerate() {
        let (x, now) = (LEFT + step * index as f64, edge(column, group + 1));
        if now != last {
            let command = if index == 0 { "M" } else { "H" };
            _ = if index == 0 {
                write!(path, "{command}{x:.1} {now:.1}")
            } else {
                write!(path, "{command}{x:.1}V{now:.1}")
            };
            last = now;
        }
    }
    _ = write!(path, "H{:.1}", LEFT + WIDTH);
    last = f64::NAN;
    for (index, column) in columns.iter().enumerate().rev() {
        let (x, now) = (LEFT + step * (index + 1) as f64, edge(column, group));
        if now != last {
            _ = write!(path, "H{x:.1}V{now:.1}");
            last = now;
        }
    }
    path + &format!("H{LEFT}Z")
}

fn axis(trace: &Trace, svg: &mut String) {
    let last = trace.events().len().saturating_sub(1);
    let end = match trace.time_ns(last) {
        Some(ns @ 1..) if ns >= 1_000_000_000 => format!("{:.2} s", ns as f64 / 1e9),
        Some(ns @ 1..) => format!("{:.3} ms", ns as f64 / 1e6),
        _ => format!("{} events", trace.events().len()),
    };
    let y = TOP + HEIGHT + 18.0;
    _ = write!(
        svg,
        "<text class=\"m\" x=\"{LEFT}\" y=\"{y}\">0</text><text class=\"m\" text-anchor=\"end\" x=\"{}\" y=\"{y}\">{end}</text>",
        LEFT + WIDTH
    );
}

fn legend(series: &Series<'_>, svg: &mut String) {
    for (group, name) in series.names.iter().enumerate() {
        let (x, y) = (LEFT + 292.0 * (group % 3) as f64, TOP + HEIGHT + 44.0 + 20.0 * (group / 3) as f64);
        let class = if group >= COLOR_COUNT { "o".into() } else { format!("c{group}") };
        let short: String = if name.chars().count() > NAME_CHARS_MAX {
            name.chars().take(NAME_CHARS_MAX - 1).chain(['…']).collect()
        } else {
            name.clone()
        };
        let peak =
            if series.peaks[group] > 0 { format!(" {}", Bytes(series.peaks[group])) } else { String::new() };
        _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\" rx=\"2\"/><text x=\"{}\" y=\"{y}\">{}<tspan class=\"m\">{peak}</tspan></text>",
            y - 9.0,
            x + 16.0,
            escaped(&short)
        );
    }
}

/// Lines at whole multiples of a power of two.
fn grid(top: f64) -> impl Iterator<Item = u64> {
    let step = (0..62).map(|power| 1_u64 << power).find(|step| *step as f64 * 5.0 >= top).unwrap_or(1 << 62);
    (0..6).map(move |line| step.saturating_mul(line)).filter(move |bytes| *bytes as f64 <= top)
}

fn rounded(bytes: u64) -> String {
    Bytes(bytes).to_string().replace(".000", "")
}

fn sum(bytes: &[u64]) -> u64 {
    bytes.iter().fold(0, |sum, bytes| bytes.saturating_add(sum))
}

const COLOR_COUNT: usize = 8;
const COLUMN_COUNT: usize = 440;
const REFUSAL_COUNT_MAX: usize = 200;
const NAME_CHARS_MAX: usize = 26;
const LEFT: f64 = 76.0;
const TOP: f64 = 44.0;
const WIDTH: f64 = 868.0;
const HEIGHT: f64 = 262.0;
const STYLE: &str = "\
text{font:12.5px system-ui,sans-serif;fill:#0b0b0b}.h{font-size:15px;font-weight:600}.m{fill:#6f6d68}.s{fill:#fcfcfb}.g{stroke:#e1e0d9}\
.b{stroke:#c22f2f;stroke-width:1.5;fill:none}.d{stroke-dasharray:6 4}.bt{fill:#c22f2f}.o{fill:#b9b7ae}\
.c0{fill:#2a78d6}.c1{fill:#1baf7a}.c2{fill:#eda100}.c3{fill:#008300}.c4{fill:#4a3aa7}.c5{fill:#e34948}.c6{fill:#e87ba4}.c7{fill:#eb6834}\
@media (prefers-color-scheme:dark){text{fill:#fff}.m{fill:#98968f}.s{fill:#1a1a19}.g{stroke:#2c2c2a}.b{stroke:#f07575}.bt{fill:#f07575}\
.o{fill:#5d5b55}.c0{fill:#3987e5}.c1{fill:#199e70}.c2{fill:#c98500}.c3{fill:#2e9b2e}.c4{fill:#9085e9}.c5{fill:#e66767}.c6{fill:#d55181}\
.c7{fill:#d95926}}";

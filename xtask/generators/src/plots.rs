//! `cargo xtask plots`: draws the plots of `docs/plots` from the recorded runs in `docs/runs`.
//!
//! The output depends on these files alone, so a check draws each plot in memory and compares it with the file that is
//! checked in. A point of gpumem is the figure of the newest run that has it; a peer's point is the best figure of all runs. A
//! point that no run has is missing in the plot. A plot has no background; a style sheet in it has a second set of colours for dark pages
//! ([`DARK`]).

use crate::runs::{Origin, Run};
use crate::workspace::root;
use anyhow::{Context, Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;

/// A plot: its image, and the function that draws it.
struct Plot {
    image: &'static str,
    draw: fn(&[Run]) -> Result<String>,
}

const PLOTS: [Plot; 1] =
    [Plot { image: "docs/plots/pair-latency.svg", draw: |runs| pair_latency(&latencies(runs)?) }];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the checked-in files and fail on any difference
    #[arg(long)]
    check: bool,
}

/// The folder of the recorded runs, from the root of the repository.
const RUNS: &str = "docs/runs";

/// Draws every plot and writes it, or fails if a checked-in one differs.
pub(crate) fn run(args: Args) -> Result<()> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(root().join(RUNS)).context(RUNS)? {
        let entry = entry?;
        let path = format!("{}/{}", RUNS, entry.file_name().to_string_lossy());
        files.insert(path, std::fs::read_to_string(entry.path())?);
    }
    if args.check {
        for plot in &PLOTS {
            files.insert(plot.image.to_string(), std::fs::read_to_string(root().join(plot.image))?);
        }
        let stale: Vec<_> = stale(&files).iter().map(|(path, what)| format!("{path}: {what}")).collect();
        ensure!(
            stale.is_empty(),
            "{}; run `cargo xtask plots`, or correct the file of the run",
            stale.join("; ")
        );
        return Ok(());
    }
    let runs = recorded(&files)?;
    for plot in &PLOTS {
        let image = (plot.draw)(&runs).with_context(|| plot.image.to_string())?;
        std::fs::write(root().join(plot.image), image).with_context(|| plot.image.to_string())?;
        println!("{}", plot.image);
    }
    Ok(())
}

/// The plots among the repository's `files` that differ from the recorded runs: the path of each, and the problem.
pub(crate) fn stale(files: &BTreeMap<String, String>) -> Vec<(&'static str, String)> {
    let runs = match recorded(files) {
        Ok(runs) => runs,
        Err(error) => return vec![(RUNS, format!("{error:#}"))],
    };
    let stale = |plot: &Plot| {
        let checked_in = files.get(plot.image)?;
        match (plot.draw)(&runs) {
            Ok(image) if *checked_in == image => None,
            Ok(_) => Some((plot.image, format!("the plot differs from the runs in {}", RUNS))),
            Err(error) => Some((plot.image, format!("the plot cannot be drawn: {error:#}"))),
        }
    };
    PLOTS.iter().filter_map(stale).collect()
}

/// The recorded runs, oldest first.
fn recorded(files: &BTreeMap<String, String>) -> Result<Vec<Run>> {
    let files =
        files.iter().filter(|(path, _)| path.strip_prefix(RUNS).is_some_and(|name| name.ends_with(".jsonl")));
    let mut runs = Vec::new();
    for (path, text) in files {
        runs.push(Run::parse(text).with_context(|| path.clone())?);
    }
    runs.sort_by(|a, b| a.origin.date.cmp(&b.origin.date));
    Ok(runs)
}

/// A point of a plot.
#[derive(Debug, PartialEq)]
struct Row {
    series: &'static str,
    /// The thread count or the trace.
    at: String,
    value: f64,
    /// The device that it was measured on.
    device: String,
}

/// A series: its name in the plot, and the peer whose figures it has; `None` for gpumem.
type Series = (&'static str, Option<&'static str>);

/// The point of a series for a bench, if a run has it.
fn point(runs: &[Run], (series, peer): Series, bench: &str, unit: &str, at: &str) -> Result<Option<Row>> {
    let mut found: Option<Row> = None;
    for run in runs {
        for figure in
            run.figures.iter().filter(|figure| figure.bench == bench && figure.peer.as_deref() == peer)
        {
            ensure!(figure.unit == unit, "{bench} is in {}, not in {unit}", figure.unit);
            ensure!(figure.value > 0.0, "{bench} is {}, which is not positive", figure.value);
            let is_better = found.as_ref().is_none_or(|found| figure.value < found.value);
            if peer.is_none() || is_better {
                let device = device(&run.origin).to_string();
                found = Some(Row { series, at: at.to_string(), value: figure.value, device });
            }
        }
    }
    Ok(found)
}

/// A pair of 1 MiB, by thread count.
fn latencies(runs: &[Run]) -> Result<Vec<Row>> {
    const SERIES: [Series; 6] = [
        ("gpumem", None),
        ("RMM arena", Some("RMM arena")),
        ("RMM pool", Some("RMM pool")),
        ("driver (cuMemAllocAsync)", Some("cuMemAllocAsync")),
        ("PyTorch", Some("PyTorch")),
        ("cudarc", Some("cudarc")),
    ];
    let mut rows = Vec::new();
    for series in SERIES {
        for threads in [1, 2, 4, 8, 16] {
            // The bench's own figure of one thread is a minimum; of several threads it has the mean.
            let mean = if series.1.is_none() && threads == 1 { "_mean" } else { "" };
            let bench = format!("pool/pair_1MiB{mean}/{threads}");
            rows.extend(point(runs, series, &bench, "ns", &threads.to_string())?);
        }
    }
    Ok(rows)
}

/// The name of a run's device.
fn device(origin: &Origin) -> &str {
    origin.machine.split(" (").next().unwrap_or_default()
}

/// The devices of the points, for the line below a title.
fn devices(rows: &[Row]) -> String {
    distinct(rows, |row| &row.device).join(", ")
}

/// The distinct values of a column, in the order in which they first appear.
fn distinct(rows: &[Row], column: fn(&Row) -> &str) -> Vec<&str> {
    let mut seen = Vec::new();
    for row in rows {
        if !seen.contains(&column(row)) {
            seen.push(column(row));
        }
    }
    seen
}

const WIDTH: u32 = 860;
const HEIGHT: u32 = 430;
const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const GRID: RGBColor = RGBColor(0xd8, 0xdd, 0xe3);
const MUTED: RGBColor = RGBColor(0x57, 0x60, 0x6a);

/// The colours of Okabe and Ito, which people with colour blindness can tell apart too. gpumem's comes first.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x80, 0x80, 0x80),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
];

/// The colours that a dark page needs in place of those of a light one. A sheet wins over the attributes that plotters writes.
const DARK: [(RGBColor, RGBColor); 4] = [
    (INK, RGBColor(0xe6, 0xed, 0xf3)),
    (MUTED, RGBColor(0xa6, 0xb0, 0xba)),
    (GRID, RGBColor(0x3d, 0x44, 0x4d)),
    // gpumem's blue, which is dim on black.
    (COLOURS[0], RGBColor(0x3f, 0xa7, 0xe6)),
];

/// The style sheet of an image.
fn style() -> String {
    let hex = |RGBColor(red, green, blue): RGBColor| format!("#{red:02X}{green:02X}{blue:02X}");
    let rule = |(light, dark): (RGBColor, RGBColor)| {
        let (light, dark) = (hex(light), hex(dark));
        format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
    };
    format!("<style>@media(prefers-color-scheme:dark){{{}}}</style>\n", DARK.map(rule).concat())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An image with a title, and the drawing of `draw` below it.
fn image(title: &str, subtitle: &str, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        text(&root, title, (20, 16), 18, INK)?;
        text(&root, subtitle, (20, 42), 13, MUTED)?;
        let (_, below) = root.split_vertically(64);
        draw(&below)?;
        root.present().map_err(failed)?;
    }
    // Screen readers announce the title; plotters has no way to set it, and none for a style sheet.
    let end = svg.find(">\n").map(|end| end + 2).context("the backend wrote no SVG element")?;
    svg.insert_str(end, &format!("<title>{title}. {subtitle}</title>\n{}", style()));
    Ok(svg)
}

fn text(area: &Area<'_>, text: &str, at: (i32, i32), size: u32, colour: RGBColor) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(&colour).pos(Pos::new(HPos::Left, VPos::Top));
    area.draw(&Text::new(text.to_string(), at, style)).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

/// Latency over threads, both axes logarithmic, a line for each series.
fn pair_latency(rows: &[Row]) -> Result<String> {
    let threads = |row: &Row| {
        row.at.parse::<u32>().ok().filter(|threads| *threads > 0).context("the thread count is not a number")
    };
    let points: Vec<(&str, f64, f64)> = rows
        .iter()
        .map(|row| Ok((row.series, f64::from(threads(row)?).log2(), row.value)))
        .collect::<Result<_>>()?;
    let title = "Latency of one allocation and its free, 1 MiB";
    let subtitle = format!("one stream a thread; {}; logarithmic scale, lower is better", devices(rows));
    image(title, &subtitle, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_left(12)
            .margin_right(190)
            .margin_bottom(10)
            .x_label_area_size(44)
            .y_label_area_size(62)
            .build_cartesian_2d(-0.08..4.08, (5.0..100_000.0).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(MUTED)
            .label_style(("sans-serif", 13).into_font().color(&INK))
            .x_labels(5)
            .x_label_formatter(&|power: &f64| format!("{:.0}", power.exp2()))
            .x_desc("threads")
            .y_label_formatter(&|nanoseconds: &f64| duration(*nanoseconds))
            .draw()
            .map_err(failed)?;
        let mut ends = Vec::new();
        for (name, colour) in distinct(rows, |row| row.series).into_iter().zip(COLOURS) {
            let width = if name == "gpumem" { 4 } else { 2 };
            let line: Vec<(f64, f64)> =
                points.iter().filter(|point| point.0 == name).map(|point| (point.1, point.2)).collect();
            let stroke = colour.stroke_width(width);
            chart.draw_series([PathElement::new(line.clone(), stroke)]).map_err(failed)?;
            let dots = line.iter().map(|point| Circle::new(*point, width + 1, colour.filled()));
            chart.draw_series(dots).map_err(failed)?;
            let last = *line.last().context("a series without figures")?;
            ends.push(End {
                name,
                colour,
                threads: last.0.exp2(),
                value: last.1,
                y: chart.backend_coord(&last).1,
            });
        }
        legend(area, &mut ends)
    })
}

/// The last figure of a series.
struct End<'a> {
    name: &'a str,
    colour: RGBColor,
    threads: f64,
    value: f64,
    /// Its pixel.
    y: i32,
}

/// The names of the series beside the plot, in the order of their last figures, with the last figure of each.
fn legend(area: &Area<'_>, ends: &mut [End<'_>]) -> Result<()> {
    ends.sort_by_key(|end| end.y);
    let left = WIDTH as i32 - 176;
    let top = area.get_base_pixel().1;
    let mut free = 0;
    for end in ends {
        let y = (end.y - top - 9).max(free);
        free = y + 38;
        area.draw(&Circle::new((left, y + 8), 5, end.colour.filled())).map_err(failed)?;
        text(area, end.name, (left + 12, y), 14, INK)?;
        let value = format!("{} with {:.0} threads", duration(end.value), end.threads);
        text(area, &value, (left + 12, y + 17), 12, MUTED)?;
    }
    Ok(())
}

/// A duration in nanoseconds, to its significant digits.
fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        long if long >= 9_999.5 => format!("{:.0} µs", long / 1_000.0),
        medium if medium >= 999.5 => format!("{} µs", (medium / 100.0).round() / 10.0),
        short => format!("{short:.0} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        r#"{"date":"2026-01-01","machine":"NVIDIA H200 (1 MiB); 16 cores","command":"cargo xtask bench"}"#;

    fn run_of(rows: &[&str]) -> String {
        [&[HEAD], rows].concat().join("\n") + "\n"
    }

    #[test]
    fn gpumem_has_its_newest_figure_and_a_peer_its_best() {
        let row = |value: u32, peer: &str| {
            format!(r#"{{"bench":"pool/pair_1MiB/2","value":{value},"unit":"ns"{peer}}}"#)
        };
        let peer = r#","peer":"PyTorch""#;
        let old = run_of(&[&row(9, ""), &row(300, peer)]);
        let new = run_of(&[&row(11, ""), &row(400, peer)]).replace("2026-01-01", "2026-01-02");
        let files =
            BTreeMap::from([("docs/runs/b.jsonl".to_string(), old), ("docs/runs/a.jsonl".to_string(), new)]);
        let rows = latencies(&recorded(&files).unwrap()).unwrap();
        let device = || "NVIDIA H200".to_string();
        let expected = [
            Row { series: "gpumem", at: "2".into(), value: 11.0, device: device() },
            Row { series: "PyTorch", at: "2".into(), value: 300.0, device: device() },
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_plot_that_differs_from_the_runs_is_found() {
        let own = r#"{"bench":"pool/pair_1MiB/2","value":13,"unit":"ns"}"#;
        let peer = r#"{"bench":"pool/pair_1MiB/4","value":400,"unit":"ns","peer":"PyTorch"}"#;
        let path = "docs/runs/a.jsonl".to_string();
        let mut files = BTreeMap::from([(path.clone(), run_of(&[own, peer]))]);
        let image = (PLOTS[0].draw)(&recorded(&files).unwrap()).unwrap();
        assert_eq!(image, (PLOTS[0].draw)(&recorded(&files).unwrap()).unwrap());
        files.insert(PLOTS[0].image.into(), image);
        assert_eq!(stale(&files), []);
        files.insert(path.clone(), run_of(&[own, &peer.replace("400", "500")]));
        assert!(stale(&files)[0].1.contains("differs"));
        files.insert(path.clone(), run_of(&[own, &peer.replace("ns", "ms")]));
        assert!(stale(&files)[0].1.contains("pool/pair_1MiB/4 is in ms, not in ns"));
        files.insert(path, run_of(&[own, &peer.replace("400", "\"none\"")]));
        assert!(stale(&files)[0].1.contains("line 3"), "{:?}", stale(&files));
    }

    #[test]
    fn durations_are_short() {
        assert_eq!([12.1, 999.0, 3171.0, 60_873.0].map(duration), ["12 ns", "999 ns", "3.2 µs", "61 µs"]);
    }

    #[test]
    fn a_plot_is_legible_on_light_and_dark_pages() {
        let luminance = |RGBColor(red, green, blue): RGBColor| {
            let linear = |part: u8| match f64::from(part) / 255.0 {
                dim if dim <= 0.04045 => dim / 12.92,
                bright => ((bright + 0.055) / 1.055).powf(2.4),
            };
            0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
        };
        let contrast = |one: RGBColor, other: RGBColor| {
            let (one, other) = (luminance(one), luminance(other));
            (one.max(other) + 0.05) / (one.min(other) + 0.05)
        };
        let page = RGBColor(0x0d, 0x11, 0x17);
        for (light, dark) in DARK.into_iter().filter(|(light, _)| *light != GRID) {
            assert!(contrast(light, WHITE) >= 4.5 && contrast(dark, page) >= 4.5, "{light:?} and {dark:?}");
        }
        for colour in COLOURS.into_iter().skip(1) {
            assert!(contrast(colour, page) >= 3.0, "{colour:?}");
        }
        let row = r#"{"bench":"pool/pair_1MiB/2","value":13,"unit":"ns"}"#;
        let files = BTreeMap::from([("docs/runs/a.jsonl".to_string(), run_of(&[row]))]);
        let image = (PLOTS[0].draw)(&recorded(&files).unwrap()).unwrap();
        assert!(image.contains("prefers-color-scheme:dark") && !image.contains("#FFFFFF"), "{image}");
        // Text is never black, the colour that the sheet does not replace.
        assert!(!image.contains("#000000"), "{image}");
    }
}

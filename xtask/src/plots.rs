//! `cargo xtask plots`: draws the README's plots from the figures in `docs/plots/*.csv`.
//!
//! A data file has one figure a row, with the machine, the date, the bench and the source of that figure. The output depends
//! on the data alone, so `cargo xtask tidy` draws each plot in memory and compares it with the file that is checked in. A plot
//! has a white card as its background, so that it is legible on light and dark pages.

use crate::tidy::Finding;
use anyhow::{Context, Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;

/// A plot: its data file, its image, and the function that draws one from the other.
struct Plot {
    data: &'static str,
    image: &'static str,
    draw: fn(&[Row]) -> Result<String>,
}

const PLOTS: [Plot; 2] = [
    Plot { data: "docs/plots/pair-latency.csv", image: "docs/plots/pair-latency.svg", draw: pair_latency },
    Plot { data: "docs/plots/trace-memory.csv", image: "docs/plots/trace-memory.svg", draw: trace_memory },
];

/// Draws every plot and writes it.
pub(crate) fn run() -> Result<()> {
    for plot in &PLOTS {
        let path = crate::root().join(plot.data);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let image = plot.render(&text)?;
        std::fs::write(crate::root().join(plot.image), image).with_context(|| plot.image.to_string())?;
        println!("{}", plot.image);
    }
    Ok(())
}

/// Checks that the plots among the repository's `files` agree with their data.
pub(crate) fn check(files: &BTreeMap<String, String>) -> Vec<Finding> {
    let stale = |plot: &Plot| {
        let finding = |what: String| Some(Finding::new(plot.image, 1, what, "run `cargo xtask plots`"));
        match plot.render(files.get(plot.data)?) {
            Ok(image) if files.get(plot.image) == Some(&image) => None,
            Ok(_) => finding(format!("the plot differs from its data in {}", plot.data)),
            Err(error) => finding(format!("the plot cannot be drawn: {error:#}")),
        }
    };
    PLOTS.iter().filter_map(stale).collect()
}

impl Plot {
    fn render(&self, data: &str) -> Result<String> {
        let rows = rows(data).with_context(|| self.data.to_string())?;
        (self.draw)(&rows).with_context(|| self.image.to_string())
    }
}

/// One figure of a data file.
#[derive(Debug, PartialEq)]
struct Row {
    series: String,
    /// The thread count or the trace.
    at: String,
    value: f64,
}

/// The columns after the first two: `value` and its origin.
const COLUMNS: [&str; 6] = ["value", "unit", "machine", "date", "bench", "source"];

/// The rows of a data file. Lines that begin with `#` are comments; the first other line names the columns.
fn rows(text: &str) -> Result<Vec<Row>> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    let (_, names) = lines.next().context("no line names the columns")?;
    let is_known = names.split(',').skip(2).eq(COLUMNS);
    ensure!(is_known, "the columns after the second must be {}", COLUMNS.join(","));
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        ensure!(
            fields.len() == COLUMNS.len() + 2,
            "{} fields instead of {}",
            fields.len(),
            COLUMNS.len() + 2
        );
        ensure!(fields.iter().all(|field| !field.trim().is_empty()), "a field is empty");
        let value: f64 = fields[2].parse().with_context(|| format!("{:?} is not a number", fields[2]))?;
        ensure!(value.is_finite() && value > 0.0, "{value} is not a positive number");
        Ok(Row { series: fields[0].into(), at: fields[1].into(), value })
    };
    lines.map(|(index, line)| row(line).with_context(|| format!("line {}", index + 1))).collect()
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

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An image with a title, and the drawing of `draw` below it.
fn image(title: &str, subtitle: &str, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let frame = [(0, 0), (WIDTH as i32 - 1, HEIGHT as i32 - 1)];
        root.draw(&Rectangle::new(frame, GRID.stroke_width(1))).map_err(failed)?;
        text(&root, title, (20, 16), 18, INK, HPos::Left)?;
        text(&root, subtitle, (20, 42), 13, MUTED, HPos::Left)?;
        let (_, below) = root.split_vertically(64);
        draw(&below)?;
        root.present().map_err(failed)?;
    }
    // Screen readers announce the title; plotters has no way to set it.
    let end = svg.find(">\n").map(|end| end + 2).context("the backend wrote no SVG element")?;
    svg.insert_str(end, &format!("<title>{title}. {subtitle}</title>\n"));
    Ok(svg)
}

fn text(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: u32,
    colour: RGBColor,
    anchor: HPos,
) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(&colour).pos(Pos::new(anchor, VPos::Top));
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
        .map(|row| Ok((row.series.as_str(), f64::from(threads(row)?).log2(), row.value)))
        .collect::<Result<_>>()?;
    let title = "Latency of one allocation and its free, 1 MiB";
    let subtitle = "one stream a thread; NVIDIA H200; logarithmic scale, lower is better";
    image(title, subtitle, |area| {
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
        for (name, colour) in distinct(rows, |row| &row.series).into_iter().zip(COLOURS) {
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
        text(area, end.name, (left + 12, y), 14, INK, HPos::Left)?;
        let value = format!("{} with {:.0} threads", duration(end.value), end.threads);
        text(area, &value, (left + 12, y + 17), 12, MUTED, HPos::Left)?;
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

/// A group of bars for each trace, one bar for each series. Bars start at 1, the minimum of any allocator.
fn trace_memory(rows: &[Row]) -> Result<String> {
    let series = distinct(rows, |row| &row.series);
    let traces = distinct(rows, |row| &row.at);
    let title = "Memory reserved for each byte that is live, at the peak";
    let subtitle = "six recorded traces of PyTorch programs; NVIDIA H200; lower is better, 1.00 is the least possible on one stream";
    image(title, subtitle, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_left(12)
            .margin_right(20)
            .margin_bottom(48)
            .margin_top(30)
            .y_label_area_size(44)
            .build_cartesian_2d(0.0..traces.len() as f64, 1.0..4.2)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(MUTED)
            .label_style(("sans-serif", 13).into_font().color(&INK))
            .y_labels(7)
            .y_label_formatter(&|ratio: &f64| format!("{ratio:.1}"))
            .draw()
            .map_err(failed)?;
        let top = area.get_base_pixel().1;
        let width = 0.86 / series.len() as f64;
        for row in rows {
            let group = traces.iter().position(|trace| *trace == row.at).unwrap_or_default() as f64;
            let place = series.iter().position(|name| *name == row.series).unwrap_or_default();
            let left = group + 0.07 + place as f64 * width;
            let colour = BAR_COLOURS[place % BAR_COLOURS.len()];
            let bar = Rectangle::new([(left, 1.0), (left + width * 0.92, row.value)], colour.filled());
            chart.draw_series([bar]).map_err(failed)?;
            let (x, y) = chart.backend_coord(&(left + width * 0.46, row.value));
            let ink = if row.series == "gpumem" { INK } else { MUTED };
            text(area, &format!("{:.2}", row.value), (x, y - top - 14), 11, ink, HPos::Center)?;
        }
        for (index, trace) in traces.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(index as f64 + 0.5, 1.0));
            for (line, words) in two_lines(trace).iter().enumerate() {
                text(area, words, (x, y - top + 8 + 16 * line as i32), 13, INK, HPos::Center)?;
            }
        }
        let mut left = 30;
        for (name, colour) in series.iter().zip(BAR_COLOURS) {
            area.draw(&Rectangle::new([(left, 9), (left + 12, 21)], colour.filled())).map_err(failed)?;
            text(area, name, (left + 18, 7), 13, INK, HPos::Left)?;
            left += 46 + 7 * name.len() as i32;
        }
        Ok(())
    })
}

/// The colours of the bars: gpumem, expandable segments, the driver's pool, PyTorch; each series has its colour of the other
/// plot.
const BAR_COLOURS: [RGBColor; 4] = [COLOURS[0], COLOURS[5], COLOURS[3], COLOURS[4]];

/// A trace's name on two lines.
fn two_lines(name: &str) -> [String; 2] {
    let words: Vec<&str> = name.split('_').collect();
    let (first, second) = words.split_at(words.len().div_ceil(2));
    [first.join(" "), second.join(" ")]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# A comment.\nseries,threads,value,unit,machine,date,bench,source\n";

    #[test]
    fn a_row_has_a_figure_and_its_origin() {
        let rows_of = |row: &str| rows(&format!("{HEAD}{row}\n"));
        let row = Row { series: "a".into(), at: "1".into(), value: 12.5 };
        assert_eq!(rows_of("a,1,12.5,ns,m,2026-01-01,b,s").unwrap(), [row]);
        for broken in
            ["a,1,12.5,ns,m,2026-01-01,b", "a,1,fast,ns,m,d,b,s", "a,1,0,ns,m,d,b,s", "a,1,2,ns,,d,b,s"]
        {
            let error = format!("{:#}", rows_of(broken).unwrap_err());
            assert!(error.starts_with("line 3: "), "{broken}: {error}");
        }
        assert!(rows("series,threads,value\n").is_err());
    }

    #[test]
    fn a_plot_that_differs_from_its_data_is_found() {
        let data = format!("{HEAD}gpumem,1,12,ns,m,d,b,s\ngpumem,2,13,ns,m,d,b,s\nx,1,400,ns,m,d,b,s\n");
        let image = PLOTS[0].render(&data).unwrap();
        assert_eq!(image, PLOTS[0].render(&data).unwrap());
        let mut files =
            BTreeMap::from([(PLOTS[0].data.to_string(), data.clone()), (PLOTS[0].image.to_string(), image)]);
        assert_eq!(check(&files), []);
        files.insert(PLOTS[0].data.into(), data.replace("400", "500"));
        assert_eq!(check(&files).len(), 1);
        files.insert(PLOTS[0].data.into(), data.replace("400", "none"));
        assert!(check(&files)[0].to_string().contains("line 5: \"none\" is not a number"));
    }

    #[test]
    fn durations_are_short() {
        assert_eq!([12.1, 999.0, 3171.0, 60_873.0].map(duration), ["12 ns", "999 ns", "3.2 µs", "61 µs"]);
    }
}

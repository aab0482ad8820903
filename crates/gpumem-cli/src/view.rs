//! `gpumem view`: a page that shows a record, and pictures of it for other programs.

mod columns;
mod data;
mod page;
mod perfetto;
mod series;
mod svg;

use crate::describe::nothing_recorded;
use crate::input::{self, Input};
use crate::output::{self, Verdict};
use anyhow::{Context, Result, anyhow, ensure};
use gpumem_trace::pool::Bytes;
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::pool::trace::Recording;
use gpumem_trace::{Trace, snapshot};
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A recording, a flight record, a memory snapshot of PyTorch, a log of RMM, or a trace in text
    file: PathBuf,
    /// Where the page goes; FILE with `.html` by default, unless another kind of output is asked for
    #[arg(short, long, value_name = "HTML")]
    output: Option<PathBuf>,
    /// Write counters by tag and the refusals, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "JSON")]
    perfetto: Option<PathBuf>,
    /// Write a picture of the memory over time by tag
    #[arg(long, value_name = "SVG")]
    svg: Option<PathBuf>,
    /// Write a recording of gpumem as a memory snapshot of PyTorch, for pytorch.org/memory_viz
    #[arg(long, value_name = "PICKLE")]
    memory_viz: Option<PathBuf>,
    /// Print which files were written as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let trace = match input::read(&args.file)? {
        Input::Trace(trace) => *trace,
        Input::Text(text) => Trace::read_from(text.as_bytes(), &args.file)?,
    };
    ensure!(
        !trace.events().is_empty(),
        "{}: no event is recorded; {}",
        Shown::path(&args.file),
        nothing_recorded(&trace)
    );
    ensure!(
        args.file != Path::new("-") || args.output.is_some() || args.perfetto.is_some() || args.svg.is_some(),
        "name the file of the page with --output: the standard input has no name"
    );
    let page = args.output.clone().unwrap_or_else(|| page_beside(&args.file));
    for output in [Some(&page), args.perfetto.as_ref(), args.svg.as_ref(), args.memory_viz.as_ref()]
        .into_iter()
        .flatten()
    {
        ensure!(
            !is_same(output, &args.file),
            "{} is the record itself: name another file",
            Shown::path(output)
        );
    }
    let mut written = Vec::new();
    if let Some(path) = &args.perfetto {
        written.push(write(path, "perfetto", |output| perfetto::write(&trace, output))?);
    }
    if let Some(path) = &args.svg {
        written.push(write(path, "svg", |output| output.write_all(svg::picture(&trace).as_bytes()))?);
    }
    if let Some(path) = &args.memory_viz {
        let recording = Recording::read(&args.file).with_context(|| Shown::path(&args.file).to_string())?;
        written.push(write(path, "memory_viz", |mut output| snapshot(&recording, &mut output))?);
    }
    let is_page_wanted = args.output.is_some() || written.is_empty();
    if is_page_wanted {
        written.push(write(&page, "page", |output| page::write(&trace, &args.file, output))?);
    }
    if args.json {
        let files = written
            .iter()
            .map(|file| json!({"kind": file.kind, "file": file.path, "bytes": file.size_bytes}));
        let all = json!({"events": trace.events().len(), "written": files.collect::<Vec<_>>()});
        output::print(&format!("{all}\n"))?;
    } else {
        let line = |file: &Written| {
            let what = if file.kind == "page" { "open it in a browser" } else { file.kind };
            format!("{}: {} ({what})\n", Shown::path(&file.path), Bytes(file.size_bytes))
        };
        output::print(&written.iter().map(line).collect::<String>())?;
    }
    Ok(Verdict::Yes)
}

fn is_same(path: &Path, other: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| other.canonicalize().is_ok_and(|other| path == other))
}

struct Written {
    kind: &'static str,
    path: PathBuf,
    size_bytes: u64,
}

/// Writes a file.
fn write(
    path: &Path,
    kind: &'static str,
    content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<Written> {
    let failed =
        |error: std::io::Error| anyhow!("cannot write {}: {error}; name another file", Shown::path(path));
    let file = File::create(path).map_err(failed)?;
    let mut output = BufWriter::new(file);
    content(&mut output).map_err(failed)?;
    output.flush().map_err(failed)?;
    let size_bytes = output.get_ref().metadata().map_or(0, |metadata| metadata.len());
    Ok(Written { kind, path: path.into(), size_bytes })
}

/// `some/run.html` for `some/run.trace.gz`, in the same folder.
fn page_beside(file: &Path) -> PathBuf {
    let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let stem = name.split('.').find(|part| !part.is_empty()).unwrap_or("trace");
    let page = file.with_file_name(format!("{stem}.html"));
    if page == file { file.with_file_name(format!("{stem}.view.html")) } else { page }
}

#[cfg(test)]
mod tests;

//! Reads records: files, or what comes through a pipe, which can be read once only.

use crate::describe::request_count;
use crate::output::complain;
use anyhow::{Context, Result, bail, ensure};
use gpumem_trace::Trace;
use gpumem_trace::pool::sys::text::Shown;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What a file holds.
pub(crate) enum Input {
    Trace(Box<Trace>),
    /// No record, but text.
    Text(String),
}

/// Reads a file, a pipe, or the standard input for `-`.
pub(crate) fn read(path: &Path) -> Result<Input> {
    let context = || Shown::path(path).to_string();
    let is_stdin = path == Path::new("-");
    // The parts of a recording with a size limit are beside its file.
    if !is_stdin && path.metadata().with_context(context)?.is_file() {
        return match Trace::read(path) {
            Ok(trace) => Ok(Input::Trace(Box::new(trace))),
            Err(error) => match text(&start_of(path)?) {
                Some(_) => Ok(Input::Text(lossy(&whole(File::open(path)?, path)?))),
                None => bail!(error),
            },
        };
    }
    let bytes = if is_stdin {
        whole(std::io::stdin().lock(), path)?
    } else {
        whole(File::open(path).with_context(context)?, path)?
    };
    match Trace::read_from(&bytes[..], path) {
        Ok(trace) => Ok(Input::Trace(Box::new(trace))),
        Err(error) => match text(&bytes) {
            Some(_) => Ok(Input::Text(lossy(&bytes))),
            None => bail!(error),
        },
    }
}

/// Reads a record with requests, and says what is missing in it.
pub(crate) fn record(path: &Path) -> Result<Trace> {
    let trace = match read(path)? {
        Input::Trace(trace) => *trace,
        // Its error has the line.
        Input::Text(text) => Trace::read_from(text.as_bytes(), path)?,
    };
    let notes: Vec<String> =
        trace.disagreements().iter().map(|note| Shown::sentence(note).to_string()).collect();
    if request_count(&trace, trace.events().len()) == 0 {
        let why = if notes.is_empty() {
            "record the program from its beginning, with GPUMEM_TRACE=FILE".into()
        } else {
            notes.join("; ")
        };
        bail!("{}: no request is recorded; {why}", Shown::path(path));
    }
    notes.iter().for_each(|note| complain("warning", &format!("{}: {note}", Shown::path(path))));
    Ok(trace)
}

fn start_of(path: &Path) -> Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(START_BYTES).read_to_end(&mut start)?;
    Ok(start)
}

fn whole(source: impl Read, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source
        .take(INPUT_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(|| Shown::path(path).to_string())?;
    ensure!(
        bytes.len() as u64 <= INPUT_BYTES_MAX,
        "{}: more than 1 GiB of text or of a pipe: name the file of the record",
        Shown::path(path)
    );
    Ok(bytes)
}

/// The bytes, if they look like a text that is no trace in text.
fn text(bytes: &[u8]) -> Option<&[u8]> {
    let start = &bytes[..bytes.len().min(START_BYTES as usize)];
    let is_record = start.is_empty()
        || start.starts_with(b"#{")
        || start.starts_with(b"Thread,Time,")
        || start.contains(&0)
        || start.starts_with(b"GPUMEM");
    // A letter may be cut at the end.
    let is_utf8 = core::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true);
    (!is_record && is_utf8).then_some(start)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const START_BYTES: u64 = 4096;
const INPUT_BYTES_MAX: u64 = 1 << 30;

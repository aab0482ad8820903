//! Reads records: files, or what comes through a pipe, which can be read once only.

use crate::describe::{nothing_recorded, request_count};
use crate::output::complain;
use anyhow::{Context, Result, bail, ensure};
use flate2::bufread::MultiGzDecoder;
use gpumem_trace::Trace;
use gpumem_trace::pool::sys::text::Shown;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// The content of a file.
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
    let (read, bytes) = if !is_stdin && path.metadata().with_context(context)?.is_file() {
        (Trace::read(path), None)
    } else {
        let source: Box<dyn Read> = if is_stdin {
            Box::new(std::io::stdin().lock())
        } else {
            Box::new(File::open(path).with_context(context)?)
        };
        let mut bytes = Vec::new();
        source.take(PIPE_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(context)?;
        ensure!(
            bytes.len() as u64 <= PIPE_BYTES_MAX,
            "{}: more than 4 GiB through a pipe: name the file of the record",
            Shown::path(path)
        );
        (Trace::read_from(&bytes[..], path), Some(bytes))
    };
    let error = match read {
        Ok(trace) => return Ok(Input::Trace(Box::new(trace))),
        Err(error) => error,
    };
    let bytes = bytes.map_or_else(|| end_of(path), Ok)?;
    if is_record(&bytes) {
        Err(error.into())
    } else {
        Ok(Input::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// The end of a text, which may be compressed: a log may be long, and its last report is at its end.
fn end_of(path: &Path) -> Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    (&mut file).take(2).read_to_end(&mut bytes)?;
    if bytes == GZIP_MAGIC {
        file.rewind()?;
        bytes.clear();
        MultiGzDecoder::new(std::io::BufReader::new(file)).take(PIPE_BYTES_MAX).read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    let length = file.metadata()?.len();
    let start = length.saturating_sub(TEXT_BYTES_MAX);
    file.rewind()?;
    if start > 0 {
        // A record is known by its beginning.
        (&mut file).take(START_BYTES as u64).read_to_end(&mut bytes)?;
        file.seek(SeekFrom::Start(start))?;
    }
    file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
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
        let why = if notes.is_empty() { nothing_recorded(&trace).into() } else { notes.join("; ") };
        bail!("{}: no request is recorded; {why}", Shown::path(path));
    }
    notes.iter().for_each(|note| complain("warning", &format!("{}: {note}", Shown::path(path))));
    Ok(trace)
}

/// True if a file begins like a record of any kind: then the error of its reader says what is wrong with it.
fn is_record(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(START_BYTES)];
    let is_binary = start.contains(&0) || start.starts_with(b"GPUMEM") || start.starts_with(&[0x80]);
    start.is_empty() || is_binary || start.starts_with(b"#{") || start.starts_with(b"Thread,Time,")
}

const START_BYTES: usize = 4096;
const TEXT_BYTES_MAX: u64 = 256 << 20;
const PIPE_BYTES_MAX: u64 = 4 << 30;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

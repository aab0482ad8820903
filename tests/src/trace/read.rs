//! Reads a trace: text, a recording, a snapshot of PyTorch or a log of RMM, compressed or not, distinguished by its first bytes. No
//! input causes a panic or unbounded memory.

use super::error::{Problem, TraceError};
use super::streams::Streams;
use super::{Builder, Header, Trace, pytorch, recorded, rmm};
use crate::pool::trace::{Recording, is_trace};
use flate2::bufread::MultiGzDecoder;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`TraceError`] with the line: the file cannot be read or is damaged, is not a trace of format 1, or its events contradict
    /// each other.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let failed = |problem| TraceError { file: path.into(), line: 0, problem };
        let file = File::open(path).map_err(|error| failed(Problem::Io(error)))?;
        let mut source = BufReader::with_capacity(1 << 16, file);
        if source.fill_buf().is_ok_and(is_trace) {
            // By its path, with the earlier parts beside it.
            let recording = Recording::read(path).map_err(|error| failed(error.into()))?;
            return recorded::convert(recording, stem(path)).map_err(failed);
        }
        Self::read_from(source, path)
    }

    /// Reads a trace from a reader. Errors name `path`.
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::read`].
    pub fn read_from(mut source: impl BufRead, path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let mut line = 1;
        let trace = match source.fill_buf().map(|bytes| bytes.starts_with(&GZIP_MAGIC)) {
            Err(error) => Err(Problem::Io(error)),
            Ok(true) => read_any(BufReader::new(MultiGzDecoder::new(source)), path, &mut line),
            Ok(false) => read_any(source, path, &mut line),
        };
        trace.map_err(|problem| TraceError { file: path.into(), line, problem })
    }
}

/// Reads an uncompressed file.
fn read_any(mut source: impl BufRead, path: &Path, line: &mut u64) -> Result<Trace, Problem> {
    let start = source.fill_buf().map_err(problem_of)?;
    match start {
        start if is_trace(start) => recorded::read(source, stem(path)),
        start if pytorch::is_snapshot(start) => pytorch::read(source, stem(path)),
        start if rmm::is_log(start) => rmm::read(source, stem(path), line),
        _ => read(source, path, line),
    }
}

fn read(source: impl BufRead, path: &Path, line_number: &mut u64) -> Result<Trace, Problem> {
    let mut lines = Lines::new(source);
    let first = lines.next(HEADER_BYTES_MAX)?.ok_or(Problem::NoHeader)?;
    let header = Header::parse(first, stem(path))?;
    let mut reader = Reader::default();
    loop {
        *line_number += 1;
        let Some(line) = lines.next(LINE_BYTES_MAX)? else { break };
        if reader.builder.events.len() == EVENT_COUNT_MAX {
            return Err(Problem::TooManyEvents(EVENT_COUNT_MAX));
        }
        reader.event(line)?;
    }
    Ok(reader.builder.finish(header))
}

/// Returns `x` for `some/x.csv.gz`.
fn stem(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("trace");
    name.split('.').next().unwrap_or(name)
}

/// Reads lines up to a maximum length.
pub(super) struct Lines<S> {
    source: S,
    line: Vec<u8>,
}

impl<S: BufRead> Lines<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, line: Vec::new() }
    }

    /// The next line without its line break; `None` at the end of the file.
    pub(super) fn next(&mut self, size_bytes_max: usize) -> Result<Option<&[u8]>, Problem> {
        self.line.clear();
        let mut limited = self.source.by_ref().take(size_bytes_max as u64 + 1);
        limited.read_until(b'\n', &mut self.line).map_err(problem_of)?;
        if self.line.is_empty() {
            return Ok(None);
        }
        if self.line.pop_if(|last| *last == b'\n').is_none() && self.line.len() > size_bytes_max {
            return Err(Problem::TooLong(size_bytes_max));
        }
        self.line.pop_if(|last| *last == b'\r');
        Ok(Some(&self.line))
    }
}

fn problem_of(error: io::Error) -> Problem {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::InvalidInput | ErrorKind::InvalidData => {
            Problem::Damaged(error)
        }
        _ => Problem::Io(error),
    }
}

/// Checks each line against the earlier ones.
#[derive(Default)]
struct Reader {
    builder: Builder,
    ids: HashMap<u64, Known>,
    /// The stream numbers of the file, in the order of first use.
    streams: Streams,
    live_bytes: u64,
}

/// The last block with an id.
#[derive(Clone, Copy)]
struct Known {
    block: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    Freed,
    Completed,
}

impl Reader {
    fn event(&mut self, line: &[u8]) -> Result<(), Problem> {
        let mut fields = line.split(|byte| *byte == b',');
        let all: [Option<&[u8]>; 5] = std::array::from_fn(|_| fields.next());
        match all {
            [Some(b"a"), Some(id), Some(size), Some(stream), None] => {
                self.alloc(number(id)?, number(size)?, number(stream)?)
            }
            [Some(b"f"), Some(id), Some(stream), None, _] => self.free(number(id)?, number(stream)?),
            [Some(b"c"), Some(id), None, ..] => self.complete(number(id)?),
            _ => Err(Problem::Garbage(shown(line))),
        }
    }

    fn alloc(&mut self, id: u64, size_bytes: u64, stream: u64) -> Result<(), Problem> {
        let live_bytes = self.live_bytes.checked_add(size_bytes).ok_or(Problem::TooManyBytes)?;
        let stream = self.streams.index(stream)?;
        let entry = self.ids.entry(id);
        if let Entry::Occupied(known) = &entry
            && known.get().state == State::Live
        {
            return Err(Problem::AllocatedTwice(id));
        }
        let block = self.builder.alloc(size_bytes, stream);
        entry.insert_entry(Known { block, state: State::Live });
        self.live_bytes = live_bytes;
        Ok(())
    }

    fn free(&mut self, id: u64, stream: u64) -> Result<(), Problem> {
        let known = self.ids.get_mut(&id).ok_or(Problem::Unknown(id))?;
        if known.state != State::Live {
            return Err(Problem::FreedTwice(id));
        }
        let own = self.streams.number(self.builder.blocks[known.block as usize].stream);
        if own != stream {
            return Err(Problem::WrongStream { id, stream: own, other: stream });
        }
        known.state = State::Freed;
        self.live_bytes -= self.builder.blocks[known.block as usize].size_bytes;
        self.builder.free(known.block);
        Ok(())
    }

    fn complete(&mut self, id: u64) -> Result<(), Problem> {
        let known = self.ids.get_mut(&id).ok_or(Problem::Unknown(id))?;
        if known.state != State::Freed {
            return Err(Problem::NotFreed(id));
        }
        known.state = State::Completed;
        self.builder.complete(known.block);
        Ok(())
    }
}

/// Parses a number of digits only: no sign, no space.
fn number(field: &[u8]) -> Result<u64, Problem> {
    let text = std::str::from_utf8(field).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Problem::Number(shown(field)))
}

/// The start of a line, for an error.
pub(super) fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(60).collect()
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// A header may list the start of each step of the program.
const HEADER_BYTES_MAX: usize = 16 << 20;
pub(super) const LINE_BYTES_MAX: usize = 256;
/// An event takes 8 bytes while reading and 16 afterwards, and its block about as much.
pub(super) const EVENT_COUNT_MAX: usize = 1 << 26;

//! [`Recording`]: the events of a trace's file, all threads' in the order of their times.

use super::event::Event;
use super::format::{self, CHUNK_HEADER_BYTES, Content, HEADER_BYTES, NAME_BYTES_MAX};
use super::ring::Timed;
use core::fmt;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// What was recorded.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recording {
    /// All of it, earliest first.
    pub events: Vec<Event>,
    /// Events that were lost while recording.
    pub dropped_count: u64,
    /// The end of the file, if it can't be read.
    pub tail: Option<Tail>,
    /// By pool and number.
    names: BTreeMap<(u32, u32), String>,
}

/// The end of a file that can't be read: a process was killed while it wrote, or the file was cut or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tail {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How many events stand before it, and were read.
    pub read_count: u64,
    /// What is wrong there.
    pub flaw: Flaw,
}

/// Why the end of a trace can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// The file ends in the middle of a chunk.
    Cut,
    /// What is there is no chunk, or another than was written.
    Damaged,
    /// A tag's name that is longer than any that is written.
    NameTooLong,
    /// A tag's name that is not UTF-8.
    NameNotText,
}

/// A file that is no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file can't be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Something else, or too short for a header.
    #[error("this is no trace of gpumem: it does not begin like one; record one with GPUMEM_TRACE=FILE")]
    Foreign,
    /// Made by a newer program.
    #[error(
        "this trace has version {found}, and only version {known} is known here; use the program that made it"
    )]
    Version {
        /// The file's.
        found: u32,
        /// Ours.
        known: u32,
    },
}

impl Recording {
    /// Reads a file. One that was cut short, or is damaged somewhere, is read up to there; see [`Recording::tail`].
    ///
    /// # Errors
    ///
    /// [`ReadError`], when nothing of it can be read.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        Self::read_from(BufReader::with_capacity(1 << 16, File::open(path)?))
    }

    /// Reads what a file would hold.
    ///
    /// # Errors
    ///
    /// As [`Recording::read`].
    pub fn read_from(mut source: impl Read) -> Result<Self, ReadError> {
        let mut header = [0; HEADER_BYTES];
        if fill(&mut source, &mut header)? < HEADER_BYTES {
            return Err(ReadError::Foreign);
        }
        match format::version(&header).ok_or(ReadError::Foreign)? {
            1..=format::VERSION => {}
            found => return Err(ReadError::Version { found, known: format::VERSION }),
        }
        let (offset, dropped, read) = (HEADER_BYTES as u64, BTreeMap::new(), Self::default());
        let mut reader = Reader { source, offset, dropped, read };
        while reader.chunk()? {}
        let Reader { dropped, mut read, .. } = reader;
        // Each thread's own order is that of its times.
        read.events.sort_by_key(|event| (event.time_ns, event.what.rank()));
        read.dropped_count = dropped.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
        Ok(read)
    }

    /// The name of a pool's tag. `None` for one that the file does not name, such as 0, which is none.
    #[must_use]
    pub fn tag(&self, pool: u32, tag: u32) -> Option<&str> {
        self.names.get(&(pool, tag)).map(String::as_str)
    }
}

struct Reader<S> {
    source: S,
    offset: u64,
    /// By thread: each chunk says what the thread had lost by then.
    dropped: BTreeMap<u32, u64>,
    read: Recording,
}

impl<S: Read> Reader<S> {
    /// The next chunk. False at the end, of the file or of what can be read.
    fn chunk(&mut self) -> Result<bool, ReadError> {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        let found = fill(&mut self.source, &mut bytes)?;
        if found == 0 {
            return Ok(false);
        }
        if found < CHUNK_HEADER_BYTES {
            return Ok(self.end(Flaw::Cut));
        }
        let Some(header) = format::chunk_header(&bytes) else { return Ok(self.end(Flaw::Damaged)) };
        let mut payload = vec![0; header.payload_bytes];
        if fill(&mut self.source, &mut payload)? < payload.len() {
            return Ok(self.end(Flaw::Cut));
        }
        match format::content(&header, &bytes, payload) {
            Err(flaw) => return Ok(self.end(flaw)),
            Ok(Content::Name { pool, tag, name }) => {
                self.read.names.insert((pool, tag), name);
            }
            Ok(Content::Events { thread, dropped_count, events }) => {
                let timed = |event: Timed| Event { time_ns: event.time_ns, thread, what: event.raw.what() };
                self.read.events.extend(events.into_iter().map(timed));
                self.dropped.insert(thread, dropped_count);
            }
        }
        self.offset += (CHUNK_HEADER_BYTES + header.payload_bytes) as u64;
        Ok(true)
    }

    fn end(&mut self, flaw: Flaw) -> bool {
        let read_count = self.read.events.len() as u64;
        self.read.tail = Some(Tail { offset: self.offset, read_count, flaw });
        false
    }
}

/// As much as there is; less than asked for only at the end of the file.
fn fill(source: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while let Some(rest) = bytes.get_mut(count..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, read_count, flaw } = self;
        match flaw {
            Flaw::Cut => write!(f, "the trace is cut short at byte {offset}")?,
            Flaw::Damaged => write!(f, "the trace is damaged from byte {offset} on")?,
            Flaw::NameTooLong => write!(
                f,
                "a tag's name at byte {offset} of the trace is longer than the {NAME_BYTES_MAX} bytes that one has at most"
            )?,
            Flaw::NameNotText => write!(f, "a tag's name at byte {offset} of the trace is not UTF-8")?,
        }
        write!(f, "; the {read_count} events before were read")
    }
}

//! [`Recording`]: the events of a trace file, of all threads, in the order of their times.

use super::event::Event;
use super::format::{self, CHUNK_HEADER_BYTES, Content, HEADER_BYTES, NAME_BYTES_MAX};
use super::ring::Timed;
use core::fmt;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// The content of a trace file.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recording {
    /// All events, earliest first.
    pub events: Vec<Event>,
    /// The number of events that were lost while recording.
    pub dropped_count: u64,
    /// The unreadable end of the file, if there is one.
    pub tail: Option<Tail>,
    /// By pool and number.
    names: BTreeMap<(u32, u32), String>,
}

/// The unreadable end of a file: a process was killed while writing, or the file was truncated or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tail {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The number of events read before it.
    pub read_count: u64,
    /// The reason.
    pub flaw: Flaw,
}

/// The reason why the end of a trace is unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// The file ends within a chunk.
    Cut,
    /// The bytes are not a valid chunk.
    Damaged,
    /// The name of a tag is too long.
    NameTooLong,
    /// The name of a tag is not UTF-8.
    NameNotText,
}

/// The file cannot be read as a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Reading the file failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a trace, or is too short for a header.
    #[error("this file is not a gpumem trace: its header is missing; record a trace with GPUMEM_TRACE=FILE")]
    Foreign,
    /// The file was recorded by a newer version.
    #[error(
        "this trace has version {found}, but this program reads only versions up to {known}; use the program that recorded it"
    )]
    Version {
        /// The version of the file.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
}

impl Recording {
    /// Reads a file. A file that is truncated or damaged is read up to the damage; see [`Recording::tail`].
    ///
    /// # Errors
    ///
    /// - [`ReadError::Io`] if reading fails.
    /// - [`ReadError::Foreign`] if the file is not a trace.
    /// - [`ReadError::Version`] if the file was recorded by a newer version.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        Self::read_from(BufReader::with_capacity(1 << 16, File::open(path)?))
    }

    /// Reads the content of a trace file from another source.
    ///
    /// # Errors
    ///
    /// All errors of [`Recording::read`], such as [`ReadError::Foreign`] if the source is not a trace.
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
        // The times of each thread's events increase, so sorting keeps each thread's order.
        read.events.sort_by_key(|event| (event.time_ns, event.what.rank()));
        read.dropped_count = dropped.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
        Ok(read)
    }

    /// The name of a pool's tag; `None` if the file does not name it, as for tag 0, which means no tag.
    #[must_use]
    pub fn tag(&self, pool: u32, tag: u32) -> Option<&str> {
        self.names.get(&(pool, tag)).map(String::as_str)
    }
}

struct Reader<S> {
    source: S,
    offset: u64,
    /// By thread: each chunk has the number of events that its thread has lost so far.
    dropped: BTreeMap<u32, u64>,
    read: Recording,
}

impl<S: Read> Reader<S> {
    /// Reads the next chunk. False at the end of the file, or of its readable part.
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

/// Fills the buffer; returns less only at the end of the source.
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
                "the name of a tag at byte {offset} of the trace is longer than the maximum of {NAME_BYTES_MAX} bytes"
            )?,
            Flaw::NameNotText => write!(f, "the name of a tag at byte {offset} of the trace is not UTF-8")?,
        }
        write!(f, "; the {read_count} events before were read")
    }
}

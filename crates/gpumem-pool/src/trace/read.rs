//! [`Recording`]: the events of a trace file, of all threads, in the order of their times.

use super::event::RecordedEvent;
use super::file::{EARLIER_COUNT, numbered};
use super::format::{self, CHUNK_HEADER_BYTES, Content, Flaw, HEADER_BYTES, NAME_BYTES_MAX};
use super::ring::Timed;
use crate::pool::PoolSettings;
use core::fmt;
use gpumem_sys::text::{Shown, debug_is_display};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// The content of a trace file.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recording {
    /// All events, earliest first.
    pub events: Vec<RecordedEvent>,
    /// The number of events that were lost while recording.
    pub dropped_count: u64,
    /// The unreadable end of the file, if there is one.
    pub tail: Option<Tail>,
    /// The pools, with their settings; empty for files before version 3.
    pub pools: Vec<PoolSettings>,
    /// The reports of refused requests; a flight recorder writes them.
    pub reports: Vec<Report>,
    /// The number of earlier events that a flight recorder has not kept.
    pub overwritten_count: u64,
    /// The number of this part of a trace with a size limit, from 0. The events before it are in earlier files; if they are
    /// gone, the blocks that were live at its beginning are the first events.
    pub part: u32,
    /// True if the process exited while it recorded, so that the file has all its events: it returned from `main` or called `exit`. False
    /// if it was killed, or recorded into a [`Trace`](super::Trace) of its own.
    pub has_exited: bool,
    /// The version of the format.
    pub version: u32,
    names: BTreeMap<(u32, u32), String>,
    trace: Option<u64>,
    /// The first events that only state which blocks were live.
    live_count: usize,
}

/// The report of a refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The pool that refused.
    pub pool: u32,
    /// The time, in nanoseconds since the recording began.
    pub time_ns: u64,
    /// The text of the error.
    pub text: String,
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

/// The file cannot be read as a trace.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Reading the file failed.
    #[error("cannot read the trace: {}; check the path and its permissions", Shown::sentence_of(.0))]
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

debug_is_display!(ReadError);

impl Recording {
    /// Reads a file and the earlier parts of the same trace in its folder (`FILE.1`, `FILE.2`, …). A file that is truncated or damaged is
    /// read up to the damage; see [`Recording::tail`].
    ///
    /// # Errors
    ///
    /// - [`ReadError::Io`] if reading fails.
    /// - [`ReadError::Foreign`] if the file is not a trace.
    /// - [`ReadError::Version`] if the file was recorded by a newer version.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let mut read = Self::read_part(path)?;
        for number in 1..=EARLIER_COUNT {
            if read.part == 0 {
                break;
            }
            // Without its predecessor, a part begins with the blocks that were live.
            let Ok(earlier) = Self::read_part(&numbered(path, number)) else { break };
            if earlier.trace != read.trace || earlier.part + 1 != read.part || earlier.tail.is_some() {
                break;
            }
            read = earlier.followed_by(read);
        }
        read.sort();
        Ok(read)
    }

    /// Reads the content of a trace file from another source.
    ///
    /// # Errors
    ///
    /// All errors of [`Recording::read`], such as [`ReadError::Foreign`] if the source is not a trace.
    pub fn read_from(source: impl Read) -> Result<Self, ReadError> {
        let mut read = Self::parse(source)?;
        read.sort();
        Ok(read)
    }

    fn read_part(path: &Path) -> Result<Self, ReadError> {
        Self::parse(BufReader::with_capacity(1 << 16, File::open(path)?))
    }

    /// Reads one file. Its events are in the order of the file.
    fn parse(mut source: impl Read) -> Result<Self, ReadError> {
        let mut header = [0; HEADER_BYTES];
        if fill(&mut source, &mut header)? < HEADER_BYTES {
            return Err(ReadError::Foreign);
        }
        let version = match format::version(&header).ok_or(ReadError::Foreign)? {
            known @ 1..=format::VERSION => known,
            found => return Err(ReadError::Version { found, known: format::VERSION }),
        };
        let (offset, dropped) = (HEADER_BYTES as u64, BTreeMap::new());
        let mut reader = Reader { source, offset, dropped, read: Self { version, ..Self::default() } };
        while reader.chunk()? {}
        let Reader { dropped, mut read, .. } = reader;
        read.dropped_count = dropped.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
        Ok(read)
    }

    /// Appends the next part, whose counts include those of the earlier ones.
    fn followed_by(mut self, mut next: Self) -> Self {
        self.events.extend(next.events.drain(next.live_count..));
        next.pools.retain(|pool| !self.pools.iter().any(|known| known.pool == pool.pool));
        self.pools.append(&mut next.pools);
        self.names.append(&mut next.names);
        self.reports.append(&mut next.reports);
        Self {
            dropped_count: self.dropped_count.max(next.dropped_count),
            tail: next.tail,
            trace: next.trace,
            has_exited: next.has_exited,
            ..self
        }
    }

    /// Sorts the events by time. The times of each thread's events increase, so sorting keeps each thread's order.
    fn sort(&mut self) {
        self.events.sort_by_key(|event| (event.time_ns, event.what.rank()));
    }

    /// The settings of a pool, if the file has them.
    #[must_use]
    pub fn pool(&self, pool: u32) -> Option<&PoolSettings> {
        self.pools.iter().find(|settings| settings.pool == pool)
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
                self.add(thread, events);
                self.dropped.insert(thread, dropped_count);
            }
            Ok(Content::Live(thread, events)) => {
                self.add(thread, events);
                self.read.live_count = self.read.events.len();
            }
            Ok(Content::Part { trace, part, overwritten_count }) => {
                (self.read.trace, self.read.part) = (Some(trace), part);
                self.read.overwritten_count = overwritten_count;
            }
            Ok(Content::Exit) => self.read.has_exited = true,
            Ok(Content::Pool(settings)) => self.read.pools.push(settings),
            Ok(Content::Report { pool, time_ns, text }) => {
                self.read.reports.push(Report { pool, time_ns, text });
            }
        }
        self.offset += (CHUNK_HEADER_BYTES + header.payload_bytes) as u64;
        Ok(true)
    }

    fn add(&mut self, thread: u32, events: Vec<Timed>) {
        let timed = |event: Timed| RecordedEvent { time_ns: event.time_ns, thread, what: event.raw.what() };
        self.read.events.extend(events.into_iter().map(timed));
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

//! [`TraceError`]: the reason why a trace cannot be read, and the line; [`UnknownName`].

use gpumem_pool::sys::text::{Shown, debug_is_display};
use gpumem_pool::trace::ReadError;
use std::io;
use std::path::PathBuf;

/// A trace cannot be read.
///
/// ```
/// use gpumem_trace::{Problem, Trace};
///
/// let text = "#{\"format\":1}\na,1,4096,0\nf,2,0\n";
/// let error = Trace::read_from(text.as_bytes(), "small.csv").unwrap_err();
/// assert!(error.line == 3 && matches!(error.problem, Problem::Unknown(2)));
/// assert!(error.to_string().starts_with("small.csv:3: block 2 was never allocated"));
/// ```
#[derive(thiserror::Error)]
#[error("{}{}: {problem}", Shown::path(.file), at(*.line))]
pub struct TraceError {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1; 0 if the file cannot be opened.
    pub line: u64,
    /// The problem.
    pub problem: Problem,
}

debug_is_display!(TraceError, Problem, UnknownName);

fn at(line: u64) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

/// A problem in a line of a trace.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot read the file: {}; check the path and its permissions", Shown::sentence_of(.0))]
    Io(io::Error),
    /// Compressed data is truncated or damaged.
    #[error("the compressed data is cut short or damaged ({}); copy the file again", Shown::sentence_of(.0))]
    Damaged(io::Error),
    /// The file starts like a recording but cannot be read as one.
    #[error("{0}")]
    Recording(#[from] ReadError),
    /// The first line is not a header.
    #[error(
        "no header: this is no recording of gpumem (GPUMEM_TRACE=FILE), no memory snapshot of PyTorch, no log of RMM, and no trace \
         in text, which begins with a line `#{{\"format\":1,…}}`"
    )]
    NoHeader,
    /// The header is not valid JSON, or lacks a field.
    #[error("the header cannot be read: {}; correct the first line", Shown::sentence_of(.0))]
    Header(serde_json::Error),
    /// An unknown version of the format.
    #[error("unknown format {0}: only format 1 can be read; write the trace in format 1")]
    Format(u64),
    /// A line that is not an event.
    #[error("invalid event {:?}; expected a,ID,BYTES,STREAM or f,ID,STREAM or c,ID", Shown::name(.0))]
    Garbage(String),
    /// A line that exceeds the maximum length.
    #[error("this line is longer than {0} bytes, so it is no event; remove it")]
    TooLong(usize),
    /// A field that is not a number, or too large.
    #[error("invalid number {:?}; expected a whole number below 2^64", Shown::name(.0))]
    Number(String),
    /// A line of an RMM log that is not an event.
    #[error("invalid line {:?} of an RMM log; expected Thread,Time,Action,Pointer,Size,Stream", Shown::name(.0))]
    RmmLine(String),
    /// A file that begins like a pickle but is not a snapshot of PyTorch.
    #[error(
        "this pickle is not a memory snapshot of PyTorch: {}; write one with torch.cuda.memory._dump_snapshot after \
         torch.cuda.memory._record_memory_history",
        Shown::sentence(.0)
    )]
    Snapshot(String),
    /// A snapshot without events.
    #[error(
        "the snapshot has no history of allocations; call torch.cuda.memory._record_memory_history(max_entries=…) before the \
         part of the program to record"
    )]
    NoHistory,
    /// An id that was never allocated.
    #[error("block {0} was never allocated; add its `a` line before this one")]
    Unknown(u64),
    /// An allocation of an id whose block is live.
    #[error(
        "block {0} is allocated again, and was not freed; free it first, or give the new block another id"
    )]
    AllocatedTwice(u64),
    /// A free of an id whose block was freed.
    #[error("block {0} is freed twice; remove the second free")]
    FreedTwice(u64),
    /// A free on another stream than the allocation.
    #[error(
        "block {id} is of stream {stream}, and is freed on stream {other}; name the stream of its allocation"
    )]
    WrongStream {
        /// The block.
        id: u64,
        /// The stream of its allocation.
        stream: u64,
        /// The stream in the line.
        other: u64,
    },
    /// A `c` line without a pending free of the block.
    #[error(
        "block {0} has no free that could take effect here; remove this line, or put it behind the block's `f` line"
    )]
    NotFreed(u64),
    /// More live bytes than a `u64` can count.
    #[error("more than 2^64 bytes are live here; correct the sizes before this line")]
    TooManyBytes,
    /// More streams than a replay supports.
    #[error("more than {0} streams; record a part of the program with fewer")]
    TooManyStreams(usize),
    /// More events than are kept in memory.
    #[error("more than {0} events; record a shorter part of the program")]
    TooManyEvents(usize),
}

/// A name that is not one of a list: of [`StreamKind`](crate::StreamKind) or [`Waits`](crate::Waits).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{:?} names no {what}; use {known}", Shown::name(.name))]
pub struct UnknownName {
    name: String,
    what: &'static str,
    known: &'static str,
}

impl UnknownName {
    pub(crate) fn new(name: &str, what: &'static str, known: &'static str) -> Self {
        Self { name: name.into(), what, known }
    }
}

/// Implements `FromStr` and `Display` by the names in `ALL`. Errors call a value `what`, and list the names.
macro_rules! named {
    ($type:ident, $what:literal, $names:literal) => {
        impl core::str::FromStr for $type {
            type Err = $crate::error::UnknownName;

            fn from_str(name: &str) -> Result<Self, $crate::error::UnknownName> {
                let known = Self::ALL.into_iter().find(|known| known.0 == name);
                known.map(|known| known.1).ok_or_else(|| $crate::error::UnknownName::new(name, $what, $names))
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let known = Self::ALL.into_iter().find(|known| known.1 == *self);
                f.pad(known.map_or("", |known| known.0))
            }
        }
    };
}
pub(crate) use named;

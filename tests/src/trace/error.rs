//! [`TraceError`]: the reason why a trace cannot be read, and the line.

use crate::pool::trace::ReadError;
use std::io;
use std::path::PathBuf;

/// A trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {problem}", .file.display(), at(*.line))]
pub struct TraceError {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1; 0 if the file cannot be opened.
    pub line: u64,
    /// The problem.
    pub problem: Problem,
}

fn at(line: u64) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

/// A problem in a line of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file cannot be read.
    #[error("{0}")]
    Io(io::Error),
    /// Compressed data is truncated or damaged.
    #[error("the compressed data is cut short or damaged ({0}); copy the file again")]
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
    #[error("the header cannot be read: {0}; correct the first line")]
    Header(serde_json::Error),
    /// An unknown version of the format.
    #[error("unknown format {0}; expected format 1")]
    Format(u64),
    /// A line that is not an event.
    #[error("invalid event {0:?}; expected a,ID,BYTES,STREAM or f,ID,STREAM or c,ID")]
    Garbage(String),
    /// A line that exceeds the maximum length.
    #[error("this line is longer than {0} bytes")]
    TooLong(usize),
    /// A field that is not a number, or too large.
    #[error("invalid number {0:?}; expected a whole number below 2^64")]
    Number(String),
    /// A line of an RMM log that is not an event.
    #[error("invalid line {0:?} of an RMM log; expected Thread,Time,Action,Pointer,Size,Stream")]
    RmmLine(String),
    /// A file that begins like a pickle but is not a snapshot of PyTorch.
    #[error(
        "this pickle is not a memory snapshot of PyTorch: {0}; write one with torch.cuda.memory._dump_snapshot after \
         torch.cuda.memory._record_memory_history"
    )]
    Snapshot(String),
    /// A snapshot without events.
    #[error(
        "the snapshot has no history of allocations; call torch.cuda.memory._record_memory_history(max_entries=…) before the \
         part of the program to record"
    )]
    NoHistory,
    /// An id that was never allocated.
    #[error("block {0} was never allocated")]
    Unknown(u64),
    /// An allocation of an id whose block is live.
    #[error("block {0} is allocated again, and was not freed")]
    AllocatedTwice(u64),
    /// A free of an id whose block was freed.
    #[error("block {0} is freed twice")]
    FreedTwice(u64),
    /// A free on another stream than the allocation.
    #[error("block {id} is of stream {stream}, and is freed on stream {other}")]
    WrongStream {
        /// The block.
        id: u64,
        /// The stream of its allocation.
        stream: u64,
        /// The stream in the line.
        other: u64,
    },
    /// A `c` line without a pending free of the block.
    #[error("block {0} has no free that could take effect here")]
    NotFreed(u64),
    /// More live bytes than a `u64` can count.
    #[error("more than 2^64 bytes are live here")]
    TooManyBytes,
    /// More streams than a replay supports.
    #[error("more than {0} streams")]
    TooManyStreams(usize),
    /// More events than are kept in memory.
    #[error("more than {0} events")]
    TooManyEvents(usize),
}

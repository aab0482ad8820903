//! Why a trace can't be read, and where.

use crate::pool::trace::ReadError;
use std::io;
use std::path::PathBuf;

/// A trace can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {problem}", .file.display(), at(*.line))]
pub struct TraceError {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1; 0 where the file can't be opened.
    pub line: u64,
    /// The mistake in the line.
    pub problem: Problem,
}

fn at(line: u64) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

/// A mistake in a line of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file can't be read.
    #[error("{0}")]
    Io(io::Error),
    /// Compressed data ends in the middle, or is damaged.
    #[error("the compressed data is cut short or damaged ({0}); copy the file again")]
    Damaged(io::Error),
    /// It begins like a recording, and is none that can be read.
    #[error("{0}")]
    Recording(#[from] ReadError),
    /// The first line is not a header.
    #[error(
        "no header: this is neither a recording of gpumem (GPUMEM_TRACE=FILE) nor a trace in text, which begins with a line \
         `#{{\"format\":1,…}}`"
    )]
    NoHeader,
    /// The header is no JSON of the right shape.
    #[error("the header can't be read: {0}")]
    Header(serde_json::Error),
    /// Another version of the format.
    #[error("format {0}, and only format 1 is known here")]
    Format(u64),
    /// A line that is no event.
    #[error("{0:?} is no event: use a,ID,BYTES,STREAM or f,ID,STREAM or c,ID")]
    Garbage(String),
    /// A line that never ends.
    #[error("this line is longer than {0} bytes")]
    TooLong(usize),
    /// A number that is none, or too large.
    #[error("{0:?} is no whole number below 2^64")]
    Number(String),
    /// An id that no allocation had.
    #[error("block {0} was never allocated")]
    Unknown(u64),
    /// An id whose block is still there.
    #[error("block {0} is allocated again, and was not freed")]
    AllocatedTwice(u64),
    /// An id whose block is gone.
    #[error("block {0} is freed twice")]
    FreedTwice(u64),
    /// A free that names another stream than the allocation.
    #[error("block {id} is of stream {stream}, and is freed on stream {other}")]
    WrongStream {
        /// The block.
        id: u64,
        /// Where it was allocated.
        stream: u64,
        /// The content of the line.
        other: u64,
    },
    /// A free takes effect that was not asked for, or did before.
    #[error("block {0} has no free that could take effect here")]
    NotFreed(u64),
    /// More bytes than can be counted.
    #[error("more than 2^64 bytes are live here")]
    TooManyBytes,
    /// More streams than a replay makes.
    #[error("more than {0} streams")]
    TooManyStreams(usize),
    /// More events than are kept in memory.
    #[error("more than {0} events")]
    TooManyEvents(usize),
}

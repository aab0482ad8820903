//! [`Lines`]: the lines of a text file, up to a maximum length.

use crate::error::Problem;
use std::io::{self, BufRead, ErrorKind, Read};

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

pub(super) fn problem_of(error: io::Error) -> Problem {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::InvalidInput | ErrorKind::InvalidData => {
            Problem::Damaged(error)
        }
        _ => Problem::Io(error),
    }
}

/// The start of a line, for an error.
pub(super) fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(60).collect()
}

pub(super) const LINE_BYTES_MAX: usize = 256;
/// An event takes 8 bytes while reading and 16 afterwards, and its block about as much.
pub(super) const EVENT_COUNT_MAX: usize = 1 << 26;

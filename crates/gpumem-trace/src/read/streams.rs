//! [`Streams`]: the streams of a file, numbered in the order in which they appear.

use crate::error::Problem;
use std::collections::HashMap;

/// The streams of a file, by the numbers that the file gives them.
#[derive(Default)]
pub(super) struct Streams {
    indices: HashMap<u64, u16>,
    numbers: Vec<u64>,
}

impl Streams {
    /// The index of a stream. A new stream gets the next index.
    pub(super) fn index(&mut self, number: u64) -> Result<u16, Problem> {
        if let Some(index) = self.indices.get(&number) {
            return Ok(*index);
        }
        let count = self.numbers.len();
        if count == COUNT_MAX {
            return Err(Problem::TooManyStreams(COUNT_MAX));
        }
        self.numbers.push(number);
        self.indices.insert(number, count as u16);
        Ok(count as u16)
    }

    /// The number of a stream in the file.
    pub(super) fn number(&self, index: u16) -> u64 {
        self.numbers[usize::from(index)]
    }
}

const COUNT_MAX: usize = 1 << 10;

//! Reads a trace in text: a header in JSON, then an event a line.

use super::lines::{EVENT_COUNT_MAX, LINE_BYTES_MAX, Lines, shown};
use super::streams::Streams;
use crate::error::Problem;
use crate::trace::{Builder, Header, Trace};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::BufRead;

/// Reads a trace. `line_number` is that of the line that is read.
pub(super) fn read(source: impl BufRead, name: &str, line_number: &mut u64) -> Result<Trace, Problem> {
    let mut lines = Lines::new(source);
    let first = lines.next(HEADER_BYTES_MAX)?.ok_or(Problem::NoHeader)?;
    let header = Header::parse(first, name)?;
    let mut reader = Reader::default();
    loop {
        *line_number += 1;
        let Some(line) = lines.next(LINE_BYTES_MAX)? else { break };
        if reader.builder.event_count() == EVENT_COUNT_MAX {
            return Err(Problem::TooManyEvents(EVENT_COUNT_MAX));
        }
        reader.event(line)?;
    }
    Ok(reader.builder.finish(header))
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
        let own = self.streams.number(self.builder.stream(known.block));
        if own != stream {
            return Err(Problem::WrongStream { id, stream: own, other: stream });
        }
        known.state = State::Freed;
        self.live_bytes -= self.builder.size_bytes(known.block);
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

/// A header may list the start of each step of the program.
const HEADER_BYTES_MAX: usize = 16 << 20;

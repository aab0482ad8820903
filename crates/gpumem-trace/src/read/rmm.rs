//! Reads a log of RMM's `logging_resource_adaptor` (`RMM_LOG_FILE`): lines of `Thread,Time,Action,Pointer,Size,Stream`.
//!
//! An allocation that failed becomes a refused request. RMM names a stream for each free; a free on another stream than the
//! allocation's is replayed on the allocation's, and counted in a note.

use super::lines::{EVENT_COUNT_MAX, LINE_BYTES_MAX, Lines, shown};
use super::streams::Streams;
use crate::error::Problem;
use crate::trace::{Builder, Header, Origin, Trace};
use std::collections::HashMap;
use std::io::BufRead;

/// True if a file that begins with these bytes is a log of RMM.
pub(super) fn is_log(start: &[u8]) -> bool {
    start.starts_with(HEADINGS)
}

/// Reads a log. `line_number` is that of the line that is read.
pub(super) fn read(source: impl BufRead, name: &str, line_number: &mut u64) -> Result<Trace, Problem> {
    let mut lines = Lines::new(source);
    lines.next(LINE_BYTES_MAX)?;
    let mut log = Log::default();
    loop {
        *line_number += 1;
        let Some(line) = lines.next(LINE_BYTES_MAX)? else { break };
        // A process that was killed may have left an empty line.
        if line.is_empty() {
            continue;
        }
        if log.builder.event_count() == EVENT_COUNT_MAX {
            return Err(Problem::TooManyEvents(EVENT_COUNT_MAX));
        }
        log.line(line)?;
    }
    log.finish(name)
}

#[derive(Default)]
struct Log {
    builder: Builder,
    /// Live blocks by address, with size and stream.
    live: HashMap<u64, (u32, u16)>,
    streams: Streams,
    moved_count: u64,
    unknown_count: u64,
    times: Option<(f64, f64)>,
    live_bytes: u64,
}

impl Log {
    fn line(&mut self, line: &[u8]) -> Result<(), Problem> {
        let text = std::str::from_utf8(line).map_err(|_| Problem::RmmLine(shown(line)))?;
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let [_, time, action, pointer, size, stream] = fields[..] else {
            return Err(Problem::RmmLine(shown(line)));
        };
        if let Some(now) = seconds(time) {
            let (begin, _) = self.times.unwrap_or((now, now));
            self.times = Some((begin, now));
            self.builder.at(((now - begin).max(0.0) * 1e9) as u64);
        }
        let number = |text: &str| number(text).ok_or_else(|| Problem::RmmLine(shown(line)));
        let (size_bytes, stream) = (number(size)?, self.streams.index(number(stream)?)?);
        match action {
            // An empty block has no memory.
            "allocate" | "free" if size_bytes == 0 => {}
            "allocate" => {
                let address = number(pointer)?;
                if self.live.contains_key(&address) {
                    return Err(Problem::AllocatedTwice(address));
                }
                let live_bytes = self.live_bytes.checked_add(size_bytes).ok_or(Problem::TooManyBytes)?;
                self.live_bytes = live_bytes;
                let block =
                    self.builder.alloc_of(size_bytes, stream, Origin { address, ..Origin::default() });
                self.live.insert(address, (block, stream));
            }
            "free" => match self.live.remove(&number(pointer)?) {
                Some((block, own)) => {
                    self.moved_count += u64::from(own != stream);
                    self.live_bytes -= self.builder.size_bytes(block);
                    self.builder.free(block);
                }
                None => self.unknown_count += 1,
            },
            "allocate failure" => self.builder.refuse(size_bytes, stream, Origin::default()),
            _ => return Err(Problem::RmmLine(shown(line))),
        }
        Ok(())
    }

    fn finish(self, name: &str) -> Result<Trace, Problem> {
        let run_seconds = self.times.map(|(begin, end)| end - begin).filter(|seconds| *seconds > 0.0);
        let mut trace =
            self.builder.finish(Header::of_program(name, "a log of RMM".into(), run_seconds, None));
        let moved = (self.moved_count > 0)
            .then(|| format!("{} frees on another stream are replayed on the block's own", self.moved_count));
        let unknown = (self.unknown_count > 0).then(|| {
            format!("{} frees of blocks that the log does not allocate are left out", self.unknown_count)
        });
        trace.notes = moved.into_iter().chain(unknown).collect();
        Ok(trace)
    }
}

/// A pointer, size or stream: decimal, or hexadecimal with `0x`; `(nil)` is 0.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text == "(nil)" => Some(0),
        None => text.parse().ok(),
    }
}

/// The seconds of a time of the day, `HH:MM:SS.micros` or `HH:MM:SS:micros`.
fn seconds(time: &str) -> Option<f64> {
    let mut parts = time.splitn(3, ':');
    let (hours, minutes) = (parts.next()?.parse::<f64>().ok()?, parts.next()?.parse::<f64>().ok()?);
    let seconds: f64 = parts.next()?.replacen(':', ".", 1).parse().ok()?;
    Some(hours * 3600.0 + minutes * 60.0 + seconds)
}

const HEADINGS: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream";

#[cfg(test)]
mod tests {
    use crate::trace::{Event, Trace};

    fn read(lines: &str) -> Result<Trace, String> {
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{lines}");
        Trace::read_from(text.as_bytes(), "rmm.csv").map_err(|error| error.to_string())
    }

    #[test]
    fn a_log_becomes_a_trace() {
        let trace = read(
            "7,23:59:58.500000,allocate,0x7f0000000000,1000,0x0\n\
             8,23:59:58.700000,allocate,0x7f0000000400,2000,0x55d\n\
             7,23:59:58.800000,allocate,(nil),0,0x0\n\
             7,23:59:58.900000,allocate failure,(nil),4000,0x55d\n\
             7,23:59:59.000000,free,0x7f0000000000,1000,0x55d\n\
             8,23:59:59.500000,free,0x7f0000009999,64,0x0\n\
             8,23:59:59.500000,allocate,0x7f0000000000,512,0x0\n",
        )
        .unwrap();
        let expected = [
            Event::Alloc { slot: 0, stream: 0, size_bytes: 1000 },
            Event::Alloc { slot: 1, stream: 1, size_bytes: 2000 },
            Event::Refused { stream: 1, size_bytes: 4000 },
            Event::Free { slot: 0 },
            Event::Alloc { slot: 0, stream: 0, size_bytes: 512 },
        ];
        assert_eq!(trace.events(), expected);
        assert_eq!((trace.name(), trace.peaks().live_bytes, trace.refused_count()), ("rmm", 3000, 1));
        assert_eq!(trace.header().run_seconds, Some(1.0));
        let notes = trace.disagreements();
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes[0].starts_with("1 frees on another stream") && notes[1].starts_with("1 frees of blocks")
        );
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for line in [
            "7,now,allocate,0x1,64",
            "7,now,alloc,0x1,64,0",
            "7,now,allocate,0x1,many,0",
            "7,now,allocate,x,1,0",
        ] {
            let error = read(&format!("7,now,allocate,0x100,64,0\n{line}\n")).unwrap_err();
            assert!(
                error.starts_with("rmm.csv:3: invalid line") && error.contains("Thread,Time,Action"),
                "{error}"
            );
        }
        let error = read("7,now,allocate,0x100,64,0\n7,now,allocate,0x100,64,0\n").unwrap_err();
        assert!(error.contains("allocated again"), "{error}");
        let sum = format!("7,now,allocate,0x100,{0},0\n7,now,allocate,0x200,{0},0\n", u64::MAX);
        assert!(read(&sum).unwrap_err().contains("more than 2^64 bytes"));
        assert!(read("").unwrap().events().is_empty());
    }
}

//! Reads a memory snapshot of PyTorch: the pickle that `torch.cuda.memory._dump_snapshot` writes.
//!
//! Its history has the requested sizes of allocations, their frees, and the driver's segments. A free that completed in the next
//! event took effect at once; another one was pending until then, because other streams used the block. The history does not name
//! those streams. Blocks whose allocations are older than the history, by their frees or by the final layout, are live from the
//! beginning. An out-of-memory error becomes a refused request. The history of the device with the most events is read.

use super::lines::EVENT_COUNT_MAX;
use super::streams::Streams;
use crate::error::Problem;
use crate::trace::{Builder, Header, Origin, RealRun, Trace};
use serde::Deserialize;
use serde_pickle::DeOptions;
use std::collections::HashMap;
use std::io::BufRead;

/// True if a file that begins with these bytes is a pickle of a protocol with a header.
pub(super) fn is_snapshot(start: &[u8]) -> bool {
    matches!(start, [0x80, 2..=5, ..])
}

pub(super) fn read(source: impl BufRead, name: &str) -> Result<Trace, Problem> {
    // Frames are shared by many entries. The crate takes the second use of a list inside of a shared list for a cycle; frames are
    // not read, so they may be replaced.
    let options = DeOptions::new().replace_recursive_structures();
    let snapshot: Snapshot =
        serde_pickle::from_reader(source, options).map_err(|error| Problem::Snapshot(error.to_string()))?;
    let Snapshot { segments, device_traces } = snapshot;
    let traces = device_traces.iter().enumerate().filter(|(_, entries)| !entries.is_empty());
    let Some((device, entries)) = traces.clone().max_by_key(|(_, entries)| entries.len()) else {
        return Err(Problem::NoHistory);
    };
    if entries.len() > EVENT_COUNT_MAX {
        return Err(Problem::TooManyEvents(EVENT_COUNT_MAX));
    }
    let mut history = History::default();
    let begin_us = entries.iter().filter_map(|entry| entry.time_us).min();
    begin_us.into_iter().for_each(|_| history.builder.at(0));
    history.begin(entries, segments.iter().filter(|segment| segment.device == device as i64))?;
    for (index, entry) in entries.iter().enumerate() {
        if let (Some(begin), Some(now)) = (begin_us, entry.time_us) {
            history.builder.at(now.abs_diff(begin).saturating_mul(1000));
        }
        history.entry(entry, entries.get(index + 1))?;
    }
    for block in history.pending.drain().map(|(_, block)| block) {
        history.builder.complete(block);
    }
    let end_bytes = segments.iter().filter(|segment| segment.device == device as i64);
    let end_bytes = end_bytes.fold(0, |sum: u64, segment| sum.saturating_add(segment.total_size));
    let reserved_bytes = peak_reserved_bytes(entries, end_bytes);
    let times = || entries.iter().filter_map(|entry| entry.time_us);
    let run_seconds = times().min().zip(times().max()).map(|(begin, end)| end.abs_diff(begin) as f64 / 1e6);
    let header = Header::of_program(
        name,
        "a memory snapshot of PyTorch".into(),
        run_seconds.filter(|seconds| *seconds > 0.0),
        Some(("recorded", reserved_bytes)),
    );
    let others = traces.count() - 1;
    let History { builder, before_count, unknown_count, .. } = history;
    let mut trace = builder.finish(header);
    trace.real = RealRun { peak_reserved_bytes: Some(reserved_bytes), ..RealRun::default() };
    let notes = [
        (others > 0).then(|| format!("only device {device} is read; {others} others have events too")),
        (before_count > 0).then(|| format!("{before_count} blocks are older than the history")),
        (unknown_count > 0).then(|| format!("{unknown_count} events of unknown blocks are left out")),
    ];
    trace.notes = notes.into_iter().flatten().collect();
    Ok(trace)
}

#[derive(Deserialize)]
struct Snapshot {
    #[serde(default)]
    segments: Vec<Segment>,
    device_traces: Vec<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Segment {
    #[serde(default)]
    device: i64,
    address: u64,
    total_size: u64,
    #[serde(default)]
    stream: u64,
    #[serde(default)]
    blocks: Vec<LaidOut>,
}

/// A block in the final layout.
#[derive(Deserialize)]
struct LaidOut {
    size: u64,
    requested_size: Option<u64>,
    /// Missing in old snapshots, where it follows from the sizes of the blocks before.
    address: Option<u64>,
    state: String,
}

#[derive(Deserialize)]
struct Entry {
    action: String,
    /// Missing in `oom`.
    addr: Option<u64>,
    size: Option<u64>,
    #[serde(default)]
    stream: u64,
    time_us: Option<i64>,
}

#[derive(Default)]
struct History {
    builder: Builder,
    live: HashMap<u64, u32>,
    /// Freed blocks that other streams use.
    pending: HashMap<u64, u32>,
    streams: Streams,
    before_count: u64,
    unknown_count: u64,
}

impl History {
    /// Adds the blocks that were live before the first event.
    fn begin<'a>(
        &mut self,
        entries: &[Entry],
        segments: impl Iterator<Item = &'a Segment>,
    ) -> Result<(), Problem> {
        let mut known: HashMap<u64, bool> = HashMap::new();
        for entry in entries {
            let Some(address) = entry.addr else { continue };
            match &*entry.action {
                "alloc" => {
                    known.insert(address, true);
                }
                "free_requested" if !known.contains_key(&address) => {
                    self.alloc(address, entry.size.unwrap_or(0), entry.stream)?;
                    known.insert(address, true);
                    self.before_count += 1;
                }
                _ => {}
            }
        }
        for segment in segments {
            let mut next = segment.address;
            for block in &segment.blocks {
                let address = block.address.unwrap_or(next);
                next = address.saturating_add(block.size);
                if block.state == "active_allocated" && !known.contains_key(&address) {
                    self.alloc(address, block.requested_size.unwrap_or(block.size), segment.stream)?;
                    self.before_count += 1;
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry, next: Option<&Entry>) -> Result<(), Problem> {
        let (address, size_bytes) = (entry.addr.unwrap_or(0), entry.size.unwrap_or(0));
        match &*entry.action {
            "alloc" => {
                // A block whose free the history lost.
                if let Some(block) = self.live.remove(&address) {
                    self.builder.free(block);
                    self.unknown_count += 1;
                }
                self.alloc(address, size_bytes, entry.stream)?;
            }
            "free_requested" => match self.live.remove(&address) {
                Some(block) => {
                    self.builder.free(block);
                    let is_over = next
                        .is_some_and(|next| next.action == "free_completed" && next.addr == Some(address));
                    if !is_over {
                        self.pending.insert(address, block);
                    }
                }
                None => self.unknown_count += 1,
            },
            "free_completed" => {
                if let Some(block) = self.pending.remove(&address) {
                    self.builder.complete(block);
                }
            }
            "oom" => {
                let stream = self.streams.index(entry.stream)?;
                self.builder.refuse(size_bytes, stream, Origin::default());
            }
            // Segments, snapshots and annotations are not requests of the program.
            _ => {}
        }
        Ok(())
    }

    fn alloc(&mut self, address: u64, size_bytes: u64, stream: u64) -> Result<(), Problem> {
        let stream = self.streams.index(stream)?;
        let block = self.builder.alloc_of(size_bytes, stream, Origin { address, tag: None });
        self.live.insert(address, block);
        Ok(())
    }
}

/// The peak of the segments' bytes, counted backwards from those at the end.
fn peak_reserved_bytes(entries: &[Entry], end_bytes: u64) -> u64 {
    let (mut bytes, mut peak_bytes) = (end_bytes, end_bytes);
    for entry in entries.iter().rev() {
        let size_bytes = entry.size.unwrap_or(0);
        match &*entry.action {
            "segment_alloc" | "segment_map" => bytes = bytes.saturating_sub(size_bytes),
            "segment_free" | "segment_unmap" => bytes = bytes.saturating_add(size_bytes),
            _ => {}
        }
        peak_bytes = peak_bytes.max(bytes);
    }
    peak_bytes
}

#[cfg(test)]
mod tests {
    use crate::error::TraceError;
    use crate::trace::{Event, Trace};
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use serde_pickle::SerOptions;
    use std::io::Write as _;

    fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
        Trace::read_from(bytes, "snapshot.pickle")
    }

    fn pickled(value: &Value) -> Vec<u8> {
        serde_pickle::to_vec(value, SerOptions::new()).unwrap()
    }

    fn entry(action: &str, addr: u64, size: u64, stream: u64) -> Value {
        json!({"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1000 + addr, "frames": [
            {"filename": "train.py", "line": 7, "name": "step"}]})
    }

    fn small() -> Value {
        let layout = json!([
            {"address": 100, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []},
            {"address": 612, "size": 512, "requested_size": 11, "state": "active_allocated", "frames": []},
            {"address": 1124, "size": 1024, "requested_size": 0, "state": "inactive", "frames": []}]);
        json!({
            "segments": [{"device": 0, "address": 100, "total_size": 2048, "stream": 0, "blocks": layout}],
            "device_traces": [[
                entry("segment_alloc", 4096, 8192, 0),
                entry("alloc", 100, 500, 0),
                entry("alloc", 200, 700, 5),
                entry("free_requested", 300, 40, 0),
                entry("free_completed", 300, 40, 0),
                entry("free_requested", 200, 700, 5),
                {"action": "oom", "device_free": 3, "size": 9000, "stream": 0, "time_us": 1700},
                entry("free_completed", 200, 700, 5),
                entry("segment_free", 4096, 8192, 0),
                entry("snapshot", 0, 1000, 0),
            ], []],
            "allocator_settings": {"expandable_segments": false},
            "external_annotations": [],
        })
    }

    #[test]
    fn a_snapshot_becomes_a_trace() {
        let trace = read(&pickled(&small())).unwrap();
        let expected = [
            // From a free, and from the final layout.
            Event::Alloc { slot: 0, stream: 0, size_bytes: 40 },
            Event::Alloc { slot: 1, stream: 0, size_bytes: 11 },
            Event::Alloc { slot: 2, stream: 0, size_bytes: 500 },
            Event::Alloc { slot: 3, stream: 1, size_bytes: 700 },
            Event::Free { slot: 0 },
            Event::FreeUsed { slot: 3 },
            Event::Refused { stream: 0, size_bytes: 9000 },
            Event::Complete { slot: 3 },
        ];
        assert_eq!(trace.events(), expected);
        assert_eq!(trace.real_run().peak_reserved_bytes, Some(2048 + 8192));
        assert_eq!(trace.disagreements(), ["2 blocks are older than the history"]);
        assert_eq!((trace.name(), trace.header().run_seconds.is_some()), ("snapshot", true));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&pickled(&small())).unwrap();
        assert_eq!(read(&encoder.finish().unwrap()).unwrap().events(), expected);
    }

    #[test]
    fn other_pickles_are_refused_with_a_reason() {
        let said = |value: &Value| read(&pickled(value)).unwrap_err().to_string();
        assert!(said(&json!([1, 2])).contains("is not a memory snapshot of PyTorch"));
        assert!(
            said(&json!({"segments": []})).contains("device_traces"),
            "{}",
            said(&json!({"segments": []}))
        );
        let none = said(&json!({"segments": [], "device_traces": [[], []]}));
        assert!(none.contains("no history") && none.contains("_record_memory_history"), "{none}");
        let whole = pickled(&small());
        for end in 2..whole.len() {
            assert!(read(&whole[..end]).is_err(), "cut at {end}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&[&[0x80, 4][..], &bytes].concat());
        }

        #[test]
        fn no_change_makes_it_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = pickled(&small());
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = read(&bytes);
        }
    }
}

//! Reads a memory snapshot of PyTorch: the pickle that `torch.cuda.memory._dump_snapshot` writes.
//!
//! Its history has the requested sizes of allocations, their frees, and the driver's segments. A free that completed in the next
//! event took effect at once; another one was pending until then, because other streams used the block. The history does not name
//! those streams. The tag of a block is the line of the program that asked for it. Blocks whose allocations are older than the history, by their frees or by the final layout, are live from the
//! beginning. An out-of-memory error becomes a refused request. The history of the device with the most events is read.

use super::lines::EVENT_COUNT_MAX;
use super::pickle::{Pickle, Value};
use super::python_stacks::PythonStacks;
use super::streams::Streams;
use crate::error::Problem;
use crate::trace::{Builder, Header, Origin, RealRun, TagSums, Trace};
use std::collections::HashMap;
use std::io::BufRead;

/// True if a file that begins with these bytes is a pickle of a protocol with a header.
pub(super) fn is_snapshot(start: &[u8]) -> bool {
    matches!(start, [0x80, 2..=5, ..])
}

pub(super) fn read(mut source: impl BufRead, name: &str) -> Result<Trace, Problem> {
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).map_err(super::lines::problem_of)?;
    let pickle = Pickle::read(&bytes).map_err(|flaw| Problem::Snapshot(flaw.to_string()))?;
    drop(bytes);
    convert(&Snapshot(pickle), name)
}

fn convert(snapshot: &Snapshot, name: &str) -> Result<Trace, Problem> {
    let traces = snapshot.list(snapshot.needed(snapshot.0.root, "device_traces")?, "device_traces")?;
    let traces = traces.iter().map(|trace| snapshot.list(*trace, "device_traces"));
    let traces = traces.collect::<Result<Vec<_>, _>>()?;
    let traces = traces.iter().enumerate().filter(|(_, entries)| !entries.is_empty());
    let Some((device, entries)) = traces.clone().max_by_key(|(_, entries)| entries.len()) else {
        return Err(Problem::NoHistory);
    };
    if entries.len() > EVENT_COUNT_MAX {
        return Err(Problem::TooManyEvents(EVENT_COUNT_MAX));
    }
    let entries = entries.iter().map(|entry| snapshot.entry(*entry)).collect::<Result<Vec<_>, _>>()?;
    let segments = snapshot.segments(device as u64)?;
    let mut history = History::new(&snapshot.0);
    let begin_us = entries.iter().filter_map(|entry| entry.time_us).min();
    begin_us.into_iter().for_each(|_| history.builder.at(0));
    history.begin(&entries, &segments)?;
    let end_bytes = segments.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.total_bytes));
    let (begin_bytes, peak_bytes) = reserved_bytes(&entries, end_bytes);
    history.reserved_bytes = begin_bytes;
    history.builder.reserve(begin_bytes);
    for (index, entry) in entries.iter().enumerate() {
        if let (Some(begin), Some(now)) = (begin_us, entry.time_us) {
            history.builder.at(now.abs_diff(begin).saturating_mul(1000));
        }
        history.entry(entry, entries.get(index + 1))?;
    }
    for block in history.pending.drain().map(|(_, block)| block) {
        history.builder.complete(block);
    }
    let times = || entries.iter().filter_map(|entry| entry.time_us);
    let run_seconds = times().min().zip(times().max()).map(|(begin, end)| end.abs_diff(begin) as f64 / 1e6);
    let header = Header::of_program(
        name,
        "a memory snapshot of PyTorch".into(),
        run_seconds.filter(|seconds| *seconds > 0.0),
        Some(("recorded", peak_bytes)),
    );
    let others = traces.count() - 1;
    let History { builder, before_count, unknown_count, tags, stacks, .. } = history;
    let mut trace = builder.finish(header);
    let (tags, places, _) = tags.finish();
    trace.set_tags(tags, &places);
    trace.stacks = stacks.into_stacks();
    trace.real = RealRun { peak_reserved_bytes: Some(peak_bytes), ..RealRun::default() };
    let notes = [
        (others > 0).then(|| format!("only device {device} is read; {others} others have events too")),
        (before_count > 0).then(|| format!("{before_count} blocks are older than the history")),
        (unknown_count > 0).then(|| format!("{unknown_count} events of unknown blocks are left out")),
    ];
    trace.notes = notes.into_iter().flatten().collect();
    Ok(trace)
}

/// The parts of a snapshot.
struct Snapshot(Pickle);

struct Segment {
    total_bytes: u64,
    /// Its live blocks: address, size, frames.
    live: Vec<(u64, u64, Value)>,
    stream: u64,
}

struct Entry<'a> {
    action: &'a str,
    /// Missing in `oom`.
    address: Option<u64>,
    size_bytes: u64,
    stream: u64,
    time_us: Option<i64>,
    frames: Value,
}

impl Snapshot {
    fn needed(&self, dict: Value, key: &str) -> Result<Value, Problem> {
        self.0.item(dict, key).ok_or_else(|| Problem::Snapshot(format!("it has no `{key}`")))
    }

    fn list(&self, value: Value, key: &str) -> Result<&[Value], Problem> {
        self.0.list(value).ok_or_else(|| Problem::Snapshot(format!("its `{key}` is not a list")))
    }

    fn entry(&self, entry: Value) -> Result<Entry<'_>, Problem> {
        let mut read =
            Entry { action: "", address: None, size_bytes: 0, stream: 0, time_us: None, frames: Value::None };
        for (key, value) in self.0.items(entry).into_iter().flatten() {
            match key {
                "action" => read.action = self.0.text(value).unwrap_or_default(),
                "addr" => read.address = Some(number(value, key)?),
                "size" => read.size_bytes = number(value, key)?,
                "stream" => read.stream = stream(value),
                "time_us" => {
                    read.time_us = if let Value::Int(time_us) = value { Some(time_us) } else { None };
                }
                "frames" => read.frames = value,
                _ => {}
            }
        }
        if read.action.is_empty() {
            return Err(Problem::Snapshot("an event has no `action`".into()));
        }
        Ok(read)
    }

    /// The segments of a device.
    fn segments(&self, device: u64) -> Result<Vec<Segment>, Problem> {
        let Some(segments) = self.0.item(self.0.root, "segments") else { return Ok(Vec::new()) };
        // References to one list are cheap in the file.
        let mut block_count = 0;
        let mut read = Vec::new();
        for segment in self.list(segments, "segments")? {
            let own = |key| self.0.item(*segment, key);
            if own("device").and_then(Value::as_u64).unwrap_or(0) != device {
                continue;
            }
            let mut next = number(self.needed(*segment, "address")?, "address")?;
            let total_bytes = number(self.needed(*segment, "total_size")?, "total_size")?;
            let blocks = own("blocks").map_or(Ok(&[][..]), |blocks| self.list(blocks, "blocks"))?;
            block_count += blocks.len();
            if block_count > EVENT_COUNT_MAX {
                return Err(Problem::TooManyEvents(EVENT_COUNT_MAX));
            }
            let mut live = Vec::new();
            for block in blocks {
                let size_bytes = number(self.needed(*block, "size")?, "size")?;
                // Missing in old snapshots, where it follows from the sizes of the blocks before.
                let address = self.0.item(*block, "address").and_then(Value::as_u64).unwrap_or(next);
                next = address.saturating_add(size_bytes);
                if self.0.text(self.needed(*block, "state")?) == Some("active_allocated") {
                    let requested = self.0.item(*block, "requested_size").and_then(Value::as_u64);
                    let frames = self.0.item(*block, "frames").unwrap_or(Value::None);
                    live.push((address, requested.unwrap_or(size_bytes), frames));
                }
            }
            read.push(Segment { total_bytes, live, stream: own("stream").map_or(0, stream) });
        }
        Ok(read)
    }
}

fn number(value: Value, key: &str) -> Result<u64, Problem> {
    value.as_u64().ok_or_else(|| Problem::Snapshot(format!("`{key}` is not a number from 0 to 2^64")))
}

/// PyTorch writes handles as signed numbers.
fn stream(value: Value) -> u64 {
    if let Value::Int(number) = value { number as u64 } else { value.as_u64().unwrap_or(0) }
}

struct History<'a> {
    builder: Builder,
    live: HashMap<u64, Live>,
    /// Freed blocks that other streams use.
    pending: HashMap<u64, u32>,
    streams: Streams,
    before_count: u64,
    unknown_count: u64,
    reserved_bytes: u64,
    tags: TagSums,
    stacks: PythonStacks<'a>,
}

struct Live {
    block: u32,
    size_bytes: u64,
    /// The index of its tag.
    tag: Option<usize>,
}

impl<'a> History<'a> {
    fn new(pickle: &'a Pickle) -> Self {
        Self {
            builder: Builder::default(),
            live: HashMap::new(),
            pending: HashMap::new(),
            streams: Streams::default(),
            before_count: 0,
            unknown_count: 0,
            reserved_bytes: 0,
            tags: TagSums::default(),
            stacks: PythonStacks::new(pickle),
        }
    }

    /// Adds the blocks that were live before the first event. What a free states is the stack of the free, and not that of the allocation.
    fn begin(&mut self, entries: &[Entry<'_>], segments: &[Segment]) -> Result<(), Problem> {
        let mut known: HashMap<u64, bool> = HashMap::new();
        for entry in entries {
            let Some(address) = entry.address else { continue };
            match entry.action {
                "alloc" => {
                    known.insert(address, true);
                }
                "free_requested" if !known.contains_key(&address) => {
                    self.alloc(address, entry.size_bytes, entry.stream, None)?;
                    known.insert(address, true);
                    self.before_count += 1;
                }
                _ => {}
            }
        }
        for segment in segments {
            for (address, size_bytes, frames) in &segment.live {
                if !known.contains_key(address) {
                    let frames = self.stacks.has_frames(*frames).then_some(*frames);
                    self.alloc(*address, *size_bytes, segment.stream, frames)?;
                    self.before_count += 1;
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry<'_>, next: Option<&Entry<'_>>) -> Result<(), Problem> {
        let (address, size_bytes) = (entry.address.unwrap_or(0), entry.size_bytes);
        match entry.action {
            "alloc" => {
                // A block whose free the history lost.
                if self.free(address).is_some() {
                    self.unknown_count += 1;
                }
                self.alloc(address, size_bytes, entry.stream, Some(entry.frames))?;
            }
            "free_requested" => match self.free(address) {
                Some(block) => {
                    let is_over = next
                        .is_some_and(|next| next.action == "free_completed" && next.address == Some(address));
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
                let (origin, _) = self.origin(0, Some(entry.frames));
                self.builder.refuse(size_bytes, stream, origin);
            }
            "segment_alloc" | "segment_map" => self.reserve(self.reserved_bytes.saturating_add(size_bytes)),
            "segment_free" | "segment_unmap" => self.reserve(self.reserved_bytes.saturating_sub(size_bytes)),
            // Snapshots and annotations are not requests of the program.
            _ => {}
        }
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) {
        self.reserved_bytes = bytes;
        self.builder.reserve(bytes);
    }

    fn alloc(
        &mut self,
        address: u64,
        size_bytes: u64,
        stream: u64,
        frames: Option<Value>,
    ) -> Result<(), Problem> {
        let stream = self.streams.index(stream)?;
        let (origin, tag) = self.origin(address, frames);
        tag.into_iter().for_each(|tag| self.tags.grow(tag, size_bytes));
        let block = self.builder.alloc_of(size_bytes, stream, origin);
        self.live.insert(address, Live { block, size_bytes, tag });
        Ok(())
    }

    /// What the frames of an event say of its block; `None` for a block whose allocation the history does not have.
    fn origin(&mut self, address: u64, frames: Option<Value>) -> (Origin, Option<usize>) {
        let Some(frames) = frames else {
            return (Origin { address, ..Origin::default() }, None);
        };
        let (tag, stack) = self.stacks.of(frames, &mut self.tags);
        (Origin { address, tag: Some(tag as u32), stack }, Some(tag))
    }

    /// Frees the block at an address, if there is one.
    fn free(&mut self, address: u64) -> Option<u32> {
        let Live { block, size_bytes, tag } = self.live.remove(&address)?;
        self.builder.free(block);
        tag.into_iter().for_each(|tag| self.tags.free(tag, size_bytes));
        Some(block)
    }
}

/// The bytes of the segments before the first event, and their peak, counted backwards from those at the end.
fn reserved_bytes(entries: &[Entry<'_>], end_bytes: u64) -> (u64, u64) {
    let (mut bytes, mut peak_bytes) = (end_bytes, end_bytes);
    for entry in entries.iter().rev() {
        match entry.action {
            "segment_alloc" | "segment_map" => bytes = bytes.saturating_sub(entry.size_bytes),
            "segment_free" | "segment_unmap" => bytes = bytes.saturating_add(entry.size_bytes),
            _ => {}
        }
        peak_bytes = peak_bytes.max(bytes);
    }
    (bytes, peak_bytes)
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

    /// What Python's pickle writes for events that share their lists of frames, and for lists that share frames:
    /// `pickle.dumps(snapshot, protocol=4)`.
    const SHARED: &[u8] = b"\x80\x04\x95)\x03\x00\x00\x00\x00\x00\x00}\x94(\x8c\x08segments\x94]\x94}\x94(\x8c\x06device\x94K\x00\x8c\x07address\
        \x94M\x00\x10\x8c\x0atotal_size\x94M\x00 \x8c\x06stream\x94K\x00\x8c\x06blocks\x94]\x94}\x94(h\x05M\x00\x10\x8c\x04siz\
        e\x94M\x00\x02\x8c\x0erequested_size\x94M\xf4\x01\x8c\x05state\x94\x8c\x10active_allocated\x94\x8c\x06frames\x94]\x94(\
        }\x94(\x8c\x04name\x94\x8c\x09at::empty\x94\x8c\x08filename\x94\x8c\x02??\x94\x8c\x04line\x94K\x00u}\x94(h\x12\x8c\x07\
        forward\x94h\x14\x8c</env/lib/python3.12/site-packages/torch/nn/modules/linear.py\x94h\x16K}u}\x94(h\x12\x8c\x04step\
        \x94h\x14\x8c\x10/home/a/train.py\x94h\x16K*u}\x94(h\x12\x8c\x08<module>\x94h\x14h\x1ch\x16KZueuah\x0fh\x10ua\x8c\x0dd\
        evice_traces\x94]\x94]\x94(}\x94(\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x04addr\x94M\x00\x10h\x0bM\xf4\x01h\x07K\x00\
        \x8c\x07time_us\x94K\x0a\x8c\x0fcompile_context\x94\x8c\x03N/A\x94\x8c\x0duser_metadata\x94\x8c\x00\x94h\x0fh\x10u}\
        \x94(h#h$h%M\x00 h\x0bM\xbc\x02h\x07K\x00h&K\x14h'h(h)h*h\x0f]\x94(}\x94(h\x12\x8c\x04load\x94h\x14\x8c\x0f/home/a/dat\
        a.py\x94h\x16K\x07uh\x1deu}\x94(h#h$h%M\x00$h\x0bM\x84\x03h\x07K\x00h&K\x1eh'h(h)h*h\x0fh\x10u}\x94(h#\x8c\x0efree_req\
        uested\x94h%M\x00$h\x0bM\x84\x03h\x07K\x00h&K(h'h(h)h*h\x0fh,u}\x94(h#\x8c\x0efree_completed\x94h%M\x00$h\x0bM\x84\x03\
        h\x07K\x00h&K(h'h(h)h*h\x0fh,u}\x94(h#\x8c\x03oom\x94\x8c\x0bdevice_free\x94K\x01h\x0bM(#h\x07K\x00h&K2h\x0fh\x10uea\
        \x8c\x12allocator_settings\x94}\x94\x8c\x01x\x94\x88s\x8c\x14external_annotations\x94]\x94u.";

    #[test]
    fn shared_frames_become_tags_and_stacks() {
        let trace = read(SHARED).unwrap();
        let tags: Vec<_> =
            trace.tags().iter().map(|sum| (sum.tag.as_deref().unwrap(), sum.peak_bytes)).collect();
        assert_eq!(tags, [("train.py:42 step", 1400), ("data.py:7 load", 700)]);
        let stacks: Vec<Vec<&str>> = (0..trace.events().len())
            .filter_map(|event| trace.origin(event).stack)
            .map(|stack| trace.stacks().stack(stack).map(|frame| &*frame.function).collect())
            .collect();
        let (step, load) = (vec!["at::empty", "forward", "step", "<module>"], vec!["load", "<module>"]);
        assert_eq!(stacks, [&step, &load, &step, &step, &step].map(Clone::clone));
        assert_eq!((trace.stacks().frames().len(), trace.stacks().nodes().len()), (5, 5));
        assert_eq!(trace.stacks().frames()[0].file, "", "C++ has no file here");
        let refusal = trace.last_refusal().unwrap();
        assert_eq!(
            trace.tags()[trace.origin(refusal).tag.unwrap() as usize].tag.as_deref(),
            Some("train.py:42 step")
        );
        let holders = trace.holders(trace.events().len());
        assert_eq!(holders.list[0].holder.to_string(), "data.py:7 load");
        assert_eq!(trace.reserved(), [(0, 8192)]);
    }

    proptest! {
        #[test]
        fn no_change_of_shared_parts_makes_it_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = SHARED.to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = read(&bytes);
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

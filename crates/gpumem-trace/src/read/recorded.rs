//! Converts a recording of `GPUMEM_TRACE` into a trace: its blocks, and the points where frees take effect, which follow from its
//! waits.
//!
//! A block that other streams used is freed at its `f` line. The free takes effect at the first point where the block's own
//! stream is ordered behind those uses, by waits of that stream through any streams and events, or by a wait of the host. Events
//! lost while recording are repaired: if a live address is allocated again, the old block is freed first. A block that is freed, and whose allocation is missing, was live at the
//! beginning; without its size (files before version 3) the free is skipped. A flight recorder also states how much memory was in
//! use in the end: what its events do not account for becomes one block that is live from the beginning to the end.

use super::streams::Streams;
use crate::error::Problem;
use crate::trace::{Builder, Header, OpenEnd, Origin, RealRun, TagSums, Trace, all_pools_ended};
use gpumem_pool::Bytes;
use gpumem_pool::trace::{RecordedEvent, Recording, Tail, What};
use std::collections::{HashMap, HashSet};
use std::io::Read;

/// Reads a recording, with notes on its missing parts.
pub(super) fn read(source: impl Read, name: &str) -> Result<Trace, Problem> {
    convert(Recording::read_from(source)?, name)
}

pub(super) fn convert(recording: Recording, name: &str) -> Result<Trace, Problem> {
    let mut converter = Converter::default();
    converter.begin(&recording)?;
    for (index, event) in (1..).zip(&recording.events) {
        converter.event(&recording, index, event)?;
    }
    let older_bytes = converter.add_older(&recording);
    let real = RealRun::of(&recording);
    let is_whole = recording.overwritten_count == 0 && recording.part == 0 && recording.dropped_count == 0;
    let open_end = match recording.tail {
        Some(_) => Some(OpenEnd::CutShort),
        None if !is_whole => Some(OpenEnd::Incomplete),
        None if recording.has_exited => None,
        None => (!all_pools_ended(&recording.events)).then_some(OpenEnd::Running),
    };
    let Recording { events, dropped_count, tail, part, overwritten_count, .. } = recording;
    let made_up_count = converter.made_up_count;
    let (tags, places, nameless) = std::mem::take(&mut converter.tags).finish();
    let run_ns = events.last().map_or(0, |last| last.time_ns - events[0].time_ns);
    let header = Header::recorded(name, run_ns as f64 / 1e9, real.peak_reserved_bytes);
    let mut trace = converter.finish().finish(header);
    let lost = (dropped_count > 0).then(|| format!("{dropped_count} events were lost while recording"));
    let made_up = (made_up_count > 0)
        .then(|| format!("{made_up_count} frees without a block, or blocks without a free"));
    let before_count = overwritten_count.saturating_add(u64::from(part));
    let missing = (before_count > 0).then(|| match (part, older_bytes) {
        (0, 0) => "the recording has only the last events of the program".into(),
        (0, _) => format!(
            "the recording has only the last events of the program; {} in blocks that are older are one block here",
            Bytes(older_bytes)
        ),
        _ => "the beginning of the trace is gone; it starts with the blocks that were live".into(),
    });
    trace.set_tags(tags, &places);
    (trace.real, trace.open_end) = (real, open_end);
    let notes = tail.map(|tail: Tail| tail.to_string()).into_iter().chain(lost).chain(made_up);
    trace.notes = notes.chain(missing).chain(nameless).collect();
    Ok(trace)
}

#[derive(Default)]
struct Converter {
    builder: Builder,
    /// Live blocks, by pool and address.
    live: HashMap<(u32, u64), Live>,
    streams: Streams,
    /// For each stream: the other streams that it is ordered behind, each up to an event index.
    after: HashMap<u64, HashMap<u64, u64>>,
    /// Like `after`, for recorded events (`marks`) and for the host (`done`).
    marks: HashMap<u64, HashMap<u64, u64>>,
    done: HashMap<u64, u64>,
    /// Freed blocks with uses that may be pending.
    pending: Vec<Pending>,
    made_up_count: u64,
    tags: TagSums,
    /// The bytes that each pool reserves.
    reserved: HashMap<u32, u64>,
}

struct Live {
    block: u32,
    users: Vec<u64>,
    size_bytes: u64,
    /// The index of its tag.
    tag: usize,
}

struct Pending {
    block: u32,
    home: u64,
    users: Vec<u64>,
    index: u64,
}

impl Converter {
    /// Adds the blocks that were live before the first event: the recording has their frees only.
    fn begin(&mut self, recording: &Recording) -> Result<(), Problem> {
        let mut known: HashSet<(u32, u64)> = HashSet::new();
        recording.events.first().into_iter().for_each(|first| self.builder.at(first.time_ns));
        for event in &recording.events {
            match event.what {
                What::Alloc { pool, address, .. } => {
                    known.insert((pool, address));
                }
                What::Free { pool, address, stream, size_bytes, .. }
                    if !known.remove(&(pool, address)) && size_bytes > 0 =>
                {
                    let stream = self.streams.index(stream)?;
                    let tag = self.tags.place(recording, pool, 0);
                    let block = self.builder.alloc_of(size_bytes, stream, origin(address, tag));
                    self.tags.grow(tag, size_bytes);
                    let live = Live { block, users: Vec::new(), size_bytes, tag };
                    // An address that was freed twice without a block in between cannot be one.
                    self.live.entry((pool, address)).or_insert(live);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds a block for the memory of blocks that the events of a flight recorder do not have, and returns its size.
    fn add_older(&mut self, recording: &Recording) -> u64 {
        if recording.overwritten_count == 0 {
            return 0;
        }
        let mut in_use: HashMap<u32, u64> = HashMap::new();
        for event in &recording.events {
            if let What::InUse { pool, in_use_bytes, .. } = event.what {
                in_use.insert(pool, in_use_bytes);
            }
        }
        let in_use_bytes = in_use.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let known_bytes = self.live.values().map(|live| live.size_bytes).fold(0, u64::saturating_add);
        let older_bytes = in_use_bytes.saturating_sub(known_bytes);
        if older_bytes > 0 {
            self.builder.alloc_before(older_bytes, 0, Origin::default());
        }
        older_bytes
    }

    fn event(&mut self, recording: &Recording, index: u64, event: &RecordedEvent) -> Result<(), Problem> {
        self.builder.at(event.time_ns);
        match event.what {
            What::Alloc { pool, address, size_bytes, stream, tag } => {
                if self.free(pool, address).is_some() {
                    self.made_up_count += 1;
                }
                let stream = self.streams.index(stream)?;
                let tag = self.tags.place(recording, pool, tag);
                let block = self.builder.alloc_of(size_bytes, stream, origin(address, tag));
                self.tags.grow(tag, size_bytes);
                self.live.insert((pool, address), Live { block, users: Vec::new(), size_bytes, tag });
            }
            What::Use { pool, address, stream } => {
                self.live.get_mut(&(pool, address)).into_iter().for_each(|live| live.users.push(stream));
            }
            What::Free { pool, address, stream, is_complete, .. } => match self.free(pool, address) {
                None => self.made_up_count += 1,
                Some(Live { block, users, .. }) => {
                    if !is_complete {
                        self.defer(Pending { block, home: stream, users, index });
                    }
                }
            },
            What::Refused { pool, size_bytes, stream, tag, .. } => {
                let stream = stream.map_or(Ok(0), |stream| self.streams.index(stream))?;
                let tag = self.tags.place(recording, pool, tag);
                self.builder.refuse(size_bytes, stream, origin(0, tag));
            }
            What::Wait { stream, source } => {
                let mut known = self.after.get(&source).cloned().unwrap_or_default();
                known.insert(source, index);
                join(self.after.entry(stream).or_default(), &known);
                self.settle();
            }
            What::Mark { event, stream } => {
                let mut known = self.after.get(&stream).cloned().unwrap_or_default();
                known.insert(stream, index);
                self.marks.insert(event, known);
            }
            What::WaitForMark { event, stream } => {
                if let Some(known) = self.marks.get(&event) {
                    join(self.after.entry(stream).or_default(), known);
                    self.settle();
                }
            }
            What::StreamDone { stream } => {
                let mut known = self.after.get(&stream).cloned().unwrap_or_default();
                known.insert(stream, index);
                join(&mut self.done, &known);
                self.settle();
            }
            What::MarkDone { event } => {
                if let Some(known) = self.marks.get(&event) {
                    join(&mut self.done, known);
                    self.settle();
                }
            }
            What::DeviceDone => {
                // The trace does not distinguish devices, so a wait for one device counts for all.
                let pending = std::mem::take(&mut self.pending);
                pending.iter().for_each(|pending| self.builder.complete(pending.block));
            }
            What::Reserved { pool, reserved_bytes, .. } => {
                self.reserved.insert(pool, reserved_bytes);
                let sum = self.reserved.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
                self.builder.reserve(sum);
            }
            _ => {}
        }
        Ok(())
    }

    /// Defers a free until its uses are ordered before.
    fn defer(&mut self, pending: Pending) {
        if !pending.users.is_empty() {
            self.pending.push(pending);
            self.settle();
        }
    }

    /// Removes and frees the block at an address, if there is one.
    fn free(&mut self, pool: u32, address: u64) -> Option<Live> {
        let live = self.live.remove(&(pool, address))?;
        self.builder.free(live.block);
        self.tags.free(live.tag, live.size_bytes);
        Some(live)
    }

    /// Completes the frees whose uses the owner stream, or the host, is ordered behind.
    fn settle(&mut self) {
        let (after, done) = (&self.after, &self.done);
        let is_over = |pending: &mut Pending| {
            let of_home = after.get(&pending.home);
            pending.users.iter().all(|user| {
                let known = of_home.and_then(|known| known.get(user)).max(done.get(user));
                known.is_some_and(|known| *known > pending.index)
            })
        };
        for over in self.pending.extract_if(.., is_over) {
            self.builder.complete(over.block);
        }
    }

    fn finish(mut self) -> Builder {
        for pending in self.pending.drain(..) {
            self.builder.complete(pending.block);
        }
        self.builder
    }
}

fn origin(address: u64, tag: usize) -> Origin {
    Origin { address, tag: Some(tag as u32), ..Origin::default() }
}

fn join(into: &mut HashMap<u64, u64>, known: &HashMap<u64, u64>) {
    for (stream, index) in known {
        let own = into.entry(*stream).or_default();
        *own = (*own).max(*index);
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::{Setup, replay};
    use crate::trace::{Event, TagSum, Trace};
    use gpumem_pool::trace::Trace as Recorder;
    use gpumem_pool::{BackendKind, Block, Device, FlightRecorder, Pool, Stream};
    use gpumem_sim::SimConfig;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("gpumem-{}-{name}.trace", std::process::id()))
    }

    /// A recorded program becomes a trace with its blocks, streams and deferred frees, and can be replayed.
    #[test]
    fn a_recorded_program_is_replayed() {
        let path = scratch("replayed");
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let builder = Pool::builder(&device).conf("profile:tight,hard_limit:1GiB").unwrap();
        let pool = builder.adaptor(Recorder::create(&path).unwrap()).build().unwrap();
        let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
        let kept: Vec<Block> = (1..50).map(|step| pool.alloc(step * 1000, &home).unwrap()).collect();
        let forward = pool.scope("forward");
        let used = pool.alloc(1 << 20, &home).unwrap();
        other.wait_for(&home).unwrap();
        used.record_use(&other);
        drop(used);
        let between = pool.alloc(2 << 20, &other).unwrap();
        home.wait_for(&other).unwrap();
        let backward = pool.scope("backward");
        let last = pool.alloc(3 << 20, &home).unwrap();
        drop(backward);
        let left = std::mem::ManuallyDrop::new(pool.alloc(512, &home).unwrap());
        drop((kept, between, last, forward, pool));

        let trace = Trace::read(&path).unwrap();
        assert_eq!(trace.disagreements(), Vec::<String>::new());
        assert_eq!((trace.operation_count(), trace.stream_count()), (2 * 52 + 1, 2));
        let at = |what: fn(&Event) -> bool| trace.events().iter().position(what).unwrap();
        let deferred = at(|event| matches!(event, Event::FreeUsed { .. }));
        let between = at(|event| matches!(event, Event::Alloc { size_bytes: 0x20_0000, .. }));
        let complete = at(|event| matches!(event, Event::Complete { .. }));
        let last = at(|event| matches!(event, Event::Alloc { size_bytes: 0x30_0000, .. }));
        assert!(deferred < between && between < complete && complete < last, "at the wait, and not before");
        assert!(trace.name().starts_with("gpumem-") && trace.header().run_seconds.unwrap() > 0.0);
        let outcome = replay(&trace, &driver, &Setup::default(), |_| ()).unwrap();
        assert_eq!(outcome.live, trace.peaks());
        assert!(outcome.ratio() >= 1.0);

        let tag = |tag: Option<&str>, allocation_count, allocated_bytes, peak_bytes, left_bytes| {
            let tag = tag.map(String::from);
            TagSum { tag, allocation_count, allocated_bytes, peak_bytes, left_bytes }
        };
        let tags = [
            tag(Some("backward"), 1, 3 << 20, 3 << 20, 0),
            tag(Some("forward"), 3, (3 << 20) + 512, (2 << 20) + 512, 512),
            tag(None, 49, 1_225_000, 1_225_000, 0),
        ];
        assert_eq!(trace.tags(), tags);

        let bytes = std::fs::read(&path).unwrap();
        let cut = Trace::read_from(&bytes[..bytes.len() - 1], &path).unwrap();
        let notes = cut.disagreements();
        assert!(notes.len() == 1 && notes[0].contains("cut short at byte"), "{notes:?}");
        // The settings and the memory of the recorded program, which a replay with the same settings reproduces.
        let real = trace.real_run();
        let settings = real.settings().unwrap();
        assert_eq!(
            (settings.hard_limit_bytes, &*settings.conf),
            (Some(1 << 30), "profile:tight,hard_limit:1GiB")
        );
        let setup = Setup::of_recording(&trace).unwrap();
        let outcome = replay(&trace, &gpumem_sim::driver(SimConfig::new()).unwrap(), &setup, |_| ()).unwrap();
        assert_eq!((Some(outcome.backend), outcome.refusal_count), (setup.backend, 0));
        assert_eq!(real.peak_reserved_bytes, Some(outcome.peak_reserved_bytes), "{outcome:?}");
        assert_eq!(trace.header().peers().next().unwrap().peak_reserved_bytes, outcome.peak_reserved_bytes);

        let error = Trace::read_from(&bytes[..12], &path).unwrap_err().to_string();
        assert!(error.contains("this file is not a gpumem trace"), "{error}");
        // Copies the file without the chunks that hold names.
        let (mut nameless, mut rest) = (Vec::new(), &bytes[..]);
        while let Some(start) = rest.windows(4).position(|bytes| bytes == b"gmtn") {
            let name_bytes = u32::from_le_bytes(rest[start + 4..start + 8].try_into().unwrap()) as usize;
            nameless.extend(&rest[..start]);
            rest = &rest[start + 36 + name_bytes..];
        }
        nameless.extend(rest);
        let trace = Trace::read_from(&nameless[..], &path).unwrap();
        let notes = trace.disagreements();
        assert!(
            notes[0].starts_with("2 tags have no name in the file, the first of them tag 1 of"),
            "{notes:?}"
        );
        let name = trace.tags()[0].tag.as_deref().unwrap();
        assert!(name.starts_with("tag 2 of pool") && trace.tags().len() == 3, "{name}");
        std::fs::remove_file(path).unwrap();
        drop(std::mem::ManuallyDrop::into_inner(left));
    }

    /// Requests that the program was refused are tried again, and do not end the replay.
    #[test]
    fn refused_requests_are_tried_again() {
        let path = scratch("refused");
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let builder = Pool::builder(&device).hard_limit(64 << 20);
        let pool = builder.adaptor(Recorder::create(&path).unwrap()).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        let held = pool.alloc(40 << 20, &stream).unwrap();
        assert!(pool.alloc(50 << 20, &stream).is_err());
        drop(held);
        drop((pool.alloc(50 << 20, &stream).unwrap(), pool));
        let trace = Trace::read(&path).unwrap();
        assert_eq!(trace.events()[1], Event::Refused { stream: 0, size_bytes: 50 << 20 });
        assert_eq!((trace.refused_count(), trace.operation_count()), (1, 4));
        assert_eq!((trace.peaks().live_bytes, trace.floor_bytes()), (50 << 20, 50 << 20));
        let refused_again = |limit_bytes: u64| {
            let setup = Setup { hard_limit: Some(limit_bytes.into()), ..Setup::default() };
            let outcome = replay(&trace, &driver, &setup, |_| ()).unwrap();
            (outcome.recorded_refusal_count, outcome.refusal_count)
        };
        assert_eq!((refused_again(64 << 20), refused_again(128 << 20)), ((1, 1), (1, 0)));
        assert_eq!(Setup::of_recording(&trace).unwrap().hard_limit, Some((64 << 20).into()));
        std::fs::remove_file(path).unwrap();
    }

    /// The memory of a pool that has ended does not count for the peak of the next one.
    #[test]
    fn pools_one_after_another_reserve_no_more_than_one() {
        let path = scratch("pools");
        let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
        let recorder = Recorder::create(&path).unwrap();
        for mib in [6, 10, 8] {
            let pool =
                Pool::builder(&device).adaptor(recorder.clone()).backend(BackendKind::None).build().unwrap();
            drop(pool.alloc(mib << 20, &Stream::new(&device).unwrap()).unwrap());
        }
        drop(recorder);
        let trace = Trace::read(&path).unwrap();
        assert_eq!(trace.real_run().peak_reserved_bytes, Some(10 << 20));
        assert_eq!(trace.real_run().settings().unwrap().backend, BackendKind::None);
        // Several pools may have shared the memory, so a replay has no limit of one of them.
        assert_eq!(Setup::of_recording(&trace).unwrap().hard_limit, None);
        std::fs::remove_file(path).unwrap();
    }

    /// A flight recorder's file has the last events only. What is older and still in use is live from the beginning.
    #[test]
    fn a_flight_record_is_replayed_with_the_memory_in_use() {
        let path = scratch("flight");
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let builder = Pool::builder(&device).hard_limit(64 << 20);
        let pool = builder.flight_recorder(FlightRecorder::File(path.clone())).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        let old = pool.alloc(30 << 20, &stream).unwrap();
        let freed_late = pool.alloc(2 << 20, &stream).unwrap();
        (0..4000).for_each(|_| drop(pool.alloc(4096, &stream).unwrap()));
        drop(freed_late);
        let new = pool.alloc(10 << 20, &stream).unwrap();
        let error = pool.alloc(25 << 20, &stream).unwrap_err();
        let trace = Trace::read(&path).unwrap();
        let notes = trace.disagreements();
        assert!(notes.len() == 1 && notes[0].contains("30.000 MiB in blocks that are older"), "{notes:?}");
        let is_of = |event: &Event, bytes: u64| matches!(event, Event::Alloc { size_bytes, .. } if *size_bytes == bytes);
        assert!(is_of(&trace.events()[0], 30 << 20));
        assert_eq!(trace.events().iter().filter(|event| is_of(event, 2 << 20)).count(), 1);
        assert_eq!(trace.events().last(), Some(&Event::Refused { stream: 0, size_bytes: 25 << 20 }));
        assert_eq!(trace.peaks().live_bytes, 40 << 20);
        assert_eq!(
            trace.real_run().reports,
            [format!("{:#}", error.out_of_memory().unwrap())
                .lines()
                .take_while(|line| !line.contains("the last requests"))
                .collect::<Vec<_>>()
                .join("\n")]
        );
        drop((old, new));
        std::fs::remove_file(path).unwrap();
    }
}

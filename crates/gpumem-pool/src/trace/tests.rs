//! Rings, bytes and files without a pool.

use super::book::Entry;
use super::event::{EventKind, Raw, RecordedEvent, What};
use super::format::{self, CHUNK_HEADER_BYTES, Flaw, HEADER_BYTES};
use super::read::{ReadError, Recording};
use super::recorder::Recorder;
use super::ring::{EVENT_COUNT, Level, Overflow, Ring, Timed};
use super::{PoolSettings, file};
use crate::config::{BackendKind, MemoryKind};
use crate::error::KeptBy;
use crate::pool::{MoveKind, SpillMove};
use crate::stats::{Names, Tags};
use core::time::Duration;
use gpumem_device::StreamId;
use proptest::prelude::*;
use std::sync::Arc;

fn settings(pool: u32) -> PoolSettings {
    PoolSettings {
        pool,
        parent: (!pool.is_multiple_of(2)).then_some(7),
        name: format!("a=b {pool}"),
        device: "a device".into(),
        device_ordinal: 2,
        device_bytes: 1 << 33,
        backend: BackendKind::Native,
        kind: MemoryKind::Unified,
        hard_limit_bytes: pool.is_multiple_of(3).then_some(4 << 20),
        conf: "profile:tight,roundup_power2_divisions:2".into(),
    }
}

fn entry(pool: u32, names: &Arc<Names>) -> Entry {
    Entry { settings: settings(pool), names: Arc::clone(names), listing: std::sync::Weak::new() }
}

fn alloc(address: u64) -> Raw {
    Raw { kind: EventKind::Alloc, words: [address, 4096, 7, 3 | 5 << 32] }
}

fn timed() -> impl Strategy<Value = Timed> {
    let words = prop_oneof![any::<[u64; 4]>(), any::<[u8; 4]>().prop_map(|words| words.map(u64::from))];
    (1_u8..=12, 0..1_u64 << 56, words).prop_map(|(kind, time_ns, words)| Timed {
        time_ns,
        raw: Raw { kind: EventKind::of(kind).unwrap(), words },
    })
}

/// The content of a chunk.
#[derive(Clone, Debug)]
enum Chunk {
    Events(Vec<Timed>),
    Name(u32, u32, String),
    Pool(PoolSettings),
    Report(String),
    Exit,
}

impl Chunk {
    fn add(&self, bytes: &mut Vec<u8>, thread: u32) {
        match self {
            Self::Events(events) => format::add_chunk(bytes, thread, u64::from(thread), events),
            Self::Name(pool, tag, name) => format::add_name(bytes, *pool, *tag, name),
            Self::Pool(settings) => format::add_pool(bytes, settings),
            Self::Report(text) => format::add_report(bytes, 3, 9, text),
            Self::Exit => format::add_exit(bytes),
        }
    }

    fn events(&self) -> &[Timed] {
        match self {
            Self::Events(events) => events,
            _ => &[],
        }
    }
}

/// A file of chunks, and its content.
fn file() -> impl Strategy<Value = (Vec<u8>, Vec<Chunk>)> {
    let events = proptest::collection::vec(timed(), 1..20).prop_map(Chunk::Events);
    let name = (0..3_u32, 1..3_u32, "\\PC{0,12}").prop_map(|(pool, tag, name)| Chunk::Name(pool, tag, name));
    let pool = (0..9_u32).prop_map(|pool| Chunk::Pool(settings(pool)));
    let report = "(\\PC|\n){0,40}".prop_map(Chunk::Report);
    proptest::collection::vec(
        prop_oneof![4 => events, 2 => name, 1 => pool, 1 => report, 1 => Just(Chunk::Exit)],
        0..8,
    )
    .prop_map(|chunks| {
        let mut bytes = format::header();
        for (thread, chunk) in (0..).zip(&chunks) {
            chunk.add(&mut bytes, thread);
        }
        (bytes, chunks)
    })
}

fn event_count(chunks: &[Chunk]) -> u64 {
    chunks.iter().map(|chunk| chunk.events().len()).sum::<usize>() as u64
}

proptest! {
    #[test]
    fn what_is_written_is_read((bytes, chunks) in file()) {
        let recording = Recording::read_from(&bytes[..]).unwrap();
        prop_assert_eq!(recording.tail, None);
        prop_assert_eq!(recording.has_exited, chunks.iter().any(|chunk| matches!(chunk, Chunk::Exit)));
        let mut expected: Vec<_> =
            chunks.iter().flat_map(Chunk::events).map(|event| (event.time_ns, event.raw.what())).collect();
        expected.sort_by_key(|(time_ns, what)| (*time_ns, what.rank()));
        let found: Vec<_> = recording.events.iter().map(|event| (event.time_ns, event.what)).collect();
        prop_assert_eq!(found, expected);
        let dropped = (0_u64..).zip(&chunks).filter(|(_, chunk)| matches!(chunk, Chunk::Events(_)));
        prop_assert_eq!(recording.dropped_count, dropped.map(|(thread, _)| thread).sum::<u64>());
        let names: std::collections::HashMap<_, _> = chunks.iter().filter_map(|chunk| match chunk {
            Chunk::Name(pool, tag, name) => Some(((*pool, *tag), &**name)),
            _ => None,
        }).collect();
        let pools: Vec<_> = chunks.iter().filter_map(|chunk| match chunk {
            Chunk::Pool(settings) => Some(settings.clone()),
            _ => None,
        }).collect();
        prop_assert_eq!(&recording.pools, &pools);
        let reports = chunks.iter().filter_map(|chunk| match chunk {
            Chunk::Report(text) => Some((3, 9, &**text)),
            _ => None,
        });
        let found = recording.reports.iter().map(|report| (report.pool, report.time_ns, &*report.text));
        prop_assert_eq!(found.collect::<Vec<_>>(), reports.collect::<Vec<_>>());
        for (pool, tag) in (0..4).flat_map(|pool| (0..4).map(move |tag| (pool, tag))) {
            prop_assert_eq!(recording.tag(pool, tag), names.get(&(pool, tag)).copied());
        }
    }

    /// A file truncated anywhere is read up to its last whole chunk, and the tail reports the cut.
    #[test]
    fn a_cut_file_is_read_up_to_the_cut((bytes, chunks) in file(), at in any::<prop::sample::Index>()) {
        let cut = at.index(bytes.len());
        match Recording::read_from(&bytes[..cut]) {
            Err(error) => prop_assert!(cut < HEADER_BYTES && matches!(error, ReadError::Foreign)),
            Ok(recording) => {
                let (mut end, mut whole_count) = (HEADER_BYTES, 0);
                for chunk in &chunks {
                    let mut bytes = Vec::new();
                    chunk.add(&mut bytes, 0);
                    if end + bytes.len() > cut {
                        break;
                    }
                    end += bytes.len();
                    whole_count += chunk.events().len() as u64;
                }
                prop_assert_eq!(recording.events.len() as u64, whole_count);
                let tail = recording.tail.map(|tail| (tail.offset, tail.read_count, tail.flaw));
                prop_assert_eq!(tail, (end < cut).then_some((end as u64, whole_count, Flaw::Cut)));
            }
        }
    }

    /// A changed byte is detected, and the chunks before it are read.
    #[test]
    fn a_changed_byte_is_found((mut bytes, chunks) in file(), at in any::<prop::sample::Index>(), flip in 1_u8..) {
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        match Recording::read_from(&bytes[..]) {
            Err(error) => prop_assert!(at < HEADER_BYTES, "{}", error),
            Ok(recording) => {
                let tail = recording.tail.unwrap();
                prop_assert!(at >= tail.offset as usize);
                prop_assert!(recording.events.len() as u64 <= event_count(&chunks));
                prop_assert_eq!(tail.read_count, recording.events.len() as u64);
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), is_whole in any::<bool>()) {
        let mut file = if is_whole { format::header() } else { Vec::new() };
        file.extend(&bytes);
        let _ = Recording::read_from(&file[..]);
        if let Some((start, rest)) = bytes.split_first_chunk::<CHUNK_HEADER_BYTES>()
            && let Some(header) = format::chunk_header(start)
        {
            let _ = format::content(&header, start, rest.to_vec());
        }
    }
}

#[test]
fn other_files_are_refused_with_a_reason() {
    for bytes in [&b""[..], b"#{\"format\":1}\n", b"GPUMEMTR", &[0; 100]] {
        assert!(matches!(Recording::read_from(bytes), Err(ReadError::Foreign)));
    }
    assert!(matches!(Recording::read("/nowhere/at/all"), Err(ReadError::Io(_))));
    assert!(format::is_trace(&format::header()) && !format::is_trace(b"GPUMEM"));
    let error = ReadError::Version { found: 6, known: 5 }.to_string();
    assert!(error.contains("version 6"), "{error}");
    let error = Recording::read_from(&of_version(6)[..]).unwrap_err();
    assert!(matches!(error, ReadError::Version { found: 6, known: 5 }), "{error}");
}

/// Reads a file with these bytes after its header.
fn read(chunks: &[u8]) -> Recording {
    let bytes = [format::header(), chunks.to_vec()].concat();
    Recording::read_from(&bytes[..]).unwrap()
}

/// A chunk that names a tag by these bytes, with a valid crc.
fn name_chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = Vec::new();
    format::add_whole(&mut chunk, b"gmtn", [3, 5], [0; 2], bytes);
    chunk
}

#[test]
fn names_that_are_none_are_told_of() {
    let mut whole = name_chunk("weights".as_bytes());
    let end = HEADER_BYTES + whole.len();
    format::add_chunk(&mut whole, 0, 0, &[Timed { time_ns: 1, raw: alloc(256) }]);
    let recording = read(&whole);
    assert_eq!((recording.tag(3, 5), recording.tag(3, 0), recording.tail), (Some("weights"), None, None));

    for (bytes, flaw, says) in [
        (&[b'x'; 257][..], Flaw::NameTooLong, "is longer than the maximum of 256 bytes"),
        (b"wei\xFFghts", Flaw::NameNotText, "is not UTF-8"),
    ] {
        let tail = read(&[whole.clone(), name_chunk(bytes)].concat()).tail.unwrap();
        assert_eq!((tail.offset, tail.read_count, tail.flaw), ((HEADER_BYTES + whole.len()) as u64, 1, flaw));
        let text = tail.to_string();
        assert!(text.contains(says) && text.ends_with("the 1 events before were read"), "{text}");
    }
    let mut cut = name_chunk(b"weights");
    cut.truncate(cut.len() - 3);
    assert_eq!(read(&cut).tail.unwrap().flaw, Flaw::Cut);
    let nameless = read(&whole[end - HEADER_BYTES..]);
    assert_eq!((nameless.tag(3, 5), nameless.events.len(), nameless.tail), (None, 1, None));
}

#[test]
fn long_names_are_cut_between_characters() {
    let mut chunk = Vec::new();
    format::add_name(&mut chunk, 1, 1, &"ä".repeat(200));
    format::add_name(&mut chunk, 1, 2, &format!("x{}", "ä".repeat(200)));
    format::add_name(&mut chunk, 1, 3, "");
    let recording = read(&chunk);
    let lengths = [1, 2, 3].map(|tag| recording.tag(1, tag).map(str::len));
    assert_eq!((lengths, recording.tail), ([Some(256), Some(255), Some(0)], None));
}

/// The header of a file of another version.
fn of_version(version: u8) -> Vec<u8> {
    let mut bytes = b"GPUMEMTR".to_vec();
    bytes.extend([version, 0, 0, 0, 7, 0, 0, 0]);
    bytes.extend(format::crc(&[&bytes]).to_le_bytes());
    assert_eq!(bytes.len(), format::header().len());
    bytes
}

/// Files of versions 1 and 2 have no settings, and no sizes of freed blocks.
#[test]
fn files_of_earlier_versions_are_read() {
    for version in [1, 2] {
        let mut bytes = of_version(version);
        let free = Raw { kind: EventKind::Free, words: [256, 1, 7, 3] };
        let events = [Timed { time_ns: 1, raw: alloc(256) }, Timed { time_ns: 2, raw: free }];
        format::add_chunk(&mut bytes, 0, 0, &events);
        let recording = Recording::read_from(&bytes[..]).unwrap();
        assert_eq!((recording.events.len(), recording.tail, recording.pools.len()), (2, None, 0));
        assert_eq!(recording.version, u32::from(version));
        let free = What::Free { pool: 3, address: 256, stream: 7, size_bytes: 0, is_complete: true };
        assert_eq!(recording.events[1].what, free);
    }
}

/// Every event means after reading what was recorded.
#[test]
fn figures_and_refusals_keep_their_values() {
    let by = Some(crate::RefusedBy::Quota);
    let figures = crate::pool::Figures {
        reserved_bytes: 4 << 20,
        reserved_peak_bytes: 6 << 20,
        in_use_bytes: 3 << 20,
        block_count: 5,
    };
    let moved =
        |kind| SpillMove { kind, address: 512, size_bytes: 1 << 40, stream: StreamId::from_u64(9), tag: 5 };
    let raws = [
        Raw::free(3, 256, 4096, 7, true),
        Raw::refused(3 | 5 << 32, 1 << 40, None, by),
        Raw::refused(3, 1 << 40, Some(0), None),
        Raw::reserved(3, &figures),
        Raw::in_use(3, &figures),
        Raw::moved(3 | 5 << 32, &moved(MoveKind::Out { is_copied: true })),
        Raw::moved(3, &moved(MoveKind::Back { is_early: false })),
        Raw::kept(3, Some(KeptBy::Nothing), 1 << 40, 2),
        Raw::kept(3, None, 7, 0),
    ];
    let expected = [
        What::Free { pool: 3, address: 256, stream: 7, size_bytes: 4096, is_complete: true },
        What::Refused { pool: 3, size_bytes: 1 << 40, stream: None, tag: 5, by },
        What::Refused { pool: 3, size_bytes: 1 << 40, stream: Some(0), tag: 0, by: None },
        What::Reserved { pool: 3, reserved_bytes: 4 << 20, peak_bytes: 6 << 20 },
        What::InUse { pool: 3, in_use_bytes: 3 << 20, block_count: 5 },
        What::MovedOut { pool: 3, address: 512, size_bytes: 1 << 40, stream: 9, tag: 5, is_copied: true },
        What::MovedBack { pool: 3, address: 512, size_bytes: 1 << 40, stream: 9, tag: 0, is_early: false },
        What::Kept { pool: 3, by: Some(KeptBy::Nothing), bytes: 1 << 40, array_count: 2 },
        What::Kept { pool: 3, by: None, bytes: 7, array_count: 0 },
    ];
    let mut chunk = Vec::new();
    let timed = (1..).zip(raws).map(|(time_ns, raw)| Timed { time_ns, raw });
    format::add_chunk(&mut chunk, 0, 0, &timed.collect::<Vec<_>>());
    let found: Vec<_> = read(&chunk).events.iter().map(|event| event.what).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_ring_drops_what_does_not_fit_and_counts_it() {
    let ring = Ring::new(0, Overflow::Newest);
    for count in 0..EVENT_COUNT {
        let expected = if count + 1 == EVENT_COUNT / 2 { Level::Half } else { Level::Fine };
        assert_eq!(ring.put(5, alloc(count)), expected);
    }
    assert_eq!(ring.put(5, alloc(0)), Level::Full);
    assert_eq!(ring.dropped_count(), 1);
    let mut events = Vec::new();
    ring.take(&mut events);
    assert_eq!(events.len() as u64, EVENT_COUNT);
    assert!(ring.is_empty() && events.is_sorted_by(|a, b| a.time_ns < b.time_ns), "each later than the last");
    assert_eq!(ring.put(9000, alloc(1)), Level::Fine);
    events.clear();
    ring.take(&mut events);
    assert_eq!(events, [Timed { time_ns: 9000, raw: alloc(1) }]);
}

/// A ring that overwrites returns the last events, without the one that might be half written.
#[test]
fn a_ring_keeps_the_last_events() {
    let ring = Ring::new(0, Overflow::Oldest);
    assert!(ring.last().is_empty());
    for round in [1, 2, 3 * EVENT_COUNT + 7] {
        for count in ring.put_count()..round {
            assert_ne!(ring.put(count, alloc(count)), Level::Full);
        }
        let last: Vec<u64> = ring.last().iter().map(|event| event.raw.words[0]).collect();
        let first = (round + 1).saturating_sub(EVENT_COUNT);
        assert_eq!(last, (first..round).collect::<Vec<_>>());
    }
    assert_eq!(ring.dropped_count(), 0);
}

/// A copy made while the ring's thread continues has whole events, in order and without gaps.
#[test]
fn a_ring_is_copied_while_it_is_written() {
    let (ring, end) = (Ring::new(0, Overflow::Oldest), if cfg!(miri) { 10_000 } else { 2_000_000 });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for count in 0..end {
                ring.put(
                    count,
                    Raw { kind: EventKind::Mark, words: [count, count ^ 1, count ^ 2, count ^ 3] },
                );
            }
        });
        let mut is_over = false;
        while !is_over {
            is_over = ring.put_count() == end;
            let last = ring.last();
            for (index, event) in last.iter().enumerate() {
                let [count, a, b, c] = event.raw.words;
                assert_eq!([a, b, c], [count ^ 1, count ^ 2, count ^ 3]);
                assert_eq!(count, last[0].raw.words[0] + index as u64);
            }
            assert!(!is_over || last.len() as u64 == EVENT_COUNT - 1);
        }
    });
}

/// A trace with a size limit is continued in new files. The oldest go, and each file states the blocks that were live.
#[test]
fn a_full_file_is_continued_in_the_next() {
    let path = scratch("parts");
    let recorder = Recorder::start(&path, Some(20_000)).unwrap();
    let tags = Tags::new();
    recorder.book.add(entry(3, &tags.names));
    let tag = u64::from(tags.hold("kept").number);
    let record = |kind, address: u64, value| {
        recorder.record(Raw { kind, words: [address, value, 7, 3 | tag << 32] });
    };
    // Every hundredth block stays.
    let (mut step, mut expected_count) = (0, 0);
    let mut numbers = Vec::new();
    while Recording::read_from(&std::fs::read(&path).unwrap()[..]).unwrap().part < 6 {
        for _ in 0..500 {
            step += 1;
            record(EventKind::Alloc, step << 8, 4096);
            expected_count += 1;
            if step % 100 != 0 {
                record(EventKind::Free, step << 8, 4096 << 1);
                expected_count += 1;
            }
        }
        assert!(recorder.flush(Duration::from_secs(10)));
        let whole = Recording::read(&path).unwrap();
        if whole.part == 0 {
            assert_eq!(whole.events.len(), expected_count, "no file is missing yet");
        }
        numbers.push(whole.part);
    }
    recorder.finish(Duration::from_secs(10));
    assert!(!file::numbered(&path, file::EARLIER_COUNT + 1).exists());
    let live = |events: &[RecordedEvent]| {
        let mut live = std::collections::BTreeSet::new();
        for event in events {
            match event.what {
                What::Alloc { address, tag: 1, .. } => assert!(live.insert(address)),
                What::Free { address, .. } => assert!(live.remove(&address), "the block is known"),
                _ => panic!("{event:?}"),
            }
        }
        live
    };
    let expected: std::collections::BTreeSet<u64> = (1..=step / 100).map(|step| (step * 100) << 8).collect();
    for number in 0..=file::EARLIER_COUNT {
        let bytes = std::fs::read(file::numbered(&path, number)).unwrap();
        assert!(bytes.len() < 20_000 + 40_000, "{}", bytes.len());
        let part = Recording::read_from(&bytes[..]).unwrap();
        assert_eq!((part.part, part.tail), (6 - number as u32, None));
        assert_eq!((part.tag(3, 1), part.pools.len()), (Some("kept"), 1));
        let found = live(&part.events);
        assert!(if number == 0 { found == expected } else { found.is_subset(&expected) });
    }
    // The files are read as one trace, from the oldest one on.
    let whole = Recording::read(&path).unwrap();
    assert_eq!((whole.part, live(&whole.events), whole.dropped_count), (3, expected, 0));
    assert!(whole.events.is_sorted_by_key(|event| event.time_ns));
    for number in 0..=file::EARLIER_COUNT {
        std::fs::remove_file(file::numbered(&path, number)).unwrap();
    }
}

fn scratch(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("gpumem-{}-{name}.trace", std::process::id()))
}

/// Threads come and go; each thread's events keep their order, and the rings of ended threads are removed.
#[test]
fn every_thread_is_heard() {
    let path = scratch("threads");
    let recorder = Recorder::start(&path, None).unwrap();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for step in 0..1000 {
                        recorder.record(alloc(thread << 32 | step));
                        std::thread::yield_now();
                    }
                });
            }
        });
        assert!(recorder.flush(Duration::from_secs(10)));
    }
    assert_eq!(recorder.rings.dropped_count(), 0);
    recorder.finish(Duration::from_secs(10));
    let recording = Recording::read(&path).unwrap();
    assert_eq!((recording.events.len(), recording.tail), (12_000, None));
    for thread in 0..13 {
        let own = recording.events.iter().filter(|event| event.thread == thread);
        let steps: Vec<u64> = own
            .filter_map(|event| match event.what {
                What::Alloc { address, size_bytes: 4096, stream: 7, pool: 3, tag: 5 } => {
                    Some(address as u32 as u64)
                }
                _ => None,
            })
            .collect();
        assert!(steps.is_empty() || steps == (0..1000).collect::<Vec<_>>(), "thread {thread}");
    }
    std::fs::remove_file(path).unwrap();
}

/// Each name is written once, and before its first event; the names of dropped pools are removed.
#[test]
fn tags_are_named_before_they_are_used() {
    let path = scratch("names");
    let recorder = Recorder::start(&path, None).unwrap();
    for pool in 1..4_u64 {
        let tags = Tags::new();
        recorder.book.add(entry(pool as u32, &tags.names));
        for round in 0..3 {
            for name in ["a", "b", "c"].into_iter().take(round + 1) {
                let tag = u64::from(tags.hold(name).number);
                recorder.record(Raw { kind: EventKind::Alloc, words: [256, 1, 0, pool | tag << 32] });
                let read = Recording::read(&path).unwrap();
                assert!(read.events.iter().all(|event| match event.what {
                    What::Alloc { pool, tag, .. } => read.tag(pool, tag).is_some(),
                    _ => false,
                }));
            }
            assert!(recorder.flush(Duration::from_secs(10)));
        }
    }
    assert!(recorder.flush(Duration::from_secs(10)));
    assert_eq!(recorder.book.len(), 0);
    recorder.finish(Duration::from_secs(10));
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.windows(4).filter(|bytes| bytes == b"gmtn").count(), 9);
    let read = Recording::read(&path).unwrap();
    assert_eq!((read.tag(2, 3), read.events.len()), (Some("c"), 18));
    std::fs::remove_file(path).unwrap();
}

/// Events that cannot be written are counted, the program continues, and memory use stays bounded.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_loses_events_and_nothing_else() {
    assert!(Recorder::start("/dev/full".as_ref(), None).is_err(), "the header does not fit");
    let path = scratch("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        return;
    }
    // Once the pipe has no reader, every chunk fails.
    let reader = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut header = [0; HEADER_BYTES];
            let mut file = std::fs::File::open(path).unwrap();
            std::io::Read::read_exact(&mut file, &mut header).unwrap();
        }
    });
    let recorder = Recorder::start(&path, None).unwrap();
    reader.join().unwrap();
    for step in 0..3 * EVENT_COUNT {
        recorder.record(alloc(step));
    }
    assert!(!recorder.flush(Duration::from_secs(10)));
    assert_eq!(recorder.rings.dropped_count(), 3 * EVENT_COUNT);
    recorder.finish(Duration::from_secs(10));
    std::fs::remove_file(path).unwrap();
}

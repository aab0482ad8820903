//! Rings, bytes and files without a pool.

use super::event::{Kind, Raw, What};
use super::format::{self, CHUNK_HEADER_BYTES, HEADER_BYTES};
use super::read::{ReadError, Recording};
use super::recorder::Recorder;
use super::ring::{EVENT_COUNT, Level, Ring, Timed};
use core::time::Duration;
use proptest::prelude::*;

fn alloc(address: u64) -> Raw {
    Raw { kind: Kind::Alloc, words: [address, 4096, 7, 3 | 5 << 32] }
}

fn timed() -> impl Strategy<Value = Timed> {
    let words = prop_oneof![any::<[u64; 4]>(), any::<[u8; 4]>().prop_map(|words| words.map(u64::from))];
    (1_u8..=9, 0..1_u64 << 56, words).prop_map(|(kind, time_ns, words)| Timed {
        time_ns,
        raw: Raw { kind: Kind::of(kind).unwrap(), words },
    })
}

/// A file of chunks, and what is in it.
fn file() -> impl Strategy<Value = (Vec<u8>, Vec<Vec<Timed>>)> {
    proptest::collection::vec(proptest::collection::vec(timed(), 1..20), 0..6).prop_map(|chunks| {
        let mut bytes = format::header();
        for (thread, events) in (0..).zip(&chunks) {
            format::add_chunk(&mut bytes, thread, u64::from(thread), events);
        }
        (bytes, chunks)
    })
}

fn event_count(chunks: &[Vec<Timed>]) -> u64 {
    chunks.iter().map(Vec::len).sum::<usize>() as u64
}

proptest! {
    #[test]
    fn what_is_written_is_read((bytes, chunks) in file()) {
        let recording = Recording::read_from(&bytes[..]).unwrap();
        prop_assert_eq!(recording.tail, None);
        let mut expected: Vec<_> =
            chunks.iter().flatten().map(|event| (event.time_ns, event.raw.what())).collect();
        expected.sort_by_key(|(time_ns, what)| (*time_ns, what.rank()));
        let found: Vec<_> = recording.events.iter().map(|event| (event.time_ns, event.what)).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(recording.dropped_count, (0..chunks.len() as u64).sum::<u64>());
    }

    /// Cut anywhere, all whole chunks are read, and the end says so.
    #[test]
    fn a_cut_file_is_read_up_to_the_cut((bytes, chunks) in file(), at in any::<prop::sample::Index>()) {
        let cut = at.index(bytes.len());
        match Recording::read_from(&bytes[..cut]) {
            Err(error) => prop_assert!(cut < HEADER_BYTES && matches!(error, ReadError::Foreign)),
            Ok(recording) => {
                let (mut end, mut whole_count) = (HEADER_BYTES, 0);
                for events in &chunks {
                    let mut chunk = Vec::new();
                    format::add_chunk(&mut chunk, 0, 0, events);
                    if end + chunk.len() > cut {
                        break;
                    }
                    end += chunk.len();
                    whole_count += events.len() as u64;
                }
                prop_assert_eq!(recording.events.len() as u64, whole_count);
                let tail = recording.tail.map(|tail| (tail.offset, tail.read_count, tail.is_cut));
                prop_assert_eq!(tail, (end < cut).then_some((end as u64, whole_count, true)));
            }
        }
    }

    /// A changed byte is found, and what stands before its chunk is read.
    #[test]
    fn a_changed_byte_is_found((mut bytes, chunks) in file(), at in any::<prop::sample::Index>(), flip in 1_u8..) {
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        match Recording::read_from(&bytes[..]) {
            Err(error) => prop_assert!(at < HEADER_BYTES, "{}", error),
            Ok(recording) => {
                let tail = recording.tail.unwrap();
                prop_assert!(at >= tail.offset as usize);
                prop_assert!((recording.events.len() as u64) < event_count(&chunks));
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
            let _ = format::events(&header, start, rest);
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
    let error = ReadError::Version { found: 2, known: 1 }.to_string();
    assert!(error.contains("version 2"), "{error}");
}

#[test]
fn a_ring_drops_what_does_not_fit_and_counts_it() {
    let ring = Ring::new(0);
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

fn scratch(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("gpumem-{}-{name}.trace", std::process::id()))
}

/// Threads come and go; each one's events are in its order, and nothing is kept of those that are gone.
#[test]
fn every_thread_is_heard() {
    let path = scratch("threads");
    let recorder = Recorder::start(&path).unwrap();
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
    assert_eq!(recorder.dropped_count(), 0);
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

/// What can't be written is counted, the program goes on, and no more memory is used.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_loses_events_and_nothing_else() {
    assert!(Recorder::start("/dev/full".as_ref()).is_err(), "the header does not fit");
    let path = scratch("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        return;
    }
    // A pipe has no place to go back to, so every chunk fails.
    let reader = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut header = [0; HEADER_BYTES];
            let mut file = std::fs::File::open(path).unwrap();
            std::io::Read::read_exact(&mut file, &mut header).unwrap();
            file
        }
    });
    let recorder = Recorder::start(&path).unwrap();
    let kept_open = reader.join().unwrap();
    for step in 0..3 * EVENT_COUNT {
        recorder.record(alloc(step));
    }
    assert!(!recorder.flush(Duration::from_secs(10)));
    assert_eq!(recorder.dropped_count(), 3 * EVENT_COUNT);
    recorder.finish(Duration::from_secs(10));
    drop(kept_open);
    std::fs::remove_file(path).unwrap();
}

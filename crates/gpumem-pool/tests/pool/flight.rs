//! The flight recorder: the last events, in a file beside the report of a refusal.

use crate::fixture::{on_each_backend, small};
use gpumem_pool::trace::{Recording, Trace, What};
use gpumem_pool::{Device, FlightRecorder, OutOfMemory, Pool, PoolError, RefusedBy, Stream};
use gpumem_sim::SimConfig;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gpumem-flight-{}-{name}.trace", std::process::id()))
}

fn report(error: &PoolError) -> &OutOfMemory {
    error.out_of_memory().unwrap()
}

/// A pool with a limit of 64 MiB that records into a file.
fn pool(path: &Path) -> (Pool, Stream) {
    let device =
        Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30)).unwrap(), 0).unwrap();
    let builder = Pool::builder(&device).hard_limit(64 << 20);
    let pool = builder.flight_recorder(FlightRecorder::File(path.into())).build().unwrap();
    (pool, Stream::new(&device).unwrap())
}

/// The file has the program's last requests, with tags and settings, the refusal, what the pools hold, and the report. The report
/// names the file.
#[test]
fn a_refusal_leaves_a_record() {
    on_each_backend(&small(), |fixture| {
        let path =
            scratch(&format!("leaves-{}-{}-{}", fixture.backend, fixture.plain_segments, fixture.kind));
        let builder = fixture.builder().hard_limit(48 << 20).name("server");
        let pool = builder.flight_recorder(FlightRecorder::File(path.clone())).build().unwrap();
        let (private, stream) = (pool.private_named("cache", 16 << 20).unwrap(), fixture.stream());
        let kept = private.alloc(3 << 20, &stream).unwrap();
        let _scope = pool.scope("batch");
        let held = pool.alloc(20 << 20, &stream).unwrap();
        drop(pool.alloc(5 << 20, &stream).unwrap());
        assert!(!path.exists(), "nothing is written before a refusal");
        let error = pool.alloc(40 << 20, &stream).unwrap_err();
        assert_eq!(report(&error).flight_record, Some(Ok(path.clone())));
        let line =
            format!("\n  the last requests are recorded in {0}\n  next: gpumem report {0}", path.display());
        assert!(error.to_string().ends_with(&line), "{error}");

        let recording = Recording::read(&path).unwrap();
        assert_eq!((recording.tail, recording.dropped_count, recording.overwritten_count), (None, 0, 0));
        let [server, cache] = [&pool, &private].map(|pool| {
            let found = recording.pools.iter().find(|settings| settings.name == pool.name());
            found.unwrap().pool
        });
        let blocks = recording.events.iter().filter_map(|event| match event.what {
            What::Alloc { pool, size_bytes, tag, .. } => {
                Some((pool, size_bytes >> 20, recording.tag(pool, tag)))
            }
            What::Free { pool, size_bytes, .. } => Some((pool, size_bytes >> 20, Some("freed"))),
            _ => None,
        });
        let batch = Some("batch");
        let expected =
            [(cache, 3, None), (server, 20, batch), (server, 5, batch), (server, 5, Some("freed"))];
        assert_eq!(blocks.collect::<Vec<_>>(), expected);
        let refused = recording.events.iter().filter_map(|event| match event.what {
            What::Refused { pool, size_bytes, tag, by, .. } => {
                Some((pool, size_bytes >> 20, recording.tag(pool, tag), by))
            }
            _ => None,
        });
        assert_eq!(refused.collect::<Vec<_>>(), [(server, 40, batch, Some(RefusedBy::HardLimit))]);
        let in_use = |pool| {
            recording.events.iter().find_map(|event| match event.what {
                What::InUse { pool: other, in_use_bytes, block_count } if pool == other => {
                    Some((in_use_bytes >> 20, block_count))
                }
                _ => None,
            })
        };
        assert_eq!([server, cache].map(in_use), [Some((20, 1)), Some((3, 1))]);
        let [written] = &recording.reports[..] else { panic!("{:?}", recording.reports) };
        assert_eq!(written.pool, server);
        let headline = error.to_string().lines().next().unwrap().to_owned();
        assert!(headline.ends_with(written.text.lines().next().unwrap()), "{headline} {}", written.text);

        // A later refusal replaces the file: it is this recorder's.
        assert!(private.alloc(15 << 20, &stream).is_err());
        let recording = Recording::read(&path).unwrap();
        let refusals = recording.events.iter().filter(|event| matches!(event.what, What::Refused { .. }));
        assert_eq!((refusals.count(), recording.reports.len(), recording.reports[0].pool), (2, 1, cache));
        assert!(!PathBuf::from(format!("{}.1", path.display())).exists());
        drop((held, kept));
        std::fs::remove_file(path).unwrap();
    });
}

/// The memory of a recorder is bounded: each thread keeps its last events, and the file says how many are missing.
#[test]
fn the_last_events_of_each_thread_are_kept() {
    let path = scratch("last");
    let (pool, stream) = pool(&path);
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (pool, stream, barrier) = (&pool, &stream, &barrier);
            scope.spawn(move || {
                for _ in 0..5000 {
                    drop(pool.alloc(1024 << thread, stream).unwrap());
                }
                // The threads live until all have recorded.
                barrier.wait();
            });
        }
    });
    let error = pool.alloc(65 << 20, &stream).unwrap_err();
    assert_eq!(report(&error).flight_record, Some(Ok(path.clone())));
    let recording = Recording::read(&path).unwrap();
    for thread in 0..4 {
        let sizes = recording.events.iter().filter_map(|event| match event.what {
            What::Free { size_bytes, .. } if size_bytes == 1024 << thread => Some(event.thread),
            _ => None,
        });
        let threads: Vec<u32> = sizes.collect();
        assert!((2040..=2050).contains(&threads.len()), "{}", threads.len());
        assert!(threads.iter().all(|thread| *thread == threads[0]));
    }
    assert!((4 * 5900..4 * 5920).contains(&recording.overwritten_count), "{}", recording.overwritten_count);
    assert!(recording.events.is_sorted_by_key(|event| event.time_ns));
    std::fs::remove_file(path).unwrap();
}

/// More threads than there are rings, one after another and together: their last events are kept nevertheless.
#[test]
fn many_threads_share_the_space_of_a_few() {
    let path = scratch("many");
    let (pool, stream) = pool(&path);
    for _ in 0..200 {
        std::thread::scope(|scope| {
            scope.spawn(|| drop(pool.alloc(4096, &stream).unwrap()));
        });
    }
    let barrier = Barrier::new(100);
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let block = pool.alloc(8192, &stream).unwrap();
                barrier.wait();
                drop(block);
            });
        }
    });
    assert!(pool.alloc(65 << 20, &stream).is_err());
    let recording = Recording::read(&path).unwrap();
    let count = |bytes| {
        let of = |event: &&gpumem_pool::trace::RecordedEvent| matches!(event.what, What::Free { size_bytes, .. } if size_bytes == bytes);
        recording.events.iter().filter(of).count()
    };
    assert_eq!((count(4096), count(8192), recording.overwritten_count), (200, 100, 0));
    std::fs::remove_file(path).unwrap();
}

/// Without a file the report says why, and the refusal is the same otherwise.
#[test]
fn a_record_that_cannot_be_written_is_reported() {
    let (missing, foreign) = (PathBuf::from("/nowhere/at/all.trace"), scratch("foreign"));
    std::fs::write(&foreign, "notes of somebody").unwrap();
    for (path, says) in [(&missing, "/nowhere/at/all.trace: "), (&foreign, "exists and is not a trace")] {
        let (pool, stream) = pool(path);
        let held = pool.alloc(48 << 20, &stream).unwrap();
        let error = pool.alloc(32 << 20, &stream).unwrap_err();
        let Some(Err(problem)) = &report(&error).flight_record else { panic!("{error}") };
        assert!(problem.contains(says), "{problem}");
        let text = error.to_string();
        assert!(
            text.contains("\n  the last requests could not be recorded: ") && text.contains(says),
            "{text}"
        );
        assert_eq!(report(&error).in_use_bytes, 48 << 20);
        drop(held);
        drop(pool.alloc(32 << 20, &stream).unwrap());
    }
    assert_eq!(std::fs::read(&foreign).unwrap(), b"notes of somebody");
    std::fs::remove_file(foreign).unwrap();
}

/// A file that an earlier program, or a trace, has left is kept.
#[test]
fn earlier_records_are_kept() {
    let path = scratch("kept");
    drop(Trace::create(&path).unwrap());
    for round in 1..3 {
        let (pool, stream) = pool(&path);
        assert!(pool.alloc(65 << 20, &stream).is_err());
        assert!(PathBuf::from(format!("{}.{round}", path.display())).exists());
    }
    assert_eq!(Recording::read(&path).unwrap().reports.len(), 1);
    for file in ["", ".1", ".2"] {
        std::fs::remove_file(format!("{}{file}", path.display())).unwrap();
    }
}

/// Pools with one file share a recorder, and threads that are refused together write it one after another.
#[test]
fn refusals_on_many_threads_write_whole_files() {
    let path = scratch("together");
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let pools = ["a", "b"].map(|name| {
        let builder = Pool::builder(&device).name(name).hard_limit(16 << 20);
        builder.flight_recorder(FlightRecorder::File(path.clone())).build().unwrap()
    });
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for pool in pools.iter().cycle().take(4) {
            let (stream, path) = (Stream::new(&device).unwrap(), &path);
            scope.spawn(move || {
                for _ in 0..30 {
                    drop(pool.alloc(4096, &stream).unwrap());
                    let error = pool.alloc(17 << 20, &stream).unwrap_err();
                    assert_eq!(report(&error).flight_record, Some(Ok(path.clone())));
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                if let Ok(recording) = Recording::read(&path) {
                    assert_eq!(recording.tail, None);
                    is_over.store(recording.events.len() > 100, std::sync::atomic::Ordering::Relaxed);
                }
            }
        });
    });
    let recording = Recording::read(&path).unwrap();
    let refused = recording.events.iter().filter(|event| matches!(event.what, What::Refused { .. }));
    assert_eq!((refused.count(), recording.pools.len()), (120, 2));
    std::fs::remove_file(path).unwrap();
}

/// The recorder is off by default, and named by an option and a variable.
#[test]
fn the_recorder_is_an_option() {
    let device =
        Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30)).unwrap(), 0).unwrap();
    let refused = |conf: &str| {
        let pool = Pool::builder(&device).conf(conf).unwrap().hard_limit(64 << 20).build().unwrap();
        let error = pool.alloc(65 << 20, &Stream::new(&device).unwrap()).unwrap_err();
        report(&error).flight_record.clone()
    };
    assert_eq!((refused(""), refused("flight_recorder:OFF")), (None, None));
    let file = std::env::temp_dir().join(format!("gpumem-{}.trace", std::process::id()));
    assert_eq!(refused("flight_recorder:on"), Some(Ok(file.clone())));
    std::fs::remove_file(file).unwrap();
    let path = scratch("%p");
    let file = PathBuf::from(path.to_str().unwrap().replace("%p", &std::process::id().to_string()));
    assert_eq!(refused(&format!("flight_recorder:{}", path.display())), Some(Ok(file.clone())));
    std::fs::remove_file(file).unwrap();
    assert!(
        Pool::builder(&device).conf("flight_recorder:ture").unwrap_err().to_string().contains("`off`, `on`")
    );
}

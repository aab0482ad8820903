//! The recorded trace of a program, and the trace of a program that is killed.

use crate::fixture::{built_backends, on_each_backend, small};
use gpumem_pool::adaptor::{Adaptor, Budget, Fallback, Grant, Next, Request};
use gpumem_pool::trace::{Recording, Trace, What};
use gpumem_pool::{
    Block, Capture, CaptureMode, Device, Event, MemoryKind, Pool, PoolError, Reclaimable, RefusedBy,
    Registration, Stream,
};
use gpumem_sim::SimConfig;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gpumem-pool-{}-{name}.trace", std::process::id()))
}

#[test]
fn events_are_recorded_in_order() {
    on_each_backend(&small(), |fixture| {
        let path = scratch(&format!("order-{}-{}-{}", fixture.backend, fixture.plain_segments, fixture.kind));
        let trace = Trace::create(&path).unwrap();
        let pool = fixture.builder().adaptor(trace.clone()).build().unwrap();
        let (home, other) = (fixture.stream(), fixture.stream());
        let first = pool.alloc(1000, &home).unwrap();
        let second = pool.alloc_aligned(5000, 4096, &other).unwrap();
        let (first_at, second_at) = (first.address(), second.address());
        other.wait_for(&home).unwrap();
        let mark = Event::new(&fixture.device).unwrap();
        first.record_use(&other);
        std::thread::scope(|scope| scope.spawn(|| drop(first)).join().unwrap());
        mark.record(&other).unwrap();
        home.wait(&mark).unwrap();
        home.synchronize().unwrap();
        mark.synchronize().unwrap();
        fixture.device.synchronize().unwrap();
        // SAFETY: no work was queued that uses the block, and the device is synchronised.
        unsafe { second.free_completed() };
        drop(pool.alloc(0, &home).unwrap());
        drop(pool);
        let recording = Recording::read(&path).unwrap();
        assert_eq!((recording.dropped_count, recording.tail), (0, None));
        let found = without_figures(&recording);
        let What::Alloc { pool, stream: home, .. } = found[0] else { panic!("{found:?}") };
        let What::Alloc { stream: other, .. } = found[1] else { panic!("{found:?}") };
        let What::Mark { event, .. } = found[5] else { panic!("{found:?}") };
        assert_ne!(home, other);
        let expected = [
            What::Alloc { pool, address: first_at, size_bytes: 1000, stream: home, tag: 0 },
            What::Alloc { pool, address: second_at, size_bytes: 5000, stream: other, tag: 0 },
            What::Wait { stream: other, source: home },
            What::Use { pool, address: first_at, stream: other },
            What::Free { pool, address: first_at, stream: home, size_bytes: 1000, is_complete: false },
            What::Mark { event, stream: other },
            What::WaitForMark { event, stream: home },
            What::StreamDone { stream: home },
            What::MarkDone { event },
            What::DeviceDone,
            What::Free { pool, address: second_at, stream: other, size_bytes: 5000, is_complete: true },
        ];
        assert_eq!(found, expected);
        std::fs::remove_file(path).unwrap();
    });
}

/// The events of a recording, without those that state the figures of pools.
fn without_figures(recording: &Recording) -> Vec<What> {
    let mut events: Vec<What> = recording.events.iter().map(|event| event.what).collect();
    events.retain(|what| !matches!(what, What::Reserved { .. } | What::InUse { .. }));
    events
}

/// The file has the settings of each pool, the memory that it reserved, and its refusals.
#[test]
fn a_replay_can_be_compared_with_the_recorded_program() {
    on_each_backend(&small(), |fixture| {
        let path = scratch(&format!("real-{}-{}-{}", fixture.backend, fixture.plain_segments, fixture.kind));
        let trace = Trace::create(&path).unwrap();
        let builder = fixture.builder().hard_limit(48 << 20).conf("wait_deadline_ms:7").unwrap();
        let pool = builder.name("training").adaptor(trace).build().unwrap();
        let private = pool.private_named("cache", 8 << 20).unwrap();
        let stream = fixture.stream();
        let scope = pool.scope("step");
        let held: Vec<_> = (1..5).map(|count| pool.alloc(count << 20, &stream).unwrap()).collect();
        assert!(pool.alloc(47 << 20, &stream).is_err());
        drop((scope, held));
        let kept = private.alloc(3 << 20, &stream).unwrap();
        assert!(private.alloc(7 << 20, &stream).is_err());
        stream.synchronize().unwrap();
        pool.reclaim().unwrap();
        let second = pool.alloc(1 << 20, &stream).unwrap();
        let status = [&pool, &private].map(|pool| pool.status().unwrap());
        let numbers = [&pool, &private].map(|pool| pool.id().to_string());
        drop((kept, second, pool, private));

        let recording = Recording::read(&path).unwrap();
        assert_eq!((recording.version, recording.part, recording.tail), (5, 0, None));
        let [training, cache] = &recording.pools[..] else { panic!("{:?}", recording.pools) };
        assert_eq!([training, cache].map(|pool| format!("pool {}", pool.pool)), numbers);
        assert_eq!(
            (&*training.name, training.parent, training.hard_limit_bytes),
            ("training", None, Some(48 << 20))
        );
        assert_eq!((&*cache.name, cache.parent), ("training/cache", Some(training.pool)));
        assert_eq!(cache.hard_limit_bytes, Some(8 << 20));
        assert_eq!((training.backend, training.kind), (fixture.backend, fixture.kind));
        assert!(training.conf.contains("wait_deadline_ms:7"), "{}", training.conf);
        assert_eq!(recording.pool(cache.pool), Some(cache));
        for (pool, status) in recording.pools.iter().zip(&status) {
            let peaks = recording.events.iter().filter_map(|event| match event.what {
                What::Reserved { pool: other, peak_bytes, .. } if other == pool.pool => Some(peak_bytes),
                _ => None,
            });
            assert_eq!(peaks.max(), Some(status.reserved_peak_bytes), "{}", pool.name);
        }
        let refused = recording.events.iter().filter_map(|event| match event.what {
            What::Refused { pool, size_bytes, tag, by, stream: Some(_) } => {
                Some((pool, size_bytes >> 20, recording.tag(pool, tag), by))
            }
            _ => None,
        });
        let expected = [
            (training.pool, 47, Some("step"), Some(RefusedBy::HardLimit)),
            (cache.pool, 7, None, Some(RefusedBy::Quota)),
        ];
        assert_eq!(refused.collect::<Vec<_>>(), expected);
        let last = recording.events.iter().rev().find_map(|event| match event.what {
            What::InUse { pool, in_use_bytes, block_count } if pool == cache.pool => {
                Some((in_use_bytes, block_count))
            }
            _ => None,
        });
        assert_eq!(last, Some((0, 0)), "at its end");
        std::fs::remove_file(path).unwrap();
    });
}

/// A program that starts again keeps the traces of its last runs.
#[test]
fn earlier_traces_are_kept() {
    let path = scratch("again");
    let number = |number: u32| match number {
        0 => path.clone(),
        number => PathBuf::from(format!("{}.{number}", path.display())),
    };
    let run = |bytes: u64| {
        let device = device();
        let pool = Pool::builder(&device).adaptor(Trace::create(&path).unwrap()).build().unwrap();
        drop(pool.alloc(bytes, &Stream::new(&device).unwrap()).unwrap());
    };
    for round in 1..7 {
        run(round * 1000);
        // A run that records nothing leaves no file of its own behind.
        drop(Trace::create(&path).unwrap());
        let found = (0..6).map(|count| allocated_bytes(&number(count)));
        let kept = |count: u64| if count < round { vec![(round - count) * 1000] } else { Vec::new() };
        let expected = [vec![], kept(0), kept(1), kept(2), vec![], vec![]];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert!(!number(4).exists());
    }
    // A file that is not a trace is neither moved nor replaced, and the newest trace stays.
    run(9000);
    std::fs::write(number(3), "notes").unwrap();
    let error = Trace::create(&path).unwrap_err();
    assert!(error.to_string().contains("not a trace"), "{error}");
    assert_eq!((allocated_bytes(&path), std::fs::read(number(3)).unwrap()), (vec![9000], b"notes".into()));
    assert!((0..4).all(|count| std::fs::remove_file(number(count)).is_ok()));
}

/// `GPUMEM_TRACE_LIMIT` needs a size that a trace can keep, and a file.
#[test]
fn a_trace_with_a_size_limit_says_what_it_needs() {
    let path = scratch("limited");
    let error = Trace::create_limited(&path, (4 << 20) - 1).unwrap_err().to_string();
    assert!(error.contains("the minimum is 4 MiB") && !path.exists(), "{error}");
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let (_reader, writer) = std::io::pipe().unwrap();
        let error =
            Trace::create_limited(format!("/proc/self/fd/{}", writer.as_raw_fd()), 4 << 20).unwrap_err();
        assert!(error.to_string().contains("a trace in a pipe has no size limit"), "{error}");
    }
    for (limit, says) in [("4k", "minimum is 4 MiB"), ("many", "expected bytes"), ("5%", "expected bytes")] {
        let mut command = child("makes_pools_from_the_environment", path.to_str().unwrap());
        let output = command.env("GPUMEM_TRACE_LIMIT", limit).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(says), "{limit}: {text}");
    }
    let mut command = child("makes_pools_from_the_environment", path.to_str().unwrap());
    let output = command.env("GPUMEM_TRACE_LIMIT", "4MiB").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(allocated_bytes(&path).len(), 7);
    std::fs::remove_file(path).unwrap();
}

/// Threads hand blocks to each other. In the record no block is allocated twice, and every block is freed.
#[test]
fn threads_make_one_record() {
    on_each_backend(&small(), |fixture| {
        let path =
            scratch(&format!("threads-{}-{}-{}", fixture.backend, fixture.plain_segments, fixture.kind));
        let trace = Trace::create(&path).unwrap();
        let pool = fixture.builder().adaptor(trace.clone()).build().unwrap();
        let (sender, receiver) = std::sync::mpsc::sync_channel(8);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (pool, stream, sender) = (&pool, fixture.stream(), sender.clone());
                scope.spawn(move || {
                    for step in 0..200 {
                        sender.send(pool.alloc(256 << ((thread + step) % 6), &stream).unwrap()).unwrap();
                    }
                });
            }
            drop(sender);
            scope.spawn(move || receiver.into_iter().for_each(drop));
        });
        assert!(trace.flush(Duration::from_secs(10)));
        let recording = Recording::read(&path).unwrap();
        let mut live = std::collections::HashSet::new();
        let mut count = 0;
        for event in &recording.events {
            match event.what {
                What::Alloc { address, .. } => assert!(live.insert(address), "handed out twice"),
                What::Free { address, .. } => assert!(live.remove(&address), "freed twice"),
                _ => continue,
            }
            count += 1;
        }
        assert_eq!((count, live.len(), trace.dropped_count()), (1200, 0, 0));
        std::fs::remove_file(path).unwrap();
    });
}

/// The names of the allocations' tags.
fn names(recording: &Recording) -> impl Iterator<Item = Option<&str>> {
    recording.events.iter().filter_map(|event| match event.what {
        What::Alloc { pool, tag, .. } if tag != 0 => Some(recording.tag(pool, tag)),
        _ => None,
    })
}

/// The tag of an allocation is the innermost scope of its pool on its thread.
#[test]
fn tags_are_recorded_with_their_names() {
    on_each_backend(&small(), |fixture| {
        let path = scratch(&format!("tags-{}-{}-{}", fixture.backend, fixture.plain_segments, fixture.kind));
        let trace = Trace::create(&path).unwrap();
        let (outer, inner) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let builder = fixture.builder().adaptor(inner.clone()).adaptor(trace).adaptor(outer.clone());
        let (pool, other, stream) = (builder.build().unwrap(), fixture.pool(), fixture.stream());
        let private = pool.private(64 << 20).unwrap();
        drop(pool.alloc(1001, &stream).unwrap());
        let forward = pool.scope("forward");
        let kept = pool.alloc(1002, &stream).unwrap();
        {
            let _elsewhere = other.scope("elsewhere");
            drop(pool.alloc_aligned(1003, 4096, &stream).unwrap());
            let _inner = pool.scope("inner");
            drop(pool.alloc(1004, &stream).unwrap());
            drop(private.alloc(1005, &stream).unwrap());
            std::thread::scope(|scope| scope.spawn(|| drop(pool.alloc(1006, &stream))).join().unwrap());
        }
        drop(forward);
        let (_private, _name) = (private.scope("grüße"), private.scope("inner"));
        drop(private.alloc(1007, &stream).unwrap());
        drop(kept);
        let tags = pool.status().unwrap().tags;
        drop((pool, private));
        let recording = Recording::read(&path).unwrap();
        let named = recording.events.iter().filter_map(|event| match event.what {
            What::Alloc { pool, size_bytes, tag, .. } => {
                assert_eq!(recording.tag(pool, tag).is_none(), tag == 0);
                Some((size_bytes, recording.tag(pool, tag)))
            }
            _ => None,
        });
        let named: Vec<_> = named.collect();
        let expected = [
            (1001, None),
            (1002, Some("forward")),
            (1003, Some("forward")),
            (1004, Some("inner")),
            (1005, None),
            (1006, None),
            (1007, Some("inner")),
        ];
        assert_eq!(named, expected);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            let start = Recording::read_from(&whole[..cut]).unwrap_or_default();
            assert!(names(&start).all(|name| name.is_some()), "named before it is used");
        }
        assert_eq!(tags.iter().map(|tag| &*tag.tag).collect::<Vec<_>>(), ["forward", "inner"]);
        let expected = expected.map(|(size_bytes, tag)| (size_bytes, tag.map(String::from)));
        for seen in [outer, inner] {
            assert_eq!(*seen.0.lock().unwrap(), expected);
        }
        std::fs::remove_file(path).unwrap();
    });
}

/// Sizes and tags as adaptors see them.
#[derive(Default)]
struct Seen(Mutex<Vec<(u64, Option<String>)>>);

impl Adaptor for Seen {
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let tag = request.tag().map(|tag| tag.to_string());
        self.0.lock().unwrap().push((request.size_bytes(), tag));
        next.alloc(request)
    }
}

/// A graph's memory is one block from its allocation to the graph's end.
#[test]
fn a_graph_is_recorded_as_its_memory() {
    on_each_backend(&small(), |fixture| {
        let path = scratch(&format!("graph-{}-{}-{}", fixture.backend, fixture.plain_segments, fixture.kind));
        let trace = Trace::create(&path).unwrap();
        let (pool, stream) = (fixture.builder().adaptor(trace).build().unwrap(), fixture.stream());
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        drop(pool.alloc(1000, &stream).unwrap());
        let exec = capture.end().unwrap().instantiate().unwrap();
        // SAFETY: the graph is empty.
        unsafe { exec.launch(&stream).unwrap() };
        drop(exec);
        drop(pool);
        let recording = Recording::read(&path).unwrap();
        let blocks = |event: &&gpumem_pool::trace::RecordedEvent| {
            matches!(event.what, What::Alloc { size_bytes: 1024, .. } | What::Free { .. })
        };
        assert_eq!(recording.events.iter().filter(blocks).count(), 2, "{:?}", recording.events);
        std::fs::remove_file(path).unwrap();
    });
}

/// Starts this program again, with one of the children below.
fn child(name: &str, trace: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("trace::{name}"), "--exact", "--ignored", "--nocapture"]);
    command.env("GPUMEM_TRACE", trace).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn device() -> Device {
    Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30)).unwrap(), 0).unwrap()
}

#[test]
#[ignore = "run by the tests of this file, as a process of its own"]
fn works_until_it_is_killed() {
    let device = device();
    let (pool, stream) = (Pool::from_env(&device).unwrap(), Stream::new(&device).unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    let _scope = pool.scope("until the end");
    while Instant::now() < end {
        drop(pool.alloc(4096, &stream).unwrap());
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn the_trace_of_a_killed_process_is_readable() {
    let path = scratch("killed");
    let mut process = child("works_until_it_is_killed", path.to_str().unwrap()).spawn().unwrap();
    let start = Instant::now();
    let count = loop {
        let count = Recording::read(&path).map_or(0, |recording| recording.events.len());
        if count > 500 || start.elapsed() > Duration::from_secs(15) {
            break count;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    process.kill().unwrap();
    process.wait().unwrap();
    let recording = Recording::read(&path).unwrap();
    assert!(count > 500 && recording.events.len() >= count, "{count} {}", recording.events.len());
    assert!(names(&recording).all(|name| name == Some("until the end")));
    // If the process was killed during a write, the tail says so; the events before it are complete.
    assert!(recording.tail.is_none_or(|tail| tail.read_count as usize == recording.events.len()));
    std::fs::remove_file(path).unwrap();
}

#[test]
#[ignore = "run by the tests of this file, as a process of its own"]
fn makes_pools_from_the_environment() {
    static KEPT: Mutex<Vec<(Pool, Block)>> = Mutex::new(Vec::new());
    let device = device();
    let stream = Stream::new(&device).unwrap();
    for round in 1..4_u64 {
        let pool = match Pool::from_env(&device) {
            Ok(pool) => pool,
            Err(error) => return println!("{error}"),
        };
        drop(pool.alloc(round * 1000, &stream).unwrap());
        let private = pool.private(64 << 20).unwrap();
        drop(private.alloc(round * 1000 + 1, &stream).unwrap());
        if round == 3 {
            KEPT.lock().unwrap().push((pool.clone(), pool.alloc(3002, &stream).unwrap()));
        }
    }
    // The last block is not dropped. The file has all events except the most recent ones.
    let path = std::env::var("GPUMEM_TRACE").unwrap().replace("%p", &std::process::id().to_string());
    let end = Instant::now() + Duration::from_secs(10);
    while allocated_bytes(path.as_ref()).len() < 7 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The sizes of the allocations in a file; empty if it is not a trace yet.
fn allocated_bytes(path: &Path) -> Vec<u64> {
    let events = Recording::read(path).map_or(Vec::new(), |recording| recording.events);
    let sizes = events.iter().filter_map(|event| match event.what {
        What::Alloc { size_bytes, .. } => Some(size_bytes),
        _ => None,
    });
    sizes.collect()
}

#[test]
fn pools_from_the_environment_share_a_file() {
    let path = scratch("shared-%p");
    let process = child("makes_pools_from_the_environment", path.to_str().unwrap()).spawn().unwrap();
    let path = path.to_str().unwrap().replace("%p", &process.id().to_string());
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(allocated_bytes(path.as_ref()), [1000, 1001, 2000, 2001, 3000, 3001, 3002]);
    std::fs::remove_file(path).unwrap();

    let output = child("makes_pools_from_the_environment", "/nowhere/at/all").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("invalid GPUMEM_TRACE=\"/nowhere/at/all\": name a file"), "{text}");
}

/// A trace that ends before its pool, and two traces around one pool.
#[test]
fn traces_end_and_pools_go_on() {
    for backend in built_backends() {
        let device = device();
        let (path, second) = (scratch(&format!("end-{backend}")), scratch(&format!("second-{backend}")));
        let traces = [&path, &second].map(|path| Trace::create(path).unwrap());
        let builder = Pool::builder(&device).backend(backend).adaptor(traces[0].clone());
        let (pool, stream) =
            (builder.adaptor(traces[1].clone()).build().unwrap(), Stream::new(&device).unwrap());
        let block = pool.alloc(4096, &stream).unwrap();
        drop(traces);
        drop(pool);
        // This drops the last block, and with it the pool and the traces.
        drop(block);
        stream.synchronize().unwrap();
        for path in [path, second] {
            let recording = Recording::read(&path).unwrap();
            assert!(matches!(without_figures(&recording)[..], [_, What::Free { .. }]));
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// Two traces that write to one file would corrupt it, so the second is refused.
#[test]
fn a_trace_has_its_file_to_itself() {
    let path = scratch("alone");
    let first = Trace::create(&path).unwrap();
    #[cfg(target_os = "linux")]
    assert!(Trace::create(&path).unwrap_err().to_string().contains("%p"));
    drop(first);
    drop(Trace::create(&path).unwrap());
    let recording = Recording::read(&path).unwrap();
    assert!(recording.events.is_empty() && recording.tail.is_none());
    drop(std::fs::remove_file(&path));
}

#[test]
fn a_file_that_is_not_a_trace_is_not_overwritten() {
    let (path, empty) = (scratch("foreign"), scratch("empty"));
    std::fs::write(&path, [7; 1 << 16]).unwrap();
    let error = Trace::create(&path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    assert!(error.to_string().contains("not a trace"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), [7; 1 << 16]);
    std::fs::write(&empty, []).unwrap();
    drop(Trace::create(&empty).unwrap());
    assert!(Recording::read(&empty).unwrap().tail.is_none());
    assert!(Trace::create(std::env::temp_dir()).is_err());
    [path, empty].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

#[test]
#[cfg(unix)]
fn a_trace_follows_no_link_to_a_file() {
    let (link, target) = (scratch("link"), scratch("target"));
    drop(Trace::create(&target).unwrap());
    let whole = std::fs::read(&target).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    for leads_nowhere in [false, true] {
        let error = Trace::create(&link).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        assert_eq!(std::fs::read(&target).ok(), (!leads_nowhere).then(|| whole.clone()));
        drop(std::fs::remove_file(&target));
    }
    std::fs::remove_file(link).unwrap();
}

/// The descriptor of a regular file is refused: another process may have opened the file to keep its contents.
#[test]
#[cfg(target_os = "linux")]
fn a_descriptor_of_a_regular_file_is_refused() {
    use std::os::fd::AsRawFd;
    let path = scratch("descriptor");
    std::fs::write(&path, [7; 100]).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    assert!(Trace::create(format!("/proc/self/fd/{}", file.as_raw_fd())).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), [7; 100]);
    std::fs::remove_file(path).unwrap();
}

/// A file that cannot seek is written from start to end.
#[test]
#[cfg(target_os = "linux")]
fn a_trace_may_go_into_a_pipe() {
    use std::os::fd::AsRawFd;
    let (mut reader, writer) = std::io::pipe().unwrap();
    let trace = Trace::create(format!("/proc/self/fd/{}", writer.as_raw_fd())).unwrap();
    drop(writer);
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let pool = Pool::builder(&device).adaptor(trace.clone()).build().unwrap();
    drop(pool.alloc(4096, &Stream::new(&device).unwrap()).unwrap());
    assert!(trace.flush(Duration::from_secs(10)));
    drop((pool, trace));
    let recording = Recording::read_from(&mut reader).unwrap();
    assert_eq!((without_figures(&recording).len(), recording.tail), (2, None));
}

/// The sizes of refusals in a file.
fn refused_sizes(path: &Path) -> Vec<(u64, Option<RefusedBy>)> {
    let recording = Recording::read(path).unwrap();
    let refused = recording.events.iter().filter_map(|event| match event.what {
        What::Refused { size_bytes, by, .. } => Some((size_bytes, by)),
        _ => None,
    });
    refused.collect()
}

/// A refusal is recorded if it ends a request: not for a size that a search gives up, and not for a request that a callback or another
/// pool serves.
#[test]
fn only_refusals_that_end_a_request_are_recorded() {
    struct Cache(Mutex<Option<Block>>);
    impl Reclaimable for Cache {
        fn purge(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            self.0.lock().unwrap().take();
            Ok(())
        }

        fn helps(&self, _kind: MemoryKind) -> bool {
            true
        }
    }
    on_each_backend(&small(), |fixture| {
        let path = scratch(&format!("final-{}-{}-{}", fixture.backend, fixture.plain_segments, fixture.kind));
        let (trace, spare) = (Trace::create(&path).unwrap(), fixture.pool());
        let budget = Arc::new(Budget::new(48 << 20));
        let builder = fixture.builder().hard_limit(64 << 20).adaptor(trace.clone()).adaptor(budget.clone());
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        let largest = pool.alloc_up_to(1 << 20..=1 << 30, &stream).unwrap();
        assert!(largest.size_bytes() > 32 << 20, "{}", largest.size_bytes());
        assert!(pool.alloc_up_to(30 << 20..=1 << 30, &stream).is_err());
        drop(largest);

        let cache = Arc::new(Cache(Mutex::new(Some(pool.alloc(40 << 20, &stream).unwrap()))));
        let registered = Registration::new(&fixture.device, &cache);
        drop(pool.alloc(24 << 20, &stream).unwrap());
        drop(registered);
        let builder = fixture.builder().hard_limit(64 << 20).adaptor(trace.clone());
        let lent = builder.adaptor(Arc::new(Fallback::new(&spare))).build().unwrap();
        drop(lent.alloc(80 << 20, &stream).unwrap());
        drop((pool, lent));
        assert_eq!(refused_sizes(&path), [(30 << 20, Some(RefusedBy::Budget))]);
        std::fs::remove_file(path).unwrap();
    });
}

/// A request that is larger than the device is recorded too, without a limit.
#[test]
fn a_request_larger_than_the_device_is_recorded() {
    let (path, device) = (scratch("larger"), device());
    let pool = Pool::builder(&device).adaptor(Trace::create(&path).unwrap()).build().unwrap();
    assert!(pool.alloc(1 << 40, &Stream::new(&device).unwrap()).is_err());
    drop(pool);
    assert_eq!(refused_sizes(&path), [(1 << 40, None)]);
    std::fs::remove_file(path).unwrap();
}

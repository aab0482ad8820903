//! The counters of a pool's status: each against what the driver and the program have seen.

use crate::call_counter::{calls, count_calls};
use crate::fixture::{Fixture, built_backends, on_device_memory, small};
use gpumem_pool::{
    BackendKind, Block, Device, Pool, PoolCounters, PoolError, Reclaimable, Registration, Stream,
};
use std::error::Error;
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;

fn counters(pool: &Pool) -> PoolCounters {
    pool.status().unwrap().counters
}

#[test]
fn refusals_are_counted_once_each() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(64 * MIB).build().unwrap(), fixture.stream());
        assert_eq!(counters(&pool).refusal_count, 0);
        let held = pool.alloc(48 * MIB, &stream).unwrap();
        assert!(matches!(pool.alloc(32 * MIB, &stream), Err(PoolError::LimitReached(_))));
        assert!(matches!(pool.alloc(2 << 30, &stream), Err(PoolError::TooLarge { .. })));
        assert_eq!(counters(&pool).refusal_count, 2);
        drop(held);
        drop(pool.alloc(32 * MIB, &stream).unwrap());
        assert_eq!(counters(&pool).refusal_count, 2);
    });
}

#[test]
fn allocations_that_a_thread_cache_serves_are_not_slow() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        drop(pool.alloc(4096, &stream).unwrap());
        let before_count = counters(&pool).slow_allocation_count;
        assert_eq!(before_count, 1);
        (0..10).for_each(|_| drop(pool.alloc(4096, &stream).unwrap()));
        let slow_count = if fixture.backend == BackendKind::Caching { 0 } else { 10 };
        assert_eq!(counters(&pool).slow_allocation_count, before_count + slow_count);
    });
}

/// The calls that the counters name, as the driver sees them.
const MEMORY_CALLS: [&str; 13] = [
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemPoolTrimTo",
    "cuMemAllocManaged",
];

#[test]
fn each_driver_call_for_memory_is_counted_and_timed() {
    for backend in built_backends() {
        let driver = count_calls(&gpumem_sim::driver(small()).unwrap(), None);
        let device = Device::new(&driver, 0).unwrap();
        let pool = Pool::builder(&device).backend(backend).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        let blocks: Vec<_> = (1..20).map(|size| pool.alloc(size * MIB, &stream).unwrap()).collect();
        drop(blocks);
        pool.trim_to(0).unwrap();
        drop(pool.alloc(MIB, &stream).unwrap());
        pool.reclaim().unwrap();
        let PoolCounters { driver_call_count, driver_call_time, .. } = counters(&pool);
        let seen_count: u64 = MEMORY_CALLS.iter().map(|name| calls().count(name)).sum();
        assert_eq!(driver_call_count, seen_count, "{backend}");
        assert!(driver_call_count >= 20 && !driver_call_time.is_zero(), "{backend}: {driver_call_count}");
    }
}

#[test]
fn memory_that_returns_to_the_driver_is_counted() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        drop(pool.alloc(40 * MIB, &stream).unwrap());
        stream.synchronize().unwrap();
        let before = pool.status().unwrap();
        pool.reclaim().unwrap();
        let after = pool.status().unwrap();
        let returned_bytes = before.reserved_bytes - after.reserved_bytes;
        assert_eq!(after.counters.trimmed_bytes - before.counters.trimmed_bytes, returned_bytes);
        assert_eq!(returned_bytes > 0, fixture.backend != BackendKind::None);
    });
}

/// A stream gets memory that another one has freed, or a free follows another stream's work: the pool inserts one wait.
#[test]
fn inserted_waits_are_counted() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(64 * MIB).build().unwrap();
        let (one, two) = (fixture.stream(), fixture.stream());
        let block = pool.alloc(48 * MIB, &one).unwrap();
        fixture.fill(&block, 1, &one);
        if fixture.backend == BackendKind::Native {
            block.record_use(&two);
        }
        drop(block);
        drop(pool.alloc(48 * MIB, &two).unwrap());
        let wait_count = if fixture.backend == BackendKind::None { 0 } else { 1 };
        assert_eq!(counters(&pool).inserted_wait_count, wait_count);
    });
}

fn host_waits(fixture: &Fixture, pool: &Pool, work: impl FnOnce()) -> u64 {
    let before = counters(pool);
    work();
    let after = counters(pool);
    let count = after.host_wait_count - before.host_wait_count;
    assert_eq!(count > 0, after.host_wait_time > before.host_wait_time, "{}", fixture.backend);
    count
}

#[test]
fn waits_of_the_host_are_counted() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(64 * MIB).build().unwrap();
        let stream = fixture.stream();
        let mut held = None;
        assert_eq!(host_waits(fixture, &pool, || held = pool.alloc(48 * MIB, &stream).ok()), 0);
        fixture.fill(held.as_ref().unwrap(), 1, &stream);
        let in_free = host_waits(fixture, &pool, || held = None);
        assert_eq!(in_free, u64::from(fixture.backend == BackendKind::None));
        assert_eq!(host_waits(fixture, &pool, || assert!(pool.reclaim().is_ok())), 1);
    });
}

/// A cache that a request can empty.
struct Cache(Mutex<Option<Block>>);

impl Reclaimable for Cache {
    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self.0.lock().unwrap() = None;
        Ok(())
    }
}

/// A step that serves a request has gained its size. A step that makes room for the next pass has gained what became free.
#[test]
fn steps_state_what_they_gave() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let step = |name: &str| {
            let steps = counters(&pool).steps;
            let found = steps.iter().find(|step| step.name == name);
            found.map(|step| (step.served_count, step.gained_bytes >> 20, step.took.is_zero()))
        };
        let cache = Arc::new(Cache(Mutex::new(Some(pool.alloc(800 * MIB, &stream).unwrap()))));
        let _registration = Registration::new(&fixture.device, &cache);
        let is_caching = fixture.backend == BackendKind::Caching;
        assert_eq!(step("reserve more memory"), is_caching.then_some((1, 800, false)));
        drop(pool.alloc(700 * MIB, &stream).unwrap());
        assert_eq!(step("run reclaim callbacks (purge)"), Some((0, 800, false)));
        assert_eq!(step("run reclaim callbacks (release)"), None);
    });
}

/// Each pool counts for itself.
#[test]
fn pools_count_apart() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let private = pool.private(64 * MIB).unwrap();
        assert!(private.alloc(80 * MIB, &stream).is_err());
        assert_eq!((counters(&pool).refusal_count, counters(&private).refusal_count), (0, 1));
        assert!(
            format!("{:#}", private.status().unwrap()).contains("Memory pool requests: 1 refused, 1 beyond")
        );
    });
}

/// A line of the text format: `name{device="0",pool="…",id="…"} number`, after lines that state the meaning and the type of the name. No
/// series is there twice, also for pools of one name.
#[cfg(feature = "prometheus")]
#[test]
fn the_metrics_have_the_format_of_prometheus() {
    on_device_memory(&small(), |fixture| {
        let named = || fixture.builder().name("a \"pool\"\\").hard_limit(64 * MIB).build().unwrap();
        let pools = [named(), fixture.pool(), named()];
        let _held = pools[0].alloc(MIB, &fixture.stream()).unwrap();
        assert!(pools[0].alloc(80 * MIB, &fixture.stream()).is_err());
        let statuses = pools.each_ref().map(|pool| pool.status().unwrap());
        let (text, mut typed) = (gpumem_pool::prometheus_text(&statuses), "");
        let names = [r#"a \"pool\"\\"#, pools[1].name(), r#"a \"pool\"\\"#];
        let labels = |index: usize| {
            let id = pools[index].id().to_string();
            format!("device=\"0\",pool=\"{}\",id=\"{}\"", names[index], &id["pool ".len()..])
        };
        let shown = [0, 1, 2].map(labels);
        let mut series: Vec<_> = text.lines().filter_map(|line| line.rsplit_once(' ')).collect();
        series.sort_unstable();
        assert!(series.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].0.starts_with('#')), "{text}");
        let mut helped = "";
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# HELP ") {
                helped = declared.split(' ').next().unwrap();
                assert!(declared.ends_with('.'), "{line}");
            } else if let Some(declared) = line.strip_prefix("# TYPE ") {
                typed = declared.split(' ').next().unwrap();
                assert_eq!(helped, typed);
                let is_counter = declared.ends_with(" counter");
                assert_eq!(is_counter, typed.ends_with("_total"), "{line}");
            } else {
                let (name, rest) = line.split_once('{').unwrap();
                let (labels, value) = rest.rsplit_once("} ").unwrap();
                let is_of_pool = shown.iter().any(|shown| labels.starts_with(&**shown));
                assert_eq!(name, typed);
                assert!(is_of_pool || name.starts_with("gpumem_device_"), "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        let value = |name: &str, pool: usize| {
            let start = format!("gpumem_{name}{{{}}} ", shown[pool]);
            text.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default()
        };
        let first = ["in_use_bytes", "refusals_total", "hard_limit_bytes"].map(|name| value(name, 0));
        assert_eq!(first, ["1048576", "1", "67108864"]);
        let second = ["in_use_bytes", "refusals_total", "hard_limit_bytes"].map(|name| value(name, 1));
        assert_eq!(second, ["0", "0", ""]);
        // One step served the block.
        let served = text.lines().filter(|line| {
            let start = format!("gpumem_step_gained_bytes_total{{{},step=\"", shown[0]);
            line.starts_with(&start) && line.ends_with("\"} 1048576")
        });
        assert_eq!(served.count(), usize::from(fixture.backend == BackendKind::Caching), "{text}");
    });
}

/// The queries of the board for Grafana name metrics and labels that exist.
#[cfg(feature = "prometheus")]
#[test]
fn the_board_names_metrics_that_exist() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/grafana.json");
    // A packaged crate has no documents.
    let Ok(board) = std::fs::read_to_string(path) else { return };
    let board: serde_json::Value = serde_json::from_str(&board).unwrap();
    let text = gpumem_pool::prometheus_text(&[]);
    let known: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let labels = ["device", "pool", "id", "tag", "step", "instance", "name"];
    let mut queries = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        assert!(panel["title"].is_string() && panel["gridPos"]["w"].is_number(), "{panel}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(target["expr"].as_str().unwrap().to_string());
        }
    }
    for variable in board["templating"]["list"].as_array().unwrap() {
        queries.extend(variable["query"].as_str().map(String::from));
    }
    assert!(queries.len() > 8, "{queries:?}");
    for query in &queries {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<&str> = words.filter(|word| word.starts_with("gpumem_")).collect();
        assert!(names.iter().all(|name| known.contains(name)), "{query}");
        for (label, _) in query
            .split('{')
            .skip(1)
            .flat_map(|part| part.split('}').next())
            .flat_map(|part| part.split(',').filter_map(|matcher| matcher.split_once('=')))
        {
            assert!(labels.contains(&label.trim_end_matches(['!', '~']).trim()), "{label} in {query}");
        }
    }
}

/// Memory that has moved to other addresses is at those alone.
#[test]
fn reserved_ranges_are_the_reserved_memory_and_have_all_blocks() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let mut held: Vec<Block> = Vec::new();
        for turn in 0..60_u64 {
            held.push(pool.alloc((turn * 7 % 13 + 1) * MIB / 2, &stream).unwrap());
            if turn % 3 == 2 {
                drop(held.swap_remove(turn as usize % held.len()));
            }
        }
        held.push(pool.alloc(30 * MIB, &stream).unwrap());
        let ranges = pool.reserved_ranges().unwrap();
        if fixture.backend != BackendKind::Caching {
            assert_eq!(ranges, []);
            return;
        }
        assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
        let sum: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert_eq!(sum, pool.status().unwrap().reserved_bytes);
        for block in &held {
            let end = block.address() + block.size_bytes();
            assert!(
                ranges.iter().any(|range| range.start <= block.address() && end <= range.end),
                "{block:?}"
            );
        }
    });
}

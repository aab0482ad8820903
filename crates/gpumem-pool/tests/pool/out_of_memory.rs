//! The report of a refused request: who receives it, and what it says about limits, other pools and other processes.

use crate::fixture::{Fixture, on_device_memory, on_each_backend, small};
use gpumem_pool::adaptor::{Budget, Fallback};
use gpumem_pool::{
    Advice, BackendKind, Block, Capture, CaptureMode, MemoryKind, Pool, PoolError, RefusedBy, Stream,
};
use gpumem_sim::SimConfig;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const MIB: u64 = 1 << 20;

/// The report of the program's first refusal. The observer must receive an equal report, and the text must match the snapshot.
pub(crate) fn refused(
    fixture: &Fixture,
    name: &str,
    error: &PoolError,
    seen: &Mutex<Vec<PoolError>>,
) -> Advice {
    let report = error.out_of_memory().expect("it is about memory");
    let shown = seen.lock().unwrap().last().and_then(PoolError::out_of_memory).cloned();
    assert_eq!(shown.as_ref(), Some(report), "the observer is shown what is returned");
    assert_eq!(error.to_string(), report.to_string());
    assert_snapshot(fixture, name, &report.to_string());
    report.advice()
}

/// Compares a text with its snapshot: for one schedule of many, because they differ in times only. Over plain segments the
/// advice is equal, but the bytes differ.
fn assert_snapshot(fixture: &Fixture, name: &str, text: &str) {
    if fixture.seed == 0 && !fixture.plain_segments {
        assert_text(&format!("{name}_{}", fixture.backend), text);
    }
}

/// Compares a text with its snapshot. Numbers of pools and streams, times and the memory of the host are not compared.
pub(crate) fn assert_text(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    // A step that gained nothing is listed only if it was slow.
    settings.add_filter(r"\n +tried: [^\n]*: gained nothing in [^\n]*", "");
    settings.add_filter(r" in [0-9.]+(ns|µs|ms|s)(\n|$)", " in TIME$2");
    settings.add_filter(r"pool [0-9]+", "pool N");
    settings.add_filter(r"stream [0-9]+", "stream N");
    settings.add_filter(r"host free +[0-9.]+ [KMGT]iB", "host free     SIZE");
    settings.add_filter(r"[0-9.]+ [KMGT]iB of its memory is free", "SIZE of its memory is free");
    settings.bind(|| insta::assert_snapshot!(name, text));
}

pub(crate) fn observed(fixture: &Fixture) -> (gpumem_pool::PoolBuilder, Arc<Mutex<Vec<PoolError>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let errors = Arc::clone(&seen);
    (fixture.builder().on_out_of_memory(move |error| errors.lock().unwrap().push(error.clone())), seen)
}

pub(crate) fn until_refused(pool: &Pool, size_bytes: u64, stream: &Stream) -> (Vec<Block>, PoolError) {
    let mut held = Vec::new();
    loop {
        match pool.alloc(size_bytes, stream) {
            Ok(block) => held.push(block),
            Err(error) => return (held, error),
        }
    }
}

#[test]
fn another_process() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        gpumem_sim::Sim::of(&fixture.driver).unwrap().take_memory(0, 700 * MIB);
        let (_held, error) = until_refused(&pool, 100 * MIB, &stream);
        assert!(matches!(error, PoolError::OutOfMemory(_)));
        assert_eq!(refused(fixture, "another_process", &error, &seen), Advice::FreeTheDevice);
    });
}

/// Each layer is converted from a temporary block, which is not a leak.
#[test]
fn a_model_that_is_too_large() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let layer = || {
            let temporary = pool.alloc(48 * MIB, &stream)?;
            pool.alloc(24 * MIB, &stream).inspect(|_| drop(temporary))
        };
        let mut layers = Vec::new();
        let error = loop {
            match layer() {
                Ok(kept) => layers.push(kept),
                Err(error) => break error,
            }
        };
        let report = error.out_of_memory().unwrap();
        assert_ne!(report.advice(), Advice::FindTheLeak, "{report}");
        if !fixture.maps() {
            // The remaining memory is the holes of the temporary blocks.
            return;
        }
        assert_eq!(report.advice(), Advice::NeedLess, "{report}");
        let own = gpumem_pool::Bytes(report.device_total_bytes - report.others_bytes());
        let all = format!("more than the {own} that this device has for this pool: use smaller");
        assert!(report.to_string().contains(&all), "{report}");
    });
}

/// The amounts are aligned, however long a tag is.
#[test]
fn the_table_stays_one() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(64 * MIB).build().unwrap(), fixture.stream());
        let held = ["weights", "the optimizer's state, of both moments"].map(|tag| {
            let _scope = pool.scope(tag);
            pool.alloc(20 * MIB, &stream).unwrap()
        });
        let text = pool.alloc(40 * MIB, &stream).unwrap_err().to_string();
        let ends =
            |line: &str| line.find("iB").map(|start| start + 2).or(line.find("bytes").map(|start| start + 5));
        let rows: Vec<_> = text.lines().skip(2).take_while(|line| !line.contains("tried: ")).collect();
        assert!(rows.len() > 5, "{text}");
        let ends: Vec<_> = rows.iter().map(|row| ends(row)).collect();
        drop(held);
        assert!(ends.iter().all(|end| *end == ends[0] && end.is_some()), "{ends:?}\n{text}");
    });
}

/// Unified memory that fills the device leaves no working memory.
#[test]
fn the_margin_of_unified_memory() {
    on_each_backend(&small(), |fixture| {
        if fixture.kind == MemoryKind::Unified {
            let (options, seen) = observed(fixture);
            let (pool, stream) = (options.build().unwrap(), fixture.stream());
            let (_held, error) = until_refused(&pool, 300 * MIB, &stream);
            assert!(matches!(error, PoolError::LimitReached(_)));
            assert_eq!(error.out_of_memory().unwrap().refused_by, RefusedBy::Margin);
            assert_eq!(refused(fixture, "margin", &error, &seen), Advice::Oversubscribe);
        }
    });
}

/// The owners of the memory that counts against a limit, and of the memory on the device.
#[test]
fn other_pools_are_listed_by_name() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(256 * MIB).build().unwrap(), fixture.stream());
        let private = pool.private(200 * MIB).unwrap();
        let held = private.alloc(190 * MIB, &stream).unwrap();
        let text = |error: PoolError, by: RefusedBy| {
            assert_eq!(error.out_of_memory().map(|report| report.refused_by), Some(by), "{error}");
            error.to_string()
        };
        let shared = text(pool.alloc(100 * MIB, &stream).unwrap_err(), RefusedBy::HardLimit);
        assert!(shared.contains("other pools hold 190.000 MiB of the limit"), "{shared}");
        assert!(shared.contains("raise it to 290.000 MiB or more"), "{shared}");
        let quota = text(private.alloc(20 * MIB, &stream).unwrap_err(), RefusedBy::Quota);
        assert!(quota.contains("the quota of 200.000 MiB") && quota.contains("Pool::private"), "{quota}");
        drop((held, private, pool));
        fixture.device.synchronize().unwrap();

        let (full, other) = (fixture.pool(), fixture.pool());
        let _held = full.alloc(800 * MIB, &stream).unwrap();
        let error = text(other.alloc(400 * MIB, &stream).unwrap_err(), RefusedBy::Device);
        assert!(error.contains("other pools of this program hold 800.000 MiB"), "{error}");
    });
}

/// The observer is called for each cause: the device's size, a limit, a quota, a budget, and growths beyond them; and for no
/// other error.
#[test]
fn the_observer_is_called_once_for_each_refusal() {
    on_each_backend(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let budget = Arc::new(Budget::new(96 * MIB));
        let pool = options.hard_limit(64 * MIB).adaptor(budget.clone()).build().unwrap();
        let (stream, is_host) = (fixture.stream(), fixture.kind == MemoryKind::Host);
        let hears = |what: &str, error: Option<PoolError>, expected: usize| {
            let heard: Vec<_> = seen.lock().unwrap().drain(..).map(|heard| heard.to_string()).collect();
            assert_eq!(heard.len(), expected, "{what}: {heard:?}");
            assert!(heard.is_empty() || heard[0] == error.unwrap().to_string(), "{what}: {heard:?}");
        };
        hears("the limit", pool.alloc(80 * MIB, &stream).err(), 1);
        let (over, aligned) = (pool.alloc(97 * MIB, &stream), pool.alloc_aligned(97 * MIB, MIB, &stream));
        for refused in [&over, &aligned] {
            assert!(
                matches!(refused, Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget)
            );
        }
        assert_eq!(seen.lock().unwrap().len(), 2);
        seen.lock().unwrap().clear();
        hears("the budget", pool.alloc(97 * MIB, &stream).err(), 1);

        budget.set_limit(u64::MAX);
        let error = pool.alloc(2 << 30, &stream).err();
        assert!(is_host || matches!(error, Some(PoolError::TooLarge { .. })), "{error:?}");
        hears("the device's size", error, 1);
        hears(
            "what is reserved",
            pool.reserve(2 << 30).err(),
            usize::from(!is_host || fixture.backend == BackendKind::Caching),
        );
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        hears("a part of a graph", pool.alloc(2 << 30, &stream).err(), 1);
        drop(capture.end().unwrap());

        let private = pool.private(32 * MIB).unwrap();
        hears("a quota", private.alloc(33 * MIB, &stream).err(), 1);
        if let Ok(mut growable) = pool.growable(128 * MIB, &stream) {
            budget.set_limit(48 * MIB);
            hears("growth beyond the budget", growable.grow_to(50 * MIB).err(), 1);
            budget.set_limit(u64::MAX);
            hears("growth beyond the limit", growable.grow_to(80 * MIB).err(), 1);
            hears("growth beyond its size", growable.grow_to(129 * MIB).err(), 0);
            hears("addresses", pool.growable(2 << 30, &stream).err(), 1);
        }

        hears("no alignment", pool.alloc_aligned(MIB, 3, &stream).err(), 0);
        hears("too large an alignment", pool.alloc_aligned(MIB, 1 << 60, &stream).err(), 0);
        drop(pool.alloc(MIB, &stream).unwrap());
        hears("what there is", None, 0);
    });
}

/// A request that a fallback or a retry serves is not a refusal.
#[test]
fn a_request_that_succeeds_after_a_retry_is_no_refusal() {
    on_each_backend(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let spare = fixture.builder().hard_limit(128 * MIB).build().unwrap();
        let budget = Arc::new(Budget::new(8 * MIB));
        let options =
            options.hard_limit(64 * MIB).adaptor(budget.clone()).adaptor(Arc::new(Fallback::new(&spare)));
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let lent = [pool.alloc(9 * MIB, &stream).unwrap(), pool.alloc(9 * MIB, &stream).unwrap()];
        budget.set_limit(u64::MAX);
        let _lent = (lent, pool.alloc(80 * MIB, &stream).unwrap());
        assert_eq!(seen.lock().unwrap().len(), 0);
        assert!(pool.alloc(1 << 30, &stream).is_err());
        assert_eq!(seen.lock().unwrap().len(), 1);
    });
}

/// Memory that other pools merely cache is available once the limit allows it.
#[test]
fn a_limit_is_reported_before_memory_cached_by_other_pools() {
    on_device_memory(&small(), |fixture| {
        let (other, stream) = (fixture.pool(), fixture.stream());
        let _small = other.alloc(20 * MIB, &stream).unwrap();
        drop(other.alloc(750 * MIB, &stream).unwrap());
        let pool = fixture.builder().hard_limit(200 * MIB).build().unwrap();
        let held = pool.alloc(200 * MIB, &stream).unwrap();
        let error = pool.alloc(150 * MIB, &stream).unwrap_err();
        let report = error.out_of_memory().unwrap();
        assert_eq!(report.advice(), Advice::RaiseTheLimit, "{report}");
        if fixture.backend != BackendKind::Native {
            pool.set_hard_limit(350 * MIB).unwrap();
            drop((held, pool.alloc(150 * MIB, &stream).unwrap()));
        }
    });
}

/// The observer may free memory: the refused request fails, the next one succeeds.
#[test]
fn the_observer_may_use_the_pool() {
    on_each_backend(&SimConfig::new().memory_bytes(1 << 30), |fixture| {
        let cache: Arc<Mutex<Vec<Block>>> = Arc::default();
        let dropped = Arc::clone(&cache);
        let options = fixture.builder().hard_limit(64 * MIB);
        let pool = options.on_out_of_memory(move |_| dropped.lock().unwrap().clear()).build().unwrap();
        let stream = fixture.stream();
        cache.lock().unwrap().push(pool.alloc(40 * MIB, &stream).unwrap());
        assert!(pool.alloc(40 * MIB, &stream).is_err());
        drop(pool.alloc(40 * MIB, &stream).unwrap());
    });
}

/// An observer is not called for its own refused request, and its panic reaches the caller.
#[test]
fn an_observer_is_not_called_for_its_own_requests() {
    type Slot = Mutex<Option<(Pool, Stream)>>;
    on_each_backend(&SimConfig::new().memory_bytes(1 << 30), |fixture| {
        let (kept, call_count) = (Arc::new(Slot::default()), Arc::new(AtomicU32::new(0)));
        let (own, count) = (Arc::clone(&kept), Arc::clone(&call_count));
        let pool = fixture.builder().hard_limit(64 * MIB).on_out_of_memory(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            let own = own.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (pool, stream) = own.expect("it is there");
            assert!(pool.alloc(80 * MIB, &stream).is_err());
        });
        let (pool, stream) = (pool.build().unwrap(), fixture.stream());
        *kept.lock().unwrap() = Some((pool.clone(), stream.clone()));
        assert!(pool.alloc(80 * MIB, &stream).is_err());
        assert_eq!(call_count.load(Ordering::Relaxed), 1);
        // The observer panics now, and is still called the next time.
        for count in 2..4 {
            let refused = catch_unwind(AssertUnwindSafe(|| pool.alloc(80 * MIB, &stream)));
            assert!(refused.is_err());
            assert_eq!(call_count.load(Ordering::Relaxed), count);
        }
        drop(pool.alloc(60 * MIB, &stream).unwrap());
    });
}

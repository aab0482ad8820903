//! The report of a refused request with an unusual reason.

use crate::fixture::{on_device_memory, on_each_backend, small};
use crate::out_of_memory::{observed, refused, until_refused};
use gpumem_pool::sys::CUresult;
use gpumem_pool::{Advice, BackendKind, Limit, MemoryKind, PoolError, RefusedBy};
use gpumem_sim::{Effect, Rule};

const MIB: u64 = 1 << 20;

/// The driver has enough free memory and refuses the request: no other process is the cause.
#[test]
fn a_driver_that_refuses_although_memory_is_free() {
    let full = || Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let config = ["cuMemAlloc*", "cuMemCreate"].map(|call| Rule::new(call, full()));
    let config = config.into_iter().fold(small(), |config, rule| config.rule(rule));
    on_device_memory(&config, |fixture| {
        gpumem_sim::Sim::of(&fixture.driver).unwrap().take_memory(0, 600 * MIB);
        let (options, seen) = observed(fixture);
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let error = pool.alloc(100 * MIB, &stream).unwrap_err();
        assert_eq!(refused(fixture, "withheld", &error, &seen), Advice::TryDifferently);
    });
}

/// The report names which of several limits refused, and where it was set.
#[test]
fn limits_and_quotas_are_named_with_where_they_were_set() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(300 * MIB).build().unwrap(), fixture.stream());
        let (private, whole) = (pool.private(100 * MIB).unwrap(), pool.private(2 << 30).unwrap());
        let nested = private.private(50 * MIB).unwrap();
        let says = |error: PoolError, by: RefusedBy, texts: &[&str], never: &str| {
            assert_eq!(error.out_of_memory().map(|report| report.refused_by), Some(by), "{error}");
            let said = error.to_string();
            assert!(
                texts.iter().all(|text| said.contains(text)) && !said.contains(never),
                "{texts:?}: {said}"
            );
        };
        // On native each private pool has a pool of the driver, whose size is fixed.
        let is_fixed = fixture.backend == BackendKind::Native;
        let here =
            if is_fixed { "at Pool::private" } else { "at Pool::private, or with Pool::set_hard_limit" };
        says(
            private.alloc(102 * MIB, &stream).unwrap_err(),
            RefusedBy::Quota,
            &["the quota of 100.000 MiB refused", "102.000 MiB or more", here],
            "GPUMEM",
        );
        let both = "and also the parent pool's limit of 300.000 MiB";
        says(
            whole.alloc(301 * MIB, &stream).unwrap_err(),
            RefusedBy::Quota,
            &["the quota of 300.000 MiB refused", here, both],
            "GPUMEM",
        );
        let held = private.alloc(80 * MIB, &stream).unwrap();
        let there = format!("{here} of pool {}", private.name());
        says(
            nested.alloc(40 * MIB, &stream).unwrap_err(),
            RefusedBy::Quota,
            &[&format!("the quota of 100.000 MiB of pool {}", private.name()), &there],
            "GPUMEM",
        );
        let more = pool.alloc(210 * MIB, &stream).unwrap();
        says(
            private.alloc(18 * MIB, &stream).unwrap_err(),
            RefusedBy::HardLimit,
            &[&format!("the limit of 300.000 MiB of pool {} refused", pool.name())],
            "Pool::private",
        );
        drop((held, more));
        for error in [pool.private(MIB).unwrap_err(), private.set_hard_limit(MIB).unwrap_err()] {
            assert!(error.to_string().contains("a hard limit or quota of 1.000 MiB"), "{error}");
            assert!(error.to_string().contains("Pool::private"), "{error}");
        }
    });
}

/// The proposed limit is not rounded down.
#[test]
fn the_limit_that_is_proposed_is_enough() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(64 * MIB).build().unwrap(), fixture.stream());
        let text = pool.alloc(64 * MIB + 1, &stream).unwrap_err().to_string();
        assert!(text.contains("the limit of 64.000 MiB refused 67108865 bytes"), "{text}");
        // The caching heap allocates whole handles.
        let proposed = if fixture.backend == BackendKind::Caching { "66.000 MiB" } else { "64.001 MiB" };
        assert!(text.contains(&format!("raise it to {proposed} or more")), "{text}");
        if fixture.backend != BackendKind::Native {
            pool.set_hard_limit(proposed.parse::<Limit>().unwrap()).unwrap();
            drop(pool.alloc(64 * MIB + 1, &stream).unwrap());
        }
        let is_on_device = fixture.kind != MemoryKind::Host;
        assert_eq!(text.contains("device free"), is_on_device, "{text}");
    });
}

/// A limit that is not a whole number of handles has no fragments beyond the last handle.
#[test]
fn an_odd_limit_is_too_low_where_the_last_handle_does_not_fit() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(5 * MIB).build().unwrap(), fixture.stream());
        let Err(error) = pool.alloc(5 * MIB, &stream) else { return };
        assert_eq!(
            error.out_of_memory().map(|report| report.advice()),
            Some(Advice::RaiseTheLimit),
            "{error}"
        );
        assert!(error.to_string().contains("raise it to 6.000 MiB or more"), "{error}");
        pool.set_hard_limit(6 * MIB).unwrap();
        drop(pool.alloc(5 * MIB, &stream).unwrap());
    });
}

/// Memory that another pool keeps because of a small live block belongs to this program, not to another process.
#[cfg(feature = "backend-native")]
#[test]
fn memory_that_another_pool_cannot_release_is_reported_as_this_program_s() {
    on_device_memory(&small(), |fixture| {
        if fixture.backend != BackendKind::Native {
            return;
        }
        let (other, stream) = (fixture.pool(), fixture.stream());
        drop(other.alloc(600 * MIB, &stream).unwrap());
        let _small = other.alloc(MIB, &stream).unwrap();
        let pool = fixture.pool();
        let _held = pool.alloc(300 * MIB, &stream).unwrap();
        let error = pool.alloc(400 * MIB, &stream).unwrap_err();
        assert_eq!(
            error.out_of_memory().map(|report| report.advice()),
            Some(Advice::FreeTheDevice),
            "{error}"
        );
        assert!(error.to_string().contains("→ other pools of this program hold 608.000 MiB"), "{error}");
    });
}

/// The padding for a large alignment is part of the reported size.
#[test]
fn an_aligned_request_is_reported_as_requested() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(64 * MIB).build().unwrap(), fixture.stream());
        let error = pool.alloc_aligned(40 * MIB, 32 * MIB, &stream).unwrap_err();
        let report = error.out_of_memory().unwrap();
        assert_eq!((report.requested_bytes, report.alignment), (40 * MIB, 32 * MIB));
        assert!(error.to_string().contains("refused 40.000 MiB aligned to 32.000 MiB"), "{error}");
        assert_eq!(report.advice(), Advice::RaiseTheLimit, "{error}");
        // The proposed limit suffices.
        if fixture.backend != BackendKind::Native {
            pool.set_hard_limit(72 * MIB).unwrap();
            drop(pool.alloc_aligned(40 * MIB, 32 * MIB, &stream).unwrap());
        }
    });
}

/// If sizes are rounded up, there are no fragments that could form a larger block.
#[test]
fn small_blocks_that_fill_a_limit() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(8 * MIB).build().unwrap(), fixture.stream());
        let (held, error) = until_refused(&pool, 1000, &stream);
        let report = error.out_of_memory().unwrap();
        assert_eq!(report.advice(), Advice::RaiseTheLimit, "{report}");
        let is_rounded = fixture.backend == BackendKind::Caching;
        assert_eq!(report.rounding_bytes, if is_rounded { 24 * held.len() as u64 } else { 0 }, "{report}");
        assert_eq!(error.to_string().contains("  rounding"), is_rounded, "{report}");
    });
}

/// Growable blocks do not count as blocks, and may own all memory in use.
#[cfg(feature = "backend-caching")]
#[test]
fn blocks_that_grow() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(128 * MIB).build().unwrap(), fixture.stream());
        let Ok(mut block) = pool.growable(1 << 30, &stream) else { return };
        block.grow_to(100 * MIB).unwrap();
        let error = block.grow_to(130 * MIB).unwrap_err();
        assert!(error.to_string().contains("in use         100.000 MiB  in growable blocks\n"), "{error}");
        assert!(error.to_string().contains("raise it to 130.000 MiB or more"), "{error}");
        let _other = pool.alloc(MIB, &stream).unwrap();
        let error = pool.alloc(50 * MIB, &stream).unwrap_err();
        assert!(error.to_string().contains("101.000 MiB  in 1 block, and in growable ones\n"), "{error}");
    });
}

/// Each step runs before a request is refused, and the whole report lists it, even without a result.
#[test]
fn every_step_is_reported() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        let held = pool.alloc(600 * MIB, &stream).unwrap();
        let freed = pool.alloc(100 * MIB, &other).unwrap();
        fixture.fill(&freed, 1, &other);
        drop(freed);
        let error = pool.alloc(600 * MIB, &stream).unwrap_err();
        let attempts = &error.out_of_memory().unwrap().attempts;
        let expected = if fixture.backend == BackendKind::Caching { 13 } else { 1 };
        assert_eq!(attempts.len(), expected, "{error}");
        let text = format!("{error:#}");
        for word in ["rung", "magazine", "ladder", "depot"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
        for attempt in attempts {
            assert_eq!(
                text.matches(&format!("tried: {}: ", attempt.name)).count(),
                1,
                "{}: {text}",
                attempt.name
            );
            let line = format!("tried: {}: ", attempt.name);
            assert!(error.to_string().contains(&line) || attempt.gained_bytes == 0, "{error}");
        }
        let gained_bytes: u64 = attempts.iter().map(|attempt| attempt.gained_bytes).sum();
        assert!(gained_bytes >= 100 * MIB || fixture.backend != BackendKind::Caching, "{text}");
        drop(held);
    });
}

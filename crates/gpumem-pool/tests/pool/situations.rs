//! Situations that call for different actions, each with its whole report: what an operator reads, who knows only the text.

use crate::fixture::{built_backends, on_device_memory, on_each_backend, small};
use crate::out_of_memory::{assert_snapshot, observed, refused, until_refused};
use gpumem_pool::adaptor::{Budget, Fallback, Guard};
use gpumem_pool::sys::CUresult;
use gpumem_pool::{
    Advice, BackendKind, Block, CaptureMode, Device, MemoryKind, Pool, PoolError, Profile, Stream,
};
use gpumem_sim::{Effect, Rule};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Runs steps that allocate and free temporary blocks and keep one of 2 MiB under a tag, beside weights that do not grow.
fn run_steps(pool: &Pool, stream: &Stream, tag: &str, weights_bytes: u64) -> (Vec<Block>, PoolError) {
    let weights = {
        let _scope = pool.scope("weights");
        pool.alloc(weights_bytes, stream).unwrap()
    };
    let mut kept = vec![weights];
    loop {
        let work: Result<Vec<_>, _> = (1..=4).map(|size| pool.alloc(size * MIB, stream)).collect();
        let entry = {
            let _scope = pool.scope(tag);
            pool.alloc(2 * MIB, stream)
        };
        match work.and(entry) {
            Ok(block) => kept.push(block),
            Err(error) => return (kept, error),
        }
    }
}

/// A cache that may grow to 400 MiB, in a pool that may grow to 256 MiB, on a device that has more.
#[test]
fn a_cache_that_fills_below_a_limit() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let options = options.hard_limit(256 * MIB).conf("handle_bytes_max:32MiB").unwrap();
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let (_kept, error) = run_steps(&pool, &stream, "cache", 150 * MIB);
        assert_eq!(refused(fixture, "cache_that_fills", &error, &seen), Advice::FindTheLeak);
        let text = error.to_string();
        assert!(text.contains("the tag `cache`") && text.contains("raise the limit well above 2"), "{text}");
    });
}

/// The largest holder is not the one that grows.
#[test]
fn a_leak_of_one_tag() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let (pool, stream) =
            (options.conf("handle_bytes_max:32MiB").unwrap().build().unwrap(), fixture.stream());
        let (_kept, error) = run_steps(&pool, &stream, "history", 600 * MIB);
        assert_eq!(refused(fixture, "leak_of_one_tag", &error, &seen), Advice::FindTheLeak);
        let growth = error.out_of_memory().unwrap().growth.clone().unwrap();
        assert_eq!(growth.tag.as_deref(), Some("history"), "{error}");
    });
}

/// A library of this process, such as cuBLAS, calls `cuMemAlloc` itself.
#[test]
fn memory_of_this_process_outside_its_pools() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let _bound = fixture.device.bind().unwrap();
        let mut address = 0;
        // SAFETY: the address outlives the call, and the memory is not used.
        unsafe { fixture.driver.cuMemAlloc_v2(&mut address, 700 << 20).unwrap() };
        let (_held, error) = until_refused(&pool, 100 * MIB, &stream);
        assert_eq!(refused(fixture, "own_allocations", &error, &seen), Advice::FreeTheDevice);
        assert!(!error.to_string().contains("end that program"), "{error}");
        // SAFETY: the address came from the call above.
        unsafe { fixture.driver.cuMemFree_v2(address).unwrap() };
    });
}

/// The driver gives plain allocations whole pages of 2 MiB.
#[test]
fn blocks_that_the_driver_rounds_up() {
    on_device_memory(&small(), |fixture| {
        if fixture.backend != BackendKind::None {
            return;
        }
        let (options, seen) = observed(fixture);
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let (_held, error) = until_refused(&pool, MIB + 1000, &stream);
        assert_eq!(refused(fixture, "rounded_by_the_driver", &error, &seen), Advice::NeedLess);
        let report = error.out_of_memory().unwrap();
        assert!(report.others_bytes() < MIB && report.rounding_bytes > 400 * MIB, "{error}");
    });
}

/// The other pool cannot release its cached memory, because a small block lies in each part of it.
#[test]
fn a_fragmented_cache_of_another_pool() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let (other, stream) = (fixture.builder().name("loader").build().unwrap(), fixture.stream());
        let (blocks, _) = until_refused(&other, MIB, &stream);
        let kept: Vec<_> = blocks.into_iter().step_by(8).collect();
        fixture.device.synchronize().unwrap();
        let (pool, is_short) = (options.build().unwrap(), fixture.backend != BackendKind::None);
        let Err(error) = pool.alloc(900 * MIB, &stream) else { panic!("{}", other.status().unwrap()) };
        if is_short {
            assert_eq!(refused(fixture, "fragmented_other_pool", &error, &seen), Advice::FreeTheDevice);
            assert!(error.to_string().contains("pool loader"), "{error}");
        }
        drop(kept);
    });
}

/// A few percent are free, in pieces, and one tag holds all others.
#[test]
fn one_tag_that_holds_nearly_everything() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let pool = options.profile(Profile::Tight).hard_limit(256 * MIB).build().unwrap();
        let stream = fixture.stream();
        let scope = pool.scope("activations");
        let (mut blocks, _) = until_refused(&pool, MIB, &stream);
        drop(scope);
        let mut index = 0;
        blocks.retain(|_| {
            index += 1;
            index % 32 != 0
        });
        let Err(error) = pool.alloc(6 * MIB, &stream) else { return };
        if fixture.backend == BackendKind::Caching {
            assert_eq!(refused(fixture, "one_tag", &error, &seen), Advice::RaiseTheLimit);
            assert!(error.to_string().contains("activations"), "{error}");
        }
    });
}

/// The size wrapped around below zero.
#[test]
fn a_size_that_is_an_error_of_arithmetic() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.pool();
        let text = pool.alloc(1000_u64.wrapping_sub(1004), &fixture.stream()).unwrap_err().to_string();
        let says_so = text.contains("18446744073709551612 bytes") && text.contains("-4");
        assert!(fixture.kind == MemoryKind::Host || says_so && !text.contains("split"), "{text}");
        if fixture.kind == MemoryKind::Device {
            assert_snapshot(fixture, "arithmetic", &text);
        }
    });
}

#[test]
fn a_capture_that_is_open() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let (pool, stream, other) = (options.build().unwrap(), fixture.stream(), fixture.stream());
        let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
        let scratch = pool.alloc(600 * MIB, &stream).unwrap();
        drop(scratch);
        let error = pool.alloc(500 * MIB, &other).unwrap_err();
        assert_eq!(refused(fixture, "open_capture", &error, &seen), Advice::DropGraphs);
        assert!(error.to_string().contains("end it (an error may have left it open)"), "{error}");
        drop(capture);
        drop(pool.alloc(500 * MIB, &other).unwrap());
    });
}

#[test]
fn pinned_memory_that_the_host_refuses() {
    let rules = ["cuMemAllocHost", "cuMemHostAlloc", "cuMemAllocFromPoolAsync"]
        .map(|call| Rule::new(call, Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY)));
    let config = rules.into_iter().fold(small(), |config, rule| config.rule(rule));
    on_each_backend(&config, |fixture| {
        if fixture.kind == MemoryKind::Host {
            let (options, seen) = observed(fixture);
            let error = options.build().unwrap().alloc(300 * MIB, &fixture.stream()).unwrap_err();
            assert_eq!(refused(fixture, "pinned", &error, &seen), Advice::NeedLess);
            assert!(!error.to_string().contains("pageable memory (HostMemory"), "{error}");
        }
    });
}

/// The guard around the budget adds 512 bytes to each block.
#[test]
fn a_budget_that_is_used_up() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let budget = Arc::new(Budget::new(8 << 10).named("requests"));
        let pool = options.adaptor(budget).adaptor(Arc::new(Guard::new())).build().unwrap();
        let (stream, _scope) = (fixture.stream(), pool.scope("session"));
        let _held = pool.alloc(4 << 10, &stream).unwrap();
        let error = pool.alloc(4 << 10, &stream).unwrap_err();
        assert!(matches!(error, PoolError::OverBudget(_)), "{error}");
        assert_eq!(refused(fixture, "budget", &error, &seen), Advice::RaiseTheLimit);
        let text = error.to_string();
        assert!(text.contains("the budget `requests` of 8.000 KiB refused 4.000 KiB"), "{text}");
        assert!(text.contains("Budget::set_limit") && text.contains("9.000 KiB"), "{text}");
    });
}

#[test]
fn a_fallback_that_is_exhausted_too() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let spare = fixture.builder().name("spare").hard_limit(32 * MIB).build().unwrap();
        let options = options.hard_limit(64 * MIB).adaptor(Arc::new(Fallback::new(&spare)));
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let (_held, error) = until_refused(&pool, 24 * MIB, &stream);
        assert_eq!(refused(fixture, "fallback", &error, &seen), Advice::RaiseTheLimit);
        assert!(
            error
                .to_string()
                .contains("the fallback refused too: out of GPU memory: the limit of 32.000 MiB refused"),
            "{error}"
        );
    });
}

#[test]
fn a_damaged_block_with_a_tag() {
    on_device_memory(&small(), |fixture| {
        let guard = Arc::new(Guard::new());
        let pool = fixture.builder().name("training").adaptor(guard.clone()).build().unwrap();
        let stream = fixture.stream();
        let block = {
            let _scope = pool.scope("activations");
            pool.alloc(1000, &stream).unwrap()
        };
        let _bound = fixture.device.bind().unwrap();
        // SAFETY: none, to show the damage: one byte too many overwrites a guard byte.
        unsafe { fixture.driver.cuMemsetD8Async(block.address(), 7, 1001, stream.raw()).unwrap() };
        drop(block);
        fixture.device.synchronize().unwrap();
        let error = pool.alloc(1000, &stream).unwrap_err();
        assert!(matches!(error, PoolError::Damaged(_)), "{error}");
        assert!(error.to_string().contains("tag `activations`"), "{error}");
        assert_snapshot(fixture, "damage", &error.to_string());
    });
}

/// Two devices: the report names the one that is full.
#[test]
fn one_of_two_devices_is_full() {
    for backend in built_backends() {
        let driver = gpumem_sim::driver(small().devices(2)).unwrap();
        let devices = [0, 1].map(|ordinal| Device::new(&driver, ordinal).unwrap());
        let pools = devices.each_ref().map(|device| Pool::builder(device).backend(backend).build().unwrap());
        let streams = devices.each_ref().map(|device| Stream::new(device).unwrap());
        let _held = pools[0].alloc(100 * MIB, &streams[0]).unwrap();
        let (_full, error) = until_refused(&pools[1], 300 * MIB, &streams[1]);
        let text = error.to_string();
        assert!(text.lines().next().unwrap().contains("(device 1, pool "), "{text}");
        assert!(!text.contains("other pools of this program"), "{text}");
    }
}

/// The quotas of four private pools leave their parent nothing.
#[test]
fn private_pools_that_hold_the_whole_limit() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let (pool, stream) =
            (options.name("service").hard_limit(256 * MIB).build().unwrap(), fixture.stream());
        let _held = ["a", "b", "c", "d"].map(|name| {
            let private = pool.private_named(name, 80 * MIB).unwrap();
            let size_bytes = if name == "c" { 76 * MIB } else { 50 * MIB };
            let block = private.alloc(size_bytes, &stream).unwrap();
            (private, block)
        });
        let error = pool.alloc(100 * MIB, &stream).unwrap_err();
        assert_eq!(refused(fixture, "private_pools", &error, &seen), Advice::RaiseTheLimit);
        assert!(error.to_string().contains("pool service/c: 76.000 MiB"), "{error}");
    });
}

/// The weights alone fill the device.
#[test]
fn a_device_that_one_tag_fills() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let _weights = {
            let _scope = pool.scope("weights");
            pool.alloc(900 * MIB, &stream).unwrap()
        };
        let _scope = pool.scope("activations");
        let error = pool.alloc(200 * MIB, &stream).unwrap_err();
        assert_eq!(refused(fixture, "device_full_of_one_tag", &error, &seen), Advice::NeedLess);
        assert!(error.to_string().contains("`weights` holds 900.000 MiB"), "{error}");
    });
}

/// A limit above what the device has left cannot be reached by raising it.
#[test]
fn a_limit_on_a_device_that_is_full() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let (pool, stream) = (options.hard_limit(400 * MIB).build().unwrap(), fixture.stream());
        let other = fixture.builder().name("other").build().unwrap();
        let _held = (other.alloc(600 * MIB, &stream).unwrap(), pool.alloc(350 * MIB, &stream).unwrap());
        let error = pool.alloc(100 * MIB, &stream).unwrap_err();
        assert_eq!(refused(fixture, "limit_on_a_full_device", &error, &seen), Advice::FreeTheDevice);
    });
}

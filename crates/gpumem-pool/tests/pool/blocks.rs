//! Blocks: sizes, contents, order of frees, order of drops.

use crate::fixture::{Fixture, on_device_memory, on_each_backend, small};
use gpumem_pool::adaptor::Budget;
use gpumem_pool::{Block, Capture, CaptureMode, Device, Event, Pool, PoolError, Stream};
use gpumem_sim::SimConfig;
use std::sync::Arc;

#[test]
fn a_block_is_memory_of_its_own() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let sizes = [1, 255, 256, 4096, (1 << 20) + 3];
        let blocks: Vec<Block> = sizes.iter().map(|size| pool.alloc(*size, &stream).unwrap()).collect();
        for (value, block) in blocks.iter().enumerate() {
            assert_eq!(block.size_bytes(), sizes[value]);
            assert_eq!(block.address() % 256, 0);
            fixture.fill(block, value as u8 + 1, &stream);
        }
        for (value, block) in blocks.iter().enumerate() {
            assert!(fixture.holds(block, value as u8 + 1, &stream), "{block:?}");
        }
    });
}

#[test]
fn blocks_of_a_run_are_blocks_like_others() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        assert!(pool.alloc_ready(4096, 10, &stream).unwrap().is_empty(), "nothing is reserved");
        let first = pool.alloc(4096, &stream).unwrap();
        let reserved_bytes = pool.status().unwrap().reserved_bytes;
        let mut blocks = Vec::new();
        for (size_bytes, count) in [(4096, 100), (1, 3), (5000, 1), (4096, 0), (0, 5), (4096, usize::MAX)] {
            let run = pool.alloc_ready(size_bytes, count, &stream).unwrap();
            assert!(run.len() <= count && run.iter().all(|block| block.size_bytes() == size_bytes));
            if fixture.maps() && size_bytes > 0 {
                assert_eq!(run.len(), count.min(256));
            }
            blocks.extend(run);
        }
        for (index, block) in blocks.iter().enumerate() {
            assert_eq!(block.address() % 256, 0);
            fixture.fill(block, index as u8, &stream);
        }
        for (index, block) in blocks.iter().enumerate() {
            assert!(fixture.holds(block, index as u8, &stream), "{block:?}");
        }
        let status = pool.status().unwrap();
        assert_eq!(status.reserved_bytes, reserved_bytes);
        let sum: u64 = blocks.iter().map(Block::size_bytes).sum();
        assert_eq!((status.block_count, status.in_use_bytes), (blocks.len() as u64 + 1, sum + 4096));
        // In any order, and on another thread.
        let (even, odd): (Vec<_>, Vec<_>) =
            blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        drop(even);
        std::thread::scope(|scope| drop(scope.spawn(move || drop(odd)).join()));
        assert_eq!(pool.status().unwrap().block_count, 1);
        drop(first);
        stream.synchronize().unwrap();
        pool.trim_to(0).unwrap();
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
    });
}

#[test]
fn adaptors_and_captures_see_requests_one_by_one() {
    on_device_memory(&small(), |fixture| {
        let stream = fixture.stream();
        let budget = fixture.builder().adaptor(Arc::new(Budget::new(1 << 20))).build().unwrap();
        let _held = budget.alloc(4096, &stream).unwrap();
        assert!(budget.alloc_ready(4096, 10, &stream).unwrap().is_empty());
        let pool = fixture.pool();
        let _held = pool.alloc(4096, &stream).unwrap();
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        assert!(pool.alloc_ready(4096, 10, &stream).unwrap().is_empty());
        drop(capture);
    });
}

#[test]
fn zero_bytes_are_a_block_and_count_as_nothing() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let empty = pool.alloc(0, &stream).unwrap();
        assert_eq!((empty.address(), empty.size_bytes()), (0, 0));
        empty.record_use(&fixture.stream());
        let status = pool.status().unwrap();
        assert_eq!((status.block_count, status.allocation_count, status.in_use_bytes), (0, 0, 0));
    });
}

#[test]
fn a_request_larger_than_the_device_has_its_own_error() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().name("training").build().unwrap(), fixture.stream());
        let _scope = pool.scope("forward");
        let origin = format!("(device 0, pool training, {}, tag `forward`)", stream.id());
        for size_bytes in [(1 << 30) + 1, 1 << 63, i64::MAX as u64, u64::MAX] {
            match pool.alloc(size_bytes, &stream) {
                Err(PoolError::TooLarge { requested_bytes, device_bytes, .. }) => {
                    assert_eq!((requested_bytes, device_bytes), (size_bytes, 1 << 30));
                    let text = pool.alloc(size_bytes, &stream).unwrap_err().to_string();
                    assert!(text.contains(&format!("has only 1.000 GiB {origin}")), "{text}");
                }
                other => panic!("{size_bytes}: {other:?}"),
            }
        }
        assert_eq!(pool.status().unwrap().in_use_peak_bytes, 0, "a refused request is not counted");
    });
}

#[test]
fn a_full_device_is_an_error_and_recovers() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let held = pool.alloc(700 << 20, &stream).unwrap();
        let error = pool.alloc(700 << 20, &stream).unwrap_err();
        let PoolError::OutOfMemory(report) = &error else { panic!("{error:?}") };
        assert_eq!((report.requested_bytes, report.in_use_bytes), (700 << 20, 700 << 20));
        assert_eq!(report.device_total_bytes, 1 << 30);
        assert!(error.to_string().contains(" earlier\n"), "{error}");
        drop(held);
        let again = pool.alloc(700 << 20, &stream).unwrap();
        assert_eq!(pool.status().unwrap().in_use_bytes, 700 << 20);
        drop(again);
    });
}

/// A pending free, or memory cached for another size, must not make the next request fail.
#[test]
fn memory_on_its_way_back_counts_as_there() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.pool();
        for round in 0..8 {
            let stream = fixture.stream();
            let (block, busy) =
                (pool.alloc((600 + round) << 20, &stream).unwrap(), pool.alloc(64, &stream).unwrap());
            for _ in 0..20 {
                fixture.fill(&busy, 1, &stream);
            }
            // The free is behind that work, and before the next stream's request.
            drop(block);
        }
        let stream = fixture.stream();
        let small: Vec<Block> = (0..40).map(|_| pool.alloc(20 << 20, &stream).unwrap()).collect();
        assert_eq!(pool.status().unwrap().in_use_bytes, (40 * 20) << 20);
        drop(small);
        drop(pool.alloc(1000 << 20, &fixture.stream()).unwrap());
    });
}

/// The main case: another stream still uses the block when it is dropped, and its memory is reused.
#[test]
fn a_free_waits_for_every_recorded_use() {
    on_each_backend(&small(), |fixture| {
        let (pool, home, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        for round in 0..20 {
            let block = pool.alloc(1 << 16, &home).unwrap();
            fixture.fill(&block, 1, &home);
            other.wait_for(&home).unwrap();
            for _ in 0..4 {
                fixture.fill(&block, 2, &other);
            }
            block.record_use(&other);
            block.record_use(&other);
            drop(block);
            let next = pool.alloc(1 << 16, &home).unwrap();
            fixture.fill(&next, 3, &home);
            if round % 4 == 0 {
                other.synchronize().unwrap();
                assert!(fixture.holds(&next, 3, &home), "a late write of the old block's user came through");
            }
        }
        fixture.device.synchronize().unwrap();
    });
}

/// Work queued after `record_use` and before the drop is covered too.
#[test]
fn a_use_may_be_recorded_before_its_work_is_queued() {
    on_each_backend(&small(), |fixture| {
        let (pool, home, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        for _ in 0..8 {
            let block = pool.alloc(1 << 16, &home).unwrap();
            other.wait_for(&home).unwrap();
            block.record_use(&other);
            fixture.fill(&block, 2, &other);
            drop(block);
        }
        fixture.device.synchronize().unwrap();
    });
}

#[test]
fn a_stream_may_be_dropped_before_its_blocks() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.pool();
        let (home, other) = (fixture.stream(), fixture.stream());
        let block = pool.alloc(1 << 16, &home).unwrap();
        fixture.fill(&block, 7, &home);
        other.wait_for(&home).unwrap();
        fixture.fill(&block, 8, &other);
        block.record_use(&other);
        let id = home.id();
        drop((home, other));
        assert_eq!((block.stream_id(), block.device()), (id, &fixture.device));
        fixture.device.synchronize().unwrap();
        assert!(fixture.holds(&block, 8, &fixture.stream()));
        drop(block);
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
    });
}

/// Every order in which the objects that a block needs can be dropped, with pending work.
#[test]
fn any_order_of_drops_is_safe() {
    on_each_backend(&small().devices(2), |fixture| {
        for order in permutations(5) {
            // The second device has no other owner: its context ends with the last of these.
            let device = Device::new(&fixture.driver, 1).unwrap();
            let pool = Pool::builder(&device).backend(fixture.backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let event = Event::new(&device).unwrap();
            let block = pool.alloc(1 << 12, &stream).unwrap();
            fixture.fill(&block, 1, &stream);
            event.record(&stream).unwrap();
            stream.wait(&event).unwrap();
            let mut things: [Option<Box<dyn std::any::Any>>; 5] = [
                Some(Box::new(device)),
                Some(Box::new(pool)),
                Some(Box::new(stream)),
                Some(Box::new(event)),
                Some(Box::new(block)),
            ];
            for index in order {
                things[index] = None;
            }
        }
        // Their memory is freed, late frees included.
        let device = Device::new(&fixture.driver, 1).unwrap();
        device.synchronize().unwrap();
        let info = device.memory_info().unwrap();
        assert_eq!(info.free_bytes, info.total_bytes);
    });
}

#[test]
fn status_follows_blocks_and_peaks_stay() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().soft_limit(16 << 20).build().unwrap(), fixture.stream());
        let (one, two) = (pool.alloc(8 << 10, &stream).unwrap(), pool.alloc(1 << 20, &stream).unwrap());
        let both = pool.status().unwrap();
        assert_eq!((both.in_use_bytes, both.block_count), ((8 << 10) + (1 << 20), 2));
        assert!(both.reserved_bytes >= both.in_use_bytes);
        assert_eq!(both.cached_bytes, both.reserved_bytes - both.in_use_bytes);
        assert!(both.device_used_bytes >= both.reserved_bytes);
        assert_eq!((both.backend, both.soft_limit_bytes), (fixture.backend, Some(16 << 20)));
        drop((one, two));
        let none = pool.status().unwrap();
        assert_eq!((none.in_use_bytes, none.block_count, none.allocation_count), (0, 0, 2));
        assert_eq!(none.in_use_peak_bytes, both.in_use_bytes);
        assert!(none.reserved_peak_bytes >= both.reserved_bytes);
        assert!(none.to_string().contains("Memory limit: soft = 16.000 MiB"));
    });
}

#[test]
fn reclaim_releases_all_unused_memory() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let kept = pool.alloc(1 << 20, &stream).unwrap();
        drop(pool.alloc(100 << 20, &stream).unwrap());
        let before = pool.status().unwrap();
        assert_eq!(before.cached_bytes > 0, caches(fixture));
        let given_back = pool.reclaim().unwrap();
        let after = pool.status().unwrap();
        assert_eq!(given_back, before.reserved_bytes - after.reserved_bytes);
        assert!(after.reserved_bytes < 100 << 20 && after.reserved_bytes >= kept.size_bytes());
        drop(kept);
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0);
        let info = fixture.device.memory_info().unwrap();
        assert_eq!(info.free_bytes, info.total_bytes);
    });
}

#[test]
fn trim_keeps_the_given_amount() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        drop(pool.alloc(200 << 20, &stream).unwrap());
        stream.synchronize().unwrap();
        assert_eq!(pool.trim_to(u64::MAX).unwrap(), 0);
        let given_back = pool.trim_to(0).unwrap();
        assert_eq!(given_back > 0, caches(fixture));
        assert_eq!(pool.status().unwrap().reserved_bytes, 0);
    });
}

#[test]
fn cached_memory_stays_without_a_soft_limit_and_goes_with_one() {
    on_each_backend(&small(), |fixture| {
        if !caches(fixture) {
            return;
        }
        let stream = fixture.stream();
        let (lavish, frugal) = (fixture.pool(), fixture.builder().soft_limit(0).build().unwrap());
        drop((lavish.alloc(1 << 20, &stream).unwrap(), frugal.alloc(1 << 20, &stream).unwrap()));
        fixture.device.synchronize().unwrap();
        assert!(lavish.status().unwrap().cached_bytes > 0);
        assert_eq!(frugal.status().unwrap().cached_bytes, 0);
    });
}

#[test]
fn a_pool_outlives_its_handles_for_its_blocks() {
    on_each_backend(&SimConfig::new(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let twin = pool.clone();
        let block = pool.alloc(4096, &stream).unwrap();
        drop(pool);
        assert_eq!(twin.status().unwrap().block_count, 1);
        drop(twin);
        fixture.fill(&block, 5, &stream);
        assert!(fixture.holds(&block, 5, &stream));
    });
}

fn caches(fixture: &Fixture) -> bool {
    fixture.backend != gpumem_pool::BackendKind::None
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
    let insert = |order: Vec<usize>| {
        (0..=last).map(move |place| {
            let mut order = order.clone();
            order.insert(place, last);
            order
        })
    };
    permutations(last).into_iter().flat_map(insert).collect()
}

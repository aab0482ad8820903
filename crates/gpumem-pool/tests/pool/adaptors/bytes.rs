//! Adaptors that write and read the bytes of blocks.

use super::MIB;
use crate::fixture::{Fixture, on_each_backend, on_each_backend_with, small, stand_in};
use gpumem_pool::adaptor::{Fill, Guard, Side};
use gpumem_pool::sys::types::CUresult;
use gpumem_pool::{Block, Capture, CaptureMode, DeviceError, PoolError, Stream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Writes a byte in or around a block: `at` is relative to its start.
fn poke(fixture: &Fixture, block: &Block, at: i64, value: u8, stream: &Stream) {
    let _bound = stream.device().bind().unwrap();
    let address = block.address().wrapping_add_signed(at);
    // SAFETY: the bytes of the guard belong to the grant of the block.
    unsafe { fixture.driver.cuMemsetD8Async(address, value, 1, stream.raw()).unwrap() };
}

/// Allocates blocks of many sizes in a loop, on two streams that reuse each other's memory.
fn no_block_shows_bytes_of_another(fixture: &Fixture, fill: Fill) {
    let fill = Arc::new(fill);
    let pool = fixture.builder().adaptor(fill.clone()).build().unwrap();
    let streams = [fixture.stream(), fixture.stream()];
    for round in 0..6_u64 {
        for (index, size_bytes) in [256, 5000, MIB, 3 * MIB].into_iter().enumerate() {
            let (home, other) =
                (&streams[(round as usize + index) % 2], &streams[(round as usize + index + 1) % 2]);
            let block = pool.alloc(size_bytes, home).unwrap();
            let is_fresh = round == 0;
            assert!(is_fresh || fixture.holds(&block, 0, home), "round {round}, {size_bytes} bytes");
            fixture.fill(&block, 0x77, home);
            if round % 2 == 0 {
                other.wait_for(home).unwrap();
                fixture.fill(&block, 0x66, other);
                block.record_use(other);
            }
            if round == 3 {
                other.synchronize().unwrap();
                home.synchronize().unwrap();
                // SAFETY: both streams are complete.
                unsafe { block.free_completed() };
            }
        }
    }
    assert!(!fill.has_missed());
}

#[test]
fn zeroes_on_alloc() {
    on_each_backend(&small(), |fixture| no_block_shows_bytes_of_another(fixture, Fill::zero_on_alloc()));
}

#[test]
fn zeroes_on_free() {
    on_each_backend(&small(), |fixture| no_block_shows_bytes_of_another(fixture, Fill::zero_on_free()));
}

/// A guarantee that all work is complete does not cover work queued by the adaptor.
#[test]
fn work_queued_at_the_allocation_is_ordered_before_the_free() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().adaptor(Arc::new(Fill::zero_on_alloc())).build().unwrap();
        let (home, other) = (fixture.stream(), fixture.stream());
        for _ in 0..4 {
            let block = pool.alloc(MIB, &home).unwrap();
            // SAFETY: the block was never used.
            unsafe { block.free_completed() };
            let block = pool.alloc(MIB, &other).unwrap();
            fixture.fill(&block, 9, &other);
            assert!(fixture.holds(&block, 9, &other));
        }
    });
}

/// If the work of a free cannot be queued on its stream, the next allocations do it.
#[test]
fn bytes_that_cannot_be_filled_at_the_free_are_filled_later() {
    on_each_backend(&small(), |fixture| {
        let fill = Arc::new(Fill::zero_on_free());
        let pool = fixture.builder().adaptor(fill.clone()).build().unwrap();
        let home = fixture.stream();
        let legacy = Stream::legacy(&fixture.device).unwrap();
        let block = pool.alloc(MIB, &legacy).unwrap();
        fixture.fill(&block, 5, &legacy);
        drop(block);
        assert!(fill.has_missed());
        fixture.device.synchronize().unwrap();
        for stream in [&legacy, &home] {
            let block = pool.alloc(MIB, stream).unwrap();
            assert!(fixture.holds(&block, 0, stream));
            fixture.fill(&block, 5, stream);
        }
        // With a dropped stream, too.
        let short = fixture.stream();
        let block = pool.alloc(3 * MIB, &short).unwrap();
        fixture.fill(&block, 6, &short);
        drop(short);
        drop(block);
        fixture.device.synchronize().unwrap();
        let block = pool.alloc(3 * MIB, &home).unwrap();
        assert!(fixture.holds(&block, 0, &home));
    });
}

#[test]
fn debug_bytes_are_seen() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) =
            (fixture.builder().adaptor(Arc::new(Fill::debug())).build().unwrap(), fixture.stream());
        let block = pool.alloc(5000, &stream).unwrap();
        assert!(fixture.holds(&block, 0xA5, &stream));
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        let part = pool.alloc(5000, &stream).unwrap();
        let exec = capture.end().unwrap().instantiate().unwrap();
        // SAFETY: the graph is empty.
        unsafe { exec.launch(&stream).unwrap() };
        assert!(fixture.holds(&part, 0xA5, &stream), "the chunk was filled before the launch");
        drop((block, exec));
    });
}

#[test]
fn a_guard_reports_the_written_bytes() {
    on_each_backend(&small(), |fixture| {
        let guard = Arc::new(Guard::new());
        let (pool, home) = (fixture.builder().adaptor(guard.clone()).build().unwrap(), fixture.stream());
        let other = fixture.stream();
        for size_bytes in [1, 255, 256, 1000, 3 * MIB] {
            let behind = size_bytes as i64;
            for (at, side, distance_bytes) in [
                (-1, Side::Before, 0),
                (-256, Side::Before, 255),
                (behind, Side::Behind, 0),
                (behind + 255, Side::Behind, 255),
            ] {
                let block = pool.alloc(size_bytes, &home).unwrap();
                assert_eq!((block.address() % 256, block.size_bytes()), (0, size_bytes));
                fixture.fill(&block, 3, &home);
                other.wait_for(&home).unwrap();
                poke(fixture, &block, at, 0x42, &other);
                block.record_use(&other);
                let (address, stream) = (block.address(), block.stream_id());
                drop(block);
                fixture.device.synchronize().unwrap();
                let found = guard.settle();
                assert_eq!(found.len(), 1, "{size_bytes} {at}");
                let damage = &found[0];
                assert_eq!((damage.address, damage.size_bytes, damage.stream), (address, size_bytes, stream));
                assert_eq!((damage.side, damage.distance_bytes), (side, distance_bytes));
                assert_eq!((damage.count, damage.found), (1, 0x42));
            }
        }
        assert_eq!((guard.checked_count(), guard.unchecked_count()), (20, 0));
        let aligned = pool.alloc_aligned(700, 4096, &home).unwrap();
        assert_eq!(aligned.address() % 4096, 0);
        fixture.fill(&aligned, 3, &home);
        drop(aligned);
        fixture.device.synchronize().unwrap();
        assert_eq!((guard.settle(), guard.checked_count()), (Vec::new(), 21));
        pool.check().unwrap();
    });
}

/// Damage is the error of the next allocation, once, or is passed to the observer.
#[test]
fn damage_is_reported() {
    on_each_backend(&small(), |fixture| {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let reported = heard.clone();
        let reporting =
            Arc::new(Guard::new().on_damage(move |damage| reported.lock().unwrap().push(damage.clone())));
        let home = fixture.stream();
        for guard in [Arc::new(Guard::new()), reporting.clone()] {
            let pool = fixture.builder().adaptor(guard).build().unwrap();
            let block = pool.alloc(1000, &home).unwrap();
            poke(fixture, &block, 1001, 0x42, &home);
            drop(block);
            home.synchronize().unwrap();
            let next = pool.alloc(1000, &home);
            match heard.lock().unwrap().len() {
                0 => {
                    let error = next.unwrap_err();
                    assert!(matches!(&error, PoolError::Damaged(damage) if damage.distance_bytes == 1));
                    let text = error.to_string();
                    assert!(text.starts_with("1 byte after a block of 1000 bytes at 0x"), "{text}");
                    assert!(text.contains("lies 1 byte from its end and holds 0x42"), "{text}");
                    drop(pool.alloc(1000, &home).unwrap());
                }
                _ => drop(next.unwrap()),
            }
        }
        assert_eq!(heard.lock().unwrap().len(), 1);
        assert!(reporting.settle().is_empty());
    });
}

/// Blocks of threads, of a graph, of dropped and of foreign streams, and more at one time than there are slots.
#[test]
fn guards_check_the_bytes_that_they_can_read() {
    on_each_backend(&small(), |fixture| {
        if fixture.seed > 1 {
            return;
        }
        let guard = Arc::new(Guard::new());
        let (pool, home) = (fixture.builder().adaptor(guard.clone()).build().unwrap(), fixture.stream());
        let capture = Capture::begin(&home, CaptureMode::Relaxed).unwrap();
        let part = pool.alloc(1024, &home).unwrap();
        fixture.fill(&part, 1, &home);
        poke(fixture, &part, 1024, 0x42, &home);
        drop(part);
        let exec = capture.end().unwrap().instantiate().unwrap();
        // SAFETY: the byte past the end belongs to the guard.
        unsafe { exec.launch(&home).unwrap() };
        home.synchronize().unwrap();
        assert_eq!(guard.checked_count(), 0);
        drop(exec);
        fixture.device.synchronize().unwrap();
        assert_eq!(guard.settle().len(), 1, "at the end of the graph, behind its launches");

        let legacy = Stream::legacy(&fixture.device).unwrap();
        drop(pool.alloc(1000, &legacy).unwrap());
        let short = fixture.stream();
        let block = pool.alloc(1000, &short).unwrap();
        drop(short);
        drop(block);
        assert_eq!(guard.unchecked_count(), 2);

        let blocks: Vec<_> = (0..1100).map(|_| pool.alloc(256, &home).unwrap()).collect();
        drop(blocks);
        fixture.device.synchronize().unwrap();
        assert!(guard.settle().is_empty());
        assert_eq!(guard.checked_count() + guard.unchecked_count(), 1 + 2 + 1100);
        let late = pool.alloc(256, &home).unwrap();
        poke(fixture, &late, -1, 1, &home);
        drop((pool, late));
        fixture.device.synchronize().unwrap();
        assert_eq!(guard.settle().len(), 1, "the pool is gone, and the guard is not");
    });
}

stand_in!(fills, cuMemsetD8Async(address: CUdeviceptr, value: u8, count: usize, stream: CUstream));
stand_in!(copies, cuMemcpyAsync(target: CUdeviceptr, source: CUdeviceptr, count: usize, stream: CUstream));
stand_in!(host, cuMemHostAlloc(target: *mut *mut core::ffi::c_void, count: usize, flags: core::ffi::c_uint));

/// If a driver call of an adaptor fails, an allocation returns the error and leaks nothing, and a drop continues as far as
/// possible.
#[test]
fn a_refused_fill_is_reported_or_repeated() {
    let install = |table: &mut gpumem_pool::sys::Table| {
        fills::install(table);
        copies::install(table);
        host::install(table);
    };
    on_each_backend_with(&small(), install, |fixture| {
        let refusal = CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES.0;
        let guard = Arc::new(Guard::new());
        let fill = Arc::new(Fill::zero_on_free());
        let builder = fixture.builder().adaptor(guard.clone()).adaptor(fill.clone());
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        let refused = |switch: &std::sync::atomic::AtomicU32| {
            switch.store(refusal, Ordering::SeqCst);
            let error = pool.alloc(1000, &stream).unwrap_err();
            switch.store(0, Ordering::SeqCst);
            assert!(
                matches!(error, PoolError::Device(DeviceError::Driver(cause)) if cause.code().0 == refusal),
                "{error}"
            );
            assert_eq!(pool.status().unwrap().block_count, 0);
        };
        refused(&host::FAIL_WITH);
        refused(&fills::FAIL_WITH);

        let (first, second) = (pool.alloc(1000, &stream).unwrap(), pool.alloc(1000, &stream).unwrap());
        copies::FAIL_WITH.store(refusal, Ordering::SeqCst);
        let before = guard.unchecked_count();
        drop(first);
        copies::FAIL_WITH.store(0, Ordering::SeqCst);
        assert_eq!((guard.unchecked_count() - before, fill.has_missed()), (1, false));
        fixture.fill(&second, 4, &stream);
        fills::FAIL_WITH.store(refusal, Ordering::SeqCst);
        drop(second);
        fills::FAIL_WITH.store(0, Ordering::SeqCst);
        assert!(fill.has_missed());
        let third = pool.alloc(1000, &stream).unwrap();
        assert!(fixture.holds(&third, 0, &stream));
        drop(third);
        pool.check().unwrap();
    });
}

//! Pools that sleep: what stays, what is refused meanwhile, and what happens when a driver call fails.

use crate::call_counter::{calls, count_calls};
use crate::fixture::{on_each_backend, small, stride};
use crate::growable::{self, on_caching_with};
use gpumem_pool::adaptor::{Fallback, Fill, Guard};
use gpumem_pool::sys::{CUresult, Driver};
use gpumem_pool::{
    BackendKind, Block, Bytes, Capture, CaptureError, CaptureMode, Device, DeviceError, GrowableBlock, Keep,
    Limit, MemoryKind, Pool, PoolError, Reclaimable, Registration, Stream, Unsupported,
};
use gpumem_sim::{Effect, Rule, Sim};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const MIB: u64 = 1 << 20;

/// Small and large blocks, several of which share a handle, each filled with its number.
fn filled(pool: &Pool, stream: &Stream) -> Vec<Block> {
    filled_of(pool, stream, &[100, 5000, MIB, 3 * MIB, 2 * MIB + 5, 9 * MIB, 700_000, 33 * MIB])
}

fn filled_of(pool: &Pool, stream: &Stream, sizes: &[u64]) -> Vec<Block> {
    let block = |(value, size_bytes): (usize, &u64)| {
        let mut block = pool.alloc(*size_bytes, stream).unwrap();
        block.fill(0..*size_bytes, value as u8 + 1, stream).unwrap();
        block
    };
    sizes.iter().enumerate().map(block).collect()
}

fn hold_their_numbers(blocks: &[Block], stream: &Stream) {
    for (value, block) in blocks.iter().enumerate() {
        assert_eq!(bytes_of(block, stream), [value as u8 + 1], "block {value}");
    }
}

/// The distinct bytes of a block.
fn bytes_of(block: &Block, stream: &Stream) -> Vec<u8> {
    let mut bytes = vec![0xEE_u8; block.size_bytes() as usize];
    twice(|| block.copy_to_host(0, &mut bytes, stream));
    bytes.dedup();
    bytes
}

/// The result of a call that may be the one that fails.
fn twice<T>(mut call: impl FnMut() -> Result<T, PoolError>) -> T {
    call().or_else(|_| call()).unwrap()
}

fn used_bytes(device: &Device) -> u64 {
    let info = twice(|| device.memory_info().map_err(Into::into));
    info.total_bytes - info.free_bytes
}

fn is_asleep<T: Debug>(result: Result<T, PoolError>) {
    assert!(matches!(result, Err(PoolError::Device(DeviceError::Asleep { .. }))), "{result:?}");
}

fn caching(driver: &Driver) -> (Device, Pool, Stream) {
    let device = Device::new(driver, 0).unwrap();
    let pool = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    (device, pool, stream)
}

#[test]
fn blocks_keep_their_addresses_and_contents() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let blocks = filled(&pool, &stream);
        drop(pool.alloc(20 * MIB, &stream).unwrap());
        let slept = match pool.sleep(Keep::OnHost) {
            Ok(slept) => slept,
            Err(PoolError::Unsupported(Unsupported::OnSegments { .. })) => {
                return assert!(fixture.plain_segments);
            }
            Err(PoolError::Unsupported(Unsupported::OnKind { kind, .. })) => {
                assert_eq!(kind, fixture.kind);
                return assert_ne!((kind, fixture.backend), (MemoryKind::Device, BackendKind::Caching));
            }
            Err(error) => {
                assert!(matches!(error, PoolError::Unsupported(Unsupported::OnBackend { .. })), "{error}");
                return assert_ne!(fixture.backend, BackendKind::Caching);
            }
        };
        assert!(fixture.maps() && pool.is_asleep());
        let sum_bytes: u64 = blocks.iter().map(Block::size_bytes).sum();
        assert!(slept.copied_bytes >= sum_bytes && slept.released_bytes >= sum_bytes + 20 * MIB, "{slept:?}");
        assert_eq!((slept.kept_bytes, used_bytes(&fixture.device)), (0, 0));
        let status = pool.status().unwrap();
        assert_eq!((status.reserved_bytes, status.in_use_bytes), (0, sum_bytes));
        assert!(
            status.asleep_bytes >= sum_bytes && status.asleep_host_bytes >= slept.copied_bytes,
            "{status:#}"
        );
        pool.check().unwrap();

        let woken = pool.wake().unwrap();
        assert_eq!((woken.created_bytes, woken.copied_bytes), (status.asleep_bytes, slept.copied_bytes));
        assert!(!pool.is_asleep());
        hold_their_numbers(&blocks, &stream);
        assert_eq!(pool.status().unwrap().asleep_bytes, 0);
        // The pool reuses, grows and shrinks again.
        drop(blocks);
        drop(filled(&pool, &stream));
        pool.check().unwrap();
        pool.reclaim().unwrap();
        assert_eq!((used_bytes(&fixture.device), pool.status().unwrap().asleep_host_bytes), (0, 0));
    });
}

/// All that needs memory is refused, and nothing else.
#[test]
fn operations_on_memory_that_sleeps_are_refused() {
    let (device, pool, stream) = caching(&gpumem_sim::driver(small()).unwrap());
    let mut blocks = filled(&pool, &stream);
    let other = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
    let mut outside = other.alloc_zeroed(MIB, &stream).unwrap();
    pool.sleep(Keep::OnHost).unwrap();

    is_asleep(pool.alloc(100, &stream));
    is_asleep(pool.alloc(50 * MIB, &stream));
    is_asleep(pool.alloc_aligned(100, 1 << 20, &stream));
    is_asleep(pool.alloc_zeroed(100, &stream));
    is_asleep(pool.alloc_ready(100, 4, &stream));
    is_asleep(pool.reserve(100 * MIB));
    is_asleep(pool.growable(MIB, &stream));
    is_asleep(blocks[0].fill(0..100, 1_u8, &stream));
    is_asleep(blocks[0].copy_from_host(0, &[1_u8], &stream));
    is_asleep(blocks[0].copy_to_host(0, &mut [1_u8], &stream));
    is_asleep(blocks[2].copy_within(0..100, 1000, &stream));
    is_asleep(blocks[2].copy_from(0, &outside, 0..100, &stream));
    is_asleep(outside.copy_from(0, &blocks[2], 0..100, &stream));
    is_asleep(blocks[0].pin_backing());
    assert!(matches!(pool.sleep(Keep::OnHost), Err(PoolError::CannotSleep { .. })));
    outside.fill(0..MIB, 3_u8, &stream).unwrap();
    assert_eq!(bytes_of(&outside, &stream), [3]);
    blocks.iter().for_each(|block| block.record_use(&stream));
    pool.trim_to(0).unwrap();
    pool.reclaim().unwrap();
    device.synchronize().unwrap();

    pool.wake().unwrap();
    assert_eq!(pool.wake().unwrap(), gpumem_pool::Woken::default(), "a pool that is awake");
    hold_their_numbers(&blocks, &stream);
}

/// A growable block keeps its address, and may be smaller or gone when its pool wakes.
#[test]
fn growable_blocks_sleep_too() {
    on_caching_with(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let mut blocks = [0; 3].map(|_| pool.growable(256 * MIB, &stream).unwrap());
        for (value, block) in blocks.iter_mut().enumerate() {
            block.grow_to(9 * MIB).unwrap();
            growable::fill(fixture, block, 0..9 * MIB, value as u8 + 1, &stream);
        }
        let slept = pool.sleep(Keep::OnHost).unwrap();
        assert_eq!((slept.copied_bytes, slept.kept_bytes, used_bytes(&fixture.device)), (27 * MIB, 0, 0));
        pool.check().unwrap();
        is_asleep(blocks[0].grow_to(10 * MIB));
        let [first, mut second, third] = blocks;
        second.shrink_to(MIB).unwrap();
        drop(third);
        pool.check().unwrap();
        pool.wake().unwrap();
        pool.check().unwrap();
        assert_eq!(growable::byte(fixture, &first, 9 * MIB - 1, &stream), 1);
        assert_eq!(growable::byte(fixture, &second, MIB - 1, &stream), 2);
        assert!(used_bytes(&fixture.device) < 20 * MIB, "the rest of the second block, and the third");
        second.grow_to(30 * MIB).unwrap();
        growable::fill(fixture, &second, MIB..30 * MIB, 5, &stream);
        assert_eq!(growable::byte(fixture, &second, 30 * MIB - 1, &stream), 5);
        pool.sleep(Keep::Nothing).unwrap();
        drop(pool);
        drop((first, second));
        fixture.device.synchronize().unwrap();
        assert_eq!(used_bytes(&fixture.device), 0);
    });
}

/// Blocks are freed on any thread while they sleep. Memory without blocks does not wake.
#[test]
fn blocks_may_be_freed_while_they_sleep() {
    let driver = gpumem_sim::driver(small()).unwrap();
    let (device, pool, stream) = caching(&driver);
    let mut blocks = filled(&pool, &stream);
    let kept = blocks.drain(3..4).collect::<Vec<_>>();
    let slept = pool.sleep(Keep::OnHost).unwrap();
    std::thread::scope(|scope| {
        let half = blocks.split_off(3);
        scope.spawn(move || drop(half));
        drop(blocks);
    });
    let woken = pool.wake().unwrap();
    assert!(
        woken.created_bytes < slept.released_bytes && woken.copied_bytes < slept.copied_bytes,
        "{woken:?}"
    );
    pool.check().unwrap();
    assert_eq!(bytes_of(&kept[0], &stream), [4]);
    drop(kept);
    pool.reclaim().unwrap();
    assert_eq!(used_bytes(&device), 0);
    let report = Sim::of(&driver).unwrap().report();
    assert_eq!((report.handle_count, report.findings.len()), (0, 0), "{report}");
}

/// A pool that sleeps may be dropped, and its blocks after it.
#[test]
fn a_pool_that_sleeps_may_be_dropped() {
    for keep in [Keep::OnHost, Keep::Nothing] {
        let driver = gpumem_sim::driver(small()).unwrap();
        let (device, pool, stream) = caching(&driver);
        let blocks = filled(&pool, &stream);
        pool.sleep(keep).unwrap();
        drop(pool);
        drop(blocks);
        drop(stream);
        device.synchronize().unwrap();
        let report = Sim::of(&driver).unwrap().report();
        assert!(report.allocations.is_empty(), "{report}");
        assert_eq!(
            (report.handle_count, report.reservation_count, report.findings.len()),
            (0, 0, 0),
            "{report}"
        );
    }
}

/// Without contents, the memory is zero.
#[test]
fn contents_that_are_not_kept_are_zero() {
    let (_device, pool, stream) = caching(&gpumem_sim::driver(small()).unwrap());
    let blocks = filled(&pool, &stream);
    let slept = pool.sleep(Keep::Nothing).unwrap();
    assert_eq!((slept.copied_bytes, pool.status().unwrap().asleep_host_bytes), (0, 0));
    pool.wake().unwrap();
    assert!(blocks.iter().all(|block| bytes_of(block, &stream) == [0]));
}

/// Another program took the memory: the pool sleeps on, and wakes later.
#[test]
fn a_pool_wakes_once_memory_is_there() {
    let driver = gpumem_sim::driver(small()).unwrap();
    let sim = Sim::of(&driver).unwrap();
    let (device, pool, stream) = caching(&driver);
    let blocks = filled(&pool, &stream);
    pool.sleep(Keep::OnHost).unwrap();
    let asleep_bytes = pool.status().unwrap().asleep_bytes;
    sim.take_memory(0, (1 << 30) - asleep_bytes + 2 * MIB);
    let before_bytes = used_bytes(&device);
    for _ in 0..2 {
        let error = pool.wake().unwrap_err();
        assert!(matches!(error, PoolError::OutOfMemory(_)), "{error}");
        assert!(pool.is_asleep());
        assert_eq!((used_bytes(&device), pool.status().unwrap().asleep_bytes), (before_bytes, asleep_bytes));
        pool.check().unwrap();
    }
    // Memory that another pool caches counts as free.
    sim.return_memory(0, u64::MAX);
    let other = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
    drop(other.alloc((1 << 30) - asleep_bytes / 2, &stream).unwrap());
    pool.wake().unwrap();
    hold_their_numbers(&blocks, &stream);
}

/// A limit that another pool has filled refuses the memory.
#[test]
fn a_limit_may_refuse_to_wake_a_pool() {
    let (_device, pool, stream) = caching(&gpumem_sim::driver(small()).unwrap());
    let blocks = filled(&pool, &stream);
    let mut log = pool.growable(256 * MIB, &stream).unwrap();
    log.grow_to(9 * MIB).unwrap();
    pool.sleep(Keep::OnHost).unwrap();
    let asleep_bytes = pool.status().unwrap().asleep_bytes;
    pool.set_hard_limit(16 * MIB).unwrap();
    let error = pool.wake().unwrap_err();
    assert!(matches!(error, PoolError::LimitReached(_)), "{error}");
    let (report, text) = (error.out_of_memory().unwrap(), error.to_string());
    assert_eq!((report.requested_bytes, report.asleep_bytes), (asleep_bytes, asleep_bytes), "{text}");
    assert_eq!((report.in_use_bytes, report.growable_bytes, report.rounding_bytes), (0, 0, 0), "{text}");
    assert!(
        text.contains(&format!("\n  asleep{:>20}  in blocks", Bytes(asleep_bytes).to_string())),
        "{text}"
    );
    // The limit that the report proposes is enough.
    let start = text.find("raise it to ").unwrap() + "raise it to ".len();
    let proposed = text[start..].split(" or more").next().unwrap();
    assert_eq!(proposed.parse(), Ok(Limit::Bytes(asleep_bytes)), "{text}");
    pool.set_hard_limit(proposed).unwrap();
    pool.wake().unwrap();
    hold_their_numbers(&blocks, &stream);
}

#[test]
fn a_pool_does_not_sleep_while_others_need_its_memory() {
    let driver = gpumem_sim::driver(small().devices(2)).unwrap();
    let (device, pool, stream) = caching(&driver);
    let refused = |pool: &Pool, block: &Block| {
        let error = pool.sleep(Keep::OnHost).unwrap_err();
        assert!(matches!(error, PoolError::CannotSleep { .. }), "{error}");
        assert!(!pool.is_asleep());
        assert_eq!(bytes_of(block, &stream), [7]);
    };
    let block_of = |pool: &Pool| {
        let mut block = pool.alloc(MIB, &stream).unwrap();
        block.fill(0..MIB, 7_u8, &stream).unwrap();
        block
    };
    let block = block_of(&pool);
    block.pin_backing().unwrap();
    refused(&pool, &block);
    drop(block);
    pool.sleep(Keep::OnHost).unwrap();
    pool.wake().unwrap();
    drop(pool);

    let capturing = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
    let block = block_of(&capturing);
    let capture = Capture::begin(&Stream::new(&device).unwrap(), CaptureMode::Global).unwrap();
    let error = capturing.sleep(Keep::OnHost).unwrap_err();
    assert!(
        matches!(error, PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. }))),
        "{error}"
    );
    assert!(!capturing.is_asleep());
    drop(capture.end().unwrap());
    capturing.sleep(Keep::OnHost).unwrap();
    capturing.wake().unwrap();
    assert_eq!(bytes_of(&block, &stream), [7]);
}

/// Memory that another device uses sleeps like other memory: the device's work is waited for, its later work is refused, and it has
/// access again afterwards. So has a device that got access while the pool slept.
#[test]
fn memory_of_several_devices_sleeps() {
    for seed in 0..20 {
        let driver = gpumem_sim::driver(small().devices(3).seed(seed)).unwrap();
        let (_, pool, stream) = caching(&driver);
        let peers = [1, 2].map(|ordinal| Device::new(&driver, ordinal).unwrap());
        let [other, late] = [0, 1].map(|index: usize| Stream::new(&peers[index]).unwrap());
        let part = pool.part("weights").unwrap();
        pool.enable_peer_access(&peers[0]).unwrap();
        let (mut blocks, mut weights) = (filled(&pool, &stream), filled(&part, &stream));
        let mut grown = pool.growable(64 * MIB, &stream).unwrap();
        grown.grow_to(9 * MIB).unwrap();

        let mut last = blocks.pop().unwrap();
        other.wait_for(&stream).unwrap();
        let _bound = peers[0].bind().unwrap();
        // SAFETY: the blocks are alive, and the pool waits for the device that uses them.
        unsafe {
            driver.cuMemsetD8Async(last.address(), 77, last.size_bytes() as usize, other.raw()).unwrap();
            driver.cuMemsetD8Async(grown.address(), 78, 9 << 20, other.raw()).unwrap();
        }
        pool.sleep(Keep::OnHost).unwrap();
        part.sleep(Keep::OnHost).unwrap();
        is_asleep(last.fill(0..MIB, 1_u8, &other));
        pool.enable_peer_access(&peers[1]).unwrap();
        is_asleep(last.fill(0..MIB, 1_u8, &late));
        pool.wake().unwrap();
        part.wake().unwrap();

        assert_eq!(bytes_of(&last, &stream), [77]);
        for stream in [&other, &late] {
            last.fill(0..last.size_bytes(), 8_u8, stream).unwrap();
            weights[7].fill(0..MIB, 8_u8, stream).unwrap();
            let _bound = stream.device().bind().unwrap();
            // SAFETY: the block is alive, and its last use is complete when this returns.
            unsafe { driver.cuMemsetD8Async(grown.address(), 79, 9 << 20, stream.raw()).unwrap() };
            stream.synchronize().unwrap();
        }
        hold_their_numbers(&blocks, &stream);
        hold_their_numbers(&weights[..7], &other);
        pool.check().unwrap();
        drop((grown, last, blocks, weights));
        let findings = Sim::of(&driver).unwrap().take_findings();
        assert!(findings.is_empty(), "{findings:?}");
    }
}

/// A capture on a device that has access is in the way, as on the pool's own.
#[test]
fn a_capture_of_a_peer_keeps_a_pool_awake() {
    let driver = gpumem_sim::driver(small().devices(2)).unwrap();
    let (_, pool, stream) = caching(&driver);
    let blocks = filled(&pool, &stream);
    let peer = Device::new(&driver, 1).unwrap();
    pool.enable_peer_access(&peer).unwrap();
    let capture = Capture::begin(&Stream::new(&peer).unwrap(), CaptureMode::Global).unwrap();
    let error = pool.sleep(Keep::OnHost).unwrap_err();
    assert!(
        matches!(error, PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. }))),
        "{error}"
    );
    assert!(!pool.is_asleep());
    drop(capture.end().unwrap());
    pool.sleep(Keep::OnHost).unwrap();
    pool.wake().unwrap();
    hold_their_numbers(&blocks, &stream);
}

/// A pool that sleeps refuses its addresses. They are free for others once the pool is gone.
#[test]
fn others_may_use_the_addresses_of_a_pool_that_ended_asleep() {
    let (device, pool, stream) = caching(&gpumem_sim::driver(small()).unwrap());
    let blocks = filled(&pool, &stream);
    pool.sleep(Keep::OnHost).unwrap();
    let others_before: Vec<u64> = blocks.iter().map(Block::address).collect();
    drop((pool, blocks));
    device.synchronize().unwrap();
    let pools = [(); 2].map(|()| Pool::builder(&device).backend(BackendKind::Caching).build().unwrap());
    let others: Vec<Block> = pools.iter().flat_map(|pool| filled(pool, &stream)).collect();
    assert!(others.iter().any(|block| others_before.contains(&block.address())), "an address is used again");
}

/// A growable block that is dropped asleep keeps its addresses, which are refused, until its pool wakes.
#[test]
fn addresses_of_growable_blocks_stay_while_they_are_refused() {
    let (device, pool, stream) = caching(&gpumem_sim::driver(small()).unwrap());
    let other = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
    let mut grown = pool.growable(64 * MIB, &stream).unwrap();
    grown.grow_to(5 * MIB).unwrap();
    let empty = pool.growable(64 * MIB, &stream).unwrap();
    let refused = [&grown, &empty].map(|block| block.address()..block.address() + 64 * MIB);
    pool.sleep(Keep::OnHost).unwrap();
    drop((grown, empty));
    let overlaps = |block: &GrowableBlock| {
        let (start, end) = (block.address(), block.address() + 64 * MIB);
        refused.iter().any(|range| start < range.end && range.start < end)
    };
    let others = [(); 2].map(|()| other.growable(64 * MIB, &stream).unwrap());
    assert!(!others.iter().any(overlaps));
    pool.wake().unwrap();
    pool.check().unwrap();
    assert_eq!(used_bytes(&device), 0);
    let others = [(); 2].map(|()| other.growable(64 * MIB, &stream).unwrap());
    assert!(others.iter().any(overlaps), "the addresses are free now");
}

/// Reports do not count memory that sleeps as memory on the device.
#[test]
fn reports_show_what_sleeps() {
    let (device, pool, stream) = caching(&gpumem_sim::driver(small()).unwrap());
    let _blocks = filled(&pool, &stream);
    let awake = Pool::list(&device).remove(0);
    pool.sleep(Keep::OnHost).unwrap();
    let asleep = Pool::list(&device).remove(0);
    assert_eq!((asleep.reserved_bytes, asleep.in_use_bytes), (0, awake.in_use_bytes));
    assert_eq!((awake.asleep_bytes, asleep.asleep_bytes), (0, awake.reserved_bytes));
    assert!(
        pool.status().unwrap().to_string().contains("Memory pool asleep: "),
        "{}",
        pool.status().unwrap()
    );

    let other = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
    let _large = other.alloc(800 * MIB, &stream).unwrap();
    let Err(PoolError::OutOfMemory(report)) = other.alloc(800 * MIB, &stream) else { panic!("it fits") };
    assert!(report.other_pools.is_empty(), "{report}");
    let Err(PoolError::OutOfMemory(report)) = pool.wake().and_then(|_| other.alloc(800 * MIB, &stream))
    else {
        panic!("it fits")
    };
    assert_eq!(report.other_pools.len(), 1, "{report}");
}

/// Guard bytes and the values of fills are right after each sleep, or the sleep is refused.
#[test]
fn adaptors_find_their_bytes_again() {
    let (device, _, stream) = caching(&gpumem_sim::driver(small()).unwrap());
    let guard = Arc::new(Guard::new());
    let fill = Arc::new(Fill::zero_on_free());
    let builder = || Pool::builder(&device).backend(BackendKind::Caching);
    let pool = builder().adaptor(fill.clone()).adaptor(guard.clone()).build().unwrap();
    let mut blocks = filled(&pool, &stream);
    let error = pool.sleep(Keep::Nothing).unwrap_err();
    assert!(matches!(error, PoolError::CannotSleep { .. }), "{error}");
    assert!(!pool.is_asleep());
    pool.sleep(Keep::OnHost).unwrap();
    is_asleep(pool.alloc(100, &stream));
    drop(blocks.pop());
    assert_eq!(guard.unchecked_count(), 1, "the guard bytes of a block that sleeps are not on the device");
    assert!(fill.has_missed());
    pool.wake().unwrap();
    hold_their_numbers(&blocks, &stream);
    let count = blocks.len() as u64;
    drop(blocks);
    device.synchronize().unwrap();
    assert_eq!((guard.settle(), guard.checked_count()), (Vec::new(), count));
    // What the fill has missed at a free, it sets at the next allocation.
    for size_bytes in [100, MIB, 30 * MIB] {
        assert_eq!(bytes_of(&pool.alloc(size_bytes, &stream).unwrap(), &stream), [0]);
    }

    // A guard over memory that another pool lends.
    let lender = builder().build().unwrap();
    let small_pool =
        builder().hard_limit(2 * MIB).adaptor(Arc::new(Fallback::new(&lender))).adaptor(guard).build();
    let block = small_pool.unwrap().alloc(8 * MIB, &stream).unwrap();
    let error = lender.sleep(Keep::Nothing).unwrap_err();
    assert!(matches!(error, PoolError::CannotSleep { .. }), "{error}");
    lender.sleep(Keep::OnHost).unwrap();
    is_asleep(block.copy_to_host(0, &mut [0_u8], &stream));
}

/// Other threads allocate, use and free blocks in all caches, while a pool sleeps and wakes many times.
#[test]
fn threads_keep_their_blocks() {
    let driver = gpumem_sim::driver(small()).unwrap();
    let (device, pool, stream) = caching(&driver);
    let rounds_left = AtomicU32::new(25);
    std::thread::scope(|scope| {
        for value in 1..=3_u8 {
            let (device, pool, rounds_left) = (&device, &pool, &rounds_left);
            scope.spawn(move || {
                let stream = Stream::new(device).unwrap();
                let mut held: Vec<Block> = Vec::new();
                while rounds_left.load(Ordering::Relaxed) > 0 {
                    for size_bytes in [300, 300, 70_000, 3 * MIB] {
                        let made = pool.alloc(size_bytes, &stream).and_then(|mut block| {
                            block.fill(0..size_bytes, value, &stream)?;
                            Ok(block)
                        });
                        match made {
                            Ok(block) => held.push(block),
                            Err(error) => is_asleep(Err::<(), _>(error)),
                        }
                    }
                    let mut byte = [0_u8];
                    for block in &held {
                        match block.copy_to_host(block.size_bytes() - 1, &mut byte, &stream) {
                            Ok(()) => assert_eq!(byte, [value]),
                            Err(error) => is_asleep(Err::<(), _>(error)),
                        }
                    }
                    held.truncate(3);
                }
            });
        }
        let _end = AtZero(&rounds_left);
        while rounds_left.fetch_sub(1, Ordering::Relaxed) > 1 {
            pool.sleep(Keep::OnHost).unwrap();
            pool.wake().unwrap();
        }
    });
    pool.check().unwrap();
    drop((pool, stream));
    device.synchronize().unwrap();
    let report = Sim::of(&driver).unwrap().report();
    assert_eq!((report.handle_count, report.findings.len()), (0, 0), "{report}");
}

/// Ends the loops of threads, also when a test fails.
struct AtZero<'a>(&'a AtomicU32);

impl Drop for AtZero<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Memory that could neither be made accessible nor be unmapped again has no contents to restore once its block is gone.
#[test]
fn a_block_that_woke_in_part_may_be_dropped() {
    let fails = |call| Rule::new(call, Effect::Fail(CUresult::CUDA_ERROR_OPERATING_SYSTEM)).nth(3);
    let config = small().rule(fails("cuMemSetAccess")).rule(fails("cuMemUnmap"));
    let (device, pool, stream) = caching(&gpumem_sim::driver(config).unwrap());
    let mut block = pool.growable(64 * MIB, &stream).unwrap();
    block.grow_to(2 * MIB).unwrap();
    pool.sleep(Keep::OnHost).unwrap();
    assert_eq!(used_bytes(&device), 0);
    let error = pool.wake().unwrap_err();
    assert!(matches!(error, PoolError::Device(DeviceError::Driver(_))), "{error}");
    assert!(pool.is_asleep());
    assert_eq!(used_bytes(&device), 2 * MIB);
    drop(block);
    pool.wake().unwrap();
    pool.check().unwrap();
    assert_eq!(used_bytes(&device), 0);
}

/// A pool that goes to sleep in the middle of one of its requests releases what the request has allocated, to wake.
#[test]
fn a_request_may_put_its_own_pool_to_sleep() {
    let driver = gpumem_sim::driver(small()).unwrap();
    let (device, pool, stream) = caching(&driver);
    let sleeper = Arc::new(Sleeper(pool.clone()));
    let registration = Registration::new(&device, &sleeper);
    let blocks = filled(&pool, &stream);
    let _other = {
        let other = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
        let block = other.alloc(700 * MIB, &stream).unwrap();
        (other, block)
    };
    let mut large = pool.alloc(290 * MIB, &stream).unwrap();
    assert!(pool.is_asleep());
    is_asleep(large.fill(0..MIB, 1_u8, &stream));
    pool.set_hard_limit(300 * MIB).unwrap();
    let error = pool.wake().unwrap_err();
    assert!(matches!(error, PoolError::LimitReached(_)), "{error}");
    drop(large);
    pool.wake().unwrap();
    pool.check().unwrap();
    hold_their_numbers(&blocks, &stream);
    drop(registration);
}

struct Sleeper(Pool);

impl Reclaimable for Sleeper {
    fn name(&self) -> &str {
        "sleeper"
    }

    fn purge(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.sleep(Keep::OnHost)?;
        Ok(())
    }
}

/// Each driver call of both operations fails once: the operation is undone, and succeeds when it is repeated.
#[test]
fn each_call_that_fails_is_undone() {
    for keep in [Keep::OnHost, Keep::Nothing] {
        let plain = gpumem_sim::driver(small()).unwrap();
        let (sleep_calls, wake_calls) = {
            let (_device, pool, stream) = caching(&count_calls(&plain, None));
            let _blocks = filled_of(&pool, &stream, &FEW);
            let mut growable = pool.growable(16 * MIB, &stream).unwrap();
            growable.grow_to(5 * MIB).unwrap();
            let start = calls().total();
            pool.sleep(keep).unwrap();
            let between = calls().total();
            pool.wake().unwrap();
            (start + 1..=between, between + 1..=calls().total())
        };
        let mut failed = std::collections::BTreeSet::new();
        for nth in sleep_calls.chain(wake_calls) {
            let codes = [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_OPERATING_SYSTEM];
            for code in codes.into_iter().skip((nth % stride(2)) as usize).step_by(stride(2) as usize) {
                fail_once(keep, nth, code);
                failed.extend(calls().failed);
            }
        }
        for name in [
            "cuMemUnmap",
            "cuMemRelease",
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuStreamCreateWithPriority",
        ] {
            assert!(failed.contains(name), "{name} is not among {failed:?}");
        }
    }
}

/// Blocks in three handles.
const FEW: [u64; 3] = [5000, MIB, 5 * MIB];

fn fail_once(keep: Keep, nth: u64, code: CUresult) {
    let plain = gpumem_sim::driver(small()).unwrap();
    let driver = count_calls(&plain, Some((nth, code)));
    let (device, pool, stream) = caching(&driver);
    let blocks = filled_of(&pool, &stream, &FEW);
    let mut growable = pool.growable(16 * MIB, &stream).unwrap();
    growable.grow_to(5 * MIB).unwrap();
    let context = |what: &str| format!("{what}: call {nth}, {:?}, failed with {code:?}", calls().failed);
    let check = |what: &str, is_kept: bool| {
        pool.check().unwrap_or_else(|error| panic!("{}: {error}", context(what)));
        if !pool.is_asleep() {
            for (value, block) in blocks.iter().enumerate() {
                let bytes = bytes_of(block, &stream);
                let is_zero = keep == Keep::Nothing && bytes == [0];
                assert!(bytes == [value as u8 + 1] || is_zero && !is_kept, "{}: {bytes:?}", context(what));
            }
        }
    };
    if let Err(error) = pool.sleep(keep) {
        assert!(calls().failed.is_some(), "{}: {error}", context("sleep"));
        assert!(!pool.is_asleep(), "{}", context("the sleep is undone"));
        check("an undone sleep", keep == Keep::OnHost);
        pool.sleep(keep).unwrap_or_else(|error| panic!("{}: {error}", context("again")));
    }
    assert!(pool.is_asleep());
    assert_eq!(used_bytes(&device), 0, "{}", context("asleep"));
    check("asleep", false);
    if let Err(error) = pool.wake() {
        assert!(calls().failed.is_some(), "{}: {error}", context("wake"));
        assert!(pool.is_asleep());
        let used_bytes = used_bytes(&device);
        assert_eq!(used_bytes, 0, "{}: {error}", context("a wake that failed"));
        check("still asleep", false);
        pool.wake().unwrap_or_else(|error| panic!("{}: {error}", context("again")));
    }
    check("awake", keep == Keep::OnHost);
    drop((blocks, growable, pool));
    let finished = [device.synchronize(), device.synchronize()];
    assert!(finished.iter().any(Result::is_ok), "{finished:?}");
    let report = Sim::of(&plain).unwrap().report();
    assert!(report.allocations.is_empty(), "{}: {report}", context("left"));
    assert_eq!((report.handle_count, report.reservation_count), (0, 0), "{}: {report}", context("left"));
    assert_eq!(report.findings.iter().filter(|finding| finding.is_silent()).count(), 0, "{report}");
}

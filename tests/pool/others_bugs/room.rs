//! Bugs of room: free memory that could not be allocated.

use gpumem_sim::SimConfig;
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::fixtures::pool_fixture::{MIB, PoolFixture};
use gpumem_tests::pool::{BackendKind, Block, Device, MemoryKind, Pool, Stream};
use std::sync::mpsc::sync_channel;

cases! {
    /// rapidsai/rmm#1957, #527: a pool could not allocate its maximum size in one block after it had grown in steps.
    fn a_limit_can_be_used_whole(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(64 * MIB), |fixture| {
            let stream = fixture.stream();
            for round in 0..3 {
                let pieces: Vec<_> = (0..32).map(|key| fixture.filled(2 * MIB, key, &stream)).collect();
                drop(pieces);
                let whole = fixture.filled(64 * MIB, round, &stream);
                fixture.check(&whole, round, &stream);
            }
        });
    }

    /// rapidsai/rmm#2039: out of memory with two streams but not with one, because memory freed on different streams was not
    /// merged.
    fn two_streams_free_into_one_room(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(64 * MIB), |fixture| {
            let streams = [fixture.stream(), fixture.stream()];
            for round in 0..3 {
                let pieces: Vec<_> = (0..15).map(|key| fixture.filled(4 * MIB, key, &streams[key as usize % 2])).collect();
                drop(pieces);
                for stream in &streams {
                    let whole = fixture.filled(60 * MIB, round, stream);
                    fixture.check(&whole, round, stream);
                }
            }
        });
    }

    /// vllm-project/vllm#52951, NVIDIA/Megatron-LM#6885, pytorch/pytorch#186232: each stream kept the memory that it had freed.
    fn one_streams_cache_is_every_streams(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            for key in 0..8 {
                let stream = fixture.stream();
                let block = fixture.filled(48 * MIB, key, &stream);
                fixture.check(&block, key, &stream);
                drop(block);
                stream.synchronize().unwrap();
            }
            assert!(fixture.reserved_bytes() <= 128 * MIB, "{}", fixture.reserved_bytes());
        });
    }

    /// rapidsai/rmm#496: growth by doubling requested more than the free memory, and failed though enough was left.
    fn growth_takes_what_is_left(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(100 * MIB), |fixture| {
            let stream = fixture.stream();
            let blocks = [60, 30, 8, 1].map(|size| fixture.filled(size * MIB, size, &stream));
            for (block, key) in blocks.iter().zip([60, 30, 8, 1]) {
                fixture.check(block, key, &stream);
            }
        });
    }

    /// cupy/cupy#1392, exasol/httomo#667, pytorch/pytorch#31252: rising sizes, none of which fits into the hole of the one
    /// before.
    fn rising_sizes(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(128 * MIB), |fixture| {
            let stream = fixture.stream();
            let mut size_bytes = MIB;
            while size_bytes <= 120 * MIB {
                let block = fixture.filled(size_bytes, size_bytes, &stream);
                fixture.check(&block, size_bytes, &stream);
                size_bytes += size_bytes / 3 / 256 * 256 + 256;
            }
        });
    }

    /// pytorch/pytorch#35901, #31353, #16417: batches of varying length ran out of memory with most of it free.
    fn varying_lengths(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(256 * MIB), |fixture| {
            let stream = fixture.stream();
            let mut live = Vec::new();
            for step in 0..200_u64 {
                let size_bytes = (step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % (15 * MIB) + MIB;
                live.push((fixture.filled(size_bytes, step, &stream), step));
                if live.len() == 8 {
                    let (block, key) = live.remove(step as usize % 7);
                    fixture.check(&block, key, &stream);
                }
            }
        });
    }

    /// Rising sizes, counted: a chain of growing tensors, each made from the one before, reserved twice its size when sizes
    /// passed from 16 to 32 MiB.
    fn a_growing_chain_reserves_what_it_holds(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let stream = fixture.stream();
            let (mut last, mut held_peak_bytes) = (fixture.filled(16 * MIB, 0, &stream), 0);
            for size in 17..=32 {
                let next = fixture.filled(size * MIB, size, &stream);
                held_peak_bytes = held_peak_bytes.max(last.size_bytes() + next.size_bytes());
                last = next;
            }
            drop(last);
            let reserved_peak_bytes = fixture.pool.status().unwrap().reserved_peak_bytes;
            let status = fixture.pool.status().unwrap();
            if fixture.is("native") || status.plain_segments || status.kind != MemoryKind::Device {
                // The driver's pool also does this: 128 MiB for 63 on an H200. Without virtual memory it cannot be avoided.
                return;
            }
            assert!(reserved_peak_bytes <= held_peak_bytes * 3 / 2, "{reserved_peak_bytes} for {held_peak_bytes}");
        });
    }

    /// cupy/cupy#7678: a limit reached by cached memory refused a request that fits.
    fn cached_memory_is_not_in_use(driver: &Driver) {
        PoolFixture::each(driver, |options| options.soft_limit(16 * MIB).hard_limit(64 * MIB), |fixture| {
            let stream = fixture.stream();
            for size in [40, 3, 60, 20, 50] {
                let block = fixture.filled(size * MIB, size, &stream);
                fixture.check(&block, size, &stream);
            }
        });
    }

    /// rapidsai/rmm#145, #571, #724: a pool never released memory, however much another library needed it.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn released_memory_is_available_to_others(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let stream = fixture.stream();
            let before = fixture.device.memory_info().unwrap().free_bytes;
            let pieces: Vec<_> = (0..16).map(|key| fixture.filled(16 * MIB, key, &stream)).collect();
            drop(pieces);
            let given_back = fixture.pool.reclaim().unwrap();
            assert!(given_back >= 256 * MIB || fixture.is("none"), "{given_back}");
            assert_eq!(fixture.reserved_bytes(), 0);
            let after = fixture.device.memory_info().unwrap().free_bytes;
            assert!(after + 32 * MIB >= before, "{after} free, {before} before");
        });
    }

    /// rapidsai/rmm#2510, NVIDIA/cuda-python#756: with the driver's default threshold, every synchronisation released all memory.
    fn synchronising_keeps_the_cache(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let stream = fixture.stream();
            for key in 0..4 {
                drop(fixture.filled(24 * MIB, key, &stream));
                fixture.device.synchronize().unwrap();
                assert!(fixture.is("none") || fixture.reserved_bytes() >= 24 * MIB);
            }
        });
    }

    /// rapidsai/rmm#2304: the counters were updated after the memory was returned, when another thread had already reused it. A
    /// thread that learns of a free must find the counter updated.
    fn a_free_makes_room_before_it_returns(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(32 * MIB), |fixture| {
            // Two threads take turns; only one block fits.
            let (ping, pong) = (sync_channel(1), sync_channel(1));
            let turns = |stream, get: std::sync::mpsc::Receiver<()>, give: std::sync::mpsc::SyncSender<()>| {
                for () in get.iter().take(100) {
                    drop(fixture.alloc(20 * MIB, stream));
                    let _the_other_may_be_done = give.send(());
                }
            };
            let streams = [fixture.stream(), fixture.stream()];
            ping.0.send(()).unwrap();
            std::thread::scope(|scope| {
                let (to_ping, from_pong) = (ping.0, pong.1);
                scope.spawn(|| turns(&streams[0], ping.1, pong.0));
                scope.spawn(|| turns(&streams[1], from_pong, to_ping));
            });
            assert_eq!(fixture.pool.status().unwrap().in_use_bytes, 0);
        });
    }

    /// rapidsai/rmm#861: two live blocks of 8 bytes at one address.
    fn small_blocks_are_apart(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let stream = fixture.stream();
            let blocks: Vec<_> = (0..500).map(|key| fixture.filled(8, key, &stream)).collect();
            let mut addresses: Vec<_> = blocks.iter().map(|block| block.address()).collect();
            addresses.sort_unstable();
            assert!(addresses.windows(2).all(|pair| pair[0] + 8 <= pair[1]));
            assert!(addresses.iter().all(|address| address % 256 == 0));
            for (key, block) in blocks.iter().enumerate() {
                fixture.check(block, key as u64, &stream);
            }
        });
    }

    /// CUDA.jl's counter of live bytes gained a byte with every allocation.
    fn counters_come_back_to_zero(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let stream = fixture.stream();
            for round in 0..300_u64 {
                drop([1 + round, 257 * round, MIB + round].map(|size_bytes| fixture.alloc(size_bytes, &stream)));
            }
            let status = fixture.pool.status().unwrap();
            assert_eq!((status.in_use_bytes, status.block_count), (0, 0));
            // The empty block of the first round does not count.
            assert_eq!(status.allocation_count, 899);
        });
    }

    /// pytorch/pytorch#192269, #193211, #198129: hundreds of segments, each of which reserved as many addresses as the device has
    /// memory, exhausted the address space.
    fn many_pools_share_the_address_space(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device) {
            let pool = || Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let together: Vec<_> = (0..64).map(|_| pool()).collect();
            let blocks = [4096, 3 * MIB].map(|size_bytes| {
                together.iter().map(|pool| pool.alloc(size_bytes, &stream).unwrap()).collect::<Vec<_>>()
            });
            drop((blocks, together));
            for _ in 0..100 {
                drop(pool().alloc(3 * MIB, &stream).unwrap());
            }
        }
    }
}

/// pytorch/pytorch#95823, #150517, #171662, vllm-project/vllm#56410: pinned blocks were rounded up to powers of two, and took
/// twice the requested host memory.
#[test]
fn pinned_blocks_take_the_requested_size() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let device = Device::new(&driver, 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    // The driver's own pool grows by 32 MiB at a time.
    for backend in backends(&device).into_iter().filter(|backend| *backend != BackendKind::Native) {
        let pool = Pool::builder(&device).backend(backend).kind(MemoryKind::Host).build().unwrap();
        let blocks = [5, 9, 17, 33, 65, 129].map(|size| pool.alloc(size * MIB, &stream).unwrap());
        let asked_bytes: u64 = blocks.iter().map(Block::size_bytes).sum();
        let status = pool.status().unwrap();
        assert!(status.reserved_bytes <= asked_bytes / 10 * 11, "{asked_bytes} bytes: {status}");
    }
}

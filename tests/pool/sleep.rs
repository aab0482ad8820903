//! Pools that sleep, on both drivers: addresses, contents and captured graphs are valid again afterwards, and safe code on other threads
//! meets errors only.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "backend-caching")]

use gpumem_tests::array::ndarray::Ix1;
use gpumem_tests::array::{ArrayError, Gpu, GpuArray};
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::fixtures::pool_fixture::{MIB, PoolFixture};
use gpumem_tests::pool::{BackendKind, Block, Device, Keep, Pool, PoolError, Stream};
use gpumem_tests::sys::{Driver, DriverKind};
use gpumem_tests::{cases, for_each_seed};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

fn pool(driver: &Driver) -> Pool {
    let device = Device::new(driver, 0).unwrap();
    Pool::builder(&device).backend(BackendKind::Caching).build().unwrap()
}

fn is_asleep(error: &ArrayError) -> bool {
    matches!(error, ArrayError::Pool(PoolError::Asleep { .. }))
}

cases! {
    /// 8 GiB, on the simulator 96 MiB, in blocks of many sizes that kernels fill and check.
    fn large_blocks_keep_addresses_and_contents(driver: &Driver) {
        let sum_bytes = if driver.kind() == DriverKind::Cuda { 8 << 30 } else { 96 * MIB };
        let fixture = PoolFixture::new(&pool(driver));
        let (stream, other) = (fixture.stream(), fixture.stream());
        let sizes = [sum_bytes / 2, 300, sum_bytes / 4 + 1000, MIB, 70_000, sum_bytes / 8, 5 * MIB / 2];
        let mut blocks: Vec<Block> = (1..).zip(sizes).map(|(key, size)| fixture.filled(size, key, &stream)).collect();
        while blocks.iter().map(Block::size_bytes).sum::<u64>() < sum_bytes {
            let key = blocks.len() as u64 + 1;
            blocks.push(fixture.filled(sum_bytes / 64, key, &stream));
        }
        for _ in 0..2 {
            let addresses: Vec<u64> = blocks.iter().map(Block::address).collect();
            let slept = fixture.pool.sleep(Keep::OnHost).unwrap();
            assert!(slept.copied_bytes >= sum_bytes && slept.released_bytes >= sum_bytes, "{slept:?}");
            assert_eq!(fixture.reserved_bytes(), slept.kept_bytes);
            // The device's memory is free for others meanwhile.
            let others = pool(driver);
            drop(others.alloc(sum_bytes / 2, &other).unwrap());
            others.reclaim().unwrap();

            let woken = fixture.pool.wake().unwrap();
            assert_eq!(woken.copied_bytes, slept.copied_bytes);
            assert_eq!(addresses, blocks.iter().map(Block::address).collect::<Vec<_>>());
            for (key, block) in (1..).zip(&blocks) {
                fixture.check(block, key, &other);
            }
        }
        fixture.device.synchronize().unwrap();
        fixture.pool.check().unwrap();
        drop(blocks);
        fixture.finish();
    }

    /// A graph that was captured before has the addresses of its arrays, and computes with the values that they had.
    fn captured_graphs_stay_valid(driver: &Driver) {
        let gpu = Gpu::new(&pool(driver)).unwrap();
        let x = GpuArray::from_elem(&gpu, 1 << 12, 21.0_f32).unwrap();
        let (mut graph, y) = gpu.capture(|c| {
            let scratch = x.on(c).try_mul(4.0)?;
            scratch.on(c).try_mul(0.5)
        }).unwrap();
        let done = graph.launch(&gpu).read(&x).run().unwrap();
        assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), [42.0; 1 << 12]);
        for _ in 0..3 {
            gpu.pool().sleep(Keep::OnHost).unwrap();
            let error = graph.launch(&gpu).read(&x).run().map(drop).unwrap_err();
            assert!(is_asleep(&error), "{error}");
            gpu.pool().wake().unwrap();
            let done = graph.launch(&gpu).read(&x).run().unwrap();
            assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), [42.0; 1 << 12]);
        }
    }

    /// Operations on arrays are refused, and change nothing.
    fn operations_on_arrays_are_refused(driver: &Driver) {
        let gpu = Gpu::new(&pool(driver)).unwrap();
        let mut x: GpuArray<f32, Ix1> = GpuArray::from_elem(&gpu, 1 << 18, 2.0).unwrap();
        let y: GpuArray<f32, Ix1> = GpuArray::from_elem(&gpu, 1 << 18, 3.0).unwrap();
        gpu.pool().sleep(Keep::OnHost).unwrap();
        let mut refused = vec![
            x.fill(5.0).map(drop),
            x.try_add(&y).map(drop),
            x.to_vec().map(drop),
            x.view_mut().copy_from_slice(&[7.0; 1 << 18]),
            x.assign(&y),
            GpuArray::from_elem(&gpu, 10, 1.0_f32).map(drop),
            GpuArray::from_slice(&gpu, &[1.0_f32; 100]).map(drop),
            x.sum().map(drop),
        ];
        refused.push(gpu.capture(|c| x.on(c).try_mul(2.0)).map(drop));
        for (index, result) in refused.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert!(is_asleep(&error), "operation {index}: {error}");
        }
        gpu.pool().wake().unwrap();
        assert_eq!(x.to_vec().unwrap(), [2.0; 1 << 18]);
        assert_eq!(x.try_add(&y).unwrap().to_vec().unwrap(), [5.0; 1 << 18]);
    }

    /// Another library may queue work on the memory of a guard at any time.
    fn a_pool_does_not_sleep_while_its_arrays_are_lent(driver: &Driver) {
        let gpu = Gpu::new(&pool(driver)).unwrap();
        let refused = |pool: &Pool| {
            let error = pool.sleep(Keep::OnHost).unwrap_err();
            assert!(matches!(error, PoolError::CannotSleep { .. }) && !pool.is_asleep(), "{error}");
            assert!(error.to_string().contains("lent to another library"), "{error}");
        };
        let x: GpuArray<f32, Ix1> = GpuArray::from_elem(&gpu, 1 << 18, 2.0).unwrap();
        let mut y: GpuArray<f32, Ix1> = GpuArray::from_elem(&gpu, 1 << 18, 3.0).unwrap();
        let (stream, other) = (Stream::new(gpu.device()).unwrap(), Stream::new(gpu.device()).unwrap());
        let (source, again, target) =
            (x.read_on(&stream).unwrap(), x.read_on(&stream).unwrap(), y.write_on(&other).unwrap());
        refused(gpu.pool());
        // A refusal disturbs no other thread, whose operations would otherwise find the memory asleep.
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                for _ in 0..100 {
                    drop(gpu.pool().alloc(256, &stream).unwrap());
                    drop(x.read_on(&stream).unwrap());
                }
            });
            while !work.is_finished() {
                refused(gpu.pool());
            }
            work.join().unwrap();
        });
        // The memory of other pools sleeps.
        let others = Pool::builder(gpu.device()).backend(BackendKind::Caching).build().unwrap();
        let _kept = others.alloc(MIB, &stream).unwrap();
        others.sleep(Keep::OnHost).unwrap();
        drop((source, target));
        refused(gpu.pool());
        drop(again);
        gpu.pool().sleep(Keep::OnHost).unwrap();
        assert!(is_asleep(&x.read_on(&stream).unwrap_err()));
        gpu.pool().wake().unwrap();
        // A guard that is leaked counts until its array is dropped.
        std::mem::forget(x.read_on(&stream).unwrap());
        refused(gpu.pool());
        drop(x);
        gpu.pool().sleep(Keep::OnHost).unwrap();
        gpu.pool().wake().unwrap();
        assert_eq!(y.to_vec().unwrap(), [3.0; 1 << 18]);
    }

    /// Sleep waits for work that is queued, on every stream.
    fn sleep_waits_for_all_uses(driver: &Driver) {
        let pool = pool(driver);
        let device = pool.device();
        let (stream, other) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
        let mut block = pool.alloc_zeroed(32 * MIB, &stream).unwrap();
        let gate = StreamGate::on(&other).unwrap();
        block.fill(0..32 * MIB, 9_u8, &other).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| pool.sleep(Keep::OnHost).unwrap());
            assert!(gate.open());
        });
        pool.wake().unwrap();
        let mut bytes = vec![0_u8; 32 << 20];
        block.copy_to_host(0, &mut bytes, &stream).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 9));
    }
}

/// Threads use arrays while another puts the pool to sleep and wakes it: each operation succeeds with the right values, or is refused.
#[test]
fn threads_meet_errors_only() {
    for_each_seed!(8, |driver: &Driver, _| {
        const ROUNDS: u32 = 6;
        let pool = pool(driver);
        let (is_over, success_count) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for value in [1.0, 2.0] {
                let (pool, is_over, success_count) = (&pool, &is_over, &success_count);
                scope.spawn(move || {
                    let gpu = Gpu::new(pool).unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        match program(&gpu, value) {
                            Ok(sum) => {
                                assert_eq!(sum, value * 3.0 * 1000.0);
                                success_count.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => assert!(is_asleep(&error), "{error}"),
                        }
                    }
                });
            }
            for _ in 0..ROUNDS {
                pool.sleep(Keep::OnHost).unwrap();
                pool.wake().unwrap();
                let target = success_count.load(Ordering::Relaxed) + 1;
                while success_count.load(Ordering::Relaxed) < target {
                    std::thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        pool.check().unwrap();
    });
}

/// The sum of three times a value, over arrays of it.
fn program(gpu: &Gpu, value: f32) -> Result<f32, ArrayError> {
    let x: GpuArray<f32, Ix1> = GpuArray::from_elem(gpu, 1000, value)?;
    let y: GpuArray<f32, Ix1> = x.try_add(&x)?;
    let z: GpuArray<f32, Ix1> = y.try_add(&x)?;
    z.sum()?.into_scalar()
}

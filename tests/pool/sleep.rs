//! Pools that sleep, on both drivers: addresses, contents and captured graphs are valid again afterwards, and safe code on other threads
//! meets errors only.

#![forbid(unsafe_code)]

use gpumem_tests::adapt::{Adapt, AdaptError};
use gpumem_tests::array::ndarray::{Axis, Ix1, Ix2, Slice};
use gpumem_tests::array::{ArrayError, Gpu, GpuArray, PinnedArray, Rng};
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::fixtures::pool_fixture::{MIB, PoolFixture};
use gpumem_tests::pool::{BackendKind, Block, Device, DeviceError, Keep, Pool, PoolError, Stream};
use gpumem_tests::sys::{Driver, DriverKind};
use gpumem_tests::{cases, for_each_seed};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

fn pool(driver: &Driver) -> Pool {
    let device = Device::new(driver, 0).unwrap();
    Pool::builder(&device).backend(BackendKind::Caching).build().unwrap()
}

fn is_asleep(error: &ArrayError) -> bool {
    matches!(error, ArrayError::Pool(PoolError::Device(DeviceError::Asleep { .. })))
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

    /// Each operand sleeps in turn: every operation that would queue work on it is refused, and changes nothing.
    fn every_operand_may_sleep(driver: &Driver) {
        let pool = pool(driver);
        let gpu = Gpu::new(&pool).unwrap();
        let mut operands = Operands::new(&gpu);
        for (name, touched, operation) in OPERATIONS {
            for part in touched.split(' ') {
                pool.sleep_parts([part], Keep::OnHost).unwrap();
                match operation(&gpu, &mut operands) {
                    Err(error) => assert!(is_asleep(&error), "{name} while {part} sleeps: {error}"),
                    Ok(()) => panic!("{name} succeeds while {part} sleeps"),
                }
                pool.wake_parts([part]).unwrap();
                operands.check();
            }
            operation(&gpu, &mut operands).unwrap_or_else(|error| panic!("{name}: {error}"));
            operands = Operands::new(&gpu);
        }
    }

    /// The arrays of a pack have blocks before they are uploaded.
    fn a_pack_is_refused_while_its_arrays_sleep(driver: &Driver) {
        let pool = pool(driver);
        let gpu = Gpu::new(&pool).unwrap();
        let others = Gpu::new(&self::pool(driver)).unwrap();
        let other: GpuArray<f32, Ix1> = GpuArray::from_elem(&others, 1000, 5.0).unwrap();
        // Of one size and several, alone, beside a large array, and empty ones.
        for lens in [&[300, 300][..], &[1, 70, 9000], &[300, 1 << 20, 300], &[64], &[0, 10, 0, 10]] {
            let elements: Vec<Vec<u32>> = lens.iter().map(|len| (0..*len).collect()).collect();
            let add_all = || {
                let mut pack = gpu.pack();
                let packed: Vec<_> =
                    elements.iter().map(|elements| pack.add(&gpu, elements).unwrap()).collect();
                (pack, packed)
            };
            let (pack, packed) = add_all();
            pool.sleep(Keep::OnHost).unwrap();
            assert!(is_asleep(&pack.upload().unwrap_err()), "{lens:?}");
            for packed in packed {
                assert!(matches!(packed.into_array().unwrap_err().error(), ArrayError::NotUploaded { .. }));
            }
            pool.wake().unwrap();

            let (pack, packed) = add_all();
            pool.sleep(Keep::OnHost).unwrap();
            pool.wake().unwrap();
            pack.upload().unwrap();
            for (packed, elements) in packed.into_iter().zip(&elements) {
                assert_eq!(packed.into_array().unwrap().to_vec().unwrap(), *elements);
            }
        }
        assert_eq!(other.to_vec().unwrap(), [5.0; 1000]);
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

/// Arrays in parts of a pool that sleep apart, each named as its part.
struct Operands {
    x: GpuArray<f32, Ix1>,
    y: GpuArray<f32, Ix1>,
    m: GpuArray<f32, Ix2>,
}

impl Operands {
    fn new(gpu: &Gpu) -> Self {
        let part = |name| Gpu::new(&gpu.pool().part(name).unwrap()).unwrap();
        Self {
            x: GpuArray::from_elem(&part("x"), LEN, 2.0).unwrap(),
            y: GpuArray::from_elem(&part("y"), LEN, 3.0).unwrap(),
            m: GpuArray::from_elem(&part("m"), (LEN, LEN), 1.0).unwrap(),
        }
    }

    /// No refused operation has changed the arrays.
    fn check(&self) {
        assert_eq!(self.x.to_vec().unwrap(), [2.0; LEN]);
        assert_eq!(self.y.to_vec().unwrap(), [3.0; LEN]);
        assert_eq!(self.m.to_vec().unwrap(), [1.0; LEN * LEN]);
    }
}

type Operation = fn(&Gpu, &mut Operands) -> Result<(), ArrayError>;

/// An operation of each kind that queues work, with the operands that it touches. The results are in the pool of `gpu`, which stays awake.
const OPERATIONS: &[(&str, &str, Operation)] = &[
    ("fill", "x", |gpu, o| o.x.on_mut(gpu).fill(5.0)),
    ("fill of rows", "m", |gpu, o| o.m.on_mut(gpu).slice_axis_mut(Axis(1), Slice::from(1..9))?.fill(5.0)),
    ("fill at steps", "x", |gpu, o| {
        o.x.on_mut(gpu).slice_axis_mut(Axis(0), Slice::new(0, None, 3))?.fill(5.0)
    }),
    ("random", "x", |_, o| o.x.fill_random(&mut Rng::new(1))),
    ("upload", "x", |gpu, o| o.x.on_mut(gpu).copy_from_slice(&[7.0; LEN])),
    ("upload of many bytes", "m", |gpu, o| o.m.on_mut(gpu).copy_from_slice(&[7.0; LEN * LEN])),
    ("upload of rows", "m", |gpu, o| {
        o.m.on_mut(gpu).slice_axis_mut(Axis(1), Slice::from(1..9))?.copy_from_slice(&[7.0; LEN * 8])
    }),
    ("download", "x", |gpu, o| o.x.on(gpu).to_vec().map(drop)),
    ("download of many bytes", "m", |gpu, o| o.m.on(gpu).to_vec().map(drop)),
    ("download of rows", "m", |gpu, o| {
        o.m.on(gpu).slice_axis(Axis(1), Slice::from(1..9))?.to_vec().map(drop)
    }),
    ("asynchronous download", "x", |gpu, o| o.x.on(gpu).download().wait().map(drop)),
    ("download into pinned memory", "x", |gpu, o| {
        let target = PinnedArray::zeros(&gpu.pinned(), LEN)?;
        o.x.on(gpu).download_into(target).wait().map(drop).map_err(|refused| refused.into_parts().0)
    }),
    ("copy", "x y", |gpu, o| o.x.on_mut(gpu).assign(&o.y)),
    ("copy at steps", "m", |gpu, o| {
        o.m.on(gpu)
            .slice_axis(Axis(0), Slice::new(0, None, 2))?
            .slice_axis(Axis(1), Slice::new(0, None, 3))?
            .to_owned()
            .map(drop)
    }),
    ("transposed copy", "m", |gpu, o| o.m.on(gpu).t().as_standard_layout()?.into_owned().map(drop)),
    ("concatenation", "x y", |gpu, o| {
        gpumem_tests::array::concatenate(Axis(0), &[o.x.on(gpu), o.y.on(gpu)]).map(drop)
    }),
    ("conversion", "x", |gpu, o| o.x.on(gpu).cast::<f64>().map(drop)),
    ("selection", "x", |gpu, o| o.x.on(gpu).select(Axis(0), &[3, 1]).map(drop)),
    ("sum of arrays", "x y", |gpu, o| o.x.on(gpu).try_add(&o.y).map(drop)),
    ("sum with a number", "x", |gpu, o| o.x.on(gpu).try_add(1.0).map(drop)),
    ("sum in place", "x y", |gpu, o| o.x.on_mut(gpu).try_add_assign(&o.y)),
    ("sum with a number in place", "x", |gpu, o| o.x.on_mut(gpu).try_add_assign(1.0)),
    ("reduction", "x", |gpu, o| o.x.on(gpu).sum().map(drop)),
    ("reduction in two steps", "m", |gpu, o| o.m.on(gpu).reshape(LEN * LEN)?.sum().map(drop)),
    ("product of vectors", "x y", |gpu, o| o.x.on(gpu).dot(&o.y).map(drop)),
    ("product with rows", "m x", |gpu, o| o.m.on(gpu).dot(&o.x).map(drop)),
    ("product with columns", "m x", |gpu, o| o.m.on(gpu).t().dot(&o.x).map(drop)),
    ("guard of a read", "x", |gpu, o| o.x.on(gpu).read_on(gpu.stream()).map(drop)),
    ("guard of a write", "x", |gpu, o| o.x.on_mut(gpu).write_on(gpu.stream()).map(drop)),
    ("growth", "x", |_, o| o.x.resize(3 * LEN, 1.0)),
    ("appended elements", "x", |_, o| o.x.extend_from_slice(&[1.0; LEN])),
    ("array of a part", "x", |_, o| {
        let gpu = o.x.gpu().clone();
        o.x = gpu.upload_all(&[&[2.0; LEN], &[1.0]])?.swap_remove(0);
        Ok(())
    }),
];

/// Large enough for the kernels that work in two steps.
const LEN: usize = 520;

/// A graph of arrays in two parts is launched when both are awake.
#[test]
fn graphs_of_arrays_that_sleep_are_refused() {
    for_each_seed!(2, |driver: &Driver, _| {
        let pool = pool(driver);
        let gpu = Gpu::new(&pool).unwrap();
        let mut o = Operands::new(&gpu);
        let (mut graph, factor) = gpu
            .capture(|c| {
                let factor = c.scalar(2.0_f32)?;
                o.x.on_mut(c).try_mul_assign(&factor)?;
                o.x.on_mut(c).try_add_assign(&o.y)?;
                Ok(factor)
            })
            .unwrap();
        for part in ["x", "y"] {
            pool.sleep_parts([part], Keep::OnHost).unwrap();
            let launched = graph.launch(&gpu).write(&mut o.x).read(&o.y).set(&factor, 10.0).run();
            assert!(is_asleep(&launched.map(drop).unwrap_err()), "{part}");
            pool.wake_parts([part]).unwrap();
            o.check();
        }
        graph.launch(&gpu).write(&mut o.x).read(&o.y).set(&factor, 3.0).run().unwrap();
        assert_eq!(o.x.to_vec().unwrap(), [9.0; LEN]);
    });
}

/// Threads upload packs and adapt values of hundreds of arrays while another puts parts of the pool to sleep and wakes them.
#[test]
fn packs_of_threads_are_right_or_refused() {
    for_each_seed!(8, |driver: &Driver, _| {
        let pool = pool(driver);
        let is_over = AtomicBool::new(false);
        let counts = [const { AtomicU32::new(0) }; 2];
        std::thread::scope(|scope| {
            for (thread, count) in counts.iter().enumerate() {
                let (pool, is_over) = (&pool, &is_over);
                scope.spawn(move || {
                    let gpu = Gpu::new(&pool.part(["a", "b"][thread]).unwrap()).unwrap();
                    let value: Vec<Vec<u32>> =
                        (0..200).map(|index| vec![index; 1 + index as usize % 40]).collect();
                    while !is_over.load(Ordering::Relaxed) {
                        match there_and_back(&gpu, &value) {
                            Ok(()) => drop(count.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => assert!(error.cause().is_some_and(is_asleep), "{error}"),
                        }
                    }
                });
            }
            for part in ["a", "b", "a", "b", "a", "b"] {
                while pool.sleep_parts([part], Keep::OnHost).is_err() {
                    std::thread::yield_now();
                }
                pool.wake_parts([part]).unwrap();
                let count = &counts[usize::from(part == "b")];
                let target = count.load(Ordering::Relaxed) + 1;
                while count.load(Ordering::Relaxed) < target {
                    std::thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        pool.check().unwrap();
    });
}

/// Uploads a value twice, as a pack and by `adapt`, and compares what comes back.
fn there_and_back(gpu: &Gpu, value: &Vec<Vec<u32>>) -> Result<(), AdaptError> {
    let slices: Vec<&[u32]> = value.iter().map(Vec::as_slice).collect();
    for (array, elements) in gpu.upload_all(&slices)?.iter().zip(value) {
        assert_eq!(array.to_vec()?, *elements);
    }
    let adapted: Vec<GpuArray<u32, Ix1>> = value.adapt(gpu)?;
    for (array, elements) in adapted.iter().zip(value) {
        assert_eq!(array.to_vec()?, *elements);
    }
    Ok(())
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

//! What surrounds arrays of a pool that spills: feeds, batch sizes, checkpoints, sleep, pools beneath it, limits, and the end of the process,
//! while some arrays are in host memory alone.

use gpumem_sim::{Schedule, Sim, SimConfig};
use gpumem_tests::adapt::{Checkpoint, batches, feed, fit_batch_size, halve_on_out_of_memory, save};
use gpumem_tests::array::ndarray::{Array2, Ix1, Ix2, s};
use gpumem_tests::array::{ArrayError, Gpu, GpuArray};
use gpumem_tests::for_each_seed;
use gpumem_tests::pool::{BackendKind, Device, Keep, Pool, PoolBuilder, Spill, Status};
use gpumem_tests::sys::Driver;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: usize = 1 << 20;
/// Elements of an array of 1 MiB.
const LEN: usize = MIB / 4;
const LIMIT_BYTES: u64 = 8 << 20;

type Vector = GpuArray<f32, Ix1>;

fn builder(driver: &Driver) -> PoolBuilder {
    let device = Device::new(driver, 0).unwrap();
    Pool::builder(&device).hard_limit(LIMIT_BYTES).spill(Spill::to_host(64 << 20))
}

fn spilling(driver: &Driver) -> Gpu {
    Gpu::new(&builder(driver).build().unwrap()).unwrap()
}

fn simulated() -> Driver {
    gpumem_sim::driver(SimConfig::new()).unwrap()
}

fn status(pool: &Pool) -> Status {
    pool.status().unwrap()
}

fn vectors(gpu: &Gpu, count: usize) -> Vec<Vector> {
    (0..count).map(|index| Vector::from_elem(gpu, LEN, index as f32).unwrap()).collect()
}

fn check(arrays: &[Vector]) {
    for (index, array) in arrays.iter().enumerate() {
        assert_eq!((array + 1.0).slice(s![LEN - 2..]).unwrap().to_vec().unwrap(), [index as f32 + 1.0; 2]);
    }
}

/// No race, no use of memory that an array has left, and nothing left behind.
fn end(driver: &Driver) {
    let report = Sim::of(driver).unwrap().report();
    assert!(report.silent_findings().is_empty(), "{}", report.silent_findings()[0]);
}

/// A model of 1.5 times the limit, and batches that are uploaded beside it.
#[test]
fn feeds_upload_while_the_model_moves() {
    for_each_seed!(4, |driver, _seed| {
        let gpu = spilling(driver);
        let layers = vectors(&gpu, 12);
        let table = Array2::from_shape_fn((12, LEN), |(row, _)| row as f32);
        for pass in 0..3 {
            for (number, batch) in batches(&table).batch_size(1).shuffle(pass).on(&gpu).unwrap().enumerate() {
                let mut x: Vector = batch.unwrap().into_shape(LEN).unwrap();
                let row = x.slice(s![..1]).unwrap().to_vec().unwrap()[0];
                for layer in &layers {
                    x += layer;
                }
                assert_eq!(x.slice(s![LEN - 1..]).unwrap().to_vec().unwrap(), [66.0 + row], "{number}");
            }
        }
        let mut sum = 0.0;
        for item in feed((0..12).map(|number| vec![number as f32; LEN])).on(&gpu).unwrap() {
            let item = item.unwrap();
            sum += (&item + &layers[3]).slice(s![..1]).unwrap().to_vec().unwrap()[0];
        }
        assert_eq!(sum, 66.0 + 36.0);
        assert!(status(gpu.pool()).in_use_peak_bytes <= LIMIT_BYTES);
        check(&layers);
    });
}

/// A feed that goes far ahead takes free memory only: the model of five arrays stays, beside the batch in use and the next one.
#[test]
fn batches_far_ahead_push_nothing_out() {
    // The device is always behind, so the feed would go as far ahead as it may.
    let driver = gpumem_sim::driver(SimConfig::new().schedule(Schedule::Late)).unwrap();
    let gpu = spilling(&driver);
    let layers = vectors(&gpu, 5);
    let table = Array2::from_shape_fn((8, LEN), |(row, _)| row as f32);
    let mut sum = Vector::zeros(&gpu, 1).unwrap();
    for batch in batches(&table).batch_size(1).prefetch(4).on(&gpu).unwrap() {
        let batch: GpuArray<f32, Ix2> = batch.unwrap();
        for layer in &layers {
            sum += layer.slice(s![..1]).unwrap();
        }
        sum += batch.slice(s![0, ..1]).unwrap();
    }
    assert_eq!(sum.to_vec().unwrap(), [8.0 * 10.0 + 28.0]);
    let counters = status(gpu.pool()).counters;
    assert_eq!((counters.spill_count, counters.refusal_count), (0, 0));
}

/// Sizes with which arrays move do not fit. Weights that were pushed out by an attempt that was too large return for the next one.
#[test]
fn the_largest_batch_leaves_arrays_where_they_are() {
    let driver = simulated();
    let gpu = spilling(&driver);
    let weights = vectors(&gpu, 3);
    let idle = vectors(&gpu, 4);
    let step = |rows: usize| -> Result<(), ArrayError> {
        let x = GpuArray::<f32, Ix2>::zeros(&gpu, (rows, LEN / 4))?; // a quarter of 1 MiB each
        for weights in &weights {
            weights.try_add(1.0)?;
        }
        x.sum()?.into_scalar().map(drop)
    };
    let fit = fit_batch_size(&gpu, 1..=64, step).unwrap();
    // 8 MiB less the weights, and a temporary array of 1 MiB.
    assert!(fit.batch_size.is_some_and(|rows| (14..=18).contains(&rows)), "{fit}");
    assert!(fit.attempts.iter().any(|attempt| attempt.moved_bytes > 0), "{fit}");
    check(&weights);
    check(&idle);

    // Weights of more than the limit move with every size.
    let weights = vectors(&gpu, 10);
    let step = |rows: usize| -> Result<(), ArrayError> {
        let x = GpuArray::<f32, Ix2>::zeros(&gpu, (rows, LEN / 4))?;
        weights.iter().try_for_each(|weights| weights.try_add(1.0).map(drop))?;
        x.sum()?.into_scalar().map(drop)
    };
    let fit = fit_batch_size(&gpu, 1..=64, step).unwrap();
    assert!(fit.batch_size.is_some_and(|rows| (16..=32).contains(&rows)), "{fit}");
}

/// Operators panic where other operations return an error; a size that is too large for them is too large.
#[test]
fn operators_that_run_out_of_memory_end_an_attempt() {
    for builder in [builder(&simulated()), builder(&simulated()).spill(Spill::Off)] {
        let gpu = Gpu::new(&builder.build().unwrap()).unwrap();
        let step = |rows: usize| -> Result<(), ArrayError> {
            let x = GpuArray::<f32, Ix2>::zeros(&gpu, (rows, LEN))?;
            let y = &x + 1.0;
            (&x * &y).sum()?.into_scalar().map(drop)
        };
        let fit = fit_batch_size(&gpu, 1..=64, step).unwrap();
        assert_eq!(fit.batch_size, Some(2), "{fit}");
        let halved = halve_on_out_of_memory(&gpu, 12, 12, |items| {
            let x = Vector::zeros(&gpu, items.len() * LEN)?;
            let y = &x + 1.0;
            y.sum()?.into_scalar()
        });
        let counts: Vec<_> = halved.unwrap().into_iter().map(|(items, sum)| (items.len(), sum)).collect();
        assert!(counts.iter().all(|(items, sum)| *items <= 6 && *sum == (items * LEN) as f32), "{counts:?}");
        // Other panics are passed on.
        let other = std::panic::catch_unwind(AssertUnwindSafe(|| {
            fit_batch_size(&gpu, 1..=2, |_| {
                drop(&Vector::zeros(&gpu, 5)? + &Vector::zeros(&gpu, 6)?);
                Ok::<_, ArrayError>(())
            })
        }));
        let payload = other.unwrap_err();
        assert!(payload.downcast_ref::<String>().unwrap().contains("incompatible shapes"));
    }
}

/// What is on the host is saved from there: nothing moves. A checkpoint of more than the limit is restored.
#[test]
fn checkpoints_are_saved_from_where_arrays_are() {
    for_each_seed!(4, |driver, seed| {
        let gpu = spilling(driver);
        let arrays = vectors(&gpu, 20);
        let names: Vec<String> = (0..arrays.len()).map(|index| format!("layer {index}")).collect();
        let before = status(gpu.pool());
        assert!(before.spilled_bytes >= 12 << 20, "{before:#}");
        let path =
            std::env::temp_dir().join(format!("gpumem-spilled-{}-{seed}.safetensors", std::process::id()));
        save(&path, names.iter().zip(&arrays)).unwrap();
        let after = status(gpu.pool());
        assert_eq!(after.counters.spilled_up_bytes, before.counters.spilled_up_bytes);
        assert_eq!(after.counters.spill_count, before.counters.spill_count);

        drop(arrays);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let loaded: Vec<Vector> = names.iter().map(|name| checkpoint.load(name, &gpu).unwrap()).collect();
        check(&loaded);
        drop(loaded);
        let all = checkpoint.load_all(&gpu).unwrap();
        save(&path, &all).unwrap();
        assert_eq!(all.len(), 20);
        drop(all);
        let again = Checkpoint::open(&path).unwrap();
        assert_eq!(again.load::<f32, Ix1>("layer 19", &gpu).unwrap().to_vec().unwrap(), vec![19.0; LEN]);
        std::fs::remove_file(&path).unwrap();
        assert!(status(gpu.pool()).in_use_peak_bytes <= LIMIT_BYTES);
    });
}

/// Downloads of parts, of other types and of other orders find the contents on the host too, and views of what the host has.
#[test]
fn what_is_away_is_read_from_the_host() {
    let driver = simulated();
    let gpu = spilling(&driver);
    let x = Vector::from_slice(&gpu, &(0..LEN).map(|index| index as f32).collect::<Vec<_>>()).unwrap();
    gpu.pool().spill(u64::MAX).unwrap();
    assert_eq!(x.slice(s![7..9]).unwrap().to_vec().unwrap(), [7.0, 8.0]);
    assert_eq!(x.view().reshape((4, LEN / 4)).unwrap().to_array().unwrap()[(3, 1)], (3 * LEN / 4 + 1) as f32);
    assert_eq!(x.view().reshape((LEN / 2, 2)).unwrap().t().to_array().unwrap()[(1, 5)], 11.0);
    assert_eq!(status(gpu.pool()).counters.spilled_up_bytes, 0);
    // A strided view is gathered on the device.
    assert_eq!(x.slice(s![..;2]).unwrap().to_vec().unwrap()[3], 6.0);
    assert_eq!(status(gpu.pool()).counters.spilled_up_bytes, MIB as u64);
}

/// Contents that the host has are not copied again when the pool sleeps, and those that are away stay there.
#[test]
fn a_pool_sleeps_without_a_second_copy() {
    let driver = simulated();
    let gpu = Gpu::new(&builder(&driver).backend(BackendKind::Caching).build().unwrap()).unwrap();
    let mut arrays = vectors(&gpu, 12);
    check(&arrays);
    let before = status(gpu.pool());
    // All contents are on the host, except those of which the latest copy is on the device.
    let slept = gpu.pool().sleep(Keep::OnHost).unwrap();
    let asleep = status(gpu.pool());
    assert_eq!(slept.copied_bytes, asleep.asleep_bytes);
    assert_eq!(asleep.spilled_bytes + asleep.asleep_bytes, 12 << 20, "{asleep:#}");
    assert!(asleep.spilled_bytes > before.spilled_bytes, "{before:#}\n{asleep:#}");
    assert_eq!(asleep.counters.spilled_down_bytes, before.counters.spilled_down_bytes);
    assert!(arrays.iter().all(|array| array.try_add(1.0).is_err()));
    assert!(gpu.pool().spill(u64::MAX).unwrap_err().to_string().contains("sleep"));
    gpu.pool().wake().unwrap();
    check(&arrays);

    // Without contents, the host's copies of what stays on the device are forgotten: all reads of an array agree.
    gpu.pool().sleep(Keep::Nothing).unwrap();
    gpu.pool().wake().unwrap();
    for array in &mut arrays {
        let first = array.slice(s![..2]).unwrap().to_vec().unwrap();
        gpu.pool().spill(u64::MAX).unwrap();
        *array += 1.0;
        let second = array.slice(s![..2]).unwrap().to_vec().unwrap();
        assert_eq!(second, first.iter().map(|value| value + 1.0).collect::<Vec<_>>());
    }
    drop((arrays, gpu));
    end(&driver);
}

/// Parts sleep apart while arrays of both are away, and share the limit of the device memory and of the host memory.
#[test]
fn parts_sleep_while_their_arrays_are_away() {
    for_each_seed!(4, |driver, _seed| {
        let gpu = Gpu::new(&builder(driver).backend(BackendKind::Caching).build().unwrap()).unwrap();
        let pool = gpu.pool();
        let part = |name| Gpu::new(&pool.part(name).unwrap()).unwrap();
        let (weights, cache) = (part("weights"), part("cache"));
        let kept = vectors(&weights, 12);
        let other = vectors(&cache, 12);
        check(&kept);
        check(&other);
        for _ in 0..2 {
            pool.sleep_parts(["weights"], Keep::OnHost).unwrap();
            assert!(kept.iter().all(|array| array.try_add(1.0).is_err()));
            check(&other);
            pool.wake_parts(["weights"]).unwrap();
            check(&kept);
        }
        let status = status(pool);
        assert!(status.private_pools.iter().map(|part| part.in_use_bytes).sum::<u64>() <= LIMIT_BYTES);
        assert!(status.spilled_host_bytes <= 64 << 20, "{status:#}");
        // One arena, whose limit is that of all.
        let arenas = Pool::list(gpu.device()).into_iter().filter(|pool| pool.name == "spilled");
        assert_eq!(arenas.map(|arena| arena.hard_limit_bytes).collect::<Vec<_>>(), [Some(64 << 20)]);
    });
}

/// A pool and pools beneath it take memory of each other's idle arrays when they reach their common limit.
#[test]
fn pools_below_one_limit_make_room_for_each_other() {
    for backend in [BackendKind::Caching, BackendKind::Native, BackendKind::None] {
        let driver = simulated();
        let gpu = Gpu::new(&builder(&driver).backend(backend).build().unwrap()).unwrap();
        let private = |quota: u64| Gpu::new(&gpu.pool().private(quota).unwrap()).unwrap();
        let (small, large) = (private(3 << 20), private(LIMIT_BYTES));
        let in_parent = vectors(&gpu, 8);
        let in_small = vectors(&small, 5);
        let in_large = vectors(&large, 8);
        for _ in 0..2 {
            check(&in_parent);
            check(&in_small);
            check(&in_large);
        }
        let all = status(gpu.pool());
        let held_bytes: u64 = all.private_pools.iter().map(|pool| pool.in_use_bytes).sum();
        assert!(held_bytes + all.in_use_bytes <= LIMIT_BYTES, "{backend}: {all:#}");
        assert!(status(small.pool()).in_use_peak_bytes <= 3 << 20, "{backend}");
        for gpu in [&gpu, &small, &large] {
            assert_eq!(status(gpu.pool()).counters.refusal_count, 0, "{backend}");
        }
        // The limit of the parent counts for what is beneath.
        gpu.pool().set_hard_limit(4 << 20).unwrap();
        gpu.synchronize().unwrap();
        let all = status(gpu.pool());
        let held_bytes: u64 = all.private_pools.iter().map(|pool| pool.in_use_bytes).sum();
        assert!(held_bytes + all.in_use_bytes <= 4 << 20, "{backend}: {all:#}");
        check(&in_parent);
        check(&in_large);
        drop((in_parent, in_small, in_large, small, large, gpu));
        end(&driver);
    }
}

/// Threads in two pools of one limit, each of which needs what the other has.
#[test]
fn pools_of_two_threads_take_turns() {
    for_each_seed!(6, |driver, _seed| {
        let gpu = spilling(driver);
        std::thread::scope(|scope| {
            for name in ["first", "second"] {
                let part = Gpu::new(&gpu.pool().part(name).unwrap()).unwrap();
                scope.spawn(move || {
                    let arrays = vectors(&part, 6);
                    for _ in 0..3 {
                        check(&arrays);
                    }
                });
            }
        });
    });
}

/// Another thread lowers and raises the limit while arrays are used.
#[test]
fn limits_change_while_arrays_are_used() {
    for_each_seed!(6, |driver, _seed| {
        let gpu = spilling(driver);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let pool = gpu.pool();
                while !is_over.load(Ordering::Relaxed) {
                    for limit_bytes in [4 << 20, 6 << 20, LIMIT_BYTES] {
                        pool.set_hard_limit(limit_bytes).unwrap();
                        std::thread::yield_now();
                    }
                }
            });
            let arrays = vectors(&gpu, 12);
            for _ in 0..3 {
                check(&arrays);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        // Memory that work still uses is released later.
        gpu.device().synchronize().unwrap();
        gpu.pool().set_hard_limit(3 << 20).unwrap();
        let arrays = vectors(&gpu, 6);
        check(&arrays);
        gpu.synchronize().unwrap();
        gpu.pool().trim_to(0).unwrap();
        let status = status(gpu.pool());
        assert!(status.reserved_bytes <= 4 << 20 && status.in_use_bytes <= 3 << 20, "{status:#}");
        gpu.pool().set_hard_limit(LIMIT_BYTES).unwrap();
        check(&arrays);
    });
}

const LEFT_OVER: &str = "spilling_pipeline::a_process_ends_while_arrays_are_away";

/// Arrays that are never dropped, some of them away, do not keep a process from ending.
#[test]
fn a_process_ends_while_arrays_are_away() {
    if std::env::var_os(LEFT_OVER).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let ended = command.args([LEFT_OVER, "--exact", "--nocapture"]).env(LEFT_OVER, "1").output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && text.contains("leaves 12 arrays"), "{ended:?}");
        return;
    }
    static KEPT: std::sync::OnceLock<(Gpu, Vec<Vector>)> = std::sync::OnceLock::new();
    thread_local! {
        static ALSO_KEPT: std::cell::RefCell<Vec<Vector>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let gpu = spilling(&simulated());
    let mut arrays = vectors(&gpu, 12);
    assert!(status(gpu.pool()).spilled_bytes > 0);
    writeln!(std::io::stdout(), "leaves {} arrays", arrays.len()).unwrap();
    std::mem::forget(arrays.split_off(9));
    ALSO_KEPT.with(|kept| kept.borrow_mut().extend(arrays.split_off(5)));
    // Copies to the host may still run.
    drop(arrays[0].try_add(1.0).unwrap());
    let _ = KEPT.set((gpu, arrays));
    std::process::exit(0);
}

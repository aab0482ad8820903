//! Several streams and threads without explicit synchronisation: results are correct in every order that the simulator's seeds
//! choose.

use crate::choices::Choices;
use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::Ix1;
use gpumem_array::{Function, Gpu, GpuArray, GpuView, GpuViewMut, Module, UninitArray};
use gpumem_sim::SimConfig;

const SEEDS: u64 = 250;
const LEN: usize = 40;

/// An array on a device and its expected elements.
struct Pair {
    device: GpuArray<i64, Ix1>,
    host: Vec<i64>,
}

fn step(pairs: &mut [Pair], gpu: &Gpu, choices: &mut Choices) {
    let (target, source) = (choices.below(pairs.len()), choices.below(pairs.len()));
    let number = choices.below(9) as i64 - 4;
    match choices.below(6) {
        // New memory replaces old memory, which is freed while it may be in use elsewhere.
        0 => {
            let device = pairs[source].device.on(gpu).try_mul(&pairs[target].device).unwrap();
            let zip = pairs[source].host.iter().zip(&pairs[target].host);
            let host = zip.map(|(a, b)| a.wrapping_mul(*b)).collect();
            pairs[target] = Pair { device, host };
        }
        1 => {
            pairs[target].device.on_mut(gpu).fill(number).unwrap();
            pairs[target].host.fill(number);
        }
        2 => {
            let device = pairs[source].device.on(gpu).sum().unwrap();
            let sum = pairs[source].host.iter().fold(0, |sum: i64, value| sum.wrapping_add(*value));
            pairs[target].device.on_mut(gpu).try_sub_assign(&device).unwrap();
            pairs[target].host.iter_mut().for_each(|value| *value = value.wrapping_sub(sum));
        }
        3 if source != target => {
            let [target, source] = pairs.get_disjoint_mut([target, source]).unwrap();
            target.device.on_mut(gpu).assign(&source.device).unwrap();
            target.host.clone_from(&source.host);
        }
        4 if source != target => {
            let [target, source] = pairs.get_disjoint_mut([target, source]).unwrap();
            target.device.on_mut(gpu).try_add_assign(&source.device).unwrap();
            target.host.iter_mut().zip(&source.host).for_each(|(a, b)| *a = a.wrapping_add(*b));
        }
        _ => {
            pairs[target].device.on_mut(gpu).try_mul_assign(number).unwrap();
            pairs[target].host.iter_mut().for_each(|value| *value = value.wrapping_mul(number));
        }
    }
}

#[test]
fn any_program_on_three_streams_is_right_in_every_order() {
    for seed in 0..SEEDS {
        let first = gpu_with(SimConfig::new().seed(seed));
        let gpus = [first.clone(), first.fork().unwrap(), first.fork().unwrap()];
        let mut choices = Choices(seed);
        let mut pairs: Vec<Pair> = (0..4)
            .map(|index| {
                let host: Vec<i64> = (0..LEN as i64).map(|value| value * index - 3).collect();
                Pair { device: GpuArray::from_slice(&gpus[index as usize % 3], &host).unwrap(), host }
            })
            .collect();
        for _ in 0..30 {
            let gpu = &gpus[choices.below(gpus.len())];
            step(&mut pairs, gpu, &mut choices);
        }
        for (index, pair) in pairs.iter().enumerate() {
            let found = pair.device.on(&gpus[choices.below(gpus.len())]).to_vec().unwrap();
            assert_eq!(found, pair.host, "array {index}; replay: GPUMEM_SIM_SEED={seed}");
        }
    }
}

#[test]
fn the_free_waits_for_a_stream_that_only_read() {
    for seed in 0..SEEDS {
        let home = gpu_with(SimConfig::new().seed(seed));
        let reader = home.fork().unwrap();
        let array = GpuArray::from_slice(&home, &[7_i32; LEN]).unwrap();
        let result = array.on(&reader).try_mul(6).unwrap();
        drop(array);
        // The pool may return the same memory.
        let other = GpuArray::from_elem(&home, LEN, -1).unwrap();
        assert_eq!(result.to_vec().unwrap(), [42; LEN], "replay: GPUMEM_SIM_SEED={seed}");
        assert_eq!(other.to_vec().unwrap(), [-1; LEN]);
    }
}

#[test]
fn a_writer_that_read_after_writing_is_waited_for() {
    for seed in 0..SEEDS {
        let first = gpu_with(SimConfig::new().seed(seed));
        let second = first.fork().unwrap();
        let mut array = GpuArray::from_slice(&first, &[5_i32; LEN]).unwrap();
        let early = array.on(&second).try_add(0).unwrap();
        let late = array.try_add(1).unwrap(); // the writer's own stream, not listed as a reader
        array.on_mut(&second).fill(0).unwrap();
        assert_eq!(late.to_vec().unwrap(), [6; LEN], "replay: GPUMEM_SIM_SEED={seed}");
        assert_eq!(early.to_vec().unwrap(), [5; LEN]);
        assert_eq!(array.to_vec().unwrap(), [0; LEN]);
    }
}

#[test]
fn threads_share_what_they_read() {
    let gpu = gpu();
    let mut shared = GpuArray::from_slice(&gpu, &(0..LEN as i64).collect::<Vec<_>>()).unwrap();
    for round in 0..5 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (gpu, shared) = (gpu.fork().unwrap(), &shared);
                scope.spawn(move || {
                    for _ in 0..10 {
                        let scaled = shared.on(&gpu).try_mul(thread).unwrap();
                        let sum = (0..LEN as i64).sum::<i64>() + round * LEN as i64;
                        assert_eq!(scaled.sum().unwrap().into_scalar().unwrap(), sum * thread);
                    }
                });
            }
        });
        shared.try_add_assign(1).unwrap(); // no thread is left to read the old values, but streams may be
    }
}

#[test]
fn everything_may_cross_threads() {
    fn check<T: Send + Sync>() {}
    check::<Gpu>();
    check::<GpuArray<bool, Ix1>>();
    check::<UninitArray<f32, Ix1>>();
    check::<GpuView<'_, f32, Ix1>>();
    check::<GpuViewMut<'_, f32, Ix1>>();
    check::<Module>();
    check::<Function>();
}

#[test]
fn arrays_move_to_other_threads_and_end_there() {
    let gpu = gpu();
    let array = GpuArray::from_slice(&gpu, &[1.0_f32; LEN]).unwrap();
    let doubled = std::thread::spawn(move || array * 2.0).join().unwrap();
    drop(gpu);
    assert_eq!(doubled.to_vec().unwrap(), [2.0; LEN]);
}

#[test]
fn two_simulators_run_side_by_side() {
    let threads = (0..2).map(|value| {
        std::thread::spawn(move || {
            let gpu = gpu_with(SimConfig::new().seed(value));
            let array = GpuArray::from_elem(&gpu, LEN, value as f64).unwrap();
            (&array + 1.0).to_vec().unwrap()
        })
    });
    let results: Vec<_> =
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(results, [[1.0; LEN], [2.0; LEN]]);
}

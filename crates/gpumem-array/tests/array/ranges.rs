//! Parts of an array are tracked apart: work on disjoint parts overlaps, and work on common bytes is ordered.

use crate::choices::Choices;
use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::{Array1, Axis, Dimension, Ix2, Ix3, Slice, s};
use gpumem_array::{ArrayError, Gpu, GpuArray, GpuViewMut, StagingOptions};
use gpumem_sim::{Costs, Sim, SimConfig};
use std::sync::Barrier;
use std::time::Duration;

const SEEDS: u64 = 200;
/// 64 MiB: a fill of a half takes longer than the calls of the host.
const LARGE: usize = 16 << 20;
const ROUNDS: usize = 8;

/// The virtual time until the device is idle.
fn time_of(gpu: &Gpu, work: impl FnOnce()) -> Duration {
    let sim = Sim::of(gpu.device().driver()).unwrap();
    gpu.device().synchronize().unwrap();
    let begin = sim.host_time();
    work();
    gpu.device().synchronize().unwrap();
    sim.host_time() - begin
}

/// The time of fills of two parts on two streams.
fn time_of_parts<'a, D: Dimension>(
    gpu: &Gpu,
    other: &Gpu,
    (mut left, mut right): (GpuViewMut<'a, f32, D>, GpuViewMut<'a, f32, D>),
) -> Duration {
    time_of(gpu, || {
        for round in 0..ROUNDS {
            left.view_mut().on_mut(gpu).fill(round as f32).unwrap();
            right.view_mut().on_mut(other).fill(-(round as f32)).unwrap();
        }
    })
}

#[test]
fn halves_do_not_wait_for_each_other() {
    let gpu = gpu();
    let other = gpu.fork().unwrap();
    let mut array = GpuArray::<f32, _>::zeros(&gpu, LARGE).unwrap();
    let serial = time_of_parts(&gpu, &gpu, array.split_at_mut(Axis(0), LARGE / 2).unwrap());
    array.fill(0.0).unwrap();
    let apart = time_of_parts(&gpu, &other, array.split_at_mut(Axis(0), LARGE / 2).unwrap());
    assert!(apart < serial * 6 / 10, "{apart:?} {serial:?}");
    let [left, right] = array.multi_slice_mut([s![..LARGE / 2], s![LARGE / 2..]]).unwrap();
    let again = time_of_parts(&gpu, &other, (left, right));
    assert!(again < serial * 6 / 10, "{again:?} {serial:?}");
    let (found, last) = (array.to_vec().unwrap(), (ROUNDS - 1) as f32);
    assert!(found[..LARGE / 2].iter().all(|found| *found == last));
    assert!(found[LARGE / 2..].iter().all(|found| *found == -last));
}

type Halves<'a> = [GpuViewMut<'a, f32, Ix3>; 2];

#[test]
fn halves_along_any_axis_do_not_wait_for_each_other() {
    // A kernel takes longer than the calls of the host.
    let mut costs = Costs::h200();
    (costs.launch_ns, costs.fill_ns) = (100_000, 100_000);
    let gpu = gpu_with(SimConfig::new().costs(costs));
    let other = gpu.fork().unwrap();
    // Nine places along the last axis, so that the even ones are elsewhere in each row.
    let mut array = GpuArray::<f32, _>::zeros(&gpu, (8, 6, 9)).unwrap();
    let mut check = |split: &dyn for<'a> Fn(&'a mut GpuArray<f32, Ix3>) -> Halves<'a>| {
        let [left, right] = split(&mut array);
        let serial = time_of_parts(&gpu, &gpu, (left, right));
        array.fill(0.0).unwrap();
        let [left, right] = split(&mut array);
        let apart = time_of_parts(&gpu, &other, (left, right));
        assert!(apart < serial * 6 / 10, "{apart:?} {serial:?}");
    };
    for axis in 0..3 {
        check(&|array| {
            let half = array.shape()[axis] / 2;
            array.split_at_mut(Axis(axis), half).unwrap().into()
        });
    }
    check(&|array| array.multi_slice_mut([s![.., ..;2, ..], s![.., 1..;2, ..]]).unwrap());
    check(&|array| array.multi_slice_mut([s![.., .., ..;2], s![.., .., 1..;2]]).unwrap());
    check(&|array| array.multi_slice_mut([s![.., ..3, 5..], s![.., 3.., ..4]]).unwrap());
    let last = (ROUNDS - 1) as f32;
    let found = array.to_array().unwrap();
    assert!(found.slice(s![.., ..3, 5..]).iter().all(|found| *found == last));
    assert!(found.slice(s![.., 3.., ..4]).iter().all(|found| *found == -last));
}

/// Nothing was split: the first write of a part on another stream waits, and later ones do not.
#[test]
fn slices_are_tracked_apart_once_two_streams_write_them() {
    let gpu = gpu();
    let other = gpu.fork().unwrap();
    let mut array = GpuArray::<f32, _>::zeros(&gpu, LARGE).unwrap();
    let mut run = |other: &Gpu| {
        time_of(&gpu, || {
            for round in 0..4 * ROUNDS {
                let left = array.slice_mut(s![..LARGE / 2]).unwrap();
                left.on_mut(&gpu).fill(round as f32).unwrap();
                array.slice_mut(s![LARGE / 2..]).unwrap().on_mut(other).fill(1.0).unwrap();
            }
        })
    };
    let serial = run(&gpu);
    let apart = run(&other);
    assert!(apart < serial * 6 / 10, "{apart:?} {serial:?}");
}

#[test]
fn a_reader_of_one_half_does_not_wait_for_the_other() {
    let gpu = gpu();
    let other = gpu.fork().unwrap();
    let mut array = GpuArray::<f32, _>::zeros(&gpu, LARGE).unwrap();
    let (mut left, right) = array.split_at_mut(Axis(0), LARGE / 2).unwrap();
    right.on_mut(&gpu).fill(2.0).unwrap();
    gpu.device().synchronize().unwrap();
    let alone = time_of(&gpu, || {
        assert_eq!(left.view().on(&other).slice(s![5]).unwrap().into_scalar().unwrap(), 0.0)
    });
    for _ in 0..100 {
        left.fill(3.0).unwrap();
    }
    let sim = Sim::of(gpu.device().driver()).unwrap();
    let begin = sim.host_time();
    let right = array.slice(s![LARGE / 2..]).unwrap();
    assert_eq!(right.on(&other).slice(s![5]).unwrap().into_scalar().unwrap(), 2.0);
    let beside = sim.host_time() - begin;
    assert!(beside < alone * 2, "{beside:?} {alone:?}");
}

/// A random program on views of parts of two arrays, on three streams, and the same on the host.
#[test]
fn parts_are_right_in_every_order() {
    const LEN: usize = 48;
    for seed in 0..SEEDS {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let gpus = [gpu.clone(), gpu.fork().unwrap(), gpu.fork().unwrap()];
        let mut choices = Choices(seed);
        let mut hosts = [Array1::from_iter(0..LEN as i64), Array1::from_elem(LEN, 7)];
        let mut arrays = hosts.each_ref().map(|host| GpuArray::from_array(&gpu, host).unwrap());
        let mut results = Vec::new();
        for _ in 0..40 {
            let gpu = &gpus[choices.below(3)];
            let (from, len) = (choices.below(LEN), choices.below(LEN / 2) + 1);
            let slice = Slice::from(from as isize..(from + len).min(LEN) as isize)
                .step_by(choices.below(2) as isize + 1);
            let (index, number) = (choices.below(2), choices.below(9) as i64 - 4);
            let choice = choices.below(7);
            if choice == 5 {
                let [source, target] = arrays.get_disjoint_mut([1 - index, index]).unwrap();
                let view = source.slice_axis(Axis(0), slice).unwrap();
                target.slice_axis_mut(Axis(0), slice).unwrap().on_mut(gpu).try_add_assign(&view).unwrap();
                let [source, target] = hosts.get_disjoint_mut([1 - index, index]).unwrap();
                let source = source.slice_axis(Axis(0), slice);
                target.slice_axis_mut(Axis(0), slice).zip_mut_with(&source, |a, b| *a = a.wrapping_add(*b));
                continue;
            }
            let (array, host) = (&mut arrays[index], &mut hosts[index]);
            match choice {
                0 => {
                    array.slice_axis_mut(Axis(0), slice).unwrap().on_mut(gpu).fill(number).unwrap();
                    host.slice_axis_mut(Axis(0), slice).fill(number);
                }
                1 => {
                    array.slice_axis_mut(Axis(0), slice).unwrap().on_mut(gpu).try_mul_assign(number).unwrap();
                    host.slice_axis_mut(Axis(0), slice).mapv_inplace(|value| value.wrapping_mul(number));
                }
                2 => {
                    let view = array.slice_axis(Axis(0), slice).unwrap();
                    let (found, expected) = (
                        view.on(gpu).try_add(number).unwrap(),
                        host.slice_axis(Axis(0), slice).mapv(|value| value.wrapping_add(number)),
                    );
                    results.push((found, expected));
                }
                3 => {
                    // Two halves on two streams, in any order.
                    let other = &gpus[choices.below(3)];
                    let (left, right) = array.split_at_mut(Axis(0), from).unwrap();
                    let (mut left, mut right) = (left.on_mut(gpu), right.on_mut(other));
                    right.try_add_assign(number).unwrap();
                    left.try_mul_assign(3).unwrap();
                    right.try_mul_assign(2).unwrap();
                    let (mut host_left, mut host_right) = host.view_mut().split_at(Axis(0), from);
                    host_right.mapv_inplace(|value| value.wrapping_add(number).wrapping_mul(2));
                    host_left.mapv_inplace(|value| value.wrapping_mul(3));
                }
                4 => {
                    // From one part of an array to another.
                    let half = LEN / 2;
                    let (left, right) = array.split_at_mut(Axis(0), half).unwrap();
                    let right = right.on_mut(&gpus[choices.below(3)]);
                    left.on_mut(gpu).assign(&right).unwrap();
                    let (mut host_left, host_right) = host.view_mut().split_at(Axis(0), half);
                    host_left.assign(&host_right);
                }
                _ => {
                    array.on_mut(gpu).try_add_assign(1).unwrap();
                    host.mapv_inplace(|value| value.wrapping_add(1));
                }
            }
        }
        for (array, host) in arrays.iter().zip(&hosts) {
            assert_eq!(
                array.on(&gpus[choices.below(3)]).to_array().unwrap(),
                *host,
                "replay: GPUMEM_SIM_SEED={seed}"
            );
        }
        for (found, expected) in &results {
            assert_eq!(found.to_array().unwrap(), *expected, "replay: GPUMEM_SIM_SEED={seed}");
        }
        assert_eq!(
            Sim::of(gpu.device().driver()).unwrap().report().findings,
            [],
            "replay: GPUMEM_SIM_SEED={seed}"
        );
    }
}

#[test]
fn threads_write_parts_of_one_array() {
    const PARTS: usize = 8;
    const LEN: usize = 64;
    for seed in 0..20 {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let mut array = GpuArray::<i64, _>::zeros(&gpu, (PARTS, LEN)).unwrap();
        for round in 0..3 {
            let mut rest = array.view_mut();
            std::thread::scope(|scope| {
                for part in 0..PARTS {
                    let (first, others) = rest.split_at_mut(Axis(0), 1).unwrap();
                    rest = others;
                    let gpu = gpu.fork().unwrap();
                    scope.spawn(move || {
                        let mut first = first.on_mut(&gpu);
                        first.try_add_assign(part as i64).unwrap();
                        assert_eq!(
                            first.view().sum().unwrap().into_scalar().unwrap(),
                            ((round + 1) * part * LEN) as i64
                        );
                    });
                }
            });
        }
        assert_eq!(array.sum().unwrap().into_scalar().unwrap(), (3 * LEN * PARTS * (PARTS - 1) / 2) as i64);
        assert_eq!(Sim::of(gpu.device().driver()).unwrap().report().findings, []);
    }
}

/// Elements of one thread lie between those of the other, in up to thousands of rows. Both threads have their part to themselves, so the
/// race detector finds nothing.
#[test]
fn threads_write_elements_that_alternate() {
    for seed in 0..20 {
        for (row_count, len) in [(1, 101), (60, 9), (1500, 9)] {
            let gpu = gpu_with(SimConfig::new().seed(seed));
            let values = GpuArray::<i32, _>::from_elem(&gpu, (row_count, len), 1).unwrap();
            let mut array = GpuArray::<i32, _>::zeros(&gpu, (row_count, len)).unwrap();
            gpu.device().synchronize().unwrap();
            let start = Barrier::new(2);
            let [even, odd] = array.multi_slice_mut([s![.., ..;2], s![.., 1..;2]]).unwrap();
            std::thread::scope(|scope| {
                for (mut part, step) in [(even, 1), (odd, -1)] {
                    let gpu = gpu.fork().unwrap();
                    let values = values.slice(s![.., ..part.shape()[1]]).unwrap();
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        for round in 0..5 {
                            part.view_mut().on_mut(&gpu).fill(round * step).unwrap();
                            part.view_mut().on_mut(&gpu).try_add_assign(values).unwrap();
                        }
                    });
                }
            });
            let found = array.to_array().unwrap();
            assert!(found.indexed_iter().all(|((_, x), value)| *value == if x % 2 == 0 { 5 } else { -3 }));
            let sim = Sim::of(gpu.device().driver()).unwrap();
            assert_eq!(sim.take_findings(), [], "seed {seed}, {row_count} rows");
        }
    }
}

#[test]
fn many_parts_are_right() {
    for seed in 0..5 {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let gpus = [gpu.clone(), gpu.fork().unwrap(), gpu.fork().unwrap()];
        let mut array = GpuArray::<i32, _>::zeros(&gpu, 1000).unwrap();
        for index in 0..1000 {
            array
                .slice_mut(s![index..index + 1])
                .unwrap()
                .on_mut(&gpus[index % 3])
                .fill(index as i32)
                .unwrap();
        }
        assert_eq!(array.on(&gpus[1]).to_vec().unwrap(), Vec::from_iter(0..1000));
        array.fill(1).unwrap();
        assert_eq!(array.on(&gpus[2]).sum().unwrap().into_scalar().unwrap(), 1000);
        assert_eq!(Sim::of(gpu.device().driver()).unwrap().report().findings, []);
    }
}

#[test]
fn parts_outside_of_the_array_and_parts_that_overlap_are_refused() {
    let gpu = gpu();
    let mut array = GpuArray::<f32, Ix2>::zeros(&gpu, (4, 6)).unwrap();
    assert!(matches!(array.split_at(Axis(0), 5), Err(ArrayError::Slice { .. })));
    assert!(matches!(array.split_at_mut(Axis(2), 0), Err(ArrayError::Slice { .. })));
    let (all, none) = array.split_at(Axis(1), 6).unwrap();
    assert_eq!((all.shape(), none.shape()), (&[4, 6][..], &[4, 0][..]));
    let refused = array.multi_slice_mut([s![..2, ..], s![2.., ..], s![..;3, 5..]]);
    assert!(matches!(refused, Err(ArrayError::Overlap { first: 0, second: 2 })));
    let views = array.multi_slice_mut([s![.., ..;2], s![..;-1, 1..;2]]).unwrap();
    assert_eq!(views.map(|view| view.len()), [12, 12]);
}

/// The host has waited for the upload on the second stream, and then the first stream of the device writes: the second stream reuses the
/// memory behind that write.
#[test]
fn a_write_behind_finished_work_is_waited_for_before_reuse() {
    for seed in 0..20 {
        let first = gpu_with(SimConfig::new().seed(seed).races(true));
        let second = first.fork().unwrap();
        // The driver copies, and the upload waits.
        first.set_staging(StagingOptions::new().buffers(0));
        let mut array = GpuArray::from_slice(&second, &[1.0_f32; 1 << 16]).unwrap();
        array.on_mut(&first).try_add_assign(1.0).unwrap();
        drop(array);
        let again = GpuArray::from_slice(&second, &[3.0_f32; 1 << 16]).unwrap();
        assert_eq!(again.to_vec().unwrap(), [3.0; 1 << 16]);
        assert_eq!(Sim::of(first.device().driver()).unwrap().report().findings, [], "seed {seed}");
    }
}

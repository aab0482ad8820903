//! Sums and products, against `ndarray`. Values are small whole numbers, so that floats are exact in any order.

use crate::support::gpu;
use gpumem_array::ndarray::{Array1, Array2, Array3, Array4, ArrayView2, Axis, Ix2, Slice, s};
use gpumem_array::{Arithmetic, ArrayError, Gpu, GpuArray, GpuView, Numeric, Real};
use half::{bf16, f16};
use proptest::prelude::*;

fn whole(seed: usize) -> impl Fn(usize) -> f32 {
    move |index| ((index.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 5) % 17) as f32 - 8.0
}

fn vector(len: usize, seed: usize) -> Array1<f32> {
    Array1::from_shape_fn(len, whole(seed))
}

fn matrix(rows: usize, columns: usize, seed: usize) -> Array2<f32> {
    let value = whole(seed);
    Array2::from_shape_fn((rows, columns), |(row, column)| value(row * columns + column))
}

/// Lengths on both sides of the limit between one launch and two.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![0_usize..600, (32_usize << 10) - 3..(32 << 10) + 3, 90_000_usize..100_000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sums_and_dots_of_vectors(len in lengths(), from in 0_usize..4, seed in any::<usize>()) {
        let gpu = gpu();
        let (a, b) = (vector(len + from, seed), vector(len + from, !seed));
        let (x, y) = (GpuArray::from_array(&gpu, &a).unwrap(), GpuArray::from_array(&gpu, &b).unwrap());
        let part = Slice::from(from..);
        let (x, y) = (x.slice_axis(Axis(0), part).unwrap(), y.slice_axis(Axis(0), part).unwrap());
        let (a, b) = (a.slice_axis(Axis(0), part), b.slice_axis(Axis(0), part));
        prop_assert_eq!(x.sum().unwrap().into_scalar().unwrap(), a.sum());
        prop_assert_eq!(x.dot(&y).unwrap().into_scalar().unwrap(), a.dot(&b));
    }

    #[test]
    fn matrix_times_vector_both_ways(
        (rows, columns) in prop_oneof![(0_usize..40, 0_usize..40), (0_usize..3, 4000_usize..6000), (1_usize..4, 50_000_usize..60_000), (300_usize..700, 0_usize..5)],
        // Rows and columns skipped at the start of each axis, which breaks alignment and leaves gaps between rows.
        (skip_rows, skip_columns) in (0_usize..3, 0_usize..5),
        seed in any::<usize>(),
    ) {
        let gpu = gpu();
        let m = matrix(rows + skip_rows, columns + skip_columns, seed);
        let x = GpuArray::from_array(&gpu, &m).unwrap();
        let (cut_rows, cut_columns) = (Slice::from(skip_rows..), Slice::from(skip_columns..));
        let x = x.slice_axis(Axis(0), cut_rows).unwrap().slice_axis(Axis(1), cut_columns).unwrap();
        let m = m.slice_axis(Axis(0), cut_rows);
        let m = m.slice_axis(Axis(1), cut_columns);
        check(&gpu, &x, m, seed)?;
        check(&gpu, &x.t(), m.t(), seed)?;
    }
}

fn check(
    gpu: &Gpu,
    x: &GpuView<'_, f32, Ix2>,
    m: ArrayView2<'_, f32>,
    seed: usize,
) -> Result<(), TestCaseError> {
    let v = vector(m.ncols(), seed ^ 5);
    let w = GpuArray::from_array(gpu, &v).unwrap();
    prop_assert_eq!(x.dot(&w).unwrap().to_array().unwrap(), m.dot(&v));
    Ok(())
}

#[test]
fn the_batch_of_the_main_job() {
    let gpu = gpu();
    let (m, v, r) = (matrix(2048, 1000, 1), vector(1000, 2), vector(2048, 3));
    let x = GpuArray::from_array(&gpu, &m).unwrap();
    let (w, residual) = (GpuArray::from_array(&gpu, &v).unwrap(), GpuArray::from_array(&gpu, &r).unwrap());
    assert_eq!(x.dot(&w).unwrap().to_array().unwrap(), m.dot(&v));
    assert_eq!(x.t().dot(&residual).unwrap().to_array().unwrap(), m.t().dot(&r));
}

#[test]
fn every_numeric_type() {
    fn check<T: Numeric + From<i8> + PartialEq + std::fmt::Debug>(gpu: &Gpu) {
        let numbers: Vec<T> = (1..=6).map(T::from).collect();
        let m = GpuArray::from_slice(gpu, &numbers).unwrap().into_shape((2, 3)).unwrap();
        let v = GpuArray::from_slice(gpu, &[1, -1, 2].map(T::from)).unwrap();
        let u = GpuArray::from_slice(gpu, &[10, 1].map(T::from)).unwrap();
        assert_eq!(m.dot(&v).unwrap().to_vec().unwrap(), [5, 11].map(T::from));
        assert_eq!(m.t().dot(&u).unwrap().to_vec().unwrap(), [14, 25, 36].map(T::from));
        assert_eq!(v.dot(&v).unwrap().into_scalar().unwrap(), T::from(6));
        assert_eq!(m.sum().unwrap().into_scalar().unwrap(), T::from(21));
    }
    let gpu = gpu();
    check::<f32>(&gpu);
    check::<f64>(&gpu);
    check::<i32>(&gpu);
    check::<i64>(&gpu);
}

#[test]
fn extremes_and_norms_of_arrays() {
    let gpu = gpu();
    let host = Array2::from_shape_fn((3, 4), |(row, column)| [4.0_f32, -3.0, 7.0, 0.0][(row + column) % 4]);
    let x = GpuArray::from_array(&gpu, &host).unwrap();
    assert_eq!(x.max_element().unwrap().into_scalar().unwrap(), 7.0);
    assert_eq!(x.min_axis(Axis(0)).unwrap().to_vec().unwrap(), [-3.0, -3.0, 0.0, -3.0]);
    assert_eq!(x.argmax().unwrap().into_scalar().unwrap(), 2);
    assert_eq!(x.argmin_axis(Axis(1)).unwrap().to_vec().unwrap(), [1, 0, 3]);
    let two = x.slice(s![0, ..2]).unwrap();
    assert_eq!(two.norm().unwrap().into_scalar().unwrap(), 5.0);
    let none = GpuArray::from_elem(&gpu, (2, 70_000), f32::NAN).unwrap();
    assert_eq!(none.max_element().unwrap().into_scalar().unwrap(), f32::NEG_INFINITY);
    assert_eq!(none.min_axis(Axis(0)).unwrap().slice(s![7]).unwrap().into_scalar().unwrap(), f32::INFINITY);
    assert_eq!(none.argmax().unwrap().into_scalar().unwrap(), 0);
    assert_eq!(none.argmin_axis(Axis(1)).unwrap().to_vec().unwrap(), [0, 0]);
    let truths = GpuArray::from_slice(&gpu, &[0_u8, 3, 255]).unwrap();
    assert_eq!(truths.max_element().unwrap().into_scalar().unwrap(), 255);
}

#[test]
fn what_does_not_fit_is_refused() {
    let gpu = gpu();
    let x = GpuArray::<f32, _>::zeros(&gpu, (4, 6)).unwrap();
    let five = GpuArray::<f32, _>::zeros(&gpu, 5).unwrap();
    assert!(matches!(x.dot(&five), Err(ArrayError::Shape { .. })));
    assert!(matches!(x.sum_axis([Axis(0), Axis(2)]), Err(ArrayError::Shape { operation: "sum_axis", .. })));
    assert!(matches!(x.mean_axis([Axis(1), Axis(1)]), Err(ArrayError::Shape { .. })));
}

/// An extreme, its place and a mean of no elements are errors, and sums are not.
#[test]
fn no_elements_have_no_extreme() {
    let gpu = gpu();
    let none = GpuArray::<f32, _>::zeros(&gpu, (0, 3)).unwrap();
    for refused in [
        none.max_element().map(drop),
        none.min_element().map(drop),
        none.argmax().map(drop),
        none.argmin_axis(Axis(0)).map(drop),
        none.mean().map(drop),
        none.log_sum_exp().map(drop),
        none.max_axis([Axis(0), Axis(1)]).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("an output has at least one element"), "{error}");
        assert!(matches!(error, ArrayError::Shape { .. }));
    }
    assert!(none.max_axis(Axis(1)).unwrap().is_empty());
    assert!(none.softmax_axis(Axis(1)).unwrap().is_empty());
    assert_eq!(none.sum_axis(Axis(0)).unwrap().to_vec().unwrap(), [0.0; 3]);
}

/// Sums are `f32`, and are rounded once; extremes and their places are exact.
#[test]
fn numbers_of_16_bits_are_added_as_single_precision() {
    fn check<T: Real + PartialEq + std::fmt::Debug>(gpu: &Gpu, single: impl Fn(T) -> f32) {
        for shape in [(1, 7), (3, 500), (2, 70_001)] {
            let host = Array2::from_shape_fn(shape, |(i, j)| ((i * 31 + j * 7919) % 501) as f64 / 4.0 - 50.0);
            let x = GpuArray::from_array(gpu, &host.mapv(T::from_f64)).unwrap();
            let exact = x.to_array().unwrap().mapv(&single);
            let near = |found: T, wanted: f64, what: &str| {
                let (found, wanted) = (single(found), single(T::from_f64(wanted)));
                let unit = single(T::from_f64(1.01)) - 1.0;
                assert!(
                    found == wanted || (found - wanted).abs() <= unit * wanted.abs(),
                    "{what} of {shape:?}: {found}, not {wanted}"
                );
            };
            let values: Vec<f64> = exact.iter().map(|x| f64::from(*x)).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
            near(x.mean().unwrap().into_scalar().unwrap(), mean, "mean");
            near(x.var(0.0).unwrap().into_scalar().unwrap(), variance, "variance");
            near(
                x.norm().unwrap().into_scalar().unwrap(),
                values.iter().map(|x| x * x).sum::<f64>().sqrt(),
                "norm",
            );
            // Quarters of small numbers are added without an error.
            let sum = (x.lazy() * T::from_f64(0.0) + T::ONE).sum().unwrap().into_scalar().unwrap();
            assert_eq!(sum, T::from_f64(values.len() as f64));
            let (least, largest) =
                exact.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
            assert_eq!(single(x.max_element().unwrap().into_scalar().unwrap()), largest);
            assert_eq!(single(x.min_element().unwrap().into_scalar().unwrap()), least);
            let first = |wanted: f32| exact.iter().position(|x| *x == wanted).unwrap() as i64;
            assert_eq!(x.argmax().unwrap().into_scalar().unwrap(), first(largest));
            assert_eq!(x.argmin().unwrap().into_scalar().unwrap(), first(least));
            for (found, row) in x.sum_axis(Axis(1)).unwrap().to_vec().unwrap().into_iter().zip(exact.rows()) {
                near(found, row.iter().map(|x| f64::from(*x)).sum(), "sum");
            }
        }
    }
    let gpu = gpu();
    check(&gpu, f16::to_f32);
    check(&gpu, bf16::to_f32);
}

#[test]
fn truths_of_arrays_are_counted() {
    let gpu = gpu();
    let host = Array2::from_shape_fn((300, 7), |(i, j)| j < 3 && i != 200);
    let mask = GpuArray::from_array(&gpu, &host).unwrap();
    assert!(mask.any().unwrap().into_scalar().unwrap());
    assert!(!mask.view().all().unwrap().into_scalar().unwrap());
    assert_eq!(mask.count().unwrap().into_scalar().unwrap(), 897);
    assert_eq!(mask.count_axis(Axis(0)).unwrap().to_vec().unwrap(), [299, 299, 299, 0, 0, 0, 0]);
    assert!(!mask.any_axis(Axis(1)).unwrap().slice(s![200]).unwrap().into_scalar().unwrap());
    assert!(!mask.t().all_axis(Axis(0)).unwrap().any().unwrap().into_scalar().unwrap());
    let many = GpuArray::from_elem(&gpu, 70_001, true).unwrap();
    assert_eq!(many.count().unwrap().into_scalar().unwrap(), 70_001);
    assert!(many.all_axis([Axis(0)]).unwrap().into_scalar().unwrap());
}

/// All pairs and triples of axes, of arrays whose axes are in any order in memory.
#[test]
fn several_axes_are_reduced_at_once() {
    let gpu = gpu();
    for shape in [[3, 4, 5, 6], [2, 70, 3, 300], [1, 40, 900, 2], [9, 1, 1, 9000]] {
        let host = Array4::from_shape_fn(shape, |(i, j, k, l)| {
            ((i * 7919 + j * 104_729 + k * 31 + l) % 1009) as i64 - 500
        });
        let x = GpuArray::from_array(&gpu, &host).unwrap();
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let (view, turned) = (x.permuted_axes(order).unwrap(), host.view().permuted_axes(order));
            for (a, b) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
                let wanted = turned.sum_axis(Axis(b)).sum_axis(Axis(a));
                let found = view.sum_axis([Axis(b), Axis(a)]).unwrap();
                assert_eq!(found.to_array().unwrap(), wanted, "{shape:?}, {order:?}, {a}, {b}");
                let wanted = turned.fold_axis(Axis(b), i64::MIN, |a, b| *a.max(b)).fold_axis(
                    Axis(a),
                    i64::MIN,
                    |a, b| *a.max(b),
                );
                assert_eq!(
                    (view.lazy() * 1).max_axis([Axis(a), Axis(b)]).unwrap().to_array().unwrap(),
                    wanted
                );
            }
            let wanted = turned.sum_axis(Axis(3)).sum_axis(Axis(1)).sum_axis(Axis(0));
            assert_eq!(view.sum_axis([Axis(0), Axis(1), Axis(3)]).unwrap().to_array().unwrap(), wanted);
            let all = view.sum_axis([Axis(2), Axis(1), Axis(3), Axis(0)]).unwrap();
            assert_eq!(all.into_scalar().unwrap(), host.sum());
        }
    }
    let ten = GpuArray::from_fn(&gpu, (2, 3, 4), |(i, j, k)| (i * 12 + j * 4 + k) as i32).unwrap();
    // Places count the axes that are reduced, in row-major order.
    assert_eq!(ten.argmax_axis([Axis(2), Axis(0)]).unwrap().to_vec().unwrap(), [7; 3]);
    assert_eq!(ten.argmin_axis([Axis(0), Axis(1)]).unwrap().to_vec().unwrap(), [0; 4]);
}

/// Beside calculations in `f64`: whole and along axes, of one part and of several.
#[test]
fn softmax_and_logarithms_of_sums_do_not_overflow() {
    fn check<T: Real + PartialEq + std::fmt::Debug>(
        gpu: &Gpu,
        double: impl Fn(T) -> f64 + Copy,
        [unit, least]: [f64; 2],
    ) {
        for shape in [(1, 1), (3, 40), (300, 5), (2, 2000), (2, 70_000), (70_000, 2)] {
            let host = Array2::from_shape_fn(shape, |(i, j)| {
                T::from_f64(((i * 31 + j * 7919) % 211) as f64 / 2.0 - 60.0)
            });
            let x = GpuArray::from_array(gpu, &host).unwrap();
            let exact = host.mapv(double);
            let wanted = |values: &[f64]| {
                let largest = values.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                largest + values.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
            };
            let near = |found: T, wanted: f64, least: f64| {
                let found = double(found);
                assert!(
                    (found - wanted).abs() <= 40.0 * unit * wanted.abs().max(least),
                    "{shape:?}: {found}, not {wanted}"
                );
            };
            let all: Vec<f64> = exact.iter().copied().collect();
            near(x.log_sum_exp().unwrap().into_scalar().unwrap(), wanted(&all), 1.0);
            for axis in 0..2 {
                let sums = exact.map_axis(Axis(axis), |lane| wanted(&lane.to_vec()));
                let found = x.log_sum_exp_axis(Axis(axis)).unwrap().to_array().unwrap();
                // One power is 1, so its error is that of a sum near 1.
                found.iter().zip(&sums).for_each(|(found, wanted)| near(*found, *wanted, 1.0));
                let powers = (&exact - &sums.insert_axis(Axis(axis))).mapv(f64::exp);
                let found = (x.lazy() * T::ONE).softmax_axis(Axis(axis)).unwrap().to_array().unwrap();
                found.iter().zip(&powers).for_each(|(found, wanted)| near(*found, *wanted, least));
            }
            let both = x.softmax_axis([Axis(0), Axis(1)]).unwrap();
            assert_eq!(both.shape(), x.shape());
            near(both.sum().unwrap().into_scalar().unwrap(), 1.0, 1.0);
        }
    }
    let gpu = gpu();
    // What is expected in `f64` has errors too. The least normal number of a type has fewer digits below it.
    check(&gpu, |x: f64| x, [10.0 * f64::EPSILON, 1e-30]);
    check(&gpu, |x: f32| f64::from(x), [f64::from(f32::EPSILON), 1e-30]);
    check(&gpu, |x: f16| x.to_f64(), [2.0_f64.powi(-15), 2.0_f64.powi(-14)]);
    let infinite = f32::INFINITY;
    for (values, wanted) in [
        ([-infinite, -infinite], -infinite),
        ([-infinite, 2.0], 2.0),
        ([infinite, infinite], infinite),
        ([1.0, infinite], infinite),
        ([f32::NAN, 1.0], f32::NAN),
        ([1.0, f32::NAN], f32::NAN),
        ([3e38, 3e38], 3e38),
    ] {
        let found =
            GpuArray::from_slice(&gpu, &values).unwrap().log_sum_exp().unwrap().into_scalar().unwrap();
        assert!(found == wanted || found.is_nan() && wanted.is_nan(), "{values:?}: {found}");
    }
}

#[test]
fn steps_of_any_size_and_sign_are_summed_and_multiplied() {
    let gpu = gpu();
    let numbers: Vec<i64> = (0..24).map(|n| n * n - 40).collect();
    let host = Array2::from_shape_vec((4, 6), numbers).unwrap();
    let x = GpuArray::from_array(&gpu, &host).unwrap();
    for (axis, step) in [(1, 2), (0, -1), (1, -1), (0, 2), (1, -3)] {
        let slice = Slice::from(..).step_by(step);
        let (ours, host) = (x.slice_axis(Axis(axis), slice).unwrap(), host.slice_axis(Axis(axis), slice));
        assert_eq!(ours.sum().unwrap().into_scalar().unwrap(), host.sum());
        let factors: Vec<i64> = (1..=host.ncols() as i64).collect();
        let ours = ours.dot(&GpuArray::from_slice(&gpu, &factors).unwrap()).unwrap();
        assert_eq!(ours.to_array().unwrap(), host.dot(&Array1::from(factors)));
    }
}

#[test]
fn a_softmax_of_nothing_is_nothing() {
    let x = GpuArray::<f32, Ix2>::zeros(&gpu(), (0, 3)).unwrap();
    assert_eq!(x.softmax_axis(Axis(0)).unwrap().shape(), [0, 3]);
    assert_eq!(x.softmax_axis(Axis(1)).unwrap().shape(), [0, 3]);
}

/// Each thread calculates several distances in a row of the result, all from one point.
#[test]
fn distances_of_many_points_from_a_few() {
    fn check<T>(gpu: &Gpu, count: usize, of: impl Fn(usize) -> T)
    where
        T: Arithmetic + PartialEq + std::fmt::Debug,
        T: core::ops::Add<Output = T> + core::ops::Sub<Output = T> + core::ops::Mul<Output = T>,
    {
        let (points, axes) = (MANY, 5);
        let host = Array2::from_shape_fn((points, axes), |(i, j)| of(i * 7 + j * 3));
        let centres = Array2::from_shape_fn((count, axes), |(i, j)| of(i * 5 + j));
        let x = GpuArray::from_array(gpu, &host).unwrap();
        // A view with gaps: the centres are read one element after the other.
        let wide = Array2::from_shape_fn((count, 2 * axes), |(i, j)| centres[[i, j / 2]]);
        let wide = GpuArray::from_array(gpu, &wide).unwrap();
        for c in [GpuArray::from_array(gpu, &centres).unwrap().view(), wide.slice(s![.., ..;2]).unwrap()] {
            let apart = x.lazy().insert_axis(Axis(1)) - c.lazy().insert_axis(Axis(0));
            let found = apart.square().sum_axis(Axis(2)).unwrap().to_array().unwrap();
            for ((i, k), found) in found.indexed_iter() {
                let square = |j| (host[[i, j]] - centres[[k, j]]) * (host[[i, j]] - centres[[k, j]]);
                let wanted = (1..axes).fold(square(0), |sum, j| sum + square(j));
                assert_eq!(*found, wanted, "{i} from {k} of {count}");
            }
        }
    }
    const MANY: usize = 132 * 1024;
    let gpu = gpu();
    check(&gpu, 8, |i| (i % 13) as f32);
    check(&gpu, 4, |i| (i % 11) as f64);
    check(&gpu, 6, |i| (i % 17) as i32);
    check(&gpu, 3, |i| (i % 7) as i64);
}

/// Outputs are taken along the memory of the array, whatever the order of its axes.
#[test]
fn permuted_axes_are_reduced() {
    let gpu = gpu();
    let host = Array3::from_shape_fn((3, 40, 6), |(i, j, k)| (i * 1000 + j * 10 + k) as i32);
    let x = GpuArray::from_array(&gpu, &host).unwrap();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (wanted, view) = (host.view().permuted_axes(order), x.view().permuted_axes(order).unwrap());
        for axis in (0..3).map(Axis) {
            assert_eq!(
                view.sum_axis(axis).unwrap().to_array().unwrap(),
                wanted.sum_axis(axis),
                "{order:?}, {axis:?}"
            );
        }
    }
}

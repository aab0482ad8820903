//! Sums and products, against `ndarray`. Values are small whole numbers, so that floats are exact in any order.

use crate::support::gpu;
use gpumem_array::ndarray::Ix2;
use gpumem_array::ndarray::{Array1, Array2, ArrayView2, Axis, Slice, s};
use gpumem_array::{ArrayError, Gpu, GpuArray, GpuView, Numeric};
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

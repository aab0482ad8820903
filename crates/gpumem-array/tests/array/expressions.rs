//! Expressions, against `ndarray`.

use crate::support::gpu;
use gpumem_array::ndarray::{Array1, Array2, Array3, Axis, Ix1, array, s};
use gpumem_array::{ArrayError, Expression, GpuArray, GpuView, Lazy, Real, update};

mod differential;

#[test]
fn floats_equal_ndarray() {
    differential::floats(&gpu());
}

#[test]
fn functions_are_near_ndarray() {
    differential::functions(&gpu());
}

#[test]
fn halves_equal_ndarray() {
    differential::halves(&gpu());
}

#[test]
fn integers_equal_ndarray() {
    differential::integers(&gpu());
}

#[test]
fn reductions_equal_ndarray() {
    differential::reductions(&gpu());
}

/// Large enough for several parts of an output, which a second kernel merges.
#[test]
fn parts_are_merged() {
    let gpu = gpu();
    for shape in [[1 << 17, 1, 1], [1 << 14, 5, 1], [3, 1 << 14, 2], [40, 50, 60]] {
        let host =
            Array3::from_shape_fn(shape, |(i, j, k)| ((i * 7919 + j * 104_729 + k * 31) % 1009) as i64 - 500);
        let x = GpuArray::from_array(&gpu, &host).unwrap();
        assert_eq!((x.lazy() * 3).sum().unwrap().into_scalar().unwrap(), host.sum() * 3);
        let first = |wanted: i64| host.iter().position(|value| *value == wanted).unwrap() as i64;
        assert_eq!(x.lazy().argmin().unwrap().into_scalar().unwrap(), first(*host.iter().min().unwrap()));
        assert_eq!(x.lazy().argmax().unwrap().into_scalar().unwrap(), first(*host.iter().max().unwrap()));
        let mean = x.lazy().cast::<f64>().mean().unwrap().into_scalar().unwrap();
        assert!((mean - host.sum() as f64 / host.len() as f64).abs() < 1e-9);
        for axis in 0..3 {
            let wanted = host.sum_axis(Axis(axis));
            assert_eq!(x.lazy().sum_axis(Axis(axis)).unwrap().to_array().unwrap(), wanted);
            assert_eq!(
                x.t().lazy().sum_axis(Axis(2 - axis)).unwrap().to_array().unwrap(),
                wanted.reversed_axes()
            );
        }
    }
}

/// The sum of all elements does not depend on where they are.
#[test]
fn the_order_of_a_sum_is_that_of_its_length() {
    let gpu = gpu();
    for len in [30, 1000, 70_000] {
        let host = Array1::from_shape_fn(len + 1, |i| (i as f32 * 0.37).sin() * 1e4);
        let x = GpuArray::from_array(&gpu, &host.slice(s![1..])).unwrap();
        let shifted = GpuArray::from_array(&gpu, &host).unwrap();
        let wide = Array2::from_shape_fn((len, 2), |(i, _)| host[i + 1]);
        let wide = GpuArray::from_array(&gpu, &wide).unwrap();
        let sum = |x: GpuView<'_, f32, Ix1>| x.lazy().sum().unwrap().into_scalar().unwrap().to_bits();
        let wanted = sum(x.view());
        assert_eq!(sum(shifted.slice(s![1..]).unwrap()), wanted);
        assert_eq!(sum(wide.slice(s![.., 1]).unwrap()), wanted);
    }
}

#[test]
fn truths_equal_ndarray() {
    differential::truths(&gpu());
}

#[test]
fn a_chain_is_one_kernel() {
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0]).unwrap();
    let y = GpuArray::from_slice(&gpu, &[10.0_f32, 20.0, 30.0]).unwrap();
    let before = gpu.pool().status().unwrap().in_use_bytes;
    let z = ((x.lazy() * 2.0 + &y) * 0.5 - &x).eval().unwrap();
    assert_eq!(z.to_vec().unwrap(), [5.0, 10.0, 15.0]);
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes - before, 12, "only the result");
}

#[test]
fn functions_of_expressions_fuse() {
    fn gelu<E: Expression<Elem = f32> + Copy>(x: Lazy<E>) -> Lazy<impl Expression<Elem = f32, Dim = E::Dim>>
    where
        E::Dim: gpumem_array::Broadcast<gpumem_array::NoAxes, Dim = E::Dim>
            + gpumem_array::Broadcast<E::Dim, Dim = E::Dim>,
    {
        x * ((-(x * 1.702)).exp() + 1.0).recip()
    }
    fn square_root<T: Real>(x: &GpuArray<T, Ix1>) -> GpuArray<T, Ix1> {
        (x.lazy() * T::ONE + T::ZERO).sqrt().eval().unwrap()
    }
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &[0.0_f32, 100.0]).unwrap();
    assert_eq!(gelu(x.lazy()).eval().unwrap().to_vec().unwrap(), [0.0, 100.0]);
    assert_eq!(square_root(&x).to_vec().unwrap(), [0.0, 10.0]);
}

#[test]
fn arrays_are_updated_in_one_kernel() {
    let gpu = gpu();
    let mut p = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0]).unwrap();
    let mut m = GpuArray::from_slice(&gpu, &[10.0_f32, 20.0]).unwrap();
    update((&mut p, &mut m), |(p, m)| (p - m * 0.5, m + p)).unwrap();
    assert_eq!(p.to_vec().unwrap(), [-4.0, -8.0]);
    assert_eq!(m.to_vec().unwrap(), [11.0, 22.0]);
    let mut table = GpuArray::<f32, _>::zeros(&gpu, (2, 4)).unwrap();
    table.slice_mut(s![.., ..;-2]).unwrap().assign_expr(p.lazy() + 1.0).unwrap();
    assert_eq!(table.to_array().unwrap(), array![[0.0, -7.0, 0.0, -3.0], [0.0, -7.0, 0.0, -3.0]]);
}

#[test]
fn an_axis_of_one_is_broadcast() {
    let gpu = gpu();
    let x = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.0], [3.0, 5.0], [0.0, 1.0]]).unwrap();
    let c = GpuArray::from_array(&gpu, &array![[0.0_f32, 1.0], [3.0, 4.0]]).unwrap();
    let apart = (x.lazy().insert_axis(Axis(1)) - c.lazy().insert_axis(Axis(0))).square().eval().unwrap();
    assert_eq!(apart.shape(), [3, 2, 2]);
    assert_eq!(apart.to_vec().unwrap(), [1.0, 1.0, 4.0, 4.0, 9.0, 16.0, 0.0, 1.0, 0.0, 0.0, 9.0, 9.0]);
}

#[test]
fn what_does_not_fit_is_refused_where_it_runs() {
    let gpu = gpu();
    let x = GpuArray::<f32, _>::zeros(&gpu, (3, 2)).unwrap();
    let c = GpuArray::<f32, _>::zeros(&gpu, (2, 2)).unwrap();
    let error = (x.lazy() + &c).eval().unwrap_err();
    assert_eq!(
        error.to_string(),
        "add: incompatible shapes [3, 2] and [2, 2]; from the last axis on, lengths must be equal or 1"
    );
    assert!(x.lazy().insert_axis(Axis(3)).eval().is_err());
    let mut small = GpuArray::<f32, _>::zeros(&gpu, 2).unwrap();
    assert!(matches!(small.assign_expr(x.lazy()), Err(ArrayError::Shape { operation: "assign_expr", .. })));
    let mut escaped = None;
    update((&mut small,), |(before,)| {
        escaped = Some(before);
        (before + 1.0,)
    })
    .unwrap();
    assert!(escaped.unwrap().eval().is_err());
    assert!((GpuArray::<f32, _>::zeros(&gpu, (0, 3)).unwrap().lazy() + 1.0).eval().unwrap().is_empty());
}

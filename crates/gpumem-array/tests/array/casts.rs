//! Conversions between floating-point types, and rows by index, compared with the host.

use core::fmt::Debug;
use gpumem_array::ndarray::{Array1, Array2, Array3, Axis, Ix1, Ix2, ShapeBuilder, s};
use gpumem_array::pool::{Device, Limit, Pool};
use gpumem_array::{ArrayError, Cast, Element, Gpu, GpuArray, PinnedArray, StagingOptions, UnifiedArray};
use gpumem_sim::{Sim, SimConfig};
use half::{bf16, f16};
use num_complex::Complex;

fn gpu() -> Gpu {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    Gpu::new(&Pool::from_env(&device).unwrap()).unwrap()
}

/// Every number that is special, and many others.
fn numbers() -> Vec<f64> {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        f64::INFINITY,
        f64::NEG_INFINITY,
        65_504.0,
        65_520.0,
        1e-8,
        5e-324,
        1e39,
        3.4e38,
    ];
    let others = (0..5000_u64).map(|i| {
        let bits = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        f64::from_bits((bits >> 12) | ((1023 - 20 + i % 40) << 52)) * if i % 3 == 0 { -1.0 } else { 1.0 }
    });
    special.into_iter().chain(others).collect()
}

fn pair<T: Cast<U> + PartialEq + Debug, U: Element + PartialEq + Debug>(gpu: &Gpu, of: impl Fn(f64) -> T) {
    let from: Array1<T> = numbers().into_iter().map(of).collect();
    let expected: Vec<U> = from.iter().map(|element| element.cast()).collect();
    let up = GpuArray::from_array(gpu, &from).unwrap();
    assert_eq!(up.cast::<U>().unwrap().to_vec().unwrap(), expected);
    // An odd start, so that neither side is aligned.
    assert_eq!(up.slice(s![1..]).unwrap().cast::<U>().unwrap().to_vec().unwrap(), expected[1..]);
    assert_eq!(
        up.slice(s![..;-3]).unwrap().cast::<U>().unwrap().to_vec().unwrap(),
        expected.iter().rev().step_by(3).copied().collect::<Vec<_>>()
    );
    let converted: GpuArray<U, Ix1> = GpuArray::from_array_cast(gpu, &from).unwrap();
    assert_eq!(converted.to_vec().unwrap(), expected);
    assert_eq!(up.view().to_array_cast::<U>().unwrap().to_vec(), expected);
    // Both sides of every threshold: packed, staged, converted on the device.
    for len in [0, 1, 4000, 20_000, 40_000, 300_000] {
        let from: Array1<T> = from.iter().copied().cycle().take(len).collect();
        let up: GpuArray<U, Ix1> = GpuArray::from_array_cast(gpu, &from).unwrap();
        let expected: Vec<U> = from.iter().map(|element| element.cast()).collect();
        assert_eq!(up.to_vec().unwrap(), expected, "{len}");
        let pinned: PinnedArray<U, Ix1> = GpuArray::from_array_cast(&gpu.pinned(), &from).unwrap();
        assert_eq!(pinned.as_slice().unwrap(), expected, "{len}");
    }
}

#[test]
fn every_pair_of_types() {
    let gpu = gpu();
    pair::<f64, f32>(&gpu, |x| x);
    pair::<f32, f64>(&gpu, |x| x as f32);
    pair::<f64, f16>(&gpu, |x| x);
    pair::<f64, bf16>(&gpu, |x| x);
    pair::<f32, f16>(&gpu, |x| x as f32);
    pair::<f32, bf16>(&gpu, |x| x as f32);
    pair::<f16, f32>(&gpu, f16::from_f64);
    pair::<f16, f64>(&gpu, f16::from_f64);
    pair::<f16, bf16>(&gpu, f16::from_f64);
    pair::<bf16, f32>(&gpu, bf16::from_f64);
    pair::<bf16, f64>(&gpu, bf16::from_f64);
    pair::<bf16, f16>(&gpu, bf16::from_f64);
    pair::<Complex<f64>, Complex<f32>>(&gpu, |x| Complex::new(x, -x));
    pair::<Complex<f32>, Complex<f64>>(&gpu, |x| Complex::new(x as f32, 1.0));
    let nan = GpuArray::from_slice(&gpu, &[f64::NAN; 3]).unwrap();
    assert!(nan.cast::<f32>().unwrap().to_vec().unwrap().iter().all(|x| x.is_nan()));
    assert!(nan.cast::<f16>().unwrap().to_vec().unwrap().iter().all(|x| x.is_nan()));
    assert!(nan.cast::<bf16>().unwrap().to_vec().unwrap().iter().all(|x| x.is_nan()));
    assert!(Sim::of(gpu.device().driver()).unwrap().report().findings.is_empty());
}

#[test]
fn shapes_and_orders_are_kept() {
    let gpu = gpu();
    let cube = Array3::from_shape_fn((3, 4, 5), |(i, j, k)| (100 * i + 10 * j + k) as f64);
    let single = cube.mapv(|x| x as f32);
    let column_major = Array2::from_shape_fn((30, 20).f(), |(i, j)| (i * 20 + j) as f64);
    let up = GpuArray::from_array(&gpu, &cube).unwrap();
    assert_eq!(up.cast::<f32>().unwrap().to_array().unwrap(), single);
    assert_eq!(up.t().cast::<f32>().unwrap().to_array().unwrap(), single.t());
    let slice = s![1.., ..;2, 1..;3];
    assert_eq!(up.slice(slice).unwrap().cast::<f32>().unwrap().to_array().unwrap(), single.slice(slice));
    for view in [cube.view(), cube.t(), cube.slice(s![..;-1, .., 1..3]), cube.slice(s![.., 0..0, ..])] {
        let up: GpuArray<f32, _> = GpuArray::from_array_cast(&gpu, &view).unwrap();
        assert_eq!(up.to_array().unwrap(), view.mapv(|x| x as f32));
    }
    let up: GpuArray<f32, Ix2> = GpuArray::from_array_cast(&gpu, &column_major).unwrap();
    assert_eq!((up.strides(), up.to_array().unwrap()), (vec![1, 30], column_major.mapv(|x| x as f32)));
    let unified: UnifiedArray<f64, Ix2> = up.view().cast_to(&gpu.unified()).unwrap();
    assert_eq!(unified.as_array().unwrap(), column_major);
    assert_eq!(up.view().to_array_cast::<f64>().unwrap(), column_major);
}

#[test]
fn elements_cross_a_link_in_the_smaller_type() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2)).unwrap();
    let gpu = |ordinal| Gpu::new(&Pool::from_env(&Device::new(&driver, ordinal).unwrap()).unwrap()).unwrap();
    let (first, second) = (gpu(0), gpu(1));
    let values: Vec<f64> = (0..1000).map(f64::from).collect();
    let up = GpuArray::from_slice(&first, &values).unwrap();
    let there = up.view().cast_to::<f32, _>(&second).unwrap();
    assert_eq!((there.gpu().device(), there.to_vec().unwrap().len()), (second.device(), 1000));
    let back = there.view().cast_to::<f64, _>(&first.unified()).unwrap();
    assert_eq!(back.as_slice().unwrap(), values);
}

/// The memory of both types does not fit, and that of the result does.
#[test]
fn without_room_for_both_types_the_host_converts() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let pool = Pool::builder(&device).hard_limit(Limit::Bytes(16 << 20)).build().unwrap();
    let gpu = Gpu::new(&pool).unwrap();
    let halves = Array1::from_elem(7 << 20 >> 1, f16::from_f32(0.5));
    let up: GpuArray<f32, Ix1> = GpuArray::from_array_cast(&gpu, &halves).unwrap();
    assert!(up.to_vec().unwrap().iter().all(|x| *x == 0.5));
    let doubled = GpuArray::<f64, Ix1>::from_array_cast(&gpu, &halves).unwrap_err();
    assert!(doubled.is_out_of_memory(), "{doubled}");
}

#[test]
fn without_pinned_memory_the_driver_copies() {
    let gpu = gpu();
    gpu.set_staging(StagingOptions::new().buffers(0));
    let values: Array1<f64> = (0..200_001).map(f64::from).collect();
    let up: GpuArray<f32, Ix1> = GpuArray::from_array_cast(&gpu, &values).unwrap();
    assert_eq!(up.to_vec().unwrap(), values.iter().map(|x| *x as f32).collect::<Vec<_>>());
}

#[test]
fn rows_by_index() {
    let gpu = gpu();
    let cube = Array3::from_shape_fn((3, 4, 5), |(i, j, k)| (100 * i + 10 * j + k) as i16);
    let up = GpuArray::from_array(&gpu, &cube).unwrap();
    for axis in 0..3 {
        for indices in [vec![], vec![2], vec![2, 0, 1], vec![1, 1, 1, 0, 2, 2]] {
            let selected = up.select(Axis(axis), &indices).unwrap();
            assert_eq!(selected.to_array().unwrap(), cube.select(Axis(axis), &indices));
            let selected = up.t().select(Axis(axis), &indices).unwrap();
            assert_eq!(selected.to_array().unwrap(), cube.t().select(Axis(axis), &indices));
        }
        assert!(matches!(up.select(Axis(axis), &[0, 5]), Err(ArrayError::Slice { .. })));
    }
    assert!(matches!(up.select(Axis(3), &[]), Err(ArrayError::Slice { .. })));
    let bytes = GpuArray::from_array(&gpu, &Array2::from_elem((1, 2), [1_u8, 2, 3])).unwrap();
    assert_eq!(bytes.select(Axis(1), &[1]).unwrap().to_vec().unwrap(), [[1, 2, 3]]);
}

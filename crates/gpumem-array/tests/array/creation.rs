//! Constructors of regular arrays.

use crate::support::gpu;
use gpumem_array::ndarray::{Array, Array1, Array2, s};
use gpumem_array::{ArrayError, Element, Gpu, GpuArray};

#[test]
fn regular_arrays_are_those_of_ndarray() {
    let gpu = gpu();
    assert_eq!(
        GpuArray::<i64, _>::ones(&gpu, (2, 3)).unwrap().to_array().unwrap(),
        Array2::<i64>::ones((2, 3))
    );
    for size in [0, 1, 5, 40] {
        assert_eq!(
            GpuArray::<f32, _>::eye(&gpu, size).unwrap().to_array().unwrap(),
            Array2::<f32>::eye(size)
        );
    }
    for len in [0, 1, 2, 100] {
        let ours = GpuArray::linspace(&gpu, -1.0_f64, 2.5, len).unwrap();
        assert_eq!(ours.to_array().unwrap(), Array1::linspace(-1.0, 2.5, len));
    }
    for (start, end, step) in [(0.0, 1.0, 0.1), (1.0, 0.0, -0.3), (0.0, 1.0, 2.0)] {
        let ours = GpuArray::arange(&gpu, start, end, step).unwrap();
        assert_eq!(ours.to_array().unwrap(), Array1::range(start, end, step));
    }
    let function = |(i, j, k)| (i + 2 * j) as f32 / (1 + k) as f32;
    let ours = GpuArray::from_fn(&gpu.unified(), (2, 3, 4), function).unwrap();
    assert_eq!(ours.as_array().unwrap(), Array::from_shape_fn((2, 3, 4), function));
}

#[test]
fn ranges_of_integers_end_before_their_end() {
    let gpu = gpu();
    let range =
        |start, end, step| GpuArray::<i32, _>::arange(&gpu, start, end, step).unwrap().to_vec().unwrap();
    assert_eq!(range(0, 7, 3), [0, 3, 6]);
    assert_eq!(range(0, 6, 3), [0, 3]);
    assert_eq!(range(2, -3, -2), [2, 0, -2]);
    assert_eq!(range(i32::MIN, i32::MAX, i32::MAX), [i32::MIN, -1, i32::MAX - 1]);
    for (start, end, step) in [(0, 5, 0), (0, 5, -1), (5, 0, 1), (3, 3, 1)] {
        assert_eq!(range(start, end, step), []);
    }
    let empty = |step| GpuArray::arange(&gpu, 0.0_f32, 1.0, step).unwrap().len();
    assert_eq!([empty(0.0), empty(-0.0), empty(f32::NAN), empty(-1.0)], [0; 4]);
    let endless = GpuArray::arange(&gpu, 0.0_f64, f64::INFINITY, 1.0).unwrap_err();
    assert!(matches!(endless, ArrayError::TooManyElements { .. } | ArrayError::Pool(_)), "{endless}");
}

/// Elements of any size, in arrays and in views that begin anywhere.
fn filled<T: Element + PartialEq + core::fmt::Debug>(gpu: &Gpu, old: T, value: T) {
    for len in [1, 2, 5, 16, 341, 1000] {
        let array = GpuArray::from_elem(gpu, len, value).unwrap();
        assert_eq!(array.to_vec().unwrap(), vec![value; len]);
    }
    let mut array = GpuArray::from_slice(gpu, &[old; 60]).unwrap();
    let mut expected = vec![old; 60];
    for begin in [1, 2, 7, 20] {
        array.slice_mut(s![begin..begin + 5]).unwrap().fill(value).unwrap();
        expected[begin..begin + 5].fill(value);
        assert_eq!(array.to_vec().unwrap(), expected);
    }
    array.slice_mut(s![29..;3]).unwrap().fill(value).unwrap();
    expected[29..].iter_mut().step_by(3).for_each(|element| *element = value);
    assert_eq!(array.to_vec().unwrap(), expected);
}

#[test]
fn elements_of_any_size_are_filled() {
    let gpu = gpu();
    filled(&gpu, [0_u8; 3], [1, 2, 3]);
    filled(&gpu, [0_u16; 3], [1, 2, 300]);
    filled(&gpu, [0.0_f32; 3], [1.0, 2.0, 3.0]);
    filled(&gpu, [0_u8; 5], [1, 2, 3, 4, 5]);
    filled(&gpu, [0_u64; 3], [1, 2, 3]);
    filled(&gpu, [0_u64; 4], [1, 2, 3, 4]);
    filled(&gpu, [0_u8; 67], core::array::from_fn(|i| i as u8));
    filled(&gpu, [0_u32; 65], core::array::from_fn(|i| i as u32));
    filled(&gpu, [0_u32; 256], core::array::from_fn(|i| i as u32));
    filled(&gpu, [0_u32; 300], core::array::from_fn(|i| i as u32)); // uploaded
}

/// No element is uploaded, so nothing waits, and a capture accepts it.
#[test]
fn a_fill_of_an_odd_size_can_be_captured() {
    let gpu = gpu();
    let mut points = GpuArray::<[f32; 3], _>::zeros(&gpu, 4).unwrap();
    let (mut graph, ()) = gpu
        .capture(|c| {
            points.on_mut(c).slice_mut(s![..;2])?.fill([1.0, 2.0, 3.0])?;
            points.on_mut(c).slice_mut(s![3..])?.fill([4.0, 5.0, 6.0])
        })
        .unwrap();
    graph.launch(&gpu).write(&mut points).run().unwrap();
    let expected = [[1.0, 2.0, 3.0], [0.0; 3], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
    assert_eq!(points.to_vec().unwrap(), expected);
}

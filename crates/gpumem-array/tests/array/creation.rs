//! Constructors of regular arrays.

use crate::support::gpu;
use gpumem_array::ndarray::{Array, Array2, s};
use gpumem_array::{Element, Gpu, GpuArray};

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
    let function = |(i, j, k)| (i + 2 * j) as f32 / (1 + k) as f32;
    let ours = GpuArray::from_fn(&gpu.unified(), (2, 3, 4), function).unwrap();
    assert_eq!(ours.as_array().unwrap(), Array::from_shape_fn((2, 3, 4), function));
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

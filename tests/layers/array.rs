//! Arrays end to end on both drivers: round trips, views, and tracking across streams and threads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_adapt::array::ndarray::{Array2, Array3, Axis, Ix1, Slice, arr2};
use gpumem_adapt::array::pool::sys::Driver;
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray};
use gpumem_tests::cases;

fn gpu(driver: &Driver) -> Gpu {
    let device = Device::new(driver, 0).unwrap();
    Gpu::new(&Pool::from_env(&device).unwrap()).unwrap()
}

cases! {
    /// An upload and a download return equal elements, for any shape, order and size.
    fn round_trips(driver: &Driver) {
        let gpu = gpu(driver);
        let cube = Array3::from_shape_fn((3, 4, 5), |(i, j, k)| (i * 100 + j * 10 + k) as f64);
        assert_eq!(GpuArray::from_array(&gpu, &cube).unwrap().to_array().unwrap(), cube);
        let turned = cube.view().reversed_axes();
        assert_eq!(GpuArray::from_array(&gpu, &turned).unwrap().to_array().unwrap(), turned);
        let empty: [i32; 0] = [];
        assert_eq!(GpuArray::from_slice(&gpu, &empty).unwrap().to_vec().unwrap(), empty);
        let large: Vec<u32> = (0..10_000_000).collect();
        assert_eq!(GpuArray::from_slice(&gpu, &large).unwrap().to_vec().unwrap(), large);
        assert_eq!(GpuArray::from_slice(&gpu, &[true, false]).unwrap().to_vec().unwrap(), [true, false]);
    }

    /// Rows of a matrix are views: nothing is copied, and a write through a view changes the matrix.
    fn views(driver: &Driver) {
        let gpu = gpu(driver);
        let host = Array2::from_shape_fn((6, 3), |(i, j)| (i * 3 + j) as f32);
        let mut matrix = GpuArray::from_array(&gpu, &host).unwrap();
        let middle = matrix.slice_axis(Axis(0), Slice::from(2..4)).unwrap();
        assert_eq!(middle.to_array().unwrap(), arr2(&[[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]]));
        let ones = GpuArray::from_elem(&gpu, (2, 3), 1.0f32).unwrap();
        matrix.slice_axis_mut(Axis(0), Slice::from(2..4)).unwrap().assign(&ones).unwrap();
        let mut expected = host;
        expected.slice_axis_mut(Axis(0), Slice::from(2..4)).fill(1.0);
        assert_eq!(matrix.to_array().unwrap(), expected);
    }

    /// An array written on one stream and read on another needs no explicit wait; its drop needs none either.
    fn two_streams(driver: &Driver) {
        let first = gpu(driver);
        let second = first.fork().unwrap();
        let mut x = GpuArray::<f32, Ix1>::zeros(&first, 1 << 20).unwrap();
        for round in 0..20 {
            x += 1.0;
            let doubled = x.on(&second) * 2.0;
            x += 1.0;
            drop(x.try_clone().unwrap());
            let expected = (round * 2 + 1) as f32 * 2.0;
            assert!(doubled.to_vec().unwrap().iter().all(|&value| value == expected), "round {round}");
        }
    }

    /// Arrays move between threads, each with a stream of its own.
    fn threads(driver: &Driver) {
        let gpu = gpu(driver);
        let shared = GpuArray::from_elem(&gpu, 100_000, 3.0f64).unwrap();
        let sums: Vec<f64> = std::thread::scope(|scope| {
            let run = |i: usize| {
                let (gpu, shared) = (gpu.fork().unwrap(), &shared);
                scope.spawn(move || (shared.on(&gpu) * i as f64).sum().unwrap().into_scalar().unwrap())
            };
            let threads: Vec<_> = (0..4).map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(sums, [0.0, 300_000.0, 600_000.0, 900_000.0]);
    }

    /// Shapes that do not fit and sizes that overflow are errors.
    fn bad_shapes(driver: &Driver) {
        let gpu = gpu(driver);
        let a = GpuArray::<f32, _>::zeros(&gpu, 3).unwrap();
        let b = GpuArray::<f32, _>::zeros(&gpu, 4).unwrap();
        assert!(matches!(a.try_add(&b), Err(ArrayError::Shape { .. })));
        let m = GpuArray::<f32, _>::zeros(&gpu, (2, 4)).unwrap();
        assert!(matches!(m.dot(&a), Err(ArrayError::Shape { .. })));
        assert!(GpuArray::<f64, _>::zeros(&gpu, (usize::MAX / 2, 3)).is_err());
        assert!(a.slice_axis(Axis(1), Slice::from(..)).is_err());
        assert!(a.slice_axis(Axis(0), Slice::from(2..9)).is_err());
    }
}

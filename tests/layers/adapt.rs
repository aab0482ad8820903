//! Whole values moved to the device and back, on both drivers.

use gpumem_adapt::array::kind::DeviceLocal;
use gpumem_adapt::array::ndarray::{Array2, Ix1, Ix2, ShapeBuilder, arr1, arr2};
use gpumem_adapt::array::pool::{self, Pool};
use gpumem_adapt::array::{Gpu, GpuArray};
use gpumem_adapt::{Adapt, Destination, Diagonal, Host, HostVec, Storage, cu};
use gpumem_tests::cases;
use std::sync::Arc;

#[derive(Adapt)]
struct Layer<S: Storage> {
    weight: S::Array<f32, Ix2>,
    bias: Arc<S::Array<f64, Ix1>>,
    scale: f32,
}

/// Layers of different shapes, in row-major and column-major order, that share a bias.
fn layers() -> Vec<Layer<Host>> {
    let bias = Arc::new(arr1(&[0.5, 1.5]));
    let weight = |index: usize| {
        let shape = (index % 7 + 1, index % 300 + 1).set_f(index.is_multiple_of(3));
        Array2::from_shape_fn(shape, |(i, j)| (1000 * index + 10 * i + j) as f32)
    };
    let layer = |index| Layer { weight: weight(index), bias: bias.clone(), scale: index as f32 };
    (0..700).map(layer).collect()
}

cases! {
    /// Small arrays are uploaded together, a shared one once, and what is there already is not copied.
    fn a_model_goes_there_and_back(driver: &Driver) {
        let device = pool::Device::new(driver, 0).unwrap();
        let gpu = Gpu::new(&Pool::from_env(&device).unwrap()).unwrap();
        let (host, is_row_major) = (layers(), |layer: &Layer<Host>| layer.weight.is_standard_layout());
        let one_by_one = Destination::new(&gpu).packed_below(0);
        for there in [host.adapt(&gpu).unwrap(), host.adapt(&one_by_one).unwrap()] {
            let there: Vec<Layer<DeviceLocal>> = there;
            let address = there[9].weight.address();
            let moved = there.into_adapted(&gpu).unwrap();
            assert_eq!(moved[9].weight.address(), address);
            assert!(moved.iter().all(|layer| Arc::ptr_eq(&layer.bias, &moved[0].bias)));
            let sum = moved[1].weight.sum().unwrap().into_scalar().unwrap();
            assert_eq!(sum, host[1].weight.sum());
            let back: Vec<Layer<Host>> = moved.into_adapted(&Host).unwrap();
            for (found, expected) in back.iter().zip(&host) {
                assert_eq!((&found.weight, &found.bias, found.scale), (&expected.weight, &expected.bias, expected.scale));
                assert_eq!(is_row_major(found), is_row_major(expected));
            }
        }
        assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
        let single: GpuArray<f32, Ix1> = cu(&*host[0].bias).on(&gpu).unwrap();
        assert_eq!(single.to_vec().unwrap(), [0.5, 1.5]);
    }

    /// A wrapper moves with its contents, and its host and device values print the same matrix.
    fn a_diagonal_keeps_its_type(driver: &Driver) {
        let device = pool::Device::new(driver, 0).unwrap();
        let gpu = Gpu::new(&Pool::from_env(&device).unwrap()).unwrap();
        let host = Diagonal::new(vec![1.0f32, 2.0]);
        let there: Diagonal<GpuArray<f32, Ix1>> = host.adapt(&gpu).unwrap();
        let printed = there.to_string();
        assert!(printed.starts_with("2×2 Diagonal<GpuArray<f32, Ix1>>:"), "{printed}");
        assert_eq!(printed.lines().skip(1).collect::<Vec<_>>(), [" 1.0   ⋅", "  ⋅   2.0"]);
        let back: Diagonal<Vec<f32>> = there.adapt(&HostVec).unwrap();
        assert_eq!(back, host);
    }

    /// Tuples and options adapt part by part.
    fn tuples_and_options(driver: &Driver) {
        let device = pool::Device::new(driver, 0).unwrap();
        let gpu = Gpu::new(&Pool::from_env(&device).unwrap()).unwrap();
        let host = (arr2(&[[1.0f64, 2.0], [3.0, 4.0]]), Some(vec![1i32, 2, 3]), None::<Vec<f32>>);
        let there = host.adapt(&gpu).unwrap();
        let (matrix, some, none) = there.adapt(&Host).unwrap();
        assert_eq!((matrix, some, none), (host.0, Some(arr1(&[1, 2, 3])), None));
    }
}

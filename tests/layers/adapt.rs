//! Whole values moved to the device and back, on both drivers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_adapt::array::ndarray::{Ix1, arr1, arr2};
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{Gpu, GpuArray};
use gpumem_adapt::{Adapt, Diagonal, Host, HostVec};
use gpumem_tests::cases;

cases! {
    /// A wrapper moves with its contents, and its host and device values print the same matrix.
    fn a_diagonal_keeps_its_type(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
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
        let device = Device::new(driver, 0).unwrap();
        let gpu = Gpu::new(&Pool::from_env(&device).unwrap()).unwrap();
        let host = (arr2(&[[1.0f64, 2.0], [3.0, 4.0]]), Some(vec![1i32, 2, 3]), None::<Vec<f32>>);
        let there = host.adapt(&gpu).unwrap();
        let (matrix, some, none) = there.adapt(&Host).unwrap();
        assert_eq!((matrix, some, none), (host.0, Some(arr1(&[1, 2, 3])), None));
    }
}

//! Every kernel of this crate against its Rust twin on the simulator, and both against arithmetic on the host.
//!
//! On a GPU this compares PTX and twins; on the simulator it compares the twins with the host.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_adapt::array::ndarray::{Array1, Array2, Axis, Ix1, Slice};
use gpumem_adapt::array::pool::sys::Driver;
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{Gpu, GpuArray, Numeric};
use gpumem_sim::SimConfig;
use gpumem_tests::cases;
use std::fmt::Debug;

/// Lengths around warps, blocks and the point where reductions need two launches.
const LENGTHS: &[usize] = &[0, 1, 2, 31, 32, 33, 255, 257, 1000, 4096, 65_537, 1_000_003];

fn gpu(driver: &Driver) -> Gpu {
    let device = Device::new(driver, 0).unwrap();
    Gpu::new(&Pool::from_env(&device).unwrap()).unwrap()
}

/// The driver under test and a simulator beside it.
fn both(driver: &Driver) -> [Gpu; 2] {
    [gpu(driver), gpu(&gpumem_sim::driver(SimConfig::new()).unwrap())]
}

/// Small values that are exact in every type, never zero, of both signs.
fn values(len: usize, salt: u64) -> impl Iterator<Item = i32> {
    let mut state = salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = (state >> 33) as i32 % 17 - 8;
        if value == 0 { 9 } else { value }
    })
}

trait Sample: Numeric + Debug + PartialEq + From<i8> {
    fn from_small(value: i32) -> Self {
        Self::from(value as i8)
    }
}
impl Sample for f32 {}
impl Sample for f64 {}
impl Sample for i32 {}
impl Sample for i64 {}

fn array<T: Sample>(gpu: &Gpu, len: usize, salt: u64) -> (GpuArray<T, Ix1>, Vec<T>) {
    let host: Vec<T> = values(len, salt).map(T::from_small).collect();
    (GpuArray::from_slice(gpu, &host).unwrap(), host)
}

macro_rules! elementwise {
    ($name:ident, $kind:ty) => {
        fn $name(driver: &Driver) {
            for gpu in &both(driver) {
                for &len in LENGTHS {
                    let (a, host_a) = array::<$kind>(gpu, len, 1);
                    let (b, host_b) = array::<$kind>(gpu, len, 2);
                    let (one, host_one) = array::<$kind>(gpu, 1, 3);
                    let scalar = <$kind as Sample>::from_small(-3);
                    let zip = |f: fn($kind, $kind) -> $kind| -> Vec<$kind> {
                        host_a.iter().zip(&host_b).map(|(a, b)| f(*a, *b)).collect()
                    };
                    let each =
                        |f: &dyn Fn($kind) -> $kind| -> Vec<$kind> { host_a.iter().map(|a| f(*a)).collect() };
                    assert_eq!((&a + &b).to_vec().unwrap(), zip(|a, b| a + b), "{len}");
                    assert_eq!((&a - &b).to_vec().unwrap(), zip(|a, b| a - b), "{len}");
                    assert_eq!((&a * &b).to_vec().unwrap(), zip(|a, b| a * b), "{len}");
                    assert_eq!((&a / &b).to_vec().unwrap(), zip(|a, b| a / b), "{len}");
                    assert_eq!((&a - &one).to_vec().unwrap(), each(&|a| a - host_one[0]), "{len}");
                    assert_eq!((&a + scalar).to_vec().unwrap(), each(&|a| a + scalar), "{len}");
                    assert_eq!((&a - scalar).to_vec().unwrap(), each(&|a| a - scalar), "{len}");
                    assert_eq!((&a * scalar).to_vec().unwrap(), each(&|a| a * scalar), "{len}");
                    assert_eq!((&a / scalar).to_vec().unwrap(), each(&|a| a / scalar), "{len}");
                    let mut c = a.try_clone().unwrap();
                    c += &b;
                    c *= scalar;
                    let expected: Vec<$kind> = zip(|a, b| a + b).into_iter().map(|c| c * scalar).collect();
                    assert_eq!(c.to_vec().unwrap(), expected, "{len}");
                }
            }
        }
    };
}

macro_rules! products {
    ($name:ident, $kind:ty) => {
        fn $name(driver: &Driver) {
            for gpu in &both(driver) {
                for (rows, columns) in [
                    (0, 3),
                    (3, 0),
                    (1, 1),
                    (7, 5),
                    (33, 64),
                    (64, 33),
                    (2048, 1000),
                    (5, 4097),
                    (3, 60_001),
                    (20_011, 6),
                ] {
                    let host: Vec<$kind> =
                        values(rows * columns, 4).map(<$kind as Sample>::from_small).collect();
                    let host = Array2::from_shape_vec((rows, columns), host).unwrap();
                    let matrix = GpuArray::from_array(gpu, &host).unwrap();
                    let (right, host_right) = array::<$kind>(gpu, columns, 5);
                    let (left, host_left) = array::<$kind>(gpu, rows, 6);
                    // The values are small integers, so every order of summing gives the same bits.
                    let expected = host.dot(&Array1::from(host_right)).to_vec();
                    assert_eq!(matrix.dot(&right).unwrap().to_vec().unwrap(), expected, "{rows}x{columns}");
                    let expected = host.t().dot(&Array1::from(host_left)).to_vec();
                    assert_eq!(
                        matrix.t().dot(&left).unwrap().to_vec().unwrap(),
                        expected,
                        "{rows}x{columns}"
                    );
                }
            }
        }
    };
}

macro_rules! reductions {
    ($name:ident, $kind:ty) => {
        fn $name(driver: &Driver) {
            for gpu in &both(driver) {
                for &len in LENGTHS {
                    let (a, host_a) = array::<$kind>(gpu, len, 7);
                    let (b, host_b) = array::<$kind>(gpu, len, 8);
                    let sum: $kind = host_a.iter().sum();
                    let dot: $kind = host_a.iter().zip(&host_b).map(|(a, b)| a * b).sum();
                    assert_eq!(a.sum().unwrap().into_scalar().unwrap(), sum, "{len}");
                    assert_eq!(a.dot(&b).unwrap().into_scalar().unwrap(), dot, "{len}");
                }
            }
        }
    };
}

elementwise!(elementwise_of_f32, f32);
elementwise!(elementwise_of_f64, f64);
elementwise!(elementwise_of_i32, i32);
elementwise!(elementwise_of_i64, i64);
products!(products_of_f32, f32);
products!(products_of_f64, f64);
reductions!(reductions_of_f32, f32);
reductions!(reductions_of_f64, f64);
reductions!(reductions_of_i32, i32);
reductions!(reductions_of_i64, i64);

cases! {
    fn elementwise_f32(driver: &Driver) { elementwise_of_f32(driver) }
    fn elementwise_f64(driver: &Driver) { elementwise_of_f64(driver) }
    fn elementwise_i32(driver: &Driver) { elementwise_of_i32(driver) }
    fn elementwise_i64(driver: &Driver) { elementwise_of_i64(driver) }
    fn products_f32(driver: &Driver) { products_of_f32(driver) }
    fn products_f64(driver: &Driver) { products_of_f64(driver) }
    fn reductions_f32(driver: &Driver) { reductions_of_f32(driver) }
    fn reductions_f64(driver: &Driver) { reductions_of_f64(driver) }
    fn reductions_i32(driver: &Driver) { reductions_of_i32(driver) }
    fn reductions_i64(driver: &Driver) { reductions_of_i64(driver) }

    /// Sums of values that are not exact are within rounding of the sum in double precision, and equal on every run.
    fn sums_that_round(driver: &Driver) {
        let host: Vec<f32> = values(1_000_003, 9).map(|value| value as f32 * 0.1).collect();
        let exact: f64 = host.iter().map(|&value| f64::from(value)).sum();
        let size: f64 = host.iter().map(|&value| f64::from(value.abs())).sum();
        for gpu in &both(driver) {
            let array = GpuArray::from_slice(gpu, &host).unwrap();
            let sum = array.sum().unwrap().into_scalar().unwrap();
            assert!((f64::from(sum) - exact).abs() < size * 1e-6, "{sum} for {exact}");
            assert_eq!(array.sum().unwrap().into_scalar().unwrap().to_bits(), sum.to_bits());
        }
    }

    /// Filling writes every element, of every width, and nothing else.
    fn fills(driver: &Driver) {
        for gpu in &both(driver) {
            for &len in LENGTHS {
                let mut wide = GpuArray::<u64, Ix1>::zeros(gpu, len + 2).unwrap();
                wide.slice_axis_mut(Axis(0), Slice::from(1..len + 1)).unwrap().fill(u64::MAX - 5).unwrap();
                let got = wide.to_vec().unwrap();
                assert!(got[1..=len].iter().all(|&value| value == u64::MAX - 5));
                assert_eq!((got[0], got[len + 1]), (0, 0));
                assert_eq!(GpuArray::from_elem(gpu, len, 77u8).unwrap().to_vec().unwrap(), vec![77u8; len]);
                assert_eq!(GpuArray::from_elem(gpu, len, -7i16).unwrap().to_vec().unwrap(), vec![-7i16; len]);
                assert_eq!(GpuArray::from_elem(gpu, len, 1.5f32).unwrap().to_vec().unwrap(), vec![1.5f32; len]);
                assert_eq!(GpuArray::from_elem(gpu, len, true).unwrap().to_vec().unwrap(), vec![true; len]);
            }
        }
    }

    /// Integer division by zero gives zero on both drivers.
    fn division_by_zero(driver: &Driver) {
        for gpu in &both(driver) {
            let a = GpuArray::from_slice(gpu, &[5i32, -5, i32::MIN]).unwrap();
            let b = GpuArray::from_slice(gpu, &[0i32, 0, -1]).unwrap();
            assert_eq!((&a / &b).to_vec().unwrap(), [0, 0, i32::MIN]);
            assert_eq!((&a / 0).to_vec().unwrap(), [0, 0, 0]);
        }
    }
}

//! Every kernel of `gpumem-array` against arithmetic on the host: on the simulator, and on a GPU and the simulator beside it.

use gpumem_adapt::Csr;
use gpumem_adapt::array::bytemuck;
use gpumem_adapt::array::ndarray::{
    Array1, Array2, Array3, ArrayView2, Axis, Ix1, Ix2, LinalgScalar, Slice, s,
};
use gpumem_adapt::array::pool::sys::types::{CUfunction, CUmodule, CUresult};
use gpumem_adapt::array::pool::sys::{Driver, DriverKind, Table};
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{ArrayError, Cast, Cublas, Element, Factor, Gpu, GpuArray, Indices, Numeric, Rng};
use gpumem_sim::SimConfig;
use gpumem_tests::cases;
use gpumem_tests::harness::cases::skip;
use gpumem_tests::harness::is_thorough;
use half::{bf16, f16};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::fmt::Debug;
use std::sync::{Mutex, OnceLock};

/// Lengths around warps, blocks and the point where reductions need two launches; on a GPU also one that fills it.
fn lengths(gpu: &Gpu) -> &'static [usize] {
    const LENGTHS: &[usize] = &[0, 1, 2, 31, 32, 33, 255, 257, 1000, 4096, 65_537, 1_000_003];
    match gpu.device().driver().kind() {
        DriverKind::Sim => &LENGTHS[..LENGTHS.len() - 1],
        _ => LENGTHS,
    }
}

fn gpu(driver: &Driver) -> Gpu {
    let device = Device::new(driver, 0).unwrap();
    Gpu::new(&Pool::from_env(&device).unwrap()).unwrap()
}

/// The driver under test, and a simulator beside a GPU.
fn both(driver: &Driver) -> Vec<Gpu> {
    let beside =
        (driver.kind() != DriverKind::Sim).then(|| gpu(&gpumem_sim::driver(SimConfig::new()).unwrap()));
    std::iter::once(gpu(driver)).chain(beside).collect()
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
                for &len in lengths(gpu) {
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
                    assert_eq!((scalar - &a).to_vec().unwrap(), each(&|a| scalar - a), "{len}");
                    assert_eq!((scalar / &a).to_vec().unwrap(), each(&|a| scalar / a), "{len}");
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
                for &len in lengths(gpu) {
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

/// The words of 32 bits that Philox4x32-10 gives on the host.
fn philox(seed: u64, stream: u64, len: usize) -> Vec<u32> {
    let halves = |number: u64| [number as u32, (number >> 32) as u32];
    let mut words = Vec::new();
    for block in 0..len.div_ceil(4) as u64 {
        let ([mut a, mut b], [mut c, mut d], [mut k, mut l]) = (halves(block), halves(stream), halves(seed));
        for _ in 0..10 {
            let [[p, high_p], [q, high_q]] =
                [u64::from(a) * 0xD251_1F53, u64::from(c) * 0xCD9E_8D57].map(halves);
            [a, b, c, d] = [high_q ^ b ^ k, q, high_p ^ d ^ l, p];
            (k, l) = (k.wrapping_add(0x9E37_79B9), l.wrapping_add(0xBB67_AE85));
        }
        words.extend([a, b, c, d]);
    }
    words.truncate(len);
    words
}

/// The formula of Box and Muller.
fn box_muller(uniform: f64, turns: f64) -> [f64; 2] {
    let (sin, cos) = (turns * std::f64::consts::TAU).sin_cos();
    let radius = (-2.0 * uniform.ln()).sqrt();
    [radius * cos, radius * sin]
}

/// Copies a cube with its axes in every order, and with steps.
fn permuted<T: Element + PartialEq + Debug>(gpu: &Gpu, element: impl Fn(usize) -> T) {
    let mut next = 0;
    let cube = Array3::from_shape_simple_fn((37, 34, 65), || {
        next += 1;
        element(next)
    });
    let array = GpuArray::from_array(gpu, &cube).unwrap();
    for axes in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let copied = array.view().permuted_axes(axes).unwrap().to_owned().unwrap();
        assert_eq!(copied.to_array().unwrap(), cube.view().permuted_axes(axes), "{axes:?}");
    }
    let copied = array.slice(s![..;3, 1.., ..;-2]).unwrap().to_owned().unwrap();
    assert_eq!(copied.to_array().unwrap(), cube.slice(s![..;3, 1.., ..;-2]));
    let (mut target, mut expected) = (array, cube);
    target.slice_mut(s![..;2, ..;3, 1..;5]).unwrap().fill(element(7)).unwrap();
    expected.slice_mut(s![..;2, ..;3, 1..;5]).fill(element(7));
    assert_eq!(target.to_array().unwrap(), expected);
}

/// Fills with a value of an odd size, all of an array and all but its ends.
fn patterns_of<T: Element + PartialEq + Debug>(gpu: &Gpu, value: T) {
    for &len in lengths(gpu).iter().filter(|len| **len <= 1 << 17) {
        let filled = GpuArray::from_elem(gpu, len, value).unwrap().to_vec().unwrap();
        assert!(filled.len() == len && filled.iter().all(|found| *found == value), "{value:?} {len}");
        let mut wide = GpuArray::<T, Ix1>::zeros(gpu, len + 2).unwrap();
        wide.slice_axis_mut(Axis(0), Slice::from(1..len + 1)).unwrap().fill(value).unwrap();
        let found = wide.to_vec().unwrap();
        assert!(found[1..=len].iter().all(|found| *found == value), "{value:?} {len}");
        assert_eq!((found[0], found[len + 1]), (T::zeroed(), T::zeroed()), "{len}");
    }
}

/// Converts elements on the device, from two starts, and compares them with the host. NaN equals NaN.
fn cast_of<T: Cast<U>, U: Element + Debug + PartialOrd>(gpu: &Gpu, elements: &[T]) {
    let up = GpuArray::from_slice(gpu, elements).unwrap();
    for start in [0, 1] {
        let found = up.slice_axis(Axis(0), (start..).into()).unwrap().cast::<U>().unwrap().to_vec().unwrap();
        for (found, element) in found.into_iter().zip(&elements[start..]) {
            let expected = Cast::<U>::cast(*element);
            let are_nan = [&found, &expected].iter().all(|value| value.partial_cmp(value).is_none());
            // Tells zeros of both signs apart.
            let are_equal = bytemuck::bytes_of(&found) == bytemuck::bytes_of(&expected);
            assert!(are_equal || are_nan, "{found:?} {expected:?}");
        }
    }
}

elementwise!(elementwise_of_f32, f32);
elementwise!(elementwise_of_f64, f64);
elementwise!(elementwise_of_i32, i32);
elementwise!(elementwise_of_i64, i64);
products!(products_of_f32, f32);
products!(products_of_f64, f64);
products!(products_of_i32, i32);
products!(products_of_i64, i64);
reductions!(reductions_of_f32, f32);
reductions!(reductions_of_f64, f64);
reductions!(reductions_of_i32, i32);
reductions!(reductions_of_i64, i64);

fn transposed<T: Element + Debug + PartialEq>(gpu: &Gpu, element: impl Fn(usize) -> T) {
    // The simulator takes seconds for the others.
    let is_whole = is_thorough() || gpu.device().driver().kind() == DriverKind::Cuda;
    let sizes: &[(usize, usize)] = &[(129, 257), (128, 256), (300, 517), (1027, 260)];
    for &(rows, columns) in if is_whole { sizes } else { &sizes[..1] } {
        let host = Array2::from_shape_fn((rows, columns), |(i, j)| element(i * 7919 + j * 31));
        let up = GpuArray::from_array(gpu, &host).unwrap();
        let turned = up.t().to_owned().unwrap();
        assert_eq!(turned.to_array().unwrap(), host.t(), "{rows} x {columns}");
        // Rows that begin at odd addresses, then a target whose rows do.
        let part = s![1.., 3..];
        let found = up.slice(part).unwrap().t().to_owned().unwrap();
        assert_eq!(found.to_array().unwrap(), host.slice(part).t(), "part of {rows} x {columns}");
        let mut wide = GpuArray::from_elem(gpu, (columns, rows + 3), element(0)).unwrap();
        wide.slice_mut(s![.., 1..=rows]).unwrap().assign(&up.t()).unwrap();
        let found = wide.slice(s![.., 1..=rows]).unwrap().to_array().unwrap();
        assert_eq!(found, host.t(), "into a part, {rows} x {columns}");
    }
    let host = Array3::from_shape_fn((5, 140, 270), |(i, j, k)| element(i * 100_003 + j * 7919 + k * 31));
    let up = GpuArray::from_array(gpu, &host).unwrap();
    let found = up.view().permuted_axes([0, 2, 1]).unwrap().to_owned().unwrap().to_array().unwrap();
    assert_eq!(found, host.permuted_axes([0, 2, 1]));
}

/// Products of matrices of `T` against those of `H`, which are exact, with operands in both orders.
fn multiplied<H: Sample + LinalgScalar, T: Factor + PartialEq + Debug>(
    gpu: &Gpu,
    [rows, terms, columns]: [usize; 3],
    to: fn(H) -> T,
) {
    let host = |shape: (usize, usize), salt| {
        let numbers = values(shape.0 * shape.1, salt).map(H::from_small).collect();
        Array2::from_shape_vec(shape, numbers).unwrap()
    };
    let (left, right) = (host((rows, terms), 1), host((terms, columns), 2));
    let expected = left.dot(&right).mapv(to);
    let upload = |array: ArrayView2<'_, H>| GpuArray::from_array(gpu, &array.mapv(to)).unwrap();
    let (a, b) = (upload(left.view()), upload(right.view()));
    assert_eq!(a.dot(&b).unwrap().to_array().unwrap(), expected);
    let turned = b.t().dot(&a.t()).unwrap();
    assert_eq!(turned.t().to_array().unwrap(), expected);
    let stacked = a.reshape((1, rows, terms)).unwrap().matmul(&b).unwrap();
    assert_eq!(stacked.index_axis(Axis(0), 0).unwrap().to_array().unwrap(), expected);
}

/// A sparse matrix times a vector and a matrix, against the dense one.
fn compressed_rows<T: Sample + Numeric + LinalgScalar>(gpu: &Gpu) {
    let (rows, columns) = (40, 33);
    let mut dense = Array2::<T>::zeros((rows, columns));
    let (mut offsets, mut indices, mut elements) = (vec![0_i32], Vec::new(), Vec::new());
    for row in 0..rows {
        for (element, value) in values(row * 7 % 70, 3).map(T::from_small).enumerate() {
            let column = (element * 5 + row) % columns;
            dense[[row, column]] = dense[[row, column]] + value;
            indices.push(column as i32);
            elements.push(value);
        }
        offsets.push(elements.len() as i32);
    }
    let upload = |numbers: &[i32]| GpuArray::from_slice(gpu, numbers).unwrap();
    let (offsets, indices, elements) =
        (upload(&offsets), upload(&indices), GpuArray::from_slice(gpu, &elements).unwrap());
    let matrix = Csr::new([rows, columns], offsets, indices, elements).unwrap();
    let right =
        Array2::from_shape_vec((columns, 3), values(columns * 3, 4).map(T::from_small).collect()).unwrap();
    let there = GpuArray::from_array(gpu, &right).unwrap();
    assert_eq!(matrix.dot(&there).unwrap().to_array().unwrap(), dense.dot(&right));
    let column = there.index_axis(Axis(1), 1).unwrap();
    assert_eq!(matrix.dot(&column).unwrap().to_array().unwrap(), dense.dot(&right.column(1)));
}

cases! {
    fn elementwise_f32(driver: &Driver) { elementwise_of_f32(driver) }
    fn elementwise_f64(driver: &Driver) { elementwise_of_f64(driver) }
    fn elementwise_i32(driver: &Driver) { elementwise_of_i32(driver) }
    fn elementwise_i64(driver: &Driver) { elementwise_of_i64(driver) }
    fn products_f32(driver: &Driver) { products_of_f32(driver) }
    fn products_f64(driver: &Driver) { products_of_f64(driver) }
    fn products_i32(driver: &Driver) { products_of_i32(driver) }
    fn products_i64(driver: &Driver) { products_of_i64(driver) }
    fn matrices(driver: &Driver) {
        for gpu in &both(driver) {
            multiplied::<f32, f32>(gpu, [65, 70, 66], |value| value);
            multiplied::<f64, f64>(gpu, [65, 70, 66], |value| value);
            multiplied::<i32, i32>(gpu, [65, 70, 66], |value| value);
            multiplied::<i64, i64>(gpu, [65, 70, 66], |value| value);
            multiplied::<f32, f16>(gpu, [130, 70, 129], f16::from_f32);
            multiplied::<f32, bf16>(gpu, [130, 70, 129], bf16::from_f32);
            multiplied::<f32, bf16>(gpu, [3, 700, 5], bf16::from_f32);
            // 100 large tiles.
            multiplied::<f32, f32>(gpu, [1153, 9, 1153], |value| value);
        }
    }

    fn sparse_matrices(driver: &Driver) {
        for gpu in &both(driver) {
            compressed_rows::<f32>(gpu);
            compressed_rows::<f64>(gpu);
            compressed_rows::<i32>(gpu);
            compressed_rows::<i64>(gpu);
        }
    }

    fn reductions_f32(driver: &Driver) { reductions_of_f32(driver) }
    fn reductions_f64(driver: &Driver) { reductions_of_f64(driver) }
    fn reductions_i32(driver: &Driver) { reductions_of_i32(driver) }
    fn reductions_i64(driver: &Driver) { reductions_of_i64(driver) }

    /// Sums of values that are not exact are within rounding of the sum in double precision, and equal on every run.
    fn sums_that_round(driver: &Driver) {
        let host: Vec<f32> = values(200_003, 9).map(|value| value as f32 * 0.1).collect();
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
            for &len in lengths(gpu) {
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

    /// Values of sizes that no store has are repeated byte for byte.
    fn patterns(driver: &Driver) {
        for gpu in &both(driver) {
            patterns_of(gpu, [1_u8, 2, 3]);
            patterns_of(gpu, [7_u8; 7]);
            patterns_of(gpu, [1_u16, 2, 3, 4, 5]);
            patterns_of(gpu, [0.5_f32, -1.5, 2.5]);
            patterns_of(gpu, [1_u64, 2, 3, 4, 5]);
            patterns_of(gpu, [0.25_f64; 3]);
            patterns_of(gpu, std::array::from_fn::<u8, 33, _>(|index| index as u8));
        }
    }

    /// Random numbers have the bits of the generator on the host.
    fn random_numbers(driver: &Driver) {
        let (seed, stream) = (0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210);
        for gpu in &both(driver) {
            for &len in lengths(gpu) {
                let words = philox(seed, stream, 2 * len);
                let wide: Vec<u64> =
                    words.chunks(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect();
                let rng = &mut || Rng::with_stream(seed, stream);
                let found = GpuArray::<u32, _>::random(gpu, len, &mut rng()).unwrap().to_vec().unwrap();
                assert_eq!(found, words[..len], "{len}");
                let found = GpuArray::<u64, _>::random(gpu, len, &mut rng()).unwrap().to_vec().unwrap();
                assert_eq!(found, wide, "{len}");
                let found = GpuArray::<f32, _>::random(gpu, len, &mut rng()).unwrap().to_vec().unwrap();
                let expected: Vec<f32> =
                    words[..len].iter().map(|word| (word >> 8) as f32 / 16_777_216.0).collect();
                assert_eq!(found, expected, "{len}");
                let found = GpuArray::<f64, _>::random(gpu, len, &mut rng()).unwrap().to_vec().unwrap();
                let expected: Vec<f64> =
                    wide.iter().map(|word| (word >> 11) as f64 / 9_007_199_254_740_992.0).collect();
                assert_eq!(found, expected, "{len}");
            }
        }
    }

    /// Normally distributed numbers have equal bits on both drivers, and are near the formula in double precision.
    fn normal_numbers(driver: &Driver) {
        const N: usize = 200_002;
        let words = philox(3, 4, 2 * N);
        let draw = |gpu: Gpu| {
            let single = GpuArray::<f32, _>::random_normal(&gpu, N, &mut Rng::with_stream(3, 4)).unwrap();
            let double = GpuArray::<f64, _>::random_normal(&gpu, N, &mut Rng::with_stream(3, 4)).unwrap();
            (single.to_vec().unwrap(), double.to_vec().unwrap())
        };
        let drawn: Vec<_> = both(driver).into_iter().map(draw).collect();
        let bits = |(single, double): &(Vec<f32>, Vec<f64>)| -> (Vec<u32>, Vec<u64>) {
            (single.iter().map(|x| x.to_bits()).collect(), double.iter().map(|x| x.to_bits()).collect())
        };
        assert!(drawn.iter().all(|other| bits(other) == bits(&drawn[0])));
        let (single, double) = &drawn[0];
        for (drawn, words) in single.chunks(2).zip(words.chunks(2)) {
            let uniform = words[0] as f32 / 4_294_967_296.0 + 0.5 / 4_294_967_296.0;
            let expected = box_muller(f64::from(uniform), f64::from(words[1]) / 4_294_967_296.0);
            let distance = |at: usize| (f64::from(drawn[at]) - expected[at]).abs();
            assert!(distance(0) < 2e-6 && distance(1) < 2e-6, "{drawn:?} {expected:?}");
        }
        let wide: Vec<u64> =
            words.chunks(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect();
        for (drawn, words) in double.chunks(2).zip(wide.chunks(2)) {
            let uniform = ((words[0] >> 11) as f64 + 0.5) / 2.0_f64.powi(53);
            let expected = box_muller(uniform, words[1] as f64 / 2.0_f64.powi(64));
            let distance = |at: usize| (drawn[at] - expected[at]).abs();
            assert!(distance(0) < 1e-13 && distance(1) < 1e-13, "{drawn:?} {expected:?}");
        }
    }

    /// Every half-precision number, and numbers of other types around the places where they round.
    fn casts(driver: &Driver) {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let brains: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let singles: Vec<f32> = (0..200_003_u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
        let near = |number: f64| [-1, 0, 1].map(|step| f64::from_bits(number.to_bits().wrapping_add_signed(step)));
        let middles = halves.windows(2).map(|pair| (pair[0].to_f64() + pair[1].to_f64()) / 2.0);
        let others = brains.windows(2).map(|pair| (pair[0].to_f64() + pair[1].to_f64()) / 2.0);
        let doubles: Vec<f64> = middles.chain(others).flat_map(near).collect();
        for gpu in &both(driver) {
            cast_of::<f16, f32>(gpu, &halves);
            cast_of::<f16, f64>(gpu, &halves);
            cast_of::<f16, bf16>(gpu, &halves);
            cast_of::<bf16, f32>(gpu, &brains);
            cast_of::<bf16, f64>(gpu, &brains);
            cast_of::<bf16, f16>(gpu, &brains);
            cast_of::<f32, f16>(gpu, &singles);
            cast_of::<f32, bf16>(gpu, &singles);
            cast_of::<f64, f16>(gpu, &doubles);
            cast_of::<f64, bf16>(gpu, &doubles);
            let up = GpuArray::from_slice(gpu, &doubles).unwrap().cast::<f32>().unwrap();
            let found = up.cast::<f64>().unwrap().to_vec().unwrap();
            for (found, double) in found.into_iter().zip(&doubles) {
                let expected = f64::from(*double as f32);
                assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
            }
        }
    }

    /// Rows of every size, by indices that repeat.
    fn gathers(driver: &Driver) {
        for gpu in &both(driver) {
            for width in [1, 2, 3, 4, 8, 16, 33, 1000] {
                let rows = Array2::from_shape_fn((257, width), |(i, j)| (i * 31 + j) as u8);
                let indices: Vec<usize> = (0..700).map(|i| i * 101 % 257).collect();
                let up = GpuArray::from_array(gpu, &rows).unwrap();
                let found = up.select(Axis(0), &indices).unwrap().to_array().unwrap();
                assert_eq!(found, rows.select(Axis(0), &indices), "{width}");
                let found = up.t().select(Axis(1), &indices).unwrap().to_array().unwrap();
                assert_eq!(found, rows.t().select(Axis(1), &indices), "{width}");
            }
        }
    }

    /// Rows by indices on the device, of each type, some of them outside.
    fn gathers_by_device_indices(driver: &Driver) {
        for gpu in &both(driver) {
            let rows = Array2::from_shape_fn((70, 6), |(i, j)| (i * 6 + j) as f32);
            let up = GpuArray::from_array(gpu, &rows).unwrap();
            let places: Vec<i32> = (0..500).map(|i| (i * 31 + 5) % 73 - 2).collect();
            let wanted = Array2::from_shape_fn((500, 6), |(i, j)| {
                usize::try_from(places[i]).ok().and_then(|place| rows.get((place, j))).copied().unwrap_or(0.0)
            });
            fn select<T: Element>(
                up: &GpuArray<f32, Ix2>,
                places: &[i32],
                convert: impl Fn(i32) -> T,
            ) -> Array2<f32>
            where
                GpuArray<T, Ix1>: Indices,
            {
                let places: Vec<T> = places.iter().map(|place| convert(*place)).collect();
                let places = GpuArray::from_slice(up.gpu(), &places).unwrap();
                up.select(Axis(0), &places).unwrap().to_array().unwrap()
            }
            assert_eq!(select(&up, &places, |place| place), wanted);
            assert_eq!(select(&up, &places, |place| place as u32), wanted);
            assert_eq!(select(&up, &places, i64::from), wanted);
            assert_eq!(select(&up, &places, |place| place as u64), wanted);
            let every_other = GpuArray::from_slice(gpu, &places).unwrap();
            let every_other = every_other.slice(s![..;2]).unwrap();
            let found = up.t().select(Axis(1), &every_other).unwrap().to_array().unwrap();
            assert_eq!(found.t(), wanted.slice(s![..;2, ..]));
        }
    }

    /// The places of true elements, for lengths around groups of eight, tiles and parts.
    fn true_places(driver: &Driver) {
        for gpu in &both(driver) {
            for &len in lengths(gpu).iter().chain(&[7, 8, 9, 2047, 2049, 4095]) {
                for every in [1, 3, 1000] {
                    let host: Vec<i32> = values(len, 7).map(|value| value.rem_euclid(every)).collect();
                    let places = |host: &[i32]| -> Vec<u64> {
                        (0..host.len()).filter(|i| host[*i] == 0).map(|i| i as u64).collect()
                    };
                    let x = GpuArray::from_slice(gpu, &host).unwrap();
                    assert_eq!(x.lazy().equals(0).nonzero().unwrap().to_vec().unwrap(), places(&host));
                    let mask = x.lazy().equals(0).eval().unwrap();
                    let kept: Vec<i32> = host.iter().copied().filter(|value| *value == 0).collect();
                    assert_eq!(x.compress(Axis(0), &mask).unwrap().to_vec().unwrap(), kept);
                    let (odd, mask) = (x.slice(s![..;-2]).unwrap(), mask.slice(s![..;-2]).unwrap());
                    let host: Vec<i32> = host.iter().rev().step_by(2).copied().filter(|v| *v == 0).collect();
                    assert_eq!(odd.compress(Axis(0), &mask).unwrap().to_vec().unwrap(), host);
                }
            }
        }
    }

    /// Additions by indices that repeat, evenly and nearly all to one row, with rows of one element and of several.
    fn scattered_additions(driver: &Driver) {
        fn scatter<T: Sample + std::ops::Add<Output = T>>(gpu: &Gpu, rows: usize, count: usize, width: usize, skew: u64) {
            let indices: Vec<u32> = (0..count as u64)
                .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33)
                .map(|mixed| if mixed % 16 < skew { 1 } else { (mixed % (rows as u64 + 2)) as u32 })
                .collect();
            let values = |len, salt| -> Vec<T> { values(len, salt).map(T::from_small).collect() };
            let (before, added) = (values(2 * rows * width, 3), values(2 * count * width, 4));
            let before = Array3::from_shape_vec((2, rows, width), before).unwrap();
            let added = Array3::from_shape_vec((2, count, width), added).unwrap();
            let mut wanted = before.clone();
            for (i, row) in indices.iter().enumerate().filter(|(_, row)| (**row as usize) < rows) {
                let mut to = wanted.index_axis_mut(Axis(1), *row as usize);
                to.zip_mut_with(&added.index_axis(Axis(1), i), |to, value| *to = *to + *value);
            }
            let indices = GpuArray::from_slice(gpu, &indices).unwrap();
            let added = GpuArray::from_array(gpu, &added).unwrap();
            let mut target = GpuArray::from_array(gpu, &before).unwrap();
            target.scatter_add(Axis(1), &indices, &added).unwrap();
            assert_eq!(target.to_array().unwrap(), wanted, "{rows} {count} {width} {skew}");
            let mut turned = GpuArray::from_array(gpu, &before).unwrap();
            let mut view = turned.slice_mut(s![.., ..;-1, ..]).unwrap();
            view.assign(&GpuArray::from_array(gpu, &before).unwrap()).unwrap();
            view.scatter_add(Axis(1), &indices, &added).unwrap();
            assert_eq!(view.to_array().unwrap(), wanted);
        }
        for gpu in &both(driver) {
            let long = if gpu.device().driver().kind() == DriverKind::Sim { 9_000 } else { 300_000 };
            for (rows, count, width) in [(5, 1, 1), (5, 127, 3), (300, 129, 2), (70_000, 1000, 1), (7, long, 1)] {
                for skew in [0, 15] {
                    scatter::<i32>(gpu, rows, count, width, skew);
                    scatter::<f64>(gpu, rows, count, width, skew);
                }
            }
            scatter::<i64>(gpu, 300, 2000, 5, 8);
            scatter::<f32>(gpu, 300, 2000, 5, 8);
        }
    }

    /// The same indices give the same bits, with others at work beside it.
    fn scattered_additions_that_round(driver: &Driver) {
        for gpu in &both(driver) {
            let indices: Vec<u32> = (0..5000_u32).map(|i| i * i % 3).collect();
            let values: Vec<f32> = (1..=5000).map(|i| 1.0 / i as f32).collect();
            let (indices, values) =
                (GpuArray::from_slice(gpu, &indices).unwrap(), GpuArray::from_slice(gpu, &values).unwrap());
            let sums = || {
                let mut sums = GpuArray::<f32, _>::zeros(gpu, 3).unwrap();
                sums.scatter_add(Axis(0), &indices, &values).unwrap();
                sums.to_vec().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let first = sums();
            for _ in 0..5 {
                assert_eq!(sums(), first);
            }
        }
    }

    /// Sums up to each element of rows and columns, in one part and in several.
    fn scans(driver: &Driver) {
        fn scan<T: Sample + std::ops::Add<Output = T>>(gpu: &Gpu, shape: (usize, usize)) {
            let numbers = values(shape.0 * shape.1, 9).map(T::from_small).collect();
            let host = Array2::from_shape_vec(shape, numbers).unwrap();
            let x = GpuArray::from_array(gpu, &host).unwrap();
            for axis in [Axis(0), Axis(1)] {
                let mut sums = host.clone();
                sums.accumulate_axis_inplace(axis, |before, sum| *sum = *before + *sum);
                assert_eq!(x.cumsum_axis(axis).unwrap().to_array().unwrap(), sums, "{shape:?} {axis:?}");
            }
        }
        for gpu in &both(driver) {
            for shape in [(1, 1), (5, 32), (3, 33), (2, 9000), (300, 70), (3, 8192), (1, 50_001)] {
                scan::<f32>(gpu, shape);
                scan::<f64>(gpu, shape);
                scan::<i32>(gpu, shape);
                scan::<i64>(gpu, shape);
            }
        }
    }

    /// Products by cuBLAS of operands in both orders, with gaps and empty, by handles that were used before.
    fn products_by_cublas(driver: &Driver) {
        for gpu in &both(driver) {
            for _ in 0..2 {
                let blas = match Cublas::new(gpu) {
                    Ok(blas) => blas,
                    Err(refused @ ArrayError::Cudarc { .. }) => return skip(&refused.to_string()),
                    Err(error) => panic!("{error}"),
                };
                let other = Cublas::new(gpu).unwrap();
                for [m, k, n] in [[1, 1, 1], [33, 17, 65], [128, 64, 1], [0, 3, 4], [3, 0, 4]] {
                    let (a, host_a) = array::<f64>(gpu, m * k, 1);
                    let (b, host_b) = array::<f64>(gpu, 2 * k * n, 2);
                    let host_a = Array2::from_shape_vec((m, k), host_a).unwrap();
                    let host_b = Array2::from_shape_vec((n, 2 * k), host_b).unwrap();
                    let (a, b) = (a.into_shape((m, k)).unwrap(), b.into_shape((n, 2 * k)).unwrap());
                    let (b, host_b) = (b.slice(s![.., ..;2]).unwrap(), host_b.slice(s![.., ..;2]));
                    let wanted = host_a.dot(&host_b.t());
                    assert_eq!(blas.dot(&a, &b.t()).unwrap().to_array().unwrap(), wanted);
                    assert_eq!(other.dot(&b, &a.t()).unwrap().to_array().unwrap().t(), wanted);
                    let (a, b) = (a.cast::<f32>().unwrap(), b.cast::<f32>().unwrap());
                    let found = blas.dot(&a, &b.t()).unwrap().cast::<f64>().unwrap();
                    assert_eq!(found.to_array().unwrap(), wanted);
                }
            }
        }
    }

    /// Arrays that travel in one buffer get their own bytes, at every size around the kernel's stores.
    fn packs(driver: &Driver) {
        for gpu in &both(driver) {
            let bytes: Vec<Vec<u8>> =
                (0..600).map(|len| values(len, len as u64).map(|value| value as u8).collect()).collect();
            let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
            let arrays = gpu.upload_all(&slices).unwrap();
            for (array, expected) in arrays.iter().zip(&bytes) {
                assert_eq!(array.to_vec().unwrap(), *expected);
            }
            let numbers: Vec<Vec<f64>> =
                lengths(gpu).iter().map(|&len| values(len, 5).map(f64::from).collect()).collect();
            let slices: Vec<&[f64]> = numbers.iter().map(Vec::as_slice).collect();
            for (array, expected) in gpu.upload_all(&slices).unwrap().iter().zip(&numbers) {
                assert_eq!(array.to_vec().unwrap(), *expected);
            }
        }
    }

    /// Copies of permuted and stepped elements, for units of every size.
    fn strided_copies(driver: &Driver) {
        for gpu in &both(driver) {
            permuted(gpu, |number| number as u8);
            permuted(gpu, |number| number as u16);
            permuted(gpu, |number| number as f32);
            permuted(gpu, |number| number as u64);
            permuted(gpu, |number| [number as u64, !(number as u64)]);
            permuted(gpu, |number| [number as f32, 1.0, -2.0]);
        }
    }

    /// Transposed copies of whole and partial tiles, with rows at aligned and at odd addresses.
    fn transposed_copies(driver: &Driver) {
        for gpu in &both(driver) {
            transposed(gpu, |number| number as u8);
            transposed(gpu, |number| number as u16);
            transposed(gpu, |number| number as f32);
            transposed(gpu, |number| number as u64);
            transposed(gpu, |number| [number as u64, !(number as u64)]);
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

const CASES: &[fn(&Driver)] = &[
    elementwise_f32,
    elementwise_f64,
    elementwise_i32,
    elementwise_i64,
    products_f32,
    products_f64,
    products_i32,
    products_i64,
    matrices,
    sparse_matrices,
    reductions_f32,
    reductions_f64,
    reductions_i32,
    reductions_i64,
    sums_that_round,
    fills,
    patterns,
    random_numbers,
    normal_numbers,
    casts,
    gathers,
    gathers_by_device_indices,
    true_places,
    scattered_additions,
    scattered_additions_that_round,
    scans,
    products_by_cublas,
    packs,
    strided_copies,
    transposed_copies,
    division_by_zero,
];

/// The names of the kernels that [`recorded`] drivers have looked up. Arrays look up a kernel before its first launch.
static USED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static REAL: OnceLock<Table> = OnceLock::new();

/// A simulator that adds to [`USED`].
fn recorded() -> Driver {
    unsafe extern "C" fn function(out: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult {
        // SAFETY: the caller passes a string.
        let text = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        USED.lock().unwrap().insert(text);
        // SAFETY: the caller guarantees what the wrapped function requires.
        unsafe { REAL.get().unwrap().cuModuleGetFunction.unwrap()(out, module, name) }
    }
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    assert!(REAL.set(*driver.table()).is_ok());
    // SAFETY: the function calls the one that it replaces.
    unsafe { driver.with_table(|table| table.cuModuleGetFunction = Some(function)) }
}

/// The kernels in the PTX of the crate, and those that are made of it for integers and for narrow elements.
fn compiled() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/gpumem-array/kernels");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let ptx = files.filter(|path| path.extension().is_some_and(|end| end == "ptx"));
    let texts: Vec<String> = ptx.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let entries = texts.iter().flat_map(|text| text.split(".entry ").skip(1));
    entries.flat_map(|entry| made_of(entry.split('(').next().unwrap())).collect()
}

fn made_of(kernel: &str) -> Vec<String> {
    let others: &[(&str, &[&str])] = &[
        ("_f32", &["_f32", "_i32"]),
        ("_f64", &["_f64", "_i64"]),
        ("_16", &["_1", "_2", "_4", "_8", "_16"]),
    ];
    let found = others.iter().find_map(|(end, ends)| Some((kernel.strip_suffix(end)?, *ends)));
    let (start, ends) = found.unwrap_or((kernel, &[""]));
    ends.iter().map(|end| format!("{start}{end}")).collect()
}

#[test]
fn the_cases_use_each_kernel() {
    let driver = recorded();
    for case in CASES {
        case(&driver);
    }
    let used = USED.lock().unwrap();
    let unused: Vec<_> = compiled().difference(&used).cloned().collect();
    // Copies of dense rows have no case here.
    assert_eq!(unused, ["gpumem_dense_1"]);
}

//! Kernels whose results round give the same bits on every driver: a GPU and the simulator, or two seeds of the simulator. Those with
//! instructions that approximate, with tensor cores, or that state no rounding, are within some units in the last place on a GPU. Kernels without
//! rounding are compared with exact results, in [`kernels`](crate::kernels).

use gpumem_adapt::Csr;
use gpumem_adapt::array::bytemuck::cast_slice;
use gpumem_adapt::array::ndarray::{Axis, Ix1, s};
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{AsView, Element, Factor, Gpu, GpuArray, LaunchShape, Numeric, Real, Rng, kernels};
use gpumem_sim::SimConfig;
use gpumem_tests::cases;
use gpumem_tests::fixtures::gpu_results::GpuResults;
use gpumem_tests::sys::{Driver, DriverKind};
use half::{bf16, f16};

kernels! {
    static TRAIN = ptx include_str!("../../crates/gpumem-adapt/examples/train/kernels.ptx");
}
kernels! {
    static ORBIT = ptx include_str!("../../crates/gpumem-array/examples/declared_kernel/orbit.ptx");
}
kernels! {
    static AXPY = ptx include_str!("../../crates/gpumem-array/tests/array/kernels.ptx");
}

/// Numbers of both signs, from `2^-spread` to `2^spread`, whose fractions fill their type.
fn numbers<T: Real>(len: usize, salt: u64, spread: i32) -> Vec<T> {
    let mut state = salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut number = || {
        let fraction = 1.0 + (next() >> 11) as f64 / (1_u64 << 53) as f64;
        let exponent = (next() % (2 * spread as u64)) as i32 - spread;
        T::from_f64(if next() % 2 == 0 { fraction } else { -fraction } * f64::from(exponent).exp2())
    };
    (0..len).map(|_| number()).collect()
}

fn array<T: Real>(gpu: &Gpu, len: usize, salt: u64) -> GpuArray<T, Ix1> {
    GpuArray::from_slice(gpu, &numbers(len, salt, 6)).unwrap()
}

/// The bytes of an array that is not empty.
fn bytes<A: AsView<Elem: Element> + ?Sized>(array: &A) -> Vec<u8> {
    let elements = array.as_view().to_array().unwrap();
    let elements: Vec<_> = elements.iter().copied().collect();
    assert!(!elements.is_empty());
    cast_slice(&elements).to_vec()
}

/// Products of matrices, of stacks of them and of vectors, in both orders of the operands.
fn products<T: Real + Factor>(gpu: &Gpu) -> Vec<u8> {
    let mut found = Vec::new();
    for [m, k, n] in [[1, 700, 1], [130, 150, 65], [3, 1500, 20], [64, 16, 100]] {
        let a = array::<T>(gpu, m * k, 1).into_shape((m, k)).unwrap();
        let b = array::<T>(gpu, k * n, 2).into_shape((k, n)).unwrap();
        found.extend(bytes(&a.dot(&b).unwrap()));
        found.extend(bytes(&b.t().dot(&a.t()).unwrap()));
        let stack = a.reshape((1, m, k)).unwrap().matmul(&b).unwrap();
        found.extend(bytes(&stack));
    }
    found
}

/// Products of a matrix and a vector, along rows and along columns, and of a sparse matrix.
fn products_with_vectors<T: Real + Numeric>(gpu: &Gpu) -> Vec<u8> {
    let mut found = Vec::new();
    for (rows, columns) in [(33, 640), (1100, 40), (5, 4097), (2, 9001)] {
        let matrix = array::<T>(gpu, rows * columns, 3).into_shape((rows, columns)).unwrap();
        found.extend(bytes(&matrix.dot(&array::<T>(gpu, columns, 4)).unwrap()));
        found.extend(bytes(&matrix.t().dot(&array::<T>(gpu, rows, 5)).unwrap()));
    }
    let (rows, each) = (50_i32, 37_i32);
    let offsets: Vec<i32> = (0..=rows).map(|row| row * each).collect();
    let indices: Vec<i32> = (0..rows * each).map(|at| at * 7 % 90).collect();
    let [offsets, indices] = [offsets, indices].map(|list| GpuArray::from_slice(gpu, &list).unwrap());
    let elements = array::<T>(gpu, (rows * each) as usize, 6);
    let matrix = Csr::new([rows as usize, 90], offsets, indices, elements).unwrap();
    found.extend(bytes(&matrix.dot(&array::<T>(gpu, 90, 7)).unwrap()));
    found
}

/// Every function, of numbers within its domain.
fn functions<T: Real>(gpu: &Gpu) -> Vec<(&'static str, Vec<u8>)> {
    let (x, y) = (array::<T>(gpu, 3_000, 8), array::<T>(gpu, 3_000, 9));
    let [ten, minus_ten, one, minus_one, little] = [10.0, -10.0, 1.0, -1.0, 1.0 / 128.0].map(T::from_f64);
    macro_rules! each {
        ($($result:expr;)*) => { vec![$((stringify!($result), bytes(&$result.eval().unwrap()))),*] };
    }
    let lazy = || x.lazy();
    each! {
        lazy().abs().sqrt(); lazy().recip(); lazy() / &y; lazy().mul_add(&y, &x); lazy() % &y;
        lazy().max(minus_ten).min(ten).exp(); lazy().max(minus_ten).min(ten).exp2(); lazy().exp_m1();
        lazy().abs().ln(); lazy().abs().log2(); lazy().abs().log10(); lazy().abs().ln_1p();
        lazy().sin(); lazy().cos(); lazy().tan(); lazy().atan(); lazy().tanh(); lazy().sinh(); lazy().cosh();
        (lazy() * little).asin(); (lazy() * little).acos(); (lazy() * little).erf(); lazy().cbrt();
        lazy().abs().pow(y.lazy().max(minus_one).min(one)); lazy().atan2(&y); lazy().hypot(&y); lazy().powi(3);
    }
}

/// Sums and their like, of all elements and along each axis.
fn reductions<T: Real>(gpu: &Gpu) -> Vec<u8> {
    let x = array::<T>(gpu, 7 * 150 * 41, 10).into_shape((7, 150, 41)).unwrap();
    let mut found = bytes(&x.lazy().sum().unwrap());
    found.extend(bytes(&x.lazy().mean().unwrap()));
    found.extend(bytes(&x.lazy().var(1.0).unwrap()));
    found.extend(bytes(&x.lazy().norm().unwrap()));
    for axis in 0..3 {
        found.extend(bytes(&x.lazy().sum_axis(Axis(axis)).unwrap()));
        found.extend(bytes(&x.lazy().var_axis(Axis(axis), 0.0).unwrap()));
        let turned = x.slice(s![.., ..;-1, 1..]).unwrap();
        found.extend(bytes(&(turned.lazy() * turned.lazy()).sum_axis(Axis(axis)).unwrap()));
    }
    found
}

fn scattered<T: Real + Numeric>(gpu: &Gpu) -> Vec<u8> {
    let indices: Vec<u32> = (0..5000_u32).map(|at| at * at % 17).collect();
    let mut sums = GpuArray::<T, _>::zeros(gpu, (20, 3)).unwrap();
    let added = array::<T>(gpu, 15_000, 11).into_shape((5000, 3)).unwrap();
    sums.scatter_add(Axis(0), &GpuArray::from_slice(gpu, &indices).unwrap(), &added).unwrap();
    bytes(&sums)
}

/// The kernels of the examples and of the tests.
fn others(gpu: &Gpu) -> Vec<u8> {
    let mut found = Vec::new();
    let rows = 3000;
    let mut prediction = array::<f32>(gpu, rows, 12);
    let (target, bias, mut sum) =
        (array::<f32>(gpu, rows, 13), array::<f32>(gpu, 1, 14), array::<f32>(gpu, 1, 15));
    let mut losses = array::<f64>(gpu, 3, 16);
    let train = gpu.compile(&TRAIN).unwrap();
    let shape = LaunchShape { grid: [1, 1, 1], block: [1024, 1, 1], shared_bytes: 0 };
    let residual = train.function("residual").unwrap();
    let launch = residual.launch(shape).write(&mut prediction).read(&target).read(&bias);
    let launch = launch.write(&mut sum).write(&mut losses).scalar(1_u32).scalar(rows as u32);
    // SAFETY: the arguments are the kernel's parameters, and the arrays have the lengths that it is given.
    unsafe { launch.enqueue(gpu).unwrap() };
    found.extend([bytes(&prediction), bytes(&sum), bytes(&losses)].concat());

    let columns = 700;
    let (mut weight, mut offset) = (array::<f32>(gpu, columns, 17), array::<f32>(gpu, 1, 18));
    let mut moments = (array::<f32>(gpu, 2 * (columns + 1), 19).lazy().abs()).eval().unwrap();
    let (sums, sum) = (array::<f32>(gpu, columns, 20), array::<f32>(gpu, 1, 21));
    let adam = train.function("adam").unwrap();
    let launch = adam.launch(LaunchShape::for_len(columns + 1));
    let launch = launch.write(&mut weight).write(&mut offset).write(&mut moments).read(&sums).read(&sum);
    let launch = launch.scalar(columns as u32).scalar(0.01_f32).scalar(0.9_f32).scalar(0.999_f32);
    let launch = launch.scalar(0.001_f32).scalar(0.3_f32).scalar(1e-8_f32);
    // SAFETY: the arguments are the kernel's parameters, and the arrays have the lengths that it is given.
    unsafe { launch.enqueue(gpu).unwrap() };
    found.extend([bytes(&weight), bytes(&offset), bytes(&moments)].concat());

    let (mut y, x) = (array::<f32>(gpu, 1000, 24), array::<f32>(gpu, 1000, 25));
    let axpy = gpu.compile(&AXPY).unwrap().function("axpy").unwrap();
    let launch = axpy.launch(LaunchShape::for_len(1000)).write(&mut y).scalar(0.3_f32);
    // SAFETY: the arguments are the kernel's parameters, and the arrays have the lengths that it is given.
    unsafe { launch.read(&x).scalar(1000_u64).enqueue(gpu).unwrap() };
    found.extend(bytes(&y));
    found
}

/// The orbit of the example. Its products and differences state no rounding, so the GPU's compiler may join two of them to one that rounds once.
fn orbits(gpu: &Gpu) -> Vec<u8> {
    let pairs = |salt| -> Vec<[f64; 2]> { cast_slice(&numbers::<f64>(400, salt, 1)).to_vec() };
    let [mut place, mut speed] = [22, 23].map(|salt| GpuArray::from_slice(gpu, &pairs(salt)).unwrap());
    let orbit = gpu.compile(&ORBIT).unwrap().function("orbit").unwrap();
    for _ in 0..20 {
        let launch = orbit.launch(LaunchShape::for_len(200)).write(&mut place).write(&mut speed);
        // SAFETY: the arguments are the kernel's parameters, and both arrays have 200 elements of two numbers.
        unsafe { launch.scalar(0.001_f64).scalar(200_u32).enqueue(gpu).unwrap() };
    }
    [bytes(&place), bytes(&speed)].concat()
}

fn random<T: Real + gpumem_adapt::array::RandomNormal>(gpu: &Gpu) -> Vec<u8> {
    bytes(&GpuArray::<T, _>::random_normal(gpu, 5_001, &mut Rng::new(5)).unwrap())
}

/// A name, the bytes of an element, and by how many units in the last place a GPU may differ from the simulator.
type Work = (&'static str, usize, u64, fn(&Gpu) -> Vec<u8>);

const WORKS: &[Work] = &[
    ("products of f32", 4, 0, products::<f32>),
    ("products of f64", 8, 0, products::<f64>),
    ("products of f16", 2, 1, products::<f16>),
    ("products of bf16", 2, 1, products::<bf16>),
    ("products of f32 with vectors", 4, 0, products_with_vectors::<f32>),
    ("products of f64 with vectors", 8, 0, products_with_vectors::<f64>),
    ("reductions of f32", 4, 0, reductions::<f32>),
    ("reductions of f64", 8, 0, reductions::<f64>),
    ("reductions of bf16", 2, 0, reductions::<bf16>),
    ("scattered f32", 4, 0, scattered::<f32>),
    ("scattered f64", 8, 0, scattered::<f64>),
    ("normal f32", 4, 0, random::<f32>),
    ("normal f64", 8, 0, random::<f64>),
    ("kernels of examples and tests", 4, 0, others),
    ("orbits", 8, 1, orbits),
];

type Functions = (&'static str, usize, fn(&Gpu) -> Vec<(&'static str, Vec<u8>)>);

const FUNCTIONS: &[Functions] = &[
    ("f32", 4, functions::<f32>),
    ("f64", 8, functions::<f64>),
    ("f16", 2, functions::<f16>),
    ("bf16", 2, functions::<bf16>),
];

/// The functions that have an instruction that approximates: `ex2` for `f32`, `rsqrt` for `f64`.
fn function_units(of: &str, name: &str) -> u64 {
    let approximate = match of {
        "f32" => &["exp()", "exp2()", "tanh()", "sinh()", "cosh()", "cbrt()", "pow("][..],
        "f64" => &["hypot("],
        _ => &[],
    };
    if approximate.iter().any(|part| name.contains(part)) { 4 } else { 0 }
}

/// Where results differ by more than some units in the last place.
fn difference(name: &str, size: usize, units: u64, found: &[u8], expected: &[u8]) -> Option<String> {
    assert_eq!(found.len(), expected.len(), "{name}");
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let pairs = found.chunks(size).zip(expected.chunks(size)).map(|(a, b)| (number(a), number(b)));
    let different: Vec<_> = pairs.enumerate().filter(|(_, (a, b))| a.abs_diff(*b) > units).collect();
    let (first, (a, b)) = different.first()?;
    Some(format!("{name}: {} elements, {first} is {a:#x} for {b:#x}", different.len()))
}

cases! {
    fn same_bits(driver: &Driver) {
        let gpu = |driver: &Driver| Gpu::new(&Pool::new(&Device::new(driver, 0).unwrap()).unwrap()).unwrap();
        let there = gpu(driver);
        let here = gpu(&gpumem_sim::driver(SimConfig::new().seed(77)).unwrap());
        let is_sim = driver.kind() == DriverKind::Sim;
        let (mut different, mut results) = (Vec::new(), GpuResults::new(driver));
        let mut compare = |name: &str, size, units, found: Vec<u8>, expected: Vec<u8>| {
            let allowed = if is_sim { 0 } else { units };
            different.extend(difference(name, size, allowed, &found, &expected));
            if units == 0 {
                results.add(name, found);
            }
        };
        for (name, size, units, work) in WORKS {
            compare(name, *size, *units, work(&there), work(&here));
        }
        for (of, size, work) in FUNCTIONS {
            for ((name, found), (_, expected)) in work(&there).into_iter().zip(work(&here)) {
                compare(&format!("{of}: {name}"), *size, function_units(of, name), found, expected);
            }
        }
        assert!(different.is_empty(), "{}", different.join("\n"));
        results.check();
    }
}

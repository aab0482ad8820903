//! Launches of the user's kernels, and their errors.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod support;

use gpumem_array::pool::{Device, Pool, PoolError, Stream};
use gpumem_array::{ArrayError, Function, Gpu, GpuArray, LaunchShape};
use gpumem_sim::{Kernel, KernelFault, Launch, SimConfig};
use support::{gpu, gpu_with};

const PTX: &str = "
    .version 7.8
    .target sm_70
    .address_size 64
    .visible .entry axpy(.param .u64 y, .param .f32 a, .param .u64 x, .param .u64 n) { ret; }
    .visible .entry ramp(.param .u64 y, .param .u64 n) { ret; }
    .visible .entry wild(.param .u64 y) { ret; }
    .visible .entry many(
        .param .u64 a0, .param .u64 a1, .param .u64 a2, .param .u64 a3, .param .u64 a4, .param .u64 a5, .param .u64 a6,
        .param .u64 a7, .param .u64 v0, .param .u64 v1, .param .u64 v2, .param .u64 v3, .param .u64 v4, .param .u64 v5,
        .param .u64 v6, .param .u64 v7) { ret; }
    .visible .entry no_twin() { ret; }";

/// y += a * x
fn axpy(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (y, a, x) = (launch.arg::<u64>()?, launch.arg::<f32>()?, launch.arg::<u64>()?);
    let n = launch.arg::<u64>()? as usize;
    let (y, x) = (launch.write::<f32>(y, n)?, launch.read::<f32>(x, n)?);
    y.iter().zip(x).for_each(|(y, x)| y.set(y.get() + a * x.get()));
    Ok(())
}

/// y[i] = i
fn ramp(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (y, n) = (launch.arg::<u64>()?, launch.arg::<u64>()? as usize);
    launch.write::<f32>(y, n)?.iter().enumerate().for_each(|(i, y)| y.set(i as f32));
    Ok(())
}

/// Writes outside of any allocation.
fn wild(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let y = launch.arg::<u64>()?;
    launch.write::<u8>(y + (1 << 40), 1)?[0].set(1);
    Ok(())
}

/// Writes the values to the arrays.
fn many(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let arrays: Vec<u64> = (0..8).map(|_| launch.arg()).collect::<Result<_, _>>()?;
    for array in arrays {
        let value = launch.arg::<u64>()?;
        launch.write::<u64>(array, 1)?[0].set(value);
    }
    Ok(())
}

static TWINS: [Kernel; 4] = [
    Kernel::new("axpy", axpy),
    Kernel::new("ramp", ramp),
    Kernel::new("wild", wild),
    Kernel::new("many", many),
];

fn function(gpu: &Gpu, name: &str) -> Result<Function, ArrayError> {
    if let Some(sim) = gpumem_sim::Sim::of(gpu.device().driver()) {
        sim.register(&TWINS);
    }
    gpu.module(PTX)?.function(name)
}

#[test]
fn launches_are_ordered_like_any_operation() {
    for seed in 0..200 {
        let home = gpu_with(SimConfig::new().seed(seed));
        let other = home.fork().unwrap();
        let (axpy, ramp) = (function(&home, "axpy").unwrap(), function(&home, "ramp").unwrap());
        let n = 100;
        let x = GpuArray::from_elem(&home, n, 2.0_f32).unwrap();
        let mut y = GpuArray::<f32, _>::uninit(&other, n).unwrap();
        let launch = ramp.launch(LaunchShape::for_len(n)).write_uninit(&mut y).scalar(n as u64);
        // SAFETY: the arguments are the kernel's parameters; it writes all elements of the array, which is then initialised.
        let mut y = unsafe {
            launch.enqueue(&home).unwrap();
            y.assume_init()
        };
        let launch = axpy.launch(LaunchShape::for_len(n));
        let launch = launch.write(&mut y).scalar(10.0_f32).read(&x).scalar(n as u64);
        // SAFETY: the arguments are the kernel's parameters; it stays within both arrays.
        unsafe { launch.enqueue(&other).unwrap() };
        drop(x);
        let expected: Vec<f32> = (0..n).map(|i| i as f32 + 20.0).collect();
        assert_eq!(y.on(&home).to_vec().unwrap(), expected, "replay: GPUMEM_SIM_SEED={seed}");
    }
}

/// Without the check, an `f64` in place of an `f32` would run with wrong results, and too few arguments would be an unspecific
/// driver error.
#[test]
fn arguments_are_those_of_the_kernel() {
    let gpu = gpu();
    let axpy = function(&gpu, "axpy").unwrap();
    let (mut y, x) =
        (GpuArray::from_elem(&gpu, 9, 1.0_f32).unwrap(), GpuArray::from_elem(&gpu, 9, 1.0_f32).unwrap());
    let shape = LaunchShape::for_len(9);
    let launch = axpy.launch(shape).write(&mut y).scalar(2.0_f64).read(&x).scalar(9_u64);
    // SAFETY: the launch is refused before the driver sees it.
    let refused = unsafe { launch.enqueue(&gpu) }.unwrap_err();
    let ArrayError::ArgumentSize { kernel, index: 1, parameter, expected_bytes: 4, found_bytes: 8 } =
        &refused
    else {
        panic!("{refused}")
    };
    assert_eq!((kernel.as_str(), parameter.as_str()), ("axpy", "a"));
    assert!(refused.to_string().contains("parameter 1 (a) has 4 bytes"), "{refused}");
    for count in [0, 1, 3, 5, 20] {
        let launch = (0..count).fold(axpy.launch(shape), |launch, _| launch.scalar(0_u64));
        // SAFETY: the launch is refused before the driver sees it.
        let refused = unsafe { launch.enqueue(&gpu) }.unwrap_err();
        assert!(
            matches!(refused, ArrayError::ArgumentCount { expected: 4, found, .. } if found == count),
            "{refused}"
        );
        assert!(refused.to_string().contains("(y, a, x, n)"), "{refused}");
    }
    assert_eq!(y.to_vec().unwrap(), [1.0; 9]);
}

/// More arguments than the builder holds inline.
#[test]
fn kernels_may_have_many_arguments() {
    let gpu = gpu();
    let many = function(&gpu, "many").unwrap();
    let mut arrays: Vec<_> = (0..8).map(|_| GpuArray::<u64, _>::zeros(&gpu, 1).unwrap()).collect();
    for round in 0..3_u64 {
        let other = gpu.fork().unwrap();
        let launch = many.launch(LaunchShape::for_len(1));
        let launch = arrays.iter_mut().fold(launch, gpumem_array::Launch::write);
        let launch = (0..8_u64).fold(launch, |launch, value| launch.scalar(value + round));
        // SAFETY: the arguments are those of the kernel, which writes one element of each array.
        unsafe { launch.enqueue(&other).unwrap() };
    }
    for (index, array) in (2..).zip(&arrays) {
        assert_eq!(array.to_vec().unwrap(), [index]);
    }
}

#[test]
fn our_own_kernels_can_be_loaded_ahead() {
    let gpu = gpu();
    gpu.preload::<f32>().unwrap();
    gpu.preload::<i64>().unwrap();
}

#[test]
fn nothing_runs_for_a_length_of_zero() {
    let gpu = gpu();
    let wild = function(&gpu, "wild").unwrap();
    let mut y = GpuArray::<u8, _>::zeros(&gpu, 0).unwrap();
    // SAFETY: a launch without threads does not run.
    unsafe { wild.launch(LaunchShape::for_len(0)).write(&mut y).enqueue(&gpu).unwrap() };
    gpu.synchronize().unwrap();
}

#[test]
fn invalid_launches_are_refused() {
    let gpu = gpu();
    assert!(matches!(function(&gpu, "absent"), Err(ArrayError::NoSuchKernel { name }) if name == "absent"));
    let twin = function(&gpu, "no_twin").unwrap_err();
    assert!(matches!(&twin, ArrayError::NoTwin { name } if name == "no_twin"), "{twin}");
    assert!(twin.to_string().contains("register a Rust function"), "{twin}");
    assert!(matches!(function(&gpu, "a\0b"), Err(ArrayError::ZeroByte { .. })));
    assert!(gpu.module("this is no PTX").is_err());

    let ramp = function(&gpu, "ramp").unwrap();
    let shape = LaunchShape { grid: [1, 1, 1], block: [2048, 1, 1], shared_bytes: 0 };
    // SAFETY: the launch is refused before it reaches the driver.
    let refused = unsafe { ramp.launch(shape).enqueue(&gpu) };
    assert!(matches!(refused, Err(ArrayError::LaunchShape { .. })));
    let many = (0..33).fold(ramp.launch(LaunchShape::for_len(1)), |launch, _| launch.scalar(0_u64));
    // SAFETY: the launch is refused before the driver sees it.
    assert!(matches!(unsafe { many.enqueue(&gpu) }, Err(ArrayError::TooManyArguments { .. })));
}

#[test]
fn a_faulting_kernel_loses_the_context() {
    let gpu = gpu();
    let wild = function(&gpu, "wild").unwrap();
    let mut y = GpuArray::<u8, _>::zeros(&gpu, 8).unwrap();
    // SAFETY: this deliberately violates the kernel's contract, on a simulated device.
    unsafe { wild.launch(LaunchShape::for_len(1)).write(&mut y).enqueue(&gpu).unwrap() };
    let lost = y.to_vec().unwrap_err();
    let ArrayError::LostAfterKernel { kernel, error: PoolError::DeviceLost(_) } = &lost else {
        panic!("{lost}")
    };
    assert_eq!(kernel, "wild");
    assert!(lost.to_string().contains("\"wild\""), "{lost}");
}

#[test]
fn devices_without_a_link_do_not_mix() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2).without_link(0, 1)).unwrap();
    let gpu = |ordinal| Gpu::new(&Pool::new(&Device::new(&driver, ordinal).unwrap()).unwrap()).unwrap();
    let (first, second) = (gpu(0), gpu(1));
    let (mut a, b) =
        (GpuArray::from_elem(&first, 3, 1.0_f32).unwrap(), GpuArray::from_elem(&second, 3, 1.0_f32).unwrap());
    let wrong = |error: ArrayError| {
        assert!(matches!(error, ArrayError::NoPeerAccess { .. }), "{error}");
        assert!(error.to_string().contains("device 1"), "{error}");
    };
    wrong(a.try_add(&b).unwrap_err());
    wrong(a.try_sub_assign(&b).unwrap_err());
    wrong(a.dot(&b).unwrap_err());
    wrong(a.on(&second).sum().unwrap_err());
    wrong(a.on_mut(&second).fill(0.0).unwrap_err());
    let refused = Gpu::with_stream(first.pool(), second.stream()).unwrap_err();
    assert!(matches!(refused, ArrayError::WrongDevice { .. }), "{refused}");
    let ramp = function(&first, "ramp").unwrap();
    // SAFETY: the launch is refused before it reaches the driver.
    wrong(unsafe { ramp.launch(LaunchShape::for_len(3)).read(&b).enqueue(&first).unwrap_err() });
    // SAFETY: as a kernel of another device, it is refused too.
    let refused = unsafe { ramp.launch(LaunchShape::for_len(3)).read(&b).enqueue(&second).unwrap_err() };
    assert!(matches!(refused, ArrayError::WrongDevice { .. }), "{refused}");
    assert_eq!(a.on(&second).to_vec().unwrap(), [1.0; 3], "a download needs no link");
    a.assign(&b).unwrap();
    assert_eq!(b.to_vec().unwrap(), [1.0; 3], "both devices still work");
    assert_eq!(a.to_vec().unwrap(), [1.0; 3]);
    assert!(a.into_gpu(&second).is_err());
}

/// Arrays check the stream of a launch; a launch without arrays, or with empty ones only, is checked as well.
#[test]
fn a_launch_without_arrays_checks_its_stream() {
    let gpu = gpu();
    let function = function(&gpu, "ramp").unwrap();
    let (pool, device) = (gpu.pool(), gpu.device());
    let theirs =
        std::thread::scope(|scope| scope.spawn(|| Stream::per_thread(device).unwrap()).join().unwrap());
    let retired = Stream::legacy(device).unwrap();
    retired.retire().unwrap();
    let wrong = [(theirs, PoolError::WrongThread), (retired, PoolError::StreamRetired)];
    for ((stream, expected), threads) in wrong.iter().flat_map(|wrong| [(wrong, 1), (wrong, 0)]) {
        let elsewhere = Gpu::with_stream(pool, stream).unwrap();
        let launch = function.launch(LaunchShape::for_len(threads)).scalar(0_u64).scalar(0_u64);
        // SAFETY: the kernel accesses no element of the array at 0.
        let refused = unsafe { launch.enqueue(&elsewhere) };
        let ArrayError::Pool(refused) = refused.unwrap_err() else { panic!("{expected}") };
        assert_eq!(refused.to_string(), expected.to_string());
    }
}

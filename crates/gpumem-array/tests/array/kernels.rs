//! Launches of the user's kernels, and their errors.

use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::{Axis, Ix1, s};
use gpumem_array::pool::sys::types::CUresult;
use gpumem_array::pool::{
    BackendKind, Capture, CaptureMode, Device, DeviceError, Pool, PoolError, Stream, StreamError,
};
use gpumem_array::{
    ArrayError, Function, Gpu, GpuArray, KernelSource, Launch, LaunchShape, UnifiedArray, kernels,
};
use gpumem_sim::{Effect, FaultKind, Finding, Kernel, Rule, Sim, SimConfig};

kernels! {
    static KERNELS = ptx include_str!("kernels.ptx");
}

fn function(gpu: &Gpu, name: &str) -> Result<Function, ArrayError> {
    gpu.compile(&KERNELS)?.function(name)
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
    assert_eq!((kernel.as_str(), parameter.as_str()), ("axpy", "axpy_param_1"));
    assert!(refused.to_string().contains("parameter 1 (axpy_param_1) has 4 bytes"), "{refused}");
    for count in [0, 1, 3, 5, 20] {
        let launch = (0..count).fold(axpy.launch(shape), |launch, _| launch.scalar(0_u64));
        // SAFETY: the launch is refused before the driver sees it.
        let refused = unsafe { launch.enqueue(&gpu) }.unwrap_err();
        assert!(
            matches!(refused, ArrayError::ArgumentCount { expected: 4, found, .. } if found == count),
            "{refused}"
        );
        assert!(refused.to_string().contains("(axpy_param_0, axpy_param_1, "), "{refused}");
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
        let launch = arrays.iter_mut().fold(launch, Launch::write);
        let launch = (0..8_u64).fold(launch, |launch, value| launch.scalar(value + round));
        // SAFETY: the arguments are those of the kernel, which writes one element of each array.
        unsafe { launch.enqueue(&other).unwrap() };
    }
    for (index, array) in (2..).zip(&arrays) {
        assert_eq!(array.to_vec().unwrap(), [index]);
    }
}

/// With the first number of loads that is enough, and none after it.
#[test]
fn our_own_kernels_can_be_loaded_ahead() {
    let gpu = |nth| {
        let effect = Effect::Fail(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        gpu_with(SimConfig::new().rule(Rule::new("cuModuleLoad*", effect).from_nth(nth)))
    };
    let is_loaded = |gpu: &Gpu| gpu.preload::<f32>().and_then(|()| gpu.preload::<i64>()).is_ok();
    let gpu = (1..100).map(gpu).find(is_loaded).unwrap();
    let x = GpuArray::from_elem(&gpu, (3, 4), 2.0_f32).unwrap();
    assert_eq!(x.t().dot(&x.index_axis(Axis(1), 0).unwrap()).unwrap().to_vec().unwrap(), [12.0; 4]);
    assert_eq!(x.t().to_array().unwrap().sum(), 24.0);
    let bytes = GpuArray::from_elem(&gpu, (700, 600), 3_u8).unwrap();
    assert_eq!(bytes.t().to_array().unwrap()[[599, 699]], 3);
    let rows = bytes.slice(s![.., 1..599]).unwrap().to_owned().unwrap();
    assert_eq!(rows.to_vec().unwrap(), [3; 700 * 598]);
    assert!(matches!(x.cast::<f64>(), Err(ArrayError::Pool(_))), "conversions are not loaded ahead");
    assert!(matches!(x.try_add(1.0), Err(ArrayError::Pool(_))), "expressions are not loaded ahead");
    let sum = gpu.preload_for(|c| x.on(c).lazy().exp().sum());
    assert!(matches!(sum, Err(ArrayError::Pool(_))), "it would load one");
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
    assert!(matches!(function(&gpu, "a\0b"), Err(ArrayError::ZeroByte { .. })));
    assert!(gpu.compile(&KernelSource::ptx("none", "this is no PTX")).is_err());

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
    let ArrayError::LostAfterKernel { kernel, error: PoolError::Device(DeviceError::DeviceLost(_)) } = &lost
    else {
        panic!("{lost}")
    };
    assert_eq!(kernel, "wild");
    assert!(lost.to_string().contains("\"wild\""), "{lost}");
}

/// The first call that reports the loss may be a large download or upload, a call on another stream, the host's access to unified memory, or
/// one after the launch of a graph. Each names the kernel.
#[test]
fn a_lost_context_names_the_kernel_everywhere() {
    const LEN: usize = 1 << 20;
    let launch = |gpu: &Gpu| {
        let wild = function(gpu, "wild").unwrap();
        let mut y = GpuArray::<u8, _>::zeros(gpu, 8).unwrap();
        // SAFETY: this deliberately violates the kernel's contract, on a simulated device.
        unsafe { wild.launch(LaunchShape::for_len(1)).write(&mut y).enqueue(gpu).unwrap() };
    };
    type Loss = fn(&Gpu, &dyn Fn(&Gpu)) -> ArrayError;
    let losses: [(&str, Loss); 6] = [
        ("large download", |gpu, launch| {
            let x = GpuArray::<u8, _>::zeros(gpu, LEN).unwrap();
            launch(gpu);
            x.to_vec().unwrap_err()
        }),
        ("large upload", |gpu, launch| {
            let mut x = GpuArray::<u8, _>::zeros(gpu, LEN).unwrap();
            launch(gpu);
            let _ = gpu.synchronize();
            x.copy_from_slice(&[1; LEN]).unwrap_err()
        }),
        ("another stream", |gpu, launch| {
            let other = gpu.fork().unwrap();
            launch(&other);
            let _ = other.synchronize();
            GpuArray::<u8, _>::zeros(gpu, 8).and_then(|x| x.to_vec()).unwrap_err()
        }),
        ("the thread's stream", |gpu, launch| {
            launch(&gpu.here().unwrap());
            gpu.here().unwrap().synchronize().unwrap_err()
        }),
        ("host access", |gpu, launch| {
            let mut x = UnifiedArray::<u8, _>::zeros(&gpu.unified(), 8).unwrap();
            x.fill(1).unwrap();
            launch(gpu);
            x.as_slice().unwrap_err()
        }),
        ("graph", |gpu, launch| {
            let captured = gpu.capture(|gpu| {
                launch(gpu);
                Ok(())
            });
            let (mut graph, ()) = captured.unwrap();
            graph.launch(gpu).run().unwrap();
            gpu.synchronize().unwrap_err()
        }),
    ];
    for (name, loss) in losses {
        let lost = loss(&gpu(), &launch);
        assert!(
            matches!(&lost, ArrayError::LostAfterKernel { kernel, .. } if kernel == "wild"),
            "{name}: {lost}"
        );
    }
}

#[test]
fn devices_without_a_link_do_not_mix() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2).without_link(0, 1)).unwrap();
    let gpu = |ordinal| Gpu::new(&Pool::from_env(&Device::new(&driver, ordinal).unwrap()).unwrap()).unwrap();
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
    let a = a.into_gpu(&second).unwrap_err().into_value();
    assert_eq!(a.to_vec().unwrap(), [1.0; 3]);
}

/// Arrays check the stream of a launch; a launch without arrays, or with empty ones only, is checked as well.
#[test]
fn a_launch_without_arrays_checks_its_stream() {
    let gpu = gpu();
    let function = function(&gpu, "ramp").unwrap();
    let (pool, device) = (gpu.pool(), gpu.device());
    // The end of a thread retires its default stream.
    let ended =
        std::thread::scope(|scope| scope.spawn(|| Stream::per_thread(device).unwrap()).join().unwrap());
    let retired = Stream::legacy(device).unwrap();
    retired.retire().unwrap();
    let wrong = [
        (ended, PoolError::Device(DeviceError::Stream(StreamError::Retired))),
        (retired, PoolError::Device(DeviceError::Stream(StreamError::Retired))),
    ];
    for ((stream, expected), threads) in wrong.iter().flat_map(|wrong| [(wrong, 1), (wrong, 0)]) {
        let elsewhere = Gpu::with_stream(pool, stream).unwrap();
        let launch = function.launch(LaunchShape::for_len(threads)).scalar(0_u64).scalar(0_u64);
        // SAFETY: the kernel accesses no element of the array at 0.
        let refused = unsafe { launch.enqueue(&elsewhere) };
        let ArrayError::Pool(refused) = refused.unwrap_err() else { panic!("{expected}") };
        assert_eq!(refused.to_string(), expected.to_string());
    }
}

kernels! {
    /// With an option, and attributes.
    #[expect(non_upper_case_globals, reason = "an attribute of the declaration")]
    pub(crate) static Answer = cuda r#"extern "C" __global__ void answer(unsigned *y) { *y = ANSWER; }"#,
        options ["--define-macro=ANSWER=2", "--std=c++17"];
}

/// With the compiler it runs; without, the error says what to do.
#[test]
fn cuda_text_needs_a_compiler() {
    let gpu = gpu();
    let module = match gpu.compile(&Answer) {
        Ok(module) => module,
        Err(error) => {
            assert!(matches!(&error, ArrayError::NoCompiler { .. }), "{error}");
            let text = error.to_string();
            assert!(["`nvrtc`", "nvcc -ptx"].iter().all(|part| text.contains(part)), "{text}");
            return;
        }
    };
    assert!(matches!(module.function("later"), Err(ArrayError::NoSuchKernel { .. })));
    let mut y = GpuArray::<u32, _>::zeros(&gpu, 1).unwrap();
    let function = module.function("answer").unwrap();
    // SAFETY: the argument is that of the kernel, which writes the only element.
    unsafe { function.launch(LaunchShape::for_len(1)).write(&mut y).enqueue(&gpu).unwrap() };
    assert_eq!(y.to_vec().unwrap(), [2]);
}

/// The driver's code alone would not say where.
#[test]
fn refused_texts_name_the_line() {
    let gpu = gpu();
    let text = |body: &str| {
        format!(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{\n{body}\nret; }}\n")
    };
    let broken = text("add.u32 %r1, %r2, ;");
    let error = gpu.compile(&KernelSource::ptx("BROKEN", &broken)).unwrap_err();
    let ArrayError::Compile { source_name, log } = &error else { panic!("{error}") };
    assert!(source_name == "BROKEN" && log.contains("line 5"), "{error}");
    let unsupported = text(".reg .b64 %rd; wgmma.fence.sync.aligned;").replace("sm_80", "sm_90a");
    let error = gpu.compile(&KernelSource::ptx("HOPPER", &unsupported)).unwrap().function("k").unwrap_err();
    assert!(matches!(&error, ArrayError::Compile { log, .. } if log.contains("wgmma")), "{error}");
}

#[test]
fn a_text_with_a_zero_byte_is_refused() {
    let refused = gpu().compile(&KernelSource::ptx("zero", "a\0b"));
    assert!(matches!(refused, Err(ArrayError::ZeroByte { .. })));
}

static REGISTERED: [Kernel; 1] = [Kernel::new("ramp", |launch| {
    let (y, n) = (launch.arg::<u64>()?, launch.arg::<u64>()?);
    launch.write::<f32>(y, n as usize)?.iter().for_each(|y| y.set(3.0));
    Ok(())
})];

/// It runs in place of the text, and the memory that it requests is compared with the launch in the same way.
#[test]
fn a_registered_function_that_leaves_its_arrays_is_found() {
    let gpu = gpu();
    let sim = Sim::of(gpu.device().driver()).unwrap();
    sim.register(&REGISTERED);
    let ramp = function(&gpu, "ramp").unwrap();
    let mut y = GpuArray::from_elem(&gpu, 64, 1.0_f32).unwrap();
    let mut launch = |n: u64| {
        // SAFETY: the first launch stays within the array. The simulator refuses what the second one does, so it reaches no memory.
        unsafe { ramp.launch(LaunchShape::for_len(64)).write(&mut y).scalar(n).enqueue(&gpu).unwrap() };
        gpu.synchronize()
    };
    launch(64).unwrap();
    launch(65).unwrap_err();
    let findings = sim.take_findings();
    // On backend `none` the allocation ends with the array.
    let [Finding::Fault { kind: FaultKind::Undeclared | FaultKind::OutOfBounds, text, .. }] = &findings[..]
    else {
        panic!("{findings:?}")
    };
    let ends =
        ["past the end of parameter 0, which has 256 bytes", "past the end of the allocation of 256 bytes"];
    assert!(ends.iter().any(|end| text.contains(end)), "{text}");
}

#[test]
fn a_module_that_a_drop_could_not_unload_goes_later() {
    for rule in
        ["cuModuleUnload#1=fail:UNKNOWN", "cuCtxSynchronize#1=fail:UNKNOWN", "cuModuleUnload#9=fail:2"]
    {
        let gpu = gpu_with(SimConfig::new().rule(rule.parse().unwrap()));
        let module_count = || Sim::of(gpu.device().driver()).unwrap().report().module_count;
        let before_count = module_count();
        let module = gpu.compile(&KERNELS).unwrap();
        assert_eq!(module_count(), before_count + 1);
        let capture = rule.contains('9').then(|| {
            let stream = Stream::new(gpu.device()).unwrap();
            Capture::begin(&stream, CaptureMode::Global).unwrap()
        });
        drop(module);
        assert_eq!(module_count(), before_count + 1, "{rule}");
        drop(capture);
        gpu.device().synchronize().unwrap();
        assert_eq!(module_count(), before_count, "{rule}");
    }
}

/// One element behind the end is enough: the error of the next call names the kernel.
#[test]
fn an_access_out_of_bounds_names_the_kernel() {
    let gpu = gpu();
    let (axpy, ramp) = (function(&gpu, "axpy").unwrap(), function(&gpu, "ramp").unwrap());
    let x = GpuArray::from_elem(&gpu, 64, 1.0_f32).unwrap();
    let mut y = GpuArray::<f32, _>::zeros(&gpu, 64).unwrap();
    // SAFETY: within the array.
    unsafe { ramp.launch(LaunchShape::for_len(64)).write(&mut y).scalar(64_u64).enqueue(&gpu).unwrap() };
    let launch =
        axpy.launch(LaunchShape::for_len(64)).write(&mut y).scalar(1.0_f32).read(&x).scalar(1_u64 << 40);
    // SAFETY: the kernel leaves its arrays, which is the test; the simulator refuses that access, so it reaches no memory.
    unsafe { launch.enqueue(&gpu).unwrap() };
    for lost in [y.to_vec().unwrap_err(), gpu.synchronize().unwrap_err()] {
        assert!(matches!(&lost, ArrayError::LostAfterKernel { kernel, .. } if kernel == "axpy"), "{lost}");
    }
}

/// Launches a kernel on arrays of 64 elements, and returns the only fault.
fn fault(
    gpu: &Gpu,
    name: &str,
    pass: impl for<'a> FnOnce(Launch<'a>, &'a mut GpuArray<f32, Ix1>, &'a GpuArray<f32, Ix1>) -> Launch<'a>,
) -> String {
    let function = function(gpu, name).unwrap();
    // What lies beside them in a pool belongs to others.
    let mut arrays = [(); 5].map(|()| GpuArray::from_elem(gpu, 64, 1.0_f32).unwrap());
    let [_, y, _, x, _] = &mut arrays;
    let launch = pass(function.launch(LaunchShape::for_len(64)), y, x);
    // SAFETY: the kernel leaves its arrays, which is the test; the simulator refuses that access, so it reaches no memory.
    unsafe { launch.enqueue(gpu).unwrap() };
    let lost = gpu.synchronize().unwrap_err();
    assert!(matches!(&lost, ArrayError::LostAfterKernel { kernel, .. } if kernel == name), "{lost}");
    let findings = Sim::of(gpu.device().driver()).unwrap().take_findings();
    let [Finding::Fault { kind: FaultKind::Undeclared | FaultKind::OutOfBounds, text, .. }] = &findings[..]
    else {
        panic!("{findings:?}")
    };
    text.clone()
}

/// Where arrays are allocations of their own, the finding names the allocation. Otherwise the pool has other arrays there, and the finding
/// names the parameter.
#[test]
fn a_kernel_that_leaves_its_arrays_is_found_on_every_backend() {
    let is_built = |backend: &BackendKind| match backend {
        BackendKind::Caching => cfg!(feature = "backend-caching"),
        BackendKind::Native => cfg!(feature = "backend-native"),
        _ => true,
    };
    for backend in
        [BackendKind::Caching, BackendKind::Native, BackendKind::None].iter().filter(|b| is_built(b))
    {
        let gpu = || {
            let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
            Gpu::new(&Pool::builder(&device).backend(*backend).build().unwrap()).unwrap()
        };
        let past =
            fault(&gpu(), "axpy", |launch, y, x| launch.write(y).scalar(1.0_f32).read(x).scalar(65_u64));
        assert!(past.starts_with("kernel `axpy` failed at line "), "{past}");
        assert!(past.contains("thread (64, 0, 0): it reads 4 bytes"), "{backend}: {past}");
        let ends_with = |end: &str| *backend != BackendKind::Caching || past.ends_with(end);
        assert!(ends_with(", past the end of parameter 2, which has 256 bytes"), "{past}");
        let past = fault(&gpu(), "ramp", |launch, y, _| launch.write(y).scalar(65_u64));
        assert!(past.contains("thread (64, 0, 0): it writes 4 bytes"), "{backend}: {past}");
        let ends_with = |end: &str| *backend != BackendKind::Caching || past.ends_with(end);
        assert!(ends_with(", past the end of parameter 0, which has 256 bytes"), "{past}");
        let read = fault(&gpu(), "ramp", |launch, _, x| launch.read(x).scalar(64_u64));
        assert!(read.contains(": it writes 4 bytes at 0x"), "{backend}: {read}");
        assert!(read.ends_with(", which the launch declares as read only: parameter 0"), "{read}");
    }
}

/// The declared bytes of a view end with its last element.
#[test]
fn a_kernel_stays_within_its_views() {
    let gpu = gpu();
    let ramp = function(&gpu, "ramp").unwrap();
    let mut y = GpuArray::from_elem(&gpu, 64, 1.0_f32).unwrap();
    let mut half = y.slice_mut(s![16..48]).unwrap();
    for n in [32_u64, 33] {
        // SAFETY: the first launch stays within the view. The simulator refuses what the second one does, so it reaches no memory.
        unsafe { ramp.launch(LaunchShape::for_len(33)).write(&mut half).scalar(n).enqueue(&gpu).unwrap() };
        assert_eq!(gpu.synchronize().is_ok(), n == 32);
    }
    let findings = Sim::of(gpu.device().driver()).unwrap().take_findings();
    assert!(matches!(findings[..], [Finding::Fault { kind: FaultKind::Undeclared, .. }]), "{findings:?}");
}

/// A kernel that takes addresses alone reads elements side by side, so other views need a word that they are meant.
#[test]
fn views_in_another_order_are_refused_unless_they_are_named() {
    let gpu = gpu();
    let axpy = function(&gpu, "axpy").unwrap();
    let x = GpuArray::from_elem(&gpu, (8, 4), 2.0_f32).unwrap();
    let mut y = GpuArray::from_elem(&gpu, (4, 8), 1.0_f32).unwrap();
    let shape = LaunchShape::for_len(8);
    let wrong = |result: Result<(), ArrayError>| {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, ArrayError::NotContiguous { shape, strides, .. } if !shape.is_empty() && shape.len() == strides.len())
        );
        assert!(error.to_string().contains("`read_strided`"), "{error}");
    };
    // SAFETY: the kernel reads and writes at most 8 elements from the first of each view, and the arrays have as many behind it.
    unsafe {
        for turned in [x.t(), x.slice(s![..;2, ..]).unwrap(), x.slice(s![.., ..2]).unwrap()] {
            wrong(axpy.launch(shape).write(&mut y).scalar(1.0_f32).read(&turned).scalar(8_u64).enqueue(&gpu));
        }
        let mut turned = y.slice_mut(s![..;-1, ..]).unwrap();
        wrong(axpy.launch(shape).write(&mut turned).scalar(1.0_f32).read(&x).scalar(8_u64).enqueue(&gpu));
        let launch = axpy.launch(shape).write_strided(&mut turned).scalar(1.0_f32);
        launch.read_strided(&x.t()).scalar(8_u64).enqueue(&gpu).unwrap();
        // A refused launch leaves nothing behind.
        let launch = axpy.launch(shape).write(&mut y).scalar(1.0_f32);
        launch.read(&x.slice(s![4.., ..]).unwrap()).scalar(8_u64).enqueue(&gpu).unwrap();
    }
    assert_eq!(y.slice(s![0, ..]).unwrap().to_vec().unwrap(), [3.0; 8]);
    assert_eq!(y.slice(s![1..3, ..]).unwrap().to_vec().unwrap(), [1.0; 16]);
    assert_eq!(y.slice(s![3, ..]).unwrap().to_vec().unwrap(), [3.0; 8]);
}

/// A graph has the declarations of its launches.
#[test]
fn a_captured_kernel_that_leaves_its_arrays_is_found() {
    let gpu = gpu();
    let ramp = function(&gpu, "ramp").unwrap();
    let mut y = GpuArray::from_elem(&gpu, 64, 1.0_f32).unwrap();
    for n in [64_u64, 65] {
        let launch = |c: &Gpu, y: &mut GpuArray<f32, Ix1>| {
            let launch = ramp.launch(LaunchShape::for_len(65)).write(y).scalar(n);
            // SAFETY: the first launch stays within the array. The simulator refuses what the second one does, so it reaches no memory.
            unsafe { launch.enqueue(c) }
        };
        let (mut graph, ()) = gpu.capture(|c| launch(c, &mut y)).unwrap();
        graph.launch(&gpu).write(&mut y).run().unwrap();
        assert_eq!(gpu.synchronize().is_ok(), n == 64);
    }
    let findings = Sim::of(gpu.device().driver()).unwrap().take_findings();
    // On backend `none` the allocation ends with the array.
    let [Finding::Fault { kind: FaultKind::Undeclared | FaultKind::OutOfBounds, .. }] = findings[..] else {
        panic!("{findings:?}")
    };
}

#[test]
fn a_kernel_uses_the_variables_of_its_module() {
    let gpu = gpu();
    let counted = function(&gpu, "counted").unwrap();
    let mut y = GpuArray::<u32, _>::zeros(&gpu, 1).unwrap();
    for count in 0..3 {
        // SAFETY: the argument is that of the kernel, which writes the only element.
        unsafe {
            counted
                .launch(LaunchShape { grid: [1; 3], block: [1; 3], shared_bytes: 0 })
                .write(&mut y)
                .enqueue(&gpu)
                .unwrap()
        };
        assert_eq!(y.to_vec().unwrap(), [count]);
    }
}

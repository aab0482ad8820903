//! The cost of a launch on the host: the argument list, the waits between streams, and the driver call. The launch function of the
//! simulator's driver is replaced by a stub that returns at once, and the time of the bare stub is subtracted. So is the function
//! that queues uploads, for the cost of a small one.
//!
//! `cargo bench -p gpumem-array --bench tracking`. `GPUMEM_BENCH_ROUNDS` sets the number of repetitions, and
//! `-- --quick` is a few; `--rows` prints rows for `cargo xtask bench`.

#![allow(clippy::print_stdout, reason = "printing is the purpose of a benchmark")]

use core::ffi::{c_uint, c_void};
use gpumem_array::ndarray::Ix1;
use gpumem_array::pool::sys::types::{CUcontext, CUdeviceptr, CUfunction, CUresult, CUstream};
use gpumem_array::pool::{Device, Pool};
use gpumem_array::{ArrayError, Function, Gpu, GpuArray, KernelSource, LaunchShape};
use gpumem_sim::SimConfig;
use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

const PTX: &str = "
    .version 7.8
    .target sm_70
    .address_size 64
    .visible .entry axpy(.param .u64 y, .param .u64 a, .param .u64 b, .param .f32 factor, .param .u64 n) {
        .reg .b64 %n;
        ld.param.u64 %n, [n];
        ret;
    }";

/// The context of the device, which the stubs report as current on every thread.
static CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

unsafe extern "C" fn get_current(context: *mut CUcontext) -> CUresult {
    // SAFETY: the caller passes the address of a context pointer.
    unsafe { context.write(CONTEXT.load(Ordering::Relaxed).cast()) };
    CUresult::CUDA_SUCCESS
}

/// The number of the context, by which calls notice a reset of the device.
static CONTEXT_ID: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn get_id(_: CUcontext, id: *mut u64) -> CUresult {
    // SAFETY: the caller passes the address of a number.
    unsafe { id.write(CONTEXT_ID.load(Ordering::Relaxed)) };
    CUresult::CUDA_SUCCESS
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
unsafe extern "C" fn launch(
    function: CUfunction,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    _: *mut *mut c_void,
) -> CUresult {
    black_box((function, stream, parameters));
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn upload(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream) -> CUresult {
    black_box((to, from, size, stream));
    CUresult::CUDA_SUCCESS
}

fn main() -> Result<(), Box<dyn Error>> {
    let usual = if has("--quick") { 20 } else { 2000 };
    let rounds =
        std::env::var("GPUMEM_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let sim = gpumem_sim::driver(SimConfig::new())?;
    // SAFETY: the stubs have the signatures of the functions that they replace, and queue nothing.
    let driver = unsafe {
        sim.with_table(|table| {
            table.cuLaunchKernel = Some(launch);
            table.cuMemcpyHtoDAsync_v2 = Some(upload);
            table.cuCtxGetCurrent = Some(get_current);
            table.cuCtxGetId = Some(get_id);
        })
    };
    let real = Device::new(&sim, 0)?;
    let _bound = real.bind()?;
    let mut id = 0;
    // SAFETY: the context is alive, and `id` outlives the call.
    unsafe { sim.cuCtxGetId(real.context(), &mut id)? };
    CONTEXT_ID.store(id, Ordering::Relaxed);
    let device = Device::new(&driver, 0)?;
    CONTEXT.store(device.context().cast(), Ordering::Relaxed);
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    let axpy = gpu.compile(&KernelSource::ptx("axpy", PTX))?.function("axpy")?;
    let (a, b) = (GpuArray::from_elem(&gpu, LEN, 1.0_f32)?, GpuArray::from_elem(&gpu, LEN, 2.0_f32)?);

    let bare_ns = best_ns(rounds, || bare(&gpu));
    let mut y = GpuArray::<f32, _>::zeros(&gpu, LEN)?;
    let one_ns = best_ns(rounds, || step(&axpy, &gpu, &mut y, &a, &b)) - bare_ns;
    print("bare stub", bare_ns);
    print("three arrays, one stream", one_ns);
    let expression_ns = best_ns(rounds, || y.assign_expr(a.lazy() + b.lazy() * 0.5)) - bare_ns;
    print("a + b * 0.5 into y, one stream", expression_ns);
    print("above a launch with these arguments", expression_ns - one_ns);
    let sum_ns = best_ns(rounds, || y.try_add_assign(&a)) - bare_ns;
    print("y += a, one stream", sum_ns);
    let table = a.reshape((LEN / 16, 16))?;
    let (row, mut to) =
        (GpuArray::from_elem(&gpu, 16, 1.0_f32)?, GpuArray::<f32, _>::zeros(&gpu, (LEN / 16, 16))?);
    print("x - row into y, one stream", best_ns(rounds, || to.assign_expr(table.lazy() - &row)) - bare_ns);

    let host = vec![1.0_f32; UPLOAD_LEN];
    let mut target = GpuArray::<f32, _>::zeros(&gpu, UPLOAD_LEN)?;
    print("upload of 4 KiB", best_ns(rounds, || target.copy_from_slice(black_box(&host))));
    let mut copy = vec![0.0_f32; UPLOAD_LEN];
    let copied_ns = best_ns(rounds, || {
        black_box(&mut copy).copy_from_slice(black_box(&host));
        Ok(())
    });
    print("copy of 4 KiB on the host", copied_ns);

    // Each thread has a stream of its own from the beginning, as with `Gpu::here`.
    let barrier = |count| Arc::new(Barrier::new(count));
    let own = |barrier: Arc<Barrier>| -> Result<f64, ArrayError> {
        let _bound = real.bind()?;
        let fork = gpu.fork()?;
        let mut y = GpuArray::<f32, _>::zeros(&fork, LEN)?;
        barrier.wait();
        Ok(best_ns(rounds, || step(&axpy, &fork, &mut y, &a, &b)) - bare_ns)
    };
    print("two of another stream", own(barrier(1))?);
    let both = barrier(2);
    let both_ns = std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| own(Arc::clone(&both))));
        let times = threads.map(|thread| thread.join().map_or(f64::NAN, |ns| ns.unwrap_or(f64::NAN)));
        times.into_iter().fold(0.0, f64::max)
    });
    print("two of another stream, on two threads", both_ns);
    Ok(())
}

fn print(name: &str, ns: f64) {
    if has("--rows") {
        let name: String = name.chars().map(|letter| if letter == ' ' { '_' } else { letter }).collect();
        println!("row\tarray/launch/{}\t{ns}\tns", name.replace(',', ""));
    } else {
        println!("{name:<40} {ns:>7.1} ns");
    }
}

fn has(option: &str) -> bool {
    std::env::args().any(|arg| arg == option)
}

/// `y = a + factor * b` on the stream of `gpu`.
fn step(
    axpy: &Function,
    gpu: &Gpu,
    y: &mut GpuArray<f32, Ix1>,
    a: &GpuArray<f32, Ix1>,
    b: &GpuArray<f32, Ix1>,
) -> Result<(), ArrayError> {
    let launch = axpy.launch(LaunchShape::for_len(LEN)).write(y).read(a).read(b);
    // SAFETY: the arguments are those of the kernel, which does nothing.
    unsafe { launch.scalar(0.5_f32).scalar(LEN as u64).enqueue(gpu) }
}

fn bare(gpu: &Gpu) -> Result<(), ArrayError> {
    let mut parameters = [std::ptr::null_mut(); 5];
    // SAFETY: the stub ignores its arguments.
    unsafe {
        gpu.device().driver().cuLaunchKernel(
            black_box(std::ptr::null_mut()),
            1,
            1,
            1,
            256,
            1,
            1,
            0,
            gpu.stream().raw(),
            parameters.as_mut_ptr(),
            std::ptr::null_mut(),
        )?;
    }
    Ok(())
}

/// The minimum time of a call over many batches: other programs can only increase it.
fn best_ns(rounds: usize, mut call: impl FnMut() -> Result<(), ArrayError>) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let begin = Instant::now();
        for _ in 0..BATCH {
            if let Err(error) = call() {
                println!("{error}");
                return f64::NAN;
            }
        }
        best = best.min(begin.elapsed().as_secs_f64() * 1e9 / BATCH as f64);
    }
    best
}

const LEN: usize = 256;
/// 4 KiB.
const UPLOAD_LEN: usize = 1024;
const BATCH: usize = 1000;

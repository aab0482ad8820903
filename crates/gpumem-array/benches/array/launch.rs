//! The host's time for a launch of a kernel with three arrays on NVIDIA's driver: ours, cudarc's with and without its tracking, and the
//! bare call of the driver.

use crate::Done;
use crate::print::{peer_row, row};
use core::ffi::{CStr, c_void};
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gpumem_array::ndarray::Ix1;
use gpumem_array::pool::sys::DriverKind;
use gpumem_array::pool::sys::types::CUfunction;
use gpumem_array::{Gpu, GpuArray, KernelSource, LaunchShape};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// The kernel does nothing: its time on the device is not measured, and the queue of the stream does not fill up.
const PTX: &CStr = c"
    .version 7.8
    .target sm_70
    .address_size 64
    .visible .entry axpy(.param .u64 y, .param .u64 a, .param .u64 b, .param .f32 factor, .param .u64 n) {
        .reg .b64 %n;
        ld.param.u64 %n, [n];
        ret;
    }";

pub(crate) fn rows(gpu: &Gpu) -> Done {
    if gpu.device().driver().kind() != DriverKind::Cuda {
        println!("launches: needs NVIDIA's driver");
        return Ok(());
    }
    let (ours, bare) = (ours_ns(gpu)?, bare_ns(gpu)?);
    let (theirs, theirs_untracked) = (cudarc_ns(true)?, cudarc_ns(false)?);
    row("launch_of_three_arrays", ours, "ns");
    peer_row("launch_of_three_arrays", ours, theirs, "ns", "cudarc");
    peer_row("launch_of_three_arrays", ours, theirs_untracked, "ns", "cudarc untracked");
    peer_row("launch_of_three_arrays", ours, bare, "ns", "cuLaunchKernel");
    // Ours over the bare call, cudarc's over its own launch without tracking.
    row("launch_tracking", ours - bare, "ns");
    peer_row("launch_tracking", ours - bare, theirs - theirs_untracked, "ns", "cudarc");
    Ok(())
}

fn ours_ns(gpu: &Gpu) -> Result<f64, Box<dyn Error>> {
    let axpy = gpu.compile(&KernelSource::ptx("axpy", PTX.to_str()?))?.function("axpy")?;
    let (a, b) = (GpuArray::from_elem(gpu, LEN, 1.0_f32)?, GpuArray::from_elem(gpu, LEN, 2.0_f32)?);
    let mut y = GpuArray::<f32, Ix1>::zeros(gpu, LEN)?;
    best_ns(
        || {
            let launch = axpy.launch(LaunchShape::for_len(LEN)).write(&mut y).read(&a).read(&b);
            // SAFETY: the arguments are those of the kernel, which does nothing.
            unsafe { launch.scalar(0.5_f32).scalar(LEN as u64).enqueue(gpu)? };
            Ok(())
        },
        || Ok(gpu.synchronize()?),
    )
}

fn bare_ns(gpu: &Gpu) -> Result<f64, Box<dyn Error>> {
    let (driver, _bound) = (gpu.device().driver(), gpu.device().bind()?);
    let (mut module, mut function): (_, CUfunction) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: the texts end with a zero byte, and all outlive the calls.
    unsafe {
        driver.cuModuleLoadData(&mut module, PTX.as_ptr().cast())?;
        driver.cuModuleGetFunction(&mut function, module, c"axpy".as_ptr())?;
    }
    let (address, factor, n) = (0_u64, 0.5_f32, LEN as u64);
    let pointer = |value: *const u64| value.cast_mut().cast::<c_void>();
    let mut parameters = [
        pointer(&address),
        pointer(&address),
        pointer(&address),
        pointer((&raw const factor).cast()),
        pointer(&n),
    ];
    let (stream, nothing) = (gpu.stream().raw(), core::ptr::null_mut());
    let ns = best_ns(
        // SAFETY: the function is loaded, the parameters are its own, and it does nothing.
        || unsafe {
            Ok(driver.cuLaunchKernel(
                function,
                1,
                1,
                1,
                256,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                nothing,
            )?)
        },
        || Ok(gpu.synchronize()?),
    )?;
    // SAFETY: all launches are complete.
    unsafe { driver.cuModuleUnload(module)? };
    Ok(ns)
}

/// cudarc tracks uses by events once its context has a stream besides the default stream.
fn cudarc_ns(is_tracked: bool) -> Result<f64, Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    if !is_tracked {
        // SAFETY: everything is on one stream.
        unsafe { context.disable_event_tracking() };
    }
    let stream = context.new_stream()?;
    let axpy = context.load_module(Ptx::from_src(PTX.to_str()?))?.load_function("axpy")?;
    let (a, b) = (stream.alloc_zeros::<f32>(LEN)?, stream.alloc_zeros::<f32>(LEN)?);
    let mut y = stream.alloc_zeros::<f32>(LEN)?;
    best_ns(|| cudarc_step(&stream, &axpy, &mut y, [&a, &b]), || Ok(stream.synchronize()?))
}

fn cudarc_step(
    stream: &Arc<CudaStream>,
    axpy: &CudaFunction,
    y: &mut CudaSlice<f32>,
    [a, b]: [&CudaSlice<f32>; 2],
) -> Done {
    let shape = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    let (factor, n) = (0.5_f32, LEN as u64);
    let mut launch = stream.launch_builder(axpy);
    launch.arg(y).arg(a).arg(b).arg(&factor).arg(&n);
    // SAFETY: the arguments are those of the kernel, which does nothing.
    unsafe { launch.launch(shape)? };
    Ok(())
}

/// The time of a call: the minimum over many batches, each of which begins with an empty queue.
fn best_ns(mut call: impl FnMut() -> Done, mut wait: impl FnMut() -> Done) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..BATCHES {
        wait()?;
        let begin = Instant::now();
        for _ in 0..BATCH {
            call()?;
        }
        best = best.min(begin.elapsed().as_secs_f64() * 1e9 / BATCH as f64);
    }
    wait()?;
    Ok(best)
}

const LEN: usize = 256;
/// The driver's queue has room for more.
const BATCH: usize = 100;
const BATCHES: usize = 500;

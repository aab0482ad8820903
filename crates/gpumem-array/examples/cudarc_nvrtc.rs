//! A kernel that cudarc compiles with NVRTC and launches, with arrays and a slice of cudarc as its arguments.
//!
//! `cargo run -p gpumem-array --features cudarc,nvrtc --example cudarc_nvrtc`, on a GPU where NVRTC is installed. The array is lent for
//! the launch, so the sum afterwards waits for the kernel, on the device. The slice becomes an array without a copy.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::cudarc::cudarc::driver::{self, CudaContext, LaunchConfig, PushKernelArg};
use gpumem_array::cudarc::cudarc::nvrtc::{self, compile_ptx};
use gpumem_array::cudarc::{self, SharedStream};
use gpumem_array::pool::{Pool, sys::Driver};
use gpumem_array::{Gpu, GpuArray};
use std::error::Error;

const SAXPY: &str = r#"
    extern "C" __global__ void saxpy(float *y, const float *x, float a, unsigned n) {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] += a * x[i];
    }"#;

const LEN: usize = 1 << 16;

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: loading runs the initialisers of the vendor's libraries, which have no conditions.
    if !unsafe { driver::sys::is_culib_present() && nvrtc::sys::is_culib_present() } {
        return Err("NVRTC or NVIDIA's driver is not installed: this example needs libnvrtc on the library path, and a GPU".into());
    }
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let saxpy = context.load_module(compile_ptx(SAXPY)?)?.load_function("saxpy")?;
    let device = cudarc::device(&Driver::cuda()?, &context)?;
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    let shared = SharedStream::new(&device, &stream)?;

    let x = stream.clone_htod(&vec![2.0_f32; LEN])?;
    let mut y = GpuArray::from_elem(&gpu, LEN, 1.0_f32)?;
    {
        let mut target = shared.write(&mut y)?;
        let mut launch = stream.launch_builder(&saxpy);
        launch.arg(&mut target).arg(&x).arg(&3.0_f32).arg(&(LEN as u32));
        // SAFETY: the arguments are those of the kernel, which stays within them, and the guard is that of the launch's stream.
        unsafe { launch.launch(LaunchConfig::for_num_elems(LEN as u32))? };
    }
    let x = GpuArray::from_cuda_slice(&gpu, x)?;
    let sum = y.try_add(&x)?.sum()?.into_scalar()?;
    println!("{LEN} elements of 1 + 3 · 2, and 2 more: the sum is {sum}");
    assert_eq!(sum, 9.0 * LEN as f32);
    Ok(())
}

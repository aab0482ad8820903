//! Random numbers of cuRAND, through cudarc's safe API, written into an array; their mean and variance by this crate's kernels.
//!
//! `cargo run -p gpumem-array --features cudarc --example cudarc_curand`, on a GPU where cuRAND is installed. No `unsafe` is needed for
//! the random numbers: cuRAND's stream waits for the array, and the sums wait for cuRAND.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::cudarc::cudarc::curand::{self, CudaRng};
use gpumem_array::cudarc::cudarc::driver::{self, CudaContext};
use gpumem_array::cudarc::{self, SharedStream};
use gpumem_array::ndarray::{Axis, Slice};
use gpumem_array::pool::{Pool, sys::Driver};
use gpumem_array::{Gpu, GpuArray};
use std::error::Error;

const LEN: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: loading runs the initialisers of the vendor's libraries, which have no conditions.
    if !unsafe { driver::sys::is_culib_present() && curand::sys::is_culib_present() } {
        return Err("cuRAND or NVIDIA's driver is not installed: this example needs libcurand on the library path, and a GPU".into());
    }
    let stream = CudaContext::new(0)?.new_stream()?;
    let device = cudarc::device(&Driver::cuda()?, stream.context())?;
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    let (shared, rng) = (SharedStream::new(&device, &stream)?, CudaRng::new(17, stream)?);

    let mut numbers = GpuArray::from_elem(&gpu, 2 * LEN, -1.0_f32)?;
    // The first half only: a view is an argument like an array.
    let mut half = numbers.slice_axis_mut(Axis(0), Slice::from(..LEN))?;
    rng.fill_with_uniform(&mut shared.write(&mut half)?)?;

    let drawn = numbers.slice_axis(Axis(0), Slice::from(..LEN))?;
    let mean = drawn.sum()?.into_scalar()? / LEN as f32;
    let variance = drawn.dot(&drawn)?.into_scalar()? / LEN as f32 - mean * mean;
    println!("{LEN} uniform numbers of cuRAND: mean {mean:.4}, variance {variance:.4}");
    assert!((mean - 0.5).abs() < 0.002 && (variance - 1.0 / 12.0).abs() < 0.002);
    let rest = numbers.slice_axis(Axis(0), Slice::from(LEN..))?;
    assert_eq!(rest.sum()?.into_scalar()?, -(LEN as f32));
    Ok(())
}

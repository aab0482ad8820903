//! A product of two matrices by cuBLAS, through cudarc's safe API, with arrays as its arguments.
//!
//! `cargo run -p gpumem-array --features cudarc --example cudarc_cublas`, on a GPU where cuBLAS is installed. Nothing is copied and the
//! host waits only for the result: each side's stream waits, on the device, for what the other has queued.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::cudarc::cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use gpumem_array::cudarc::cudarc::cublas::{self, CudaBlas, Gemm, GemmConfig};
use gpumem_array::cudarc::cudarc::driver::{self, CudaContext};
use gpumem_array::cudarc::{self, SharedStream};
use gpumem_array::ndarray::Array2;
use gpumem_array::pool::{Pool, sys::Driver};
use gpumem_array::{Gpu, GpuArray};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: loading runs the initialisers of the vendor's libraries, which have no conditions.
    if !unsafe { driver::sys::is_culib_present() && cublas::sys::is_culib_present() } {
        return Err("cuBLAS or NVIDIA's driver is not installed: this example needs libcublas on the library path, and a GPU".into());
    }
    let stream = CudaContext::new(0)?.new_stream()?;
    let device = cudarc::device(&Driver::cuda()?, stream.context())?;
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    let (shared, blas) = (SharedStream::new(&device, &stream)?, CudaBlas::new(stream)?);

    let (m, k, n) = (300, 200, 100);
    let left = Array2::from_shape_fn((m, k), |(row, column)| ((row + column) % 7) as f32);
    let right = Array2::from_shape_fn((k, n), |(row, column)| ((row * column) % 5) as f32 - 2.0);
    let (a, b) = (GpuArray::from_array(&gpu, &left)?, GpuArray::from_array(&gpu, &right)?);
    let mut c = GpuArray::<f32, _>::zeros(&gpu, (m, n))?;

    // cuBLAS counts columns first, so the rows of `c` are the columns of `bᵀ · aᵀ`.
    let [m, k, n] = [m, k, n].map(|length| length as i32);
    let config = GemmConfig {
        transa: CUBLAS_OP_N,
        transb: CUBLAS_OP_N,
        m: n,
        n: m,
        k,
        alpha: 1.0_f32,
        lda: n,
        ldb: k,
        beta: 0.0,
        ldc: n,
    };
    // SAFETY: the lengths are those of the matrices, which are contiguous in row-major order.
    unsafe { blas.gemm(config, &shared.read(&b)?, &shared.read(&a)?, &mut shared.write(&mut c)?)? };

    let product = (&c * 0.5).to_array()?; // on the stream of `gpu`, which waits for cuBLAS
    assert_eq!(product, left.dot(&right) * 0.5);
    println!("a product of {m} × {k} and {k} × {n} elements by cuBLAS; the first is {}", product[[0, 0]]);
    Ok(())
}

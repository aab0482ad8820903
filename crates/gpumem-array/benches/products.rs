//! Products of matrices: ours, cuBLAS through `Cublas`, and a bare call of cuBLAS into one result, by events on the device, with the rates
//! and ours beside the bare call. Without a GPU, or without cuBLAS or the feature `cudarc`, ours alone.
//!
//! `cargo bench -p gpumem-array --features cudarc,half --bench products`; with `-- --rows`, in the format of `cargo xtask bench`.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::ndarray::{Ix2, Ix3};
use gpumem_array::pool::sys::DriverKind;
use gpumem_array::pool::{Device, Event, Pool};
use gpumem_array::{ArrayError, Factor, Gpu, GpuArray};
use half::bf16;
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}", driver.kind());
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    let is_cuda = driver.kind() == DriverKind::Cuda;
    let size = |len: usize| if is_cuda { len } else { len / 64 };
    let bench = Bench { gpu: &gpu, rounds: if is_cuda { 20 } else { 1 } };
    for len in [4096, 2048, 1024].map(size) {
        bench.matrices::<f32>("f32", [len; 3])?;
        bench.matrices::<bf16>("bf16", [len; 3])?;
    }
    bench.matrices::<f64>("f64", [size(2048); 3])?;
    bench.matrices::<f32>("f32", [512, 8192, 512].map(size))?;
    bench.matrices::<bf16>("bf16", [512, 8192, 512].map(size))?;
    bench.matrices::<f32>("f32", [4095, 4093, 4097].map(size))?;
    bench.matrices::<bf16>("bf16", [4095, 4093, 4097].map(size))?;
    bench.matrices::<f32>("f32", [if is_cuda { 1 << 20 } else { 1024 }, 64, 16])?;
    bench.stacks::<f32>("f32", 64, 128)?;
    bench.stacks::<bf16>("bf16", 64, 128)?;
    Ok(())
}

struct Bench<'a> {
    gpu: &'a Gpu,
    rounds: usize,
}

/// Elements of this bench.
#[cfg(feature = "cudarc")]
trait Element: Factor + gpumem_array::CublasElement {}
#[cfg(feature = "cudarc")]
impl<T: Factor + gpumem_array::CublasElement> Element for T {}
#[cfg(not(feature = "cudarc"))]
trait Element: Factor {}
#[cfg(not(feature = "cudarc"))]
impl<T: Factor> Element for T {}

impl Bench<'_> {
    fn matrices<T: Element>(
        &self,
        name: &str,
        [rows, terms, columns]: [usize; 3],
    ) -> Result<(), Box<dyn Error>> {
        let a = GpuArray::<T, Ix2>::from_elem(self.gpu, (rows, terms), T::ONE)?;
        let b = GpuArray::<T, Ix2>::from_elem(self.gpu, (terms, columns), T::ONE)?;
        let work = 2.0 * rows as f64 * terms as f64 * columns as f64;
        let name = format!("{name}, {rows} × {terms} × {columns}");
        let ours = self.time(|| a.dot(&b).map(drop))?;
        print(&format!("{name}, ours"), ours, work);
        let turned = self.time(|| b.t().dot(&a.t()).map(drop))?;
        print(&format!("{name}, ours, transposed"), turned, work);
        #[cfg(feature = "cudarc")]
        if self.has_cublas() {
            let blas = gpumem_array::Cublas::new(self.gpu)?;
            let theirs = self.time(|| blas.dot(&a, &b).map(drop))?;
            print(&format!("{name}, Cublas"), theirs, work);
            let c = GpuArray::<T, _>::zeros(self.gpu, (1, rows, columns))?;
            let bare = self.bare(&a.into_shape((1, rows, terms))?, &b.into_shape((1, terms, columns))?, c)?;
            print(&format!("{name}, bare call of cuBLAS"), bare, work);
            println!("{name}: ours / bare {:.3}, Cublas / bare {:.3}", bare / ours, bare / theirs);
        }
        Ok(())
    }

    fn stacks<T: Element>(&self, name: &str, count: usize, len: usize) -> Result<(), Box<dyn Error>> {
        let shape = (count, len, len);
        let a = GpuArray::<T, Ix3>::from_elem(self.gpu, shape, T::ONE)?;
        let b = GpuArray::<T, Ix3>::from_elem(self.gpu, shape, T::ONE)?;
        let (work, name) = (2.0 * count as f64 * (len as f64).powi(3), format!("{name}, {count} × {len}³"));
        let ours = self.time(|| a.matmul(&b).map(drop))?;
        print(&format!("{name}, ours"), ours, work);
        #[cfg(feature = "cudarc")]
        if self.has_cublas() {
            let bare = self.bare(&a, &b, GpuArray::zeros(self.gpu, shape)?)?;
            print(&format!("{name}, bare call of cuBLAS"), bare, work);
            println!("{name}: ours / bare {:.3}", bare / ours);
        }
        Ok(())
    }

    #[cfg(feature = "cudarc")]
    fn has_cublas(&self) -> bool {
        // SAFETY: loading runs the initialisers of the vendor's library, which have no conditions.
        self.gpu.device().driver().kind() == DriverKind::Cuda
            && unsafe { cudarc::cublas::sys::is_culib_present() }
    }

    /// The microseconds of a call of cuBLAS, with nothing around it.
    #[cfg(feature = "cudarc")]
    fn bare<T: Element>(
        &self,
        a: &GpuArray<T, Ix3>,
        b: &GpuArray<T, Ix3>,
        mut c: GpuArray<T, Ix3>,
    ) -> Result<f64, Box<dyn Error>> {
        use cudarc::cublas::sys::{
            cublasComputeType_t, cublasCreate_v2, cublasDestroy_v2, cublasGemmAlgo_t,
            cublasGemmStridedBatchedEx, cublasOperation_t::CUBLAS_OP_N, cublasSetStream_v2, cudaDataType_t,
        };
        let _bound = self.gpu.device().bind()?;
        let mut handle = core::ptr::null_mut();
        // SAFETY: the context is current, and the stream outlives the handle.
        unsafe {
            cublasCreate_v2(&mut handle).result()?;
            cublasSetStream_v2(handle, self.gpu.stream().raw().cast()).result()?;
        }
        let is_double = T::CUBLAS_TYPE == cudaDataType_t::CUDA_R_64F;
        let compute = match is_double {
            true => cublasComputeType_t::CUBLAS_COMPUTE_64F,
            false => cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let (count, [m, k], n) =
            (a.shape()[0] as i32, [a.shape()[1] as i32, a.shape()[2] as i32], b.shape()[2] as i32);
        let [one, zero] = [1_u64, 0].map(|value| match is_double {
            true => (value as f64).to_bits(),
            false => u64::from((value as f32).to_bits()),
        });
        let (a, b) = (a.read_on(self.gpu)?, b.read_on(self.gpu)?);
        let c = c.write_on(self.gpu)?;
        let time = self.time(|| {
            // SAFETY: the matrices are contiguous, with these lengths, and the guards have ordered the stream.
            let status = unsafe {
                cublasGemmStridedBatchedEx(
                    handle,
                    CUBLAS_OP_N,
                    CUBLAS_OP_N,
                    n,
                    m,
                    k,
                    core::ptr::from_ref(&one).cast(),
                    b.address() as *const _,
                    T::CUBLAS_TYPE,
                    n,
                    i64::from(n) * i64::from(k),
                    a.address() as *const _,
                    T::CUBLAS_TYPE,
                    k,
                    i64::from(m) * i64::from(k),
                    core::ptr::from_ref(&zero).cast(),
                    c.address() as *mut _,
                    T::CUBLAS_TYPE,
                    n,
                    i64::from(m) * i64::from(n),
                    count,
                    compute,
                    cublasGemmAlgo_t::CUBLAS_GEMM_DFALT,
                )
            };
            assert!(status.result().is_ok(), "{status:?}");
            Ok(())
        })?;
        // SAFETY: it is not used after this.
        unsafe { cublasDestroy_v2(handle).result()? };
        Ok(time)
    }

    /// Microseconds on the device for a call, after some that warm it up: the best of five series.
    fn time(&self, mut operation: impl FnMut() -> Result<(), ArrayError>) -> Result<f64, Box<dyn Error>> {
        let begin = Instant::now();
        operation()?;
        self.gpu.synchronize()?;
        while begin.elapsed().as_millis() < 100 && self.rounds > 1 {
            operation()?;
        }
        let mut best = f64::INFINITY;
        for _ in 0..if self.rounds > 1 { 5 } else { 1 } {
            let (start, end) =
                (Event::with_timing(self.gpu.device())?, Event::with_timing(self.gpu.device())?);
            start.record(self.gpu.stream())?;
            for _ in 0..self.rounds {
                operation()?;
            }
            end.record(self.gpu.stream())?;
            end.synchronize()?;
            best = best.min(f64::from(end.elapsed_ms_since(&start)?) * 1e3 / self.rounds as f64);
        }
        Ok(best)
    }
}

fn print(name: &str, device_us: f64, work: f64) {
    if std::env::args().any(|arg| arg == "--rows") {
        let name: String = name.chars().map(|letter| if letter == ' ' { '_' } else { letter }).collect();
        println!("row\tproducts/{name}/device\t{device_us}\tus");
    } else {
        println!("{name:<50} {device_us:>10.2} µs {:>9.2} TFLOP/s", work / device_us / 1e6);
    }
}

//! Measures the rates of copies and fills of arrays beside that of a contiguous copy in the same run: rows at a pitch, kernels, copies
//! between devices. Also measures the time in which the host reads unified memory. `GPUMEM_DRIVER` selects the driver; without it, the
//! bench runs on the GPU, or on the simulator if there is none.
//!
//! `cargo xtask bench array` runs it. Rates count the bytes that are read and the bytes that are written; rates between devices count
//! each byte once.

#![allow(clippy::print_stdout, reason = "printing is the purpose of a benchmark")]

use core::ffi::c_int;
use gpumem_array::ndarray::{Axis, s};
use gpumem_array::pool::sys::types::{CUdevice, CUresult};
use gpumem_array::pool::sys::{Driver, DriverKind};
use gpumem_array::pool::{Device, Event, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray, UnifiedArray};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

type Done = Result<(), Box<dyn Error>>;

fn main() -> Done {
    let driver = gpumem_sim::driver_or_sim()?;
    let gpu = gpu(&driver, 0)?;
    println!("{}, {}", gpu.device(), driver.kind());
    let is_real = driver.kind() == DriverKind::Cuda;
    let bench =
        Bench { size_bytes: if is_real { 1 << 30 } else { 8 << 20 }, rounds: if is_real { 20 } else { 2 } };
    let contiguous = bench.contiguous(&gpu)?;
    bench.pitched(&gpu, contiguous)?;
    bench.kernels(&gpu, contiguous)?;
    bench.host(&gpu)?;
    if Device::count(&driver)? < 2 {
        println!("no rows of copies between devices: there is one device");
        return Ok(());
    }
    bench.between("peer_copy", [&gpu, &self::gpu(&driver, 1)?])?;
    // SAFETY: the stand-in writes its answer, as the driver documents.
    let unlinked = unsafe { driver.with_table(|table| table.cuDeviceCanAccessPeer = Some(no_link)) };
    bench.between("staged_copy", [&self::gpu(&unlinked, 0)?, &self::gpu(&unlinked, 1)?])
}

fn gpu(driver: &Driver, ordinal: u32) -> Result<Gpu, Box<dyn Error>> {
    Ok(Gpu::new(&Pool::new(&Device::new(driver, ordinal)?)?)?)
}

unsafe extern "C" fn no_link(can: *mut c_int, _device: CUdevice, _peer: CUdevice) -> CUresult {
    // SAFETY: the caller guarantees that the pointer is valid.
    unsafe { can.write(0) };
    CUresult::CUDA_SUCCESS
}

struct Bench {
    size_bytes: usize,
    rounds: usize,
}

impl Bench {
    /// The rate of the driver's contiguous copy on the device.
    fn contiguous(&self, gpu: &Gpu) -> Result<f64, Box<dyn Error>> {
        let source = GpuArray::from_elem(gpu, self.size_bytes / 4, 1.0_f32)?;
        let mut target = source.try_clone()?;
        let rate = 2.0 * self.rate(gpu, self.size_bytes, || target.assign(&source))?;
        row("copy_contiguous", rate, "GB/s");
        Ok(rate)
    }

    /// Rows of several widths, twice as far apart in the source.
    fn pitched(&self, gpu: &Gpu, contiguous: f64) -> Done {
        for width in [64, 256, 1024, 4096, 65_536] {
            let columns = width / 4;
            let wide = GpuArray::from_elem(gpu, (self.size_bytes / 2 / width, 2 * columns), 1.0_f32)?;
            let rows = wide.slice(s![.., ..columns])?;
            let mut target = rows.to_owned()?;
            let rate = 2.0 * self.rate(gpu, self.size_bytes / 2, || target.assign(&rows))?;
            row(&format!("copy_2D_rows_{width}B"), rate, "GB/s");
            row(&format!("copy_2D_rows_{width}B/of_contiguous"), 100.0 * rate / contiguous, "%");
        }
        Ok(())
    }

    /// The kernels for elements at any step, and for fills that no call of the driver does.
    fn kernels(&self, gpu: &Gpu, contiguous: f64) -> Done {
        let report = |name: &str, rate: f64| {
            row(name, rate, "GB/s");
            row(&format!("{name}/of_contiguous"), 100.0 * rate / contiguous, "%");
        };
        let source = GpuArray::from_elem(gpu, (self.size_bytes / 4096, 1024), 1.0_f32)?;
        let mut target = source.try_clone()?;
        let backwards = source.slice(s![..;-1, ..])?;
        report(
            "copy_kernel_rows_backwards",
            2.0 * self.rate(gpu, self.size_bytes, || target.assign(&backwards))?,
        );
        let backwards = source.slice(s![.., ..;-1])?;
        report(
            "copy_kernel_columns_backwards",
            2.0 * self.rate(gpu, self.size_bytes, || target.assign(&backwards))?,
        );
        let mut turned = GpuArray::<f32, _>::zeros(gpu, (1024, self.size_bytes / 4096))?;
        report(
            "copy_kernel_transposed",
            2.0 * self.rate(gpu, self.size_bytes, || turned.assign(&source.t()))?,
        );
        drop((source, turned));
        let mut doubles = GpuArray::<f64, _>::zeros(gpu, self.size_bytes / 8)?;
        report("fill_kernel_f64", self.rate(gpu, self.size_bytes, || doubles.fill(1.5))?);
        report("fill_driver_f32", self.rate(gpu, self.size_bytes, || target.fill(1.5))?);
        let rate =
            self.rate(gpu, self.size_bytes / 2, || target.view_mut().slice_mut(s![..;2, ..])?.fill(2.5))?;
        report("fill_driver_every_other_row", rate);
        let rate = self.rate(gpu, self.size_bytes / 2, || target.slice_mut(s![.., ..;2])?.fill(3.5))?;
        report("fill_kernel_every_other_column", rate);
        Ok(())
    }

    /// The host's reads of unified memory that it has waited for, and that is on the host: by index of the array, and of a slice of it.
    fn host(&self, gpu: &Gpu) -> Done {
        let array: UnifiedArray<f32, _> = GpuArray::from_elem(&gpu.unified(), READ_LEN, 1.0)?;
        let slice = array.as_slice()?;
        // Pages move to the host at their first use.
        black_box(slice.iter().fold(0.0_f32, |sum, x| sum + *x));
        row("unified_element_read", read_ns(|index| array[index]), "ns");
        peer_row("unified_element_read", read_ns(|index| slice[index]), "ns", "slice");
        let begin = Instant::now();
        black_box(slice.iter().fold(0.0_f32, |sum, x| sum + *x));
        row("unified_fold_of_a_million", begin.elapsed().as_secs_f64() * 1e3, "ms");
        Ok(())
    }

    /// Contiguous, and in rows at a pitch.
    fn between(&self, name: &str, [first, second]: [&Gpu; 2]) -> Done {
        let source = GpuArray::from_elem(first, (self.size_bytes / 4096, 1024), 1.0_f32)?;
        let mut target = GpuArray::<f32, _>::zeros(second, (self.size_bytes / 4096, 1024))?;
        row(name, self.rate(second, self.size_bytes, || target.assign(&source))?, "GB/s");
        let half = source.slice(s![.., ..512])?;
        let rate =
            self.rate(second, self.size_bytes / 2, || target.slice_mut(s![.., 512..])?.assign(&half))?;
        row(&format!("{name}_rows_2048B"), rate, "GB/s");
        let backwards = source.slice(s![..;-1, ..])?;
        row(
            &format!("{name}_backwards"),
            self.rate(second, self.size_bytes, || target.assign(&backwards))?,
            "GB/s",
        );
        let column = target.index_axis(Axis(1), 0)?.to_vec()?;
        assert!(column.iter().all(|x| *x == 1.0), "{name}: wrong elements");
        Ok(())
    }

    /// Bytes of the argument by the time of `operation` on the device, in GB/s.
    fn rate(
        &self,
        gpu: &Gpu,
        size_bytes: usize,
        mut operation: impl FnMut() -> Result<(), ArrayError>,
    ) -> Result<f64, Box<dyn Error>> {
        for _ in 0..2 {
            operation()?;
        }
        gpu.synchronize()?;
        let (start, end) = (Event::with_timing(gpu.device())?, Event::with_timing(gpu.device())?);
        start.record(gpu.stream())?;
        for _ in 0..self.rounds {
            operation()?;
        }
        end.record(gpu.stream())?;
        end.synchronize()?;
        let seconds = f64::from(end.elapsed_ms_since(&start)?) / 1e3 / self.rounds as f64;
        Ok(size_bytes as f64 / seconds / 1e9)
    }
}

/// The time of a read at an index that the compiler does not know: the minimum over many batches.
#[inline(never)]
fn read_ns(read: impl Fn(usize) -> f32) -> f64 {
    let mut best = f64::INFINITY;
    for batch in 0..1000 {
        // Integers: additions of floats take longer than the reads.
        let (begin, mut sum) = (Instant::now(), 0_u32);
        for index in 0..READS {
            sum = sum.wrapping_add(read(black_box(batch * 100 + index)).to_bits());
        }
        let seconds = begin.elapsed().as_secs_f64();
        black_box(sum);
        best = best.min(seconds * 1e9 / READS as f64);
    }
    best
}

const READ_LEN: usize = 1_000_000;
const READS: usize = 10_000;

fn row(name: &str, value: f64, unit: &str) {
    if is_for_rows() {
        println!("row\tarray/{name}\t{value}\t{unit}");
    } else {
        println!("{name:<44} {value:>10.2} {unit}");
    }
}

/// The figure of a peer for the work of a row.
fn peer_row(name: &str, value: f64, unit: &str, peer: &str) {
    if is_for_rows() {
        println!("row\tarray/{name}\t{value}\t{unit}\t{peer}");
    } else {
        println!("  {peer:<42} {value:>10.2} {unit}");
    }
}

fn is_for_rows() -> bool {
    std::env::args().any(|arg| arg == "--rows")
}

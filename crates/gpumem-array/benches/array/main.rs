//! Measures the rates of copies and fills of arrays beside that of a contiguous copy in the same run: rows at a pitch, kernels, copies
//! between devices. Also measures the time in which the host reads an element of unified memory, and that of a launch beside cudarc's.
//! `GPUMEM_DRIVER` selects the driver; without it, the bench runs on the GPU, or on the simulator if there is none.
//!
//! `cargo xtask bench array` runs it; with `--quick`, on a mebibyte. Rates count the bytes that are read and the bytes that are written; rates between devices count
//! each byte once.

#![allow(clippy::print_stdout, reason = "printing is the purpose of a benchmark")]

mod launch;
mod print;

use core::ffi::c_int;
use core::ptr::null_mut;
use gpumem_array::ndarray::{Axis, s};
use gpumem_array::pool::sys::types::{CUDA_MEMCPY2D, CUdevice, CUmemorytype, CUresult};
use gpumem_array::pool::sys::{Driver, DriverKind};
use gpumem_array::pool::{Device, Event, Pool};
use gpumem_array::{ArrayError, Element, Gpu, GpuArray, UnifiedArray};
use print::{peer_row, row};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

type Done = Result<(), Box<dyn Error>>;

fn main() -> Done {
    let driver = gpumem_sim::driver_or_sim()?;
    let gpu = gpu(&driver, 0)?;
    println!("{}, {}", gpu.device(), driver.kind());
    let is_real = driver.kind() == DriverKind::Cuda;
    let (size_bytes, rounds) = match is_real {
        _ if std::env::args().any(|arg| arg == "--quick") => (1 << 20, 1),
        true => (1 << 30, 20),
        false => (8 << 20, 2),
    };
    let bench = Bench { size_bytes, rounds };
    let contiguous = bench.contiguous(&gpu)?;
    bench.pitched(&gpu, contiguous)?;
    bench.kernels(&gpu, contiguous)?;
    bench.host(&gpu)?;
    launch::rows(&gpu)?;
    if Device::count(&driver)? < 2 {
        println!("copies between devices: needs two devices");
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

    /// Rows of several widths, twice as far apart in the source. The peer is the driver's 2D copy of the same rows.
    fn pitched(&self, gpu: &Gpu, contiguous: f64) -> Done {
        for width in [64, 256, 1024, 4096, 65_536] {
            let columns = width / 4;
            let wide = GpuArray::from_elem(gpu, (self.size_bytes / 2 / width, 2 * columns), 1.0_f32)?;
            let rows = wide.slice(s![.., ..columns])?;
            let mut target = rows.to_owned()?;
            let rate = 2.0 * self.rate(gpu, self.size_bytes / 2, || target.assign(&rows))?;
            let name = format!("copy_rows_{width}B");
            row(&name, rate, "GB/s");
            let (to, from) = ((target.address(), width), (wide.address(), 2 * width));
            let driver = || rows_by_driver(gpu, to, from, width, self.size_bytes / 2 / width);
            let peers = 2.0 * self.rate(gpu, self.size_bytes / 2, driver)?;
            peer_row(&name, rate, peers, "GB/s", "cuMemcpy2D");
            row(&format!("{name}/of_contiguous"), 100.0 * rate / contiguous, "%");
        }
        // Rows that begin at any byte.
        for width in [255, 511, 1023, 4095, 65_535] {
            let count = self.size_bytes / 2 / width;
            let wide = GpuArray::from_elem(gpu, (count, 2 * width + 1), 1_u8)?;
            let rows = wide.slice(s![.., ..width])?;
            let mut target = rows.to_owned()?;
            let size_bytes = count * width;
            let rate = 2.0 * self.rate(gpu, size_bytes, || target.assign(&rows))?;
            let name = format!("copy_rows_{width}B");
            row(&name, rate, "GB/s");
            let (to, from) = ((target.address(), width), (wide.address(), 2 * width + 1));
            let driver = || rows_by_driver(gpu, to, from, width, count);
            peer_row(&name, rate, 2.0 * self.rate(gpu, size_bytes, driver)?, "GB/s", "cuMemcpy2D");
            row(&format!("{name}/of_contiguous"), 100.0 * rate / contiguous, "%");
            let backwards = rows.slice(s![..;-1, ..])?;
            let rate = 2.0 * self.rate(gpu, size_bytes, || target.assign(&backwards))?;
            row(&format!("{name}_backwards"), rate, "GB/s");
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
        drop(source);
        report("copy_kernel_transposed_u8", self.transposed(gpu, 1_u8)?);
        report("copy_kernel_transposed_u16", self.transposed(gpu, 1_u16)?);
        report("copy_kernel_transposed", self.transposed(gpu, 1.0_f32)?);
        report("copy_kernel_transposed_f64", self.transposed(gpu, 1.0_f64)?);
        report("copy_kernel_transposed_16B", self.transposed(gpu, [1.0_f64; 2])?);
        let mut doubles = GpuArray::<f64, _>::zeros(gpu, self.size_bytes / 8)?;
        report("fill_kernel_f64", self.rate(gpu, self.size_bytes, || doubles.fill(1.5))?);
        let mut triples = GpuArray::<[f32; 3], _>::zeros(gpu, self.size_bytes / 12)?;
        let size_bytes = self.size_bytes / 12 * 12;
        report("fill_kernel_12B", self.rate(gpu, size_bytes, || triples.fill([1.0, 2.0, 3.0]))?);
        report("fill_driver_f32", self.rate(gpu, self.size_bytes, || target.fill(1.5))?);
        let rate =
            self.rate(gpu, self.size_bytes / 2, || target.view_mut().slice_mut(s![..;2, ..])?.fill(2.5))?;
        report("fill_driver_every_other_row", rate);
        let rate = self.rate(gpu, self.size_bytes / 2, || target.slice_mut(s![.., ..;2])?.fill(3.5))?;
        report("fill_kernel_every_other_column", rate);
        Ok(())
    }

    /// The rate of a transposed copy of a matrix with 1024 columns.
    fn transposed<T: Element>(&self, gpu: &Gpu, value: T) -> Result<f64, Box<dyn Error>> {
        let rows = self.size_bytes / 1024 / size_of::<T>();
        let source = GpuArray::from_elem(gpu, (rows, 1024), value)?;
        let mut turned = GpuArray::<T, _>::zeros(gpu, (1024, rows))?;
        Ok(2.0 * self.rate(gpu, self.size_bytes, || turned.assign(&source.t()))?)
    }

    /// The host's reads of unified memory that it has waited for, and that is on the host: by index of the array, and of a slice of it.
    fn host(&self, gpu: &Gpu) -> Done {
        let array: UnifiedArray<f32, _> = GpuArray::from_elem(&gpu.unified(), READ_LEN, 1.0)?;
        let slice = array.as_slice()?;
        // Pages move to the host at their first use.
        black_box(slice.iter().fold(0.0_f32, |sum, x| sum + *x));
        let ns = read_ns(|index| array[index]);
        row("unified_element_read", ns, "ns");
        peer_row("unified_element_read", ns, read_ns(|index| slice[index]), "ns", "slice");
        let fold_ms = || {
            let begin = Instant::now();
            black_box(black_box(slice).iter().fold(0.0_f32, |sum, x| sum + *x));
            begin.elapsed().as_secs_f64() * 1e3
        };
        row("unified_fold_of_a_million", (0..10).map(|_| fold_ms()).fold(f64::INFINITY, f64::min), "ms");
        Ok(())
    }

    /// Contiguous, and in rows at a pitch.
    fn between(&self, name: &str, [first, second]: [&Gpu; 2]) -> Done {
        let source = GpuArray::from_elem(first, (self.size_bytes / 4096, 1024), 1.0_f32)?;
        let mut target = GpuArray::<f32, _>::zeros(second, (self.size_bytes / 4096, 1024))?;
        let rate = self.rate(second, self.size_bytes, || target.assign(&source))?;
        row(name, rate, "GB/s");
        if name == "peer_copy" {
            let driver =
                || peer_by_driver([first, second], target.address(), source.address(), self.size_bytes);
            peer_row(name, rate, self.rate(second, self.size_bytes, driver)?, "GB/s", "cuMemcpyPeer");
            row("peer_copy/of_two_linked_H200", 100.0 * rate / LINKED_H200, "%");
        }
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

/// The driver's 2D copy. Each side is an address and a pitch.
fn rows_by_driver(
    gpu: &Gpu,
    to: (u64, usize),
    from: (u64, usize),
    width: usize,
    height: usize,
) -> Result<(), ArrayError> {
    let copy = CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: null_mut(),
        srcDevice: from.0,
        srcArray: null_mut(),
        srcPitch: from.1,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: to.0,
        dstArray: null_mut(),
        dstPitch: to.1,
        WidthInBytes: width,
        Height: height,
    };
    let _bound = gpu.device().bind()?;
    // SAFETY: both sides have the rows, in arrays that this thread uses on this stream only, and waits for before it drops them.
    unsafe { gpu.device().driver().cuMemcpy2DAsync_v2(&copy, gpu.stream().raw())? };
    Ok(())
}

/// The driver's copy between the devices, on the stream of the second.
fn peer_by_driver(
    [first, second]: [&Gpu; 2],
    to: u64,
    from: u64,
    size_bytes: usize,
) -> Result<(), ArrayError> {
    let (source, target, stream) =
        (first.device().context(), second.device().context(), second.stream().raw());
    let _bound = second.device().bind()?;
    // SAFETY: both sides have as many bytes, in arrays that this thread uses on this stream only, and waits for before it drops them.
    unsafe { second.device().driver().cuMemcpyPeerAsync(to, target, from, source, size_bytes, stream)? };
    Ok(())
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

/// The rate of one copy between two H200 over their links, in GB/s.
const LINKED_H200: f64 = 396.0;
const READ_LEN: usize = 1_000_000;
const READS: usize = 10_000;

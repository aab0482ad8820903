//! The cost of an operation: host time of the call, and device time by events, for the sizes of the training job and for large
//! ones. Runs on the driver that `GPUMEM_DRIVER` names, or on a GPU if there is one, and prints which.
//!
//! `cargo bench -p gpumem-array`; with `-- --rows`, in the format of `cargo xtask bench`.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::ndarray::{Axis, Ix1, Ix2, Slice};
use gpumem_array::pool::sys::DriverKind;
use gpumem_array::pool::{Device, Event, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray, Rng, update};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}", driver.kind());
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    let rounds = if driver.kind() == DriverKind::Cuda { 2000 } else { 20 };
    if !is_for_rows() {
        println!("{:<34} {:>9} {:>9} {:>9} {:>9}", "operation", "first ms", "host µs", "device µs", "GB/s");
    }
    let (often, seldom) =
        (Bench { gpu: &gpu, rounds, suffix: "" }, Bench { gpu: &gpu, rounds: rounds / 20, suffix: "" });
    main_job(&often)?;
    large(&seldom)?;
    expressions(&seldom, [large_len(&gpu, 1 << 16) / 1024, 1024])?;
    // Few enough calls for the stream's queue, so that the host never waits for the device.
    let small = Bench { gpu: &gpu, rounds: rounds / 4, suffix: ", 1024" };
    expressions(&small, [32, 32])?;
    by_indices(&seldom)?;
    crossing(&often)
}

/// A length far larger than any cache, or a short one for the simulator.
fn large_len(gpu: &Gpu, simulated: usize) -> usize {
    if gpu.device().driver().kind() == DriverKind::Cuda { 1 << 28 } else { simulated }
}

/// The shapes of a training step: 2048 rows of 1000 from a table of many rows.
fn main_job(bench: &Bench<'_>) -> Result<(), Box<dyn Error>> {
    let gpu = bench.gpu;
    let batches = if gpu.device().driver().kind() == DriverKind::Cuda { 64 } else { 4 };
    let table = GpuArray::from_elem(gpu, (2048 * batches, 1000), 0.5_f32)?;
    let batch = |round: usize| {
        let first = (round % batches * 2048).cast_signed();
        table.slice_axis(Axis(0), Slice::from(first..first + 2048))
    };
    let w = GpuArray::from_elem(gpu, 1000, 0.25_f32)?;
    let r = GpuArray::from_elem(gpu, 2048, 0.125_f32)?;
    let bytes = 2048 * 1000 * 4;
    bench.run("x · w, 2048 × 1000", bytes, |round| batch(round)?.dot(&w).map(drop))?;
    bench.run("xᵀ · r, 2048 × 1000", bytes, |round| batch(round)?.t().dot(&r).map(drop))?;
    bench.run("x · w, then xᵀ · r", 2 * bytes, |round| {
        let batch = batch(round)?;
        batch.dot(&w)?;
        batch.t().dot(&r).map(drop)
    })?;
    bench.run("sum, 2048", 2048 * 4, |_| r.sum().map(drop))?;
    bench.run("dot, 2048", 2048 * 8, |_| r.dot(&r).map(drop))?;
    bench.run("a - b, 2048", 2048 * 12, |_| r.try_sub(&r).map(drop))?;
    let mut t = r.try_clone()?;
    bench.run("a += b, 2048", 2048 * 12, |_| t.try_add_assign(&r))?;
    bench.run("fill, 2048", 2048 * 4, |_| t.fill(0.0))?;
    bench.run("zeros, 2048", 2048 * 4, |_| GpuArray::<f32, Ix1>::zeros(gpu, 2048).map(drop))?;
    Ok(())
}

/// Arrays far larger than any cache.
fn large(bench: &Bench<'_>) -> Result<(), Box<dyn Error>> {
    let gpu = bench.gpu;
    let n = large_len(gpu, 1 << 22);
    let a = GpuArray::from_elem(gpu, n, 0.5_f32)?;
    let b = GpuArray::from_elem(gpu, n, 0.25_f32)?;
    let mut c = GpuArray::<f32, Ix1>::zeros(gpu, n)?;
    bench.run("c += a, large", n * 12, |_| c.try_add_assign(&a))?;
    bench.run("c *= 0.5, large", n * 8, |_| c.try_mul_assign(0.5))?;
    bench.run("cumsum, large", n * 8, |_| a.cumsum().map(drop))?;
    let mut rng = Rng::new(1);
    bench.run("normal numbers", n * 4, |_| c.fill_random_normal(&mut rng))?;
    bench.run("sum, large", n * 4, |_| a.sum().map(drop))?;
    bench.run("dot, large", n * 8, |_| a.dot(&b).map(drop))?;
    let x: GpuArray<f32, Ix2> = a.into_shape((n / 1024, 1024))?;
    let v = GpuArray::from_elem(gpu, 1024, 1.0_f32)?;
    let u = GpuArray::from_elem(gpu, n / 1024, 1.0_f32)?;
    bench.run("x · v, large × 1024", n * 4, |_| x.dot(&v).map(drop))?;
    bench.run("xᵀ · u, large × 1024", n * 4, |_| x.t().dot(&u).map(drop))?;
    let wide: GpuArray<f32, Ix2> = x.into_shape((16, n / 16))?;
    let v = GpuArray::from_elem(gpu, n / 16, 1.0_f32)?;
    let u = GpuArray::from_elem(gpu, 16, 1.0_f32)?;
    bench.run("x · v, 16 × large", n * 4, |_| wide.dot(&v).map(drop))?;
    bench.run("xᵀ · u, 16 × large", n * 4, |_| wide.t().dot(&u).map(drop))?;
    Ok(())
}

/// Expressions, beside a copy that moves as many bytes in each direction as the first ones read from one array and write. Matrices have this
/// shape.
fn expressions(bench: &Bench<'_>, shape: [usize; 2]) -> Result<(), Box<dyn Error>> {
    let (gpu, n) = (bench.gpu, shape[0] * shape[1]);
    let a = GpuArray::from_elem(gpu, n, 0.5_f32)?;
    let b = GpuArray::from_elem(gpu, n, 0.25_f32)?;
    let mut c = GpuArray::<f32, Ix1>::zeros(gpu, n)?;
    bench.run("copy", n * 8, |_| c.assign(&a))?;
    bench.run("(a * 2 + b) * 0.5 - a", n * 12, |_| c.assign_expr((a.lazy() * 2.0 + &b) * 0.5 - &a))?;
    bench.run("max(a * exp(b * 0.1) - 0.6, 0)", n * 12, |_| {
        c.assign_expr((a.lazy() * (b.lazy() * 0.1).exp() - 0.6).max(0.0))
    })?;
    bench.run("tanh(a) * ln(b + 1)", n * 12, |_| c.assign_expr(a.lazy().tanh() * (b.lazy() + 1.0).ln()))?;
    bench.run("a if a > b, otherwise 0", n * 12, |_| c.assign_expr(a.lazy().gt(&b).select(&a, 0.0)))?;
    let (mut m, mut v) = (GpuArray::<f32, Ix1>::zeros(gpu, n)?, GpuArray::<f32, Ix1>::zeros(gpu, n)?);
    bench.run("Adam, three arrays", n * 28, |_| {
        update((&mut c, &mut m, &mut v), |(x, m, v)| {
            let m = m * 0.9 + a.lazy() * 0.1;
            let v = v * 0.999 + a.lazy().square() * 0.001;
            (x - m * 0.01 / (v.sqrt() + 1e-8), m, v)
        })
    })?;
    let (x, y) = (a.into_shape(shape)?, b.into_shape(shape)?);
    bench.run("sums of exp(x), rows", n * 4, |_| x.lazy().exp().sum_axis(Axis(1)).map(drop))?;
    bench.run("sums of x, columns", n * 4, |_| x.lazy().sum_axis(Axis(0)).map(drop))?;
    bench.run("argmin of x", n * 4, |_| x.lazy().argmin().map(drop))?;
    let mut z: GpuArray<f32, Ix2> = c.into_shape(shape)?;
    let (column, row) =
        (x.slice_axis(Axis(1), Slice::from(0..1))?, y.slice_axis(Axis(0), Slice::from(0..1))?);
    bench.run("column - row", n * 4, |_| z.assign_expr(column.lazy() - row.lazy()))?;
    bench.run("z += row", n * 8, |_| z.try_add_assign(&row))?;
    let square = (n as f64).sqrt() as usize;
    let rows = (square * square / shape[1]) as isize;
    let wide = x.slice_axis(Axis(0), Slice::from(0..rows))?.to_owned()?;
    let wide: GpuArray<f32, Ix2> = wide.into_shape((square, square))?;
    let mut sums = GpuArray::<f32, Ix2>::zeros(gpu, (square, square))?;
    bench.run("x + x.t()", n * 12, |_| sums.assign_expr(wide.lazy() + wide.t().lazy()))?;
    Ok(())
}

/// Rows of 64 elements, by indices that are spread over 65,536 rows, and the places of half of many elements.
fn by_indices(bench: &Bench<'_>) -> Result<(), Box<dyn Error>> {
    let gpu = bench.gpu;
    let shift = if gpu.device().driver().kind() == DriverKind::Cuda { 20 } else { 10 };
    let (count, rows) = (1 << shift, 1 << (shift - 4));
    let places: Vec<i32> = (0..count as u64).map(|i| (i * 2_654_435_761 % rows) as i32).collect();
    let places = GpuArray::from_slice(gpu, &places)?;
    let mut table = GpuArray::<f32, _>::zeros(gpu, (rows as usize, 64))?;
    let values = GpuArray::from_elem(gpu, (count, 64), 0.5_f32)?;
    bench.run("rows by indices", count * 512, |_| table.select(Axis(0), &places).map(drop))?;
    bench.run("additions by indices", count * 256, |_| table.scatter_add(Axis(0), &places, &values))?;
    let numbers = GpuArray::random(gpu, count << 8, &mut Rng::new(1))?;
    bench.run("places above 0.5", count << 10, |_| numbers.lazy().gt(0.5_f32).nonzero().map(drop))?;
    Ok(())
}

/// The cost of tracking when two streams alternate; with one stream alone there is none.
fn crossing(bench: &Bench<'_>) -> Result<(), Box<dyn Error>> {
    let (gpu, other) = (bench.gpu, bench.gpu.fork()?);
    let mut a = GpuArray::from_elem(gpu, 256, 1.0_f32)?;
    bench.run("a += 1, one stream", 0, |_| a.try_add_assign(1.0))?;
    bench.run("a += 1, two streams in turn", 0, |round| {
        let gpu = if round % 2 == 0 { gpu } else { &other };
        a.on_mut(gpu).try_add_assign(1.0)
    })?;
    Ok(())
}

struct Bench<'a> {
    gpu: &'a Gpu,
    rounds: usize,
    /// Behind each name.
    suffix: &'static str,
}

impl Bench<'_> {
    /// Prints the time of the first call, including the loading of its kernel, then means over many calls.
    fn run(
        &self,
        name: &str,
        bytes: usize,
        mut operation: impl FnMut(usize) -> Result<(), ArrayError>,
    ) -> Result<(), Box<dyn Error>> {
        let name = format!("{name}{}", self.suffix);
        let begin = Instant::now();
        operation(0)?;
        self.gpu.synchronize()?;
        let first_ms = begin.elapsed().as_secs_f64() * 1e3;
        for round in 0..self.rounds / 10 {
            operation(round)?;
        }
        self.gpu.synchronize()?;

        let (start, end) = (Event::with_timing(self.gpu.device())?, Event::with_timing(self.gpu.device())?);
        start.record(self.gpu.stream())?;
        let begin = Instant::now();
        for round in 0..self.rounds {
            operation(round)?;
        }
        let host_us = begin.elapsed().as_secs_f64() * 1e6 / self.rounds as f64;
        end.record(self.gpu.stream())?;
        end.synchronize()?;
        let device_us = f64::from(end.elapsed_ms_since(&start)?) * 1e3 / self.rounds as f64;
        let rate = bytes as f64 / device_us / 1e3;
        if is_for_rows() {
            let name: String = name.chars().map(|letter| if letter == ' ' { '_' } else { letter }).collect();
            println!("row\tarray/{name}/host\t{host_us}\tus\nrow\tarray/{name}/device\t{device_us}\tus");
        } else {
            println!("{name:<34} {first_ms:>9.2} {host_us:>9.2} {device_us:>9.2} {rate:>9.0}");
        }
        Ok(())
    }
}

fn is_for_rows() -> bool {
    std::env::args().any(|arg| arg == "--rows")
}

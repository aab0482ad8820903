//! Programs that need more than the device has, with a pool that spills, beside the same program by hand, the naive way, and a bound: the
//! larger of the calculation alone and the missing bytes at the link's rate. On the device's clock; the best of some passes after three.
//!
//! `cargo bench -p gpumem-array --features cudarc,half --bench spilling`. `-- --training` runs the training alone, `-- 1.5` the products at one ratio.
//! On a machine with two GPUs, the second one's memory beside the host's, too.
//! Without a GPU, in small sizes, which says nothing about speed.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::ndarray::{Ix2, s};
use gpumem_array::pool::sys::DriverKind;
use gpumem_array::pool::{Device, MemoryKind, Pool, Spill};
use gpumem_array::{Cublas, Gpu, GpuArray, PinnedArray, update};
use half::bf16;
use std::error::Error;
use std::time::Instant;

type Matrix = GpuArray<bf16, Ix2>;

fn main() -> Result<(), Box<dyn Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}", driver.kind());
    let is_cuda = driver.kind() == DriverKind::Cuda;
    let (len, capacity, passes) = if is_cuda { (8192, 24, 5) } else { (256, 6, 1) };
    let only = std::env::args().filter_map(|word| word.parse::<f64>().ok()).next();
    let skips_products = std::env::args().any(|word| word == "--training");
    let bench = Chain { device, len, capacity, passes };
    let link = bench.link_rate()?;
    println!("link: {:.1} GB/s up", link / 1e9);
    for rows in [len / 4, 2 * len].into_iter().filter(|_| !skips_products) {
        let alone = bench.alone(rows)?;
        for ratio in [1.25, 1.5, 2.0, 4.0].into_iter().filter(|ratio| only.is_none_or(|only| only == *ratio))
        {
            let count = (capacity as f64 * ratio) as usize;
            let missing_bytes = (count - capacity) as u64 * bench.weight_bytes();
            let bound = (alone * count as f64).max(missing_bytes as f64 / link);
            let (by_hand, naive) = (bench.by_hand(rows, count)?, bench.naive(rows, count)?);
            let spilled = bench.spilled(rows, count)?;
            println!(
                "products of {rows} rows, {ratio} × the memory: bound {:.1} ms, by hand {:.3} of it, spilled {:.3}, naive {:.3}, spilled / by hand {:.3}; where all fit {:.1} ms",
                1e3 * bound,
                bound / by_hand,
                bound / spilled,
                bound / naive,
                by_hand / spilled,
                1e3 * alone * count as f64,
            );
        }
    }
    if Device::count(&driver)? > 1 && !skips_products {
        bench.compare_with_neighbour()?;
    }
    let networks =
        if is_cuda { [(4096, 24, 16384), (8192, 16, 32768)] } else { [(128, 4, 256), (128, 4, 512)] };
    for (len, layers, rows) in networks {
        let training = Training { device: &bench.device, len, layers, rows, steps: bench.passes };
        let (fits, losses) = training.run(None)?;
        let needed_gib = training.needed_bytes() as f64 / f64::from(1 << 30);
        println!(
            "training, {layers} layers of {len}, {rows} rows, {needed_gib:.1} GiB: {:.1} ms a step where it fits, {:.1} ms a GiB",
            1e3 * fits,
            1e3 * fits / needed_gib
        );
        for ratio in [1.25, 1.5, 2.0] {
            let (took, spilled) = training.run(Some(ratio))?;
            let is_equal = losses == spilled;
            println!(
                "training, {ratio} × the memory: {:.1} ms, {:.3} of the step that fits, losses equal: {is_equal}",
                1e3 * took,
                fits / took
            );
        }
    }
    Ok(())
}

/// A network of equal layers, trained by Adam: the activations are new arrays in each step.
struct Training<'a> {
    device: &'a Device,
    len: usize,
    layers: usize,
    rows: usize,
    steps: usize,
}

impl Training<'_> {
    /// All weights with their two moments, and the activations of a step.
    fn needed_bytes(&self) -> u64 {
        (self.layers * (3 * self.len * self.len + self.rows * self.len) * 4) as u64
    }

    /// Seconds of the best step after three, and the losses.
    fn run(&self, ratio: Option<f64>) -> Result<(f64, Vec<f32>), Box<dyn Error>> {
        let Self { len, layers, rows, .. } = *self;
        let mut builder = Pool::builder(self.device);
        if let Some(ratio) = ratio {
            let needed_bytes = self.needed_bytes();
            let limit_bytes = (needed_bytes as f64 / ratio) as u64 + (64 << 20);
            builder = builder.hard_limit(limit_bytes).spill(Spill::to_host(needed_bytes));
        }
        let pool = builder.build()?;
        let gpu = Gpu::new(&pool)?;
        let blas = Cublas::new(&gpu)?.with_tf32();
        let mut rng = gpumem_array::Rng::new(7);
        let scale = (1.0 / len as f32).sqrt();
        let mut network = Vec::new();
        for _ in 0..layers {
            let mut weights = GpuArray::<f32, Ix2>::random_normal(&gpu, (len, len), &mut rng)?;
            weights *= scale;
            let zeros = || GpuArray::<f32, Ix2>::zeros(&gpu, (len, len));
            network.push((weights, zeros()?, zeros()?));
        }
        let x = GpuArray::<f32, Ix2>::random_normal(&gpu, (rows, len), &mut rng)?;
        let (mut best, mut losses) = (f64::MAX, Vec::new());
        let mut before = pool.status()?.counters;
        for step in 0..3 + self.steps {
            gpu.synchronize()?;
            let begin = Instant::now();
            let mut outputs: Vec<GpuArray<f32, Ix2>> = Vec::new();
            for (weights, ..) in &network {
                let product = blas.dot(outputs.last().unwrap_or(&x), weights)?;
                outputs.push(product.into_lazy().tanh().eval()?);
            }
            let last = outputs.pop().ok_or("no layers")?;
            let loss = (last.lazy() - 0.5).powi(2).mean()?;
            let mut gradient = ((last.lazy() - 0.5) * (1.0 - last.lazy() * last.lazy())).eval()?;
            drop(last);
            for (weights, first, second) in network.iter_mut().rev() {
                let input = outputs.pop();
                let of_weights = blas.dot(&input.as_ref().unwrap_or(&x).t(), &gradient)?;
                if let Some(input) = &input {
                    let of_input = blas.dot(&gradient, &weights.t())?;
                    gradient = (of_input.lazy() * (1.0 - input.lazy() * input.lazy())).eval()?;
                }
                update((weights, first, second), |(w, m, v)| {
                    let g = of_weights.lazy() * (1.0 / rows as f32);
                    let (m, v) = (m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001);
                    (w - m * 1e-4 / (v.sqrt() + 1e-8), m, v)
                })?;
            }
            let queued = begin.elapsed().as_secs_f64();
            gpu.synchronize()?;
            let took = begin.elapsed().as_secs_f64();
            losses.push(loss.into_scalar()?);
            if step >= 3 {
                best = best.min(took);
            }
            let now = pool.status()?.counters;
            println!(
                "  step {step}: {:.1} ms, {:.1} of them the host's, {} MiB up, {} MiB down, {} waits of the host, {} driver calls in {:.1?}",
                1e3 * took,
                1e3 * queued,
                (now.spilled_up_bytes - before.spilled_up_bytes) >> 20,
                (now.spilled_down_bytes - before.spilled_down_bytes) >> 20,
                now.host_wait_count - before.host_wait_count,
                now.driver_call_count - before.driver_call_count,
                now.driver_call_time - before.driver_call_time,
            );
            before = now;
        }
        Ok((best, losses))
    }
}

/// `x` times many weights in turn, over and over.
struct Chain {
    device: Device,
    len: usize,
    /// Weights that fit.
    capacity: usize,
    passes: usize,
}

impl Chain {
    fn weight_bytes(&self) -> u64 {
        (self.len * self.len * 2) as u64
    }

    /// Room for the weights that fit, and for the rest of the program.
    fn limit_bytes(&self, rows: usize) -> u64 {
        self.capacity as u64 * self.weight_bytes() + 6 * (rows * self.len * 2) as u64 + (80 << 20)
    }

    fn weight(&self, gpu: &Gpu) -> Result<Matrix, Box<dyn Error>> {
        Ok(GpuArray::from_elem(gpu, (self.len, self.len), bf16::from_f32(1.0 / self.len as f32))?)
    }

    fn x(&self, gpu: &Gpu, rows: usize) -> Result<Matrix, Box<dyn Error>> {
        Ok(GpuArray::from_elem(gpu, (rows, self.len), bf16::ONE)?)
    }

    /// Seconds of the best of the passes, after three.
    fn best(
        &self,
        gpu: &Gpu,
        mut pass: impl FnMut() -> Result<Matrix, Box<dyn Error>>,
    ) -> Result<f64, Box<dyn Error>> {
        let mut best = f64::MAX;
        for index in 0..3 + self.passes {
            gpu.synchronize()?;
            let begin = Instant::now();
            let result = pass()?;
            gpu.synchronize()?;
            let took = begin.elapsed().as_secs_f64();
            if index >= 3 {
                best = best.min(took);
            }
            let first = result.slice(s![0..1, 0..1])?.to_vec()?[0];
            assert!((f32::from(first) - 1.0).abs() < 0.05, "{first}");
        }
        Ok(best)
    }

    fn link_rate(&self) -> Result<f64, Box<dyn Error>> {
        let gpu = Gpu::new(&Pool::new(&self.device)?)?;
        let from: PinnedArray<bf16, Ix2> = GpuArray::zeros(&gpu.pinned(), (self.len, self.len))?;
        let mut to = Matrix::zeros(&gpu, (self.len, self.len))?;
        let mut best = f64::MAX;
        for _ in 0..5 {
            gpu.synchronize()?;
            let begin = Instant::now();
            for _ in 0..8 {
                to.view_mut().assign(&from)?;
            }
            gpu.synchronize()?;
            best = best.min(begin.elapsed().as_secs_f64());
        }
        Ok(8.0 * self.weight_bytes() as f64 / best)
    }

    /// Seconds of one product.
    fn alone(&self, rows: usize) -> Result<f64, Box<dyn Error>> {
        let gpu = Gpu::new(&Pool::new(&self.device)?)?;
        let blas = Cublas::new(&gpu)?;
        let weights = (0..self.capacity).map(|_| self.weight(&gpu)).collect::<Result<Vec<_>, _>>()?;
        let start = self.x(&gpu, rows)?;
        let took = self.best(&gpu, || {
            let mut x = blas.dot(&start, &weights[0])?;
            for weight in &weights[1..] {
                x = blas.dot(&x, weight)?;
            }
            Ok(x)
        })?;
        Ok(took / self.capacity as f64)
    }

    /// Each weight is on the host, and is copied to the device before its product.
    fn naive(&self, rows: usize, count: usize) -> Result<f64, Box<dyn Error>> {
        let gpu = Gpu::new(&Pool::builder(&self.device).hard_limit(self.limit_bytes(rows)).build()?)?;
        let (blas, host) = (Cublas::new(&gpu)?, self.host_weights(&gpu, count)?);
        let (mut weight, start) = (self.weight(&gpu)?, self.x(&gpu, rows)?);
        self.best(&gpu, || {
            let mut x: Option<Matrix> = None;
            for from in &host {
                weight.view_mut().assign(from)?;
                x = Some(blas.dot(x.as_ref().unwrap_or(&start), &weight)?);
            }
            x.ok_or_else(|| "no weights".into())
        })
    }

    fn host_weights(&self, gpu: &Gpu, count: usize) -> Result<Vec<PinnedArray<bf16, Ix2>>, Box<dyn Error>> {
        let weight = || {
            let mut weight: PinnedArray<bf16, Ix2> = GpuArray::zeros(&gpu.pinned(), (self.len, self.len))?;
            weight.as_mut_slice()?.fill(bf16::from_f32(1.0 / self.len as f32));
            Ok(weight)
        };
        (0..count).map(|_| weight()).collect()
    }

    /// A fixed part stays, the rest streams through three buffers, spread evenly.
    fn by_hand(&self, rows: usize, count: usize) -> Result<f64, Box<dyn Error>> {
        let pool = Pool::builder(&self.device).hard_limit(self.limit_bytes(rows)).build()?;
        let gpu = Gpu::new(&pool)?;
        let (copies, blas) = (gpu.fork()?, Cublas::new(&gpu)?);
        let kept = self.capacity - BUFFERS;
        let weights = (0..kept).map(|_| self.weight(&gpu)).collect::<Result<Vec<_>, _>>()?;
        let mut buffers = (0..BUFFERS).map(|_| self.weight(&gpu)).collect::<Result<Vec<_>, _>>()?;
        let host = self.host_weights(&gpu, count - kept)?;
        let start = self.x(&gpu, rows)?;
        let missing = count - kept;
        let took = self.best(&gpu, || {
            let (mut hits, mut misses, mut loaded) = (0, 0, 0);
            let mut x: Option<Matrix> = None;
            while loaded < BUFFERS.min(missing) {
                copies_assign(&copies, &mut buffers[loaded], &host[loaded])?;
                loaded += 1;
            }
            for index in 0..count {
                let is_miss = (index + 1) * missing / count > misses;
                let weight = if is_miss { &buffers[misses % BUFFERS] } else { &weights[hits] };
                x = Some(blas.dot(x.as_ref().unwrap_or(&start), weight)?);
                if !is_miss {
                    hits += 1;
                    continue;
                }
                if loaded < missing {
                    copies_assign(&copies, &mut buffers[misses % BUFFERS], &host[loaded])?;
                    loaded += 1;
                }
                misses += 1;
            }
            x.ok_or_else(|| "no weights".into())
        })?;
        Ok(took)
    }

    /// Twice the memory, and so little work that copies decide: to the host, and to the memory of another device.
    fn compare_with_neighbour(&self) -> Result<(), Box<dyn Error>> {
        let (rows, count) = (self.len / 64, 2 * self.capacity);
        let host = Spill::to_host(2 * count as u64 * self.weight_bytes());
        let near = host.clone().by_neighbour(1, 2 * count as u64 * self.weight_bytes());
        let missing_bytes = self.capacity as u64 * self.weight_bytes();
        let [host, near] = [host, near].map(|spill| self.spilled_to(spill, rows, count));
        let [host, near] = [host?, near?].map(|took| missing_bytes as f64 / took / 1e9);
        println!(
            "missing bytes a second: from the host {host:.1} GB/s, from a neighbour {near:.1} GB/s, {:.1} times",
            near / host
        );
        Ok(())
    }

    /// The plain program, in a pool that spills.
    fn spilled(&self, rows: usize, count: usize) -> Result<f64, Box<dyn Error>> {
        self.spilled_to(Spill::to_host(2 * count as u64 * self.weight_bytes()), rows, count)
    }

    fn spilled_to(&self, spill: Spill, rows: usize, count: usize) -> Result<f64, Box<dyn Error>> {
        let pool = Pool::builder(&self.device).hard_limit(self.limit_bytes(rows)).spill(spill).build()?;
        assert_eq!(pool.kind(), MemoryKind::Device);
        let gpu = Gpu::new(&pool)?;
        let blas = Cublas::new(&gpu)?;
        let weights = (0..count).map(|_| self.weight(&gpu)).collect::<Result<Vec<_>, _>>()?;
        let start = self.x(&gpu, rows)?;
        let mut before = pool.status()?.counters;
        let took = self.best(&gpu, || {
            let now = pool.status()?.counters;
            println!(
                "  {} MiB up, {} MiB down, {} moved, {} waits of the host, {} in streams, {} driver calls",
                (now.spilled_up_bytes - before.spilled_up_bytes) >> 20,
                (now.spilled_down_bytes - before.spilled_down_bytes) >> 20,
                now.spill_count - before.spill_count,
                now.host_wait_count - before.host_wait_count,
                now.inserted_wait_count - before.inserted_wait_count,
                now.driver_call_count - before.driver_call_count,
            );
            before = now;
            let mut x = blas.dot(&start, &weights[0])?;
            for weight in &weights[1..] {
                x = blas.dot(&x, weight)?;
            }
            Ok(x)
        })?;
        Ok(took)
    }
}

/// A copy on a stream of its own. The library orders it behind the products that use the buffer, and the next one behind it.
fn copies_assign(copies: &Gpu, to: &mut Matrix, from: &PinnedArray<bf16, Ix2>) -> Result<(), Box<dyn Error>> {
    Ok(to.on_mut(copies).assign(from)?)
}

const BUFFERS: usize = 3;

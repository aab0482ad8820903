//! Values of many small arrays, uploaded together and one by one, beside one copy of as many bytes. A checkpoint from the page cache,
//! beside the host's `memcpy`.
//!
//! `cargo xtask bench adapt`.

#![allow(clippy::print_stdout, reason = "printing is the purpose of a benchmark")]

use gpumem_adapt::array::ndarray::Array1;
use gpumem_adapt::array::pool::sys::DriverKind;
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{Gpu, GpuArray};
use gpumem_adapt::{Adapt, AdaptError, Checkpoint, CheckpointError, Destination, Host, save};
use std::error::Error;
use std::iter::repeat_n;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Done = Result<(), Box<dyn Error>>;

fn main() -> Done {
    let driver = gpumem_sim::driver_or_sim()?;
    let is_real = driver.kind() == DriverKind::Cuda;
    let gpu = Gpu::new(&Pool::new(&Device::new(&driver, 0)?)?)?;
    println!("{}, {}", gpu.device(), driver.kind());
    let (count, rounds) = if is_real { (10_000, 15) } else { (500, 2) };
    let bench = Bench { gpu, rounds };

    // Each array is an allocation of its own, as in a model; the bytes of one copy are contiguous.
    let arrays: Vec<Array1<f32>> = (0..count).map(|index| Array1::from_elem(1024, index as f32)).collect();
    let bytes = vec![1.0_f32; 1024 * count];
    let once = bench.median(|| GpuArray::from_slice(&bench.gpu, &bytes).map_err(AdaptError::from))?;
    let packed = bench.median(|| arrays.adapt(&bench.gpu))?;
    let slices: Vec<&[f32]> = arrays.iter().filter_map(|array| array.as_slice()).collect();
    let pack = bench.median(|| bench.gpu.upload_all(&slices).map_err(AdaptError::from))?;
    let off = Destination::new(&bench.gpu).packed_below(0);
    let single = bench.median(|| arrays.adapt(&off))?;
    let up = arrays.adapt(&bench.gpu)?;
    let down = bench.median(|| up.adapt(&Host))?;
    let shared: Vec<Arc<Array1<f32>>> =
        arrays.iter().flat_map(|array| repeat_n(Arc::new(array.clone()), 4)).take(count).collect();
    let shared = bench.median(|| shared.adapt(&bench.gpu))?;
    row("one_copy", once, None);
    row("packed_4KiB", packed, Some(once));
    row("upload_all_4KiB", pack, Some(once));
    row("one_by_one_4KiB", single, Some(once));
    row("shared_by_four_4KiB", shared, Some(once));
    row("down_4KiB", down, Some(once));

    // Nothing is copied: the time of the walk through the value.
    let mut there = Some(arrays.adapt(&bench.gpu)?);
    let moved = bench.median(|| {
        let value = there.take().ok_or_else(|| AdaptError::custom("the value was lost"))?;
        there = Some(value.into_adapted(&bench.gpu)?);
        Ok(())
    })?;
    row("moved_there_already", moved, Some(once));
    drop((there, up));
    checkpoint(&bench, if is_real { 2 << 30 } else { 32 << 20 })
}

/// A file of eight tensors, whose pages the system has in memory.
fn checkpoint(bench: &Bench, size_bytes: usize) -> Done {
    const COUNT: usize = 8;
    let path = TemporaryFile::new();
    let tensor = GpuArray::from_elem(&bench.gpu, size_bytes / COUNT / size_of::<f32>(), 1.0_f32)?;
    let failed = |error: CheckpointError| AdaptError::custom(error);
    let tensors = || (0..COUNT).map(|index| (format!("layers.{index}"), &tensor));
    save(&path.0, tensors())?;
    // A new mapping each time: its pages are part of the time.
    let mapped = bench.median(|| {
        // SAFETY: the file is the bench's own, and is saved again only below.
        unsafe { Checkpoint::map(&path.0) }
            .and_then(|checkpoint| checkpoint.load_all(&bench.gpu))
            .map_err(failed)
    })?;
    let read = bench.median(|| {
        Checkpoint::open(&path.0).and_then(|checkpoint| checkpoint.load_all(&bench.gpu)).map_err(failed)
    })?;
    let saved = bench.median(|| save(&path.0, tensors()).map_err(failed))?;
    rate("checkpoint_mapped", size_bytes, mapped);
    rate("checkpoint_read", size_bytes, read);
    rate("checkpoint_saved", size_bytes, saved);

    let (from, mut to) = (vec![1_u8; size_bytes], vec![2_u8; size_bytes]);
    let available = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    for thread_count in [1, available.min(8)] {
        let part = size_bytes.div_ceil(thread_count);
        let time = bench.median(|| {
            std::thread::scope(|scope| {
                for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
                    scope.spawn(|| to.copy_from_slice(from));
                }
            });
            Ok(())
        })?;
        rate(&format!("host_memcpy_{thread_count}_threads"), size_bytes, time);
    }
    Ok(())
}

/// A file that is removed at the end.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("gpumem-adapt-{}.safetensors", std::process::id())))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Bench {
    gpu: Gpu,
    rounds: usize,
}

impl Bench {
    /// The median time of an operation, the device's part included. The result is dropped outside of the time.
    fn median<R>(
        &self,
        mut operation: impl FnMut() -> Result<R, AdaptError>,
    ) -> Result<Duration, Box<dyn Error>> {
        let mut times = Vec::new();
        for index in 0..=self.rounds {
            self.gpu.device().synchronize()?;
            let begin = Instant::now();
            let result = operation()?;
            self.gpu.device().synchronize()?;
            // The first round warms up.
            if index > 0 {
                times.push(begin.elapsed());
            }
            drop(result);
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }
}

/// A time, and its ratio to the time of one copy.
fn row(name: &str, time: Duration, once: Option<Duration>) {
    let micros = time.as_secs_f64() * 1e6;
    if std::env::args().any(|arg| arg == "--rows") {
        println!("row\tadapt/{name}\t{micros}\tus");
        return;
    }
    let ratio = once.map(|once| format!("{:.2} x one copy", time.as_secs_f64() / once.as_secs_f64()));
    println!("{name:<24} {micros:>12.1} µs    {}", ratio.unwrap_or_default());
}

/// A rate in GB/s.
fn rate(name: &str, size_bytes: usize, time: Duration) {
    let rate = size_bytes as f64 / time.as_secs_f64() / 1e9;
    match std::env::args().any(|arg| arg == "--rows") {
        true => println!("row\tadapt/{name}\t{rate}\tGB/s"),
        false => println!("{name:<24} {rate:>12.1} GB/s"),
    }
}

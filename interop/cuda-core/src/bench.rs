//! cuda-core's own pool, by the workloads of RMM's bench: `impl,workload,threads,ns_per_op`, the median of several repeats.

use cuda_core::sys::CUdeviceptr;
use cuda_core::{Context, MemPool, Stream};
use std::error::Error;
use std::sync::{Arc, Barrier};
use std::time::Instant;

const REPEATS: usize = 9;
const PAIRS: usize = 20_000;
const SIZES: [(&str, usize); 5] =
    [("256B", 256), ("4KiB", 4 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20), ("64MiB", 64 << 20)];

type Outcome = Result<(), Box<dyn Error>>;

pub fn run() -> Outcome {
    println!("impl,workload,threads,ns_per_op");
    let context = Context::new(0)?;
    for (name, size) in SIZES {
        for threads in [1, 8, 16] {
            let figure = median(&context, threads, |bench, _| bench.pairs(size))?;
            println!("cuda_core_pool,pair_{name},{threads},{figure:.1}");
        }
    }
    for threads in [1, 8] {
        let figure = median(&context, threads, |bench, thread| bench.churn(threads, thread))?;
        println!("cuda_core_pool,churn,{threads},{figure:.1}");
    }
    Ok(())
}

/// One thread with its stream. All share a pool, which keeps its memory.
struct Bench {
    pool: Arc<MemPool>,
    stream: Arc<Stream>,
    gate: Arc<Barrier>,
}

type Measured = Result<f64, cuda_core::DriverError>;

fn median(
    context: &Arc<Context>,
    threads: usize,
    work: impl Fn(&Bench, usize) -> Measured + Sync,
) -> Result<f64, Box<dyn Error>> {
    let pool = context.new_mem_pool()?;
    pool.set_release_threshold(u64::MAX)?;
    let mut figures = Vec::new();
    // The first one warms up.
    for repeat in 0..=REPEATS {
        let gate = Arc::new(Barrier::new(threads));
        let figure = std::thread::scope(|scope| {
            let started: Vec<_> = (0..threads)
                .map(|thread| {
                    let (pool, gate, work) = (pool.clone(), gate.clone(), &work);
                    scope.spawn(move || -> Measured {
                        let bench = Bench { pool, stream: context.new_stream()?, gate };
                        let figure = work(&bench, thread)?;
                        bench.stream.synchronize()?;
                        Ok(figure)
                    })
                })
                .collect();
            let mut slowest = 0.0_f64;
            for thread in started {
                slowest = slowest.max(thread.join().map_err(|_| "a thread panicked")??);
            }
            Ok::<_, Box<dyn Error>>(slowest)
        })?;
        if repeat > 0 {
            figures.push(figure);
        }
    }
    figures.sort_by(f64::total_cmp);
    Ok(figures[REPEATS / 2])
}

impl Bench {
    fn alloc(&self, size: usize) -> Result<CUdeviceptr, cuda_core::DriverError> {
        // SAFETY: pool and stream are alive.
        unsafe { cuda_core::malloc_from_pool_async(size, &self.pool, &self.stream) }
    }

    fn free(&self, address: CUdeviceptr) -> Result<(), cuda_core::DriverError> {
        // SAFETY: the memory is from `alloc` on this stream, and no work uses it.
        unsafe { cuda_core::free_async(address, &self.stream) }
    }

    fn pairs(&self, size: usize) -> Measured {
        for _ in 0..64 {
            self.free(self.alloc(size)?)?;
        }
        self.gate.wait();
        let start = Instant::now();
        for _ in 0..PAIRS {
            self.free(self.alloc(size)?)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / PAIRS as f64)
    }

    fn churn(&self, threads: usize, thread: usize) -> Measured {
        let (live, steps) = (1000 / threads, 20_000 / threads);
        let mut random = Random(42 + 0x1000 * thread as u64);
        let initial: Vec<_> = (0..live).map(|_| random.size()).collect();
        let steps: Vec<_> =
            (0..steps).map(|_| ((random.next() % live as u64) as usize, random.size())).collect();
        let mut blocks = Vec::with_capacity(live);
        for size in initial {
            blocks.push(self.alloc(size)?);
        }
        self.gate.wait();
        let start = Instant::now();
        for (place, size) in &steps {
            self.free(blocks[*place])?;
            blocks[*place] = self.alloc(*size)?;
        }
        let took = start.elapsed().as_nanos() as f64 / steps.len() as f64;
        for block in blocks {
            self.free(block)?;
        }
        Ok(took)
    }
}

/// splitmix64, as in RMM's bench and in that of gpumem.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn size(&mut self) -> usize {
        let least = 1_u64 << (8 + self.next() % 18);
        (least + (self.next() & (least - 1))) as usize
    }
}

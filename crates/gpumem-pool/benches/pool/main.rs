//! The host cost of an allocation and its free: pairs, pairs on many threads, churn, and hand-over between threads. The cost of a
//! report. The time in which a pool goes to sleep and wakes. With the feature `status-socket` and `--only status`, what it costs to be looked
//! into.
//!
//! Runs on the driver that `GPUMEM_DRIVER` names, or on a GPU if there is one, and prints which. No work is queued on the
//! streams, so on the simulator the figures are those of the pool alone. Each figure is the best of several repeats; the median
//! stands beside it.
//!
//! `cargo bench -p gpumem-pool --bench pool -- [--backend NAME] [--only TEXT] [--repeats N] [--quick] [--rows]`
//!
//! With `--rows` it prints the format of `cargo xtask bench`. The names of workloads are those of RMM's bench.

#![allow(clippy::print_stdout, clippy::print_stderr)] // printing is what it is for

mod churn;
mod meter;
mod refusals;
mod sleep;
#[cfg(all(feature = "status-socket", target_os = "linux"))]
mod status;
mod traced;

use churn::Plan;
use gpumem_pool::sys::Driver;
use gpumem_pool::{BackendKind, Block, Device, Pool, PoolBuilder, PoolError, Stream};
use gpumem_sim::{Sim, SimConfig};
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    Plan::check()?;
    let options = Options::parse(std::env::args().skip(1))?;
    let driver = driver()?;
    let device = Device::new(&meter::metered(&driver), 0)?;
    let bench = Bench { device, simulator: Sim::of(&driver).cloned(), options };
    if !bench.options.as_rows {
        println!("{}, {}, backend {}", bench.device, driver.kind(), bench.pool()?.backend());
        println!("{:<34} {:>10} {:>10}  a pair of operations", "", "best", "median");
    }
    bench.pairs()?;
    bench.threads()?;
    bench.hand_over()?;
    bench.adapted()?;
    bench.refusals()?;
    bench.sleep()?;
    #[cfg(all(feature = "status-socket", target_os = "linux"))]
    bench.status()?;
    bench.churn()
}

/// The available driver. The simulator's device is as large as an H200.
fn driver() -> Outcome<Driver> {
    if let Ok(driver) = Driver::cuda() {
        return Ok(driver);
    }
    Ok(gpumem_sim::driver(SimConfig::new().memory_bytes(140 << 30).races(false))?)
}

struct Options {
    backend: Option<BackendKind>,
    only: String,
    repeats: usize,
    as_rows: bool,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut options = Self { backend: None, only: String::new(), repeats: 15, as_rows: false };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--backend" => options.backend = Some(value()?.parse()?),
                "--only" => options.only = value()?,
                "--repeats" => options.repeats = value()?.parse()?,
                "--quick" => options.repeats = 1,
                "--rows" => options.as_rows = true,
                // Cargo passes this to every bench.
                "--bench" => {}
                other => return Err(format!("unknown option {other}").into()),
            }
        }
        Ok(options)
    }
}

struct Bench {
    device: Device,
    simulator: Option<Sim>,
    options: Options,
}

const SIZES: [(&str, u64); 5] =
    [("256B", 256), ("4KiB", 4 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20), ("64MiB", 64 << 20)];

/// The initial memory of a pool with many blocks, like that of the peers' pools.
const GROWN_BYTES: u64 = 24 << 30;

impl Bench {
    fn builder(&self) -> PoolBuilder {
        let builder = Pool::builder(&self.device);
        match self.options.backend {
            Some(backend) => builder.backend(backend),
            None => builder,
        }
    }

    fn pool(&self) -> Result<Pool, PoolError> {
        self.builder().build()
    }

    fn streams(&self, count: usize) -> Result<Vec<Stream>, PoolError> {
        (0..count).map(|_| Ok(Stream::new(&self.device)?)).collect()
    }

    /// A backend selected by option is part of the name.
    fn name(&self, work: &str, thread_count: usize) -> String {
        let variant = self.options.backend.map(|backend| format!("@{backend}")).unwrap_or_default();
        format!("pool/{work}{variant}/{thread_count}")
    }

    fn is_asked(&self, name: &str) -> bool {
        name.contains(&self.options.only)
    }

    /// One thread, one stream, no other live blocks.
    fn pairs(&self) -> Outcome<()> {
        let (pool, stream) = (self.pool()?, Stream::new(&self.device)?);
        for (size, size_bytes) in SIZES {
            self.row(&self.name(&format!("pair_{size}"), 1), || pair(&pool, &stream, size_bytes))?;
        }
        Ok(())
    }

    /// Threads with a stream each: the mean time of a pair on one of them. One thread is measured too, for comparison; the other
    /// figures for one thread are best cases.
    fn threads(&self) -> Outcome<()> {
        for (size, size_bytes) in [SIZES[3], SIZES[4]] {
            for thread_count in [1, 2, 4, 8, 16] {
                let (pool, streams) = (self.pool()?, self.streams(thread_count)?);
                // Room for a mebibyte in each thread's magazine.
                pool.reserve(GROWN_BYTES)?;
                let pairs = 50_000;
                let work = |thread: usize| {
                    let stream = &streams[thread];
                    for _ in 0..pairs {
                        drop(pool.alloc(size_bytes, stream)?);
                    }
                    Ok(())
                };
                let mean = if thread_count == 1 { "_mean" } else { "" };
                self.row(&self.name(&format!("pair_{size}{mean}"), thread_count), || {
                    Ok(per(together(thread_count, work)?.mean, pairs))
                })?;
            }
        }
        Ok(())
    }

    /// Allocated by one thread on its stream, freed by another, including the time to move the blocks between their caches.
    fn hand_over(&self) -> Outcome<()> {
        let (pool, stream) = (self.pool()?, Stream::new(&self.device)?);
        self.row(&self.name("handover_4KiB", 2), || Ok(handed_over(&pool, &stream)?.0))?;
        self.row(&self.name("handover_4KiB_passing", 2), || Ok(handed_over(&pool, &stream)?.1))
    }

    fn reading(&self) -> Reading {
        let (calls, spent) = meter::reading();
        let priced = self.simulator.as_ref().map_or(spent, Sim::host_time);
        Reading { calls, spent, priced }
    }

    fn row(&self, name: &str, mut once: impl FnMut() -> Outcome<f64>) -> Outcome<()> {
        if !self.is_asked(name) {
            return Ok(());
        }
        // The first one warms up.
        once()?;
        let mut figures = (0..self.options.repeats).map(|_| once()).collect::<Outcome<Vec<_>>>()?;
        figures.sort_by(f64::total_cmp);
        let (best, median) = (figures[0], figures[figures.len() / 2]);
        if self.options.as_rows {
            println!("row\t{name}\t{best:.2}\tns");
        } else {
            println!("{name:<34} {best:>7.1} ns {median:>7.1} ns");
        }
        Ok(())
    }

    fn note(&self, name: &str, value: f64, unit: &str) -> Outcome<()> {
        if self.options.as_rows {
            println!("row\t{name}\t{value:.3}\t{unit}");
        } else {
            println!("{name:<34} {value:>7.3} {unit}");
        }
        Ok(())
    }
}

/// The time of a pair: the best of many short samples, most of which nothing interrupts.
fn pair(pool: &Pool, stream: &Stream, size_bytes: u64) -> Outcome<f64> {
    let (samples, pairs) = (2000, 1000);
    let mut best = Duration::MAX;
    for _ in 0..samples {
        let start = Instant::now();
        for _ in 0..pairs {
            drop(pool.alloc(size_bytes, stream)?);
        }
        best = best.min(start.elapsed());
    }
    Ok(per(best, pairs))
}

/// The driver calls so far.
#[derive(Clone, Copy, Default)]
struct Reading {
    calls: u64,
    /// The host's time in calls.
    spent: Duration,
    /// The driver time by the simulator's prices, if the driver is a simulator.
    priced: Duration,
}

impl Reading {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            spent: self.spent - earlier.spent,
            priced: self.priced - earlier.priced,
        }
    }
}

/// The times of several threads.
struct Times {
    /// From the start of the first thread to the end of the last.
    whole: Duration,
    /// The mean of the threads' own times.
    mean: Duration,
}

/// Runs a body on several threads that start together.
fn together(
    thread_count: usize,
    work: impl Fn(usize) -> Result<(), PoolError> + Sync,
) -> Result<Times, PoolError> {
    let ready_count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let run = |thread: usize| {
            let (ready_count, work) = (&ready_count, &work);
            scope.spawn(move || {
                ready_count.fetch_add(1, Ordering::AcqRel);
                // Not a barrier that sleeps, whose threads wake one after the other.
                while ready_count.load(Ordering::Acquire) < thread_count {
                    std::thread::yield_now();
                }
                let start = Instant::now();
                work(thread).map(|()| (start, Instant::now()))
            })
        };
        let threads: Vec<_> = (0..thread_count).map(run).collect();
        let times = threads.into_iter().filter_map(|thread| thread.join().ok());
        let times = times.collect::<Result<Vec<_>, _>>()?;
        let start = times.iter().map(|(start, _)| *start).min();
        let end = times.iter().map(|(_, end)| *end).max();
        let whole = end.zip(start).map_or(Duration::ZERO, |(end, start)| end - start);
        let sum: Duration = times.iter().map(|(start, end)| *end - *start).sum();
        Ok(Times { whole, mean: sum / thread_count as u32 })
    })
}

/// The time of a block for both threads together: the pool's part, and the part of the channel.
fn handed_over(pool: &Pool, stream: &Stream) -> Outcome<(f64, f64)> {
    let (batches, batch) = (400, 250);
    let (sender, receiver) = mpsc::sync_channel::<Vec<Block>>(2);
    let consumer = std::thread::spawn(move || {
        let (mut freeing, mut passing) = (Duration::ZERO, Duration::ZERO);
        let mut own = Vec::with_capacity(batch);
        for blocks in receiver {
            let came = Instant::now();
            own.extend(blocks);
            let start = Instant::now();
            own.clear();
            freeing += start.elapsed();
            passing += start - came;
        }
        (freeing, passing)
    });
    let (mut allocating, mut passing) = (Duration::ZERO, Duration::ZERO);
    let mut own = Vec::with_capacity(batch);
    for _ in 0..batches {
        let start = Instant::now();
        for _ in 0..batch {
            own.push(pool.alloc(4 << 10, stream)?);
        }
        let end = Instant::now();
        let mut blocks = Vec::with_capacity(batch);
        blocks.append(&mut own);
        allocating += end - start;
        passing += end.elapsed();
        // A list of many blocks makes the channel's part small.
        sender.send(blocks)?;
    }
    drop(sender);
    let (freeing, took) = consumer.join().map_err(|_| "the consumer failed")?;
    let count = (batches * batch) as u32;
    Ok((per(allocating + freeing, count), per(passing + took, count)))
}

fn per(took: Duration, count: u32) -> f64 {
    took.as_nanos() as f64 / f64::from(count)
}

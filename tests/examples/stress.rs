//! The stress test for a given time: many threads on many streams; kernels fill and check each block.
//!
//! Each round has a new pool with the next backend and profile, and new random choices. The program prints the work of each round. It
//! fails if a block has wrong contents, a guard byte was written, or the simulator found a race.

#![allow(clippy::print_stdout, reason = "a program that prints its progress")]

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use gpumem_tests::driver::wait_after_query::wait_after_query;
use gpumem_tests::fixtures::backends::{Setting, settings};
use gpumem_tests::fixtures::pattern::Wrong;
use gpumem_tests::pool::adaptor::Guard;
use gpumem_tests::pool::{BackendKind, Device, Limit, Profile};
use gpumem_tests::stress::{Done, Mistake, Plan, Until, run};
use gpumem_tests::sys::DriverKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Stresses the pool with many threads and streams; runs on the simulator if there is no GPU.
///
/// GPUMEM_DRIVER=cuda|sim chooses the driver.
#[derive(Parser)]
#[command(name = "stress")]
struct Options {
    /// The total time.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// The maximum time of one round.
    #[arg(long, default_value_t = 10.0)]
    round_seconds: f64,
    /// The number of threads.
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// The number of streams, shared by all threads.
    #[arg(long, default_value_t = 16)]
    streams: usize,
    /// Only this backend: caching, native or none [default: all that are built in, in turns].
    #[arg(long)]
    backend: Option<BackendKind>,
    /// Only this profile of the backend `caching` [default: all, in turns].
    #[arg(long)]
    profile: Option<Profile>,
    /// The largest block [default: 64MiB on a GPU, 1MiB on the simulator].
    #[arg(long, value_name = "SIZE")]
    size_max: Option<Limit>,
    /// The maximum size of all live blocks together [default: 8GiB on a GPU, 64MiB on the simulator].
    #[arg(long, value_name = "SIZE")]
    budget: Option<Limit>,
    /// The hard limit of the pools.
    #[arg(long, value_name = "LIMIT")]
    hard_limit: Option<Limit>,
    /// The seed of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Puts guard bytes around all blocks, and checks them when the blocks are freed.
    #[arg(long)]
    guard: bool,
    /// Waits for an event after each successful query of it, for compute-sanitizer, which ignores such queries.
    #[arg(long)]
    wait_after_query: bool,
    /// An injected error; the run must fail.
    #[arg(long)]
    mistake: Option<Forgotten>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Forgotten {
    /// Omits the wait for the stream that used a block last.
    Wait,
    /// Omits `record_use`.
    RecordUse,
    /// Writes a byte behind a block (only with --guard).
    End,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let needs_guard = matches!(options.mistake, Some(Forgotten::End));
    ensure!(
        options.guard || !needs_guard,
        "--mistake end needs --guard: without guard bytes the program would write into another block"
    );
    let driver = gpumem_sim::driver_or_sim()?;
    let driver = if options.wait_after_query { wait_after_query(&driver) } else { driver };
    let device = Device::new(&driver, 0)?;
    println!("{}: {device}", driver.kind());
    let is_wanted = |setting: &Setting| {
        options.backend.is_none_or(|backend| backend == setting.backend)
            && (options.profile.is_none() || options.profile == setting.profile)
    };
    let all: Vec<Setting> = settings(&device).into_iter().filter(is_wanted).collect();
    ensure!(!all.is_empty(), "no backend that is built in has that name and profile");
    let (start, end) = (Instant::now(), Duration::from_secs_f64(options.seconds));
    let share = Duration::from_secs_f64((options.seconds / all.len() as f64).min(options.round_seconds));
    let mut sum = Done::default();
    for round in 0_u64.. {
        if start.elapsed() + share / 2 > end {
            break;
        }
        let setting = all[round as usize % all.len()];
        let done = options.round(&device, setting, round, share)?;
        println!("{setting}, {done}");
        sum = sum.and(done);
        if let Some(sim) = gpumem_sim::Sim::of(&driver) {
            let findings = sim.take_findings();
            ensure!(findings.is_empty(), "the simulator found: {}", findings[0]);
        }
        ensure!(
            done.wrong == Wrong::default(),
            "{setting} handed out memory that was in use: {}",
            done.wrong
        );
    }
    println!("all, {sum}");
    Ok(())
}

impl Options {
    fn round(&self, device: &Device, setting: Setting, round: u64, share: Duration) -> Result<Done> {
        let (size_max, budget) = match device.driver().kind() {
            DriverKind::Sim => (1 << 20, 64 << 20),
            _ => (64 << 20, 8 << 30),
        };
        let free_bytes = device.memory_info()?.free_bytes;
        let bytes = |given: Option<Limit>, default| {
            given.map_or(Ok(default), |limit| limit.resolve(device.total_bytes(), free_bytes))
        };
        let plan = Plan {
            threads: self.threads,
            streams: self.streams,
            until: Until::Elapsed(share),
            size_bytes_max: bytes(self.size_max, size_max)?,
            budget_bytes: bytes(self.budget, budget)?,
            seed: self.seed.wrapping_add(round),
            mistake: self.mistake.map(|forgotten| match forgotten {
                Forgotten::Wait => Mistake::NoWait,
                Forgotten::RecordUse => Mistake::NoRecordUse,
                Forgotten::End => Mistake::End,
            }),
        };
        let mut builder = setting.builder(device);
        if let Some(limit) = self.hard_limit {
            builder = builder.hard_limit(limit);
        }
        let guard = self.guard.then(|| Arc::new(Guard::new()));
        if let Some(guard) = &guard {
            builder = builder.adaptor(guard.clone());
        }
        let outcome = run(&builder.build()?, &plan).with_context(|| format!("{setting}, round {round}"));
        device.synchronize()?;
        if let Some(guard) = guard {
            let damages = guard.settle();
            ensure!(damages.is_empty(), "{setting}, round {round}: {}", damages[0]);
            println!(
                "{} blocks had their guards, {} could not be asked",
                guard.checked_count(),
                guard.unchecked_count()
            );
        }
        outcome
    }
}

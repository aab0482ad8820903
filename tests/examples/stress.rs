//! The stress test for as long as wanted: many threads on many streams, each block filled and checked by kernels.
//!
//! Goes round over the backends and their profiles, a fresh pool and other random choices each round, prints what each round did, and
//! fails when a block held what it should not, a guard was written or the simulator found a race.

#![allow(clippy::print_stdout, reason = "a program that says what it does")]

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use gpumem_tests::backends::{Setting, settings};
use gpumem_tests::pattern::Wrong;
use gpumem_tests::pool::adaptor::Guard;
use gpumem_tests::pool::{BackendKind, Device, Limit, Profile};
use gpumem_tests::stress::{Done, Mistake, Plan, Until, run};
use gpumem_tests::sys::DriverKind;
use gpumem_tests::told::told;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Stresses the pool with many threads and streams; on the simulator where there is no GPU.
///
/// GPUMEM_DRIVER=cuda|sim chooses the driver.
#[derive(Parser)]
#[command(name = "stress")]
struct Options {
    /// For how long, all together.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// For how long at most on one pool.
    #[arg(long, default_value_t = 10.0)]
    round_seconds: f64,
    /// Threads that allocate, use and free.
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// Streams that they share.
    #[arg(long, default_value_t = 16)]
    streams: usize,
    /// Only this backend [default: all that are built in, in turns].
    #[arg(long)]
    backend: Option<BackendKind>,
    /// Only this profile of the backend `caching` [default: all, in turns].
    #[arg(long)]
    profile: Option<Profile>,
    /// The largest block [default: 64MiB on a GPU, 1MiB on the simulator].
    #[arg(long, value_name = "SIZE")]
    size_max: Option<Limit>,
    /// What blocks hold together at most [default: 8GiB on a GPU, 64MiB on the simulator].
    #[arg(long, value_name = "SIZE")]
    budget: Option<Limit>,
    /// The pools' hard limit.
    #[arg(long, value_name = "LIMIT")]
    hard_limit: Option<Limit>,
    /// Decides the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Puts guards around all blocks, which are looked at when the blocks come back.
    #[arg(long)]
    guard: bool,
    /// Has a wait follow whatever the driver answers, for a checker that follows nothing else.
    #[arg(long)]
    told: bool,
    /// What the program forgets on purpose; it fails then.
    #[arg(long)]
    mistake: Option<Forgotten>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Forgotten {
    /// Waiting for the stream that used a block last.
    Wait,
    /// Telling a block which streams use it.
    RecordUse,
    /// Where a block ends: a byte behind it is written (only with --guard).
    End,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let needs_guard = matches!(options.mistake, Some(Forgotten::End));
    ensure!(options.guard || !needs_guard, "what is written behind a block is another's without --guard");
    let driver = gpumem_sim::driver_or_sim()?;
    let driver = if options.told { told(&driver) } else { driver };
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
        let bytes = |given: Option<Limit>, default| {
            given.map_or(Ok(default), |limit| limit.resolve(device.total_bytes()))
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

//! Fits a linear model with mini-batch Adam on the GPU, and holds the result against the same training on the host.
//!
//! `cargo run --release --example train` learns from the data set beside this file; `--synthetic 300000x1000 --epochs
//! 100 --hard-limit 4GiB` from random numbers; `--help` lists the rest. A table that does not fit is fed to the GPU in batches:
//! `--synthetic 3000000x1000 --batch 65536 --epochs 2 --hard-limit 4GiB`. With `--spill host:16GiB` it is uploaded as a whole, and the pool moves
//! what does not fit. Without a GPU it runs on the simulator, and says so.
//!
//! `--devices 2` trains on two GPUs, whose gradients NCCL sums, and compares the losses with those of one GPU. `--rank` makes it one process
//! for each of them. `--exchange blocks` sums without NCCL, on the simulator too: `GPUMEM_SIM_DEVICES=2`.
//!
//! `options` what the user chose · `data` the table · `model` what is fitted · `device` the training, with `adam` and
//! `kernels` · `exchange` sums over devices · `reference` the same on the host · `report` what is printed.

mod adam;
mod data;
mod device;
mod exchange;
mod kernels;
mod model;
mod options;
mod reference;
mod report;

use anyhow::Result;
use clap::Parser;
use device::{Placement, Work};
use exchange::{Exchange, Lengths};
use gpumem_adapt::array::Gpu;
use indicatif::ProgressBar;
use model::Dense;
use options::Options;
use report::Report;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    // SAFETY: the program has started no thread yet.
    unsafe { exchange::set_environment() };
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(answer) => {
            // Invalid arguments exit with 1, like every other error, instead of clap's 2.
            let _ = answer.print();
            return if answer.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If this fails too, there is no way to report it.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let started = Instant::now();
    let plan = options.plan()?;
    let ranks = &plan.ranks;
    let devices = options.devices(&gpumem_sim::driver_or_sim()?, ranks)?;
    let gpus =
        devices.iter().map(|device| Ok(Gpu::new(&options.pool(device)?)?)).collect::<Result<Vec<_>>>()?;
    let pool = gpus[0].pool();
    let mut report = if ranks.has_first() { Report::to_stdout() } else { Report::to_nowhere() };
    devices.iter().try_for_each(|device| report.device(device))?;
    report.pool(pool)?;

    let table = options.table(&report::progress("generating"))?;
    let initial = Dense::new(table.columns(), plan.seed);
    let placement = Placement::of(&table, &plan, pool)?;
    report.task(&table, &plan, placement)?;
    let lengths = Lengths { gradient: table.columns() + 1, losses: plan.epochs };
    let exchange = Exchange::connect(options, ranks, &gpus, lengths)?;
    if options.exchange().is_some() {
        report.exchange(&plan, &exchange)?;
    }

    report.memory("before", &pool.status()?)?;
    let progress = training_progress(placement);
    let (table, initial) = (&table, &initial);
    let work = Work { gpus: &gpus, table, initial, plan: &plan, exchange, progress: &progress };
    let training = device::train(work, placement)?;
    if let Some(status) = &training.status {
        report.memory("during", status)?;
    }
    report.memory("after", &pool.status()?)?;
    if placement == Placement::Spilled {
        report.spilled(&pool.status()?)?;
    }
    if !ranks.has_first() {
        return Ok(());
    }
    if options.exchange().is_some() {
        let plan_of_one = plan.on_one_device();
        let placement = Placement::of(table, &plan_of_one, pool)?;
        let (exchange, progress) = (Exchange::Alone, training_progress(placement));
        let work =
            Work { gpus: &gpus[..1], table, initial, plan: &plan_of_one, exchange, progress: &progress };
        report.epochs(&plan, &training, &device::train(work, placement)?)?;
    }

    let reference_started = Instant::now();
    let reference = reference::train(table, initial, &plan, &report::progress("reference"));
    let reference_time = reference_started.elapsed();
    report.losses(&training)?;
    report.times(&training, &plan, table, reference_time, started.elapsed())?;
    if let Some(feeding) = &training.feeding {
        report.feeding(feeding, training.training_time)?;
    }
    report.agreement(table, &training, &reference)
}

fn training_progress(placement: Placement) -> ProgressBar {
    match placement {
        Placement::Resident | Placement::Spilled => report::progress("training"),
        Placement::Fed => report::progress_of_bytes("training"),
    }
}

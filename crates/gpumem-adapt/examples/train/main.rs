//! Fits a linear model with mini-batch Adam on the GPU, and holds the result against the same training on the host.
//!
//! `cargo run --release --example train` learns from the data set beside this file; `--synthetic 300000x1000 --epochs
//! 100 --hard-limit 4GiB` from random numbers; `--help` lists the rest. A table that does not fit is fed to the GPU in batches:
//! `--synthetic 3000000x1000 --batch 65536 --epochs 2 --hard-limit 4GiB`. Without a GPU it runs on the simulator, which it prints.
//!
//! `options` what the user chose · `data` the table · `model` what is fitted · `device` the training, with `adam` and
//! `kernels` · `reference` the same on the host · `report` what is printed.

mod adam;
mod data;
mod device;
mod kernels;
mod model;
mod options;
mod reference;
mod report;

use anyhow::Result;
use clap::Parser;
use device::Placement;
use gpumem_adapt::array::Gpu;
use model::Dense;
use options::Options;
use report::Report;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
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
    let device = options.device()?;
    let pool = options.pool(&device)?;
    let gpu = Gpu::new(&pool)?;
    let mut report = Report::to_stdout();
    report.device(&device)?;
    report.pool(&pool)?;

    let table = options.table(&report::progress("generating"))?;
    let initial = Dense::new(table.columns(), plan.seed);
    let placement = Placement::of(&table, &pool)?;
    report.task(&table, &plan, placement)?;

    report.memory("before", &pool.status()?)?;
    let progress = match placement {
        Placement::Resident => report::progress("training"),
        Placement::Fed => report::progress_of_bytes("training"),
    };
    let training = device::train(&gpu, &table, &initial, &plan, placement, &progress)?;
    if let Some(status) = &training.status {
        report.memory("during", status)?;
    }
    report.memory("after", &pool.status()?)?;

    let reference_started = Instant::now();
    let reference = reference::train(&table, &initial, &plan, &report::progress("reference"));
    let reference_time = reference_started.elapsed();
    report.losses(&training)?;
    report.times(&training, &plan, &table, reference_time, started.elapsed())?;
    if let Some(feeding) = &training.feeding {
        report.feeding(feeding, training.training_time)?;
    }
    report.agreement(&table, &training, &reference)
}

//! `cargo xtask`: everything about this repository that is not the libraries themselves. One task a file.

mod bindgen;
mod ci;
mod drop_in;
mod fuzz;
mod gpu_test;
mod interop;
mod kernels;
mod layers;
mod measure;
mod mutants;
mod packages;
mod plots;
mod programs;
mod rooms;
mod table;
mod tidy;
mod wheel;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Code generation, GPU tests, fuzzing and checks for gpumem"
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Generate the driver's types and function list from `cuda.h`
    Bindgen(bindgen::Args),
    /// Try random programs over the pool on the simulator, and shrink what fails
    Fuzz(fuzz::Args),
    /// Replay recorded traces of allocations through a pool, and say what it reserved and what that cost
    #[command(disable_help_flag = true)]
    Replay(measure::Args),
    /// Run the benches, and print one table of their figures beside the peers'
    #[command(disable_help_flag = true)]
    Bench(measure::Args),
    /// Run every test that can run on a GPU on this machine's, or bundle them for another machine
    GpuTest(gpu_test::Args),
    /// Lay the simulator out as libcuda.so.1, for programs that know nothing of gpumem
    DropIn(drop_in::Args),
    /// Run programs of others on the simulator
    Interop(interop::Args),
    /// Run what CI runs, or some of its steps
    Ci(ci::Args),
    /// Change the library in small ways, one at a time, and count which changes the tests notice
    Mutants(mutants::Args),
    /// Check layers, headers, `unsafe`, kernels, documents and leftovers
    Tidy,
    /// Draw the README's plots from the figures in docs/plots
    Plots,
    /// Compile the CUDA sources to the PTX that is checked in
    Kernels(kernels::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Bindgen(args) => bindgen::run(args),
        Task::Fuzz(args) => fuzz::run(args),
        Task::Replay(args) => measure::replay(&args),
        Task::Bench(args) => measure::bench(&args),
        Task::GpuTest(args) => gpu_test::run(args),
        Task::DropIn(args) => drop_in::run(args),
        Task::Interop(args) => interop::run(args),
        Task::Ci(args) => ci::run(args),
        Task::Mutants(args) => mutants::run(args),
        Task::Tidy => tidy::run(),
        Task::Plots => plots::run(),
        Task::Kernels(args) => kernels::run(args),
    }
}

/// The repository's root folder.
pub(crate) fn root() -> std::path::PathBuf {
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

//! `cargo xtask`: all tasks of this repository. docs/develop/rooms.md lists the rooms of this crate.

mod capi;
mod ci;
mod command;
mod drop_in;
mod generate;
mod gpu_test;
mod interop;
mod measure;
#[path = "../../crates/gpumem-cli/src/table.rs"]
mod table;
mod tidy;
mod workspace;

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
    #[command(disable_help_flag = true)]
    Bindgen(generate::Args),
    /// Run random programs over the pool on the simulator, and shrink those that fail
    #[command(disable_help_flag = true)]
    Fuzz(measure::Args),
    /// Replay recorded traces of allocations through a pool, and print the reserved memory and the driver calls
    #[command(disable_help_flag = true)]
    Replay(measure::Args),
    /// Run the benches, and print their figures beside the peers' in one table
    #[command(disable_help_flag = true)]
    Bench(measure::Args),
    /// Run every GPU test on this machine, or bundle them for another machine
    GpuTest(gpu_test::Args),
    /// Build the simulator as libcuda.so.1, for programs that do not use gpumem
    DropIn(drop_in::Args),
    /// Build the C library, its header and a pkg-config file into a folder
    Capi(capi::Args),
    /// Build the Python package
    Wheel(capi::python::Args),
    /// Build the command `gpumem` as one file for Linux systems since 2018
    Command(command::Args),
    /// Make the header of the C library
    #[command(disable_help_flag = true)]
    Header(generate::Args),
    /// Run programs of others on the simulator
    Interop(interop::Args),
    /// Run the steps of CI, or some of them
    Ci(ci::Args),
    /// Check layers, rooms, cycles, names, headers, `unsafe` and documents
    Tidy,
    /// Compile the CUDA sources to the PTX that is checked in
    #[command(disable_help_flag = true)]
    Kernels(generate::Args),
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
        Task::Bindgen(args) => generate::run(generate::BINDGEN, args),
        Task::Fuzz(args) => measure::fuzz(&args),
        Task::Replay(args) => measure::replay(&args),
        Task::Bench(args) => measure::bench(&args),
        Task::GpuTest(args) => gpu_test::run(args),
        Task::DropIn(args) => drop_in::run(args),
        Task::Capi(args) => capi::run(args),
        Task::Wheel(args) => capi::python::run(args),
        Task::Command(args) => command::run(args),
        Task::Header(args) => generate::run(generate::HEADER, args),
        Task::Interop(args) => interop::run(args),
        Task::Ci(args) => ci::run(args),
        Task::Tidy => tidy::run(),
        Task::Kernels(args) => generate::run(generate::KERNELS, args),
    }
}

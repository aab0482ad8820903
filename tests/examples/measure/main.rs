//! The measurements of gpumem: benches and replays. `cargo xtask bench` and `cargo xtask replay` start this program. A bundle
//! includes it with the benches and traces beside it, for machines without cargo.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints its progress")]

mod bench;
mod beside;
mod peers;
mod replay;
mod row;
mod runs;
#[path = "../../../crates/gpumem-cli/src/table.rs"]
mod table;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "measure", bin_name = "cargo xtask", about = "Figures of gpumem on this machine")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the benches, and print one table of their figures beside the peers'
    Bench(bench::Args),
    /// Replay recorded traces of allocations through a pool, and print the reserved memory and the driver calls
    Replay(replay::Args),
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

fn run(task: Task) -> Result<()> {
    match task {
        Task::Bench(args) => bench::run(args),
        Task::Replay(args) => replay::run(args),
    }
}

//! The programs behind `cargo xtask bindgen`, `kernels` and `header`: they make files that are checked in.

mod bindgen;
mod header;
mod kernels;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Generate the driver's types and function list from `cuda.h`
    Bindgen(bindgen::Args),
    /// Compile the CUDA sources to the PTX that is checked in
    Kernels(kernels::Args),
    /// Make the header of the C library
    Header(header::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Bindgen(args) => bindgen::run(args),
        Task::Kernels(args) => kernels::run(args),
        Task::Header(args) => header::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<workspace::wheel::Unreachable>() { UNREACHABLE } else { 1 })
        }
    }
}

/// The exit code if a vendor's file cannot be downloaded.
const UNREACHABLE: u8 = 3;

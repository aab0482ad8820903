//! `cargo xtask`: everything about this repository that is not the libraries themselves. One task a file.

mod bindgen;
mod kernels;
mod wheel;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Code generation, GPU tests, fuzzing and checks for gpumem")]
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
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Bindgen(args) => bindgen::run(args),
        Task::Kernels(args) => kernels::run(args),
    }
}

/// The repository's root folder.
pub(crate) fn root() -> std::path::PathBuf {
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

//! `cargo xtask interop`: runs programs of others on the simulator.
//!
//! Each is in `interop/`, outside of the workspace, because it needs its own build or versions. The drop-in library is put into a
//! folder below `target/interop`. The programs are built beside it and started with only that folder on the library path, once
//! for each of a few seeds. They check their results and exit accordingly. The program `candle` measures on a GPU and runs
//! only there; candle's tests and `candle-model` run on the drop-in.

mod candle;
mod candle_model;
mod candle_tests;
mod cubecl;
mod cuda_core;
mod patched;
mod process;
mod suite;
mod toolkit;

use crate::workspace::programs::Profile;
use crate::{drop_in, table};
use anyhow::{Result, bail};
use process::{Needs, build};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these [default: all but those of candle]
    #[arg(value_name = "NAME", value_parser = names())]
    names: Vec<String>,
    /// Start each program under this many seeds of the simulator
    #[arg(long, default_value_t = 8)]
    seeds: u64,
}

struct Program {
    name: &'static str,
    about: &'static str,
    /// Returns a description of the success.
    run: fn(&Layout, &str, u64) -> Result<String>,
}

const PROGRAMS: &[Program] = &[
    Program { name: "cudarc", about: "cudarc's safe API, with arrays of gpumem too", run: program },
    Program {
        name: "cudarc-allocator",
        about: "cudarc's slices on a caching pool, by a patch",
        run: patched::run,
    },
    Program {
        name: "cust",
        about: "cust, linked against the library; memory in both directions",
        run: program,
    },
    Program { name: "cuda-core", about: "cuda-core with memory of gpumem", run: cuda_core::run },
    Program {
        name: "cubecl",
        about: "cubecl's memory on CUDA, and kernels in its language (what burn runs on)",
        run: cubecl::run,
    },
    Program {
        name: CANDLE,
        about: "candle on a GPU, with a pool of gpumem; without a GPU it is only built. Compiles CUDA kernels for minutes",
        run: candle::run,
    },
    Program {
        name: CANDLE_SUITE,
        about: "the CUDA tests of candle-core and candle-nn. Compiles CUDA kernels for minutes",
        run: candle_tests::run,
    },
    Program {
        name: CANDLE_MODEL,
        about: "a network of candle-nn, trained on CPU and drop-in. Compiles CUDA kernels for minutes",
        run: candle_model::run,
    },
    Program { name: SUITE, about: "cudarc's own driver tests", run: suite::run },
];

const CANDLE: &str = "candle";
const CANDLE_MODEL: &str = "candle-model";

/// Tests of published packages.
const CANDLE_SUITE: &str = "candle-tests";
const SUITE: &str = "cudarc-tests";

/// These compile candle's kernels, and run only if they are named.
const CANDLES: [&str; 3] = [CANDLE, CANDLE_SUITE, CANDLE_MODEL];

/// What candle needs beside the driver.
const LIBRARIES: &str = "cuda-libraries";

fn names() -> clap::builder::PossibleValuesParser {
    let value = |program: &Program| clap::builder::PossibleValue::new(program.name).help(program.about);
    PROGRAMS.iter().map(value).collect::<Vec<_>>().into()
}

pub(crate) fn run(args: Args) -> Result<()> {
    check(&args.names, args.seeds, Profile::Release)
}

/// Builds and runs the named programs, or all but those that compile candle's kernels.
pub(crate) fn check(names: &[String], seeds: u64, profile: Profile) -> Result<()> {
    let layout = Layout::new(profile)?;
    let chosen = PROGRAMS.iter().filter(|program| match names {
        [] => !CANDLES.contains(&program.name),
        names => names.iter().any(|name| name == program.name),
    });
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for program in chosen {
        println!("\n-- {}: {} --", program.name, program.about);
        let start = Instant::now();
        let result = (program.run)(&layout, program.name, seeds).unwrap_or_else(|error| {
            println!("{}: {error:#}", program.name);
            failed.push(program.name);
            "FAILED".to_string()
        });
        rows.push([program.name.to_string(), format!("{:.1}", start.elapsed().as_secs_f64()), result]);
    }
    println!("\n{}", table::render(["program", "seconds", "result"], &rows));
    if !failed.is_empty() {
        bail!("failed: {}; repeat with `cargo xtask interop {}`", failed.join(", "), failed.join(" "));
    }
    Ok(())
}

/// The manifests of this project's packages, from the repository's root.
pub(crate) fn manifests() -> impl Iterator<Item = String> {
    let names = PROGRAMS.iter().map(|program| program.name);
    let ours = names.filter(|name| ![CANDLE_SUITE, SUITE].contains(name)).chain([LIBRARIES]);
    ours.map(|name| format!("interop/{name}/Cargo.toml"))
}

struct Layout {
    sources: PathBuf,
    made: PathBuf,
    drop_in: PathBuf,
}

impl Layout {
    fn new(profile: Profile) -> Result<Self> {
        let made = crate::workspace::root().join("target/interop");
        let drop_in = drop_in::lay_out(&made.join("drop-in"), profile)?;
        // Programs that link against the driver look here for a toolkit.
        let stubs = made.join("toolkit/lib64/stubs");
        std::fs::create_dir_all(&stubs)?;
        drop_in::link("../../../drop-in/libcuda.so", &stubs.join("libcuda.so"))?;
        Ok(Self { sources: crate::workspace::root().join("interop"), made, drop_in })
    }

    fn toolkit(&self) -> PathBuf {
        self.made.join("toolkit")
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.sources.join(name).join("Cargo.toml")
    }
}

/// Builds and runs a program of this project.
fn program(layout: &Layout, name: &str, seeds: u64) -> Result<String> {
    let built = build(layout, &layout.manifest(name), &["build", "--locked"], &[])?;
    run_seeds(layout, &built, &Needs::default(), seeds)
}

/// Runs a program, which passes if it exits with success under every seed.
fn run_seeds(layout: &Layout, built: &Path, needs: &Needs, seeds: u64) -> Result<String> {
    for seed in 0..seeds {
        let (output, failure) = process::run(layout, built, needs, &[], seed)?;
        if seed == 0 || failure.is_some() {
            print!("{output}");
        }
        if let Some(how) = failure {
            bail!("{how} under seed {seed}; repeat with\n    {}", process::shown(layout, built, needs, seed));
        }
    }
    Ok(format!("passed under {seeds} seeds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_ours_has_its_sources() {
        for manifest in manifests() {
            let lock = crate::workspace::root().join(manifest).with_extension("lock");
            assert!(lock.is_file(), "{}", lock.display());
        }
        let folders = std::fs::read_dir(crate::workspace::root().join("interop"))
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_dir());
        assert_eq!(folders.count(), manifests().count(), "a folder in interop/ that no program names");
    }
}

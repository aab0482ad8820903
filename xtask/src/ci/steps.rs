//! The steps. Cheap ones and ones that fail often come first.

use super::command::{cargo, cargo_of, rustup, toolchain};
use super::{Outcome, Step, packages};
use crate::tidy::LAYERS;
use crate::workspace::published;
use anyhow::{Context, Result, ensure};
use cargo_metadata::MetadataCommand;

#[rustfmt::skip]
pub(super) const STEPS: &[Step] = &[
    Step { name: "fmt", about: "the formatter agrees with every source", is_apart: false, run: fmt },
    Step { name: "tidy", about: "cargo xtask tidy", is_apart: false, run: tidy },
    Step { name: "clippy", about: "no warning in the workspace, with GPU cases and without", is_apart: false, run: clippy },
    Step { name: "features", about: "every promised combination of features builds, without the simulator unless asked for; suites of arrays on backend none", is_apart: false, run: features },
    Step { name: "test", about: "the README's test command", is_apart: false, run: test },
    Step { name: "devices", about: "suites of arrays on two simulated devices: copies, reads and broadcasts, with a link and without", is_apart: false, run: devices },
    Step { name: "models", about: "locks, clocks, thread caches and the pool under the model checkers loom and shuttle", is_apart: true, run: models },
    Step { name: "docs", about: "no warning in the documentation", is_apart: false, run: docs },
    Step { name: "bindgen", about: "the driver's types and functions are what bindgen makes", is_apart: false, run: bindgen },
    Step { name: "kernels", about: "the PTX is what the CUDA sources make", is_apart: false, run: kernels },
    Step { name: "nvrtc", about: "CUDA text is compiled at run time, with NVRTC from the Python package index", is_apart: false, run: nvrtc },
    Step { name: "train", about: "the README's main example, unoptimised as the tests built it", is_apart: false, run: train },
    Step { name: "examples", about: "examples of arrays and pools, on the simulator, unoptimised too", is_apart: false, run: examples },
    Step { name: "bundle", about: "each suite of a bundle for GPUs has cases; each bench runs, unoptimised, and its rows are parsed", is_apart: false, run: bundle },
    Step { name: "interop", about: "programs of others on the drop-in driver, without candle, cubecl and cuda-core", is_apart: false, run: interop },
    Step { name: "capi", about: "the C header is current; C and C++ programs on the drop-in driver, with the address sanitizer too", is_apart: false, run: capi },
    Step { name: "python", about: "the Python package: a wheel, and its tests on the drop-in driver, with PyTorch where it is installed", is_apart: false, run: python },
    Step { name: "oldest", about: "the stated Rust version compiles every library", is_apart: true, run: oldest },
    Step { name: "packages", about: "each package's library, tests and examples build alone, from its files", is_apart: false, run: packages::packages },
    Step { name: "minimal", about: "libraries build from the files of the packages, with the lowest versions of dependencies", is_apart: false, run: packages::minimal },
    Step { name: "windows", about: "no warning in the crates for x86_64-pc-windows-gnu", is_apart: false, run: || target("x86_64-pc-windows-gnu") },
    Step { name: "aarch64", about: "no warning in the crates for aarch64-unknown-linux-gnu", is_apart: false, run: || target("aarch64-unknown-linux-gnu") },
    Step { name: "miri", about: "the driver table, the simulator, the thread caches and tags, under miri", is_apart: true, run: miri },
];

fn fmt() -> Result<Outcome> {
    cargo("fmt --all --check").run()?;
    for manifest in crate::interop::manifests() {
        cargo(&format!("fmt --check --manifest-path {manifest}")).run()?;
    }
    Ok(Outcome::Passed)
}

fn tidy() -> Result<Outcome> {
    crate::tidy::run()?;
    Ok(Outcome::Passed)
}

fn clippy() -> Result<Outcome> {
    cargo("clippy --workspace --all-targets -- -D warnings").run()?;
    // The whole workspace, because fewer packages have other features of dependencies, and are compiled again.
    cargo("clippy --workspace --all-targets --features gpumem-tests/gpu -- -D warnings").run()?;
    Ok(Outcome::Passed)
}

/// Checks the features through the façade, which forwards each feature. The defaults are covered by every other step.
fn features() -> Result<Outcome> {
    // Each choice of backends, then the simulator, which no backend depends on, then fewer layers.
    for features in [
        "adapt",
        "adapt,backend-caching",
        "adapt,backend-native",
        "adapt,backend-caching,backend-native",
        "adapt,sim",
        "array,nvrtc,dlpack",
        "array,cudarc",
        "adapt,sim,nvrtc,half,complex,futures",
        "adapt,derive,half,sprs",
        "adapt,complex,nalgebra,safetensors",
        "pool,backend-caching",
        "pool,allocator-api2,ipc",
        "",
    ] {
        let combination = format!("--package gpumem --lib --no-default-features --features={features}");
        cargo(&format!("clippy {combination} -- -D warnings")).run()?;
    }
    // Features that are in no default. Tests get the simulator through their dev-dependencies.
    cargo(
        "clippy --package gpumem-pool --all-targets --features allocator-api2,ipc,nvml,serde,tracing -- -D warnings",
    )
    .run()?;
    without_simulator()?;
    // The suites of the pool go through every backend that is built in, `none` too, so the step `test` has these cases.
    cargo(&format!(
        "clippy --package gpumem-pool --all-targets --no-default-features {REPORTING} -- -D warnings"
    ))
    .run()?;
    // Those of arrays use the default backend. Of those above, these depend on when memory is free again, and on what a pool refuses.
    let above_the_pool = LAYERS.iter().skip_while(|layer| *layer != "gpumem-pool").skip(1);
    let layers = above_the_pool.map(|layer| format!("--package {layer} ")).collect::<String>();
    let suites = ["array", "batches", "out_of_memory", "train"];
    let suites = suites.map(|suite| format!("--test {suite} ")).concat();
    // The suite `train` starts the example, which `--test` does not build.
    cargo(&format!("build --quiet {layers}--no-default-features {REPORTING} --example train")).run()?;
    cargo(&format!("test --quiet {layers}--no-default-features {REPORTING} --lib {suites}--no-fail-fast"))
        .run()?;
    Ok(Outcome::Passed)
}

/// Checks that no feature but `sim` makes a program compile the simulator. Dev-dependencies are not part of a program that uses a
/// package.
fn without_simulator() -> Result<()> {
    for package in published()?.iter().filter(|package| package.name != SIMULATOR) {
        let features = package.features.keys().filter(|name| !["default", "sim"].contains(&name.as_str()));
        let features = features.map(String::as_str).collect::<Vec<_>>().join(",");
        let package = &package.name;
        let args = format!(
            "tree --package {package} --no-default-features --features={features} --edges normal --prefix none"
        );
        let tree = cargo(&args).output()?;
        let found = tree.lines().find(|line| line.starts_with(&format!("{SIMULATOR} ")));
        ensure!(found.is_none(), "{package} with the features `{features}` depends on {SIMULATOR}");
        println!("{package} with `{features}` depends on no {SIMULATOR}");
    }
    Ok(())
}

/// Features that need no backend and have tests of their own.
const REPORTING: &str = "--features gpumem-pool/serde,gpumem-pool/tracing";

const SIMULATOR: &str = "gpumem-sim";

fn test() -> Result<Outcome> {
    cargo("test --workspace").run()?;
    Ok(Outcome::Passed)
}

/// Cases of two devices create both machines by themselves; the other cases have a second device that they do not use, and must not
/// touch.
fn devices() -> Result<Outcome> {
    let suites = ["alias", "array", "arrays_graphs", "copies", "devices", "features", "peers", "transfers"];
    let suites = suites.map(|suite| format!("--test {suite} ")).concat();
    // The whole workspace, so that nothing is compiled again.
    // `array` is also a suite of `gpumem-array`, whose cases create their machines by themselves: the filters leave out nearly all.
    let tests = "sim:: under_every_seed under_any_seed across_devices";
    cargo(&format!("test --workspace {suites}-- {tests}")).env("GPUMEM_SIM_DEVICES", "2").run()?;
    Ok(Outcome::Passed)
}

/// These tests are empty without their cfg. Each cfg has a target folder of its own, so the normal build stays valid.
fn models() -> Result<Outcome> {
    for (cfg, command) in [
        ("gpumem_loom", "test --quiet --package gpumem-heap --test loom"),
        // One command, because separate ones would build the dependencies with different features.
        (
            "gpumem_shuttle",
            "test --quiet --package gpumem-heap --package gpumem-pool --test shuttle --test climbs",
        ),
        // `cargo xtask fuzz --plant` runs this; no other step compiles it.
        ("gpumem_planted_bugs", "check --quiet --package gpumem-pool"),
    ] {
        cargo(&format!("{command} --target-dir target/{cfg}"))
            .env("RUSTFLAGS", &format!("--cfg {cfg}"))
            .run()?;
    }
    Ok(Outcome::Passed)
}

fn docs() -> Result<Outcome> {
    cargo("doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings").run()?;
    Ok(Outcome::Passed)
}

fn bindgen() -> Result<Outcome> {
    unless_unreachable(crate::generate::bindgen::check())
}

fn kernels() -> Result<Outcome> {
    unless_unreachable(crate::generate::kernels::check())
}

/// Elsewhere these tests are skipped, with a message, where the library is not installed.
fn nvrtc() -> Result<Outcome> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Outcome::Skipped("the package is for Linux on x86-64".into()));
    }
    let folder = match crate::workspace::wheel::unpacked(NVRTC.0, NVRTC.1) {
        Ok(folder) => folder.join("nvidia/cuda_nvrtc/lib"),
        Err(error) => return unless_unreachable(Err(error)),
    };
    // The whole workspace has the features of its other builds, so that little is compiled again.
    for tests in ["--test nvrtc", "--test array -- kernels::"] {
        cargo(&format!("test --workspace --features gpumem-array/nvrtc {tests}"))
            .env("LD_LIBRARY_PATH", &folder.display().to_string())
            .env("NVRTC_REQUIRED", "1")
            .run()?;
    }
    Ok(Outcome::Passed)
}

/// Newer than the one that makes the committed PTX: programs use the library of their toolkit.
const NVRTC: (&str, &str) = ("nvidia-cuda-nvrtc-cu12", "12.8.93");

/// Skips the step if vendor files cannot be downloaded; any other error is a failure.
fn unless_unreachable(result: Result<()>) -> Result<Outcome> {
    match result {
        Err(error) if error.is::<crate::workspace::wheel::Unreachable>() => {
            Ok(Outcome::Skipped(format!("{error:#}")))
        }
        result => result.map(|()| Outcome::Passed),
    }
}

fn train() -> Result<Outcome> {
    cargo("run --example train").run()?;
    Ok(Outcome::Passed)
}

fn examples() -> Result<Outcome> {
    for example in ["kmeans", "captured_step", "power_iteration", "prometheus", "async_requests"] {
        cargo(&format!("run --example {example}")).run()?;
    }
    Ok(Outcome::Passed)
}

/// From the programs of the step `test`, so only the benches are built.
fn bundle() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("the drop-in driver is for Linux".into()));
    }
    crate::gpu_test::check()?;
    let drop_in = crate::drop_in::lay_out(&crate::workspace::root().join("target/interop/drop-in"))?;
    crate::measure::check_benches(&drop_in)?;
    Ok(Outcome::Passed)
}

fn interop() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("the drop-in driver is for Linux".into()));
    }
    // Not candle and cubecl, whose builds take longer than all others together, and not cuda-core, which downloads the headers of CUDA
    // and cuRAND.
    let names = ["cudarc", "cudarc-allocator", "cust", "cudarc-tests"].map(String::from);
    crate::interop::check(&names, 8)?;
    Ok(Outcome::Passed)
}

fn capi() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("the drop-in driver is for Linux".into()));
    }
    crate::capi::check()?;
    Ok(Outcome::Passed)
}

fn python() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("the drop-in driver is for Linux".into()));
    }
    unless_unreachable(crate::capi::python::check())
}

fn oldest() -> Result<Outcome> {
    let manifest = crate::workspace::root().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
    let stated = metadata.packages.iter().find_map(|package| package.rust_version.as_ref());
    let stated = stated.context("no package states a rust-version")?.to_string();
    if let Err(error) = toolchain(&stated, &[]) {
        return Ok(Outcome::Skipped(format!("no Rust {stated} here: {error:#}")));
    }
    let layers = LAYERS.iter().map(|layer| format!("--package {layer} ")).collect::<String>();
    cargo_of(&stated, &format!("check {layers}--lib --all-features --target-dir target/oldest")).run()?;
    Ok(Outcome::Passed)
}

fn target(target: &str) -> Result<Outcome> {
    if let Err(error) = rustup(&format!("target add {target}")) {
        return Ok(Outcome::Skipped(format!("no {target} here: {error:#}")));
    }
    let layers = LAYERS.iter().map(|layer| format!("--package {layer} ")).collect::<String>();
    cargo(&format!("clippy {layers}--target {target} -- -D warnings")).run()?;
    Ok(Outcome::Passed)
}

fn miri() -> Result<Outcome> {
    if let Err(error) = toolchain("nightly", &["miri", "rust-src"]) {
        return Ok(Outcome::Skipped(format!("no miri here: {error:#}")));
    }
    // Device addresses are integers in the driver's interface, so some are cast back to pointers.
    let flags = "-Zmiri-permissive-provenance -Zmiri-disable-isolation";
    // Random walks and large memory take minutes under miri and run no other `unsafe` code than these tests.
    cargo_of("nightly", "miri test --package gpumem-sys --lib").env("MIRIFLAGS", flags).run()?;
    for tests in [
        "--lib -- --skip no_unit_is_handed_out_twice --skip a_full_table --skip a_rule_that_could_never_apply --skip the_parts_of_a_range --skip a_race_is_found_if_and_only_if",
        "--test sim -- codes:: kernels:: --skip columns_between",
    ] {
        cargo_of("nightly", &format!("miri test --package gpumem-sim {tests}"))
            .env("MIRIFLAGS", flags)
            .run()?;
    }
    // The lock word and its barriers, the stacks behind it and the thread-local tables; the rest of the thread caches and of the
    // tags is safe code.
    for (package, tests) in [
        (
            "gpumem-heap",
            "cache::thread_table sync::asymmetric_fence cache::tests::thread_cache:: cache::tests::depot cache::tests::budget",
        ),
        ("gpumem-pool", "tags::tests --skip names_"),
    ] {
        cargo_of("nightly", &format!("miri test --package {package} --lib -- {tests}"))
            .env("MIRIFLAGS", flags)
            .run()?;
    }
    Ok(Outcome::Passed)
}

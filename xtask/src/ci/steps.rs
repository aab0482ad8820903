//! The steps. Cheap ones and ones that fail often come first in each ring.

use super::command::{IS_FULL, cargo, cargo_of, program_of, rustup, toolchain};
use super::{Outcome, Step, full, gate, packages};
use crate::generate;
use crate::tidy::LAYERS;
use crate::workspace::programs::{self, Profile};
use crate::workspace::published;
use anyhow::{Context, Result, ensure};
use cargo_metadata::{MetadataCommand, Package};
use std::sync::atomic::Ordering;

#[rustfmt::skip]
pub(super) const STEPS: &[Step] = &[
    gate("fmt", "the formatter agrees with every source", fmt),
    gate("tidy", "cargo xtask tidy", tidy),
    gate("made", "generated files are those of their sources: bindings, PTX, the C header", made),
    gate("clippy", "no warning in the workspace, with GPU cases", clippy),
    gate("test", "the README's test command", test),
    gate("backends", "suites of arrays on backend none; native alone builds, without the heap", backends),
    gate("devices", "suites of arrays on two simulated devices: copies, reads and broadcasts, with a link and without", devices),
    gate("docs", "no warning in the documentation", docs),
    gate("examples", "the examples, unoptimised as the tests built them", examples),
    gate("bundle", "a bundle for GPUs is laid out and listed, and each of its suites has cases", bundle),
    gate("capi", "C and C++ programs on the drop-in driver, with the address sanitizer too", capi),
    gate("python", "the Python package: a wheel, and its tests on the drop-in driver, with PyTorch where it is installed", python),
    gate("interop", "cudarc on the drop-in driver", interop),
    gate("models", "locks, clocks, thread caches and the pool under the model checkers loom and shuttle, if they have changed", models).apart(),
    full("features", "every promised combination of features builds, without the simulator unless asked for", features),
    full("generators", "the generators make all generated files again; their own tests", generators),
    full("messages", "messages of the compiler that this project states; each program that must not compile has the stated error", messages),
    full("nvrtc", "CUDA text is compiled at run time, with NVRTC from the Python package index", nvrtc),
    full("benches", "each bench runs, unoptimised, and its rows are parsed", benches),
    full("others", "more programs of others on the drop-in driver, without candle, cubecl and cuda-core", others),
    full("packages", "each package's library, tests and examples build alone, from its files", packages::packages),
    full("minimal", "libraries build from the files of the packages, with the lowest versions of dependencies", packages::minimal),
    full("windows", "no warning in the crates for x86_64-pc-windows-gnu", || target("x86_64-pc-windows-gnu")),
    full("aarch64", "no warning in the crates for aarch64-unknown-linux-gnu", || target("aarch64-unknown-linux-gnu")),
    full("oldest", "the stated Rust version compiles every library", oldest).apart(),
    full("miri", "the driver table, the simulator, the thread caches and tags, under miri", miri).apart(),
];

fn fmt() -> Result<Outcome> {
    cargo("fmt --all --check").run()?;
    let own = "xtask/generators/Cargo.toml".to_string();
    for manifest in crate::interop::manifests().chain([own]) {
        cargo(&format!("fmt --check --manifest-path {manifest}")).run()?;
    }
    Ok(Outcome::Passed)
}

fn tidy() -> Result<Outcome> {
    crate::tidy::run()?;
    Ok(Outcome::Passed)
}

fn clippy() -> Result<Outcome> {
    cargo("clippy --workspace --all-targets --features gpumem-tests/gpu -- -D warnings").run()?;
    Ok(Outcome::Passed)
}

/// Runs suites of arrays again, on a backend that frees at once, and checks the choices of backends that no other step builds.
fn backends() -> Result<Outcome> {
    // What is left out concerns memory that is kept, or freed without a wait, or values that no backend changes.
    let none = ("GPUMEM_POOL", "none");
    let left_out = ["growable", "losses", "waits", "casts", "expressions", "products"];
    let left_out = left_out.map(|suite| format!("--skip {suite}:: ")).concat();
    run_built(&["gpumem-array/array"], &left_out, none)?;
    run_built(&["gpumem-adapt/adapt"], "out_of_memory::", none)?;
    cargo(&format!("clippy --quiet {FACADE} --features=adapt,backend-native -- -D warnings")).run()?;
    for features in ["pool", "pool,backend-native"] {
        without("gpumem-heap", "gpumem", features)?;
    }
    Ok(Outcome::Passed)
}

const FACADE: &str = "--package gpumem --lib --no-default-features";

/// Checks the features through the façade, which forwards each feature. The defaults are covered by every other step.
fn features() -> Result<Outcome> {
    // Each choice of backends, then the simulator, which no backend depends on, then fewer layers.
    for features in [
        "adapt",
        "adapt,backend-caching",
        "adapt,backend-caching,backend-native",
        "adapt,sim",
        "array,nvrtc,dlpack",
        "array,cudarc",
        "adapt,sim,nvrtc,half,complex,futures",
        "adapt,derive,half,sprs",
        "adapt,complex,nalgebra,safetensors",
        "pool,backend-caching",
        "pool,ipc",
    ] {
        cargo(&format!("clippy --quiet {FACADE} --features={features} -- -D warnings")).run()?;
    }
    // Features that are in no default. Tests get the simulator through their dev-dependencies.
    cargo("clippy --package gpumem-pool --all-targets --features ipc,nvml,serde,status-socket,tracing -- -D warnings")
        .run()?;
    without_simulator()?;
    // The suites of the pool go through every backend that is built in.
    let layers = LAYERS.iter().skip_while(|layer| *layer != "gpumem-pool");
    let layers = layers.map(|layer| format!("--package {layer} ")).collect::<String>();
    cargo(&format!("clippy {layers}--all-targets --no-default-features {REPORTING} -- -D warnings")).run()?;
    cargo(&format!(
        "test --quiet --package gpumem-pool --no-default-features {REPORTING} --lib --test pool -- --skip failing_calls"
    ))
    .run()?;
    Ok(Outcome::Passed)
}

/// Checks that no feature but `sim` makes a program compile the simulator. Dev-dependencies are not part of a program that uses a
/// package. The command replays on the simulator.
fn without_simulator() -> Result<()> {
    let is_free = |package: &&Package| ![SIMULATOR, COMMAND].contains(&package.name.as_str());
    for package in published()?.iter().filter(is_free) {
        let features = package.features.keys().filter(|name| !["default", "sim"].contains(&name.as_str()));
        let features = features.map(String::as_str).collect::<Vec<_>>().join(",");
        without(SIMULATOR, &package.name, &features)?;
    }
    Ok(())
}

/// Checks that a program that uses a package with these features compiles no `other` package.
fn without(other: &str, package: &str, features: &str) -> Result<()> {
    let tree = cargo(&format!(
        "tree --package {package} --no-default-features --features={features} --edges normal --prefix none"
    ))
    .output()?;
    let found = tree.lines().find(|line| line.starts_with(&format!("{other} ")));
    ensure!(found.is_none(), "{package} with the features `{features}` depends on {other}");
    println!("{package} with `{features}` depends on no {other}");
    Ok(())
}

/// Features that need no backend and have tests of their own.
const REPORTING: &str = "--features gpumem-pool/serde,gpumem-pool/tracing";

const SIMULATOR: &str = "gpumem-sim";
const COMMAND: &str = "gpumem-cli";

fn test() -> Result<Outcome> {
    cargo("test --workspace").run()?;
    Ok(Outcome::Passed)
}

/// Cases of two devices create both machines by themselves; the other cases have a second device that they do not use, and must not
/// touch.
fn devices() -> Result<Outcome> {
    let suites = ["alias", "array", "arrays_graphs", "copies", "devices", "features", "peers", "transfers"];
    let suites = suites.map(|suite| format!("{suite}:: ")).concat();
    let rooms = ["tests/driver", "tests/pool", "tests/layers"];
    run_built(&rooms, &suites, ("GPUMEM_SIM_DEVICES", "2"))?;
    Ok(Outcome::Passed)
}

/// Runs test programs, given as `FOLDER/NAME`, that the step `test` has built. Any other choice of targets may have other features of
/// dependencies, and would compile nearly all again.
fn run_built(names: &[&str], args: &str, variable: (&str, &str)) -> Result<()> {
    let built = programs::build(&programs::TESTS)?;
    for name in names {
        let program = built.iter().find(|built| {
            let folder = built.manifest.parent().and_then(|folder| folder.file_name());
            built.kind == programs::Kind::Suite
                && folder
                    .is_some_and(|folder| *name == format!("{}/{}", folder.to_string_lossy(), built.name))
        });
        program_of(program.with_context(|| format!("there is no test program {name}"))?, args)
            .env(variable.0, variable.1)
            .run()?;
    }
    Ok(())
}

/// These tests are empty without their cfg. Each cfg has a target folder of its own, so the normal build stays valid.
fn models() -> Result<Outcome> {
    if !IS_FULL.load(Ordering::Relaxed) && generate::is_unchanged(generate::MODELS)? {
        println!("the modelled code has not changed since it passed");
        return Ok(Outcome::Passed);
    }
    for (cfg, command) in [
        ("gpumem_loom", "test --quiet --package gpumem-base --test loom"),
        // One command, because separate ones would build the dependencies with different features.
        (
            "gpumem_shuttle",
            "test --quiet --package gpumem-heap --package gpumem-pool --test shuttle --test climbs",
        ),
        // `cargo xtask fuzz --plant` runs this; no other step compiles it.
        ("gpumem_planted_bugs", "check --quiet --package gpumem-pool"),
    ] {
        let mut command =
            cargo(&format!("{command} --target-dir target/{cfg}")).env("RUSTFLAGS", &format!("--cfg {cfg}"));
        if !IS_FULL.load(Ordering::Relaxed) {
            // All interleavings take seven minutes.
            command = command.env("LOOM_MAX_PREEMPTIONS", "2");
        }
        command.run()?;
    }
    generate::passed(generate::MODELS)?;
    Ok(Outcome::Passed)
}

fn docs() -> Result<Outcome> {
    cargo("doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings").run()?;
    Ok(Outcome::Passed)
}

fn made() -> Result<Outcome> {
    unless_unreachable(generate::ALL.iter().try_for_each(|generator| generate::check(*generator, false)))
}

fn generators() -> Result<Outcome> {
    cargo("test --quiet --manifest-path xtask/generators/Cargo.toml --target-dir target/generators").run()?;
    unless_unreachable(generate::ALL.iter().try_for_each(|generator| generate::check(*generator, true)))
}

fn messages() -> Result<Outcome> {
    cargo("test --workspace --test ui -- --ignored").run()?;
    // A stable compiler does not compare the codes of errors.
    cargo("test --doc --package gpumem-array --package gpumem-adapt must_not_compile")
        .env("RUSTC_BOOTSTRAP", "1")
        .run()?;
    Ok(Outcome::Passed)
}

/// Elsewhere these tests are skipped, with a message, where the library is not installed.
fn nvrtc() -> Result<Outcome> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Outcome::Skipped("the package is for Linux on x86-64".into()));
    }
    let folder = match crate::workspace::nvrtc::folder() {
        Ok(folder) => folder,
        Err(error) => return unless_unreachable(Err(error)),
    };
    // The whole workspace has the features of its other builds, so that little is compiled again.
    for tests in [
        "--test nvrtc",
        "--test array -- kernels::",
        // Examples whose kernels are CUDA text. Elsewhere they end early.
        "--doc -- TenMinutes FromCudaJl map_kernel",
    ] {
        cargo(&format!("test --workspace --features gpumem-array/nvrtc {tests}"))
            .env("LD_LIBRARY_PATH", &folder.display().to_string())
            .env("NVRTC_REQUIRED", "1")
            .run()?;
    }
    Ok(Outcome::Passed)
}

/// Skips the step if vendor files cannot be downloaded; any other error is a failure.
fn unless_unreachable(result: Result<()>) -> Result<Outcome> {
    match result {
        Err(error) if error.is::<crate::workspace::wheel::Unreachable>() => {
            Ok(Outcome::Skipped(format!("{error:#}")))
        }
        result => result.map(|()| Outcome::Passed),
    }
}

fn examples() -> Result<Outcome> {
    let built = programs::build(&programs::TESTS)?;
    let names = [
        "train",
        "programs",
        "vector_store",
        "large_kmeans",
        "captured_step",
        "power_iteration",
        "async_requests",
    ];
    for name in names {
        let example = built.iter().find(|built| built.kind == programs::Kind::Example && built.name == name);
        program_of(example.with_context(|| format!("there is no example {name}"))?, "").run()?;
    }
    if IS_FULL.load(Ordering::Relaxed) {
        // The README's main job.
        cargo("run --release --example train").run()?;
    }
    Ok(Outcome::Passed)
}

/// From the programs of the step `test`, so nothing is built.
fn bundle() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("bundles are for Linux".into()));
    }
    crate::gpu_test::check()?;
    Ok(Outcome::Passed)
}

fn benches() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("the drop-in driver is for Linux".into()));
    }
    let drop_in =
        crate::drop_in::lay_out(&crate::workspace::root().join("target/interop/drop-in"), Profile::Release)?;
    crate::measure::check_benches(&drop_in)?;
    Ok(Outcome::Passed)
}

fn interop() -> Result<Outcome> {
    of_others(&["cudarc"])
}

/// Not candle, its tests and cubecl, whose builds take longer than all others together, and not cuda-core, which downloads the headers of CUDA and
/// cuRAND.
fn others() -> Result<Outcome> {
    of_others(&["cudarc-allocator", "cust", "cudarc-tests"])
}

fn of_others(names: &[&str]) -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("the drop-in driver is for Linux".into()));
    }
    crate::interop::check(
        &names.iter().map(|name| name.to_string()).collect::<Vec<_>>(),
        8,
        library_profile(),
    )?;
    Ok(Outcome::Passed)
}

/// Users' libraries are optimised. The gate takes those of the step `test`, which are built already.
fn library_profile() -> Profile {
    if IS_FULL.load(Ordering::Relaxed) { Profile::Release } else { Profile::Tests }
}

fn capi() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("the drop-in driver is for Linux".into()));
    }
    crate::capi::check(library_profile())?;
    Ok(Outcome::Passed)
}

fn python() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::Skipped("the drop-in driver is for Linux".into()));
    }
    unless_unreachable(crate::capi::python::check(library_profile()))
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
        ("gpumem-base", "sync::asymmetric_fence"),
        (
            "gpumem-heap",
            "cache::thread_table cache::tests::thread_cache:: cache::tests::depot cache::tests::budget",
        ),
        ("gpumem-pool", "tags::tests --skip names_"),
    ] {
        cargo_of("nightly", &format!("miri test --package {package} --lib -- {tests}"))
            .env("MIRIFLAGS", flags)
            .run()?;
    }
    Ok(Outcome::Passed)
}

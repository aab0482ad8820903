//! `cargo xtask capi DIR`: lays out the C library with its header and a pkg-config file.
//!
//! [`check`] compiles C and C++ programs against the library and runs them on the drop-in.

pub(crate) mod python;

use crate::workspace::programs::{self, Profile};
use crate::{drop_in, workspace};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder for lib/, include/ and lib/pkgconfig/; created if it does not exist
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let folder = lay_out(&args.dir, Profile::Release)?;
    println!(
        "libgpumem.so, libgpumem.a, gpumem.h, gpumem.hpp and gpumem.pc are in {}. To use them:\n",
        folder.display()
    );
    println!("    export PKG_CONFIG_PATH={}/lib/pkgconfig", folder.display());
    println!("    cc program.c $(pkg-config --cflags --libs gpumem)");
    Ok(())
}

/// Builds the libraries and copies them and their headers into a folder. Returns its absolute path.
fn lay_out(folder: &Path, profile: Profile) -> Result<PathBuf> {
    ensure!(cfg!(target_os = "linux"), "the C library is laid out for Linux");
    let folder = std::path::absolute(folder)?;
    let libraries = programs::library("gpumem-capi", profile)?;
    let (lib, include) = (folder.join("lib"), folder.join("include"));
    fs::create_dir_all(lib.join("pkgconfig"))?;
    fs::create_dir_all(&include)?;
    for (extension, name) in [("so", "libgpumem.so.0"), ("a", "libgpumem.a")] {
        let made = libraries.iter().find(|file| file.extension().is_some_and(|found| found == extension));
        let made =
            made.with_context(|| format!("cargo reported no library with the extension {extension}"))?;
        // Written beside the old file and renamed over it: a program may have the old one mapped.
        let new = lib.join(format!(".{name}.new"));
        fs::copy(made, &new)?;
        fs::rename(&new, lib.join(name))?;
    }
    drop_in::link("libgpumem.so.0", &lib.join("libgpumem.so"))?;
    for name in ["gpumem.h", "gpumem.hpp"] {
        fs::copy(package().join("include").join(name), include.join(name))?;
    }
    let pc = fs::read_to_string(package().join("gpumem.pc.in"))?;
    fs::write(lib.join("pkgconfig/gpumem.pc"), pc.replace("@VERSION@", env!("CARGO_PKG_VERSION")))?;
    Ok(folder)
}

/// A program, its compiler and the standard of its language.
const PROGRAMS: [(&str, &str, &str); 9] = [
    ("basics.c", "cc", "-std=gnu11"),
    ("fork.c", "cc", "-std=gnu11"),
    ("misuse.c", "cc", "-std=gnu11"),
    ("sizes.c", "cc", "-std=gnu11"),
    ("spillable.c", "cc", "-std=gnu11"),
    ("streams.c", "cc", "-std=gnu11"),
    ("onnxruntime.c", "cc", "-std=gnu11"),
    ("raii.cpp", "c++", "-std=gnu++17"),
    ("ends.cpp", "c++", "-std=gnu++17"),
];

/// Every program runs once as it is, and once under the address sanitizer, if the compiler has one.
const SANITIZERS: [&[&str]; 2] =
    [&["-O2"], &["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]];

pub(crate) fn check(profile: Profile) -> Result<()> {
    check_calls()?;
    let made = workspace::root().join("target/capi");
    let prefix = lay_out(&made.join("prefix"), profile)?;
    let drop_in = drop_in::lay_out(&made.join("drop-in"), profile)?;
    for (source, compiler, standard) in PROGRAMS {
        for (index, flags) in SANITIZERS.iter().enumerate() {
            if index > 0 && !has_sanitizer(compiler, flags, &made)? {
                println!("{compiler} has no address sanitizer here: {source} runs without");
                continue;
            }
            let program = made.join(format!("{}-{index}", source.replace('.', "-")));
            let mut command = Command::new(compiler);
            command.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(*flags);
            command.arg(package().join("tests/c").join(source)).arg("-o").arg(&program);
            command.arg("-I").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib"));
            command.args(["-lgpumem", "-lpthread", "-ldl"]);
            ensure!(command.status().context(compiler)?.success(), "{source} does not compile");
            for seed in 0..SEED_COUNT {
                start(&program, &prefix, &drop_in, seed, &made)?;
            }
        }
    }
    if Command::new("pkg-config").arg("--version").output().is_err() {
        println!("pkg-config is not installed: gpumem.pc is not tried");
        return Ok(());
    }
    for is_static in [false, true] {
        let program = made.join(if is_static { "basics-static" } else { "basics-flags" });
        let mut command = Command::new("cc");
        command.arg(package().join("tests/c/basics.c")).arg("-o").arg(&program);
        command.args(flags(&prefix, is_static)?);
        ensure!(command.status().context("cc")?.success(), "basics.c does not compile with gpumem.pc");
        start(&program, &prefix, &drop_in, 0, &made)?;
    }
    Ok(())
}

/// Fails if a function of the header is called by no C or C++ program, or not in a forked child.
fn check_calls() -> Result<()> {
    let read = |name: &str| fs::read_to_string(package().join(name));
    let mut programs = String::new();
    for (source, ..) in PROGRAMS.iter().filter(|(source, ..)| *source != "fork.c") {
        programs += &read(&format!("tests/c/{source}"))?;
    }
    let forks = read("tests/c/fork.c")?;
    let child = forks.split_once("*end_blocks(").and_then(|(_, rest)| rest.split_once("int main("));
    let (child, _) = child.context("fork.c has no child")?;
    let header = read("include/gpumem.h")?;
    let words = header.split(|sign: char| !(sign.is_alphanumeric() || matches!(sign, '_' | '(')));
    for call in words.filter_map(|word| Some(&word[..=word.find('(')?])) {
        let is_function = call.starts_with("gpumem_");
        ensure!(!is_function || programs.contains(call), "no program in tests/c but fork.c calls {call})");
        ensure!(!is_function || child.contains(call), "no child in tests/c/fork.c calls {call})");
    }
    Ok(())
}

/// The compiler's flags by the pkg-config file.
fn flags(prefix: &Path, is_static: bool) -> Result<Vec<String>> {
    let folder = prefix.join("lib/pkgconfig");
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", &folder).args(["--cflags", "--libs"]);
    command.args(is_static.then_some("--static")).arg("gpumem");
    let output = command.output().context("pkg-config cannot be started")?;
    ensure!(output.status.success(), "pkg-config: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    // The folder has both libraries, and `-l` prefers the shared one.
    let library =
        |flag: &str| if is_static && flag == "-lgpumem" { "-l:libgpumem.a".into() } else { flag.to_owned() };
    Ok(text.split_whitespace().map(library).collect())
}

const SEED_COUNT: u64 = 3;

fn start(program: &Path, prefix: &Path, drop_in: &Path, seed: u64, made: &Path) -> Result<()> {
    let mut command = drop_in::command(program, &[drop_in, &prefix.join("lib")], seed)?;
    command.arg(made.join("program.trace")).env("GPUMEM_DRIVER", "drop-in");
    // The simulator stays until the process has ended.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    let (text, failure) = drop_in::run_to_end(command)?;
    if let Some(how) = failure {
        bail!("{} under seed {seed}: {how}:\n{text}", program.display());
    }
    if seed == 0 {
        print!("{}: {text}", program.display());
    }
    Ok(())
}

fn has_sanitizer(compiler: &str, flags: &[&str], made: &Path) -> Result<bool> {
    let source = made.join("empty.c");
    fs::write(&source, "int main(void) { return 0; }\n")?;
    let mut command = Command::new(compiler);
    command.args(flags).arg(&source).arg("-o").arg(made.join("empty")).stderr(Stdio::null());
    Ok(command.status().context("the compiler cannot be started")?.success())
}

fn package() -> PathBuf {
    workspace::root().join("crates/gpumem-capi")
}

//! `cargo xtask drop-in DIR`: builds the simulator as the library that CUDA programs load.
//!
//! Refuses folders that are on a library path by default: from cargo's own folders the library would pose as the GPU of every
//! program that cargo runs. Never overwrites a real driver.

use crate::workspace::clean;
use crate::workspace::programs::{self, Profile};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder for the library; created if it does not exist
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let folder = lay_out(&args.dir, Profile::Release)?;
    println!(
        "libcuda.so and libcuda.so.1 in {0} are gpumem's simulator. To run a program on it:\n",
        folder.display()
    );
    println!(
        "    LD_LIBRARY_PATH={} GPUMEM_SIM_DEVICES=2 GPUMEM_SIM_MEMORY=8GiB GPUMEM_SIM_SEED=7 PROGRAM\n",
        folder.display()
    );
    println!("The seed chooses the order in which queued work runs.\n");
    print!("{}", support(&driver_functions()?, INSTRUCTIONS)?);
    Ok(())
}

/// What kernels may use, and what they may not. A test of the workspace compares this page with the instructions that run.
const INSTRUCTIONS: &str = include_str!("../../crates/gpumem-ptx/INSTRUCTIONS.md");

/// The functions of the driver API: behind `+` those that the simulator has, behind `-` the others.
fn driver_functions() -> Result<String> {
    let built =
        programs::build(&["build", "--release", "--package", "gpumem-libcuda", "--example", "support"])?;
    let [program] = &built[..] else { bail!("cargo reported {} programs", built.len()) };
    let output = clean(&program.program).output().context("the example cannot be started")?;
    ensure!(output.status.success(), "the example ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// A summary of what the drop-in runs and refuses.
fn support(functions: &str, instructions: &str) -> Result<String> {
    let count = |mark| functions.lines().filter(|line| line.starts_with(mark)).count();
    let (present, missing) = (count('+'), count('-'));
    let (table, refused) = instructions
        .split_once("\n## Not supported\n")
        .context("INSTRUCTIONS.md has no list of what is not supported")?;
    let kinds = table.lines().filter(|line| line.starts_with("| `")).count();
    let refused: String =
        refused.lines().filter(|line| line.starts_with("- ")).map(|line| format!("  {line}\n")).collect();
    Ok(format!(
        "Driver API: {present} of {} functions; the other {missing} return CUDA_ERROR_NOT_SUPPORTED (`cargo run --release -p gpumem-libcuda \
         --example support` lists them).\n\
         Kernels: from PTX, alone or in fat binaries, {kinds} instructions with the forms in crates/gpumem-ptx/INSTRUCTIONS.md. Refused when \
         the kernel is looked up, with the reason in the load's log and at exit:\n{refused}",
        present + missing
    ))
}

/// Builds the library and copies it into a folder. Returns the absolute path of the folder.
pub(crate) fn lay_out(folder: &Path, profile: Profile) -> Result<PathBuf> {
    ensure!(cfg!(target_os = "linux"), "the drop-in driver is for Linux");
    let folder = std::path::absolute(folder)?;
    check_folder(&folder, std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default().as_ref())?;
    check_contents(&folder)?;
    let files = programs::library("gpumem-libcuda", profile)?;
    let library = files.iter().find(|file| file.extension().is_some_and(|extension| extension == "so"));
    let library = library.context("cargo reported no shared library")?;
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    // Written beside the old file and renamed over it: a program may have the old one mapped.
    let (new, place) = (folder.join(".libcuda.so.1.new"), folder.join("libcuda.so.1"));
    fs::copy(library, &new).with_context(|| format!("{} cannot be written", new.display()))?;
    fs::rename(&new, &place)?;
    // A link, because the loader would load two files as two drivers.
    link("libcuda.so.1", &folder.join("libcuda.so"))?;
    Ok(folder)
}

/// A program on the drop-in with two devices, for at most [`DEADLINE`]. The folders have its shared libraries, the drop-in among them.
pub(crate) fn command(program: &Path, folders: &[&Path], seed: u64) -> Result<Command> {
    let mut command = clean("timeout");
    command.arg(DEADLINE).arg(program).env("LD_LIBRARY_PATH", std::env::join_paths(folders)?);
    command.env("GPUMEM_SIM_DEVICES", "2").env("GPUMEM_SIM_SEED", seed.to_string()).stdin(Stdio::null());
    Ok(command)
}

/// Runs a [`command`], and returns its output and how it failed.
pub(crate) fn run_to_end(mut command: Command) -> Result<(String, Option<String>)> {
    let output = command.output().context("`timeout` cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let failure = match output.status.code() {
        // The start of the drop-in's report at exit.
        _ if text.contains("gpumem's simulator has found") => Some("the simulator found something".into()),
        Some(0) => None,
        Some(124) => Some(format!("it was not done after {DEADLINE} s")),
        _ => Some(format!("it ended with {}", output.status)),
    };
    Ok((text.into_owned(), failure))
}

/// In seconds.
const DEADLINE: &str = "600";

/// Creates a symbolic link, unless it exists.
pub(crate) fn link(target: &str, place: &Path) -> Result<()> {
    #[cfg(unix)]
    match std::os::unix::fs::symlink(target, place) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("{} cannot be created", place.display()));
        }
        _ => {}
    }
    #[cfg(not(unix))]
    bail!("{} cannot link to {target} on this system", place.display());
    #[cfg(unix)]
    Ok(())
}

/// Refuses a folder that is on the library path of programs started by cargo.
fn check_folder(folder: &Path, library_path: &Path) -> Result<()> {
    if let Some(profile) = folder.ancestors().find(|ancestor| ancestor.join(".fingerprint").is_dir()) {
        bail!(
            "{} is cargo's: it puts it on the library path, and the simulator would pose as the GPU; choose another folder, such as target/drop-in",
            profile.display()
        );
    }
    let same = |entry: &PathBuf| match (entry.canonicalize(), folder.canonicalize()) {
        (Ok(entry), Ok(folder)) => entry == folder,
        _ => entry == folder,
    };
    if std::env::split_paths(library_path).any(|entry| same(&entry)) {
        bail!(
            "{} is on the library path that cargo runs programs with; choose another folder, or take it off LD_LIBRARY_PATH",
            folder.display()
        );
    }
    Ok(())
}

/// Refuses to replace a libcuda that is not the simulator.
fn check_contents(folder: &Path) -> Result<()> {
    for name in ["libcuda.so", "libcuda.so.1"] {
        let file = folder.join(name);
        let bytes = match fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", file.display())),
        };
        ensure!(
            bytes.windows(MARKER.len()).any(|window| window == MARKER),
            "{} is a real driver; choose another folder",
            file.display()
        );
    }
    Ok(())
}

/// The symbol that identifies the library, as in its string table.
const MARKER: &[u8] = b"gpumem_simulator";

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gpumem-drop-in-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn the_summary_counts_functions_and_instructions_and_lists_what_is_refused() {
        let summary = support("+cuInit\n+cuMemAlloc\n-cuTexRefCreate\n", INSTRUCTIONS).unwrap();
        assert!(summary.starts_with("Driver API: 2 of 3 functions; the other 1 return"), "{summary}");
        let (_, instructions) = summary.split_once("in fat binaries, ").unwrap();
        let (count, refused) = instructions.split_once(" instructions ").unwrap();
        assert!(count.parse::<usize>().unwrap() > 100, "{summary}");
        for family in ["  - `wgmma`\n", "  - clusters: ", "  - textures and surfaces: ", "  - machine code\n"]
        {
            assert!(refused.contains(family), "{family} is not in {refused}");
        }
    }

    #[test]
    fn folders_on_cargos_library_path_are_refused() {
        let own = std::env::current_exe().unwrap();
        for place in own.ancestors().skip(1).take(2) {
            let refused = check_folder(&place.join("drop-in"), Path::new("")).unwrap_err();
            assert!(refused.to_string().contains("is cargo's"), "{refused}");
        }
        let free = folder("free");
        check_folder(&free, Path::new("")).unwrap();
        let path = PathBuf::from(format!("/usr/lib:{}/", free.display()));
        let refused = check_folder(&free, &path).unwrap_err();
        assert!(refused.to_string().contains("LD_LIBRARY_PATH"), "{refused}");
        fs::remove_dir_all(free).unwrap();
    }

    #[test]
    fn a_real_driver_is_left_alone() {
        let folder = folder("real");
        check_contents(&folder).unwrap();
        fs::write(folder.join("libcuda.so.1"), "with gpumem_simulator in it").unwrap();
        check_contents(&folder).unwrap();
        fs::write(folder.join("libcuda.so"), "somebody else's").unwrap();
        assert!(check_contents(&folder).unwrap_err().to_string().contains("real driver"));
        fs::remove_dir_all(folder).unwrap();
    }
}

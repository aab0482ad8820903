//! A folder with everything that a machine with a GPU and without Rust needs. For `run.sh`: the test programs in `tests/` and `lib/`, and the
//! examples in `examples/`, and below `tree/` the snapshots that the tests compare texts with. For `bench.sh` and `replay.sh`: the benches in `benches/`, the traces in `traces/`, recorded runs in `runs/`.
//! `sanitize.sh` runs some of the test programs under NVIDIA's compute-sanitizer.

use super::suite::{FOLDERS, Program};
use crate::measure;
use crate::workspace::programs::Built;
use crate::workspace::root;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPTS: [(&str, &str); 4] = [
    ("run.sh", include_str!("run.sh")),
    ("bench.sh", include_str!("bench.sh")),
    ("replay.sh", include_str!("replay.sh")),
    ("sanitize.sh", include_str!("sanitize.sh")),
];

/// The folder of the snapshots, from the repository's root. The programs look for it below `INSTA_WORKSPACE_ROOT`.
const SNAPSHOTS: &str = "tests/pool/snapshots";

/// Writes the bundle, and replaces an earlier one in the folder.
pub(super) fn write(programs: &[Program], benches: &[Built], runners: &[Built], folder: &Path) -> Result<()> {
    for (kind_folder, kind) in FOLDERS {
        let target = empty(folder.join(kind_folder))?;
        for program in programs.iter().filter(|program| program.kind == kind) {
            stripped_copy(&program.path, &target.join(&program.name))?;
        }
    }
    let target = empty(folder.join("benches"))?;
    for bench in benches {
        stripped_copy(&bench.program, &target.join(&bench.name))?;
    }
    let snapshots = format!("tree/{SNAPSHOTS}");
    for (name, source) in [
        ("traces", measure::traces()),
        ("runs", root().join(measure::RUNS)),
        (&snapshots, root().join(SNAPSHOTS)),
    ] {
        let target = empty(folder.join(name))?;
        for entry in std::fs::read_dir(source)? {
            let entry = entry?;
            std::fs::copy(entry.path(), target.join(entry.file_name()))?;
        }
    }
    for runner in runners {
        stripped_copy(&runner.program, &folder.join(&runner.name))?;
    }
    for (name, text) in SCRIPTS {
        std::fs::write(folder.join(name), text)?;
        make_executable(&folder.join(name))?;
    }
    let (program_count, bench_count) = (programs.len(), benches.len());
    println!("wrote {}: {program_count} programs, {bench_count} benches", folder.display());
    println!(
        "copy it to the machine with the GPU and start run.sh there, or sanitize.sh, bench.sh, replay.sh"
    );
    Ok(())
}

fn empty(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Copies a program without symbols, which are most of its size; a panic prints its line without them.
fn stripped_copy(program: &Path, target: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    let status = strip.arg("--strip-all").arg("-o").arg(target).arg(program).status();
    let status = status.context("a bundle needs `strip`, which comes with the linker (binutils)")?;
    ensure!(status.success(), "strip {} failed", program.display());
    Ok(())
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> Result<()> {
    anyhow::bail!("bundles are for Linux and are written on Linux")
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_programs_of_a_bundle_find_the_snapshots() {
        let folder = std::env::temp_dir().join(format!("gpumem-bundle-{}", std::process::id()));
        write(&[], &[], &[], &folder).unwrap();
        let runner = r#"echo "$* $INSTA_UPDATE" && ls "$INSTA_WORKSPACE_ROOT/tests/pool/snapshots""#;
        crate::gpu_test::suite::write_script(&folder.join("gpu-test"), runner);
        let output =
            Command::new("bash").arg(folder.join("run.sh")).args(["--suite", "pool"]).output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let (first, files) = said.split_once('\n').unwrap();
        assert_eq!(first, "--suite pool no");
        let count = std::fs::read_dir(root().join(SNAPSHOTS)).unwrap().count();
        assert!(count > 0 && files.lines().count() == count && files.contains("leak_none.snap\n"), "{said}");
    }

    /// Runs `sanitize.sh` with a checker that is a shell script.
    fn sanitize(checker: &str) -> (bool, String) {
        let folder = std::env::temp_dir().join(format!("gpumem-sanitize-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("sanitize.sh"), include_str!("sanitize.sh")).unwrap();
        crate::gpu_test::suite::write_script(&folder.join("checker"), checker);
        let mut command = Command::new("bash");
        command.arg(folder.join("sanitize.sh")).env("COMPUTE_SANITIZER", folder.join("checker"));
        let output = command.output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn what_the_checker_finds_fails_the_script() {
        let clean = "echo 'test result: ok. 3 passed; 0 failed'; echo '=== ERROR SUMMARY: 0 errors'";
        let (is_clean, said) = sanitize(clean);
        assert!(is_clean && said.contains("all 8 are clean"), "{said}");
        let one = r#"case "$*" in *races*kernels*) echo 'ERROR SUMMARY: 1 error'; exit 86;; esac"#;
        let (is_clean, said) = sanitize(&format!("{one}; {clean}"));
        let line =
            "kernels, backend native, memcheck --track-stream-ordered-races all: FAILED: the checker objects";
        assert!(!is_clean && said.contains(line) && said.contains("1 of 8 failed"), "{said}");
        for checker in
            ["exit 0", "echo 'ERROR SUMMARY: 0 errors'; echo 'test result: ok. 0 passed; 0 failed'", "exit 3"]
        {
            let (is_clean, said) = sanitize(checker);
            assert!(!is_clean, "{checker}: {said}");
        }
    }
}

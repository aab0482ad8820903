//! A folder with everything that a machine with a GPU and no Rust needs. For `run.sh`: the test programs in `tests/`
//! and the examples in `examples/`. For `bench.sh` and `replay.sh`: the benches in `benches/`, the traces in `traces/`.

use super::suite::{FOLDERS, Suite};
use crate::measure;
use crate::programs::Built;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPTS: [(&str, &str); 3] = [
    ("run.sh", include_str!("run.sh")),
    ("bench.sh", include_str!("bench.sh")),
    ("replay.sh", include_str!("replay.sh")),
];

/// Writes the bundle; what an earlier one left in the folder is replaced.
pub(super) fn write(suites: &[Suite], benches: &[Built], runners: &[Built], folder: &Path) -> Result<()> {
    for (kind_folder, kind) in FOLDERS {
        let target = empty(folder.join(kind_folder))?;
        for suite in suites.iter().filter(|suite| suite.kind == kind) {
            stripped_copy(&suite.program, &target.join(&suite.name))?;
        }
    }
    let target = empty(folder.join("benches"))?;
    for bench in benches {
        stripped_copy(&bench.program, &target.join(&bench.name))?;
    }
    let target = empty(folder.join("traces"))?;
    for entry in std::fs::read_dir(measure::traces())? {
        let entry = entry?;
        std::fs::copy(entry.path(), target.join(entry.file_name()))?;
    }
    for runner in runners {
        stripped_copy(&runner.program, &folder.join(&runner.name))?;
    }
    for (name, text) in SCRIPTS {
        std::fs::write(folder.join(name), text)?;
        make_executable(&folder.join(name))?;
    }
    let size_mib = size_bytes(folder)? as f64 / f64::from(1 << 20);
    let (suite_count, bench_count) = (suites.len(), benches.len());
    println!("wrote {}: {suite_count} suites, {bench_count} benches, {size_mib:.1} MiB", folder.display());
    println!("copy it to the machine with the GPU and start run.sh there, or bench.sh, or replay.sh");
    Ok(())
}

fn empty(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Symbols are most of a test program; a panic names its line without them.
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

fn size_bytes(folder: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        total += if metadata.is_dir() { size_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(total)
}

//! A folder with everything that a machine with a GPU and no Rust needs: `run.sh`, the runner, the test
//! programs in `tests/` and the examples in `examples/`.

use super::suite::{FOLDERS, Suite};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

const RUNNER: &str = "gpu-test";
const SCRIPT: &str = include_str!("run.sh");

/// Writes the bundle; what an earlier one left in the folder is replaced.
pub(super) fn write(suites: &[Suite], runner: &Path, folder: &Path) -> Result<()> {
    for (kind_folder, kind) in FOLDERS {
        let target = folder.join(kind_folder);
        if target.exists() {
            std::fs::remove_dir_all(&target)?;
        }
        std::fs::create_dir_all(&target)?;
        for suite in suites.iter().filter(|suite| suite.kind == kind) {
            stripped_copy(&suite.program, &target.join(&suite.name))?;
        }
    }
    stripped_copy(runner, &folder.join(RUNNER))?;
    let script = folder.join("run.sh");
    std::fs::write(&script, SCRIPT)?;
    make_executable(&script)?;
    let size_mib = size_bytes(folder)? as f64 / f64::from(1 << 20);
    println!("wrote {}: {} suites, {size_mib:.1} MiB", folder.display(), suites.len());
    println!("copy it to the machine with the GPU and start run.sh there");
    Ok(())
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

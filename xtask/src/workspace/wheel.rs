//! Vendor files from the Python package index: downloaded with pip, unpacked under `target/`, never committed.

use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// Downloads `package==version` (the x86-64 Linux build) and returns the folder with its contents.
pub(crate) fn unpacked(package: &str, version: &str) -> Result<PathBuf> {
    let home = super::root().join("target/xtask/wheels");
    let folder = home.join(format!("{package}-{version}"));
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    let download = folder.join("download");
    std::fs::create_dir_all(&download)?;
    eprintln!("fetching {package} {version} from the Python package index");
    let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"];
    python(&pip, &[&download.display().to_string(), &format!("{package}=={version}")])
        .with_context(|| Unreachable(format!("{package}=={version}")))?;
    for wheel in std::fs::read_dir(&download)? {
        let wheel = wheel?.path().display().to_string();
        python(&["-m", "zipfile", "-e"], &[&wheel, &folder.display().to_string()])?;
    }
    std::fs::remove_dir_all(&download)?;
    std::fs::write(folder.join("complete"), "")?;
    Ok(folder)
}

/// A package could not be downloaded. This is not a fault of the repository.
#[derive(Debug)]
pub(crate) struct Unreachable(pub(crate) String);

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not available from the Python package index", self.0)
    }
}

impl std::error::Error for Unreachable {}

fn python(first: &[&str], rest: &[&str]) -> Result<()> {
    let status = Command::new("python3")
        .args(first)
        .args(rest)
        .status()
        .context("python3 with pip is needed to fetch vendor files; or name them by hand, see --help")?;
    ensure!(status.success(), "python3 {} {} failed", first.join(" "), rest.join(" "));
    Ok(())
}

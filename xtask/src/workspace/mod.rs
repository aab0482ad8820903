//! The repository and its packages, programs that cargo builds from it, and files of vendors that tasks download.

pub(crate) mod nvrtc;
pub(crate) mod programs;
pub(crate) mod vendor;
pub(crate) mod wheel;

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Metadata, MetadataCommand, Package};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root folder.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The packages that users download.
pub(crate) fn published() -> Result<Vec<Package>> {
    // An empty list of registries is `publish = false`.
    Ok(metadata()?.packages.into_iter().filter(|package| package.publish.is_none()).collect())
}

pub(crate) fn target_folder() -> Result<PathBuf> {
    Ok(metadata()?.target_directory.into())
}

fn metadata() -> Result<Metadata> {
    let manifest = root().join("Cargo.toml");
    Ok(MetadataCommand::new().manifest_path(manifest).no_deps().exec()?)
}

/// A program without this project's variables, which the caller's environment may set for another purpose.
pub(crate) fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_")) {
        command.env_remove(name);
    }
    command
}

/// Copies a folder with all that is in it.
pub(crate) fn copy_folder(source: &Path, target: &Path) -> Result<()> {
    std::fs::create_dir_all(target)?;
    for entry in std::fs::read_dir(source).with_context(|| source.display().to_string())? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        match path.is_dir() {
            true => copy_folder(&path, &target.join(name))?,
            false => drop(std::fs::copy(&path, target.join(name))?),
        }
    }
    Ok(())
}

/// Every text file of the repository by its path from the root.
pub(crate) type Files = BTreeMap<String, String>;

/// The tracked files and the new files that git does not ignore. Files that are not text have no content here.
pub(crate) fn files(root: &Path) -> Result<Files> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").current_dir(root).args(list).output().context("git lists the files")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let paths = output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    let mut files = Files::new();
    for path in paths {
        let path = String::from_utf8_lossy(path).into_owned();
        let Ok(bytes) = std::fs::read(root.join(&path)) else { continue };
        files.insert(path, String::from_utf8(bytes).unwrap_or_default());
    }
    Ok(files)
}

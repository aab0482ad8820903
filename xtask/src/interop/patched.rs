//! A program on cudarc's published package with a patch: what is proposed to its maintainers, tried here. The repository has the patch
//! only. The program's manifest finds the patched package below `target/interop`.

use super::suite::{copy, published};
use super::{Layout, program};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

pub(super) fn run(layout: &Layout, name: &str, seeds: u64) -> Result<String> {
    let [package] = published(&layout.manifest("cudarc"), ["cudarc"])?;
    let package_name = format!("{}-{}", package.name, package.version);
    let patch = layout.sources.join(name).join(format!("{package_name}.patch"));
    let text = std::fs::read_to_string(&patch)
        .with_context(|| format!("{}; the version is that of interop/cudarc/Cargo.toml", patch.display()))?;
    let folder = layout.made.join(name);
    let (target, applied) = (folder.join(&package_name), folder.join("applied.patch"));
    if std::fs::read_to_string(&applied).ok() != Some(text.clone()) {
        if target.exists() {
            std::fs::remove_dir_all(&target)?;
        }
        copy(&package, &target)?;
        apply(&patch, &target)?;
        // Written last, so that an interrupted run is repeated.
        std::fs::write(&applied, text)?;
    }
    program(layout, name, seeds)
}

fn apply(patch: &Path, target: &Path) -> Result<()> {
    let mut command = Command::new("git");
    command.arg("apply").arg(patch).current_dir(target);
    // Otherwise git takes the paths of the patch from the root of this repository, where the folder is ignored.
    command.env("GIT_CEILING_DIRECTORIES", target.parent().unwrap_or(target));
    let output = command.output().context("git cannot be started")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} does not apply: {said}", patch.display());
    Ok(())
}

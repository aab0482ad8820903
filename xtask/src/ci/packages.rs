//! The steps `packages` and `minimal`: build the files that users download.

use super::Outcome;
use super::command::{cargo, cargo_in};
use crate::workspace::{published, root, target_folder};
use anyhow::{Result, ensure};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks libraries, tests, benches and examples of the packages, each package alone, with the versions of dependencies that the
/// repository uses.
///
/// It shows that no package lacks a file, or a dependency or feature that only another crate of the workspace turns on. `cargo package`
/// builds libraries only. The step `test` runs the same tests, so only features of third-party crates differ, and a missing one is a
/// compile error.
pub(super) fn packages() -> Result<Outcome> {
    let folder = target_folder()?.join("packages");
    unpack_all(&folder, |manifest| manifest)?;
    std::fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    for package in published()? {
        // In the target folder of the other steps, which have compiled the dependencies. All features, because the dependency of a
        // package on itself, which turns on what its tests need, is not part of its files.
        cargo_in(&folder, &format!("check --quiet --package {} --all-targets --all-features", package.name))
            .env("CARGO_TARGET_DIR", &target_folder()?.to_string_lossy())
            .run()?;
    }
    Ok(Outcome::Passed)
}

/// Checks the libraries of the packages with the lowest version of each direct dependency.
///
/// It shows that no manifest states a version that is too old. Dependencies of tests are omitted, because users do not compile them.
pub(super) fn minimal() -> Result<Outcome> {
    let folder = target_folder()?.join("minimal");
    unpack_all(&folder, |manifest| without_tests(&manifest))?;
    // The option is unstable. This variable makes a stable cargo accept it, and does not reach the compiler.
    cargo_in(&folder, "update --quiet -Z direct-minimal-versions").env("RUSTC_BOOTSTRAP", "1").run()?;
    cargo_in(&folder, "check --workspace --lib --all-features --locked")
        .env("CARGO_TARGET_DIR", &folder.join("target").to_string_lossy())
        .run()?;
    Ok(Outcome::Passed)
}

/// Packs the published packages, and unpacks them into a workspace of their own in `folder`, with changed manifests.
fn unpack_all(folder: &Path, change: fn(String) -> String) -> Result<()> {
    let packages = published()?;
    let chosen: String = packages.iter().map(|package| format!("--package {} ", package.name)).collect();
    // The working tree may have uncommitted changes.
    cargo(&format!("package {chosen}--allow-dirty --no-verify --quiet")).run()?;
    let mut names = Vec::new();
    for package in &packages {
        let name = format!("{}-{}", package.name, package.version);
        let manifest =
            unpack(&target_folder()?.join("package").join(format!("{name}.crate")), folder, &name)?;
        std::fs::write(&manifest, change(std::fs::read_to_string(&manifest)?))?;
        names.push((package.name.as_str(), name));
    }
    std::fs::write(folder.join("Cargo.toml"), workspace(&names))?;
    Ok(())
}

/// Unpacks a package into `folder/name`, and returns the path of its manifest.
fn unpack(package: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let unpacked = folder.join(name);
    // A file of an earlier run may no longer be in the package.
    if unpacked.exists() {
        std::fs::remove_dir_all(&unpacked)?;
    }
    std::fs::create_dir_all(folder)?;
    let output = Command::new("tar").arg("-xzf").arg(package).arg("-C").arg(folder).output()?;
    ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(unpacked.join("Cargo.toml"))
}

/// The manifest of a workspace of packages, given by name and folder. Dependencies between them resolve to these folders instead
/// of the registry.
fn workspace(packages: &[(&str, String)]) -> String {
    let folders: Vec<String> = packages.iter().map(|(_, folder)| format!("{folder:?}")).collect();
    let mut manifest = format!("[workspace]\nresolver = \"3\"\nmembers = [{}]\n", folders.join(", "));
    manifest += "\n[patch.crates-io]\n";
    for (name, folder) in packages {
        let _ = writeln!(manifest, "{name} = {{ path = {folder:?} }}");
    }
    manifest
}

/// A package's manifest without the tables of dev-dependencies.
fn without_tests(manifest: &str) -> String {
    let mut is_kept = true;
    let mut kept = String::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_kept = !line.contains("dev-dependencies");
        }
        if is_kept {
            kept += line;
            kept.push('\n');
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dev_dependencies_are_left_out() {
        let manifest = "[dependencies.a]\nversion = \"1\"\n\n[dev-dependencies.b]\nversion = \"1\"\n\n\
                        [target.'cfg(unix)'.dev-dependencies.c]\nversion = \"1\"\n[lints]\nworkspace = true\n";
        assert_eq!(
            without_tests(manifest),
            "[dependencies.a]\nversion = \"1\"\n\n[lints]\nworkspace = true\n"
        );
    }

    #[test]
    fn packages_find_each_other() {
        let manifest = workspace(&[("a", "a-1".into()), ("b", "b-1".into())]);
        assert!(manifest.contains("members = [\"a-1\", \"b-1\"]\n"), "{manifest}");
        assert!(manifest.ends_with("a = { path = \"a-1\" }\nb = { path = \"b-1\" }\n"), "{manifest}");
    }
}

//! The step `minimal`: builds the files that users download, with the lowest versions of the dependencies.

use super::Outcome;
use super::command::{cargo, cargo_in};
use anyhow::{Result, ensure};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Packs the published packages, unpacks them into a workspace of their own, and checks their libraries there with the lowest
/// version of each direct dependency.
///
/// One build shows both that no package lacks a file and that no manifest states a version that is too old. Dependencies of tests
/// are omitted, because users do not compile them.
pub(super) fn minimal() -> Result<Outcome> {
    let packages = crate::packages::published()?;
    let target = crate::packages::target_folder()?;
    let chosen: String = packages.iter().map(|package| format!("--package {} ", package.name)).collect();
    // The working tree may have uncommitted changes.
    cargo(&format!("package {chosen}--allow-dirty --no-verify --quiet")).run()?;

    let copy = target.join("minimal");
    let mut names = Vec::new();
    for package in &packages {
        let name = format!("{}-{}", package.name, package.version);
        unpack(&target.join("package").join(format!("{name}.crate")), &copy, &name)?;
        names.push((package.name.as_str(), name));
    }
    std::fs::write(copy.join("Cargo.toml"), workspace(&names))?;
    // The option is unstable. This variable makes a stable cargo accept it, and does not reach the compiler.
    cargo_in(&copy, "update --quiet -Z direct-minimal-versions").env("RUSTC_BOOTSTRAP", "1").run()?;
    cargo_in(&copy, "check --workspace --lib --all-features --locked")
        .env("CARGO_TARGET_DIR", &copy.join("target").to_string_lossy())
        .run()?;
    Ok(Outcome::Passed)
}

/// Unpacks a package into `folder/name`, and removes the dependencies of its tests.
fn unpack(package: &Path, folder: &Path, name: &str) -> Result<()> {
    let unpacked = folder.join(name);
    // A file of an earlier run may no longer be in the package.
    if unpacked.exists() {
        std::fs::remove_dir_all(&unpacked)?;
    }
    std::fs::create_dir_all(folder)?;
    let output = Command::new("tar").arg("-xzf").arg(package).arg("-C").arg(folder).output()?;
    ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr).trim());
    let manifest = unpacked.join("Cargo.toml");
    std::fs::write(&manifest, without_tests(&std::fs::read_to_string(&manifest)?))?;
    Ok(())
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

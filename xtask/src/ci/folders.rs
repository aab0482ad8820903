//! Build folders that a single step uses, and their removal: a CI machine may have little disk space.

use anyhow::{Context, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Folders below the target folder, each with the last step that uses it. Steps that share `debug` are not listed.
#[rustfmt::skip]
const LAST_USED: &[(&str, &[&str])] = &[
    ("models", &["gpumem_loom", "gpumem_shuttle", "gpumem_planted_bugs"]),
    ("docs", &["doc"]),
    ("made", &["generators"]),
    ("generators", &["generators"]),
    ("nvrtc", &["xtask"]),
    ("python", &["capi", "python", "release"]),
    ("others", &["interop"]),
    ("oldest", &["oldest"]),
    ("packages", &["packages"]),
    ("minimal", &["minimal", "package"]),
    ("windows", &["x86_64-pc-windows-gnu"]),
    ("aarch64", &["aarch64-unknown-linux-gnu"]),
    ("miri", &["miri"]),
];

/// Removes the folders that no later step uses, if the environment variable `CI` is set. Without it they are kept to speed up the
/// next run.
///
/// # Errors
///
/// If a folder exists and cannot be removed.
pub(super) fn remove_after(step: &str) -> Result<()> {
    if std::env::var_os("CI").is_none() {
        return Ok(());
    }
    let own = crate::workspace::root().join("target");
    let mut targets = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).into_iter().chain([own]);
    targets.try_for_each(|target| remove_below(&target, step))
}

fn remove_below(target: &Path, step: &str) -> Result<()> {
    let names = LAST_USED.iter().filter(|(last, _)| *last == step).flat_map(|(_, names)| names.iter());
    for folder in names.map(|name| target.join(name)) {
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{} cannot be removed", folder.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_removes_its_own_folders_only() {
        let target = std::env::temp_dir().join(format!("gpumem-xtask-folders-{}", std::process::id()));
        for name in ["debug/deps", "miri/debug", "gpumem_loom/debug"] {
            std::fs::create_dir_all(target.join(name)).unwrap();
        }
        remove_below(&target, "models").unwrap();
        remove_below(&target, "clippy").unwrap();
        let left = ["debug", "miri", "gpumem_loom"].map(|name| target.join(name).exists());
        std::fs::remove_dir_all(&target).unwrap();
        assert_eq!(left, [true, true, false]);
    }

    #[test]
    fn every_step_of_the_table_exists() {
        for (step, _) in LAST_USED {
            assert!(super::super::steps::STEPS.iter().any(|known| known.name == *step), "{step}");
        }
    }
}

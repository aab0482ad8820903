//! Checks each published package: texts of the licences, a README, an example, keywords of its own.

use super::Finding;
use crate::workspace::published;
use anyhow::Result;
use cargo_metadata::{Package, TargetKind};
use std::path::Path;

/// Checks the published packages below `root`.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let packages = published()?;
    let mut findings: Vec<Finding> = packages.iter().flat_map(|package| lacking(root, package)).collect();
    for (index, package) in packages.iter().enumerate() {
        let mut before = packages[..index].iter();
        if let Some(other) = before.find(|other| other.keywords == package.keywords) {
            let what = format!("{} has the keywords of {}", package.name, other.name);
            findings.push(Finding::new(
                &place(root, package),
                1,
                what,
                "give each package keywords of its own",
            ));
        }
    }
    Ok(findings)
}

fn place(root: &Path, package: &Package) -> String {
    package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path).to_string()
}

fn lacking(root: &Path, package: &Package) -> Vec<Finding> {
    let folder = package.manifest_path.with_file_name("");
    let has = |name: &str| folder.join(name).is_file();
    let has_example = package.targets.iter().any(|target| target.kind.contains(&TargetKind::Example));
    let documentation = format!("https://docs.rs/{}", package.name);
    let wanted = [
        (has("LICENSE-MIT") && has("LICENSE-APACHE"), "both licence texts", "link to the repository's"),
        (
            package.readme.as_ref().is_some_and(|path| has(path.as_str())),
            "a README",
            "say what the crate is for",
        ),
        (package.documentation.as_ref() == Some(&documentation), "`documentation` at docs.rs", "add it"),
        (package.description.is_some(), "a description", "add it"),
        ((1..=5).contains(&package.keywords.len()), "1 to 5 keywords", "add what users search for"),
        (!package.categories.is_empty(), "categories", "choose from crates.io/category_slugs"),
        (has_example || is_macro(package), "an example", "show its main use"),
        (!package.metadata["docs"]["rs"].is_null(), "settings for docs.rs", "add [package.metadata.docs.rs]"),
    ];
    let missing = wanted.into_iter().filter(|(holds, ..)| !holds);
    missing
        .map(|(_, what, advice)| {
            Finding::new(&place(root, package), 1, format!("{} lacks {what}", package.name), advice)
        })
        .collect()
}

/// Returns whether a package is a derive macro, which is documented in the crate that re-exports it.
fn is_macro(package: &Package) -> bool {
    package.targets.iter().any(|target| target.kind.contains(&TargetKind::ProcMacro))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_lacks_everything_is_found() {
        let json = serde_json::json!({
            "name": "a", "version": "0.1.0", "id": "a", "dependencies": [], "features": {}, "targets": [],
            "manifest_path": "/none/a/Cargo.toml",
        });
        let package: Package = serde_json::from_value(json).unwrap();
        let findings = lacking(Path::new("/none"), &package);
        assert_eq!(findings.len(), 8);
        assert!(findings[0].to_string().starts_with("a/Cargo.toml:1: a lacks both licence texts; "));
    }
}

//! `cargo xtask bindgen`, `kernels` and `header`: make files that are checked in.
//!
//! The generators are a workspace of their own (`xtask/generators`), because their dependencies take minutes to compile. A file beside
//! them has a digest of the inputs and outputs of each. While a digest is unchanged, the outputs are those that the inputs make, so the
//! gate makes them again only where it differs.

use crate::workspace::wheel::Unreachable;
use crate::workspace::{Files, files, root};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::process::Command;

/// A generator, or a step of CI that depends on few files.
#[derive(Clone, Copy)]
pub(crate) struct Generator {
    pub(crate) name: &'static str,
    /// Its inputs and outputs: files, folders with a trailing `/`, and endings with a leading `*`.
    paths: &'static [&'static str],
}

pub(crate) const BINDGEN: Generator = Generator {
    name: "bindgen",
    paths: &[
        "xtask/generators/src/bindgen.rs",
        "xtask/src/workspace/vendor.rs",
        "crates/gpumem-sys/src/generated/",
    ],
};
pub(crate) const KERNELS: Generator = Generator {
    name: "kernels",
    paths: &["xtask/generators/src/kernels.rs", "xtask/src/workspace/vendor.rs", "*.cu", "*.cuh", "*.ptx"],
};
pub(crate) const HEADER: Generator = Generator {
    name: "header",
    paths: &[
        "xtask/generators/src/header.rs",
        "crates/gpumem-capi/src/",
        "crates/gpumem-pool/src/figures.rs",
        "crates/gpumem-capi/cbindgen.toml",
        "crates/gpumem-capi/include/gpumem.h",
    ],
};
/// The step `models` of CI.
pub(crate) const MODELS: Generator = Generator {
    name: "models",
    paths: &[
        "Cargo.toml",
        "Cargo.lock",
        "crates/gpumem-base/",
        "crates/gpumem-device/",
        "crates/gpumem-heap/",
        "crates/gpumem-pool/",
        "crates/gpumem-sim/",
        "crates/gpumem-sys/",
    ],
};
pub(crate) const ALL: [Generator; 3] = [BINDGEN, KERNELS, HEADER];

const DIGESTS: &str = "xtask/generators/digests.txt";
const FOLDER: &str = "xtask/generators";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of the generator; see `--help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARG")]
    args: Vec<OsString>,
}

/// Runs a generator, and records the digest of what is there then.
pub(crate) fn run(generator: Generator, args: Args) -> Result<()> {
    start(generator, &args.args)?;
    record(generator)
}

/// Fails if the outputs of a generator are not those of its inputs. Asks the generator only if they have changed, or if `always`.
pub(crate) fn check(generator: Generator, always: bool) -> Result<()> {
    let name = generator.name;
    let current = digest(generator, &files(&root())?);
    let recorded = recorded()?.into_iter().find(|(known, _)| known == name).map(|(_, digest)| digest);
    if !always && recorded.as_ref() == Some(&current) {
        println!("{name}: unchanged");
        return Ok(());
    }
    start(generator, &["--check".into()])?;
    match recorded.as_ref() == Some(&current) {
        true => Ok(()),
        false => bail!("{name}: current, but {DIGESTS} has another digest; run `cargo xtask {name}`"),
    }
}

fn start(generator: Generator, args: &[OsString]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--manifest-path"]).arg(root().join(FOLDER).join("Cargo.toml"));
    command
        .arg("--target-dir")
        .arg(root().join("target/generators"))
        .arg("--")
        .arg(generator.name)
        .args(args);
    let status = command.status().context("cargo cannot be started")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(UNREACHABLE) => Err(Unreachable("a file of a generator".into()).into()),
        _ => bail!("the generator `{}` failed ({status})", generator.name),
    }
}

/// The generators' exit code if a vendor's file cannot be downloaded.
const UNREACHABLE: i32 = 3;

fn record(generator: Generator) -> Result<()> {
    let current = digest(generator, &files(&root())?);
    let mut digests = recorded()?;
    digests.retain(|(name, _)| name != generator.name);
    digests.push((generator.name.to_string(), current));
    digests.sort();
    let lines: String = digests.iter().map(|(name, digest)| format!("{name} {digest}\n")).collect();
    Ok(std::fs::write(root().join(DIGESTS), lines)?)
}

fn recorded() -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(root().join(DIGESTS)).unwrap_or_default();
    let pair = |line: &str| line.split_once(' ').map(|(name, digest)| (name.to_string(), digest.to_string()));
    Ok(text.lines().filter_map(pair).collect())
}

/// True if the inputs of a step are those with which it passed last, by a digest in a file that is checked in.
pub(crate) fn is_unchanged(step: Generator) -> Result<bool> {
    let current = digest(step, &files(&root())?);
    Ok(recorded()?.into_iter().any(|(name, digest)| name == step.name && digest == current))
}

/// Records that a step has passed with its present inputs.
pub(crate) fn passed(step: Generator) -> Result<()> {
    record(step)
}

/// FNV-1a, 64 bits: it shows accidental changes.
fn digest(generator: Generator, files: &Files) -> String {
    let is_its = |path: &str| {
        generator.paths.iter().any(|known| match known.strip_prefix('*') {
            Some(ending) => path.ends_with(ending),
            None => path == *known || known.ends_with('/') && path.starts_with(known),
        })
    };
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for (path, text) in files.iter().filter(|(path, _)| is_its(path)) {
        for byte in path.bytes().chain([0]).chain(text.bytes()).chain([0]) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{digest:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_covers_names_and_texts_of_its_files_alone() {
        let of = |files: &[(&str, &str)]| {
            let files = files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
            digest(KERNELS, &files)
        };
        let known = of(&[("a/b.cu", "kernel"), ("a/b.ptx", "text")]);
        assert_eq!(of(&[("a/b.cu", "kernel"), ("a/b.ptx", "text"), ("a/b.rs", "other")]), known);
        assert_ne!(of(&[("a/b.cu", "kernel"), ("a/b.ptx", "texts")]), known);
        assert_ne!(of(&[("a/c.cu", "kernel"), ("a/b.ptx", "text")]), known);
    }
}

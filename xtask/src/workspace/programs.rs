//! Programs built by cargo, and their paths.

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Artifact, Message, MetadataCommand};
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(Clone)]
pub(crate) struct Built {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) manifest: PathBuf,
    pub(crate) program: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The test harness of a test target or of a library.
    Suite,
    /// The test harness of an example or of another program: its unit tests.
    UnitTests,
    Example,
    Other,
}

impl Kind {
    pub(crate) fn of(artifact: &Artifact) -> Self {
        let target = &artifact.target;
        match artifact.profile.test {
            true if target.is_example() || target.is_bin() => Self::UnitTests,
            true => Self::Suite,
            false if target.is_example() => Self::Example,
            false => Self::Other,
        }
    }
}

/// Runs cargo and collects the programs that it reports, by name.
pub(crate) fn build(args: &[&str]) -> Result<Vec<Built>> {
    let mut programs = Vec::new();
    artifacts(args, |artifact| {
        let (kind, manifest) = (Kind::of(&artifact), artifact.manifest_path.into());
        if let Some(program) = artifact.executable {
            programs.push(Built { name: artifact.target.name, kind, manifest, program: program.into() });
        }
    })?;
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// The command that builds what the step `test` runs. A package alone may have other features of its dependencies.
pub(crate) const TESTS: [&str; 3] = ["test", "--no-run", "--workspace"];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Optimised, for users.
    Release,
    /// Unoptimised, as [`TESTS`] builds it for the tests of its package. After the step `test` this compiles nothing.
    Tests,
}

/// Builds a package's library and returns its files: the shared one, the static one and Rust's. With [`Profile::Tests`] an example that is a
/// library can be named too.
pub(crate) fn library(package: &str, profile: Profile) -> Result<Vec<PathBuf>> {
    let (name, mut files) = (package.replace('-', "_"), Vec::new());
    let args: &[&str] = match profile {
        Profile::Release => &["build", "--release", "--package", package],
        Profile::Tests => &TESTS,
    };
    artifacts(args, |artifact| {
        if artifact.target.name == name && !artifact.profile.test {
            files.extend(artifact.filenames.into_iter().map(PathBuf::from));
        }
    })?;
    ensure!(!files.is_empty(), "cargo reported no library of {package}");
    Ok(files)
}

/// Builds a package's program and returns its file.
pub(crate) fn program(package: &str, name: &str, profile: Profile) -> Result<PathBuf> {
    let args: &[&str] = match profile {
        Profile::Release => &["build", "--release", "--package", package, "--bin", name],
        Profile::Tests => &TESTS,
    };
    let built = build(args)?.into_iter().find(|built| built.kind == Kind::Other && built.name == name);
    Ok(built.with_context(|| format!("cargo reported no program {name}"))?.program)
}

/// Runs cargo and passes on what it reports.
fn artifacts(args: &[&str], each: impl FnMut(Artifact)) -> Result<()> {
    let mut command = cargo(args);
    command.current_dir(super::root());
    report(command, each)
}

/// A call of cargo that reports what it builds.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).arg("--message-format=json-render-diagnostics");
    command
}

/// Runs [`cargo`] and passes on what it reports.
pub(crate) fn report(mut command: Command, mut each: impl FnMut(Artifact)) -> Result<()> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cargo cannot be started")?;
    let output = child.stdout.take().context("cargo has no output")?;
    for message in Message::parse_stream(BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message? {
            each(artifact);
        }
    }
    ensure!(child.wait()?.success(), "{command:?} failed");
    Ok(())
}

/// Builds every bench of the workspace with the arguments of a profile, such as `--release`.
pub(crate) fn benches(profile: &[&str]) -> Result<Vec<Built>> {
    let manifest = super::root().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
    let targets = metadata.packages.iter().flat_map(|package| &package.targets);
    let names: Vec<&str> =
        targets.filter(|target| target.is_bench()).map(|target| target.name.as_str()).collect();
    let mut args = [&["build", "--workspace"], profile].concat();
    args.extend(names.iter().flat_map(|name| ["--bench", name]));
    let mut built = build(&args)?;
    built.retain(|built| names.contains(&built.name.as_str()));
    Ok(built)
}

//! Builds a program with cargo, and runs one on the drop-in: with a clean environment, one seed, and a deadline.

use super::Layout;
use anyhow::{Context, Result, anyhow, ensure};
use cargo_metadata::Message;
use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Runs cargo on a manifest and returns the program that it built.
pub(super) fn build(
    layout: &Layout,
    manifest: &Path,
    args: &[&str],
    variables: &[(&str, OsString)],
) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).arg("--manifest-path").arg(manifest);
    command.arg("--message-format=json-render-diagnostics").stdin(Stdio::null()).stdout(Stdio::piped());
    command.env("CARGO_TARGET_DIR", layout.made.join("build"));
    command.env("CUDA_LIBRARY_PATH", layout.toolkit());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let mut child = command.spawn().context("cargo cannot be started")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut program = None;
    for message in Message::parse_stream(BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message? {
            program = artifact.executable.or(program);
        }
    }
    ensure!(
        child.wait()?.success(),
        "cargo {} --manifest-path {} failed",
        args.join(" "),
        manifest.display()
    );
    Ok(program.context("cargo reported no program")?.into())
}

/// The environment of a program: the drop-in and a seed.
pub(super) struct Session<'a> {
    layout: &'a Layout,
    seed: u64,
}

/// The end of a program.
pub(super) struct Ended {
    pub(super) is_success: bool,
    /// A description of the exit status.
    pub(super) how: String,
    /// The output, including standard error.
    pub(super) output: String,
}

impl<'a> Session<'a> {
    pub(super) fn new(layout: &'a Layout, seed: u64) -> Self {
        Self { layout, seed }
    }

    /// Runs a program to its end, or kills it at the deadline.
    pub(super) fn run(&self, program: &Path, args: &[&str]) -> Result<Ended> {
        let (mut reader, writer) = std::io::pipe()?;
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_"))
        {
            command.env_remove(name);
        }
        command.args(args).env("LD_LIBRARY_PATH", &self.layout.drop_in).envs(self.variables());
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child =
            command.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
        // The command holds the writing ends of the pipe, which must be closed before the reader ends.
        drop(command);
        let printed = std::thread::spawn(move || {
            let mut printed = Vec::new();
            let read = reader.read_to_end(&mut printed);
            read.map(|_| String::from_utf8_lossy(&printed).into_owned())
        });
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            match child.try_wait()? {
                None if Instant::now() > deadline => {
                    child.kill()?;
                    child.wait()?;
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(5)),
                ended => break ended,
            }
        };
        let output = printed.join().map_err(|_| anyhow!("the reader of its output panicked"))??;
        let has_finding = output.contains(FINDINGS);
        let how = if has_finding { "the simulator found something".to_string() } else { how(status) };
        let is_success = !has_finding && status.is_some_and(|status| status.success());
        Ok(Ended { is_success, how, output })
    }

    /// The shell command that repeats this run.
    pub(super) fn shown(&self, program: &Path) -> String {
        let variables = self.variables().map(|(name, value)| format!("{name}={value} "));
        format!(
            "LD_LIBRARY_PATH={} {}{}",
            self.layout.drop_in.display(),
            variables.concat(),
            program.display()
        )
    }

    fn variables(&self) -> [(&'static str, String); 2] {
        [("GPUMEM_SIM_DEVICES", "2".to_string()), ("GPUMEM_SIM_SEED", self.seed.to_string())]
    }
}

fn how(status: Option<ExitStatus>) -> String {
    match status {
        Some(status) => format!("it ended with {status}"),
        None => format!("it was not done after {} s", DEADLINE.as_secs()),
    }
}

/// The start of the drop-in's report at exit.
const FINDINGS: &str = "gpumem's simulator has found";

/// The time after which a program counts as hung.
const DEADLINE: Duration = Duration::from_secs(120);

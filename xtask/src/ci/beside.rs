//! [`Beside`]: steps that run beside the others, in turn, in a process of their own. Its output is printed as a whole when it has ended.

use super::command::IS_FULL;
use super::{Ended, FAILED, Step, not_run, watched};
use anyhow::{Context, Result};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) struct Beside {
    names: Vec<&'static str>,
    thread: JoinHandle<Result<String>>,
}

impl Beside {
    /// Starts the first step.
    pub(super) fn start(steps: &[&Step], keeps_going: bool) -> Self {
        let names: Vec<_> = steps.iter().map(|step| step.name).collect();
        if !names.is_empty() {
            println!("\n== beside the other steps: {} ==", names.join(", "));
        }
        let arguments = names.clone();
        let thread = std::thread::spawn(move || run(&arguments, keeps_going));
        Self { names, thread }
    }

    /// Waits for the steps, prints their output, and returns how they ended.
    pub(super) fn end(self) -> Vec<(&'static str, Ended)> {
        let Self { names, thread } = self;
        let printed = match thread.join() {
            Ok(Ok(printed)) => printed,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "the thread of the steps beside the others panicked".to_string(),
        };
        println!("{}", printed.trim_end());
        let is_run = |name: &str| printed.lines().any(|line| line.starts_with(&format!("== {name}: ")));
        let lost = |name| if is_run(name) { (FAILED.to_string(), Duration::ZERO) } else { not_run() };
        names
            .into_iter()
            .map(|name| (name, result_of(name, &printed).unwrap_or_else(|| lost(name))))
            .collect()
    }
}

/// Runs steps in a process of their own, and returns its output.
fn run(names: &[&str], keeps_going: bool) -> Result<String> {
    if names.is_empty() {
        return Ok(String::new());
    }
    let mut command = Command::new(std::env::current_exe().context("the path of this program")?);
    command.args(["ci", "--one-by-one"]).args(names).args(keeps_going.then_some("--keep-going"));
    command.args(IS_FULL.load(Ordering::Relaxed).then_some("--full"));
    let mut printed = Vec::new();
    // Longer than for what a step starts, so that the step itself reports a command that hangs. Its result is in the output.
    let _status = watched::run(command, 2 * watched::SILENCE_MAX, &mut printed)?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// The result of a step and its time, from the last line that it prints.
fn result_of(name: &str, printed: &str) -> Option<Ended> {
    let start = format!("== {name} ");
    let last = printed.lines().rev().find_map(|line| line.strip_prefix(&start)?.strip_suffix(" s =="))?;
    let (result, seconds) = last.rsplit_once(", ")?;
    Some((result.to_string(), Duration::from_secs_f64(seconds.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_that_of_the_last_line() {
        let printed = "== miri: memory ==\n== miri passed, 1.0 s ==\nmore\n== miri skipped: no net, none, 2.0 s ==\n+--+\n";
        let expected = ("skipped: no net, none".to_string(), Duration::from_secs(2));
        assert_eq!(result_of("miri", printed), Some(expected));
        assert_eq!(result_of("docs", printed), None);
    }
}

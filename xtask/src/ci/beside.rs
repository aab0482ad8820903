//! [`Beside`]: steps that run beside the others. Each is a process of its own, whose output is printed as a whole when it has ended.

use super::command::IS_FULL;
use super::{Ended, FAILED, Step, has_failed, not_run, watched};
use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Steps that run in turn on a thread of their own.
pub(super) struct Beside {
    names: Vec<&'static str>,
    thread: JoinHandle<Vec<(&'static str, Ended)>>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    has_failed: AtomicBool,
    /// No further step begins.
    is_stopped: AtomicBool,
}

impl Beside {
    /// Starts the first step.
    pub(super) fn start(steps: &[&Step], keeps_going: bool) -> Self {
        let names: Vec<_> = steps.iter().map(|step| step.name).collect();
        let state = Arc::new(State::default());
        let (its_names, its_state) = (names.clone(), state.clone());
        let thread = std::thread::spawn(move || {
            let mut ended = Vec::new();
            for name in its_names {
                let is_stopped = its_state.is_stopped.load(Ordering::Relaxed);
                let goes_on = !is_stopped && (keeps_going || !has_failed(&ended));
                ended.push((name, if goes_on { run_alone(name) } else { not_run() }));
                its_state.has_failed.store(has_failed(&ended), Ordering::Relaxed);
            }
            ended
        });
        Self { names, thread, state }
    }

    /// True if a step has failed so far.
    pub(super) fn has_failed(&self) -> bool {
        self.state.has_failed.load(Ordering::Relaxed)
    }

    /// Waits for all steps, or only for the one that runs.
    pub(super) fn end(self, waits_for_all: bool) -> Vec<(&'static str, Ended)> {
        let Self { names, thread, state } = self;
        state.is_stopped.store(!waits_for_all, Ordering::Relaxed);
        let lost = |_| names.iter().map(|name| (*name, (FAILED.to_string(), Duration::ZERO))).collect();
        thread.join().unwrap_or_else(lost)
    }
}

/// Runs a step in a process of its own.
fn run_alone(name: &str) -> Ended {
    println!("\n== {name} runs beside the other steps ==");
    let (start, mut printed) = (Instant::now(), Vec::new());
    let status = run_process(name, &mut printed);
    let took = start.elapsed();
    let printed = String::from_utf8_lossy(&printed);
    // One call, so that lines of the other steps do not come between.
    println!("{}", printed.trim_end());
    match status {
        Ok(()) => (result_of(name, &printed).unwrap_or_else(|| FAILED.to_string()), took),
        Err(error) => {
            println!("{name}: {error:#}");
            (FAILED.to_string(), took)
        }
    }
}

fn run_process(name: &str, printed: &mut Vec<u8>) -> Result<()> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    command.args(["ci", name]).args(IS_FULL.load(Ordering::Relaxed).then_some("--full"));
    // Longer than for what the step starts, so that the step itself reports a command that hangs.
    let status = watched::run(command, 2 * watched::SILENCE_MAX, printed)?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// The result of a step, from the last line that it prints.
fn result_of(name: &str, printed: &str) -> Option<String> {
    let is_last = |line: &&str| line.starts_with(&format!("== {name} ")) && line.ends_with(" s ==");
    let line = printed.lines().rev().find(is_last)?;
    let (result, _) = line.strip_prefix(&format!("== {name} "))?.rsplit_once(", ")?;
    Some(result.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_that_of_the_last_line() {
        let printed = "== miri: memory ==\n== miri passed, 1.0 s ==\nmore\n== miri skipped: no net, none, 2.0 s ==\n+--+\n";
        assert_eq!(result_of("miri", printed).as_deref(), Some("skipped: no net, none"));
        assert_eq!(result_of("docs", printed), None);
    }
}

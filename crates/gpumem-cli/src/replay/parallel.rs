//! Runs independent replays side by side.

use crate::machine::Machine;
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs all tasks and returns the results in the order of the tasks. On simulators one thread for each core, on a GPU one.
pub(super) fn in_parallel<T: Sync, R: Send>(
    machine: Machine,
    tasks: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let jobs = if machine.is_gpu { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let run = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(task) = tasks.get(index) else { return Ok(()) };
                let result = work(task)?;
                done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
            }
        };
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// A line that counts replays, on a terminal.
pub(super) fn progress() -> Result<ProgressBar> {
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::with_template("{spinner} {pos} replays, {elapsed}: {msg}")?);
    Ok(progress)
}

//! The command `gpumem`. docs/develop/rooms.md lists the rooms of this crate.

mod describe;
mod doctor;
mod input;
mod launch;
mod machine;
mod output;
mod replay;
mod report;
mod table;
mod top;
mod view;

use clap::{CommandFactory, Parser, Subcommand};
use output::Verdict;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "gpumem", version, about = "Where the memory of a GPU program goes, and whether it would fit", after_help = STATUS)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show on one screen what a record or a saved report says: what was refused, who holds the memory, what grew, what to do
    Report(report::Args),
    /// Run a record through a pool, with its settings and limit or with others: does it fit, and who holds the memory
    Replay(replay::Args),
    /// Start a program with a recording, a limit or the flight recorder, and say at its end where its memory went
    Run(launch::Args),
    /// Look into running processes: pools, tags, limits, rates, refusals; start and stop a recording
    Top(top::Args),
    /// Look at the driver, the devices, the variables and the Python packages of this machine, and measure a little
    Doctor(doctor::Args),
    /// Print the completions of a shell, to be saved where it looks for them
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a page that shows where the memory goes: over time by tag, at a moment, by address
    View(view::Args),
}

fn main() -> ExitCode {
    let verdict = match Cli::parse().task {
        Task::Run(args) => match launch::run(&args) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
        Task::Doctor(args) => doctor::run(&args),
        Task::Completions { shell } => completions(shell),
        Task::Report(args) => report::run(&args),
        Task::Replay(args) => replay::run(&args),
        Task::Top(args) => top::run(&args),
        Task::View(args) => view::run(&args),
    };
    match verdict {
        Ok(Verdict::Yes) => ExitCode::SUCCESS,
        Ok(Verdict::No) => ExitCode::from(1),
        Err(error) => {
            output::complain("error", &format!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<Verdict> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gpumem", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(Verdict::Yes)
}

const STATUS: &str = "\
Exit status: 0 if the answer is good, 1 if it is not (does not fit, a peak above --max-peak), 2 for a file or an option that cannot be used.";

//! `gpumem top`: looks into running processes over their status sockets (`GPUMEM_STATUS`).

#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod find;
#[cfg(target_os = "linux")]
mod sample;
#[cfg(target_os = "linux")]
mod screen;
#[cfg(target_os = "linux")]
mod snapshot;

use crate::output::Verdict;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The processes to show [default: all of this user]
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
    /// A socket, or a folder with sockets, as in GPUMEM_STATUS [default: the folders of this user]
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// Print one table and exit, as without a terminal
    #[arg(long)]
    once: bool,
    /// Print one object of JSON and exit
    #[arg(long)]
    json: bool,
    /// The folder for recordings that `r` starts; the process must be able to write it [default: the working folder]
    #[arg(long, value_name = "FOLDER")]
    record_to: Option<PathBuf>,
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_args: &Args) -> anyhow::Result<Verdict> {
    anyhow::bail!(
        "running processes can be looked into on Linux only; record one with GPUMEM_TRACE, and see `gpumem report`"
    )
}

#[cfg(target_os = "linux")]
pub(crate) fn run(args: &Args) -> anyhow::Result<Verdict> {
    use std::io::IsTerminal as _;
    let places = find::Places::new(&args.socket, &args.pids);
    let is_live =
        !args.once && !args.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let processes = sample::once(&places);
    if args.json {
        let value =
            serde_json::json!({ "processes": processes.iter().map(|one| &one.value).collect::<Vec<_>>() });
        crate::output::print(&format!("{value}\n"))?;
    } else if is_live && !processes.is_empty() {
        let folder = match &args.record_to {
            Some(folder) => std::path::absolute(folder)?,
            None => std::env::current_dir()?,
        };
        screen::run(places, processes, &folder)?;
        return Ok(Verdict::Yes);
    } else if !processes.is_empty() {
        crate::output::print(&snapshot::text(&processes))?;
    }
    if processes.is_empty() && !args.json {
        crate::output::complain("error", &places.nothing_found());
    }
    Ok(Verdict::of(processes.iter().any(|one| !one.is_silent())))
}

const EXAMPLES: &str = "\
Start the program with GPUMEM_STATUS=on:
  GPUMEM_STATUS=on ./server      then, as the same user: gpumem top
  gpumem top --json | jq '.processes[].pools[] | {name, in_use_bytes}'
  docker exec CONTAINER gpumem top --once

A Rust program also needs the feature `status-socket` of gpumem, and a pool built from the environment: Pool::from_env,
PoolBuilder::from_env or Gpu::open.

Keys: up and down or j and k choose a pool, r starts and stops a recording of its process, d writes the flight record, q quits.";

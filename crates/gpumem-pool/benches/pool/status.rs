//! What it costs a process to be looked into: the processor time of the thread that serves the status socket.

use super::{Bench, Outcome};
use gpumem_pool::{Block, PoolBuilder};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const POOL_COUNT: usize = 5;
const BLOCK_COUNT: usize = 200;
const TAGS: [&str; 4] = ["weights", "activations", "optimizer", "batches"];
const PAUSE: Duration = Duration::from_millis(100);
const READ_COUNT: u32 = 600;

impl Bench {
    /// Reads the status of five pools with blocks and tags ten times a second, for a minute: on one connection, as `gpumem top` does, and with
    /// a connection for each, as Prometheus does.
    pub(super) fn status(&self) -> Outcome<()> {
        let name = self.name("status_10_a_second", 1);
        // Read by whoever asks for it: it takes two minutes.
        if self.options.only.is_empty() || !self.is_asked(&name) {
            return Ok(());
        }
        let Some(socket) = std::env::var_os("GPUMEM_STATUS").map(PathBuf::from) else {
            // A process reads the variable when it begins.
            let socket = std::env::temp_dir().join(format!("gpumem-bench-{}.sock", std::process::id()));
            let mut own = Command::new(std::env::current_exe()?);
            let status = own.args(std::env::args_os().skip(1)).env("GPUMEM_STATUS", &socket).status()?;
            return if status.success() {
                Ok(())
            } else {
                Err("the process with GPUMEM_STATUS failed".into())
            };
        };
        let stream = self.streams(1)?.swap_remove(0);
        let mut held: Vec<Block> = Vec::new();
        let mut pools = Vec::new();
        for number in 0..POOL_COUNT {
            let pool = PoolBuilder::from_env(&self.device)?.name(format!("pool {number}")).build()?;
            for index in 0..BLOCK_COUNT {
                let _scope = pool.scope(TAGS[index % TAGS.len()]);
                held.push(pool.alloc(4096 + 256 * (index as u64 % 7), &stream)?);
            }
            pools.push(pool);
        }
        let kept = UnixStream::connect(&socket)?;
        let mut answers = BufReader::new(kept.try_clone()?);
        self.note(&name, share(|| ask(&kept, &mut answers))?, "% of a core, one connection")?;
        let again = || {
            let stream = UnixStream::connect(&socket)?;
            ask(&stream, &mut BufReader::new(stream.try_clone()?))
        };
        self.note(&name, share(again)?, "% of a core, a connection each")
    }
}

fn ask(mut stream: &UnixStream, answers: &mut BufReader<UnixStream>) -> Outcome<()> {
    stream.write_all(b"status\n")?;
    let mut line = String::new();
    answers.read_line(&mut line)?;
    if line.contains("pool 4") { Ok(()) } else { Err(format!("not a status: {line}").into()) }
}

/// The processor time of the serving thread while the status is read, in percent.
fn share(mut read: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let (begin, before) = (Instant::now(), served()?);
    for number in 1..=READ_COUNT {
        read()?;
        std::thread::sleep((PAUSE * number).saturating_sub(begin.elapsed()));
    }
    Ok((served()? - before).as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0)
}

/// The processor time of the serving thread so far.
fn served() -> Outcome<Duration> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim() == "gpumem-status" {
            return nanoseconds(&task.join("schedstat"));
        }
    }
    Err("no thread serves the status".into())
}

fn nanoseconds(schedstat: &Path) -> Outcome<Duration> {
    let text = std::fs::read_to_string(schedstat)?;
    let first = text.split_whitespace().next().ok_or("the kernel counts no processor time")?;
    Ok(Duration::from_nanos(first.parse()?))
}

//! What it costs a process to be looked into: the processor time of the thread that serves the status socket.

use super::{Bench, Outcome};
use gpumem_pool::{Block, PoolBuilder};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const POOL_COUNTS: [usize; 2] = [1, 5];
const BLOCK_COUNT: usize = 200;
const TAGS: [&str; 4] = ["weights", "activations", "optimizer", "batches"];
const PAUSE: Duration = Duration::from_millis(100);
const READ_COUNT: u32 = 300;

impl Bench {
    /// Reads the status of pools with blocks and tags ten times a second, half a minute each: on one connection, as `gpumem top` does, and with
    /// a connection for each, as Prometheus does. The peer is a thread that has an answer of the same length at hand: what is left is the
    /// system's cost of waking it, reading and writing.
    pub(super) fn status(&self) -> Outcome<()> {
        let name = |pool_count| self.name(&format!("status_of_{pool_count}"), 1);
        // Read by whoever asks for it: it takes minutes.
        if self.options.only.is_empty() || !POOL_COUNTS.iter().any(|count| self.is_asked(&name(*count))) {
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
        for pool_count in POOL_COUNTS {
            while pools.len() < pool_count {
                let pool =
                    PoolBuilder::from_env(&self.device)?.name(format!("pool {}", pools.len())).build()?;
                for index in 0..BLOCK_COUNT {
                    let _scope = pool.scope(TAGS[index % TAGS.len()]);
                    held.push(pool.alloc(4096 + 256 * (index as u64 % 7), &stream)?);
                }
                pools.push(pool);
            }
            let name = name(pool_count);
            let last = format!("pool {}", pool_count - 1);
            let kept = UnixStream::connect(&socket)?;
            let mut answers = BufReader::new(kept.try_clone()?);
            let answer = ask(&kept, &mut answers)?;
            if !answer.contains(&last) {
                return Err(format!("not a status: {answer}").into());
            }
            let percent = share(SERVER, || ask(&kept, &mut answers).map(drop))?;
            self.note(&name, percent, "% of a core, one connection")?;
            let again = || {
                let stream = UnixStream::connect(&socket)?;
                ask(&stream, &mut BufReader::new(stream.try_clone()?)).map(drop)
            };
            self.note(&name, share(SERVER, again)?, "% of a core, a connection each")?;
            self.note(&name, by_hand(answer)?, "% of a core, a thread that has the answer")?;
        }
        Ok(())
    }
}

fn ask(mut stream: &UnixStream, answers: &mut BufReader<UnixStream>) -> Outcome<String> {
    stream.write_all(b"status\n")?;
    let mut line = String::new();
    answers.read_line(&mut line)?;
    Ok(line)
}

/// The share of a thread that reads a line and writes `answer`.
fn by_hand(answer: String) -> Outcome<f64> {
    let (asking, serving) = UnixStream::pair()?;
    let serve = move || {
        let mut lines = BufReader::new(&serving);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|count| count > 0) {
            if (&serving).write_all(answer.as_bytes()).is_err() {
                break;
            }
            line.clear();
        }
    };
    let thread = std::thread::Builder::new().name(BY_HAND.into()).spawn(serve)?;
    let mut answers = BufReader::new(asking.try_clone()?);
    let percent = share(BY_HAND, || ask(&asking, &mut answers).map(drop));
    drop((asking, answers));
    thread.join().map_err(|_| "the thread by hand panicked")?;
    percent
}

const SERVER: &str = "gpumem-status";
const BY_HAND: &str = "by-hand";

/// The processor time of a thread while it answers, in percent.
fn share(thread: &str, mut read: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    // A thread has its name once it has answered.
    read()?;
    let (begin, before) = (Instant::now(), served(thread)?);
    for number in 1..=READ_COUNT {
        read()?;
        std::thread::sleep((PAUSE * number).saturating_sub(begin.elapsed()));
    }
    Ok((served(thread)? - before).as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0)
}

/// The processor time of the thread of a name so far.
fn served(thread: &str) -> Outcome<Duration> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim() == thread {
            return nanoseconds(&task.join("schedstat"));
        }
    }
    Err(format!("no thread is named {thread}").into())
}

fn nanoseconds(schedstat: &Path) -> Outcome<Duration> {
    let text = std::fs::read_to_string(schedstat)?;
    let first = text.split_whitespace().next().ok_or("the kernel counts no processor time")?;
    Ok(Duration::from_nanos(first.parse()?))
}

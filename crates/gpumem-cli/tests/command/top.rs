//! `gpumem top` on running processes, which are this program with the test `serves`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(clippy::print_stdout, reason = "the process says what it has done")]

use crate::programs::{Scratch, gpumem};
use gpumem_pool::{Device, PoolBuilder, Stream};
use gpumem_sim::SimConfig;
use gpumem_trace::{Setup, Trace, replay};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A pool with tags, which grows by a block for each line of its input.
#[test]
#[ignore = "run by the tests of this file, as a process of its own"]
fn serves() {
    let device =
        Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30)).unwrap(), 0).unwrap();
    let pool = PoolBuilder::from_env(&device).unwrap().name("server").hard_limit("256MiB").build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let _weights = {
        let _scope = pool.scope("weights");
        pool.alloc(48 << 20, &stream).unwrap()
    };
    let _scope = pool.scope("requests");
    let mut kept = Vec::new();
    println!("» ready");
    for _ in std::io::stdin().lines() {
        kept.push(pool.alloc(4 << 20, &stream).unwrap());
        drop(pool.alloc(1 << 20, &stream).unwrap());
        println!("» grown");
    }
}

struct Server {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
    socket: PathBuf,
}

impl Server {
    fn start(folder: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["top::serves", "--exact", "--ignored", "--nocapture"]).env("GPUMEM_STATUS", folder);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let socket = Path::new(folder).join(format!("gpumem-{}.sock", process.id()));
        let mut server = Self { process, output, socket };
        server.await_line("ready");
        server
    }

    fn await_line(&mut self, expected: &str) {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process has ended");
            if line.contains(expected) {
                return;
            }
        }
    }

    fn grow(&mut self) {
        writeln!(self.process.stdin.as_mut().unwrap()).unwrap();
        self.await_line("grown");
    }

    fn ask(&self, line: &str) -> Value {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn folder(scratch: &Scratch) -> String {
    let folder = scratch.path("run");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_table_and_json_show_all_processes() {
    let scratch = Scratch::new("top-table");
    let folder = folder(&scratch);
    let (first, second) = (Server::start(&folder), Server::start(&folder));
    let said = gpumem(["top", "--socket", &folder]);
    assert_eq!(said.code, 0, "{said:?}");
    for process in [&first, &second] {
        assert!(said.out.contains(&format!("({}), up ", process.process.id())), "{}", said.out);
    }
    assert!(said.out.contains("server  0 caching  48.000 MiB"), "{}", said.out);
    assert!(said.out.contains("256.000 MiB") && said.out.contains("weights  48.000 MiB"), "{}", said.out);
    let pid = second.process.id().to_string();
    let said = gpumem(["top", &pid, "--socket", &folder, "--json"]);
    let value: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(value["processes"].as_array().unwrap().len(), 1);
    assert_eq!(value["processes"][0]["pools"][0]["tags"][0]["tag"], "weights");
}

/// Processes that were killed are neither shown nor left behind, and without any the answer says how to turn it on.
#[test]
fn without_a_process_it_says_how() {
    let scratch = Scratch::new("top-none");
    let folder = folder(&scratch);
    let said = gpumem(["top", "--socket", &folder]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.error.contains("GPUMEM_STATUS=on"), "{said:?}");
    let mut server = Server::start(&folder);
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    assert!(server.socket.exists());
    let said = gpumem(["top", "--socket", &folder, "--json"]);
    assert_eq!((said.code, said.out.trim()), (1, "{\"processes\":[]}"));
    assert!(!server.socket.exists(), "the socket of a dead process is removed");
}

/// A recording of a part of a program is read and replayed: the live blocks are its first ones.
#[test]
fn what_it_records_is_replayed() {
    let scratch = Scratch::new("top-record");
    let mut server = Server::start(&folder(&scratch));
    (0..3).for_each(|_| server.grow());
    let file = scratch.path("run.trace");
    assert_eq!(server.ask(&format!("record {file}"))["live_blocks"], 4);
    (0..5).for_each(|_| server.grow());
    assert_eq!(server.ask("stop")["is_whole"], true);
    let trace = Trace::read(&file).unwrap();
    assert_eq!(trace.disagreements(), Vec::<String>::new());
    assert_eq!(trace.peaks().live_bytes, (48 + 8 * 4 + 1) << 20);
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let outcome = replay(&trace, &driver, &Setup::of_recording(&trace).unwrap(), |_| ()).unwrap();
    assert_eq!((outcome.refusal_count, outcome.live.live_bytes), (0, 81 << 20));
    let said = gpumem(["report", &file]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("requests  20.000 MiB"), "{}", said.out);
    // The program goes on.
    server.grow();
    assert_eq!(server.ask("status")["recording"], Value::Null);
}

/// On a terminal: keys work, and the terminal is restored at the end.
#[test]
fn the_screen_takes_keys_and_restores_the_terminal() {
    let scratch = Scratch::new("top-screen");
    let folder = folder(&scratch);
    let mut server = Server::start(&folder);
    let gpumem = env!("CARGO_BIN_EXE_gpumem");
    let line = format!("stty rows 30 cols 140; exec {gpumem} top --socket '{folder}' --record-to '{folder}'");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm-256color");
    let started = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut screen) = started else {
        println!("skipped: there is no `script`, which makes a terminal");
        return;
    };
    let keys = screen.stdin.as_mut().unwrap();
    let records = |folder: &str| {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(".trace")).count()
    };
    std::thread::sleep(Duration::from_secs(2));
    keys.write_all(b"jk").unwrap();
    // Once more only if the screen was not there yet: a second key ends the recording.
    for _ in 0..2 {
        let pressed = Instant::now();
        if server.ask("status")["recording"].is_null() {
            keys.write_all(b"r").unwrap();
        }
        while server.ask("status")["recording"].is_null() && pressed.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert!(server.ask("status")["recording"].is_string());
    server.grow();
    assert_eq!(records(&folder), 1);
    keys.write_all(b"q").unwrap();
    let output = screen.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("server  0 caching") && text.contains("recording into"), "{text}");
    assert!(text.contains("\u{1b}[?1049h") && text.contains("\u{1b}[?1049l"), "{text}");
    assert_eq!(server.ask("stop")["is_whole"], true);
}

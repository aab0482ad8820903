//! The status socket of a running process (`GPUMEM_STATUS`): real processes, which tests of this file start.

use gpumem_pool::trace::{Recording, What};
use gpumem_pool::{BackendKind, Device, Pool, PoolBuilder, Stream};
use gpumem_sim::SimConfig;
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A folder of a test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpumem-live-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn sockets(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).filter(|name| name.contains(".sock")).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process with a pool that serves its socket. It does what the lines of its input say, and ends with it.
struct Program {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
    socket: PathBuf,
}

impl Program {
    fn start(folder: &Folder, more: &[(&str, &str)]) -> Self {
        let mut process = child("serves", folder.0.to_str().unwrap(), more).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let socket = folder.0.join(format!("gpumem-{}.sock", process.id()));
        let mut program = Self { process, output, socket };
        assert_eq!(program.next_line(), "ready");
        program
    }

    /// The next line that begins with a mark.
    fn next_line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process has ended");
            if let Some((_, line)) = line.split_once("» ") {
                return line.trim_end().into();
            }
        }
    }

    fn tell(&mut self, line: &str) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.next_line()
    }

    fn connect(&self) -> Client {
        Client::new(&self.socket)
    }

    fn ask(&self, line: &str) -> Value {
        self.connect().ask(line)
    }

    fn end(mut self) {
        drop(self.process.stdin.take());
        let output = self.process.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(!text.contains("panicked"), "{text}");
    }
}

fn child(name: &str, status: &str, more: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("status_socket::{name}"), "--exact", "--ignored", "--nocapture"]);
    command.env("GPUMEM_STATUS", status).envs(more.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, line: &str) {
        // At once: the server may answer a first part, and end.
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            // The process was killed before it had read everything.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => String::new(),
            read => read.map(|_| line).unwrap(),
        }
    }

    fn ask(&mut self, line: &str) -> Value {
        self.send(line);
        serde_json::from_str(&self.line()).unwrap()
    }
}

fn pool<'a>(status: &'a Value, name: &str) -> &'a Value {
    status["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == name).unwrap()
}

/// The program: a pool with tagged blocks, and a private one. `work` starts threads that allocate and free, until `rest`.
#[test]
#[ignore = "run by the tests of this file, as a process of its own"]
fn serves() {
    static WORKS: AtomicBool = AtomicBool::new(false);
    let device =
        Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(4 << 30)).unwrap(), 0).unwrap();
    let builder = PoolBuilder::from_env(&device).unwrap_or_else(|error| {
        println!("» {error}");
        std::process::exit(3)
    });
    let pool = builder.name("server").hard_limit("2GiB").build().unwrap();
    let cache = pool.private_named("cache", "64MiB").unwrap();
    let stream = Stream::new(&device).unwrap();
    let mut kept = Vec::new();
    {
        let _scope = pool.scope("weights \"1\"");
        kept.extend((1..=10_u64).map(|step| pool.alloc(step << 20, &stream).unwrap()));
        kept.extend((0..100).map(|_| pool.alloc(4096, &stream).unwrap()));
        drop(pool.alloc(300 << 10, &stream).unwrap());
    }
    kept.push(cache.alloc(1 << 20, &stream).unwrap());
    let mut threads = Vec::new();
    let say = |text: &str| println!("» {text}");
    say("ready");
    for line in std::io::stdin().lines() {
        match &*line.unwrap() {
            "work" => {
                WORKS.store(true, Ordering::SeqCst);
                for thread in 0..3_u64 {
                    let (pool, device) = (pool.clone(), device.clone());
                    threads.push(std::thread::spawn(move || {
                        let stream = Stream::new(&device).unwrap();
                        let mut held = std::collections::VecDeque::new();
                        let mut step = thread;
                        while WORKS.load(Ordering::SeqCst) {
                            step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            let size = [256, 4096, 70_000, 3 << 20][(step >> 60) as usize % 4];
                            held.push_back(pool.alloc(size, &stream).unwrap());
                            if held.len() > 8 {
                                held.pop_front();
                            }
                        }
                    }));
                }
                say("working");
            }
            "rest" => {
                WORKS.store(false, Ordering::SeqCst);
                threads.drain(..).for_each(|thread| thread.join().unwrap());
                say("resting");
            }
            "free half" => {
                let half = kept.len() / 2;
                kept.drain(..half).for_each(drop);
                let status = pool.status().unwrap();
                say(&format!("{} {}", status.in_use_bytes, status.block_count));
            }
            "pair" => {
                let before = pool.status().unwrap().counters.slow_allocation_count;
                (0..100).for_each(|_| drop(pool.alloc(4096, &stream).unwrap()));
                let slow = pool.status().unwrap().counters.slow_allocation_count - before;
                say(&format!("{slow}"));
            }
            "refuse" => {
                assert!(pool.alloc(3 << 30, &stream).is_err());
                say("refused");
            }
            "new pool" => {
                let other = Pool::builder(&device).name("other").build().unwrap();
                kept.push(other.alloc(5 << 20, &stream).unwrap());
                drop(other);
                say("built");
            }
            "fork" => {
                // SAFETY: the child calls nothing but functions that are allowed in the child of a process with threads.
                unsafe extern "C" {
                    safe fn fork() -> i32;
                    safe fn pause() -> i32;
                }
                match fork() {
                    0 => loop {
                        pause();
                    },
                    child => say(&child.to_string()),
                }
            }
            "exit" => std::process::exit(0),
            other => panic!("{other}"),
        }
    }
    WORKS.store(false, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// The status of all pools, in the middle of work, and for several clients at once.
#[test]
fn the_status_is_answered_while_threads_allocate() {
    let folder = Folder::new("status");
    let mut program = Program::start(&folder, &[]);
    let mode = std::fs::metadata(&program.socket).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(program.tell("work"), "working");
    let mut clients: Vec<Client> = (0..8).map(|_| program.connect()).collect();
    let mut before = 0;
    for _ in 0..50 {
        clients.iter_mut().for_each(|client| client.send("status"));
        for client in &mut clients {
            let status: Value = serde_json::from_str(&client.line()).unwrap();
            assert_eq!((&status["ok"], &status["recording"]), (&true.into(), &Value::Null));
            assert_eq!(status["pid"], program.process.id());
            let server = pool(&status, "server");
            assert_eq!(
                (&server["backend"], &server["hard_limit_bytes"]),
                (&backend().into(), &(2_u64 << 30).into())
            );
            let weights = &server["tags"][0];
            assert_eq!(
                (&weights["tag"], &weights["in_use_bytes"]),
                (&"weights \"1\"".into(), &((55_u64 << 20) + 409_600).into())
            );
            assert_eq!(pool(&status, "server/cache")["in_use_bytes"], 1 << 20);
            let count = server["allocation_count"].as_u64().unwrap();
            assert!(count >= before, "{count} {before}");
            before = count;
        }
    }
    let begin = Instant::now();
    while before <= 1000 && begin.elapsed() < Duration::from_secs(60) {
        before = pool(&program.ask("status"), "server")["allocation_count"].as_u64().unwrap();
    }
    assert!(before > 1000, "the threads allocate: {before}");
    // Two requests in one write, an object, and mistakes.
    let mut client = program.connect();
    client.send("nothing\n{\"do\":\"help\"}");
    assert!(client.line().contains("there is no request"));
    assert!(client.line().contains("record PATH"));
    let long = "x".repeat(100 << 10);
    // The server may end the connection before all of it is written.
    let _ = writeln!(client.0.get_mut(), "{long}");
    let mut rest = String::new();
    let _ = client.0.read_to_string(&mut rest);
    assert!(rest.contains("longer than 64 KiB") || rest.contains("there is no request"), "{rest}");
    assert_eq!(program.tell("rest"), "resting");
    let socket = program.socket.clone();
    program.end();
    assert!(!socket.exists(), "an exit removes the socket");
}

fn backend() -> &'static str {
    if cfg!(feature = "backend-caching") {
        "caching"
    } else if cfg!(feature = "backend-native") {
        "native"
    } else {
        "none"
    }
}

/// Clients that never read, end in the middle, or are killed do not disturb others.
#[test]
fn clients_that_do_not_read_block_nobody() {
    let folder = Folder::new("slow");
    let program = Program::start(&folder, &[]);
    let mut stuck = Vec::new();
    for _ in 0..80 {
        let mut client = UnixStream::connect(&program.socket).unwrap();
        client.set_nonblocking(true).unwrap();
        let many = "prometheus\n".repeat(2000);
        // As much as the socket takes.
        while matches!(client.write(many.as_bytes()), Ok(count) if count > 0) {}
        stuck.push(client);
        let start = Instant::now();
        assert_eq!(program.ask("status")["ok"], true);
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    drop(stuck);
    let mut half = program.connect();
    write!(half.0.get_mut(), "stat").unwrap();
    let mut killed = Command::new("sh")
        .args(["-c", "exec sleep 60"])
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(UnixStream::connect(&program.socket).unwrap())))
        .spawn()
        .unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(program.ask("status")["ok"], true);
    drop(half);
    assert_eq!(program.ask("status")["ok"], true);
    program.end();
}

/// A socket that a killed process has left is removed by the next process. Two processes have a socket each, and an exit with clients is
/// silent.
#[test]
fn sockets_of_dead_processes_are_removed() {
    let folder = Folder::new("killed");
    let mut first = Program::start(&folder, &[]);
    let mut client = first.connect();
    first.process.kill().unwrap();
    first.process.wait().unwrap();
    assert_eq!(client.line(), "", "the connection ends");
    assert_eq!(folder.sockets().len(), 1);
    let (second, third) = (Program::start(&folder, &[]), Program::start(&folder, &[]));
    assert_eq!(folder.sockets().len(), 2, "the first one was removed");
    for program in [&second, &third] {
        assert_eq!(program.ask("status")["pid"], program.process.id());
    }
    let mut client = second.connect();
    second.end();
    assert_eq!(client.line(), "");
    third.end();
    assert_eq!(folder.sockets(), Vec::<String>::new());
}

/// A forked child does not serve, keeps no connection open, and does not remove the socket.
#[test]
fn a_forked_child_does_not_serve() {
    let folder = Folder::new("fork");
    let mut program = Program::start(&folder, &[]);
    let mut client = program.connect();
    assert_eq!(client.ask("status")["ok"], true);
    let forked = program.tell("fork");
    assert_eq!(program.ask("status")["pid"], program.process.id());
    program.process.kill().unwrap();
    program.process.wait().unwrap();
    assert_eq!(client.line(), "", "the child has closed its copy");
    let refused = UnixStream::connect(&program.socket).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    Command::new("kill").args(["-9", &forked]).status().unwrap();
}

/// Text of Prometheus, over a line and over HTTP.
#[test]
fn metrics_are_answered_over_http() {
    let folder = Folder::new("http");
    let program = Program::start(&folder, &[]);
    let mut client = program.connect();
    client.send("prometheus");
    let mut lines = String::new();
    loop {
        match &*client.line() {
            "\n" => break,
            line => lines += line,
        }
    }
    assert!(lines.contains("\ngpumem_tag_in_use_bytes{device=\"0\",pool=\"server\""), "{lines}");
    assert!(lines.contains(",tag=\"weights \\\"1\\\"\"} 58081280\n"), "{lines}");
    assert!(lines.contains("gpumem_device_free_bytes{device=\"0\""), "{lines}");
    for (path, code, said) in [
        ("/metrics", "200 OK", "# TYPE gpumem_hard_limit_bytes gauge"),
        ("/status", "200 OK", "\"ok\":true"),
        ("/other", "404 Not Found", "there are /metrics and /status"),
    ] {
        let mut client = program.connect();
        write!(client.0.get_mut(), "GET {path} HTTP/1.1\r\nHost: localhost\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        write!(client.0.get_mut(), "Accept: */*\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.0.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {code}\r\n")), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(body.contains(said), "{body}");
    }
    program.end();
}

/// A recording from one moment to another: it begins with the live blocks, has what several threads do, and the fast path is back after it.
#[test]
fn a_recording_begins_with_the_live_blocks() {
    let folder = Folder::new("record");
    let mut program = Program::start(&folder, &[]);
    let fast: u64 = program.tell("pair").parse().unwrap();
    assert!(fast <= 1 || backend() != "caching", "{fast}");
    let path = folder.0.join("run.trace");
    let request = format!("record {}", path.display());
    let started = program.ask(&request);
    assert_eq!(
        (&started["ok"], &started["path"]),
        (&true.into(), &path.to_str().unwrap().into()),
        "{started}"
    );
    if backend() == "caching" {
        assert_eq!(started["live_blocks"], 111);
    }
    assert!(program.ask(&request)["error"].as_str().unwrap().contains("is being recorded already"));
    assert_eq!(program.ask("status")["recording"], path.to_str().unwrap());
    assert_eq!(program.tell("work"), "working");
    assert_eq!(program.tell("new pool"), "built");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(program.tell("rest"), "resting");
    assert_eq!(program.tell("refuse"), "refused");
    let left = program.tell("free half");
    let stopped = program.ask("stop");
    assert_eq!((&stopped["ok"], &stopped["is_whole"]), (&true.into(), &true.into()), "{stopped}");
    assert!(program.ask("stop")["error"].as_str().unwrap().contains("nothing is being recorded"));

    let recording = Recording::read(&path).unwrap();
    assert_eq!(recording.tail, None);
    let of_server = recording.pools.iter().find(|pool| pool.name == "server").unwrap().pool;
    assert!(recording.pools.iter().any(|pool| pool.name == "other"));
    let refused = |what: &What| matches!(what, What::Refused { size_bytes: 0xC000_0000, .. });
    assert!(recording.events.iter().any(|event| refused(&event.what)));
    if stopped["dropped_events"] == 0 && backend() == "caching" {
        // All blocks that the pool has in the end, and no others.
        let mut live = std::collections::HashMap::new();
        for event in &recording.events {
            match event.what {
                What::Alloc { pool, address, size_bytes, .. } if pool == of_server => {
                    assert!(live.insert(address, size_bytes).is_none(), "{address:#x} was live");
                }
                What::Free { pool, address, .. } if pool == of_server => {
                    assert!(live.remove(&address).is_some(), "{address:#x} was not live");
                }
                _ => {}
            }
        }
        let (bytes, count) = left.split_once(' ').unwrap();
        assert_eq!(live.len().to_string(), count);
        assert_eq!(live.values().sum::<u64>().to_string(), bytes);
    }
    let fast: u64 = program.tell("pair").parse().unwrap();
    assert!(fast <= 1 || backend() != "caching", "the fast path is back: {fast}");
    // Again, in the same file: the first recording is kept.
    assert_eq!(program.ask(&request)["ok"], true);
    assert_eq!(program.ask("stop")["ok"], true);
    assert!(Recording::read(folder.0.join("run.trace.1")).is_ok());
    let mistake = program.ask(&format!("record {}/nowhere/x.trace", folder.0.display()));
    assert!(mistake["error"].as_str().unwrap().contains("cannot be recorded into"), "{mistake}");
    program.end();
}

/// Recordings that begin and end while threads allocate and free lose and invent nothing.
#[test]
#[cfg(feature = "backend-caching")]
fn recordings_amid_work_agree_with_the_status() {
    let folder = Folder::new("amid");
    let mut program = Program::start(&folder, &[("GPUMEM_POOL", "caching")]);
    assert_eq!(program.tell("work"), "working");
    let mut whole_count = 0;
    for round in 0..5 {
        let path = folder.0.join(format!("{round}.trace"));
        assert_eq!(program.ask(&format!("record {}", path.display()))["ok"], true);
        let allocations = || pool(&program.ask("status"), "server")["allocation_count"].as_u64().unwrap();
        let (begin, before) = (Instant::now(), allocations());
        while allocations() < before + 1000 && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let stopped = program.ask("stop");
        // On a busy machine the writer may be late.
        whole_count += u32::from(stopped["is_whole"] == true);
        if stopped["is_whole"] != true {
            continue;
        }
        let recording = Recording::read(&path).unwrap();
        let (mut live, mut odd, mut count) = (std::collections::HashSet::new(), 0, 0);
        for event in &recording.events {
            match event.what {
                What::Alloc { pool, address, .. } => {
                    odd += usize::from(!live.insert((pool, address)));
                    count += 1;
                }
                What::Free { pool, address, .. } => odd += usize::from(!live.remove(&(pool, address))),
                _ => {}
            }
        }
        // A free during the start may have been recorded before its block was listed.
        assert!(count > 200, "{count}");
        if stopped["dropped_events"] == 0 {
            assert!(odd <= 30, "{odd} of {count}");
            assert!((110..150).contains(&live.len()), "{}", live.len());
        }
    }
    assert!(whole_count > 0);
    program.end();
}

/// The flight recorder's file is written on demand.
#[test]
fn the_flight_record_is_written_on_demand() {
    let folder = Folder::new("flight");
    let path = folder.0.join("flight.trace");
    let with = Program::start(&folder, &[("GPUMEM_FLIGHT_RECORDER", path.to_str().unwrap())]);
    let answer = with.ask("flight");
    assert_eq!(answer["paths"][0], path.to_str().unwrap(), "{answer}");
    let recording = Recording::read(&path).unwrap();
    assert!(recording.events.len() > 100 && recording.reports.is_empty());
    with.end();
    let without = Program::start(&folder, &[]);
    let answer = without.ask("flight");
    assert!(answer["error"].as_str().unwrap().contains("GPUMEM_FLIGHT_RECORDER=on"), "{answer}");
    without.end();
}

/// A page in a browser can post a body through a proxy: none of its lines is a request.
#[test]
fn a_posted_body_is_no_request() {
    let folder = Folder::new("post");
    let program = Program::start(&folder, &[]);
    let mut client = program.connect();
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nlimit server soft 256MiB");
    assert!(client.line().starts_with("HTTP/1.1 405"));
    let status = program.ask("status");
    assert_ne!(pool(&status, "server")["soft_limit_bytes"], 256 << 20, "{status}");
    program.end();
}

/// The queue of a process that is stopped is full: others neither wait for it nor remove its socket.
#[test]
fn a_stopped_process_makes_nobody_wait() {
    let folder = Folder::new("stopped");
    let path = folder.0.join("gpumem-1.sock");
    let stopped = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut waiting = Vec::new();
    // As many as the queue takes.
    loop {
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        if rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).is_err() {
            break;
        }
        waiting.push(socket);
        assert!(waiting.len() < 10_000);
    }
    let program = Program::start(&folder, &[]);
    assert_eq!(program.ask("status")["ok"], true);
    assert!(path.exists());
    program.end();
    drop((stopped, waiting));
}

#[test]
fn limits_are_set() {
    let folder = Folder::new("limits");
    let program = Program::start(&folder, &[]);
    let answer = program.ask("limit server soft 256MiB");
    assert_eq!((&answer["ok"], &answer["limit_bytes"]), (&true.into(), &(256 << 20).into()), "{answer}");
    let id = pool(&program.ask("status"), "server")["id"].to_string();
    let answer =
        program.ask(&format!("{{\"do\":\"limit\",\"pool\":{id},\"kind\":\"hard\",\"limit\":\"1GiB\"}}"));
    assert_eq!(answer["limit_bytes"], 1 << 30, "{answer}");
    let status = program.ask("status");
    let server = pool(&status, "server");
    assert_eq!(
        (&server["soft_limit_bytes"], &server["hard_limit_bytes"]),
        (&(256 << 20).into(), &(1 << 30).into())
    );
    for (request, said) in [
        ("limit nobody soft 1GiB", "there is no pool nobody"),
        ("limit server soft much", "much"),
        ("limit server hard 1KiB", "minimum"),
    ] {
        let answer = program.ask(request);
        assert!(answer["error"].as_str().unwrap().contains(said), "{answer}");
    }
    program.end();
}

/// Another user is refused, and told why.
#[test]
fn another_user_is_refused() {
    let folder = Folder::new("user");
    let program = Program::start(&folder, &[]);
    // Everyone may open the socket itself, so that the process has to refuse.
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&program.socket, PermissionsExt::from_mode(0o666)).unwrap();
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nprint(s.recv(4096).decode())";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(&program.socket);
    std::os::unix::process::CommandExt::uid(&mut command, 65_534);
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("and the client to user 65534; run the client as user"), "{output:?}");
        }
        // Only root can take another user. The check itself has a test in its file.
        Err(error) => println!("skipped: {error}"),
    }
    program.end();
}

#[test]
fn bad_values_are_refused() {
    let folder = Folder::new("values");
    let file = folder.0.join("a.file");
    std::fs::write(&file, "kept").unwrap();
    for (value, said) in [
        ("onn", "expected `off`, `on`, or the path"),
        ("/nowhere/at/all.sock", "cannot be created"),
        (file.to_str().unwrap(), "is not a socket, so it is left unchanged"),
    ] {
        let output = child("serves", value, &[]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(3));
        assert!(text.contains("invalid GPUMEM_STATUS=") && text.contains(said), "{text}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    let named = folder.0.join("own.sock");
    let named = named.to_str().unwrap();
    let mut first = child("serves", named, &[]).spawn().unwrap();
    let start = Instant::now();
    while !Path::new(named).exists() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child("serves", named, &[]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("another process serves") && text.contains("put %p"), "{text}");
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
    let output = child("serves", "off", &[]).output().unwrap();
    assert!(output.status.success());
}

/// The default folder: the runtime folder of the user, made with mode 0700, and not a link.
#[test]
fn the_folder_belongs_to_the_user() {
    let folder = Folder::new("runtime");
    let runtime = [("XDG_RUNTIME_DIR", folder.0.to_str().unwrap())];
    let mut process = child("serves", "on", &runtime).spawn().unwrap();
    let socket = folder.0.join("gpumem").join(format!("gpumem-{}.sock", process.id()));
    let start = Instant::now();
    while !socket.exists() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(std::fs::metadata(folder.0.join("gpumem")).unwrap().mode() & 0o777, 0o700);
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success());
    std::fs::remove_dir(folder.0.join("gpumem")).unwrap();
    std::os::unix::fs::symlink("/tmp", folder.0.join("gpumem")).unwrap();
    let output = child("serves", "on", &runtime).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("is not a folder, or a link"), "{text}");
}

/// Without live pools there is nothing to record, and pools on each backend can be.
#[test]
fn each_backend_is_recorded() {
    for backend in crate::fixture::built_backends() {
        let folder = Folder::new(&format!("backend-{backend}"));
        let mut program = Program::start(&folder, &[("GPUMEM_POOL", &backend.to_string())]);
        let path = folder.0.join("run.trace");
        assert_eq!(program.ask(&format!("record {}", path.display()))["ok"], true);
        let left = program.tell("free half");
        assert_eq!(program.ask("stop")["ok"], true);
        let recording = Recording::read(&path).unwrap();
        assert_eq!(recording.overwritten_count > 0, backend != BackendKind::Caching);
        let in_use = recording.events.iter().filter_map(|event| match event.what {
            What::InUse { in_use_bytes, block_count, .. } => Some(format!("{in_use_bytes} {block_count}")),
            _ => None,
        });
        assert!(in_use.into_iter().any(|one| one == left), "{left}");
        program.end();
    }
}

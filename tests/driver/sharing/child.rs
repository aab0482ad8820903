//! The child processes of a case: the test program, which runs the same case and may start a child of its own.

use gpumem_tests::sys::{Driver, DriverKind};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;
use std::time::Duration;

/// The name of a case: its module and its function.
pub(crate) type Case<'a> = (&'a str, &'a str);

/// A case that runs in a child process. The child is killed when this is dropped.
pub(crate) struct Other {
    process: Child,
    lines: BufReader<ChildStdout>,
    /// The output of the child and of its children.
    text: String,
}

impl Other {
    /// Starts a child with a descriptor as its standard input, and bytes in its environment.
    pub(crate) fn start(driver: &Driver, case: Case<'_>, descriptor: impl Into<Stdio>, bytes: &[u8]) -> Self {
        let mut process =
            command(driver, case, bytes).stdin(descriptor).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines, text: String::new() }
    }

    /// Waits until the child, or a child of the child, prints a word.
    pub(crate) fn wait_for(&mut self, word: &str) {
        while !self.text.contains(word) {
            let length = self.lines.read_line(&mut self.text).unwrap();
            assert!(length > 0, "it ended before {word:?}: {}", self.text);
        }
    }

    /// Kills the process, as the system does.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits until the process and its children have ended. The case must have passed in the last of them.
    pub(crate) fn wait_for_the_end(mut self) {
        while self.lines.read_line(&mut self.text).unwrap() > 0 {}
        assert!(self.text.contains("1 passed"), "the other process: {}", self.text);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a case of a module in a child process that has a descriptor as its standard input and bytes in its environment.
pub(crate) fn run_child(
    driver: &Driver,
    module: &str,
    case: &str,
    descriptor: impl Into<Stdio>,
    bytes: &[u8],
) {
    Other::start(driver, (module, case), descriptor, bytes).wait_for_the_end();
}

/// Starts a process that shares this process's output and outlives it.
pub(crate) fn leave_behind(driver: &Driver, case: Case<'_>, descriptor: impl Into<Stdio>, bytes: &[u8]) {
    drop(command(driver, case, bytes).stdin(descriptor).spawn().unwrap());
}

fn command(driver: &Driver, (module, name): Case<'_>, bytes: &[u8]) -> Command {
    let mounted = if driver.kind() == DriverKind::Cuda { "cuda" } else { "sim" };
    let room = module.split_once("::").unwrap().1;
    let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{room}::{mounted}::{name}"), "--nocapture"]);
    command.env(BYTES, bytes).env(GENERATION, (generation() + 1).to_string());
    command
}

/// Prints a word for the process that started the first child.
#[expect(clippy::print_stdout, reason = "it is what that one reads")]
pub(crate) fn say(word: &str) {
    println!("\n{word}");
    std::io::stdout().flush().unwrap();
}

/// Prints a word and then sleeps.
pub(crate) fn say_and_stay(word: &str) -> ! {
    say(word);
    loop {
        std::thread::park();
    }
}

/// Waits until the parent process has ended.
pub(crate) fn wait_for_orphanhood(parent: u32) {
    while std::os::unix::process::parent_id() == parent {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A duplicate of the descriptor passed by the parent: the descriptor itself is 0, which the driver takes for a null pointer.
pub(crate) fn inherited() -> OwnedFd {
    std::io::stdin().as_fd().try_clone_to_owned().unwrap()
}

/// 0 in the test process, 1 in its child, 2 in the child's child. A child that hangs ends after a time limit.
pub(crate) fn generation() -> u32 {
    static WATCHED: Once = Once::new();
    let generation = std::env::var(GENERATION).map_or(0, |text| text.parse().unwrap());
    if generation > 0 {
        WATCHED.call_once(|| drop(std::thread::spawn(end_late)));
    }
    generation
}

fn end_late() {
    std::thread::sleep(PATIENCE);
    std::process::abort();
}

pub(crate) fn is_child() -> bool {
    generation() > 0
}

/// The bytes that the parent passed.
pub(crate) fn child_bytes() -> [u8; 64] {
    child_part(0)
}

/// The part with this index of the bytes that the parent passed, 64 bytes each.
pub(crate) fn child_part(part: usize) -> [u8; 64] {
    let text = std::env::var(BYTES).unwrap();
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(|index| byte(64 * part + index))
}

const BYTES: &str = "SHARING_CHILD";
const GENERATION: &str = "SHARING_GENERATION";
const PATIENCE: Duration = Duration::from_secs(120);

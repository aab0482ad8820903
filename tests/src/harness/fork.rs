//! Forked children, for tests of what works in them and what does not.

use core::time::Duration;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn exit(status: i32) -> !;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn kill(process: i32, signal: i32) -> i32;
}

/// How a child ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Without destructors and handlers.
    AtOnce,
    /// With the destructors of thread-locals and the handlers of `atexit`, as a program ends that returns from `main`.
    InOrder,
}

/// The way of a child to tell its parent what it does.
pub struct Report(UnixStream);

impl Report {
    /// Names what the child does next, for the error if it hangs.
    pub fn step(&mut self, name: &str) {
        // A parent that is gone reads no report.
        let _ = self.0.write_all(format!("{name}\n").as_bytes());
    }
}

/// Forks, and runs `work` in the child.
///
/// # Errors
///
/// The error of `work`, its panic, another exit status than 0, or the last step of a child that does not end.
///
/// # Panics
///
/// If no process can be forked.
pub fn in_child(end: End, work: impl FnOnce(&mut Report) -> Result<(), String>) -> Result<(), String> {
    let (mut ours, theirs) = UnixStream::pair().unwrap_or_else(|error| panic!("a pair of sockets: {error}"));
    // SAFETY: the child runs `work`, whose locks of other threads are what the tests are about, and ends below.
    let child = unsafe { fork() };
    assert!(child >= 0, "no process could be forked");
    if child == 0 {
        let mut report = Report(theirs);
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut report)));
        let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", text_of(&panic))));
        if let Err(error) = &outcome {
            report.step(&format!("{FAILED}{error}"));
        }
        let status = i32::from(outcome.is_err());
        // SAFETY: both functions end the process.
        unsafe {
            match end {
                End::AtOnce => _exit(status),
                End::InOrder => exit(status),
            }
        }
    }
    drop(theirs);
    let status = status_of(child);
    let mut text = String::new();
    // Other children may have copies of the child's end, so there may be no end of the stream.
    let _ = ours.set_nonblocking(true);
    let _ = ours.read_to_string(&mut text);
    let last = text.lines().last().unwrap_or("the start");
    match (status, text.split_once(FAILED)) {
        (_, Some((_, error))) => Err(error.trim_end().into()),
        (Some(0), None) => Ok(()),
        (Some(status), None) => Err(format!("the child ended with status {status:#x} in or after: {last}")),
        (None, None) => Err(format!("the child hangs in or after: {last}")),
    }
}

const FAILED: &str = "failed: ";

/// The status of a child, or `None` for one that has to be killed.
fn status_of(child: i32) -> Option<i32> {
    const WITHOUT_WAITING: i32 = 1;
    const KILLED: i32 = 9;
    let (start, mut status) = (Instant::now(), 0);
    loop {
        // SAFETY: a local outlives the call.
        if unsafe { waitpid(child, &mut status, WITHOUT_WAITING) } == child {
            return Some(status);
        }
        if start.elapsed() > Duration::from_secs(30) {
            // SAFETY: the process is a child of this one, and was not waited for.
            unsafe {
                kill(child, KILLED);
                waitpid(child, &mut status, 0);
            }
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn text_of(panic: &Box<dyn core::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

//! A case's other process: the same program, which runs that case alone.

use gpumem_tests::sys::{Driver, DriverKind};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

/// Runs a case of a module once more, in a process that has a descriptor as its standard input and bytes in its environment.
pub(crate) fn run_child(
    driver: &Driver,
    module: &str,
    case: &str,
    descriptor: impl Into<Stdio>,
    bytes: &[u8],
) {
    let mounted = if driver.kind() == DriverKind::Cuda { "cuda" } else { "sim" };
    let room = module.split_once("::").unwrap().1;
    let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{room}::{mounted}::{case}"), "--nocapture"])
        .env(CHILD, bytes)
        .stdin(descriptor)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("1 passed"), "the other process: {text}");
}

/// The descriptor that this process was started with. Not as it is: to the driver, 0 is a null pointer.
pub(crate) fn inherited() -> OwnedFd {
    std::io::stdin().as_fd().try_clone_to_owned().unwrap()
}

pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The bytes that this process was started with.
pub(crate) fn child_bytes() -> [u8; 64] {
    let text = std::env::var(CHILD).unwrap();
    std::array::from_fn(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap())
}

const CHILD: &str = "SHARING_CHILD";

//! The environment of a program with more rights than its caller.

#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use gpumem_sys::{Driver, LoadError};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

/// Needs the rights to create a program that runs as another user, and a folder for such a program.
#[test]
fn a_setuid_program_ignores_our_variables() {
    let copy = std::env::temp_dir().join(format!("gpumem-secure-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    const NOBODY: u32 = 65_534;
    let is_owned = chown(&copy, Some(NOBODY), Some(NOBODY)).is_ok();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let mut child = Command::new(&copy);
    child.args(["says_which_driver_it_was_asked_for", "--exact", "--ignored", "--nocapture"]);
    let output = child.env("GPUMEM_DRIVER", "nonsense").output();
    std::fs::remove_file(copy).unwrap();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    match (is_owned, text.contains("it has more rights")) {
        (true, true) => assert!(text.contains("it was asked for none"), "{text}"),
        _ => assert!(text.contains("it was asked for nonsense"), "{text}"),
    }
}

#[test]
#[ignore = "run by the test of this file, as a process of its own"]
fn says_which_driver_it_was_asked_for() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    let mut users = users.split_whitespace();
    if users.next() != users.next() {
        println!("it has more rights than its caller");
    }
    match Driver::from_env() {
        Err(LoadError::UnknownDriver(name)) => println!("it was asked for {name}"),
        _ => println!("it was asked for none"),
    }
}

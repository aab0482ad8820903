//! The end of a process with live blocks: in a static, and in thread-local storage.

use crate::fixture::built_backends;
use gpumem_pool::{Block, Device, Pool, Stream};
use gpumem_sim::SimConfig;
use std::cell::RefCell;
use std::process::Command;
use std::sync::Mutex;

#[test]
fn a_process_ends_cleanly_with_blocks_alive() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["exit::child", "--exact", "--ignored"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by the test of this file, as a process of its own"]
fn child() {
    static KEPT: Mutex<Vec<Block>> = Mutex::new(Vec::new());
    thread_local! {
        static OWN: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
    }
    for backend in built_backends() {
        let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
        let pool = Pool::builder(&device).backend(backend).build().unwrap();
        let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
        for shelf in [false, true] {
            let block = pool.alloc(4096, &home).unwrap();
            block.record_use(&other);
            if shelf {
                KEPT.lock().unwrap().push(block);
            } else {
                OWN.with_borrow_mut(|own| own.push(block));
            }
        }
    }
}

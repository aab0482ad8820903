//! Modules, the functions found in them, and launches up to the queue.

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::device::launch::Kernel;
use crate::device::ptx::{Ptx, Signature};
use crate::device::{BLOCK_MAX, BLOCK_THREADS_MAX, GRID_MAX};
use std::sync::Arc;

/// A module that a context has loaded.
pub(crate) struct Module {
    pub(crate) context: Handle,
    pub(crate) ptx: Ptx,
}

impl Module {
    pub(crate) fn entry_count(&self) -> usize {
        self.ptx.entries.len()
    }
}

/// An entry of a module, with the Rust function that replaces its body.
pub(crate) struct Function {
    pub(crate) module: Handle,
    pub(crate) context: Handle,
    pub(crate) kernel: Kernel,
    pub(crate) signature: Arc<Signature>,
    pub(crate) shared_bytes_max: i32,
    pub(crate) target: u32,
}

/// The shape of a kernel launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

impl Shape {
    pub(crate) fn check(&self, shared_bytes_max: i32) -> Answer<()> {
        let fits = |sizes: [u32; 3], max: [u32; 3]| {
            sizes.into_iter().zip(max).all(|(size, max)| (1..=max).contains(&size))
        };
        let threads: u64 = self.block.into_iter().map(u64::from).product();
        let is_shared_ok = i64::from(self.shared_bytes) <= i64::from(shared_bytes_max);
        if fits(self.grid, GRID_MAX)
            && fits(self.block, BLOCK_MAX)
            && threads <= BLOCK_THREADS_MAX
            && is_shared_ok
        {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }
}

/// The registers per thread that every kernel reports.
pub(crate) const REGISTERS_PER_THREAD: i32 = 32;

//! Modules, the functions found in them, and launches up to the queue.

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::device::launch::Kernel;
use crate::device::{BLOCK_MAX, BLOCK_THREADS_MAX, GRID_MAX};
use gpumem_ptx::Entry;
use std::ffi::CString;
use std::sync::Arc;

/// A module that a context has loaded.
pub(crate) struct Module {
    pub(crate) context: Handle,
    /// The library that it belongs to.
    pub(crate) library: Option<Handle>,
    pub(crate) text: Arc<gpumem_ptx::Module>,
    /// The addresses of its variables.
    pub(crate) variables: Arc<[u64]>,
}

/// An entry of a module.
pub(crate) struct Function {
    pub(crate) module: Handle,
    pub(crate) context: Handle,
    pub(crate) body: Body,
    /// The entry's name, for the program.
    pub(crate) name: CString,
    pub(crate) shared_bytes_max: i32,
}

/// What runs for an entry.
#[derive(Clone)]
pub(crate) struct Body {
    pub(crate) name: Arc<str>,
    /// The Rust function that is registered for the name, which runs in place of the text.
    pub(crate) kernel: Option<Kernel>,
    pub(crate) text: Arc<gpumem_ptx::Module>,
    pub(crate) entry: usize,
    pub(crate) variables: Arc<[u64]>,
}

impl Body {
    pub(crate) fn entry(&self) -> &Entry {
        &self.text.entries()[self.entry]
    }
}

/// The shape of a kernel launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

impl Shape {
    /// Checks the shape against the device and the kernel.
    pub(crate) fn check(&self, entry: &Entry, shared_bytes_max: i32) -> Answer<()> {
        let fits = |sizes: [u32; 3], max: [u32; 3]| {
            sizes.into_iter().zip(max).all(|(size, max)| (1..=max).contains(&size))
        };
        let threads = thread_count(self.block);
        let is_shared_ok = u64::from(self.shared_bytes) + entry.shared_bytes() <= shared_bytes_max as u64;
        let threads_max = entry.block_max().map_or(BLOCK_THREADS_MAX, thread_count);
        if fits(self.grid, GRID_MAX)
            && fits(self.block, BLOCK_MAX)
            && threads <= BLOCK_THREADS_MAX.min(threads_max)
            && entry.block_required().is_none_or(|block| block == self.block)
            && is_shared_ok
        {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }
}

/// The threads of a block, of which a text may state any number.
pub(crate) fn thread_count(block: [u32; 3]) -> u64 {
    block.into_iter().map(u64::from).fold(1, u64::saturating_mul)
}

/// The registers per thread that every kernel reports.
pub(crate) const REGISTERS_PER_THREAD: i32 = 32;

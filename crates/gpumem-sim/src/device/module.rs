//! Modules, the functions found in them, and launches up to the queue.

use crate::base::codes::{
    Answer, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION,
};
use crate::base::handle::Handle;
use crate::device::launch::Kernel;
use crate::device::{BLOCK_MAX, BLOCK_THREADS_MAX, GRID_MAX};
use gpumem_ptx::{Entry, PtxProblem};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// A module that a context has loaded.
pub(crate) struct Module {
    pub(crate) context: Handle,
    pub(crate) text: Arc<gpumem_ptx::Module>,
    /// The addresses of its variables.
    pub(crate) variables: Arc<[u64]>,
}

/// An entry of a module.
pub(crate) struct Function {
    pub(crate) module: Handle,
    pub(crate) context: Handle,
    pub(crate) body: Body,
    pub(crate) shared_bytes_max: i32,
}

/// What runs for an entry.
#[derive(Clone)]
pub(crate) struct Body {
    /// For as long as the process, because findings have it.
    pub(crate) name: &'static str,
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

/// Parses a module's image. Equal texts are parsed once, for as long as they are among the last few.
pub(crate) fn parse(image: &[u8]) -> Answer<Arc<gpumem_ptx::Module>> {
    if image.starts_with(b"\x7fELF") || image.starts_with(&FAT_BINARY_MAGIC) {
        return Err(NO_BINARY_FOR_GPU);
    }
    let text = core::str::from_utf8(image).map_err(|_| INVALID_IMAGE)?;
    let mut parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = parsed.iter().find(|(known, _)| known == text);
    let module = match known {
        Some((_, module)) => Arc::clone(module),
        None => {
            let module = Arc::new(gpumem_ptx::Module::parse(text).map_err(|error| match error.what {
                PtxProblem::Version { .. } => UNSUPPORTED_PTX_VERSION,
                _ => INVALID_PTX,
            })?);
            if parsed.len() == PARSED_MAX {
                parsed.pop_front();
            }
            parsed.push_back((text.to_string(), Arc::clone(&module)));
            module
        }
    };
    if module.target() > COMPUTE_CAPABILITY { Err(NO_BINARY_FOR_GPU) } else { Ok(module) }
}

/// The name as one that lives as long as the process. Each name is kept once.
pub(crate) fn kept_name(name: &str) -> &'static str {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(known) => known,
        None => {
            let kept: &'static str = Box::leak(name.into());
            names.insert(kept);
            kept
        }
    }
}

static PARSED: Mutex<VecDeque<(String, Arc<gpumem_ptx::Module>)>> = Mutex::new(VecDeque::new());
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
const PARSED_MAX: usize = 64;

/// The compute capability of the device, as `major * 10 + minor`.
pub(crate) const COMPUTE_CAPABILITY: u32 = 90;
const FAT_BINARY_MAGIC: [u8; 4] = [0x50, 0xED, 0x55, 0xBA];

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
        let threads: u64 = self.block.into_iter().map(u64::from).product();
        let is_shared_ok = u64::from(self.shared_bytes) + entry.shared_bytes() <= shared_bytes_max as u64;
        let threads_max =
            entry.block_max().map_or(BLOCK_THREADS_MAX, |max| max.into_iter().map(u64::from).product());
        if fits(self.grid, GRID_MAX)
            && fits(self.block, BLOCK_MAX)
            && threads <= BLOCK_THREADS_MAX.min(threads_max)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_module_for_this_device_is_refused() {
        let code = |text: &str| parse(text.as_bytes()).unwrap_err();
        assert_eq!(code("hello"), INVALID_PTX);
        assert_eq!(code(".version 8.0\n.target sm_70\n.entry x(.param .what y) {}"), INVALID_PTX);
        for cut in ["x(.param .u64 y)", "x(.param .u64 y", "x() { ret;", "x", ""] {
            assert_eq!(code(&format!(".version 8.0\n.target sm_70\n.entry {cut}")), INVALID_PTX, "{cut}");
        }
        let declared = parse(b".version 8.0\n.target sm_70\n.entry x(.param .u64 y);").unwrap();
        assert!(declared.entries().is_empty());
        assert_eq!(code(".version 9.9\n.target sm_70"), UNSUPPORTED_PTX_VERSION);
        assert_eq!(code(".version 8.8\n.target sm_120a"), NO_BINARY_FOR_GPU);
        assert_eq!(code("\x7fELF"), NO_BINARY_FOR_GPU);
        assert_eq!(parse(&[0xFF, 0xFE]).unwrap_err(), INVALID_IMAGE);
    }
}

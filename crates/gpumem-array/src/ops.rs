//! What can be done with arrays on the device. Everything here is queued and returns at once.

pub(crate) mod arithmetic;
pub(crate) mod fill;
pub(crate) mod operators;
pub(crate) mod product;
pub(crate) mod reduce;

/// Blocks of `threads` threads for `len` pieces of work, at least one. Kernels stride by the grid, so fewer blocks than
/// would fit are correct.
pub(crate) fn blocks(len: usize, threads: usize) -> u32 {
    const BLOCKS_MAX: usize = 1 << 20;
    len.div_ceil(threads).clamp(1, BLOCKS_MAX) as u32
}

//! Operations on arrays on the device. They are queued and return immediately.

pub(crate) mod arithmetic;
mod cast;
mod create;
pub(crate) mod fill;
mod map;
mod operand;
pub(crate) mod operators;
pub(crate) mod product;
mod random;
pub(crate) mod reduce;
mod resize;
mod select;
mod triangle;

pub use operand::Operand;
pub use random::{Random, RandomNormal, Rng};
pub use triangle::Triangle;

/// The number of blocks of `threads` threads for `len` items of work, at least one. Kernels stride by the grid, so fewer blocks
/// are correct too.
pub(crate) fn blocks(len: usize, threads: usize) -> u32 {
    const BLOCKS_MAX: usize = 1 << 20;
    len.div_ceil(threads).clamp(1, BLOCKS_MAX) as u32
}

//! Operations on arrays on the device. They are queued and return immediately.

pub(crate) mod arithmetic;
mod cast;
mod create;
#[allow(unsafe_code)] // fills by the driver
pub(crate) mod fill;
mod operand;
pub(crate) mod operators;
pub(crate) mod product;
mod random;
pub(crate) mod reduce;
mod resize;
mod select;

pub use operand::Operand;
pub use random::{Random, RandomNormal, Rng};

use crate::array::{GpuCow, GpuView};
use crate::element::Element;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::layout::ElementOrder;
use ndarray::Dimension;

/// The elements of a view for a kernel on the stream of `gpu`, contiguous in an order: the view itself, or a copy. Errors name `operation`.
pub(crate) fn operand<'a, T: Element, D: Dimension>(
    view: &GpuView<'a, T, D>,
    gpu: &'a Gpu,
    order: ElementOrder,
    operation: &'static str,
) -> Result<GpuCow<'a, T, D>, ArrayError> {
    view.storage().share(gpu, operation)?;
    view.on(gpu).dense(order)
}

/// The number of blocks of `threads` threads for `len` items of work, at least one. Kernels stride by the grid, so fewer blocks
/// are correct too.
pub(crate) fn blocks(len: usize, threads: usize) -> u32 {
    const BLOCKS_MAX: usize = 1 << 20;
    len.div_ceil(threads).clamp(1, BLOCKS_MAX) as u32
}

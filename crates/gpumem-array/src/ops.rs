//! Operations on arrays on the device. They are queued and return immediately.

pub(crate) mod arithmetic;
mod cast;
mod create;
#[allow(unsafe_code)] // fills by the driver
pub(crate) mod fill;
mod indices;
pub(crate) mod operators;
pub(crate) mod product;
mod random;
mod resize;
mod scan;

pub use indices::Indices;
pub use product::DotWith;
#[cfg(feature = "cudarc")]
pub use product::blas::{Cublas, CublasElement};
pub use product::sparse::product as compressed_rows_product;
pub use random::{Random, RandomNormal, Rng};

use crate::array::{GpuCow, GpuView};
use crate::element::Element;
use crate::error::ArrayError;
use crate::expression::Factor;
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

impl Gpu {
    /// Loads the kernels for products of matrices and vectors of one element type, and those that copy views of any type. Without this call,
    /// each kernel is loaded at its first use. So are the kernels of random numbers, elements by indices, sums up to each element and packed
    /// uploads, and those of expressions and fills; [`Gpu::preload_for`] loads those of operations of your choice.
    ///
    /// The vendor's driver compiles them for its device the first time on a machine, in about a quarter of a second, and
    /// caches the result for later runs.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the driver cannot load them.
    pub fn preload<T: Factor>(&self) -> Result<(), ArrayError> {
        self.library().preload(T::PRODUCTS)
    }
}

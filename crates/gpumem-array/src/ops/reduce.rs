//! Sums of one array and dot products of two. The order of the additions depends only on the length.
//!
//! The result stays on the device, as an array without axes.

use crate::array::{GpuArray, GpuView, Vector, readers};
use crate::element::Numeric;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::kernel::table::Kernel;
use crate::launch::OwnLaunch;
use crate::layout::{ElementOrder, Layout, same_shape};
use crate::ops::operand;
use ndarray::{Dimension, Ix0, Ix1};

readers! {
    Numeric;

    /// Sums all elements, on the device. An empty sum is zero; integers wrap. Non-contiguous elements are copied first.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{array, s};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.slice(s![.., 1..])?.sum()?.into_scalar()?, 16);
    /// let mean = x.sum()? / 6; // stays on the device
    /// assert_eq!(mean.into_scalar()?, 3);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn sum(view) -> Result<GpuArray<T, Ix0>, ArrayError> {
        if view.layout().order().is_none() {
            return view.to_order(ElementOrder::Row)?.view().sum();
        }
        let gpu = view.gpu();
        view.storage().share(gpu, "sum")?;
        if view.is_empty() {
            return GpuArray::zeros(gpu, ());
        }
        reduce(gpu, &[view], "sum")
    }
}

readers! {
    Numeric, Ix1;

    /// Computes the dot product of two vectors, on the device.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// let y = GpuArray::from_slice(&gpu, &[4, 5, 6])?;
    /// assert_eq!(x.dot(&y)?.into_scalar()?, 32);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the lengths differ.
    /// - [`ArrayError::NoPeerAccess`] if `other` is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if `other` belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn dot[B: Vector<Elem = T>](view, other: &B) -> Result<GpuArray<T, Ix0>, ArrayError> {
        let other = other.as_view();
        same_shape("dot", view.layout(), other.layout())?;
        let gpu = view.gpu();
        let (left, right) =
            (operand(view, gpu, ElementOrder::Row, "dot")?, operand(&other, gpu, ElementOrder::Row, "dot")?);
        if view.is_empty() {
            return GpuArray::zeros(gpu, ());
        }
        reduce(gpu, &[&left.view(), &right.view()], "dot")
    }
}

/// Sums the elements of one view, or the products of two, which are contiguous and have as many elements. Uses one launch if one block is
/// fast enough; otherwise one launch that computes a sum per block, and another that adds the sums.
pub(crate) fn reduce<T: Numeric, D: Dimension>(
    gpu: &Gpu,
    factors: &[&GpuView<'_, T, D>],
    operation: &'static str,
) -> Result<GpuArray<T, Ix0>, ArrayError> {
    let len = factors.first().map_or(0, |factor| factor.len());
    let result = GpuArray::unwritten(gpu, Layout::dense(Ix0(), ElementOrder::Row, size_of::<T>())?)?;
    if len <= ONE_BLOCK_MAX {
        sum_blocks(gpu, &result, factors, 1)?.queue(operation)?;
        return Ok(result);
    }
    let blocks = len.div_ceil(ELEMENTS_A_BLOCK).min(BLOCKS_MAX);
    let partial =
        GpuArray::<T, Ix1>::unwritten(gpu, Layout::dense(Ix1(blocks), ElementOrder::Row, size_of::<T>())?)?;
    let sum_parts = sum_blocks(gpu, &partial, factors, blocks as u32)?;
    sum_parts.queue_before(sum_blocks(gpu, &result, &[&partial.view()], 1)?, operation)?;
    Ok(result)
}

/// Each block writes one element of `target`.
fn sum_blocks<'a, T: Numeric, D: Dimension, E: Dimension>(
    gpu: &'a Gpu,
    target: &'a GpuArray<T, E>,
    factors: &[&GpuView<'a, T, D>],
    blocks: u32,
) -> Result<OwnLaunch<'a>, ArrayError> {
    let kernel = if factors.len() == 1 { Kernel::Sum(T::TYPE) } else { Kernel::Dot(T::TYPE) };
    let launch = OwnLaunch::new(gpu, kernel, [blocks, 1, 1], [THREADS, 1, 1])?.write(target);
    let launch = factors.iter().fold(launch, |launch, factor| launch.read(factor));
    let len = factors.first().map_or(0, |factor| factor.len());
    Ok(launch.value(len as u64))
}

/// The block size that the kernels are compiled for.
const THREADS: u32 = 256;
/// Up to this length a second launch costs more than it saves.
const ONE_BLOCK_MAX: usize = 32 << 10;
const ELEMENTS_A_BLOCK: usize = 8 << 10;
/// Enough to keep every memory channel of a large GPU busy; their sums still take one block to add.
const BLOCKS_MAX: usize = 1024;

//! Sums of one array and dot products of two. The order of the additions depends only on the length.
//!
//! The result stays on the device, as an array without axes.

use crate::array::{GpuArray, GpuView, GpuViewMut, Vector, readers};
use crate::element::Numeric;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::kernel::Function;
use crate::kernel::library::{Kernel, launch, parameter};
use crate::kind::Kind;
use crate::layout::{Layout, Order, same_shape};
use crate::storage::{Use, queue};
use gpumem_pool::sys::DriverError;
use gpumem_pool::sys::types::CUstream;
use ndarray::{Dimension, Ix0, Ix1};

impl<T: Numeric, D: Dimension> GpuView<'_, T, D> {
    /// Sums all elements, on the device. An empty sum is zero; integers wrap. Non-contiguous elements are copied first.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{array, s};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.slice(s![.., 1..])?.sum()?.into_scalar()?, 16);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn sum(&self) -> Result<GpuArray<T, Ix0>, ArrayError> {
        if self.layout().order().is_none() {
            return self.to_order(Order::Row)?.view().sum();
        }
        let gpu = self.gpu();
        self.storage().share(gpu, "sum")?;
        if self.is_empty() {
            return GpuArray::zeros(gpu, ());
        }
        self.reads().order(gpu, "sum")?;
        // SAFETY: the elements are contiguous in live memory of this device, which is named, and the stream has been ordered.
        unsafe { reduce(gpu, &[self.reads()], Terms::Elements(self.address()), self.len()) }
    }
}

readers! {
    Numeric;

    /// Sums all elements, on the device; see [`GpuView::sum`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0])?;
    /// let mean = x.sum()? / 3.0; // stays on the device
    /// assert_eq!(mean.into_scalar()?, 2.0);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the allocation or a driver call fails; [`ArrayError::NoSuchKernel`] on the simulator
    /// without the feature `sim`.
    pub fn sum(&self) -> Result<GpuArray<T, Ix0>, ArrayError> {
        self.view().sum()
    }
}

impl<T: Numeric> GpuView<'_, T, Ix1> {
    /// Computes the dot product of two vectors, on the device.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the lengths differ.
    /// - [`ArrayError::NoPeerAccess`] if `other` is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if `other` belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn dot<B: Vector<Elem = T>>(&self, other: &B) -> Result<GpuArray<T, Ix0>, ArrayError> {
        let other = other.as_view();
        same_shape("dot", self.layout(), other.layout())?;
        let gpu = self.gpu();
        self.storage().share(gpu, "dot")?;
        other.storage().share(gpu, "dot")?;
        let (left, right) = (self.dense(Order::Row)?, other.on(gpu).dense(Order::Row)?);
        let (left, right) = (left.view(), right.view());
        if self.is_empty() {
            return GpuArray::zeros(gpu, ());
        }
        left.reads().order(gpu, "dot")?;
        right.reads().order(gpu, "dot")?;
        let (uses, terms) = ([left.reads(), right.reads()], Terms::Products(left.address(), right.address()));
        // SAFETY: both vectors are contiguous in live memory of this device, which is named, and the stream has been ordered.
        unsafe { reduce(gpu, &uses, terms, self.len()) }
    }
}

readers! {
    Numeric, Ix1;

    /// Computes the dot product of two vectors, on the device; see [`GpuView::dot`].
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
    /// [`ArrayError::Shape`], [`ArrayError::NoPeerAccess`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`], [`ArrayError::NoSuchKernel`]; see [`GpuView::dot`].
    pub fn dot<B: Vector<Elem = T>>(&self, other: &B) -> Result<GpuArray<T, Ix0>, ArrayError> {
        self.view().dot(other)
    }
}

/// The terms of a sum: addresses of as many elements each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Terms {
    Elements(u64),
    Products(u64, u64),
}

/// Uses one launch if one block is fast enough; otherwise one launch that computes a sum per block, and another that adds the sums.
///
/// # Safety
///
/// `terms` are addresses of `len` elements each in the memory of `uses`, alive on this device; the stream of `gpu` has been
/// ordered to read them.
pub(crate) unsafe fn reduce<T: Numeric>(
    gpu: &Gpu,
    uses: &[Use<'_>],
    terms: Terms,
    len: usize,
) -> Result<GpuArray<T, Ix0>, ArrayError> {
    let sum = gpu.library().kernel(Kernel::Sum, T::KIND)?;
    let first = match terms {
        Terms::Elements(_) => sum,
        Terms::Products(..) => gpu.library().kernel(Kernel::Dot, T::KIND)?,
    };
    let result = GpuArray::unwritten(gpu, Layout::dense(Ix0(), Order::Row, size_of::<T>())?)?;
    let uses = uses.iter().copied();
    if len <= ONE_BLOCK_MAX {
        let uses = uses.chain([result.writes()]);
        // SAFETY: the caller's promise; the result has room for the one sum.
        queue(gpu, uses, |stream| unsafe { reduce_once(first, stream, result.address(), terms, len, 1) })?;
        return Ok(result);
    }
    let blocks = len.div_ceil(ELEMENTS_A_BLOCK).min(BLOCKS_MAX);
    let partial =
        GpuArray::<T, Ix1>::unwritten(gpu, Layout::dense(Ix1(blocks), Order::Row, size_of::<T>())?)?;
    let (sums, last) = (partial.address(), result.address());
    queue(gpu, uses.chain([partial.writes(), result.writes()]), |stream| {
        // SAFETY: the caller's promise; `partial` has room for a sum of each block, and is read on the stream that wrote it.
        unsafe {
            reduce_once(first, stream, sums, terms, len, blocks as u32)?;
            reduce_once(sum, stream, last, Terms::Elements(sums), blocks, 1)
        }
    })?;
    Ok(result)
}

/// # Safety
///
/// The caller keeps [`reduce`]'s promises. `function` is `sum` for [`Terms`] of one array and `dot` for those of two, `stream` is
/// alive and its context current, and `target` has room for `blocks` elements, which nothing else writes.
unsafe fn reduce_once(
    function: &Function,
    stream: CUstream,
    target: u64,
    terms: Terms,
    len: usize,
    blocks: u32,
) -> Result<(), DriverError> {
    let (n, shape) = (len as u64, ([blocks, 1, 1], [THREADS, 1, 1], 0));
    // SAFETY: target, inputs and count are the parameters of `sum` and `dot`; the rest is the caller's promise.
    unsafe {
        match terms {
            Terms::Elements(a) => {
                launch(function, stream, shape, &mut [parameter(&target), parameter(&a), parameter(&n)])
            }
            Terms::Products(a, b) => {
                let mut parameters = [parameter(&target), parameter(&a), parameter(&b), parameter(&n)];
                launch(function, stream, shape, &mut parameters)
            }
        }
    }
}

/// The block size that the kernels are compiled for.
const THREADS: u32 = 256;
/// Up to this length a second launch costs more than it saves.
const ONE_BLOCK_MAX: usize = 32 << 10;
const ELEMENTS_A_BLOCK: usize = 8 << 10;
/// Enough to keep every memory channel of a large GPU busy; their sums still take one block to add.
const BLOCKS_MAX: usize = 1024;

//! [`Launch`]: the arguments of one launch of a user's kernel, checked and tracked like the operations of this crate.

use crate::array::{AsView, AsViewMut, UninitArray};
use crate::element::{Element, check_layout};
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::kernel::{Function, library};
use crate::kind::Kind;
use crate::storage::{Access, Storage, queue};
use core::ffi::c_void;
use ndarray::Dimension;

/// The threads of a launch: a grid of blocks of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// The number of blocks in each dimension.
    pub grid: [u32; 3],
    /// The number of threads of a block in each dimension.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in addition to what the kernel declares.
    pub shared_bytes: u32,
}

impl LaunchShape {
    /// At least one thread for each of `len` elements, in blocks of 256. For `len` 0 the grid is empty and nothing is launched.
    ///
    /// The grid has at most 2³¹ − 1 blocks, so a kernel for longer arrays must stride by the grid.
    #[must_use]
    pub fn for_len(len: usize) -> Self {
        let blocks = len.div_ceil(Self::THREADS as usize).min(GRID_MAX[0] as usize);
        Self { grid: [blocks as u32, 1, 1], block: [Self::THREADS, 1, 1], shared_bytes: 0 }
    }

    const THREADS: u32 = 256;

    fn check(&self) -> Result<(), ArrayError> {
        let reason = if self.block.contains(&0) {
            "a block needs at least one thread in each dimension"
        } else if self.block.iter().zip(BLOCK_MAX).any(|(count, max)| *count > max) {
            "a block has at most 1024, 1024 and 64 threads in the three dimensions"
        } else if self.block.iter().product::<u32>() > BLOCK_MAX[0] {
            "a block has at most 1024 threads"
        } else if self.grid.iter().zip(GRID_MAX).any(|(count, max)| *count > max) {
            "a grid has at most 2147483647, 65535 and 65535 blocks in the three dimensions"
        } else {
            return Ok(());
        };
        Err(ArrayError::LaunchShape { grid: self.grid, block: self.block, reason })
    }
}

/// The builder of a launch. Add arguments in the order of the kernel's parameters, then call [`Launch::enqueue`].
///
/// ```
/// use gpumem_array::{Gpu, GpuArray, LaunchShape, pool::{Device, Pool}};
/// use gpumem_sim::{Kernel, Sim, SimConfig};
///
/// // The kernel for a GPU (here without its instructions) and its twin for the simulator.
/// const PTX: &str = "
///     .version 7.8
///     .target sm_70
///     .address_size 64
///     .visible .entry scale(.param .u64 y, .param .u64 x, .param .f32 factor, .param .u64 n) { ret; }";
/// static TWIN: [Kernel; 1] = [Kernel::new("scale", |launch| {
///     let (y, x) = (launch.arg::<u64>()?, launch.arg::<u64>()?);
///     let (factor, n) = (launch.arg::<f32>()?, launch.arg::<u64>()? as usize);
///     let (y, x) = (launch.write::<f32>(y, n)?, launch.read::<f32>(x, n)?);
///     y.iter().zip(x).for_each(|(y, x)| y.set(factor * x.get()));
///     Ok(())
/// })];
///
/// let driver = gpumem_sim::driver(SimConfig::new())?;
/// if let Some(sim) = Sim::of(&driver) {
///     sim.register(&TWIN);
/// }
/// let gpu = Gpu::new(&Pool::new(&Device::new(&driver, 0)?)?)?;
/// let scale = gpu.module(PTX)?.function("scale")?;
///
/// let x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?;
/// let mut y = GpuArray::<f32, _>::zeros(&gpu, x.len())?;
/// let launch = scale.launch(LaunchShape::for_len(x.len()));
/// let launch = launch.write(&mut y).read(&x).scalar(10.0_f32).scalar(x.len() as u64);
/// // SAFETY: the arguments are those of the kernel, and it stays within `n` elements of both arrays.
/// unsafe { launch.enqueue(&gpu)? };
/// assert_eq!(y.to_vec()?, [10.0, 20.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing runs until `enqueue`"]
pub struct Launch<'a> {
    function: &'a Function,
    shape: LaunchShape,
    /// The bytes of the arguments, each aligned to 8.
    words: [u64; WORDS_MAX],
    words_used: usize,
    /// The index of the first word of each argument.
    starts: [u8; ARGUMENTS_MAX],
    count: usize,
    overflow: bool,
    uses: Vec<(&'a Storage, Access)>,
}

impl Function {
    /// Starts to build a launch of this kernel. Add its arguments in the order of its parameters.
    pub fn launch(&self, shape: LaunchShape) -> Launch<'_> {
        Launch::new(self, shape)
    }
}

impl<'a> Launch<'a> {
    fn new(function: &'a Function, shape: LaunchShape) -> Self {
        Self {
            function,
            shape,
            words: [0; WORDS_MAX],
            words_used: 0,
            starts: [0; ARGUMENTS_MAX],
            count: 0,
            overflow: false,
            uses: Vec::with_capacity(4),
        }
    }

    /// Adds the address of an array that the kernel reads. For a view it is the address of the first element.
    pub fn read<A: AsView + ?Sized>(mut self, array: &'a A) -> Self {
        let view = array.as_view();
        self.uses.push((view.storage(), Access::Read));
        self.scalar(view.address())
    }

    /// Adds the address of an array that the kernel writes, and may read.
    pub fn write<A: AsViewMut + ?Sized>(mut self, array: &'a mut A) -> Self {
        let view = array.as_view_mut();
        self.uses.push((view.storage(), Access::Write));
        self.scalar(view.address())
    }

    /// Adds the address of an uninitialised array that the kernel writes.
    pub fn write_uninit<T: Element, D: Dimension, K: Kind>(
        mut self,
        array: &'a mut UninitArray<T, D, K>,
    ) -> Self {
        self.uses.push((array.storage(), Access::Write));
        self.scalar(array.address())
    }

    /// Adds a value, copied now. A struct can be passed if it is an [`Element`].
    pub fn scalar<T: Element>(mut self, value: T) -> Self {
        const { check_layout::<T>() };
        let words = size_of::<T>().div_ceil(8);
        if self.count == ARGUMENTS_MAX || self.words_used + words > WORDS_MAX {
            self.overflow = true;
            return self;
        }
        let target = bytemuck::cast_slice_mut::<u64, u8>(&mut self.words[self.words_used..]);
        target[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        self.starts[self.count] = self.words_used as u8;
        self.count += 1;
        self.words_used += words;
        self
    }

    /// Queues the kernel on the stream of `gpu` and returns at once. The stream first waits, on the device, for conflicting uses of
    /// the arrays on other streams. A grid with a zero dimension queues nothing.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the kernel or an array is on another device than `gpu`.
    /// - [`ArrayError::LaunchShape`] if the grid or block exceeds the limits of every device.
    /// - [`ArrayError::TooManyArguments`] if the arguments exceed 32, or 512 bytes.
    /// - [`ArrayError::Pool`] if the stream is retired or belongs to another thread, or if a driver call fails.
    ///
    /// # Safety
    ///
    /// - The arguments are those of the kernel, in number, order and type.
    /// - The kernel accesses only the memory of its arguments, within their bounds, and writes only what was passed by
    ///   [`Launch::write`] or [`Launch::write_uninit`].
    /// - The values that it writes are valid values of the array's element type.
    pub unsafe fn enqueue(self, gpu: &Gpu) -> Result<(), ArrayError> {
        if self.overflow {
            return Err(ArrayError::TooManyArguments { limit: ARGUMENTS_MAX, limit_bytes: 8 * WORDS_MAX });
        }
        self.shape.check()?;
        gpu.check(self.function.device())?;
        for (storage, _) in &self.uses {
            gpu.check(storage.device())?;
        }
        // Ordering an array checks the stream, but a launch may have no array.
        gpu.stream().is_capturing()?;
        if self.shape.grid.contains(&0) {
            return Ok(());
        }
        for (storage, access) in &self.uses {
            storage.order(gpu, *access)?;
        }
        let mut parameters = [core::ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        for (parameter, start) in parameters.iter_mut().zip(&self.starts[..self.count]) {
            *parameter = library::parameter(&self.words[usize::from(*start)]);
        }
        let LaunchShape { grid, block, shared_bytes } = self.shape;
        let shape = (grid, block, shared_bytes);
        queue(gpu, self.uses.iter().map(|(storage, _)| *storage), |stream| {
            // SAFETY: the parameters point into `self.words`, which outlives the call; the stream is that of `gpu`, on whose
            // device the function is, and has been ordered after what conflicts; types, bounds and values are the caller's
            // promise.
            unsafe { library::launch(self.function, stream, shape, &mut parameters[..self.count]) }
        })
    }
}

const ARGUMENTS_MAX: usize = 32;
const WORDS_MAX: usize = 64;
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

impl core::fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Launch")
            .field("function", &self.function.name())
            .field("shape", &self.shape)
            .field("arguments", &self.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_shapes_are_refused_before_the_driver_sees_them() {
        let fine = LaunchShape { grid: [1, 1, 1], block: [32, 32, 1], shared_bytes: 0 };
        assert!(fine.check().is_ok());
        for block in [[0, 1, 1], [1025, 1, 1], [32, 33, 1], [1, 1, 65], [u32::MAX, u32::MAX, u32::MAX]] {
            assert!(LaunchShape { block, ..fine }.check().is_err(), "{block:?}");
        }
        for grid in [[u32::MAX, 1, 1], [1, 65_536, 1], [1, 1, 65_536]] {
            assert!(LaunchShape { grid, ..fine }.check().is_err(), "{grid:?}");
        }
    }

    #[test]
    fn a_launch_for_a_length_has_a_thread_for_each_element() {
        assert_eq!(LaunchShape::for_len(0).grid, [0, 1, 1]);
        assert_eq!(LaunchShape::for_len(1).grid, [1, 1, 1]);
        assert_eq!(LaunchShape::for_len(257).grid, [2, 1, 1]);
        assert!(LaunchShape::for_len(usize::MAX).check().is_ok());
    }
}

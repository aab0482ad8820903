//! [`Launch`]: the arguments of one launch of a user's kernel, checked and tracked like the operations of this crate.

use crate::array::{AsView, AsViewMut, GpuArray, GpuView, UninitArray};
use crate::element::kind::Kind;
use crate::element::{Element, check_layout};
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::kernel::library::DeclaredBytes;
use crate::kernel::table::Kernel;
use crate::kernel::{ARGUMENTS_MAX, Function, Parameter, library};
use crate::layout::{ElementOrder, Layout};
use crate::storage::{Access, ArrayStorage, Placed, Use, order_all, prefetch, queue_inlined};
use core::cell::Cell;
use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Range;
use gpumem_pool::PoolError;
use gpumem_pool::sys::text::{Shown, debug_fields};
use gpumem_pool::sys::types::CUstream;
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
    ///
    /// ```
    /// # use gpumem_array::LaunchShape;
    /// let shape = LaunchShape::for_len(1000);
    /// assert_eq!((shape.grid, shape.block), ([4, 1, 1], [256, 1, 1]));
    /// ```
    #[inline]
    #[must_use]
    pub fn for_len(len: usize) -> Self {
        let blocks = len.div_ceil(Self::THREADS as usize).min(GRID_MAX[0] as usize);
        Self { grid: [blocks as u32, 1, 1], block: [Self::THREADS, 1, 1], shared_bytes: 0 }
    }

    const THREADS: u32 = 256;

    #[inline]
    fn check(&self) -> Result<(), ArrayError> {
        let (Self { grid, block: [x, y, z], .. }, most) = (self, BLOCK_MAX);
        // A length of zero wraps.
        let fits = |len: &u32, most: u32| len.wrapping_sub(1) < most;
        let has_block = fits(x, most[0]) && fits(y, most[1]) && fits(z, most[2]) && x * y * z <= most[0];
        let has_grid = grid[0] <= GRID_MAX[0] && grid[1] <= GRID_MAX[1] && grid[2] <= GRID_MAX[2];
        if has_block && has_grid { Ok(()) } else { Err(self.refusal()) }
    }

    #[cold]
    fn refusal(&self) -> ArrayError {
        let reason = if self.block.contains(&0) {
            "a block needs at least one thread in each dimension"
        } else if self.block.iter().zip(BLOCK_MAX).any(|(count, max)| *count > max) {
            "a block has at most 1024, 1024 and 64 threads in the three dimensions"
        } else if self.block.iter().product::<u32>() > BLOCK_MAX[0] {
            "a block has at most 1024 threads"
        } else {
            "a grid has at most 2147483647, 65535 and 65535 blocks in the three dimensions"
        };
        ArrayError::LaunchShape { grid: self.grid, block: self.block, reason }
    }
}

/// The builder of a launch. Add arguments in the order of the kernel's parameters, then call [`Launch::enqueue`].
/// [`kernels!`](crate::kernels) has an example.
///
/// With the feature `sim`, the simulator compares each access of the kernel with the arrays of the launch: from the first byte of a view to
/// its last. An access outside of them, and a write to an array that was passed by [`Launch::read`], ends the kernel and is a finding with
/// the line of the PTX, the block, the thread and the parameter.
#[must_use = "nothing runs until `enqueue`"]
pub struct Launch<'a> {
    function: &'a Function,
    arguments: Arguments<'a>,
}

// The methods are inlined into their caller, where the counts of the arguments are constants and adding an argument takes a few stores.
impl Function {
    /// Starts to build a launch of this kernel. Add its arguments in the order of its parameters.
    #[inline(always)]
    pub fn launch(&self, shape: LaunchShape) -> Launch<'_> {
        Launch { function: self, arguments: Arguments::new(shape) }
    }
}

impl<'a> Launch<'a> {
    /// Adds the address of an array that the kernel reads, with its elements side by side in row-major order. For other views, the launch
    /// fails: copy them ([`GpuView::as_standard_layout`]), or use [`Launch::read_strided`].
    #[inline(always)]
    pub fn read<A: AsView + ?Sized>(self, array: &'a A) -> Self {
        let view = array.as_view();
        let is_standard = view.layout().is_row_major();
        let launch = self.with_view(view.reads(), view.planned());
        if is_standard { launch } else { launch.without_order(view.layout()) }
    }

    /// Adds the address of the first element of a view of any layout. The kernel takes the strides as other arguments.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, LaunchShape, kernels, ndarray::s};
    ///
    /// kernels! {
    ///     static COLUMN = cuda r#"
    ///         extern "C" __global__ void column(float *out, const float *x, long long stride) {
    ///             out[threadIdx.x] = x[threadIdx.x * stride];
    ///         }"#;
    /// }
    ///
    /// # if std::env::var_os("NVRTC_REQUIRED").is_none() && gpu.compile(&COLUMN).is_err() { return Ok(()) }
    /// let column = gpu.compile(&COLUMN)?.function("column")?;
    /// let x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0, 4.0])?.into_shape((2, 2))?;
    /// let mut out = GpuArray::<f32, _>::zeros(&gpu, 2)?;
    /// let view = x.slice(s![.., 1])?;
    /// let shape = LaunchShape { grid: [1; 3], block: [2, 1, 1], shared_bytes: 0 };
    /// let launch = column.launch(shape).write(&mut out).read_strided(&view).scalar(2_i64);
    /// // SAFETY: the kernel has these parameters, and accesses two elements, the second one a stride behind the first.
    /// unsafe { launch.enqueue(&gpu)? };
    /// assert_eq!(out.to_vec()?, [2.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn read_strided<A: AsView + ?Sized>(self, array: &'a A) -> Self {
        let view = array.as_view();
        self.with_view(view.reads(), view.planned())
    }

    /// Adds the address of an array that the kernel writes, and may read, like [`Launch::read`].
    #[inline(always)]
    pub fn write<A: AsViewMut + ?Sized>(self, array: &'a mut A) -> Self {
        let view = array.as_view_mut();
        let is_standard = view.layout().is_row_major();
        let launch = self.with_view(view.writes(), view.planned());
        if is_standard { launch } else { launch.without_order(view.layout()) }
    }

    /// Adds the address of the first element of a view that the kernel writes, and may read, like [`Launch::read_strided`].
    #[inline(always)]
    pub fn write_strided<A: AsViewMut + ?Sized>(self, array: &'a mut A) -> Self {
        let view = array.as_view_mut();
        self.with_view(view.writes(), view.planned())
    }

    #[inline(always)]
    fn with_view(self, one: Use<'a>, address: u64) -> Self {
        let (function, arguments) = (self.function, self.arguments.into_parts());
        Self { function, arguments: arguments.with_array(function, one, address) }
    }

    /// Marks the launch as one of a view that a kernel would read in another order.
    #[cold]
    fn without_order<D: Dimension>(mut self, layout: &Layout<D>) -> Self {
        if let Some(buffer) = &mut self.arguments.buffer {
            self.arguments.counts.is_strided = true;
            buffer.strided = (layout.shape().to_vec(), layout.strides().collect());
        }
        self
    }

    /// Adds the address of an uninitialised array that the kernel writes.
    #[inline(always)]
    pub fn write_uninit<T: Element, D: Dimension, K: Kind>(
        self,
        array: &'a mut UninitArray<T, D, K>,
    ) -> Self {
        let (function, arguments) = (self.function, self.arguments.into_parts());
        Self { function, arguments: arguments.with_array(function, array.writes(), array.planned()) }
    }

    /// Adds a value, copied now. A struct can be passed if it is an [`Element`].
    #[inline(always)]
    pub fn scalar<T: Element>(self, value: T) -> Self {
        const { check_layout::<T>() };
        let arguments = self.arguments.into_parts().with_value(bytemuck::bytes_of(&value));
        Self { function: self.function, arguments }
    }

    /// Queues the kernel on the stream of `gpu` and returns immediately. The stream first waits, on the device, for conflicting uses of the
    /// arrays on other streams. A grid with a zero dimension queues nothing.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the kernel is on another device than `gpu`, or an array belongs to another driver.
    /// - [`ArrayError::NoPeerAccess`] if an array is on another device than `gpu`, without a link to it.
    /// - [`ArrayError::LaunchShape`] if the grid or block exceeds the limits of every device.
    /// - [`ArrayError::TooManyArguments`] if the arguments exceed 32, or 512 bytes.
    /// - [`ArrayError::NotContiguous`] if a view of [`Launch::read`] or [`Launch::write`] is not in row-major order without gaps.
    /// - [`ArrayError::ArgumentCount`] and [`ArrayError::ArgumentSize`] if they differ from the kernel's parameters in the PTX.
    /// - [`ArrayError::Graph`] if the stream captures otherwise than in [`Gpu::capture`], if a capture of this thread is active on another
    ///   stream, or if the capture of `gpu` has ended.
    /// - [`ArrayError::Pool`] if the stream is retired or belongs to another thread, or if a driver call fails, and
    ///   [`ArrayError::LostAfterKernel`] if a kernel before it lost the context.
    ///
    /// # Safety
    ///
    /// - The arguments match the kernel's parameters in number, order and type.
    /// - The kernel accesses only the memory of its arguments, within their bounds, and writes only what was passed by
    ///   [`Launch::write`] or [`Launch::write_uninit`].
    /// - The values that it writes are valid values of the array's element type.
    pub unsafe fn enqueue(self, gpu: &Gpu) -> Result<(), ArrayError> {
        // SAFETY: the caller's promise.
        unsafe { self.queue(gpu, LAUNCH, true) }
    }

    /// Errors name `operation`. A graph keeps the kernels of the user, and a loss of the context names the last of them.
    ///
    /// # Safety
    ///
    /// The requirements of [`Launch::enqueue`] apply.
    #[inline(always)]
    unsafe fn queue(self, gpu: &Gpu, operation: &'static str, is_users: bool) -> Result<(), ArrayError> {
        let Some(filled) = self.filled() else { return Ok(()) };
        if !filled.prepare(gpu, operation, is_users)? {
            return Ok(());
        }
        queue_inlined(gpu, filled.uses, |stream, placed| {
            // SAFETY: the stream is that of `gpu`, and has been ordered after what conflicts; the rest is the caller's promise.
            unsafe { filled.launch(stream, placed) }
        })
    }

    /// `None` once the arguments have been dropped.
    #[inline(always)]
    fn filled(&self) -> Option<Filled<'_>> {
        let (buffer, counts) = (self.arguments.buffer.as_deref()?, self.arguments.counts);
        // SAFETY: both are parts of `arguments`.
        let uses = unsafe { buffer.uses(counts.arrays) };
        Some(Filled { launch: self, buffer, counts, uses })
    }
}

/// A launch with all of its arguments.
#[derive(Clone, Copy)]
struct Filled<'a> {
    launch: &'a Launch<'a>,
    buffer: &'a ArgumentBuffer,
    counts: ArgumentCounts,
    uses: &'a [Use<'a>],
}

impl Filled<'_> {
    /// Checks the arguments, and orders the stream for them. False if there is nothing to launch.
    #[inline(always)]
    fn prepare(self, gpu: &Gpu, operation: &'static str, is_users: bool) -> Result<bool, ArrayError> {
        let Self { launch: Launch { function, arguments }, buffer, counts, uses } = self;
        if counts.is_refused {
            let words_max = if is_users { WORDS_MAX } else { WORDS_MAX_OWN };
            return Err(ArrayError::TooManyArguments { limit: ARGUMENTS_MAX, limit_bytes: 8 * words_max });
        }
        if counts.is_strided {
            return Err(buffer.not_in_order(operation));
        }
        buffer.shape.check()?;
        gpu.check(function.device())?;
        if counts.is_elsewhere {
            uses.iter().try_for_each(|one| one.storage().share(gpu, operation))?;
        }
        if !buffer.sizes_bytes.get(..counts.arguments).is_some_and(|sizes| function.has_sizes(sizes)) {
            arguments.check(function)?;
        }
        let is_plain = gpu.is_plain();
        if !is_plain {
            // Ordering an array checks them, too, but a launch may have no array.
            gpu.stream().is_capturing()?;
            gpu.check_thread(operation)?;
        }
        if buffer.shape.grid.contains(&0) {
            return Ok(false);
        }
        order_all(gpu, uses, is_plain, operation)?;
        if is_users {
            if let Some(recording) = gpu.recording() {
                recording.keep(function)?;
            }
            gpu.note_kernel(function.known_name());
        }
        if counts.is_prefetched {
            prefetch(gpu, uses);
        }
        Ok(true)
    }

    /// Queues the kernel at the driver.
    ///
    /// # Safety
    ///
    /// - The stream is of the function's device, whose context is current, and has been ordered after what conflicts with the arguments.
    /// - The requirements of [`Launch::enqueue`] apply.
    #[inline(always)]
    unsafe fn launch(self, stream: CUstream, placed: Placed) -> Result<(), PoolError> {
        let mut parameters = [const { MaybeUninit::uninit() }; ARGUMENTS_MAX];
        let parameters = self.buffer.parameters(self.counts.arguments, &mut parameters);
        let mut addresses = [const { MaybeUninit::uninit() }; ARGUMENTS_MAX];
        if self.counts.is_spillable {
            self.place(parameters, &mut addresses, placed);
        }
        let LaunchShape { grid, block, shared_bytes } = self.buffer.shape;
        let function = self.launch.function;
        let declared = || self.uses.iter().map(|one| declared(one, placed)).collect();
        let queued = library::declaring(function.device().driver(), declared, || {
            // SAFETY: the parameters point into the buffer, which outlives the call; the rest is the caller's promise.
            unsafe { library::launch(function, stream, (grid, block, shared_bytes), parameters) }
        });
        queued.map_err(PoolError::from)
    }

    /// Replaces planned addresses by those at this moment.
    #[cold]
    fn place(
        self,
        parameters: &mut [*mut c_void],
        addresses: &mut [MaybeUninit<u64>; ARGUMENTS_MAX],
        placed: Placed,
    ) {
        let owners = self.buffer.owners.iter().zip(self.buffer.starts);
        for ((parameter, (owner, start)), address) in parameters.iter_mut().zip(owners).zip(addresses) {
            if let Some(one) = usize::from(*owner).checked_sub(1).and_then(|index| self.uses.get(index)) {
                let address = address.write(one.at(self.buffer.words[usize::from(start)], placed));
                *parameter = core::ptr::from_mut(address).cast();
            }
        }
    }
}

/// A launch of a kernel of this crate. The arguments are added in the order of the kernel's parameters in the table.
///
/// It is safe, and operations state no reasons of their own, because all kernels of the table keep one contract: number and sizes of the
/// arguments are compared with the row, all arrays are shared with the device, ordered, and alive until the work has run, and a kernel
/// accesses only elements that its counts and steps describe. Operations take these from the layouts of the arrays. The simulator
/// compares each access with the bytes of the arrays, in every test.
#[must_use = "nothing runs until `queue`"]
pub(crate) struct OwnLaunch<'a> {
    gpu: &'a Gpu,
    launch: Launch<'a>,
}

impl<'a> OwnLaunch<'a> {
    /// Starts a launch on the stream of `gpu`, in a grid of blocks of threads.
    pub(crate) fn new(
        gpu: &'a Gpu,
        kernel: Kernel,
        grid: [u32; 3],
        block: [u32; 3],
    ) -> Result<Self, ArrayError> {
        let shape = LaunchShape { grid, block, shared_bytes: 0 };
        Ok(Self { gpu, launch: gpu.library().function(kernel)?.launch(shape) })
    }

    /// Adds an address in an array, whose bytes the kernel uses.
    pub(crate) fn array(self, (one, address): (Use<'a>, u64)) -> Self {
        let Launch { function, arguments } = self.launch;
        let arguments = arguments.into_parts().with_array(function, one, address);
        Self { launch: Launch { function, arguments }, ..self }
    }

    /// Adds the first of elements that the kernel reads.
    pub(crate) fn read<T: Element, D: Dimension>(self, view: &GpuView<'a, T, D>) -> Self {
        self.array((view.reads(), view.planned()))
    }

    /// Adds the first of elements that the kernel writes.
    pub(crate) fn write<T: Element, D: Dimension, K: Kind>(self, array: &'a GpuArray<T, D, K>) -> Self {
        self.array((array.writes(), array.planned()))
    }

    pub(crate) fn value<T: Element>(self, value: T) -> Self {
        Self { launch: self.launch.scalar(value), ..self }
    }

    /// Adds values of 64 bits.
    pub(crate) fn words<const COUNT: usize>(self, words: [usize; COUNT]) -> Self {
        words.into_iter().fold(self, |launch, word| launch.value(word as u64))
    }

    /// Adds a value that may exceed the limit of other launches.
    pub(crate) fn large<T: Element>(self, value: &T) -> Self {
        let Launch { function, arguments } = self.launch;
        let arguments = arguments.into_parts().with_large(bytemuck::bytes_of(value));
        Self { launch: Launch { function, arguments }, ..self }
    }

    /// Leaves unified memory where it is, as a copy does.
    pub(crate) fn without_prefetch(mut self) -> Self {
        self.launch.arguments.counts.is_prefetched = false;
        self
    }

    /// Shares the arrays with the device, orders the stream, queues the kernel and records the uses. Errors name `operation`.
    pub(crate) fn queue(self, operation: &'static str) -> Result<(), ArrayError> {
        // SAFETY: the contract above.
        unsafe { self.launch.queue(self.gpu, operation, false) }
    }

    /// Like [`OwnLaunch::queue`], for two kernels: no capture begins between them. The second uses what the first writes.
    pub(crate) fn queue_before(self, second: Self, operation: &'static str) -> Result<(), ArrayError> {
        let gpu = self.gpu;
        let (Some(first), Some(second)) = (self.launch.filled(), second.launch.filled()) else {
            return Ok(());
        };
        let (has_first, has_second) =
            (first.prepare(gpu, operation, false)?, second.prepare(gpu, operation, false)?);
        queue_inlined(gpu, first.uses.iter().chain(second.uses), |stream, placed| {
            // SAFETY: the stream is that of `gpu`, and has been ordered for both; the contract above.
            unsafe {
                if has_first {
                    first.launch(stream, placed)?;
                }
                if has_second {
                    second.launch(stream, placed)?;
                }
                Ok(())
            }
        })
    }
}

/// Arguments that are collected before the kernel is known.
pub(crate) struct OwnArguments<'a>(Arguments<'a>);

impl<'a> OwnArguments<'a> {
    pub(crate) fn new() -> Self {
        Self(Arguments::new(LaunchShape { grid: [0; 3], block: [0; 3], shared_bytes: 0 }))
    }

    /// Adds an address in an array, whose bytes the kernel uses.
    pub(crate) fn array(&mut self, (one, address): (Use<'a>, u64)) {
        let Arguments { buffer, counts, .. } = &mut self.0;
        if let Some(buffer) = buffer {
            *counts = buffer.with_array(*counts, one, address);
        }
    }

    /// Adds another address in the array that was added last.
    pub(crate) fn address(&mut self, address: u64) {
        let Arguments { buffer, counts, .. } = &mut self.0;
        if let Some(buffer) = buffer {
            *counts = buffer.with_address(*counts, address);
        }
    }

    /// Ends with a value that may exceed the limit of other launches.
    pub(crate) fn launch(
        mut self,
        gpu: &'a Gpu,
        function: &'a Function,
        [blocks, threads]: [u32; 2],
        value: &[u64],
    ) -> OwnLaunch<'a> {
        let Arguments { buffer, counts, .. } = &mut self.0;
        if let Some(buffer) = buffer {
            buffer.shape = LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 };
            // SAFETY: both are parts of one `Arguments`.
            let uses = unsafe { buffer.uses(counts.arrays) };
            counts.is_elsewhere = uses.iter().any(|one| one.storage().device() != function.device());
            *counts = buffer.with_whole_words(*counts, value);
        }
        OwnLaunch { gpu, launch: Launch { function, arguments: self.0 } }
    }
}

fn declared(one: &Use<'_>, placed: Placed) -> DeclaredBytes {
    let (Range { start, end }, address) = (one.range(), one.at(one.storage().planned(), placed));
    DeclaredBytes { bytes: address + start..address + end, is_write: one.access() == Access::Write }
}

/// The name of a launch in errors.
const LAUNCH: &str = "kernel launch";

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Calls a kernel on all elements and returns the results, in device memory. Its parameters are the output address, the input address
    /// and the number of elements (`u64`). At least one thread runs per element.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, kernels};
    ///
    /// kernels! {
    ///     static SIGN = cuda r#"
    ///         extern "C" __global__ void is_positive(bool *out, const float *x, unsigned long long n) {
    ///             unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    ///             if (i < n) out[i] = x[i] > 0;
    ///         }"#;
    /// }
    ///
    /// # if std::env::var_os("NVRTC_REQUIRED").is_none() && gpu.compile(&SIGN).is_err() { return Ok(()) }
    /// let is_positive = gpu.compile(&SIGN)?.function("is_positive")?;
    /// let x = GpuArray::from_slice(&gpu, &[1.5_f32, -2.5])?;
    /// // SAFETY: the kernel has the parameters of a map, and writes a valid `bool` for each of `n` elements.
    /// let signs = unsafe { x.map_kernel::<bool>(&is_positive)? };
    /// assert_eq!(signs.to_vec()?, [true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the allocation fails; the errors of [`Launch::enqueue`].
    ///
    /// # Safety
    ///
    /// The kernel has these parameters. It reads at most `n` elements of type `T`, and writes `n` valid values of type `U`.
    pub unsafe fn map_kernel<U: Element>(&self, kernel: &Function) -> Result<GpuArray<U, D>, ArrayError> {
        let (gpu, n) = (self.gpu(), self.len());
        let order = self.layout().order().unwrap_or(ElementOrder::Row);
        let mut out = UninitArray::<U, D>::with_order(gpu, self.raw_dim(), order)?;
        let launch = kernel.launch(LaunchShape::for_len(n)).write_uninit(&mut out);
        // Without an order it is refused.
        let launch =
            if self.layout().order().is_some() { launch.read_strided(self) } else { launch.read(self) };
        let launch = launch.scalar(n as u64);
        // SAFETY: the caller's promise; both arrays have `n` elements, contiguous and in the same order.
        unsafe { launch.enqueue(gpu)? };
        // SAFETY: the kernel that has been queued writes all of them.
        Ok(unsafe { out.assume_init() })
    }
}

/// The shape and the arguments of a launch, in memory that the thread's next launch reuses.
struct Arguments<'a> {
    /// `None` once it has been dropped.
    buffer: Option<Box<ArgumentBuffer>>,
    counts: ArgumentCounts,
    storages: PhantomData<&'a ArrayStorage>,
}

/// [`Arguments`] whose drop frees the memory. While an argument is added, nothing refers to the counts, so they stay in registers.
struct OpenArguments<'a> {
    buffer: Option<Box<ArgumentBuffer>>,
    counts: ArgumentCounts,
    storages: PhantomData<&'a ArrayStorage>,
}

/// How much of a buffer is in use.
#[derive(Clone, Copy, Default)]
struct ArgumentCounts {
    arguments: usize,
    arrays: usize,
    words: usize,
    /// True if there were too many arguments.
    is_refused: bool,
    /// True if a view is not in the order that the kernel expects.
    is_strided: bool,
    /// True if an array is on another device than the kernel.
    is_elsewhere: bool,
    /// True if an array is moved to the device before the launch.
    is_prefetched: bool,
    /// True if an array may have another address than planned.
    is_spillable: bool,
}

struct ArgumentBuffer {
    shape: LaunchShape,
    sizes_bytes: [u16; ARGUMENTS_MAX],
    /// The index of the first word of each argument.
    starts: [u8; ARGUMENTS_MAX],
    /// The number of the array whose address the argument is, from 1; 0 for a value.
    owners: [u8; ARGUMENTS_MAX],
    /// Each argument begins at a word. Addresses are planned ones.
    words: [u64; WORDS_MAX_OWN],
    /// Shape and strides of the last view that is not in order, if any.
    strided: (Vec<usize>, Vec<isize>),
    /// The arguments that are arrays.
    arrays: [MaybeUninit<Use<'static>>; ARGUMENTS_MAX],
}

thread_local! {
    static SPARE: Cell<Option<Box<ArgumentBuffer>>> = const { Cell::new(None) };
}

impl<'a> Arguments<'a> {
    #[inline(always)]
    fn new(shape: LaunchShape) -> Self {
        let mut buffer = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_else(ArgumentBuffer::new);
        buffer.shape = shape;
        Self { buffer: Some(buffer), counts: ArgumentCounts::default(), storages: PhantomData }
    }

    #[inline(always)]
    fn into_parts(self) -> OpenArguments<'a> {
        // The other fields have no drop.
        let mut whole = ManuallyDrop::new(self);
        OpenArguments { buffer: whole.buffer.take(), counts: whole.counts, storages: PhantomData }
    }

    /// Compares the arguments with the kernel's parameters, one by one.
    #[cold]
    fn check(&self, function: &Function) -> Result<(), ArrayError> {
        let sizes = self.buffer.as_deref().and_then(|buffer| buffer.sizes_bytes.get(..self.counts.arguments));
        let (Some(parameters), sizes) = (function.signature(), sizes.unwrap_or_default()) else {
            return Ok(());
        };
        let fits = |(size, parameter): (&u16, &Parameter)| usize::from(*size) == parameter.size_bytes;
        if sizes.len() == parameters.len() && sizes.iter().zip(parameters).all(fits) {
            Ok(())
        } else {
            Err(mismatch(function.name(), parameters, sizes))
        }
    }
}

impl<'a> OpenArguments<'a> {
    #[inline(always)]
    fn with_array(self, function: &Function, one: Use<'a>, address: u64) -> Arguments<'a> {
        let Self { mut buffer, mut counts, storages } = self;
        if let Some(buffer) = &mut buffer {
            counts.is_elsewhere |= one.storage().device() != function.device();
            counts = buffer.with_array(counts, one, address);
        }
        Arguments { buffer, counts, storages }
    }

    #[inline(always)]
    fn with_value(self, bytes: &[u8]) -> Arguments<'a> {
        let Self { mut buffer, mut counts, storages } = self;
        if let Some(buffer) = &mut buffer {
            counts = match u16::try_from(bytes.len()) {
                Ok(size_bytes) if size_bytes <= 8 => buffer.with_word(counts, word(bytes), size_bytes),
                _ => buffer.with_words(counts, bytes, WORDS_MAX),
            };
        }
        Arguments { buffer, counts, storages }
    }

    fn with_large(self, bytes: &[u8]) -> Arguments<'a> {
        let Self { mut buffer, mut counts, storages } = self;
        if let Some(buffer) = &mut buffer {
            counts = buffer.with_words(counts, bytes, WORDS_MAX_OWN);
        }
        Arguments { buffer, counts, storages }
    }
}

impl Drop for Arguments<'_> {
    #[inline]
    fn drop(&mut self) {
        // A thread that is ending cannot store the memory, which is freed.
        let buffer = self.buffer.take();
        let _spare = SPARE.try_with(|spare| spare.replace(buffer));
    }
}

impl ArgumentBuffer {
    #[cold]
    fn new() -> Box<Self> {
        Box::new(Self {
            shape: LaunchShape { grid: [0; 3], block: [0; 3], shared_bytes: 0 },
            sizes_bytes: [0; ARGUMENTS_MAX],
            starts: [0; ARGUMENTS_MAX],
            owners: [0; ARGUMENTS_MAX],
            words: [0; WORDS_MAX_OWN],
            strided: (Vec::new(), Vec::new()),
            arrays: [const { MaybeUninit::uninit() }; ARGUMENTS_MAX],
        })
    }

    /// Adds an array. The arguments that have the buffer borrow it for as long as they exist.
    #[inline(always)]
    fn with_array(&mut self, mut counts: ArgumentCounts, one: Use<'_>, address: u64) -> ArgumentCounts {
        counts.is_prefetched |= one.storage().is_prefetched();
        counts.is_spillable |= one.storage().is_spillable();
        if let Some(slot) = self.arrays.get_mut(counts.arrays) {
            // SAFETY: only the lifetime changes. `uses` gives it back, and nothing else reads the slot.
            slot.write(unsafe { core::mem::transmute::<Use<'_>, Use<'static>>(one) });
            counts.arrays += 1;
        }
        // Too many arrays are too many arguments, which are refused.
        self.with_address(counts, address)
    }

    /// Adds an address in the array that was added last.
    #[inline(always)]
    fn with_address(&mut self, counts: ArgumentCounts, address: u64) -> ArgumentCounts {
        let index = counts.arguments;
        let counts = self.with_word(counts, address, 8);
        if let Some(owner) = self.owners.get_mut(index) {
            *owner = counts.arrays as u8;
        }
        counts
    }

    /// Adds an argument of one word.
    #[inline(always)]
    fn with_word(&mut self, counts: ArgumentCounts, word: u64, size_bytes: u16) -> ArgumentCounts {
        let (index, first) = (counts.arguments, counts.words);
        if index >= ARGUMENTS_MAX || first >= WORDS_MAX {
            return ArgumentCounts { is_refused: true, ..counts };
        }
        self.words[first] = word;
        self.sizes_bytes[index] = size_bytes;
        self.starts[index] = first as u8;
        self.owners[index] = 0;
        ArgumentCounts { arguments: index + 1, words: first + 1, ..counts }
    }

    fn with_whole_words(&mut self, mut counts: ArgumentCounts, value: &[u64]) -> ArgumentCounts {
        let (index, first) = (counts.arguments, counts.words);
        let end = first + value.len();
        match (self.words.get_mut(first..end), self.sizes_bytes.get_mut(index)) {
            (Some(words), Some(size_bytes)) => {
                words.copy_from_slice(value);
                *size_bytes = size_of_val(value) as u16;
                self.starts[index] = first as u8;
                self.owners[index] = 0;
                (counts.arguments, counts.words) = (index + 1, end);
            }
            _ => counts.is_refused = true,
        }
        counts
    }

    fn with_words(&mut self, mut counts: ArgumentCounts, bytes: &[u8], words_max: usize) -> ArgumentCounts {
        let (index, first) = (counts.arguments, counts.words);
        let end = first + bytes.len().div_ceil(8);
        match (self.words[..words_max].get_mut(first..end), self.sizes_bytes.get_mut(index)) {
            (Some(words), Some(size_bytes)) => {
                words.iter_mut().zip(bytes.chunks(8)).for_each(|(to, bytes)| *to = word(bytes));
                *size_bytes = bytes.len() as u16;
                self.starts[index] = first as u8;
                self.owners[index] = 0;
                (counts.arguments, counts.words) = (index + 1, end);
            }
            _ => counts.is_refused = true,
        }
        counts
    }

    #[cold]
    fn not_in_order(&self, operation: &'static str) -> ArrayError {
        let (shape, strides) = self.strided.clone();
        let hint = "copy it with `as_standard_layout`, or pass it with `read_strided` or `write_strided` to a kernel that takes its strides";
        ArrayError::NotContiguous { operation, shape, strides, hint }
    }

    /// The arrays of the launch.
    ///
    /// # Safety
    ///
    /// `count` comes from the [`Arguments`] with this buffer, which have borrowed the arrays for longer than this borrow.
    #[inline]
    unsafe fn uses(&self, count: usize) -> &[Use<'_>] {
        // SAFETY: `with_array` has written as many since the count was zero, and the caller's promise is that they are alive.
        unsafe { core::slice::from_raw_parts(self.arrays.as_ptr().cast(), count) }
    }

    /// The address of each argument.
    #[inline]
    fn parameters<'p>(
        &self,
        count: usize,
        parameters: &'p mut [MaybeUninit<*mut c_void>; ARGUMENTS_MAX],
    ) -> &'p mut [*mut c_void] {
        // An argument may take several words, so its pointer covers all of them.
        let (count, words) = (count.min(ARGUMENTS_MAX), self.words.as_ptr().cast_mut());
        // In groups that fit vector registers. Entries after the last argument are unused.
        let groups = parameters.chunks_exact_mut(GROUP).zip(self.starts.chunks_exact(GROUP));
        for (parameters, starts) in groups.take(count.div_ceil(GROUP)) {
            for (parameter, start) in parameters.iter_mut().zip(starts) {
                parameter.write(words.wrapping_add(usize::from(*start)).cast());
            }
        }
        // SAFETY: the loop has written the first `count`, and the layout is that of initialised pointers.
        unsafe { core::slice::from_raw_parts_mut(parameters.as_mut_ptr().cast(), count) }
    }
}

/// At most eight bytes, followed by zeros.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(whole)
}

/// The error for arguments whose number or sizes differ from the kernel's parameters.
#[cold]
fn mismatch(kernel: &str, parameters: &[Parameter], sizes: &[u16]) -> ArrayError {
    let kernel = kernel.to_owned();
    let differs =
        |(_, (parameter, size)): &(usize, (&Parameter, &u16))| parameter.size_bytes != usize::from(**size);
    match parameters.iter().zip(sizes).enumerate().find(differs) {
        Some((index, (parameter, size))) if parameters.len() == sizes.len() => ArrayError::ArgumentSize {
            kernel,
            index,
            parameter: parameter.name.clone(),
            expected_bytes: parameter.size_bytes,
            found_bytes: usize::from(*size),
        },
        _ => {
            let names: Vec<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
            let (parameters, expected) = (names.join(", "), names.len());
            ArrayError::ArgumentCount { kernel, parameters, expected, found: sizes.len() }
        }
    }
}

const WORDS_MAX: usize = 64;
/// The limit for kernels of this crate, which may take the axes of an array. The largest parameter comes last.
const WORDS_MAX_OWN: usize = 160;
/// A divisor of [`ARGUMENTS_MAX`].
const GROUP: usize = 8;
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

debug_fields!(Launch<'_>, it, function: Shown::name(it.function.name()), shape: it.arguments.buffer.as_deref().map(|buffer| buffer.shape), arguments: it.arguments.counts.arguments);

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

//! [`ArrayError`]: the errors of this layer. [`Rejected`] also contains the value that an operation took.

mod graph;
mod rejected;

pub use graph::GraphError;
pub use rejected::Rejected;

use core::any::Any;
use core::cell::Cell;
use gpumem_pool::sys::DriverError;
use gpumem_pool::sys::text::{Shown, debug_is_display};
use gpumem_pool::{DeviceError, PoolError};

/// An operation on arrays failed. The text states the problem and what to do about it, and `Debug` prints the same text.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of a variant says what its fields are")]
pub enum ArrayError {
    /// The shapes of two operands are incompatible.
    #[error("{operation}: incompatible shapes {left:?} and {right:?}; {expected}")]
    Shape {
        operation: &'static str,
        /// The shape of the left operand, or of the array.
        left: Vec<usize>,
        /// The shape of the right operand, or the one requested.
        right: Vec<usize>,
        expected: &'static str,
    },
    /// A shape has more elements than fit in the address space.
    #[error("shape {shape:?} exceeds the address space; split the data")]
    TooManyElements { shape: Vec<usize> },
    /// A slice exceeds its axis, has a step of zero, or names an axis that does not exist.
    #[error(
        "invalid {} on axis {axis} of shape {shape:?}; bounds must be inside an existing axis, and the step must not be zero",
        Shown::name(.slice)
    )]
    Slice { slice: String, axis: usize, shape: Vec<usize> },
    /// The operation requires contiguous elements.
    #[error(
        "{operation}: the view of shape {shape:?} with strides {strides:?} is not contiguous in a suitable order; {hint}"
    )]
    NotContiguous { operation: &'static str, shape: Vec<usize>, strides: Vec<isize>, hint: &'static str },
    /// Bytes cannot be viewed as elements of another type.
    #[error(
        "a view of shape {shape:?} with strides {strides:?} of {from} cannot be viewed as {to}; both need the same size, or contiguous elements on the last axis whose bytes divide into {to}, at a multiple of the size of {to} from the start of the array; and the alignment of {to}"
    )]
    Reinterpret { from: &'static str, to: &'static str, shape: Vec<usize>, strides: Vec<isize> },
    /// Slices that must be disjoint overlap.
    #[error("slices {first} and {second} overlap, which mutable views must not; use disjoint slices")]
    Overlap { first: usize, second: usize },
    /// An array, stream or kernel is on a different device than the operation requires, or belongs to another driver.
    #[error(
        "wrong device: expected {}, found {}; copy the array to the other device (`copy_to`), or download and upload it if the drivers differ",
        Shown::sentence(.expected), Shown::sentence(.found)
    )]
    WrongDevice {
        expected: String,
        /// The device of the array, stream or kernel.
        found: String,
    },
    /// A device cannot access the memory of an array on another device.
    #[error(
        "{operation}: {device} cannot access an array on {owner}: {}; copy the array to {device} first (`copy_to`), or run the operation on {owner} (`on`)",
        Shown::sentence(.reason), device = Shown::sentence(.device), owner = Shown::sentence(.owner)
    )]
    NoPeerAccess { operation: &'static str, device: String, owner: String, reason: String },
    /// The device wrote bytes that are not a valid value of the element type.
    #[error(
        "element {index} downloaded from the device is not a valid {kind}; check the kernel that wrote it"
    )]
    InvalidElement {
        /// The index of the first such element.
        index: usize,
        kind: &'static str,
    },
    /// An array of a pack was requested before the upload of the pack.
    #[error("the packed array of shape {shape:?} has not been uploaded; call `Pack::upload` first")]
    NotUploaded { shape: Vec<usize> },
    /// A transfer was polled or waited for after it had resolved. Its first result contains the host memory.
    #[error(
        "this transfer has already returned its result, from an earlier poll; keep that result, or start another transfer"
    )]
    TransferOver,
    /// The host is out of memory for the elements of a download, or for elements that an upload gathers.
    #[error("out of host memory: a copy needs {size_bytes} bytes; copy the array in slices")]
    HostFull { size_bytes: usize },
    /// A module has no kernel with this name.
    #[error(
        "no kernel {:?} in the module; check the name (the kernel must be extern \"C\")",
        Shown::name(.name)
    )]
    NoSuchKernel { name: String },
    /// The CUDA compiler refuses a text or an option, or the driver refuses a text.
    #[error(
        "{}: the text does not compile; correct the text or the options:\n{}",
        Shown::name(.source_name), Shown::log(.log)
    )]
    Compile { source_name: String, log: String },
    /// A product of `f16` or `bf16` on a device without the tensor cores for it.
    #[error(
        "products of f16 and bf16 need compute capability 8.0, and {} is older; convert the operands (`cast::<f32>`)",
        Shown::sentence(.device)
    )]
    NoTensorCores { device: String },
    /// CUDA text cannot be compiled at run time.
    #[error(
        "CUDA text cannot be compiled at run time: {reason}, or load PTX that was compiled ahead (`nvcc -ptx`)"
    )]
    NoCompiler {
        /// The cause, and what to do about it.
        reason: &'static str,
    },
    /// A launch has more or fewer arguments than the kernel has parameters.
    #[error(
        "kernel {:?} takes {expected} arguments ({}), and the launch has {found}; pass one for each parameter",
        Shown::name(.kernel), Shown::sentence(.parameters)
    )]
    ArgumentCount { kernel: String, parameters: String, expected: usize, found: usize },
    /// An argument of a launch differs in size from the kernel's parameter.
    #[error(
        "kernel {:?}: parameter {index} ({}) has {expected_bytes} bytes, and the argument has {found_bytes}; check the order of the arguments and their types, such as f32 or f64",
        Shown::name(.kernel), Shown::name(.parameter)
    )]
    ArgumentSize {
        kernel: String,
        /// The index of the parameter, from 0.
        index: usize,
        parameter: String,
        expected_bytes: usize,
        found_bytes: usize,
    },
    /// A DLPack tensor cannot be imported as the requested array.
    #[error(
        "the DLPack tensor does not fit: {field}: {}; import it with its own type and number of axes, or have its producer copy it",
        Shown::sentence(.problem)
    )]
    Dlpack { field: &'static str, problem: String },
    /// A cudarc object cannot be used.
    #[error("cudarc's {object} cannot be used: {}", Shown::sentence(.problem))]
    Cudarc {
        object: &'static str,
        /// The problem, and what to do about it.
        problem: String,
    },
    /// The memory of an array is not a cudarc slice.
    #[error(
        "the memory of the array is {memory}, not a slice of cudarc with these elements, and cudarc could not free it; lend the array (`lend_to_cudarc`)"
    )]
    NoCudaSlice { memory: &'static str },
    /// The context is lost, and a kernel of the program may be the cause.
    #[error("{error}; the last kernel launched is {:?}: check that it stays within its arrays", Shown::name(.kernel))]
    LostAfterKernel {
        /// The name of the program's last launched kernel: on the `Gpu` whose call failed, otherwise on one of its forks.
        kernel: String,
        #[source]
        error: PoolError,
    },
    /// PTX text or a kernel name contains a zero byte.
    #[error("{what} contains a zero byte; remove it")]
    ZeroByte { what: &'static str },
    /// The host cannot access unified memory of this device.
    #[error(
        "the host cannot access unified memory of {} while the device works (it has no concurrent managed access); use pinned memory, or download the array",
        Shown::sentence(.device)
    )]
    NoHostAccess { device: String },
    /// A block cannot be the memory of an array.
    #[error(
        "a block of {size_bytes} bytes of kind {} cannot be an array of {needed_bytes} bytes of kind {expected}; allocate at least as many bytes, from a pool of that kind",
        Shown::name(.kind)
    )]
    UnsuitableBlock { size_bytes: u64, needed_bytes: u64, kind: String, expected: &'static str },
    /// The memory of an array is not a block.
    #[error(
        "the memory of the array is {memory}, not a block of its own; copy the array first (`try_clone`)"
    )]
    NoBlock { memory: &'static str },
    /// A `Gpu` already has a pool for this kind of memory.
    #[error(
        "the Gpu already has a pool for memory of kind {}; set the pool before the first allocation of that kind (the pool of device memory is the one that the Gpu was created with)",
        Shown::name(.kind)
    )]
    PoolInUse { kind: String },
    /// A launch exceeds the limits of every device.
    #[error(
        "invalid launch with grid {grid:?} and blocks of {block:?} threads: {reason}; change the shape (`LaunchShape::for_len` has one for any length)"
    )]
    LaunchShape { grid: [u32; 3], block: [u32; 3], reason: &'static str },
    /// A launch has too many arguments.
    #[error(
        "too many kernel arguments: a launch takes at most {limit} arguments and {limit_bytes} bytes; pass more through an array"
    )]
    TooManyArguments {
        limit: usize,
        /// The maximum size of all arguments, each rounded up to 8 bytes.
        limit_bytes: usize,
    },
    /// An expression has more arrays, numbers or uses of arrays than one kernel takes.
    #[error("{operation}: one kernel takes at most {limit} {of}; evaluate a part of the expression first")]
    ExpressionSize { operation: &'static str, of: &'static str, limit: usize },
    /// A capture or a graph was misused.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An error of the pool or the driver: out of memory, a failed call, a stream that is retired, captures, or belongs to
    /// another thread.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The simulator did not start.
    #[cfg(feature = "sim")]
    #[error(transparent)]
    Sim(gpumem_sim::SimError),
}

impl ArrayError {
    /// True if memory ran out or its size was refused: device memory, a limit, a quota, a budget, or host memory of a download. A smaller
    /// array may succeed, or this one after memory is freed. See [`PoolError::is_out_of_memory`](gpumem_pool::PoolError::is_out_of_memory).
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let error = GpuArray::<u8, _>::zeros(&gpu, 1 << 50).unwrap_err();
    /// assert!(error.is_out_of_memory());
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::HostFull { .. } => true,
            Self::Pool(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// The error that an operator, an index or `Clone` of this thread has panicked with, from the payload that
    /// [`catch_unwind`](std::panic::catch_unwind) returned. `None` for every other panic, and if it was asked for before.
    ///
    /// ```
    /// use gpumem_array::{ArrayError, GpuArray};
    /// use std::panic::{AssertUnwindSafe, catch_unwind};
    ///
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let (x, y) = (GpuArray::<f32, _>::zeros(&gpu, 100)?, GpuArray::<f32, _>::zeros(&gpu, 200)?);
    /// let payload = catch_unwind(AssertUnwindSafe(|| &x + &y)).unwrap_err();
    /// assert!(matches!(ArrayError::of_panic(&*payload), Some(ArrayError::Shape { .. })));
    /// # Ok::<(), ArrayError>(())
    /// ```
    #[must_use]
    pub fn of_panic(payload: &(dyn Any + Send)) -> Option<Self> {
        let error = PANICKED_WITH.try_with(Cell::take).ok().flatten()?;
        let text = payload.downcast_ref::<String>()?;
        (*text == error.to_string()).then_some(error)
    }
}

thread_local! {
    /// The error of this thread's latest panic by [`or_panic`]. The payload is its text, which hooks and test harnesses print.
    static PANICKED_WITH: Cell<Option<ArrayError>> = const { Cell::new(None) };
}

debug_is_display!(ArrayError);

#[cfg(feature = "sim")]
impl From<gpumem_sim::SimError> for ArrayError {
    fn from(error: gpumem_sim::SimError) -> Self {
        match error {
            gpumem_sim::SimError::Load(error) => Self::Pool(error.into()),
            gpumem_sim::SimError::Env(error) => Self::Pool(error.into()),
            error => Self::Sim(error),
        }
    }
}

impl From<DeviceError> for ArrayError {
    fn from(error: DeviceError) -> Self {
        Self::Pool(error.into())
    }
}

impl From<DriverError> for ArrayError {
    fn from(error: DriverError) -> Self {
        Self::Pool(error.into())
    }
}

/// Returns the value, or panics at the caller's line: for operators and `Clone`, which cannot return an error.
#[track_caller]
pub(crate) fn or_panic<T>(result: Result<T, ArrayError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => {
            let text = error.to_string();
            // A thread that is ending has no place for the error.
            let _ = PANICKED_WITH.try_with(|place| place.set(Some(error)));
            panic!("{text}")
        }
    }
}

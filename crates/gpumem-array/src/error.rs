//! [`ArrayError`]: what a correct program can meet in this layer, and what it can do then.

use gpumem_pool::PoolError;
use gpumem_pool::sys::DriverError;

/// Something in this layer failed. The text says what to do next.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// The shapes do not fit each other.
    #[error("{operation}: shapes {left:?} and {right:?} do not fit; {expected}")]
    Shape {
        /// What was asked for.
        operation: &'static str,
        /// The shape of the left operand, or of what there is.
        left: Vec<usize>,
        /// The shape of the right operand, or of what was asked for.
        right: Vec<usize>,
        /// What would fit.
        expected: &'static str,
    },
    /// A shape with more elements than can be addressed.
    #[error("shape {shape:?} has more elements than memory can hold; split the data")]
    TooManyElements {
        /// The shape.
        shape: Vec<usize>,
    },
    /// A slice that reaches beyond its axis, or has a step of zero.
    #[error("{slice} does not fit axis {axis} of shape {shape:?}")]
    Slice {
        /// The slice.
        slice: String,
        /// The axis that it was applied to.
        axis: usize,
        /// The shape of the view.
        shape: Vec<usize>,
    },
    /// The operation needs elements that lie side by side.
    #[error(
        "{operation}: a view of shape {shape:?} with strides {strides:?} has gaps or another order of axes; {hint}"
    )]
    NotContiguous {
        /// What was asked for.
        operation: &'static str,
        /// The shape of the view.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
        /// What would work.
        hint: &'static str,
    },
    /// Two things that must be on one device are not.
    #[error(
        "{expected} was expected, and this is on {found}; download the array and upload it to the other device"
    )]
    WrongDevice {
        /// Where it should have been.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// The device wrote bytes that are no value of the element type.
    #[error(
        "element {index} that came back from the device is no valid {kind}; check the kernel that wrote it"
    )]
    InvalidElement {
        /// The first such element.
        index: usize,
        /// The element type.
        kind: &'static str,
    },
    /// The host has no room for what the device holds.
    #[error("the host has no room for {size_bytes} bytes; download the array in slices")]
    HostFull {
        /// What the elements take.
        size_bytes: usize,
    },
    /// A module has no kernel of this name.
    #[error(
        "no kernel {name:?} in this module; check the name (extern \"C\"); on the simulator register a Rust function of that name (for gpumem-array's own kernels enable its feature `sim`)"
    )]
    NoSuchKernel {
        /// What was asked for.
        name: String,
    },
    /// PTX or a name with a zero byte inside.
    #[error("{what} has a zero byte inside")]
    ZeroByte {
        /// Which of the two.
        what: &'static str,
    },
    /// A launch that no device can run.
    #[error("a launch with grid {grid:?} and blocks of {block:?} threads: {reason}")]
    LaunchShape {
        /// The grid, in blocks.
        grid: [u32; 3],
        /// A block, in threads.
        block: [u32; 3],
        /// What is wrong with it.
        reason: &'static str,
    },
    /// More kernel arguments than a launch holds.
    #[error("a launch takes {limit} arguments and {limit_bytes} bytes of them; pass more through an array")]
    TooManyArguments {
        /// The most arguments.
        limit: usize,
        /// The most bytes, each argument rounded up to 8.
        limit_bytes: usize,
    },
    /// The layer below failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The simulator did not start.
    #[cfg(feature = "sim")]
    #[error(transparent)]
    Sim(gpumem_sim::SimError),
}

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

impl From<DriverError> for ArrayError {
    fn from(error: DriverError) -> Self {
        Self::Pool(error.into())
    }
}

/// The value, or a panic at the caller's line: for operators and `Clone`, which cannot return an error.
#[track_caller]
pub(crate) fn or_panic<T>(result: Result<T, ArrayError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

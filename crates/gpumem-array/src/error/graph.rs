//! [`GraphError`]: misuse of captures and graphs.

use core::ops::Range;
use gpumem_pool::sys::text::debug_is_display;

/// An operation during a capture, or a launch of a graph, was refused. Nothing was queued.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of a variant says what its fields are")]
pub enum GraphError {
    /// An array that was made in a capture was used through a `Gpu` outside it.
    #[error(
        "the array was made in a capture and has no values outside of it; return it from the closure of \
         Gpu::capture, and read it after a launch"
    )]
    ArrayOfCapture,
    /// An array that was made outside a capture was returned as its result.
    #[error(
        "an array that was made outside of the capture cannot be its result; pass it to each launch, or return a \
         copy that the capture makes"
    )]
    ArrayFromOutside,
    /// A `Gpu` other than the one of the capture was used in the capture's closure.
    #[error(
        "{operation}: an operation in the closure of Gpu::capture uses another Gpu and would run at once; use the \
         closure's Gpu (`array.on(c)`), or do the operation before or after the capture"
    )]
    OutsideCapture { operation: &'static str },
    /// The `Gpu` of a capture was used after the capture had ended.
    #[error("the capture of this Gpu has ended; use another Gpu, and launch the graph")]
    CaptureEnded,
    /// A capture was begun in the closure of another one.
    #[error("a capture cannot begin in the closure of another capture; end that one first")]
    NestedCapture,
    /// The stream of the operation, or one that it must wait for, is in a capture that `Capture::begin` began.
    #[error(
        "the stream is in a capture that Capture::begin began, where arrays are not tracked; capture \
         operations on arrays with Gpu::capture"
    )]
    StreamCaptures,
    /// A launch lacks an array that the graph uses.
    #[error(
        "the launch lacks an array that the graph uses, captured as {element} of shape {shape:?}: bytes {range:?} of \
         the allocation at {address:#x}; pass it with .{method}"
    )]
    MissingArgument {
        /// The type of the elements, in the closure of the capture.
        element: &'static str,
        /// The shape of the array or view, in the closure of the capture.
        shape: Vec<usize>,
        address: u64,
        /// The bytes that the graph uses, from the start of the allocation.
        range: Range<u64>,
        /// The method that adds the array: `write(&mut array)` or `read(&array)`.
        method: &'static str,
    },
    /// A launch passes an array for reading that the graph writes.
    #[error(
        "argument {index} of the launch is passed for reading, but the graph writes it; use .write(&mut array)"
    )]
    ReadOnlyArgument {
        /// The position of the argument, from 0.
        index: usize,
    },
    /// A launch has a view that lacks bytes of its array that the graph uses.
    #[error(
        "argument {index} of the launch contains bytes {found:?} of its allocation, but the graph uses bytes \
         {expected:?}; pass the view that was captured, or the whole array"
    )]
    PartialArgument {
        /// The position of the argument, from 0.
        index: usize,
        expected: Range<u64>,
        found: Range<u64>,
    },
    /// A launch has a strided view, and the graph uses bytes between its elements, which do not belong to it.
    #[error(
        "argument {index} of the launch is a strided view, which lacks some of the bytes {expected:?} that the graph \
         uses of its allocation; pass the view that was captured (its gaps may have two distances, not more), or the \
         whole array"
    )]
    StridedArgument {
        /// The position of the argument, from 0.
        index: usize,
        expected: Range<u64>,
    },
    /// A launch has an array that the graph does not use.
    #[error("the graph does not use argument {index} of the launch; remove it")]
    ExtraArgument {
        /// The position of the argument, from 0.
        index: usize,
    },
    /// The token of a result or of a number belongs to another graph, or to this graph before an update.
    #[error(
        "the result or number belongs to another graph, or to this graph before its last update; use the tokens that \
         Gpu::capture or the last GpuGraph::update returned"
    )]
    ForeignResult,
}

debug_is_display!(GraphError);

//! Operations: the entries of a stream's queue, and the host memory that queued work keeps.

use crate::base::handle::Handle;
use crate::device::launch::QueuedLaunch;
use crate::memory::Allocation;
use crate::memory::managed::Place;
use crate::order::Point;
use crate::stream::value::{Condition, Value};
use core::ffi::c_void;
use gpumem_sys::types::{CUresult, CUstream};
use std::sync::Arc;

/// One piece of queued work. Addresses are looked up when it runs, not when it is queued.
#[derive(Clone)]
pub(crate) enum Operation {
    /// An empty operation that other work can wait for.
    Nothing,
    /// A copy between device or host addresses.
    Copy { target: u64, source: u64, size_bytes: u64, route: Route },
    /// A copy from pageable host memory: read during the call, written when it runs.
    Staged { target: u64, bytes: Box<[u8]> },
    /// A copy of rows with pitches, or of slices of rows.
    CopyRows(Box<CopyRows>),
    /// A pattern of one, two or four bytes, repeated.
    Fill(Fill),
    /// A kernel.
    Launch(Arc<QueuedLaunch>),
    /// A function of the program, called without the instance's lock.
    Call(HostCall),
    /// Records an event.
    Record { event: Handle },
    /// The operations behind it run once the point is complete. `event` is the named event, whose time counts.
    Wait { point: Point, event: Option<Handle> },
    /// Work behind it runs only after a value in memory meets the condition.
    WaitValue(Value, Condition),
    /// Writes a value to memory.
    WriteValue(Value),
    /// Moves pages of managed memory.
    Prefetch { address: u64, size_bytes: u64, to: Place },
    /// Stream-ordered memory is allocated on the device.
    Alloc(Allocation),
    /// Stream-ordered memory is freed on the device.
    Free(Allocation),
}

/// The route of a copy, which determines its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Host to device, from pinned memory.
    Up,
    /// Device to pinned host memory.
    Down,
    /// Device to pageable host memory.
    DownPageable,
    /// Within a device.
    Within,
    /// Between two devices; with peer access or staged through the host.
    Across { direct: bool },
}

/// A copy of slices of rows.
#[derive(Clone)]
pub(crate) struct CopyRows {
    pub(crate) target: u64,
    pub(crate) target_pitch: u64,
    pub(crate) target_slice_bytes: u64,
    pub(crate) source: u64,
    pub(crate) source_pitch: u64,
    pub(crate) source_slice_bytes: u64,
    pub(crate) width_bytes: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
    pub(crate) route: Route,
}

/// A memset of rows; one row for the plain form.
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    pub(crate) target: u64,
    pub(crate) pitch: u64,
    pub(crate) pattern: u32,
    pub(crate) pattern_bytes: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

/// A function of the program, called in stream order.
#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) run: HostFunction,
    pub(crate) data: *mut c_void,
}

/// The two forms of host functions.
#[derive(Clone, Copy)]
pub(crate) enum HostFunction {
    /// Skipped in a context that has failed.
    Plain(unsafe extern "C" fn(*mut c_void)),
    /// Called with the stream as the program named it, and the status of its context.
    Callback { run: unsafe extern "C" fn(CUstream, CUresult, *mut c_void), stream: Handle, status: CUresult },
}

impl HostCall {
    /// # Safety
    ///
    /// The program requested this call, and the stream has reached it.
    pub(crate) unsafe fn invoke(self) {
        // SAFETY: the program guaranteed that the function may be called at this time, with this argument.
        unsafe {
            match self.run {
                HostFunction::Plain(run) => run(self.data),
                HostFunction::Callback { run, stream, status } => run(stream.to_ptr(), status, self.data),
            }
        }
    }
}

// SAFETY: the program passed function and data to be called on any thread of the driver.
unsafe impl Send for HostCall {}

impl Operation {
    /// The host memory that it keeps until it runs.
    pub(crate) fn staged_bytes(&self) -> u64 {
        match self {
            Self::Staged { bytes, .. } => bytes.len() as u64,
            _ => 0,
        }
    }
}

//! Operations: what a stream's queue holds, and the host memory that queued work keeps.

use crate::base::handle::Handle;
use crate::device::launch::QueuedLaunch;
use crate::memory::Allocation;
use crate::memory::managed::Place;
use crate::order::Point;
use crate::stream::value::{Condition, Value};
use core::ffi::c_void;
use gpumem_sys::types::{CUresult, CUstream};

/// One piece of queued work. Addresses are looked up when it runs, not when it is queued.
#[derive(Clone)]
pub(crate) enum Operation {
    /// A place in the order, to be waited for.
    Nothing,
    /// Bytes from one place to another, either of them on a device or in host memory.
    Copy { target: u64, source: u64, size_bytes: u64, route: Route },
    /// Pageable host memory, read at the call, written when it runs.
    Staged { target: u64, bytes: Box<[u8]> },
    /// Rows with pitches, and slices of them.
    CopyRows(Box<CopyRows>),
    /// A pattern of one, two or four bytes, over and over.
    Fill(Fill),
    /// A kernel.
    Launch(Box<QueuedLaunch>),
    /// A function of the program, called without the instance's lock.
    Call(HostCall),
    /// Marks an event.
    Record { event: Handle },
    /// The operations behind it run once the point is complete. `event` is the named event, whose time counts.
    Wait { point: Point, event: Option<Handle> },
    /// Nothing behind it runs before a value in memory is as asked.
    WaitValue(Value, Condition),
    /// A value in memory.
    WriteValue(Value),
    /// Pages of managed memory move.
    Prefetch { address: u64, size_bytes: u64, to: Place },
    /// Stream-ordered memory comes to life on the device.
    Alloc(Allocation),
    /// Stream-ordered memory dies on the device.
    Free(Allocation),
}

/// Which engine moves the bytes; decides the price only.
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

/// A function that the program wants called in stream order.
#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) run: HostFunction,
    pub(crate) data: *mut c_void,
}

/// The two forms of such a function.
#[derive(Clone, Copy)]
pub(crate) enum HostFunction {
    /// Not called in a context that has failed.
    Plain(unsafe extern "C" fn(*mut c_void)),
    /// Called with the stream as the program named it, and the status of its context.
    Callback { run: unsafe extern "C" fn(CUstream, CUresult, *mut c_void), stream: Handle, status: CUresult },
}

impl HostCall {
    /// # Safety
    ///
    /// The program asked for this call, and its turn in the stream has come.
    pub(crate) unsafe fn invoke(self) {
        // SAFETY: the program promised that the function may be called then, with this argument.
        unsafe {
            match self.run {
                HostFunction::Plain(run) => run(self.data),
                HostFunction::Callback { run, stream, status } => run(stream.to_ptr(), status, self.data),
            }
        }
    }
}

// SAFETY: the program handed function and data over to be called on a thread of the driver's choice.
unsafe impl Send for HostCall {}

impl Operation {
    /// The host memory that it holds until it runs.
    pub(crate) fn staged_bytes(&self) -> u64 {
        match self {
            Self::Staged { bytes, .. } => bytes.len() as u64,
            _ => 0,
        }
    }
}

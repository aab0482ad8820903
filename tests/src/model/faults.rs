//! A driver that wraps the calls on the pool's paths to count them, to fail them, or to run a hook after one.
//!
//! All state is thread-local and set by `observed`. Calls from other threads reach the driver unchanged.

use crate::sys::types::{
    CUcontext, CUdeviceptr, CUevent, CUgraph, CUgraphExec, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemoryPool, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use crate::sys::{CUresult, Driver, Table};
use std::cell::{Cell, RefCell};

/// A driver call that fails.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The function.
    pub call: Call,
    /// The number of calls that succeed first.
    pub skip: u32,
    /// The number of calls that fail.
    pub count: u32,
    /// True if the error is "out of memory"; otherwise it is an unrelated error.
    pub is_out_of_memory: bool,
}

/// The driver calls of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// A bit for each [`Call`].
    calls: u32,
    /// The call that failed by injection.
    refused: Option<Call>,
}

/// Runs `work` with the injected failure on this thread, and returns the calls made.
pub(super) fn observed<R>(table: &Table, fault: Option<Fault>, work: impl FnOnce() -> R) -> (R, Seen) {
    REAL.set(Some(*table));
    FAULT.set(fault);
    SEEN.set(Seen::default());
    let result = work();
    FAULT.set(None);
    (result, SEEN.replace(Seen::default()))
}

/// Runs a hook right after the next event that this thread records, or after `work` if it records none.
pub(super) fn behind_record<R>(
    table: &Table,
    happens: impl FnOnce() + 'static,
    work: impl FnOnce() -> R,
) -> R {
    REAL.set(Some(*table));
    BEHIND.replace(Some(Box::new(happens)));
    let result = work();
    if let Some(happens) = BEHIND.take() {
        happens();
    }
    result
}

impl Seen {
    pub(super) fn has(self, call: Call) -> bool {
        self.calls >> call as u32 & 1 != 0
    }

    /// The call that failed by injection, if one did.
    pub(super) fn refused(self) -> Option<Call> {
        self.refused
    }

    /// True if no driver call was made.
    pub(super) fn is_empty(self) -> bool {
        self.calls == 0
    }
}

thread_local! {
    /// The table of the thread's current simulator. Each simulator has a table of its own.
    static REAL: Cell<Option<Table>> = const { Cell::new(None) };
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    static SEEN: Cell<Seen> = const { Cell::new(Seen { calls: 0, refused: None }) };
    static BEHIND: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Counts a call, and returns the injected error if this call is to fail.
fn admit(call: Call) -> Result<(), CUresult> {
    let mut seen = SEEN.get();
    seen.calls |= 1 << call as u32;
    let mut fault = FAULT.get().filter(|fault| fault.call == call && fault.count > 0);
    let code = match &mut fault {
        None => None,
        Some(Fault { skip: skip @ 1.., .. }) => {
            *skip -= 1;
            None
        }
        Some(Fault { count, is_out_of_memory, .. }) => {
            *count -= 1;
            seen.refused = Some(call);
            let other = CUresult::CUDA_ERROR_OPERATING_SYSTEM;
            Some(if *is_out_of_memory { CUresult::CUDA_ERROR_OUT_OF_MEMORY } else { other })
        }
    };
    SEEN.set(seen);
    if fault.is_some() {
        FAULT.set(fault);
    }
    code.map_or(Ok(()), Err)
}

fn done(call: Call) {
    if call == Call::EventRecord
        && let Some(happens) = BEHIND.take()
    {
        happens();
    }
}

macro_rules! wrapped {
    ($($call:ident: $field:ident($($name:ident: $type:ty),*);)*) => {
        /// A driver function that the pool calls to get, order or release memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Call {
            $(#[doc = stringify!($field)] $call,)*
        }

        impl Call {
            /// All functions.
            pub const ALL: &[Self] = &[$(Self::$call),*];

            /// The name of the C function.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$call => stringify!($field),)*
                }
            }
        }

        /// Returns the driver with its functions wrapped, and sabotaged if requested.
        pub(super) fn wrap(driver: &Driver, sabotage: Option<fn(&mut Table)>) -> Driver {
            let change = |table: &mut Table| {
                $(table.$field = table.$field.map(|_| stand_in::$field as _);)*
                if let Some(sabotage) = sabotage {
                    sabotage(table);
                }
            };
            // SAFETY: each wrapper calls the function that it replaces, or fails with an error code of that function. Sabotage
            // breaks the driver deliberately; the simulator tolerates it.
            unsafe { driver.with_table(change) }
        }

        #[allow(non_snake_case, reason = "the driver's names")]
        mod stand_in {
            use super::*;

            $(pub(super) unsafe extern "C" fn $field($($name: $type),*) -> CUresult {
                if let Err(code) = admit(Call::$call) {
                    return code;
                }
                let Some(real) = REAL.get().and_then(|table| table.$field) else {
                    return CUresult::CUDA_ERROR_NOT_INITIALIZED;
                };
                // SAFETY: the caller guarantees what the wrapped function requires.
                let code = unsafe { real($($name),*) };
                done(Call::$call);
                code
            })*
        }
    };
}

wrapped! {
    Alloc: cuMemAlloc_v2(address: *mut CUdeviceptr, size_bytes: usize);
    AllocAsync: cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, size_bytes: usize, pool: CUmemoryPool, stream: CUstream);
    Create: cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size_bytes: usize, prop: *const CUmemAllocationProp, flags: core::ffi::c_ulonglong);
    Map: cuMemMap(address: CUdeviceptr, size_bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: core::ffi::c_ulonglong);
    SetAccess: cuMemSetAccess(address: CUdeviceptr, size_bytes: usize, access: *const CUmemAccessDesc, count: usize);
    Unmap: cuMemUnmap(address: CUdeviceptr, size_bytes: usize);
    Release: cuMemRelease(handle: CUmemGenericAllocationHandle);
    EventCreate: cuEventCreate(event: *mut CUevent, flags: core::ffi::c_uint);
    EventRecord: cuEventRecord(event: CUevent, stream: CUstream);
    EventQuery: cuEventQuery(event: CUevent);
    EventSynchronize: cuEventSynchronize(event: CUevent);
    StreamWaitEvent: cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: core::ffi::c_uint);
    StreamQuery: cuStreamQuery(stream: CUstream);
    StreamSynchronize: cuStreamSynchronize(stream: CUstream);
    ContextSynchronize: cuCtxSynchronize();
    AddressReserve: cuMemAddressReserve(address: *mut CUdeviceptr, size_bytes: usize, alignment: usize, wanted: CUdeviceptr, flags: core::ffi::c_ulonglong);
    AddressFree: cuMemAddressFree(address: CUdeviceptr, size_bytes: usize);
    BeginCapture: cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    CaptureInfo: cuStreamGetCaptureInfo(stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64);
    Instantiate: cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: core::ffi::c_ulonglong);
    Launch: cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    AllocManaged: cuMemAllocManaged(address: *mut CUdeviceptr, size_bytes: usize, flags: core::ffi::c_uint);
    ContextRecord: cuCtxRecordEvent(context: CUcontext, event: CUevent);
    HostAlloc: cuMemHostAlloc(place: *mut *mut core::ffi::c_void, size_bytes: usize, flags: core::ffi::c_uint);
}

//! A driver that waits for an event after each successful query of it, for runs under NVIDIA's compute-sanitizer.
//!
//! The sanitizer orders memory accesses by waits of streams and of the host, and by stream queries. It ignores a successful
//! `cuEventQuery`, and a wait for the context if the stream has been destroyed by then. Memory that is freed on another stream after
//! such a call is reported as freed too early (a program of ten calls shows it). This driver adds the wait, at the price of one call.
//!
//! C function pointers carry no state, so the state is global: a process has one such driver.

use crate::sys::types::CUevent;
use crate::sys::{CUresult, Driver, Table};
use core::ffi::c_uint;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Returns the driver with a wait after each successful query of an event.
#[must_use]
pub fn wait_after_query(driver: &Driver) -> Driver {
    let _ = REAL.set(*driver.table());
    // SAFETY: each function calls the one that it replaces. The additional waits are for work that is complete.
    unsafe {
        driver.with_table(|table| {
            table.cuEventQuery = table.cuEventQuery.and(Some(event_query));
            table.cuCtxSynchronize = table.cuCtxSynchronize.and(Some(context_synchronize));
            table.cuEventCreate = table.cuEventCreate.and(Some(event_create));
            table.cuEventDestroy_v2 = table.cuEventDestroy_v2.and(Some(event_destroy));
        })
    }
}

static REAL: OnceLock<Table> = OnceLock::new();
/// The live events, by address. An event is removed before it is destroyed.
static EVENTS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Calls the wrapped driver's function of this name.
macro_rules! real {
    ($name:ident($($arg:expr),*)) => {
        match REAL.get().and_then(|table| table.$name) {
            // SAFETY: the arguments are the caller's, who guarantees what this function requires; or an event in the list, which is
            // alive while the list is locked.
            Some(function) => unsafe { function($($arg),*) },
            None => CUresult::CUDA_ERROR_NOT_INITIALIZED,
        }
    };
}

unsafe extern "C" fn event_query(event: CUevent) -> CUresult {
    match real!(cuEventQuery(event)) {
        CUresult::CUDA_SUCCESS => real!(cuEventSynchronize(event)),
        other => other,
    }
}

unsafe extern "C" fn context_synchronize() -> CUresult {
    let code = real!(cuCtxSynchronize());
    if code == CUresult::CUDA_SUCCESS {
        for event in lock().iter() {
            // The result is irrelevant: all work queued before is complete.
            let _ = real!(cuEventSynchronize(core::ptr::with_exposed_provenance_mut(*event)));
        }
    }
    code
}

unsafe extern "C" fn event_create(place: *mut CUevent, flags: c_uint) -> CUresult {
    let code = real!(cuEventCreate(place, flags));
    if code == CUresult::CUDA_SUCCESS {
        // SAFETY: the call has succeeded, so the pointer is valid and written.
        lock().insert(unsafe { *place }.expose_provenance());
    }
    code
}

unsafe extern "C" fn event_destroy(event: CUevent) -> CUresult {
    lock().remove(&event.expose_provenance());
    real!(cuEventDestroy_v2(event))
}

fn lock() -> MutexGuard<'static, BTreeSet<usize>> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A driver for checkers that do not take every answer for an order.
//!
//! NVIDIA's compute-sanitizer follows waits, of streams and of the host, and queries of streams. It does not follow an event's
//! query that says "done", nor a wait for the whole context where the stream in question is gone by then: memory whose use
//! is so known to be over, and that is then freed on another stream, is reported as freed too early (a program of ten calls
//! shows it). Through this driver the wait for the event comes after each such answer, at the price of the call.
//!
//! A C function pointer knows nothing but what is everybody's: there is one such driver in a process.

use crate::sys::types::CUevent;
use crate::sys::{CUresult, Driver, Table};
use core::ffi::c_uint;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The same driver, which says in waits what it has answered.
#[must_use]
pub fn told(driver: &Driver) -> Driver {
    let _ = REAL.set(*driver.table());
    // SAFETY: each function does what the one that it replaces does; the waits that come after are for what is done.
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
/// By their addresses. Whoever destroys one takes it out first.
static EVENTS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Calls the function of this name of the driver that was there before.
macro_rules! real {
    ($name:ident($($arg:expr),*)) => {
        match REAL.get().and_then(|table| table.$name) {
            // SAFETY: the arguments are those of the caller, whose promises are for the same function; or an event in the
            // list, which is alive while that is locked.
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
            // What it says is of no account: what was queued before is done.
            let _ = real!(cuEventSynchronize(core::ptr::with_exposed_provenance_mut(*event)));
        }
    }
    code
}

unsafe extern "C" fn event_create(place: *mut CUevent, flags: c_uint) -> CUresult {
    let code = real!(cuEventCreate(place, flags));
    if code == CUresult::CUDA_SUCCESS {
        // SAFETY: the call has succeeded, so the place was good and is written.
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

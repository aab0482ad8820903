//! Measures the time that all threads spend in the driver.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use gpumem_pool::sys::types::*;
use gpumem_pool::sys::{CUresult, Driver, Table};
use std::sync::OnceLock;
use std::time::Instant;

static REAL: OnceLock<Table> = OnceLock::new();
static CALLS: AtomicU64 = AtomicU64::new(0);
static SPENT_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the driver with every call counted and timed. Can be used once in a program.
pub(crate) fn metered(driver: &Driver) -> Driver {
    let _ = REAL.set(*driver.table());
    // SAFETY: each function calls the one that it replaces, with the same arguments.
    unsafe { driver.with_table(wrap) }
}

/// The calls so far, and their time on the host.
pub(crate) fn reading() -> (u64, Duration) {
    (CALLS.load(Ordering::Relaxed), Duration::from_nanos(SPENT_NS.load(Ordering::Relaxed)))
}

macro_rules! meter {
    ($( [$since:literal] fn $name:ident($($arg:ident: $kind:ty),* $(,)?); )*) => {
        fn wrap(table: &mut Table) {
            $(
                #[allow(non_snake_case, clippy::too_many_arguments)]
                unsafe extern "C" fn $name($($arg: $kind),*) -> CUresult {
                    let Some(real) = REAL.get().and_then(|table| table.$name) else {
                        return CUresult::CUDA_ERROR_NOT_INITIALIZED;
                    };
                    let start = Instant::now();
                    // SAFETY: the caller guarantees what the wrapped function requires.
                    let code = unsafe { real($($arg),*) };
                    SPENT_NS.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    CALLS.fetch_add(1, Ordering::Relaxed);
                    code
                }
                table.$name = table.$name.map(|_| $name as _);
            )*
        }
    };
}

gpumem_pool::sys::for_each_driver_fn!(meter!);

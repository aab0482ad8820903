//! A driver that says "out of memory" so many times, on the thread that asked for it.

use crate::sys::types::{CUdeviceptr, CUmemoryPool, CUstream};
use crate::sys::{CUresult, Driver, Table};
use std::cell::Cell;

/// The driver with its two ways to allocate wrapped; it behaves the same until [`during`], unless it is sabotaged too. A
/// thread drives one wrapped driver at a time.
pub(super) fn wrap(driver: &Driver, sabotage: Option<fn(&mut Table)>) -> Driver {
    REAL.set(Some(*driver.table()));
    let change = |table: &mut Table| {
        table.cuMemAlloc_v2 = table.cuMemAlloc_v2.map(|_| plain as _);
        table.cuMemAllocFromPoolAsync = table.cuMemAllocFromPoolAsync.map(|_| pooled as _);
        if let Some(sabotage) = sabotage {
            sabotage(table);
        }
    };
    // SAFETY: the stand-ins call what they replace, or fail with a code that the driver uses for that. Sabotage breaks
    // the driver on purpose, and the software driver bears it.
    unsafe { driver.with_table(change) }
}

/// Runs `work` while the next `count` requests are refused.
pub(super) fn during<R>(count: u32, work: impl FnOnce() -> R) -> R {
    LEFT.set(count);
    let result = work();
    LEFT.set(0);
    result
}

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(0) };
    static REAL: Cell<Option<Table>> = const { Cell::new(None) };
}

/// The real table, unless this call is refused.
fn admitted() -> Result<Table, CUresult> {
    match LEFT.get().checked_sub(1) {
        Some(left) => {
            LEFT.set(left);
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        }
        None => REAL.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
}

unsafe extern "C" fn plain(address: *mut CUdeviceptr, size_bytes: usize) -> CUresult {
    match admitted() {
        Err(code) => code,
        Ok(table) => match table.cuMemAlloc_v2 {
            // SAFETY: the caller's promises are those of the function that this stands in for.
            Some(real) => unsafe { real(address, size_bytes) },
            None => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        },
    }
}

unsafe extern "C" fn pooled(
    address: *mut CUdeviceptr,
    size_bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    match admitted() {
        Err(code) => code,
        Ok(table) => match table.cuMemAllocFromPoolAsync {
            // SAFETY: the caller's promises are those of the function that this stands in for.
            Some(real) => unsafe { real(address, size_bytes, pool, stream) },
            None => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        },
    }
}

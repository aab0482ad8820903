//! Reclaim callbacks: memory that the program can do without, such as caches and workspaces.

#![allow(non_camel_case_types)]

use super::arguments::{self, check, put};
use super::pools::{self, UserData, gpumem_pool};
use crate::error::{Failure, ending, gpumem_result, guarded};
use crate::handles::HandleTable;
use ::gpumem_pool::{MemoryKind, Reclaimable, Registration};
use core::error::Error;
use core::ffi::{c_char, c_void};
use std::sync::Arc;

/// A registered holder of memory. The pointer is a number that only this library reads.
pub struct gpumem_holder {
    _private: [u8; 0],
}

/// Frees memory of the program (`gpumem_free`, `cudaFree`). With `is_last_resort` 0, frees memory that is cheap to recreate; with 1,
/// everything that the program can do without. Returns 0 on success, or another number, which the report names.
///
/// It runs on a thread that allocates, without a lock of this library, and may call any function of it; an allocation that is refused
/// inside it calls no further holders. Several threads may call it at once. It must return: no exception or `longjmp` may leave it.
pub type gpumem_reclaim_fn = Option<unsafe extern "C" fn(is_last_resort: u32, user_data: *mut c_void) -> i32>;

struct ReclaimHolder {
    name: String,
    /// The pool's kind of memory.
    kind: MemoryKind,
    reclaim: unsafe extern "C" fn(u32, *mut c_void) -> i32,
    user_data: UserData,
}

impl ReclaimHolder {
    fn call(&self, is_last_resort: u32) -> Result<(), Box<dyn Error + Send + Sync>> {
        // SAFETY: whoever registered the function promised that it may be called with this pointer on any thread.
        match unsafe { (self.reclaim)(is_last_resort, self.user_data.0) } {
            0 => Ok(()),
            code => Err(format!("it returned {code}").into()),
        }
    }
}

impl Reclaimable for ReclaimHolder {
    fn name(&self) -> &str {
        &self.name
    }

    fn helps(&self, kind: MemoryKind) -> bool {
        (kind == MemoryKind::Host) == (self.kind == MemoryKind::Host)
    }

    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.call(0)
    }

    fn release(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.call(1)
    }
}

/// A registered holder. Its fields end in this order.
struct Registered {
    _registration: Registration,
    _holder: Arc<ReclaimHolder>,
}

static HOLDERS: HandleTable<Registered> = HandleTable::new(4, "holder");

/// Registers a function that frees memory when a request of any pool on the same device would otherwise be refused, and in
/// `gpumem_pool_reclaim`. It is called for requests of the pool's kind of memory: host memory, or device memory. `name` is for reports.
///
/// Errors: `INVALID_ARGUMENT` for a null pointer or a name that is not UTF-8.
///
/// # Safety
///
/// `name` is null or a text that ends with a zero byte; `holder` is null or points to a place. `reclaim` may be called with `user_data` on
/// any thread until `gpumem_holder_unregister` and all calls that began before it have returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_holder_register(
    pool: *mut gpumem_pool,
    name: *const c_char,
    reclaim: gpumem_reclaim_fn,
    user_data: *mut c_void,
    holder: *mut *mut gpumem_holder,
) -> gpumem_result {
    guarded(|| {
        check(holder, "holder")?;
        // SAFETY: the caller promises a text.
        let name = unsafe { arguments::needed_text(name, "name") }?;
        let reclaim = reclaim.ok_or_else(|| Failure::argument("reclaim is null; pass a function"))?;
        let registered = pools::with(pool, |entry| {
            let kind = entry.pool.kind();
            let holder =
                Arc::new(ReclaimHolder { name: name.into(), kind, reclaim, user_data: UserData(user_data) });
            let registration = Registration::new(entry.pool.device(), &holder);
            Ok(Registered { _registration: registration, _holder: holder })
        })?;
        let handle = HOLDERS.add(registered)?;
        // SAFETY: the caller promises a place.
        unsafe { put(holder, core::ptr::without_provenance_mut(handle as usize), "holder") }
    })
}

/// Ends a registration: no later request calls the function. A call on another thread may still be running.
///
/// Errors: `INVALID_HANDLE` for a null pointer or a holder that was unregistered.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_holder_unregister(holder: *mut gpumem_holder) -> gpumem_result {
    ending(|| HOLDERS.remove(holder.addr() as u64))
}

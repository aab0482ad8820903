//! Scopes: tags of a thread's allocations, for status and reports.

#![allow(non_camel_case_types)]

use super::arguments::{self, Versioned, check, put};
use super::pools::{self, gpumem_pool};
use crate::error::{Failure, caught, gpumem_result, guarded};
use ::gpumem_pool::Scope;
use core::cell::RefCell;
use core::ffi::c_char;

/// Allocations and frees of a thread in a scope. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_scope_usage {
    /// `sizeof(gpumem_scope_usage)`
    pub struct_size: usize,
    /// The sum of allocated bytes.
    pub allocated_bytes: u64,
    /// The number of allocated blocks.
    pub allocation_count: u64,
    /// The sum of freed bytes, including blocks that were allocated earlier in another scope.
    pub freed_bytes: u64,
    /// The number of freed blocks.
    pub free_count: u64,
    /// The maximum increase of the bytes in use since the beginning of the scope.
    pub peak_bytes: u64,
}

// SAFETY: all fields are 64-bit numbers, so there is no padding, and the size is first.
unsafe impl Versioned for gpumem_scope_usage {
    const SIZES: &[usize] = &[size_of::<Self>()];
}

/// The open scopes of a thread, by number.
#[derive(Default)]
struct OpenScopes {
    scopes: Vec<(u64, Scope)>,
    latest: u64,
}

thread_local! {
    static OPEN: RefCell<OpenScopes> = RefCell::default();
}

/// Opens a scope on the calling thread: until `gpumem_scope_end`, the thread's allocations from the pool count for the tag, in the text of
/// the status and in reports. In nested scopes the innermost counts. Scopes of one name share their tag, on all threads. `scope` becomes a
/// number that only this thread may end; the thread's scopes end with it.
///
/// Errors: `INVALID_ARGUMENT` for a null pointer or a tag that is not UTF-8; `STATE` on a thread that is ending.
///
/// # Safety
///
/// `tag` is null or a text that ends with a zero byte; `scope` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_scope_begin(
    pool: *mut gpumem_pool,
    tag: *const c_char,
    scope: *mut u64,
) -> gpumem_result {
    guarded(|| {
        check(scope, "scope")?;
        // SAFETY: the caller promises a text.
        let tag = unsafe { arguments::needed_text(tag, "tag") }?;
        let begun = pools::with(pool, |entry| Ok(entry.pool.scope(tag)))?;
        let number = OPEN.try_with(|open| {
            let mut open = open.borrow_mut();
            open.latest += 1;
            let number = open.latest;
            open.scopes.push((number, begun));
            number
        });
        let number = number.map_err(|_| Failure::state("this thread is ending; open scopes before that"))?;
        // SAFETY: the caller promises a place.
        unsafe { put(scope, number, "scope") }
    })
}

/// Ends a scope of the calling thread, in any order. `usage` may be null.
///
/// Errors: `STATE` for a scope that was ended, or that another thread has opened.
///
/// # Safety
///
/// `usage` is null, or points to a `struct_size` and to as many bytes as that states.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_scope_end(scope: u64, usage: *mut gpumem_scope_usage) -> gpumem_result {
    caught(|| {
        if !usage.is_null() {
            // An error leaves the scope open.
            // SAFETY: it is not null, so the caller promises a size.
            unsafe { arguments::stated_size(usage, "usage") }?;
        }
        let ended = OPEN.try_with(|open| {
            let mut open = open.borrow_mut();
            let index = open.scopes.iter().rposition(|(number, _)| *number == scope)?;
            Some(open.scopes.remove(index).1)
        });
        let ended = ended.ok().flatten().ok_or_else(|| {
            Failure::state("this thread has no open scope of that number; end a scope once, on the thread that has begun it")
        })?;
        let found = ended.end();
        if usage.is_null() {
            return Ok(());
        }
        let value = gpumem_scope_usage {
            struct_size: size_of::<gpumem_scope_usage>(),
            allocated_bytes: found.allocated_bytes,
            allocation_count: found.allocation_count,
            freed_bytes: found.freed_bytes,
            free_count: found.free_count,
            peak_bytes: found.peak_bytes,
        };
        // SAFETY: the caller promises the bytes that the size states.
        unsafe { arguments::write(usage, value, "usage") }
    })
}

//! Tests of the thread caches' parts. They are here because the models in `tests/shuttle` compile the parts over other
//! threads, which these tests cannot use.

mod budget;
mod depot;
mod large_cache;
mod size_class;
mod thread_cache;
mod thread_caches;

use super::thread_cache::{OwnerGuard, ThreadCache};

/// The test's access to a cache that it owns.
#[allow(unsafe_code)]
fn own(cache: &ThreadCache) -> OwnerGuard<'_> {
    // SAFETY: a test uses each of its caches on one thread, and not within the work that it gives to a view.
    unsafe { cache.own() }
}

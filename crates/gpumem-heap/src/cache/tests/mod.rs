//! Tests of the pool's parts. They are not in the parts' files because the models in `tests/loom` and `tests/shuttle`
//! compile those over other threads, outside of which they can't run.

mod budget;
mod counters;
mod depot;
mod large_cache;
mod size_class;
mod thread_cache;
mod thread_caches;

use super::thread_cache::{OwnerGuard, ThreadCache};

/// The test's view of a cache of its own.
#[allow(unsafe_code)]
fn own(cache: &ThreadCache) -> OwnerGuard<'_> {
    // SAFETY: a test uses each of its caches on one thread, and not within the work that it gives to a view.
    unsafe { cache.own() }
}

//! Thread caches: each thread keeps freed blocks for a stream, so most requests touch neither the heap nor its lock.
//!
//! | file | job |
//! | --- | --- |
//! | `thread_caches` | [`ThreadCaches`]: all caches and the depot of one pool |
//! | `thread_table` | finds the calling thread's cache of a stream |
//! | `thread_cache` | [`ThreadCache`]: one thread's cache of one stream |
//! | `magazine`, `large_cache` | blocks up to 1 MiB by size class; the last few larger ones |
//! | `depot`, `budget` | batches of blocks that move between threads; the capacity of all caches together |

mod budget;
mod depot;
mod large_cache;
mod magazine;
#[cfg(test)]
mod tests;
mod thread_cache;
mod thread_caches;
mod thread_table;

pub use large_cache::{CLOSE_STEPS, LOOSE_STEPS, LargeBlock, Retention, SizeStep};
pub use thread_cache::{OwnerGuard, ThreadCache};
pub use thread_caches::{Drained, ThreadCaches};
pub use thread_table::{
    FoundCache, KEY_STEP, each_cache, find_cache, forget_found, with_cache, with_cache_or_adopt,
};

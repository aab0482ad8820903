//! [`Lifetime`]: detects when the last handle and the last block of a pool are gone.
//!
//! Handles are counted one by one. Blocks are counted by the backend, per thread, so that threads share no counter while the pool has a
//! handle. When the last handle is dropped, the backend closes its counters and reports how many of its blocks are alive. From then on each
//! free is counted here, and the last one ends the state.
//!
//! `remaining` starts far above any number of blocks, so that frees counted here before the backend closes cannot bring it to zero. Closing
//! adds the number of live blocks and subtracts that offset.

use super::{LoomAtomicU64, Ordering};

/// Counts the objects that keep a pool alive: handles, and blocks that its backend does not count.
pub struct Lifetime {
    handle_count: LoomAtomicU64,
    /// Blocks that are counted here, plus [`OPEN`] while there is a handle.
    remaining: LoomAtomicU64,
}

impl Lifetime {
    /// Starts with one handle.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one more handle.
    pub fn add_handle(&self) {
        self.handle_count.fetch_add(1, Ordering::Relaxed);
    }

    /// True if the caller's handle is the only one, and no block is counted here. What others did before they dropped theirs happens before
    /// this returns.
    pub fn is_idle(&self) -> bool {
        self.handle_count.load(Ordering::Acquire) == 1 && self.remaining.load(Ordering::Acquire) == OPEN
    }

    /// Drops a handle. Returns true if it was the last. Then [`Lifetime::close`] must follow; the state exists until then.
    pub fn drop_handle(&self) -> bool {
        self.handle_count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Closes the count after the last handle, with the number of blocks that the backend had counted and that are alive. Returns
    /// true if no block is left.
    #[must_use = "if true, the caller ends the state"]
    pub fn close(&self, alive: u64) -> bool {
        self.remaining.fetch_add(alive, Ordering::Relaxed);
        self.take(OPEN)
    }

    /// Counts a block that the backend does not count.
    pub fn count_in(&self) {
        self.remaining.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the free of a block that the backend does not count, or no longer counts. Returns true if it was the last; if not,
    /// the state may be gone by the time this returns.
    #[must_use = "if true, the caller ends the state"]
    pub fn count_off(&self) -> bool {
        self.take(1)
    }

    fn take(&self, count: u64) -> bool {
        // AcqRel: everything that a thread did to the state before it counted happens before the end.
        self.remaining.fetch_sub(count, Ordering::AcqRel) == count
    }
}

impl Default for Lifetime {
    fn default() -> Self {
        Self { handle_count: LoomAtomicU64::new(1), remaining: LoomAtomicU64::new(OPEN) }
    }
}

/// The start value of `remaining`.
const OPEN: u64 = 1 << 62;

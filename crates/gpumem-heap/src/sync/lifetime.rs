//! [`Lifetime`]: when a pool's state has no handle and no block left. Pure.
//!
//! Handles are counted one by one. Blocks are not, where the backend counts them anyway, thread by thread: nothing that
//! all threads share is touched for a block while the pool has a handle. When the last handle goes, the backend closes
//! its counters and says how many of its blocks are alive; from then on each of them that is freed is counted here, and
//! the last ends the state.
//!
//! `remaining` begins far above any number of blocks, so that blocks which are counted here while others still go to the
//! backend can't bring it to zero. Closing adds what is alive and takes that height away.

use super::{LoomAtomicU64, Ordering};

/// Counts what keeps a pool alive: handles, and blocks that its backend does not count.
pub struct Lifetime {
    handle_count: LoomAtomicU64,
    /// Blocks that are counted here, above [`OPEN`] while there is a handle.
    remaining: LoomAtomicU64,
}

impl Lifetime {
    /// With one handle.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one more handle.
    pub fn add_handle(&self) {
        self.handle_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it was the last handle. Then [`Lifetime::close`] must follow, and the state is there until it does.
    pub fn drop_handle(&self) -> bool {
        self.handle_count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// No handle is left, and the backend counts no more: this many blocks of those that it counted are alive. Whether
    /// nothing is left.
    #[must_use = "who is told so ends the state"]
    pub fn close(&self, alive: u64) -> bool {
        self.remaining.fetch_add(alive, Ordering::Relaxed);
        self.take(OPEN)
    }

    /// A block that the backend does not count.
    pub fn count_in(&self) {
        self.remaining.fetch_add(1, Ordering::Relaxed);
    }

    /// Such a block is gone, or one that the backend had counted and does no more. Whether nothing is left; if not, the
    /// state may be gone by the time this returns.
    #[must_use = "who is told so ends the state"]
    pub fn count_off(&self) -> bool {
        self.take(1)
    }

    fn take(&self, count: u64) -> bool {
        // What anybody did to the state before he counted comes before its end.
        self.remaining.fetch_sub(count, Ordering::AcqRel) == count
    }
}

impl Default for Lifetime {
    fn default() -> Self {
        Self { handle_count: LoomAtomicU64::new(1), remaining: LoomAtomicU64::new(OPEN) }
    }
}

/// What `remaining` begins at.
const OPEN: u64 = 1 << 62;

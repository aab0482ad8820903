//! [`CacheBudget`]: limits the combined size of a pool's magazines and depot.
//!
//! Each thread cache and each batch has an *allowance* in bytes. The budget grants it before blocks are put in, and revokes it after they
//! have left; blocks that move between a magazine and the depot take their allowance along. The bytes held never exceed the sum of the
//! allowances, which never exceeds the cap, for any number of threads. A lower cap drains nothing: no allowance is granted until enough has
//! been returned.

use gpumem_base::sync::{AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct CacheBudget {
    cap_bytes: AtomicU64,
    granted_bytes: AtomicU64,
}

impl CacheBudget {
    pub(super) fn new(cap_bytes: u64) -> Self {
        Self { cap_bytes: AtomicU64::new(cap_bytes), granted_bytes: AtomicU64::new(0) }
    }

    pub(super) fn set_cap(&self, cap_bytes: u64) {
        self.cap_bytes.store(cap_bytes, Ordering::Relaxed);
    }

    pub(super) fn cap_bytes(&self) -> u64 {
        self.cap_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn granted_bytes(&self) -> u64 {
        self.granted_bytes.load(Ordering::Relaxed)
    }

    /// Grants `wanted_bytes`, or the remaining bytes if they are at least `needed_bytes`, or 0.
    pub(super) fn grant(&self, needed_bytes: u64, wanted_bytes: u64) -> u64 {
        let cap_bytes = self.cap_bytes();
        let mut granted_bytes = self.granted_bytes();
        loop {
            let left_bytes = cap_bytes.saturating_sub(granted_bytes);
            if left_bytes < needed_bytes {
                return 0;
            }
            let grant_bytes = wanted_bytes.clamp(needed_bytes, left_bytes);
            // Relaxed: only the number matters. The blocks that it stands for are passed on under locks.
            match self.granted_bytes.compare_exchange_weak(
                granted_bytes,
                granted_bytes + grant_bytes,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return grant_bytes,
                Err(now_bytes) => granted_bytes = now_bytes,
            }
        }
    }

    pub(super) fn give_back(&self, size_bytes: u64) {
        if size_bytes > 0 {
            let before_bytes = self.granted_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
            debug_assert!(before_bytes >= size_bytes, "more came back than was granted");
        }
    }
}

//! [`Budget`]: how much all magazines and the depot of a device may hold together.
//!
//! Whoever holds pieces has an allowance for them, granted here before they are put in and given back after they have
//! left; pieces that move between a magazine and the depot take theirs along. So the sum of all that is held never
//! exceeds the sum of the allowances, which never exceeds the cap, however many threads there are. A lower cap takes
//! nothing away by itself: grants stop until enough has come back.

use crate::sync::{AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct Budget {
    cap_bytes: AtomicU64,
    granted_bytes: AtomicU64,
}

impl Budget {
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

    /// Grants what is wanted, or what is needed if that is all there is; 0 if there is less.
    pub(super) fn grant(&self, needed_bytes: u64, wanted_bytes: u64) -> u64 {
        let cap_bytes = self.cap_bytes();
        let mut granted_bytes = self.granted_bytes();
        loop {
            let left_bytes = cap_bytes.saturating_sub(granted_bytes);
            if left_bytes < needed_bytes {
                return 0;
            }
            let grant_bytes = wanted_bytes.clamp(needed_bytes, left_bytes);
            // Only the number counts: what it stands for is passed on under locks.
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

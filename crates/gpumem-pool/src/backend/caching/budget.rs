//! [`Budget`]: how much all magazines and the depot of a device may hold together.
//!
//! Whoever holds pieces has an allowance for them, granted here before they are put in and given back after they have
//! left; pieces that move between a magazine and the depot take theirs along. So the sum of all that is held never
//! exceeds the sum of the allowances, which never exceeds the cap, however many threads there are. A lower cap takes
//! nothing away by itself: grants stop until enough has come back.

use super::sync::{AtomicU64, Ordering};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_stop_at_the_cap() {
        let budget = Budget::new(100);
        assert_eq!(budget.grant(10, 60), 60);
        assert_eq!(budget.grant(10, 60), 40);
        assert_eq!(budget.grant(1, 1), 0);
        budget.give_back(5);
        assert_eq!(budget.grant(6, 60), 0);
        assert_eq!(budget.grant(5, 60), 5);
        assert_eq!(budget.granted_bytes(), 100);
    }

    #[test]
    fn a_lower_cap_takes_nothing_away() {
        let budget = Budget::new(100);
        assert_eq!(budget.grant(80, 80), 80);
        budget.set_cap(50);
        assert_eq!(budget.grant(1, 1), 0);
        budget.give_back(40);
        assert_eq!(budget.grant(1, 20), 10);
    }

    #[test]
    fn sixteen_threads_never_pass_the_cap() {
        let budget = Budget::new(1000);
        std::thread::scope(|scope| {
            for wanted_bytes in 1..=16 {
                let budget = &budget;
                scope.spawn(move || {
                    for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
                        let grant_bytes = budget.grant(1, wanted_bytes * 30);
                        assert!(budget.granted_bytes() <= 1000);
                        budget.give_back(grant_bytes);
                    }
                });
            }
        });
        assert_eq!(budget.granted_bytes(), 0);
    }
}

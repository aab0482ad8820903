//! [`BiasedCount`]: a count of running calls, which one thread raises and lowers without atomic exchanges.
//!
//! Two atomic additions per call cost more than the rest of a call that queues work. Most objects are used by one thread. The first thread
//! that counts becomes the permanent *owner*: only it writes its word, with a light fence after each write. All other threads share a
//! second word, which they change by atomic exchanges. A thread that reads the count makes a heavy fence first
//! ([`BiasedCount::fence_all`]), so it pays for both. `asymmetric_fence.rs` describes the fences. Without asymmetric fences no thread
//! becomes the owner. If the system refuses them later, each heavy fence waits 10 ms.

use super::{asymmetric_fence_heavy, asymmetric_fence_light, fence, is_light};
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A count of calls that are running.
#[derive(Debug)]
pub struct BiasedCount {
    /// The number of the owner thread, or [`NO_OWNER`].
    owner: AtomicU64,
    /// The owner's calls. Only the owner writes it.
    owned: AtomicU32,
    /// The calls of all other threads.
    shared: AtomicU32,
}

/// The word that counts a call; for [`BiasedCount::leave`] on the same thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountSide {
    /// The thread is the owner.
    Owner,
    /// It is another thread.
    Other,
}

impl Default for BiasedCount {
    fn default() -> Self {
        Self { owner: AtomicU64::new(NO_OWNER), owned: AtomicU32::new(0), shared: AtomicU32::new(0) }
    }
}

impl BiasedCount {
    /// Counts a call of this thread. The caller then reads a flag (`SeqCst`). Another thread sets the flag, calls
    /// [`BiasedCount::fence_all`], and reads the count. At least one of them sees what the other wrote.
    #[inline(always)]
    pub fn enter(&self) -> CountSide {
        if self.owner.load(Ordering::Relaxed) == NUMBER.get() {
            self.raise_owned(1);
            return CountSide::Owner;
        }
        self.enter_other()
    }

    #[inline(never)]
    fn enter_other(&self) -> CountSide {
        if self.owner.load(Ordering::Relaxed) == NO_OWNER && is_light() {
            let own = own_number();
            let owned = self.owner.compare_exchange(NO_OWNER, own, Ordering::Relaxed, Ordering::Relaxed);
            if owned.is_ok() {
                self.raise_owned(1);
                // A thread that has not seen an owner makes no heavy fence, so the first call makes a full one.
                fence();
                return CountSide::Owner;
            }
        }
        self.shared.fetch_add(1, Ordering::SeqCst);
        CountSide::Other
    }

    /// Ends a call that [`BiasedCount::enter`] counted on this thread. A flag that the caller reads next is as for `enter`.
    #[inline(always)]
    pub fn leave(&self, side: CountSide) {
        match side {
            CountSide::Owner => self.raise_owned(u32::MAX),
            CountSide::Other => {
                self.shared.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Adds to the owner's word, modulo 2³². Release: a thread that reads the count sees the call's effects.
    #[inline(always)]
    fn raise_owned(&self, by: u32) {
        self.owned.store(self.owned.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
        asymmetric_fence_light();
    }

    /// Makes later results of [`BiasedCount::total`] contain each call whose thread does not see what this thread wrote before. Takes
    /// microseconds for any number of counts.
    pub fn fence_all<'a>(counts: impl IntoIterator<Item = &'a Self>) {
        fence();
        // Behind the fence: either this thread sees the owner, or the owner's calls see what this thread wrote before.
        if counts.into_iter().any(|count| count.owner.load(Ordering::Relaxed) != NO_OWNER) {
            asymmetric_fence_heavy(true);
        }
    }

    /// The number of calls that are running.
    pub fn total(&self) -> usize {
        self.owned.load(Ordering::Acquire) as usize + self.shared.load(Ordering::SeqCst) as usize
    }
}

/// The number of this thread, from 1.
fn own_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    }
    NUMBER.get()
}

/// The value of `owner` before the first call. No thread has this number.
const NO_OWNER: u64 = u64::MAX;

std::thread_local! {
    /// 0 until the thread first becomes an owner.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

#[cfg(all(test, not(any(gpumem_loom, gpumem_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_threads_count() {
        let count = BiasedCount::default();
        let sides = [count.enter(), count.enter()];
        assert_eq!(sides[0], sides[1]);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let side = count.enter();
                let total = count.total();
                count.leave(side);
                (side, total)
            });
            assert_eq!(other.join().unwrap(), (CountSide::Other, 3));
        });
        sides.into_iter().for_each(|side| count.leave(side));
        assert_eq!(count.total(), 0);
    }

    /// In each round the owner begins a call while a closer sets the flag, and stays in it until the closer has read the count. In no round
    /// does each miss the other.
    #[test]
    fn a_call_and_a_closer_see_each_other() {
        let (count, closed) = (BiasedCount::default(), AtomicU64::new(0));
        let [begun, read] = [(); 2].map(|()| AtomicU64::new(0));
        let rounds = if cfg!(miri) { 20 } else { 5_000 };
        let wait_for = |number: &AtomicU64, least| {
            (0..).take_while(|_| number.load(Ordering::Acquire) < least).for_each(crate::sync::pause);
        };
        let meet = |round| {
            begun.fetch_add(1, Ordering::AcqRel);
            wait_for(&begun, 2 * round);
        };
        std::thread::scope(|scope| {
            let owner = scope.spawn(|| {
                // The first call makes a full fence, the others light ones.
                let side = count.enter();
                count.leave(side);
                let saw = |round| {
                    meet(round);
                    let side = count.enter();
                    let saw = closed.load(Ordering::SeqCst) == round;
                    wait_for(&read, round);
                    count.leave(side);
                    saw
                };
                (1..=rounds).map(saw).collect::<Vec<bool>>()
            });
            let saw = |round| {
                meet(round);
                closed.store(round, Ordering::Relaxed);
                BiasedCount::fence_all([&count]);
                let saw = count.total() > 0;
                read.store(round, Ordering::Release);
                saw
            };
            let closer: Vec<bool> = (1..=rounds).map(saw).collect();
            assert!(owner.join().unwrap().into_iter().zip(closer).all(|(one, other)| one || other));
        });
    }
}

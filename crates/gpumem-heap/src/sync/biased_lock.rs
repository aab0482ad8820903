//! [`BiasedLock`]: a value that its owner reaches with plain reads and writes, and anyone else by taking it away for a moment.
//!
//! There are two words. `held` is the owner's: he writes that he is at the value, looks whether somebody else has revoked
//! it, and goes to the value if not. `revoke` is for all others: whoever has revoked it waits until the owner is not at it.
//! Between the write and the look each makes a barrier, so that one of them sees the other; the owner's costs nothing, the
//! others' all the more, so those who want several values revoke all of them and make one barrier ([`revoke_all`]). Where the
//! system has no such barriers an unclaimed value says so ([`FENCED`]), and its owner looks again behind a fence.
//!
//! Whoever is at the value does a few loads and stores and waits for nobody, so waiting for it is short. A closed value
//! stays closed.

use super::{
    AtomicU32, Ordering, UnsafeCell, asymmetric_fence_heavy, asymmetric_fence_light, fence, is_light, pause,
};

/// A value that one thread owns, and that others may take from it for a moment.
#[derive(Debug)]
pub struct BiasedLock<T> {
    /// Written by the owner alone.
    held: AtomicU32,
    revoke: AtomicU32,
    value: UnsafeCell<T>,
}

/// The states of both words; only claims are closed or fenced.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const CLOSED: u32 = 2;

/// Unclaimed, for an owner who makes a fence.
const FENCED: u32 = 3;

/// A value taken from its owner until this is dropped.
#[derive(Debug)]
pub struct Revoked<'a, T> {
    locked: &'a BiasedLock<T>,
    closes: bool,
}

impl<T> BiasedLock<T> {
    /// An unclaimed value.
    pub fn new(value: T) -> Self {
        Self {
            held: AtomicU32::new(FREE),
            revoke: AtomicU32::new(unclaimed()),
            value: UnsafeCell::new(value),
        }
    }

    /// Lets `work` have the value to itself; `None` if somebody else has revoked it, or if it is closed.
    ///
    /// # Safety
    ///
    /// One thread at a time is the value's owner, and each comes after all that the one before did. The calling thread is
    /// it, and not within the `work` of an earlier call.
    #[inline]
    pub unsafe fn try_own<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        debug_assert_eq!(self.held.load(Ordering::Relaxed), FREE, "one owner, and no work within work");
        self.held.store(TAKEN, Ordering::Relaxed);
        let _held = Word { word: &self.held, after: FREE };
        asymmetric_fence_light();
        // Acquire: what the last claimer did to the value is seen here.
        if self.revoke.load(Ordering::Acquire) != FREE && !self.is_unclaimed_behind_a_fence() {
            return None;
        }
        // SAFETY: the barriers are made in between, so a claimer whose revoke was not seen here sees that the value is held,
        // and waits until `_held` is dropped. Other owners there are none, by the caller's promise.
        Some(self.value.with_mut(|value| work(unsafe { &mut *value })))
    }

    /// Without a call, whose caller would have to save what it has in registers.
    #[inline(always)]
    fn is_unclaimed_behind_a_fence(&self) -> bool {
        let is_fenced = || self.revoke.load(Ordering::Acquire) == FENCED;
        is_fenced() && {
            fence();
            is_fenced()
        }
    }

    /// The same after waiting until nobody else has it; `None` once it is closed.
    ///
    /// # Safety
    ///
    /// As [`BiasedLock::try_own`].
    pub unsafe fn own<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut work = Some(work);
        for turn in 0.. {
            match self.revoke.load(Ordering::Relaxed) {
                FREE | FENCED => {}
                CLOSED => return None,
                _ => {
                    pause(turn);
                    continue;
                }
            }
            // SAFETY: the caller's promise.
            let done = unsafe { self.try_own(|value| work.take().map(|work| work(value))) };
            if let Some(result) = done {
                return result;
            }
        }
        None
    }

    /// True once the value is closed, for good.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.revoke.load(Ordering::Relaxed) == CLOSED
    }

    /// To be followed by a heavy barrier. Says what it was before; `None` if it is closed.
    fn revoke(&self) -> Option<u32> {
        for turn in 0.. {
            match self.revoke.load(Ordering::Relaxed) {
                CLOSED => return None,
                before if is_unlocked() => return Some(before),
                TAKEN => pause(turn),
                before => {
                    // Acquire: what the last claimer did to the value is seen here.
                    let revoked =
                        self.revoke.compare_exchange(before, TAKEN, Ordering::Acquire, Ordering::Relaxed);
                    if revoked.is_ok() {
                        return Some(before);
                    }
                }
            }
        }
        None
    }
}

/// Claims all values that are not closed, each with its key, for one barrier. Who claims more than one keeps others who
/// do so away meanwhile: two might wait for each other.
pub fn revoke_all<'a, K, T>(
    values: impl IntoIterator<Item = (K, &'a BiasedLock<T>)>,
) -> Vec<(K, Revoked<'a, T>)> {
    let mut are_light = false;
    let revoked = |(key, locked): (K, &'a BiasedLock<T>)| {
        are_light |= locked.revoke()? == FREE;
        Some((key, Revoked { locked, closes: false }))
    };
    let revoked: Vec<_> = values.into_iter().filter_map(revoked).collect();
    if !revoked.is_empty() {
        asymmetric_fence_heavy(are_light);
    }
    revoked
}

impl<T> Revoked<'_, T> {
    /// Lets `work` have the value to itself, once the owner is not at it. Then it is the owner's again.
    pub fn with<R>(self, work: impl FnOnce(&mut T) -> R) -> R {
        // Acquire: what the owner did to the value is seen here.
        for turn in 0.. {
            if self.locked.held.load(Ordering::Acquire) == FREE || is_unlocked() {
                break;
            }
            pause(turn);
        }
        // SAFETY: the revoke is taken until `self` is dropped, which is after `work`, so no other revoke succeeds. The barriers
        // were made in between, so an owner who did not see the revoke was seen above, and waited for; and one who comes now
        // sees it.
        self.locked.value.with_mut(|value| work(unsafe { &mut *value }))
    }

    /// As [`Revoked::with`]; then it is nobody's any more.
    pub fn close<R>(mut self, work: impl FnOnce(&mut T) -> R) -> R {
        self.closes = true;
        self.with(work)
    }
}

impl<T> Drop for Revoked<'_, T> {
    fn drop(&mut self) {
        if !is_unlocked() || self.closes {
            let after = if self.closes { CLOSED } else { unclaimed() };
            drop(Word { word: &self.locked.revoke, after });
        }
    }
}

// SAFETY: the value is reached by one thread at a time, which is what moving it between them amounts to.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

/// Lets go of a word when dropped, also by a panic.
struct Word<'a> {
    word: &'a AtomicU32,
    after: u32,
}

impl Drop for Word<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the next one at the value sees what was done to it.
        self.word.store(self.after, Ordering::Release);
    }
}

/// What says that nobody has revoked a value.
fn unclaimed() -> u32 {
    if is_light() { FREE } else { FENCED }
}

/// Whether claims are a mistake on purpose: nobody is kept away by them.
#[inline]
fn is_unlocked() -> bool {
    #[cfg(gpumem_planted_bugs)]
    return crate::injected_bugs::has(crate::injected_bugs::Bug::UnlockedDrain);
    #[cfg(not(gpumem_planted_bugs))]
    false
}

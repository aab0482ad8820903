//! [`BiasedLock`]: a lock whose owner needs only plain reads and writes, because other threads pay the cost (biased locking: Kawachiya,
//! Koseki and Onodera, "Lock reservation", OOPSLA 2002).
//!
//! There are two words. `held` belongs to the owner: it writes that it holds the value, checks whether another thread has revoked it, and
//! continues if not. All other threads use `revoke`: a thread that has set it waits until the owner does not hold the value. Between the
//! write and the check each side makes a fence, so that one of them sees the other. The owner's fence is free and the others' is expensive,
//! so a thread that needs several values revokes all of them with one fence ([`revoke_all`]). Without asymmetric fences an unrevoked value
//! is marked [`FENCED`], and its owner checks again behind a full fence.
//!
//! A holder does a few loads and stores and never waits, so waiting for it is short. A closed value stays closed.

use super::{
    AtomicU32, Ordering, UnsafeCell, asymmetric_fence_heavy, asymmetric_fence_light, fence, is_light, pause,
};

/// A value that one thread owns, and that other threads may revoke briefly.
#[derive(Debug)]
pub struct BiasedLock<T> {
    /// Written only by the owner.
    held: AtomicU32,
    revoke: AtomicU32,
    value: UnsafeCell<T>,
}

/// The states of both words; only `revoke` is ever closed or fenced.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const CLOSED: u32 = 2;

/// Not revoked, for an owner that makes full fences.
const FENCED: u32 = 3;

/// A value that is revoked from its owner until this is dropped.
#[derive(Debug)]
pub struct Revoked<'a, T> {
    locked: &'a BiasedLock<T>,
    closes: bool,
}

impl<T> BiasedLock<T> {
    /// Creates a value that is not revoked.
    pub fn new(value: T) -> Self {
        Self {
            held: AtomicU32::new(FREE),
            revoke: AtomicU32::new(unclaimed()),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `work` on the value. `None` if another thread has revoked it, or if it is closed.
    ///
    /// # Safety
    ///
    /// One thread at a time is the owner, and everything that an owner did happens before the next one starts. The calling thread
    /// is the owner, and not within the `work` of an earlier call.
    #[inline]
    pub unsafe fn try_own<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        debug_assert_eq!(self.held.load(Ordering::Relaxed), FREE, "one owner, and no work within work");
        self.held.store(TAKEN, Ordering::Relaxed);
        let _held = Word { word: &self.held, after: FREE };
        asymmetric_fence_light();
        // Acquire: makes the changes of the last revoking thread visible.
        if self.revoke.load(Ordering::Acquire) != FREE && !self.is_unclaimed_behind_a_fence() {
            return None;
        }
        // SAFETY: the fences come in between, so a revoking thread whose mark was not seen here sees that the value is held, and
        // waits until `_held` is dropped. The caller guarantees that there is no other owner.
        Some(self.value.with_mut(|value| work(unsafe { &mut *value })))
    }

    /// Inlined so that the caller need not save its registers.
    #[inline(always)]
    fn is_unclaimed_behind_a_fence(&self) -> bool {
        let is_fenced = || self.revoke.load(Ordering::Acquire) == FENCED;
        is_fenced() && {
            fence();
            is_fenced()
        }
    }

    /// Like [`BiasedLock::try_own`], but waits while another thread has revoked the value. `None` once it is closed.
    ///
    /// # Safety
    ///
    /// The requirements of [`BiasedLock::try_own`].
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
            // SAFETY: the caller upholds this function's contract.
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

    /// Sets the mark; a heavy fence must follow. Returns the state before; `None` if the value is closed.
    fn revoke(&self) -> Option<u32> {
        for turn in 0.. {
            match self.revoke.load(Ordering::Relaxed) {
                CLOSED => return None,
                before if is_unlocked() => return Some(before),
                TAKEN => pause(turn),
                before => {
                    // Acquire: makes the changes of the last revoking thread visible.
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

/// Revokes all values that are not closed, with one fence, and keeps the key of each. Two threads that revoke several values at
/// once might wait for each other; a caller with more than one value holds a lock that prevents this.
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
    /// Waits until the owner has released the value, and runs `work` on it. Afterwards the owner can use the value again.
    pub fn with<R>(self, work: impl FnOnce(&mut T) -> R) -> R {
        // Acquire: makes the owner's changes visible.
        for turn in 0.. {
            if self.locked.held.load(Ordering::Acquire) == FREE || is_unlocked() {
                break;
            }
            pause(turn);
        }
        // SAFETY: the mark stays until `self` is dropped, which is after `work`, so no other thread revokes the value. The fences
        // come in between, so an owner that did not see the mark was seen above, and waited for; and an owner that comes now sees
        // it.
        self.locked.value.with_mut(|value| work(unsafe { &mut *value }))
    }

    /// Like [`Revoked::with`], and closes the value.
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

// SAFETY: one thread at a time reaches the value, which amounts to moving it between threads.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

/// Resets a word when dropped, even by a panic.
struct Word<'a> {
    word: &'a AtomicU32,
    after: u32,
}

impl Drop for Word<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the next holder sees what was done to the value.
        self.word.store(self.after, Ordering::Release);
    }
}

/// The state of a value that no thread has revoked.
fn unclaimed() -> u32 {
    if is_light() { FREE } else { FENCED }
}

/// True while the injected bug `UnlockedDrain` makes revocation a no-op.
#[inline]
fn is_unlocked() -> bool {
    #[cfg(gpumem_planted_bugs)]
    return crate::injected_bugs::has(crate::injected_bugs::Bug::UnlockedDrain);
    #[cfg(not(gpumem_planted_bugs))]
    false
}

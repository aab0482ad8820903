//! [`Locked`]: a value behind one word that its owner nearly always finds free.
//!
//! One thread owns the value and takes the word with one exchange that nobody contends for; anyone else may take the
//! same word for a moment, to drain what a parked or dying owner left, or to read. Whoever holds the word does a few
//! loads and stores and never waits for anything, so waiting for it is short. A closed value stays closed.

use super::sync::{AtomicU32, Ordering, UnsafeCell, pause};

#[derive(Debug)]
pub(super) struct Locked<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

/// The states of the word.
const FREE: u32 = 0;
const HELD: u32 = 1;
const CLOSED: u32 = 2;

impl<T> Locked<T> {
    pub(super) fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Lets `work` have the value to itself; `None` if it is not free at this moment. `work` must not come back to the same
    /// value.
    #[inline]
    pub(super) fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Acquire: what the last holder did to the value is seen here.
        match self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(self.hold(FREE, work)),
            Err(_) => None,
        }
    }

    /// The same after waiting until it is free; `None` once it is closed.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        #[cfg(feature = "planted-bugs")]
        if crate::planted::has(crate::planted::Bug::UnlockedDrain) && !self.is_closed() {
            // SAFETY: none. That is the mistake.
            return Some(self.value.with_mut(|value| work(unsafe { &mut *value })));
        }
        self.wait().then(|| self.hold(FREE, work))
    }

    /// As [`Locked::with`], for the last time.
    pub(super) fn close<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.wait().then(|| self.hold(CLOSED, work))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.word.load(Ordering::Relaxed) == CLOSED
    }

    /// For who has just made the word held.
    #[inline]
    fn hold<R>(&self, after: u32, work: impl FnOnce(&mut T) -> R) -> R {
        let _held = Held { word: &self.word, after };
        // SAFETY: the word went from free to held by this thread's exchange, so until `_held` is dropped, which is after
        // `work`, no other thread's exchange succeeds, and nothing reaches the value but through one.
        self.value.with_mut(|value| work(unsafe { &mut *value }))
    }

    /// Takes the word; false if it is closed.
    fn wait(&self) -> bool {
        for turn in 0.. {
            match self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(CLOSED) => return false,
                Err(_) => pause(turn),
            }
        }
        false
    }
}

// SAFETY: the value is reached by one thread at a time, which is what moving it between them amounts to.
unsafe impl<T: Send> Sync for Locked<T> {}

/// Frees the word when dropped, also by a panic.
struct Held<'a> {
    word: &'a AtomicU32,
    after: u32,
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the next holder sees what was done to the value.
        self.word.store(self.after, Ordering::Release);
    }
}

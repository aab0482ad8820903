//! [`ThreadNumber`]: the calling thread.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

/// A thread of the process. No two threads have the same number, even after one has ended.
///
/// `std::thread::current` panics on a thread that has destroyed its local data. C programs call this library there: in a destructor of
/// `pthread_key_create`, for example, which frees memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadNumber(u64);

impl ThreadNumber {
    pub(crate) fn current() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Without a destructor, so it is never destroyed.
        thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
        if NUMBER.get() == 0 {
            NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        Self(NUMBER.get())
    }
}

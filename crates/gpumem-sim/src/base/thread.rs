//! The calling thread: its number, and whether it runs a kernel or a host function.

use core::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A thread of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ThreadKey(u64);

impl ThreadKey {
    /// The calling thread's number, also while its thread-locals are being destroyed (a `Cell<u64>` never is).
    pub(crate) fn current() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local!(static KEY: Cell<u64> = const { Cell::new(0) });
        Self(KEY.with(|key| {
            if key.get() == 0 {
                key.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            key.get()
        }))
    }
}

/// The life of a thread, for state that is stored under its number.
pub(crate) struct Life(Weak<()>);

impl Life {
    /// That of the calling thread. A thread that is destroying its thread-locals counts as ended.
    pub(crate) fn of_caller() -> Self {
        thread_local!(static ALIVE: Arc<()> = Arc::new(()));
        Self(ALIVE.try_with(Arc::downgrade).unwrap_or_default())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Marks a thread that runs a kernel or a host function: it may not call the driver.
pub(crate) struct Inside(bool);

impl Inside {
    pub(crate) fn enter() -> Self {
        Self(INSIDE.replace(true))
    }

    pub(crate) fn is_inside() -> bool {
        INSIDE.get()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

thread_local!(static INSIDE: Cell<bool> = const { Cell::new(false) });

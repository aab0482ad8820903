//! What the front needs of threads. The models in `tests/loom` and `tests/shuttle` compile the front's own sources over
//! another file in this one's place, in which every access is a step that a checker may reorder.

pub(super) use super::barrier::{fence, heavy, is_light, light};
pub(super) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};
pub(super) use std::thread_local;

/// A value whose owner says when it may be touched.
#[derive(Debug)]
pub(super) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Hands the value's address to `work`, which must not keep it.
    #[inline]
    pub(super) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}

/// Waits a little for another thread: busily at first, for it is about to be done, unless it is not running.
pub(super) fn pause(turn: u32) {
    if turn < 64 { core::hint::spin_loop() } else { std::thread::yield_now() }
}

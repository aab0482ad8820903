//! Loom's threads in the place of `backend/caching/sync.rs`.

pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(work)
    }
}

pub(crate) fn pause(_turn: u32) {
    loom::thread::yield_now();
}

//! Shuttle's threads in the place of `backend/caching/sync.rs`.

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(crate) use shuttle::sync::{Arc, Mutex, MutexGuard};
#[allow(unused_imports, reason = "without the pool nothing is a thread's own")]
pub(crate) use shuttle::thread_local;

/// Lets the other threads run while it is touched, and fails if one of them touches it too.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T> {
    value: core::cell::UnsafeCell<T>,
    is_touched: core::sync::atomic::AtomicBool,
}

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        let is_touched = core::sync::atomic::AtomicBool::new(false);
        Self { value: core::cell::UnsafeCell::new(value), is_touched }
    }

    pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        assert!(!self.is_touched.swap(true, Ordering::Relaxed), "two threads at one value");
        shuttle::thread::yield_now();
        let result = work(self.value.get());
        self.is_touched.store(false, Ordering::Relaxed);
        result
    }
}

/// Shuttle's threads see each other's writes at once, and may change at every access.
pub(crate) fn is_light() -> bool {
    true
}

pub(crate) fn light() {}

pub(crate) fn fence() {}

pub(crate) fn heavy(_are_light: bool) {}

pub(crate) fn pause(_turn: u32) {
    shuttle::thread::yield_now();
}

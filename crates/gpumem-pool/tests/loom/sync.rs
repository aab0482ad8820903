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

/// Loom knows only barriers of one kind: both sides make full fences, unless a test leaves one out.
pub(crate) fn is_light() -> bool {
    false
}

pub(crate) fn light() {}

pub(crate) fn fence() {
    unless(Missing::Light);
}

pub(crate) fn heavy(_are_light: bool) {
    unless(Missing::Heavy);
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Nothing,
    Light,
    Heavy,
}

std::thread_local! {
    /// Loom runs all threads of a model on the thread that asked for it.
    pub(crate) static MISSING: core::cell::Cell<Missing> = const { core::cell::Cell::new(Missing::Nothing) };
}

fn unless(missing: Missing) {
    if MISSING.get() != missing {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

pub(crate) fn pause(_turn: u32) {
    loom::thread::yield_now();
}

//! Primitives for threads, and the locks made of them.
//!
//! The primitives are those of the standard library. With `--cfg gpumem_loom` or `--cfg gpumem_shuttle` they are the model
//! checker's, which may change threads at every access. This file is the only place that selects them.
//!
//! `LoomAtomicU64` is an atomic that only loom checks. The types that use it have models under loom; under shuttle it would spend
//! the schedules of a whole pool.

#[cfg(not(any(gpumem_loom, gpumem_shuttle)))]
pub mod asymmetric_fence;
mod biased_count;
mod biased_lock;
mod lifetime;
mod lock;
mod movable_address;
mod spin_mutex;

pub use biased_count::{BiasedCount, CountSide};
pub use biased_lock::{BiasedLock, Revoked, revoke_all};
pub use lifetime::Lifetime;
pub use lock::Lock;
pub use movable_address::MovableAddress;
pub use primitives::*;
pub use spin_mutex::{SpinMutex, SpinMutexGuard};

#[cfg(not(any(gpumem_loom, gpumem_shuttle)))]
mod primitives {
    pub(super) use super::asymmetric_fence::{
        asymmetric_fence_heavy, asymmetric_fence_light, fence, is_light,
    };
    pub(crate) use core::sync::atomic::AtomicU64 as LoomAtomicU64;
    pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub use std::sync::{Arc, Mutex, MutexGuard};
    pub use std::thread_local;

    /// A value that several threads share; the surrounding code decides which of them may access it.
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        /// Hands the value's address to `work`, which must not keep it.
        #[inline]
        pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
            work(self.0.get())
        }
    }

    /// Waits briefly for another thread: spins at first, because it is about to finish, then yields, because it may not be running.
    pub(crate) fn pause(turn: u32) {
        if turn < 64 { core::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

/// Loom explores every interleaving of a few threads, with the reorderings that the memory model allows.
#[cfg(gpumem_loom)]
mod primitives {
    pub(crate) use loom::sync::atomic::AtomicU64 as LoomAtomicU64;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub use loom::sync::{Mutex, MutexGuard};
    pub use std::sync::Arc;
    pub use std::thread_local;

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

    /// Loom has one kind of fence: both sides make full fences, unless a test leaves one out.
    pub(crate) fn is_light() -> bool {
        false
    }

    pub(crate) fn asymmetric_fence_light() {}

    pub(crate) fn fence() {
        unless(Missing::Light);
    }

    pub(crate) fn asymmetric_fence_heavy(_are_light: bool) {
        unless(Missing::Heavy);
    }

    /// A fence that a model omits, to show that loom detects it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Missing {
        /// None.
        Nothing,
        /// The owner's fence.
        Light,
        /// The other threads' fence.
        Heavy,
    }

    std::thread_local! {
        /// A plain thread-local: loom runs all threads of a model on the thread that started it.
        pub static MISSING: core::cell::Cell<Missing> = const { core::cell::Cell::new(Missing::Nothing) };
    }

    fn unless(missing: Missing) {
        if MISSING.get() != missing {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    pub(crate) fn pause(_turn: u32) {
        loom::thread::yield_now();
    }
}

/// Shuttle runs many threads in random schedules. Threads see each other's writes at once, and may change at every access.
#[cfg(gpumem_shuttle)]
mod primitives {
    pub(crate) use core::sync::atomic::AtomicU64 as LoomAtomicU64;
    pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub use shuttle::sync::{Arc, Mutex, MutexGuard};
    pub use shuttle::thread_local;

    /// Lets other threads run during an access, and fails if one of them accesses the value too.
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

    pub(crate) fn is_light() -> bool {
        true
    }

    pub(crate) fn asymmetric_fence_light() {}

    pub(crate) fn fence() {}

    pub(crate) fn asymmetric_fence_heavy(_are_light: bool) {}

    pub(crate) fn pause(_turn: u32) {
        shuttle::thread::yield_now();
    }
}

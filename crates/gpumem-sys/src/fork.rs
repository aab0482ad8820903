//! Forked children. A driver does not work in a process that was forked from the one that opened it, and the threads that
//! held locks at the fork do not exist there. So layers above check [`is_child`] before they take a lock.

use core::sync::atomic::{AtomicBool, Ordering};

/// True in a process that was forked, after [`watch`], from the process that called it. Its own children count too.
///
/// It stays false in a process that was started by `exec`, such as a worker that Python's `multiprocessing` spawns. One
/// relaxed load.
///
/// ```
/// use gpumem_sys::fork;
///
/// fork::watch();
/// assert!(!fork::is_child());
/// ```
#[inline]
#[must_use]
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Makes [`is_child`] true in processes that are forked from now on. Called when a driver is opened; later calls change
/// nothing.
pub fn watch() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::Relaxed) {
        run_in_children(mark);
    }
}

/// Runs `handler` in processes that are forked from now on, on the thread that called `fork`, before `fork` returns there.
/// The handler may only read and write atomics and thread-locals without destructor, because other threads may have held
/// any lock.
///
/// Does nothing on systems without `fork`.
pub fn run_in_children(handler: extern "C" fn()) {
    register(handler);
}

/// The text of errors in a forked child.
pub const REFUSED: &str = "this process was forked: start workers with spawn, or use the GPU only after the fork; the parent had \
                           opened the driver, which does not work in a child that was forked from it";

extern "C" fn mark() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

static IS_CHILD: AtomicBool = AtomicBool::new(false);

#[cfg(all(unix, not(miri)))]
fn register(handler: extern "C" fn()) {
    use core::ffi::c_int;
    type Handler = Option<extern "C" fn()>;
    // SAFETY: every C library on Unix, which std links anyway, has this function with this signature. It takes any functions.
    unsafe extern "C" {
        safe fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }
    // Without memory for the entry, a child notices the driver's errors only.
    let _ = pthread_atfork(None, None, Some(handler));
}

#[cfg(not(all(unix, not(miri))))]
fn register(_handler: extern "C" fn()) {}

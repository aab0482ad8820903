//! The normal end of the process.

/// Runs `handler` when the process returns from `main` or calls `exit`, before its static variables are destroyed. Other threads may still run.
/// A forked child runs it too, unless it ends by `_exit`; a process that is killed does not.
///
/// Does nothing on systems other than Unix, and without memory for the entry.
pub fn at_exit(handler: extern "C" fn()) {
    register(handler);
}

#[cfg(all(unix, not(miri)))]
fn register(handler: extern "C" fn()) {
    // SAFETY: every C library, which std links anyway, has this function with this signature. It takes any function.
    unsafe extern "C" {
        safe fn atexit(handler: extern "C" fn()) -> core::ffi::c_int;
    }
    let _ = atexit(handler);
}

#[cfg(not(all(unix, not(miri))))]
fn register(_handler: extern "C" fn()) {}

//! Guards around user code. [`catch_panic`] stops its panics, in drops and where later steps must run.
//! [`ReentrancyGuard`] detects calls from within itself.

use core::cell::Cell;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::LocalKey;

/// Runs `work`. If it panics, returns the panic's message; the panic hook has already reported the location.
pub fn catch_panic<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let text = message(&*payload).to_owned();
        forget(payload);
        text
    })
}

/// Drops a panic payload. If its drop panics, that payload is leaked.
#[cold]
pub fn forget(payload: Box<dyn Any + Send>) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(payload))).map_err(core::mem::forget);
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    payload.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no message")
}

/// Marks the outermost call of one kind on this thread, until it is dropped.
pub struct ReentrancyGuard(&'static LocalKey<Cell<bool>>);

impl ReentrancyGuard {
    /// `None` inside such a call.
    #[inline]
    pub fn begin(is_within: &'static LocalKey<Cell<bool>>) -> Option<Self> {
        (!is_within.replace(true)).then(|| Self(is_within))
    }
}

impl Drop for ReentrancyGuard {
    #[inline]
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn the_first_is_the_outermost_until_it_ends() {
        thread_local!(static IS_WITHIN: Cell<bool> = const { Cell::new(false) });
        for _ in 0..2 {
            let first = ReentrancyGuard::begin(&IS_WITHIN);
            assert!(first.is_some() && ReentrancyGuard::begin(&IS_WITHIN).is_none());
            assert!(ReentrancyGuard::begin(&IS_WITHIN).is_none(), "the second has changed nothing");
        }
    }

    #[test]
    fn panics_end_here_whatever_they_throw() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        assert_eq!(catch_panic(|| panic!("no {}", "more")), Err::<(), _>("no more".into()));
        assert_eq!(catch_panic(|| panic_any(Bomb(3))), Err::<(), _>("no message".into()));
    }
}

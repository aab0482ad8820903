//! The deadline of a request: one bound on all waits for running work, over all rungs, retries and pools.
//!
//! It begins at the first wait of the request, so that a request without waits does not read the clock.

use core::cell::Cell;
use core::time::Duration;
use std::time::Instant;

#[derive(Clone, Copy)]
enum Deadline {
    /// No request is active on this thread.
    Outside,
    /// The request has not waited yet.
    NotBegun,
    At(Instant),
}

thread_local! {
    static DEADLINE: Cell<Deadline> = const { Cell::new(Deadline::Outside) };
}

/// A request of this thread, active until it is dropped. A nested request, such as an allocation in a reclaim callback,
/// shares the outer request's deadline.
#[must_use = "dropping it ends the request"]
pub struct RequestScope {
    is_outermost: bool,
}

impl RequestScope {
    /// Begins a request.
    #[inline]
    pub fn begin() -> Self {
        let is_outermost = matches!(DEADLINE.get(), Deadline::Outside);
        if is_outermost {
            DEADLINE.set(Deadline::NotBegun);
        }
        Self { is_outermost }
    }
}

impl Drop for RequestScope {
    #[inline]
    fn drop(&mut self) {
        if self.is_outermost {
            DEADLINE.set(Deadline::Outside);
        }
    }
}

/// The deadline of this thread's request: `patience` after the first call in the request, or an outer request's earlier
/// deadline.
pub fn until(patience: Duration) -> Instant {
    let latest = Instant::now() + patience;
    match DEADLINE.get() {
        Deadline::At(deadline) => deadline.min(latest),
        Deadline::NotBegun => {
            DEADLINE.set(Deadline::At(latest));
            latest
        }
        Deadline::Outside => latest,
    }
}

/// True if this thread's request has reached its deadline.
#[inline]
pub fn has_passed() -> bool {
    matches!(DEADLINE.get(), Deadline::At(deadline) if Instant::now() >= deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_deadline_and_the_next_a_new_one() {
        let hour = Duration::from_secs(3600);
        assert!(!has_passed());
        let outer = RequestScope::begin();
        let first = until(hour);
        {
            let _inner = RequestScope::begin();
            assert!(until(Duration::from_secs(7200)) == first && until(Duration::ZERO) < first);
        }
        assert!(until(hour) == first && !has_passed());
        drop(outer);
        let _next = RequestScope::begin();
        assert!(until(Duration::ZERO) < first && has_passed());
    }
}

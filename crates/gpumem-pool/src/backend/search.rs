//! [`Search`]: a request for memory that the pool's ladder continues, after the backend has found no free memory. [`Outcome`]: what a
//! search has come to.

use crate::error::{PoolError, Refusal};

/// A request that the ladder repeats until one of its *rungs* makes enough room. A *pass* is one climb over all rungs.
pub(crate) trait Search<T> {
    /// The name of a rung in reports; `None` after the last rung. The cheapest rung comes first.
    fn rung(&self, _rung: usize) -> Option<&'static str> {
        None
    }

    /// Begins a pass. Searches free memory, unless the backend did so just before the first pass. An error means that a call failed for a
    /// reason other than a shortage of memory.
    fn begin(&mut self, is_first: bool) -> Result<Outcome<T>, PoolError>;

    /// Makes room with this rung, and searches again.
    fn climb(&mut self, _rung: usize) -> Result<Outcome<T>, PoolError> {
        Ok(Outcome::Skipped)
    }

    /// A measure of the free memory. Its growth is a rung's gain.
    fn free_bytes(&self) -> Result<i64, PoolError> {
        Ok(0)
    }

    /// The size of the request, which is the gain of a step that serves it.
    fn requested_bytes(&self) -> u64;

    /// True if another pass may succeed, because other threads have allocated or freed memory since this one began.
    fn may_repeat(&self) -> bool {
        false
    }

    /// True if an adaptor's budget refuses the request. Then only reclaim callbacks help, and the request runs through the adaptors again,
    /// in the program's own context.
    fn is_over_budget(&self) -> bool {
        false
    }

    /// The shortage, for the report; the error itself if the request gets no report.
    fn shortage(&self) -> Result<Shortage, PoolError>;
}

pub(crate) enum Outcome<T> {
    Found(T),
    /// Memory is short: room may have been made, but not enough.
    Short,
    Skipped,
}

#[cfg(feature = "backend-caching")]
impl<T> Outcome<T> {
    pub(crate) fn or_short(found: Option<T>) -> Self {
        found.map_or(Self::Short, Self::Found)
    }

    pub(crate) fn map<U>(self, with: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Found(found) => Outcome::Found(with(found)),
            Self::Short => Outcome::Short,
            Self::Skipped => Outcome::Skipped,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    pub(crate) requested_bytes: u64,
    /// The requested alignment if it exceeds the alignment of every block, otherwise 0.
    pub(crate) alignment: u64,
    /// The bytes that the pool counts against its limits.
    pub(crate) admitted_bytes: u64,
    /// `None` if neither a limit nor the driver is known to have refused: the request was too large for the room below the
    /// limits, or for the device's free memory, and the driver was not called.
    pub(crate) refusal: Option<Refusal>,
}

/// True if the rung of this name waits on the host.
pub(crate) fn waits_on_host(name: &str) -> bool {
    [WAIT_FOR_FREES, WAIT_AND_TRIM].contains(&name)
}

/// The name of the rung that waits for the last uses of freed memory, up to the deadline.
pub(super) const WAIT_FOR_FREES: &str = "wait on the host for other streams' frees";

/// The name of the rung that waits for the device, up to the deadline, and releases cached memory.
pub(super) const WAIT_AND_TRIM: &str = "wait for the device and release cached memory";

//! [`Observer`]: the program's callback for refusals. [`Witness`]: records refusals and moves of arrays, or writes a file about refusals.

use crate::error::PoolError;
use crate::pool::PoolId;
use core::cell::Cell;
use core::fmt;
use gpumem_device::StreamId;
use gpumem_device::internal::ReentrancyGuard;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Arc<dyn Fn(&PoolError) + Send + Sync>);

/// Records refusals and moves of arrays, or writes the preceding events to a file.
pub(crate) trait Witness: Send + Sync {
    /// Called with each refusal that ends a request. Returns the path of the file that it has written, or the problem; `None` if
    /// it writes no file. No lock is held.
    fn refused(&self, pool: PoolId, refusal: &PoolError) -> Option<Result<PathBuf, String>>;

    /// Called with each move of an array to the host or back. No lock is held.
    fn moved(&self, pool: PoolId, moved: &SpillMove);
}

/// A move of the contents of an array between the device and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpillMove {
    pub(crate) kind: MoveKind,
    /// The address on the device, before or after the move.
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    /// The stream that the memory is freed or filled on.
    pub(crate) stream: StreamId,
    /// The number of the tag, 0 for none.
    pub(crate) tag: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveKind {
    /// To the host. `is_copied`: now; otherwise the host had the contents.
    Out { is_copied: bool },
    /// Back to the device. `is_early`: ahead of the use.
    Back { is_early: bool },
}

impl Observer {
    /// Calls the observer, except for requests made inside an observer.
    pub(crate) fn notify(&self, refusal: &PoolError) {
        if let Some(_guard) = ReentrancyGuard::begin(&IS_NOTIFYING) {
            (self.0)(refusal);
        }
    }
}

thread_local! {
    static IS_NOTIFYING: Cell<bool> = const { Cell::new(false) };
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

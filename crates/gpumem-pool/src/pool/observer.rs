//! [`Observer`]: the program's callback for refusals. [`Witness`]: records refusals, or writes a file about them.

use crate::error::PoolError;
use crate::pool::PoolId;
use core::cell::Cell;
use core::fmt;
use gpumem_device::internal::ReentrancyGuard;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Arc<dyn Fn(&PoolError) + Send + Sync>);

/// Records refusals, or writes the preceding events to a file.
pub(crate) trait Witness: Send + Sync {
    /// Called with each refusal that ends a request. Returns the path of the file that it has written, or the problem; `None` if
    /// it writes no file. No lock is held.
    fn refused(&self, pool: PoolId, refusal: &PoolError) -> Option<Result<PathBuf, String>>;
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

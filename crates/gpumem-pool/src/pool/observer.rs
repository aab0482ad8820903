//! [`Observer`]: a function of the program that is called with refusals. [`Witness`]: writes a file about them.

use crate::error::{OutOfMemory, PoolError};
use crate::pool::PoolId;
use crate::reclaim::ReentrancyGuard;
use core::cell::Cell;
use core::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A callback that receives each refusal before the request returns.
#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Arc<dyn Fn(&PoolError) + Send + Sync>);

/// Writes what preceded a refusal to a file.
pub(crate) trait Witness: Send + Sync {
    /// Returns the path of the file, or the problem. No lock is held.
    fn refused(&self, pool: PoolId, report: &OutOfMemory) -> Result<PathBuf, String>;
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

impl fmt::Debug for dyn Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Witness")
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

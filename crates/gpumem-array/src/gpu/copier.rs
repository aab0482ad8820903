//! [`Copier`]: a stream for one copy that must not wait behind the other work of a `Gpu`.
//!
//! The host waits for the copy, so a stream is idle when it is returned, and the next copy waits for no other work.

use super::Gpu;
use crate::error::ArrayError;
use core::ops::Deref;
use gpumem_pool::sys::fork;
use gpumem_pool::{Stream, not_forked};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The idle streams of one `Gpu` and its forks.
#[derive(Default)]
pub(super) struct Copiers(Mutex<Vec<Stream>>);

/// A `Gpu` with a separate stream for one copy, which the host waits for.
pub(crate) struct Copier<'a> {
    gpu: Gpu,
    copiers: &'a Copiers,
}

impl Gpu {
    /// A `Gpu` with the pools and kernels of this one, and an idle stream. After the copy the host waits, and drops it.
    pub(crate) fn copier(&self) -> Result<Copier<'_>, ArrayError> {
        not_forked()?;
        let copiers = &self.0.shared.copiers;
        let idle = copiers.lock().pop();
        let stream = match idle {
            Some(stream) => stream,
            None => Stream::new(self.device())?,
        };
        Ok(Copier { gpu: self.with(stream), copiers })
    }
}

impl Copiers {
    fn lock(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Copier<'_> {
    type Target = Gpu;
    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

impl Drop for Copier<'_> {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.copiers.lock().push(self.gpu.stream().clone());
    }
}

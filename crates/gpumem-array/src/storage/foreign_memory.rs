//! [`ForeignMemory`]: memory of another library.

use gpumem_pool::{Device, MemoryKind, Stream};
use std::sync::{Mutex, PoisonError};

/// Memory of another library, and its owner there.
pub(super) struct ForeignMemory {
    pub(super) device: Device,
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) kind: MemoryKind,
    /// The other library uses the memory again in the order of this stream.
    home: Stream,
    /// Other streams that have used it.
    users: Mutex<Vec<Stream>>,
    owner: Option<Box<dyn Send + Sync>>,
}

impl ForeignMemory {
    pub(super) fn new(
        device: Device,
        home: Stream,
        (address, size_bytes, kind): (u64, u64, MemoryKind),
        owner: Box<dyn Send + Sync>,
    ) -> Self {
        let users = Mutex::default();
        Self { device, address, size_bytes, kind, home, users, owner: Some(owner) }
    }

    pub(super) fn record_use(&self, stream: &Stream) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.id() != self.home.id() && !users.iter().any(|user| user.id() == stream.id()) {
            users.push(stream.clone());
        }
    }
}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        let users = self.users.get_mut().unwrap_or_else(PoisonError::into_inner);
        let is_ordered = users.iter().all(|user| {
            let waits = self.home.wait_for_point_outside_captures(user.point());
            waits.is_ok_and(|waits| waits || self.home.wait_for(user).is_ok())
        });
        if !is_ordered {
            // The other library would reuse the memory too early, so it never gets it back.
            core::mem::forget(self.owner.take());
        }
    }
}

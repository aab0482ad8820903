//! [`Trimmable`]: a pool that caches memory, and the lists of pools.

use crate::config::MemoryKind;
use gpumem_base::sync::Lock;
use gpumem_device::Device;
use std::sync::{Arc, Weak};

/// A pool that caches memory in addition to its blocks.
pub(crate) trait Trimmable: Send + Sync {
    /// Called before a wait for the device: moves the thread caches' memory to a place where the wait makes it releasable.
    fn before_giving(&self) {}

    fn kind(&self) -> MemoryKind;

    /// Releases the cached memory that is known to be unused. Unless the device is known to be idle, memory whose
    /// release waits for the device stays. The device's context is current.
    fn give_back_all(&self, is_idle: bool);

    /// The cached device memory. The device's context is current.
    fn cached_bytes(&self) -> u64;

    /// The part of the cached memory that is missing in the device's budget, which counts only admitted bytes.
    fn uncounted_bytes(&self) -> u64 {
        0
    }
}

/// What a GPU, or a limit, knows of its pools while they exist.
pub(crate) struct WeakList<T: ?Sized>(Lock<Vec<Weak<T>>>);

impl<T: ?Sized> WeakList<T> {
    pub(crate) const fn new() -> Self {
        Self(Lock::new(Vec::new()))
    }

    pub(crate) fn add(&self, member: Weak<T>) {
        let mut list = self.0.lock();
        list.retain(|other| other.strong_count() > 0);
        list.push(member);
    }

    pub(crate) fn live(&self) -> Vec<Arc<T>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl<T: ?Sized + Send + Sync + 'static> WeakList<T> {
    /// The list of the GPU.
    pub(crate) fn on(device: &Device) -> Arc<Self> {
        device.extension(Self::new)
    }
}

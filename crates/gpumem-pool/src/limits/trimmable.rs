//! [`Trimmable`]: a pool that caches memory, and the lists of such pools.

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

/// The pools of a GPU, or under one limit, that cache memory.
#[derive(Default)]
pub(crate) struct Trimmables(Lock<Vec<Weak<dyn Trimmable>>>);

impl Trimmables {
    pub(crate) fn on(device: &Device) -> Arc<Self> {
        device.extension(Self::default)
    }

    pub(crate) fn add(&self, member: Weak<dyn Trimmable>) {
        let mut list = self.0.lock();
        list.retain(|other| other.strong_count() > 0);
        list.push(member);
    }

    pub(crate) fn live(&self) -> Vec<Arc<dyn Trimmable>> {
        let list = self.0.lock();
        list.iter().filter_map(Weak::upgrade).collect()
    }
}

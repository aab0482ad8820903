//! [`DeviceBudget`]: the bytes that all pools of a device hold, and the margin of free memory that unified memory
//! needs. Pure.
//!
//! Unified memory may exceed the device: the excess moves away and back, and a program that uses all of it at once
//! comes to a standstill. It is therefore admitted only while the sum of unified memory and all device memory of pools
//! stays a margin below the device's memory. Device memory is admitted against this sum as long as there is unified
//! memory; otherwise only the driver decides.

use crate::config::MemoryKind;
use crate::error::{LimitExceeded, RefusedBy};
use core::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct DeviceBudget {
    most_bytes: u64,
    device_bytes: AtomicU64,
    unified_bytes: AtomicU64,
}

impl DeviceBudget {
    pub(crate) fn new(total_bytes: u64) -> Self {
        Self {
            most_bytes: total_bytes - total_bytes / MARGIN_SHARE,
            device_bytes: AtomicU64::new(0),
            unified_bytes: AtomicU64::new(0),
        }
    }

    /// Counts the bytes as held, or returns the margin if the sum would exceed it.
    pub(crate) fn admit(
        &self,
        kind: MemoryKind,
        size_bytes: u64,
        oversubscribes: bool,
    ) -> Result<(), LimitExceeded> {
        let Some(own) = self.of(kind) else { return Ok(()) };
        // Counted first, then compared: of two concurrent requests, at least one sees the other. The sum is never
        // exceeded; both may be refused.
        own.fetch_add(size_bytes, Ordering::SeqCst);
        match oversubscribes || self.room_bytes(kind).is_some() {
            true => Ok(()),
            false => {
                own.fetch_sub(size_bytes, Ordering::SeqCst);
                Err(self.margin())
            }
        }
    }

    /// Uncounts bytes, after the driver has released them.
    pub(crate) fn give_back(&self, kind: MemoryKind, size_bytes: u64) {
        if let Some(own) = self.of(kind) {
            own.fetch_sub(size_bytes, Ordering::SeqCst);
        }
    }

    /// The bytes of a kind that may still be admitted; `None` if the sum is exceeded already.
    pub(crate) fn room_bytes(&self, kind: MemoryKind) -> Option<u64> {
        let has_unified = || self.unified_bytes.load(Ordering::SeqCst) > 0;
        if kind == MemoryKind::Host || kind == MemoryKind::Device && !has_unified() {
            return Some(u64::MAX);
        }
        self.most_bytes.checked_sub(self.held_bytes())
    }

    /// The margin, if this many further bytes would exceed the sum.
    #[cfg(any(test, feature = "backend-caching"))]
    pub(crate) fn limit_exceeded_by(&self, kind: MemoryKind, size_bytes: u64) -> Option<LimitExceeded> {
        let has_room = self.room_bytes(kind).is_some_and(|room_bytes| room_bytes >= size_bytes);
        (!has_room).then(|| self.margin())
    }

    /// The device and unified memory that all pools hold.
    pub(crate) fn held_bytes(&self) -> u64 {
        let unified_bytes = self.unified_bytes.load(Ordering::SeqCst);
        self.device_bytes.load(Ordering::SeqCst).saturating_add(unified_bytes)
    }

    /// The device memory that all pools hold.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes.load(Ordering::SeqCst)
    }

    fn margin(&self) -> LimitExceeded {
        LimitExceeded {
            by: RefusedBy::Margin,
            owner: None,
            limit_bytes: self.most_bytes,
            held_bytes: self.held_bytes(),
        }
    }

    fn of(&self, kind: MemoryKind) -> Option<&AtomicU64> {
        match kind {
            MemoryKind::Device => Some(&self.device_bytes),
            MemoryKind::Unified => Some(&self.unified_bytes),
            MemoryKind::Host => None,
        }
    }
}

/// The margin is this part of the device (1/16): it holds what the driver, kernels and the display take.
const MARGIN_SHARE: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryKind::{Device, Host, Unified};

    fn margin(held_bytes: u64) -> LimitExceeded {
        LimitExceeded { by: RefusedBy::Margin, owner: None, limit_bytes: 1500, held_bytes }
    }

    #[test]
    fn unified_memory_leaves_a_margin_beside_what_is_reserved() {
        let budget = DeviceBudget::new(1600);
        assert_eq!(
            budget.admit(Device, 1600, false),
            Ok(()),
            "without unified memory it is the driver's say"
        );
        assert_eq!(budget.admit(Unified, 1, false), Err(margin(1600)));
        budget.give_back(Device, 600);
        assert_eq!(budget.admit(Unified, 400, false), Ok(()));
        assert_eq!(budget.admit(Unified, 101, false), Err(margin(1400)));
        assert_eq!(
            (budget.room_bytes(Device), budget.limit_exceeded_by(Device, 101)),
            (Some(100), Some(margin(1400)))
        );
        assert_eq!(budget.admit(Device, 101, false), Err(margin(1400)));
        assert_eq!(budget.admit(Device, 101, true), Ok(()));
        assert_eq!((budget.room_bytes(Device), budget.admit(Host, u64::MAX, false)), (None, Ok(())));
        budget.give_back(Unified, 400);
        assert_eq!(
            (budget.admit(Device, 1600, false), budget.limit_exceeded_by(Unified, 0)),
            (Ok(()), Some(margin(2701)))
        );
    }
}

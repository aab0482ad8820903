//! [`DeviceBudget`]: what all pools of a device hold, so that unified memory leaves the device room to work. Pure.
//!
//! Unified memory may be larger than the device: what does not fit moves away and back, and a program that uses it all
//! at once stands still. So it is admitted only while it and all that pools hold of the device stay a margin below what
//! the device has. Device memory is admitted against the same sum, as long as there is unified memory; without it the
//! driver's own word counts.

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

    /// Counts the bytes as held, or says what they would pass.
    pub(crate) fn admit(
        &self,
        kind: MemoryKind,
        size_bytes: u64,
        oversubscribes: bool,
    ) -> Result<(), LimitExceeded> {
        let Some(own) = self.of(kind) else { return Ok(()) };
        // First counted, then looked at: of two who come together, one at least sees the other. Nobody passes the sum; both
        // may be refused.
        own.fetch_add(size_bytes, Ordering::SeqCst);
        match oversubscribes || self.room_bytes(kind).is_some() {
            true => Ok(()),
            false => {
                own.fetch_sub(size_bytes, Ordering::SeqCst);
                Err(self.margin())
            }
        }
    }

    /// After the driver has taken them back.
    pub(crate) fn give_back(&self, kind: MemoryKind, size_bytes: u64) {
        if let Some(own) = self.of(kind) {
            own.fetch_sub(size_bytes, Ordering::SeqCst);
        }
    }

    /// How much more of a kind may be held; nothing if that is too much already.
    pub(crate) fn room_bytes(&self, kind: MemoryKind) -> Option<u64> {
        let has_unified = || self.unified_bytes.load(Ordering::SeqCst) > 0;
        if kind == MemoryKind::Host || kind == MemoryKind::Device && !has_unified() {
            return Some(u64::MAX);
        }
        self.most_bytes.checked_sub(self.held_bytes())
    }

    /// The sum that so many bytes more would pass, if they would.
    pub(crate) fn full_for(&self, kind: MemoryKind, size_bytes: u64) -> Option<LimitExceeded> {
        let has_room = self.room_bytes(kind).is_some_and(|room_bytes| room_bytes >= size_bytes);
        (!has_room).then(|| self.margin())
    }

    /// What all pools hold, of the device and of unified memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        let unified_bytes = self.unified_bytes.load(Ordering::SeqCst);
        self.device_bytes.load(Ordering::SeqCst).saturating_add(unified_bytes)
    }

    /// What pools hold of the device's own memory.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes.load(Ordering::SeqCst)
    }

    fn margin(&self) -> LimitExceeded {
        LimitExceeded { by: RefusedBy::Margin, limit_bytes: self.most_bytes, held_bytes: self.held_bytes() }
    }

    fn of(&self, kind: MemoryKind) -> Option<&AtomicU64> {
        match kind {
            MemoryKind::Device => Some(&self.device_bytes),
            MemoryKind::Unified => Some(&self.unified_bytes),
            MemoryKind::Host => None,
        }
    }
}

/// The margin is this part of the device: what the driver, kernels and the display take has room in it.
const MARGIN_SHARE: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryKind::{Device, Host, Unified};

    fn margin(held_bytes: u64) -> LimitExceeded {
        LimitExceeded { by: RefusedBy::Margin, limit_bytes: 1500, held_bytes }
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
            (budget.room_bytes(Device), budget.full_for(Device, 101)),
            (Some(100), Some(margin(1400)))
        );
        assert_eq!(budget.admit(Device, 101, false), Err(margin(1400)));
        assert_eq!(budget.admit(Device, 101, true), Ok(()));
        assert_eq!((budget.room_bytes(Device), budget.admit(Host, u64::MAX, false)), (None, Ok(())));
        budget.give_back(Unified, 400);
        assert_eq!(
            (budget.admit(Device, 1600, false), budget.full_for(Unified, 0)),
            (Ok(()), Some(margin(2701)))
        );
    }
}

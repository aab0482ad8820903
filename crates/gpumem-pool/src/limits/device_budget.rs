//! [`DeviceBudget`]: the bytes that all pools of a device hold, and the margin of free memory that unified memory
//! needs.
//!
//! Unified memory may exceed the device: the excess moves back and forth, and a program that uses all of it at once stalls. It is therefore
//! admitted only while the sum of unified memory and all device memory of pools stays a margin below the device's memory. Device memory is
//! admitted against this sum while there is unified memory; otherwise only the driver decides.
//!
//! An integrated device uses the host's memory, where the excess has nowhere to move, and other programs take their part. There, unified
//! memory must also leave the margin within the system's available memory.

use crate::config::MemoryKind;
use crate::error::{LimitExceeded, RefusedBy};
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_device::Device;
use gpumem_device::internal::host;
use std::sync::Arc;

pub(crate) struct DeviceBudget {
    most_bytes: u64,
    margin_bytes: u64,
    device_bytes: AtomicU64,
    unified_bytes: AtomicU64,
    available_bytes: Option<Available>,
}

/// The memory that the system can still give to an integrated device; `None` if the system does not report it.
pub(crate) type Available = Box<dyn Fn() -> Option<u64> + Send + Sync>;

impl DeviceBudget {
    pub(crate) fn on(device: &Device) -> Arc<Self> {
        device.extension(|| {
            let (driver, ordinal) = (device.driver().clone(), device.ordinal());
            let available_bytes = move || host::available_to(&driver, ordinal);
            let available_bytes = device.is_integrated().then(|| Box::new(available_bytes) as _);
            Self::new(device.total_bytes(), available_bytes)
        })
    }

    fn new(total_bytes: u64, available_bytes: Option<Available>) -> Self {
        let margin_bytes = total_bytes / MARGIN_SHARE;
        Self {
            most_bytes: total_bytes - margin_bytes,
            margin_bytes,
            device_bytes: AtomicU64::new(0),
            unified_bytes: AtomicU64::new(0),
            available_bytes,
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
        if !oversubscribes && self.spare_bytes(kind).is_some_and(|spare_bytes| spare_bytes < size_bytes) {
            return Err(self.margin(kind));
        }
        // Counted first, then compared: of two concurrent requests, at least one sees the other. The sum is never
        // exceeded; both may be refused.
        own.fetch_add(size_bytes, Ordering::SeqCst);
        match oversubscribes || self.below_total_bytes(kind).is_some() {
            true => Ok(()),
            false => {
                own.fetch_sub(size_bytes, Ordering::SeqCst);
                Err(self.margin(kind))
            }
        }
    }

    pub(crate) fn give_back(&self, kind: MemoryKind, size_bytes: u64) {
        if let Some(own) = self.of(kind) {
            own.fetch_sub(size_bytes, Ordering::SeqCst);
        }
    }

    /// The bytes of a kind that may still be admitted; `None` if the sum is already exceeded.
    #[cfg(any(test, feature = "backend-caching"))]
    pub(crate) fn room_bytes(&self, kind: MemoryKind) -> Option<u64> {
        let room_bytes = self.below_total_bytes(kind)?;
        Some(self.spare_bytes(kind).map_or(room_bytes, |spare_bytes| room_bytes.min(spare_bytes)))
    }

    /// The room below the device's memory without the margin.
    fn below_total_bytes(&self, kind: MemoryKind) -> Option<u64> {
        let has_unified = || self.unified_bytes.load(Ordering::SeqCst) > 0;
        if kind == MemoryKind::Host || kind == MemoryKind::Device && !has_unified() {
            return Some(u64::MAX);
        }
        self.most_bytes.checked_sub(self.held_bytes())
    }

    /// The memory that an integrated device can still get, beyond the margin. `None` for other devices and kinds.
    fn spare_bytes(&self, kind: MemoryKind) -> Option<u64> {
        let available_bytes = self.available_bytes.as_ref().filter(|_| kind == MemoryKind::Unified)?;
        Some(available_bytes()?.saturating_sub(self.margin_bytes))
    }

    /// The margin, if this many further bytes would exceed the sum.
    #[cfg(any(test, feature = "backend-caching"))]
    pub(crate) fn limit_exceeded_by(&self, kind: MemoryKind, size_bytes: u64) -> Option<LimitExceeded> {
        let has_room = self.room_bytes(kind).is_some_and(|room_bytes| room_bytes >= size_bytes);
        (!has_room).then(|| self.margin(kind))
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        let unified_bytes = self.unified_bytes.load(Ordering::SeqCst);
        self.device_bytes.load(Ordering::SeqCst).saturating_add(unified_bytes)
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes.load(Ordering::SeqCst)
    }

    fn margin(&self, kind: MemoryKind) -> LimitExceeded {
        let held_bytes = self.held_bytes();
        let spare_bytes = self.spare_bytes(kind).unwrap_or(u64::MAX);
        let limit_bytes = self.most_bytes.min(held_bytes.saturating_add(spare_bytes));
        LimitExceeded { by: RefusedBy::Margin, owner: None, limit_bytes, held_bytes }
    }

    fn of(&self, kind: MemoryKind) -> Option<&AtomicU64> {
        match kind {
            MemoryKind::Device => Some(&self.device_bytes),
            MemoryKind::Unified => Some(&self.unified_bytes),
            MemoryKind::Host => None,
        }
    }
}

/// The margin is this fraction of the device (1/16), for the driver, kernels and the display.
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
        let budget = DeviceBudget::new(1600, None);
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
    /// 400 of 1600 bytes are available, and the margin takes 100 of them. Device memory is left to the driver.
    #[test]
    fn unified_memory_of_an_integrated_device_leaves_the_margin_in_what_is_available() {
        let budget = DeviceBudget::new(1600, Some(Box::new(|| Some(400))));
        let refusal = Err(LimitExceeded { limit_bytes: 300, ..margin(0) });
        assert_eq!((budget.room_bytes(Unified), budget.room_bytes(Device)), (Some(300), Some(u64::MAX)));
        assert_eq!(budget.admit(Unified, 301, false), refusal);
        assert_eq!((budget.admit(Unified, 300, false), budget.held_bytes()), (Ok(()), 300));
        assert_eq!((budget.admit(Unified, 301, true), budget.admit(Device, 800, false)), (Ok(()), Ok(())));
        let silent = DeviceBudget::new(1600, Some(Box::new(|| None)));
        assert_eq!(silent.admit(Unified, 1500, false), Ok(()));
    }
}

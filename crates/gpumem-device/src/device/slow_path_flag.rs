//! [`SlowPathFlag`]: one word that sends every allocation and every free to the slow path.
//!
//! There is one for a machine, with its clocks. All threads read it constantly, and it is written only when a capture begins or ends and
//! when a device is lost. It has a separate cache line, which stays shared in the caches of all readers.

use core::sync::atomic::{AtomicU64, Ordering};

/// The number of active captures, plus [`LOST`] times the number of lost devices.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SlowPathFlag(AtomicU64);

impl SlowPathFlag {
    /// True if the fast path is allowed: no capture is active and no device is lost.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// True if a capture that this crate began is active.
    #[inline]
    pub(crate) fn has_captures(&self) -> bool {
        self.0.load(Ordering::Acquire) & (LOST - 1) != 0
    }

    /// Counts a capture that is about to begin.
    pub(crate) fn add_capture(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove_capture(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a device of the machine that is lost. After this call, pools check their device.
    pub(crate) fn add_lost(&self) {
        self.0.fetch_add(LOST, Ordering::AcqRel);
    }

    /// Removes a lost device that nothing uses any more.
    pub(crate) fn remove_lost(&self) {
        self.0.fetch_sub(LOST, Ordering::AcqRel);
    }
}

const LOST: u64 = 1 << 32;

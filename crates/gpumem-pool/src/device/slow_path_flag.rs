//! [`SlowPathFlag`]: one word that says whether anything is going on that every allocation and every free has to look at.
//!
//! There is one for a machine, with its clocks. It is read by all threads all the time, and written when a capture begins
//! or ends and when a device is lost: so it has its cache line to itself, which stays with every processor that reads it.

use core::sync::atomic::{AtomicU64, Ordering};

/// The number of captures that go on, and [`LOST`].
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct SlowPathFlag(AtomicU64);

impl SlowPathFlag {
    /// Whether nothing goes on.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Whether any capture goes on that was begun through this crate.
    #[inline]
    pub(crate) fn has_captures(&self) -> bool {
        self.0.load(Ordering::Acquire) & !LOST != 0
    }

    /// A capture is about to begin.
    pub(crate) fn add_capture(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One has ended.
    pub(crate) fn remove_capture(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// A device of the machine answers no more: from now on pools ask theirs.
    pub(crate) fn add_lost(&self) {
        self.0.fetch_or(LOST, Ordering::AcqRel);
    }
}

const LOST: u64 = 1 << 63;

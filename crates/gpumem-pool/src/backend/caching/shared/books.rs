//! What a pool says of itself: its sums, and whether they agree.

use super::Shared;
use crate::backend::{Counts, Reserved};

impl Shared {
    pub(in super::super) fn counts(&self) -> Counts {
        let (front, core) = (self.front.counters(), self.core());
        let sum = front + core.counters;
        // While others allocate and free, some of what they do is seen and some is not.
        let in_use_bytes = sum.in_use_bytes().min(core.heap.used_bytes()) + core.extents.size_bytes();
        Counts {
            in_use_bytes,
            in_use_peak_bytes: core.out_peak_bytes.max(in_use_bytes),
            block_count: sum.block_count(),
            allocation_count: sum.allocation_count(),
        }
    }

    pub(in super::super) fn reserved(&self) -> Reserved {
        let core = self.core();
        Reserved {
            current_bytes: core.heap.reserved_bytes(),
            peak_bytes: core.heap.reserved_peak_bytes(),
            record_bytes: core.heap.record_bytes() as u64,
        }
    }

    /// As [`Source::check`](crate::backend::Source::check).
    pub(in super::super) fn check(&self) -> Result<(), String> {
        let held_count = self.front.check()?;
        let counters = self.front.counters();
        let core = self.core();
        let out_count = core.heap.check()?;
        core.extents.check(&core.heap)?;
        let sum = counters + core.counters;
        if sum.block_count() + held_count != out_count {
            let block_count = sum.block_count();
            return Err(format!("{block_count} blocks and {held_count} pieces at hand, {out_count} are out"));
        }
        if sum.in_use_bytes() > core.heap.used_bytes() {
            return Err(format!(
                "{} bytes in blocks, {} are out",
                sum.in_use_bytes(),
                core.heap.used_bytes()
            ));
        }
        let (family, reserved_bytes) = (self.limits.family(), core.heap.reserved_bytes());
        match family.allows(reserved_bytes) {
            true => Ok(()),
            false => Err(format!("{reserved_bytes} bytes reserved, {} allowed", family.limit_bytes())),
        }
    }
}

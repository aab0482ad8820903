//! [`Shares`]: what each stream has, and whether it may help itself to more.
//!
//! Memory that is ready for all becomes a stream's own once the stream has used and freed it: others get it back only
//! when they learn that the stream has come that far. Where they seldom do, a stream that took ready memory whenever
//! its own pieces are the wrong size would end up with far more than it ever uses. So a stream that has as much as it
//! ever used, and the slack, first makes do with its own.

use super::fit::Fit;
use super::space::Space;
use super::stamps::Owner;
use crate::order::StreamIndex;

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    used_bytes: u64,
    used_peak_bytes: u64,
}

/// By the streams' slots.
#[derive(Debug, Default)]
pub(super) struct Shares {
    list: Vec<Share>,
}

impl Shares {
    pub(super) fn take(&mut self, slot: StreamIndex, size_bytes: u64) {
        if slot == StreamIndex::HOST {
            return;
        }
        let index = usize::from(slot.0);
        if self.list.len() <= index {
            self.list.resize(index + 1, Share::default());
        }
        let share = &mut self.list[index];
        share.used_bytes += size_bytes;
        share.used_peak_bytes = share.used_peak_bytes.max(share.used_bytes);
    }

    pub(super) fn give(&mut self, slot: StreamIndex, size_bytes: u64) {
        if let Some(share) = self.list.get_mut(usize::from(slot.0)) {
            share.used_bytes -= size_bytes;
        }
    }

    /// Whether a stream may take what is ready for all before it has made the most of its own.
    pub(super) fn may_take_ready(
        &self,
        slot: StreamIndex,
        size_bytes: u64,
        slack_per_mille: u32,
        spaces: &[Space; 2],
    ) -> bool {
        let share = self.list.get(usize::from(slot.0)).copied().unwrap_or_default();
        let used_bytes = share.used_bytes.saturating_add(size_bytes);
        let pending = |space: &Space| space.fit(Owner::of(slot)).map_or(0, |fit: &Fit| fit.size_bytes);
        let pending_bytes: u64 = spaces.iter().map(pending).sum();
        let peak_bytes = share.used_peak_bytes.max(used_bytes);
        let allowed_bytes =
            peak_bytes.saturating_add((peak_bytes / 1000).saturating_mul(u64::from(slack_per_mille)));
        used_bytes.saturating_add(pending_bytes) <= allowed_bytes || !self.has_others(slot)
    }

    /// The sum of each stream's own peak: what they need if none ever has another's memory.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.list.iter().map(|share| share.used_peak_bytes).sum()
    }

    /// Whether any other stream has ever used the heap.
    pub(super) fn has_others(&self, slot: StreamIndex) -> bool {
        let others = self.list.iter().enumerate().filter(|(index, _)| *index != usize::from(slot.0));
        others.into_iter().any(|(_, share)| share.used_peak_bytes > 0)
    }
}

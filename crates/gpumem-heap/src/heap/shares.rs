//! [`Shares`]: the memory that each stream uses, and whether it may take more of the memory that is ready for all streams.
//!
//! Ready memory becomes a stream's own once the stream has used and freed it; other streams can reuse it only after a marker of that stream
//! is complete. If markers are rare, a stream that takes ready memory whenever its own free blocks have the wrong size ends up with far
//! more than it ever uses. So a stream that already has its peak of use plus the slack uses up its own free memory first.

use super::fit::FreeLists;
use super::space::Space;
use super::stamps::FreeState;
use gpumem_base::order::StreamIndex;

#[derive(Clone, Copy, Debug, Default)]
struct StreamShare {
    used_bytes: u64,
    used_peak_bytes: u64,
}

/// By stream index.
#[derive(Debug, Default)]
pub(super) struct Shares {
    list: Vec<StreamShare>,
}

impl Shares {
    pub(super) fn take(&mut self, stream: StreamIndex, size_bytes: u64) {
        if stream == StreamIndex::HOST {
            return;
        }
        let index = usize::from(stream.0);
        if self.list.len() <= index {
            self.list.resize(index + 1, StreamShare::default());
        }
        let share = &mut self.list[index];
        share.used_bytes += size_bytes;
        share.used_peak_bytes = share.used_peak_bytes.max(share.used_bytes);
    }

    pub(super) fn give(&mut self, stream: StreamIndex, size_bytes: u64) {
        if let Some(share) = self.list.get_mut(usize::from(stream.0)) {
            share.used_bytes -= size_bytes;
        }
    }

    /// True if a stream may take ready memory before it has used up its own.
    pub(super) fn may_take_ready(
        &self,
        stream: StreamIndex,
        size_bytes: u64,
        slack_per_mille: u32,
        spaces: &[Space; 2],
    ) -> bool {
        let share = self.list.get(usize::from(stream.0)).copied().unwrap_or_default();
        let used_bytes = share.used_bytes.saturating_add(size_bytes);
        let pending = |space: &Space| {
            space.fit(FreeState::OneStream(stream)).map_or(0, |fit: &FreeLists| fit.size_bytes)
        };
        let pending_bytes: u64 = spaces.iter().map(pending).sum();
        let peak_bytes = share.used_peak_bytes.max(used_bytes);
        let allowed_bytes =
            peak_bytes.saturating_add((peak_bytes / 1000).saturating_mul(u64::from(slack_per_mille)));
        used_bytes.saturating_add(pending_bytes) <= allowed_bytes || !self.has_others(stream)
    }

    /// The sum of each stream's peak: the memory that streams need if none ever reuses another's.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.list.iter().map(|share| share.used_peak_bytes).sum()
    }

    /// True if any other stream has ever used the heap.
    pub(super) fn has_others(&self, stream: StreamIndex) -> bool {
        let others = self.list.iter().enumerate().filter(|(index, _)| *index != usize::from(stream.0));
        others.into_iter().any(|(_, share)| share.used_peak_bytes > 0)
    }
}

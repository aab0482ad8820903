//! [`Demand`]: the bytes that blocks use, their peaks, and what that leaves for thread caches.

#[derive(Debug, Default)]
pub(super) struct Demand {
    pub(super) used_bytes: u64,
    pub(super) used_peak_bytes: u64,
    /// A peak of `used_bytes` that decays with each miss.
    pub(super) fading_peak_bytes: u64,
    /// The peak of `used_bytes` without `kept_bytes`, and the large blocks that thread caches retain.
    needed_peak_bytes: u64,
    kept_bytes: u64,
    /// The amount that thread caches may retain, as of its last query.
    pub(super) keepable_bytes: u64,
    /// The part of the reserved memory that was reserved before it was needed, and that has not been released since.
    reserved_ahead_bytes: u64,
}

impl Demand {
    pub(super) fn take(&mut self, size_bytes: u64) {
        self.used_bytes += size_bytes;
        self.used_peak_bytes = self.used_peak_bytes.max(self.used_bytes);
        self.fading_peak_bytes = self.fading_peak_bytes.max(self.used_bytes);
    }

    pub(super) fn give(&mut self, size_bytes: u64) {
        self.used_bytes -= size_bytes;
    }

    /// Lets the fading peak decay, as far as the bytes in use.
    pub(super) fn fade(&mut self) {
        let peak_bytes = self.fading_peak_bytes;
        self.fading_peak_bytes = self.used_bytes.max(peak_bytes - peak_bytes / FADE_DIVISOR);
    }

    /// The bytes that blocks need including one more, or have needed.
    pub(super) fn with(&self, size_bytes: u64) -> u64 {
        self.used_bytes.saturating_add(size_bytes).max(self.used_peak_bytes)
    }

    /// Notes that `blocks_bytes` are reserved, some of them ahead of need.
    pub(super) fn reserve_ahead(&mut self, blocks_bytes: u64) {
        self.reserved_ahead_bytes = blocks_bytes;
    }

    /// Updates the bytes that one thread cache retains: before, and now.
    pub(super) fn note_kept(&mut self, before_bytes: u64, now_bytes: u64) {
        self.kept_bytes = (self.kept_bytes + now_bytes).saturating_sub(before_bytes);
    }

    /// The bytes that thread caches may retain: the memory that was reserved ahead and never needed, of `blocks_bytes`.
    pub(super) fn update_keepable(&mut self, blocks_bytes: u64, slack_per_mille: u32) -> u64 {
        let needed_bytes = self.used_bytes.saturating_sub(self.kept_bytes);
        self.needed_peak_bytes = self.needed_peak_bytes.max(needed_bytes);
        let slack_bytes = self.needed_peak_bytes / 1000 * u64::from(slack_per_mille);
        let needed_bytes = self.needed_peak_bytes + slack_bytes;
        self.reserved_ahead_bytes = self.reserved_ahead_bytes.min(blocks_bytes);
        self.keepable_bytes = self.reserved_ahead_bytes.saturating_sub(needed_bytes);
        self.keepable_bytes
    }

    /// True if every block could be a quarter larger.
    pub(super) fn is_far_ahead(&self) -> bool {
        self.keepable_bytes > self.needed_peak_bytes / 4
    }
}

/// The fraction that a peak loses with each miss.
const FADE_DIVISOR: u64 = 2048;

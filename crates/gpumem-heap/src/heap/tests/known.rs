//! Naive clocks: which stream knows what of which other stream.

use gpumem_base::order::{Order, Stamp, StreamIndex};

pub(super) const STREAMS: usize = 3;

/// A model of the clocks: the epochs of the streams, the order between them, and the complete epochs.
#[derive(Default)]
pub(super) struct Known {
    pub(super) epoch: [u64; STREAMS],
    pub(super) ordered: [[u64; STREAMS]; STREAMS],
    pub(super) complete: [u64; STREAMS],
}

impl Known {
    /// A stream waits for another, and so for everything that the other has waited for.
    pub(super) fn wait(&mut self, waiter: usize, on: usize) {
        let seen = self.ordered[on];
        for (mine, seen) in self.ordered[waiter].iter_mut().zip(seen) {
            *mine = (*mine).max(seen);
        }
        self.ordered[waiter][on] = self.epoch[on];
        self.epoch[on] += 1;
    }

    /// The host has waited for a stream.
    pub(super) fn observe(&mut self, stream: usize) {
        self.complete[stream] = self.epoch[stream];
        self.epoch[stream] += 1;
        for (complete, ordered) in self.complete.iter_mut().zip(self.ordered[stream]) {
            *complete = (*complete).max(ordered);
        }
    }
}

impl Order for Known {
    fn is_ordered(&self, stamp: Stamp, before: StreamIndex) -> bool {
        if before == StreamIndex::HOST {
            return self.is_complete(stamp);
        }
        let (slot, before) = (usize::from(stamp.stream_index().0), usize::from(before.0));
        slot == before || self.ordered[before][slot] >= stamp.epoch() || self.is_complete(stamp)
    }

    fn is_complete(&self, stamp: Stamp) -> bool {
        stamp == Stamp::COMPLETE || self.complete[usize::from(stamp.stream_index().0)] >= stamp.epoch()
    }
}

//! [`Usage`]: the live blocks of a pool, in total and by stream. Pure: they make no driver call, and leave limits to
//! [`LimitNode`](crate::limits::LimitNode).

use gpumem_base::counters::Counters;
use gpumem_device::StreamId;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) total: Counters,
    pub(crate) in_use_peak_bytes: u64,
    pub(crate) streams: BTreeMap<StreamId, Counters>,
}

impl Usage {
    pub(crate) fn count_out(&mut self, owner_stream: StreamId, size_bytes: u64) {
        self.total.count_out(size_bytes);
        self.in_use_peak_bytes = self.in_use_peak_bytes.max(self.total.in_use_bytes());
        self.streams.entry(owner_stream).or_default().count_out(size_bytes);
    }

    pub(crate) fn count_in(&mut self, owner_stream: StreamId, size_bytes: u64) {
        self.total.count_in(size_bytes);
        let counters = self.streams.entry(owner_stream).or_default();
        counters.count_in(size_bytes);
        if counters.block_count() == 0 {
            self.streams.remove(&owner_stream);
        }
    }

    pub(crate) fn reset_peak(&mut self) {
        self.in_use_peak_bytes = self.total.in_use_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_of_what_was_there_at_once() {
        let (mut counters, stream) = (Usage::default(), StreamId::from_u64(1));
        counters.count_out(stream, 60);
        counters.count_in(stream, 60);
        assert!(counters.streams.is_empty());
        counters.count_out(stream, 40);
        let Usage { total, in_use_peak_bytes, .. } = counters;
        assert_eq!((total.in_use_bytes(), in_use_peak_bytes), (40, 60));
        assert_eq!((total.block_count(), total.allocation_count()), (1, 2));
        counters.reset_peak();
        assert_eq!(counters.in_use_peak_bytes, 40);
    }
}

//! [`UsageCounters`]: the live blocks of a pool, in total and by stream. Pure: they make no driver call, and leave limits to
//! [`LimitNode`](crate::limits::LimitNode).

use gpumem_base::counters::Counters;
use gpumem_base::sync::Lock;
use gpumem_device::StreamId;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct UsageCounters(pub(crate) Lock<Usage>);

#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) total: Counters,
    pub(crate) in_use_peak_bytes: u64,
    pub(crate) streams: BTreeMap<StreamId, Counters>,
}

impl UsageCounters {
    pub(crate) fn count_out(&self, owner_stream: StreamId, size_bytes: u64) {
        let mut usage = self.0.lock();
        usage.total.count_out(size_bytes);
        usage.in_use_peak_bytes = usage.in_use_peak_bytes.max(usage.total.in_use_bytes());
        usage.streams.entry(owner_stream).or_default().count_out(size_bytes);
    }

    pub(crate) fn count_in(&self, owner_stream: StreamId, size_bytes: u64) {
        let mut usage = self.0.lock();
        usage.total.count_in(size_bytes);
        let counters = usage.streams.entry(owner_stream).or_default();
        counters.count_in(size_bytes);
        if counters.block_count() == 0 {
            usage.streams.remove(&owner_stream);
        }
    }

    pub(crate) fn in_use_bytes(&self) -> u64 {
        self.0.lock().total.in_use_bytes()
    }

    pub(crate) fn reset_peak(&self) {
        let mut usage = self.0.lock();
        usage.in_use_peak_bytes = usage.total.in_use_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_of_what_was_there_at_once() {
        let (counters, stream) = (UsageCounters::default(), StreamId::from_u64(1));
        counters.count_out(stream, 60);
        counters.count_in(stream, 60);
        assert!(counters.0.lock().streams.is_empty());
        counters.count_out(stream, 40);
        let Usage { total, in_use_peak_bytes, .. } = *counters.0.lock();
        assert_eq!((total.in_use_bytes(), in_use_peak_bytes), (40, 60));
        assert_eq!((total.block_count(), total.allocation_count()), (1, 2));
        counters.reset_peak();
        assert_eq!(counters.0.lock().in_use_peak_bytes, 40);
    }
}

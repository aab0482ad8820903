//! [`View`]: the records as work on one stream may use them.

use super::record::{RangeRecord, RecordKind, Records};
use super::stamps::FreeState;
use gpumem_base::order::{Order, Stamp, StreamIndex};

/// The records as work on one stream may use them.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a, O> {
    pub(super) records: &'a Records,
    pub(super) stream: StreamIndex,
    pub(super) order: &'a O,
    /// False to leave out memory that is ready for all streams.
    pub(super) with_ready: bool,
}

impl<O: Order> View<'_, O> {
    /// True if a record is free, and its last uses are ordered before the stream's next operation.
    pub(super) fn is_usable(&self, record: &RangeRecord) -> bool {
        let pending = record.pending();
        record.kind == RecordKind::Free
            && (self.with_ready || record.state != FreeState::Ready)
            && self.records.stamp_sets.is_usable(pending, self.stream, self.order)
    }
}

/// An order in which only complete work is ordered before other work.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlyComplete<'a, O>(pub(super) &'a O);

impl<O: Order> Order for OnlyComplete<'_, O> {
    fn is_ordered(&self, stamp: Stamp, _before: StreamIndex) -> bool {
        self.0.is_complete(stamp)
    }

    fn is_complete(&self, stamp: Stamp) -> bool {
        self.0.is_complete(stamp)
    }
}

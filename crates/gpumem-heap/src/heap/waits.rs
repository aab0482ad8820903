//! [`Heap::blockers`]: what a request would have to wait for.

use super::idle_scan::{IdleScan, View};
use super::ready::smallest_stretch;
use super::record::Kind;
use super::stamps::{Owner, Pending};
use super::{Heap, Request, rounded, space_of};
use crate::order::{Order, Stamp, StreamIndex};
use std::collections::BTreeMap;

impl Heap {
    /// A small set of stamps after which the request is met from what is free already: one stream's, if one suffices,
    /// and the earliest of its frees. Empty when waiting for all of them would not help, those that can be waited for.
    pub fn blockers(
        &self,
        request: &Request,
        order: &impl Order,
        can_wait: impl Fn(Stamp) -> bool,
    ) -> Vec<Stamp> {
        let mut epochs = self.pending_epochs(request.slot, order);
        epochs.retain(|slot, epochs| {
            // What can be waited for is a stream's beginning: up to its last mark, or all.
            let end = epochs.partition_point(|epoch| can_wait(Stamp::new(StreamIndex(*slot), *epoch)));
            epochs.truncate(end);
            end > 0
        });
        let fits = |waits: &[Stamp]| self.would_fit(request, &After { order, waits });
        let earliest = |slot: StreamIndex, epochs: &[u64], others: &[Stamp]| {
            let waits = |epoch: u64| [others, &[Stamp::new(slot, epoch)]].concat();
            let first = epochs.partition_point(|epoch| !fits(&waits(*epoch)));
            epochs.get(first).map(|epoch| (first, Stamp::new(slot, *epoch)))
        };
        let single = epochs.iter().filter_map(|(slot, epochs)| earliest(StreamIndex(*slot), epochs, &[]));
        if let Some((_, stamp)) = single.min_by_key(|(first, _)| *first) {
            return vec![stamp];
        }
        let last = |(slot, epochs): (&u16, &Vec<u64>)| {
            epochs.last().map(|epoch| Stamp::new(StreamIndex(*slot), *epoch))
        };
        let mut waits: Vec<Stamp> = epochs.iter().filter_map(last).collect();
        if !fits(&waits) {
            return Vec::new();
        }
        // Each stream in turn waits less, or not at all, as far as the others allow.
        for (slot, epochs) in &epochs {
            let others: Vec<Stamp> = waits.iter().copied().filter(|stamp| stamp.slot().0 != *slot).collect();
            if fits(&others) {
                waits = others;
            } else if let Some((_, stamp)) = earliest(StreamIndex(*slot), epochs, &others) {
                waits = others;
                waits.push(stamp);
            }
        }
        waits
    }

    /// Whether other streams' frees are about, in the space that the request looks in.
    pub fn has_pending_of_others(&self, request: &Request) -> bool {
        self.spaces[space_of(request)].has_pending_of_others(Owner::of(request.slot))
    }

    /// Of each stream whose frees the request may not have, the latest free's stamp.
    pub fn latest_pending(&self, request: &Request, order: &impl Order) -> Vec<Stamp> {
        let epochs = self.pending_epochs(request.slot, order);
        let latest = |(slot, epochs): (u16, Vec<u64>)| Some(Stamp::new(StreamIndex(slot), *epochs.last()?));
        epochs.into_iter().filter_map(latest).collect()
    }

    /// Of each stream whose frees the request may not have, their epochs, earliest first.
    fn pending_epochs(&self, slot: StreamIndex, order: &impl Order) -> BTreeMap<u16, Vec<u64>> {
        let mut epochs: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        let ids = self.spaces.iter().flat_map(|space| space.fits()).flat_map(|fit| fit.ids(&self.records, 0));
        for record in ids.map(|id| &self.records[id]).filter(|record| record.kind == Kind::Free) {
            let pending = Pending { owner: record.owner, stamp: record.stamp };
            for stamp in
                self.records.sets.stamps(&pending).iter().filter(|stamp| !order.is_ordered(**stamp, slot))
            {
                epochs.entry(stamp.slot().0).or_default().push(stamp.epoch());
            }
        }
        for list in epochs.values_mut() {
            list.sort_unstable();
            list.dedup();
        }
        epochs
    }

    /// Whether what is free would do, perhaps under new addresses.
    fn would_fit(&self, request: &Request, order: &impl Order) -> bool {
        let Some(size_bytes) = rounded(request.size_bytes) else { return false };
        let view = View { records: &self.records, slot: request.slot, order, with_ready: true };
        let index = space_of(request);
        let allows = |start| self.allows(index, start, size_bytes);
        if smallest_stretch(&self.spaces[index], size_bytes, request.alignment, &view, allows).is_some() {
            return true;
        }
        let scan = IdleScan::movable(&self.pages, &self.spaces, &view);
        self.plan(index, (size_bytes, request.alignment), &scan, &view).is_some()
    }
}

/// The order once some more has been waited for.
struct After<'a, O> {
    order: &'a O,
    waits: &'a [Stamp],
}

impl<O: Order> Order for After<'_, O> {
    fn is_ordered(&self, stamp: Stamp, before: StreamIndex) -> bool {
        self.waits.iter().any(|wait| wait.slot() == stamp.slot() && wait.epoch() >= stamp.epoch())
            || self.order.is_ordered(stamp, before)
    }

    fn is_complete(&self, stamp: Stamp) -> bool {
        self.order.is_complete(stamp)
    }
}

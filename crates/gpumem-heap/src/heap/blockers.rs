//! [`blockers`]: the uses that a request would have to wait for.

use super::idle_scan::IdleScan;
use super::memory_map::MemoryMap;
use super::recycle;
use super::request::BlockRequest;
use super::stretches::smallest_stretch;
use gpumem_base::order::{Order, Stamp, StreamIndex};
use std::collections::BTreeMap;

/// A small set of stamps: once they are complete, free memory suffices for the request. If one stream suffices, this is its earliest
/// suitable free. Empty if waiting for all stamps that `can_wait` accepts would not suffice. `allows` accepts places in the request's space.
pub(super) fn blockers(
    map: &MemoryMap,
    request: &BlockRequest,
    order: &impl Order,
    can_wait: impl Fn(Stamp) -> bool,
    allows: impl Fn(u64) -> bool + Copy,
) -> Vec<Stamp> {
    let mut epochs = pending_epochs(map, request.stream, order);
    epochs.retain(|stream, epochs| {
        // A prefix of each stream's frees can be waited for: up to its last marker, or all.
        let end = epochs.partition_point(|epoch| can_wait(Stamp::new(StreamIndex(*stream), *epoch)));
        epochs.truncate(end);
        end > 0
    });
    let fits = |waits: &[Stamp]| would_fit(map, request, &After { order, waits }, allows);
    let earliest = |stream: StreamIndex, epochs: &[u64], others: &[Stamp]| {
        let waits = |epoch: u64| [others, &[Stamp::new(stream, epoch)]].concat();
        let first = epochs.partition_point(|epoch| !fits(&waits(*epoch)));
        epochs.get(first).map(|epoch| (first, Stamp::new(stream, *epoch)))
    };
    let single = epochs.iter().filter_map(|(stream, epochs)| earliest(StreamIndex(*stream), epochs, &[]));
    if let Some((_, stamp)) = single.min_by_key(|(first, _)| *first) {
        return vec![stamp];
    }
    let last = |(stream, epochs): (&u16, &Vec<u64>)| {
        epochs.last().map(|epoch| Stamp::new(StreamIndex(*stream), *epoch))
    };
    let mut waits: Vec<Stamp> = epochs.iter().filter_map(last).collect();
    if !fits(&waits) {
        return Vec::new();
    }
    // Shortens or drops the wait for each stream if the waits for the others suffice.
    for (stream, epochs) in &epochs {
        let others: Vec<Stamp> =
            waits.iter().copied().filter(|stamp| stamp.stream_index().0 != *stream).collect();
        if fits(&others) {
            waits = others;
        } else if let Some((_, stamp)) = earliest(StreamIndex(*stream), epochs, &others) {
            waits = others;
            waits.push(stamp);
        }
    }
    waits
}

/// For each stream whose frees the request may not use, the stamp of the latest free.
pub(super) fn latest_pending(map: &MemoryMap, stream: StreamIndex, order: &impl Order) -> Vec<Stamp> {
    let latest = |(stream, epochs): (u16, Vec<u64>)| Some(Stamp::new(StreamIndex(stream), *epochs.last()?));
    pending_epochs(map, stream, order).into_iter().filter_map(latest).collect()
}

/// For each stream whose frees a request of `stream` may not use, their epochs, earliest first.
fn pending_epochs(map: &MemoryMap, stream: StreamIndex, order: &impl Order) -> BTreeMap<u16, Vec<u64>> {
    let mut epochs: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for id in map.free_ids() {
        let pending = map.records[id].pending();
        let stamps = map.records.stamp_sets.stamps(&pending).iter();
        for stamp in stamps.filter(|stamp| !order.is_ordered(**stamp, stream)) {
            epochs.entry(stamp.stream_index().0).or_default().push(stamp.epoch());
        }
    }
    for list in epochs.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    epochs
}

/// True if free memory would suffice, perhaps at new addresses.
fn would_fit(
    map: &MemoryMap,
    request: &BlockRequest,
    order: &impl Order,
    allows: impl Fn(u64) -> bool,
) -> bool {
    let Some(size_bytes) = request.rounded_bytes() else { return false };
    let (view, index) = (map.view(request.stream, order), request.space());
    if smallest_stretch(&map.spaces[index], size_bytes, request.alignment, &view, allows).is_some() {
        return true;
    }
    let scan = IdleScan::movable(map, &view);
    recycle::plan(map, index, (size_bytes, request.alignment), &scan, &view).is_some()
}

/// The order after some waits.
struct After<'a, O> {
    order: &'a O,
    waits: &'a [Stamp],
}

impl<O: Order> Order for After<'_, O> {
    fn is_ordered(&self, stamp: Stamp, before: StreamIndex) -> bool {
        self.waits
            .iter()
            .any(|wait| wait.stream_index() == stamp.stream_index() && wait.epoch() >= stamp.epoch())
            || self.order.is_ordered(stamp, before)
    }

    fn is_complete(&self, stamp: Stamp) -> bool {
        self.order.is_complete(stamp)
    }
}

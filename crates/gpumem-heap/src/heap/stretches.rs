//! Ranges of free neighbours, which wait for different streams, in one space.

use super::space::Space;
use super::stamps::FreeState;
use super::view::View;
use gpumem_base::order::Order;

/// The maximal ranges of usable free records. Ranges shorter than `size_bytes` may be left out.
pub(super) fn stretches(space: &Space, size_bytes: u64, view: &View<impl Order>) -> Vec<(u64, u64)> {
    let is_merged = is_merged(space);
    let seed_bytes = if is_merged { size_bytes } else { size_bytes / SEEDS };
    let records = view.records;
    let seeds =
        space.fits().flat_map(|fit| fit.ids(records, seed_bytes)).filter(|id| view.is_usable(&records[*id]));
    if is_merged {
        let mut found: Vec<_> = seeds.map(|id| (records[id].start, records[id].end())).collect();
        found.sort_unstable();
        return found;
    }
    let mut seeds: Vec<_> = seeds.map(|id| (records[id].start, id)).collect();
    seeds.sort_unstable();
    let mut found: Vec<(u64, u64)> = Vec::new();
    for (start, id) in seeds {
        // A range is walked once even if several of its records are seeds.
        if found.last().is_none_or(|(_, end)| *end <= start) {
            found.push(space.run_around(id, view));
        }
    }
    found
}

/// The size of the longest of these ranges that `may_be_had` accepts.
pub(super) fn longest_stretch(
    space: &Space,
    view: &View<impl Order>,
    may_be_had: impl Fn(&(u64, u64)) -> bool,
) -> u64 {
    // Merged ranges above a size are few and are found without the others.
    let mut least_bytes = if is_merged(space) { LONGEST_BYTES_MAX } else { 0 };
    loop {
        let found = stretches(space, least_bytes, view).into_iter().filter(&may_be_had);
        let longest_bytes = found.map(|(start, end)| end - start).max().unwrap_or(0);
        if longest_bytes >= least_bytes {
            return longest_bytes;
        }
        least_bytes = if least_bytes > LONGEST_BYTES_MIN { least_bytes / 4 } else { 0 };
    }
}

/// The smallest range of free neighbours in different states, all ordered before the request.
pub(super) fn smallest_stretch(
    space: &Space,
    size_bytes: u64,
    alignment: u64,
    view: &View<impl Order>,
    allows: impl Fn(u64) -> bool,
) -> Option<u64> {
    if !space.has_pending_of_others(FreeState::Ready) {
        return None;
    }
    let align = |start: u64| Some((space.base + start).checked_next_multiple_of(alignment)? - space.base);
    let found = stretches(space, size_bytes, view).into_iter().filter_map(|(start, end)| {
        let place = align(start)?;
        (place.checked_add(size_bytes)? <= end && allows(place)).then_some((end - start, place))
    });
    found.min().map(|(_, start)| start)
}

/// True if no two free records are neighbours. Neighbours of one state with the same set of stamps are merged when they become free.
fn is_merged(space: &Space) -> bool {
    let mut lists = space.fits_by_state().filter(|(_, fit)| !fit.is_empty());
    lists.next().is_none_or(|(state, _)| state != FreeState::MultiStream.index()) && lists.next().is_none()
}

/// No range is longer than the largest of these sizes. Ranges shorter than the least are examined together.
const LONGEST_BYTES_MAX: u64 = 1 << 48;
const LONGEST_BYTES_MIN: u64 = 1 << 10;

/// Where neighbours may be in different states, a record is examined only if it has at least this fraction of a range's size.
const SEEDS: u64 = 8;

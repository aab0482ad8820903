//! [`FreePlace`]: free memory for a block at its current addresses, found without a driver call.

use super::fit::{FreeLists, place};
use super::memory_map::MemoryMap;
use super::stamps::FreeState;
use super::stretches::smallest_stretch;
use super::view::View;
use gpumem_base::order::Order;

/// A place for a block.
pub(super) enum FreePlace {
    /// In one free record.
    Alone { id: u32, start: u64 },
    /// In free neighbours in different states, all ordered before the request.
    Neighbours { start: u64 },
}

impl FreePlace {
    /// Finds a place in memory that the stream has freed or that is ready for all streams, among the smallest. `allows` accepts the start
    /// of a record or of a block.
    pub(super) fn find(
        map: &MemoryMap,
        index: usize,
        (size_bytes, alignment): (u64, u64),
        view: &View<impl Order>,
        allows: impl Fn(u64) -> bool,
    ) -> Option<Self> {
        let space = &map.spaces[index];
        let has_room = |id: &u32| {
            let record = &map.records[*id];
            place(record, size_bytes, space.base, alignment).is_some() && allows(record.start)
        };
        let find_allowed = |fit: &FreeLists| fit.ids(&map.records, size_bytes).find(has_room);
        let find = |state| {
            let fit = space.fit(state)?;
            let found = fit.find(&map.records, size_bytes, space.base, alignment)?;
            let id = if allows(map.records[found].start) { found } else { find_allowed(fit)? };
            Some((map.records[id].size_bytes, id))
        };
        let ready = if view.with_ready { find(FreeState::Ready) } else { None };
        let found = match (find(FreeState::OneStream(view.stream)), ready) {
            (Some(own), Some(ready)) => Some(if own.0 <= ready.0 { own } else { ready }),
            (own, ready) => own.or(ready),
        };
        if let Some((_, id)) = found {
            let start = place(&map.records[id], size_bytes, space.base, alignment)?;
            return Some(Self::Alone { id, start });
        }
        let start = smallest_stretch(space, size_bytes, alignment, view, allows)?;
        Some(Self::Neighbours { start })
    }
}

//! [`Check`]: the invariants of a heap's memory, checked by one walk.

use super::mappings::SlotEntry;
use super::memory_map::MemoryMap;
use super::pages::ones;
use super::record::{NONE, RangeRecord, RecordKind, Records};
use super::segments::Segments;
use super::space::{PAGE_BYTES, PAGE_SHIFT, Space};
use super::stamps::{FreeState, PendingUses};
use std::collections::BTreeMap;

pub(super) struct Check<'a> {
    pub(super) map: &'a MemoryMap,
    pub(super) segments: Option<&'a Segments>,
    pub(super) sleeping_bytes: u64,
}

impl Check<'_> {
    /// Returns the number of blocks, and their size in bytes. `allows` accepts blocks: space, start and size.
    pub(super) fn run(&self, allows: impl Fn(usize, u64, u64) -> bool) -> Result<(u64, u64), String> {
        let MemoryMap { spaces, records, .. } = self.map;
        let mut shares = BTreeMap::new();
        let (mut record_count, mut live_count, mut live_bytes) = (0, 0, 0);
        for (index, space) in spaces.iter().enumerate() {
            let ids = check_tiling(index, space, records)?;
            check_lists(index, space, records, &ids)?;
            for id in &ids {
                let record = &records[*id];
                self.check_memory(index, *id, record)?;
                if record.kind == RecordKind::Live {
                    expect(allows(index, record.start, record.size_bytes), || {
                        format!("record {id} lies in a segment that must not be split")
                    })?;
                    live_count += 1;
                    live_bytes += record.size_bytes;
                }
                if record.kind == RecordKind::Free && record.state == FreeState::MultiStream {
                    *shares.entry(record.stamp).or_insert(0_u32) += 1;
                }
            }
            record_count += ids.len();
        }
        expect(record_count == records.count(), || {
            format!("{record_count} records are part of a space, {} exist", records.count())
        })?;
        for (set, count) in records.stamp_sets.shares().filter(|(_, count)| *count > 0) {
            expect(shares.get(&set) == Some(&count), || {
                format!("set {set:?} has {count} references, {:?} records carry it", shares.get(&set))
            })?;
        }
        self.check_free_va_ranges()?;
        self.check_pages()?;
        self.check_shared()?;
        Ok((live_count, live_bytes))
    }

    fn check_free_va_ranges(&self) -> Result<(), String> {
        for (index, space) in self.map.spaces.iter().enumerate() {
            let end = space.end() >> PAGE_SHIFT;
            let mut place = 0;
            for (slot, count) in self.map.pages.free_va_ranges(index).iter() {
                expect(slot >= place && count > 0, || {
                    format!("free range {slot} of space {index} touches another")
                })?;
                place = slot + count + 1;
                expect(slot + count <= end, || {
                    format!("free range {slot} lies behind the end of space {index}")
                })?;
                let mapped = (slot..slot + count).find(|slot| {
                    self.map.pages.mapping_at(index, *slot).is_some() || self.is_resident(index, *slot)
                });
                expect(mapped.is_none(), || {
                    format!("slot {mapped:?} of space {index} is mapped and in a free range")
                })?;
            }
        }
        Ok(())
    }

    fn check_pages(&self) -> Result<(), String> {
        let mut reserved_bytes = 0;
        let (mut mapping_count, mut empty_count, mut shared_count) = (0, 0, 0);
        for id in self.map.pages.handle_ids() {
            let handle = self.map.pages.handle(id);
            reserved_bytes += u64::from(handle.page_count) << PAGE_SHIFT;
            let (mut resident, mut shared) = (0, 0);
            for mapping_id in self.map.pages.mappings_of(id) {
                mapping_count += 1;
                let (here, parts) = self.map.pages.resident_of(mapping_id, id);
                empty_count += usize::from((here, parts) == (0, 0));
                shared |= parts;
                expect(self.map.pages.handle_of(mapping_id) == id, || {
                    format!("mapping {mapping_id:?} is not handle {id}'s")
                })?;
                expect(resident & here == 0, || format!("a page of handle {id} is resident twice"))?;
                resident |= here;
                for slot in u64::from(mapping_id.slot())..u64::from(mapping_id.slot() + handle.page_count) {
                    let found = self.map.pages.mapping_at(mapping_id.space(), slot);
                    expect(found == Some(mapping_id), || {
                        format!("slot {slot} is mapping {found:?}, not {mapping_id:?}")
                    })?;
                }
            }
            let all = ones(0, handle.page_count);
            expect(resident | shared == all && resident & shared == 0, || {
                format!("handle {id}: pages {resident:#b} and {shared:#b} of {all:#b} are resident")
            })?;
            shared_count += shared.count_ones() as usize;
        }
        expect(shared_count == self.map.pages.shared().count(), || {
            format!("{shared_count} pages are shared")
        })?;
        let placed_count = (0..2).flat_map(|space| self.map.pages.mappings_in(space)).count();
        expect(placed_count == mapping_count, || format!("{placed_count} mappings have a place"))?;
        expect(empty_count == self.map.pages.empty_count(), || format!("{empty_count} mappings are empty"))?;
        expect(mapping_count == self.map.pages.mapping_count(), || "a mapping belongs to no handle".into())?;
        let reserved_bytes = reserved_bytes - self.sleeping_bytes;
        expect(reserved_bytes == self.map.pages.reserved_bytes, || {
            format!("{reserved_bytes} bytes of handles, {} counted", self.map.pages.reserved_bytes)
        })?;
        expect(self.segments.is_none_or(Segments::is_consistent), || {
            "segments touch, or their size is wrong".into()
        })
    }

    /// Checks that each byte of a page with several mappings is resident in one of them.
    fn check_shared(&self) -> Result<(), String> {
        for (handle, page, parts) in self.map.pages.shared() {
            let mut ranges = Vec::new();
            for part in parts {
                let (space, start) =
                    (&self.map.spaces[part.space()], u64::from(part.slot() + page) << PAGE_SHIFT);
                let mut place = start;
                while place < start + PAGE_BYTES {
                    let record = &self.map.records[space.at(&self.map.records, place)];
                    let end = record.end().min(start + PAGE_BYTES);
                    ranges.extend((record.kind != RecordKind::Gap).then_some((place - start, end - start)));
                    place = end;
                }
            }
            ranges.sort_unstable();
            let end = ranges.iter().try_fold(0, |place, (start, end)| (place == *start).then_some(*end));
            expect(end == Some(PAGE_BYTES), || format!("page {page} of handle {handle} is {ranges:?}"))?;
        }
        Ok(())
    }

    /// True if there is memory behind a page of addresses.
    fn is_resident(&self, index: usize, slot: u64) -> bool {
        self.map.pages.entry(index, slot).is_some_and(SlotEntry::is_resident)
            || self.segments.is_some_and(|segments| segments.has(index, slot))
    }

    /// Checks that blocks and free ranges lie on pages that are resident there, and gaps on pages that are not. A partly resident
    /// page has both.
    fn check_memory(&self, index: usize, id: u32, record: &RangeRecord) -> Result<(), String> {
        let is_memory = record.kind != RecordKind::Gap;
        let slots = record.start >> PAGE_SHIFT..record.end().div_ceil(PAGE_BYTES);
        let is_part = |slot: &u64| self.map.pages.entry(index, *slot).is_some_and(SlotEntry::is_part);
        for slot in slots.filter(|slot| !is_part(slot)) {
            let is_resident = self.is_resident(index, slot);
            expect(is_resident == is_memory, || {
                format!("record {id} ({:?}) over slot {slot}: resident {is_resident}", record.kind)
            })?;
        }
        let is_waiting = record.kind == RecordKind::Free && record.state != FreeState::Ready;
        let pending = record.pending();
        let is_right = match record.kind {
            RecordKind::Free if pending.state == FreeState::Ready => pending == PendingUses::READY,
            RecordKind::Free if pending.state != FreeState::MultiStream => {
                FreeState::OneStream(pending.stamp.stream_index()) == pending.state
            }
            _ => true,
        };
        expect(is_right || !is_waiting, || {
            format!("record {id} waits for {:?} of another stream", record.stamp)
        })
    }
}

/// Checks that the records of a space follow each other without a break or an overlap, and that no two neighbours could be merged.
fn check_tiling(index: usize, space: &Space, records: &Records) -> Result<Vec<u32>, String> {
    let mut ids: Vec<u32> = space.ids_backwards(records).collect();
    ids.reverse();
    let (mut place, mut prev) = (0, NONE);
    let mut starts = vec![NONE; (space.end() >> PAGE_SHIFT) as usize];
    for id in &ids {
        let record = records.get(*id).ok_or_else(|| format!("record {id} is part of a space and unused"))?;
        expect(record.start == place && record.size_bytes > 0, || {
            format!("record {id} starts at {}, not {place}", record.start)
        })?;
        expect(usize::from(record.space) == index, || format!("record {id} is of another space"))?;
        expect(record.prev == prev, || format!("record {id} follows {}, not {prev}", record.prev))?;
        expect(prev == NONE || records[prev].next == *id, || {
            format!("the next of record {prev} is not {id}")
        })?;
        expect(prev == NONE || !records[prev].joins(record), || {
            format!("records {prev} and {id} should be merged")
        })?;
        let first = &mut starts[(record.start >> PAGE_SHIFT) as usize];
        *first = if *first == NONE { *id } else { *first };
        (place, prev) = (record.end(), *id);
    }
    expect(place == space.end(), || format!("space {index} is tiled up to {place}, not {}", space.end()))?;
    for (page, id) in starts.iter().enumerate() {
        let noted = space.start_in(page);
        expect(noted == *id, || format!("page {page} of space {index} starts with {id}, noted {noted}"))?;
    }
    Ok(ids)
}

/// Checks that each free record is in the list of its state and size, and that the lists contain nothing else.
fn check_lists(index: usize, space: &Space, records: &Records, ids: &[u32]) -> Result<(), String> {
    let free = ids.iter().filter(|id| records[**id].kind == RecordKind::Free).count();
    let mut listed = 0;
    for (state, fit) in space.fits_by_state() {
        expect(fit.is_consistent(records), || {
            format!("lists of state {state} in space {index}: the bitmaps are wrong")
        })?;
        for id in fit.ids(records, 0) {
            listed += 1;
            let record = records.get(id).ok_or_else(|| format!("record {id} is listed and unused"))?;
            expect(record.kind == RecordKind::Free && record.state.index() == state, || {
                format!("record {id} is in another state's list")
            })?;
            expect(listed <= free, || format!("space {index} lists more than {free} records"))?;
        }
    }
    expect(listed == free, || format!("space {index} has {free} free records, {listed} listed"))
}

pub(super) fn expect(holds: bool, or: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(or()) }
}

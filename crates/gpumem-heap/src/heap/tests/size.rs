//! The heap's host memory; the bounds are those of [`heap`](super::super).

use super::super::BlockRequest;
use super::super::space::PAGE_SHIFT;
use super::pair::Pair;
use gpumem_base::HeapTuning;
use gpumem_base::order::{Stamp, StreamIndex};

/// The bound: for each record, each handle, and each page of addresses.
fn bound_bytes(pair: &Pair) -> usize {
    let heap = &pair.heap;
    let address_pages: u64 = heap.map.spaces.iter().map(|space| space.end() >> PAGE_SHIFT).sum();
    let list_count: usize = heap.map.spaces.iter().map(|space| space.fits().count()).sum();
    100 * heap.map.records.count()
        + 160 * heap.map.pages.handles.len()
        + 13 * address_pages as usize
        + 5300 * list_count
        + (4 << 10)
}

#[test]
fn blocks_take_a_hundred_bytes_each() {
    let mut pair = Pair::new(HeapTuning::BALANCED);
    let mut live = Vec::new();
    for i in 0..2_000_u64 {
        let size_bytes = 1 << (10 + i % 14);
        live.push(pair.climb(&BlockRequest { size_bytes, alignment: 256, stream: StreamIndex(0) }).unwrap());
    }
    let record_bytes = pair.heap.record_bytes();
    assert!(record_bytes <= bound_bytes(&pair), "{record_bytes} bytes");
    let block_bytes =
        100 * live.len() + (pair.heap.reserved_bytes() >> PAGE_SHIFT) as usize * 64 + (32 << 10);
    assert!(record_bytes <= block_bytes, "{record_bytes} bytes");
}

/// Nothing queued is ever known to be complete, and no two blocks have the same size: no mapping can be unmapped, and few can be
/// reused.
#[test]
fn mappings_that_must_stay_take_little() {
    let mut pair = Pair::new(HeapTuning::TIGHT);
    let mut live = Vec::new();
    let mut seed = 1_u64;
    for i in 0..4_000_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let size_bytes = (seed >> 38) + (2 << 20);
        live.push(
            pair.climb(&BlockRequest { size_bytes, alignment: 256, stream: StreamIndex((i % 2) as u16) })
                .unwrap(),
        );
        if live.len() > 12 {
            let block = live.swap_remove((seed >> 20) as usize % live.len());
            let slot = pair.heap.map.records[block.record].state.stream_index().unwrap();
            pair.heap.give(block.record, &[Stamp::new(slot, 1)]);
        }
    }
    pair.heap.check().unwrap();
    let (record_bytes, mapping_count) = (pair.heap.record_bytes(), pair.heap.mapping_count());
    let page_count = (pair.heap.reserved_bytes() >> PAGE_SHIFT) as usize;
    assert!(mapping_count > 12 * page_count, "{mapping_count} mappings of {page_count} pages");
    assert!(record_bytes <= bound_bytes(&pair), "{record_bytes} bytes");
    assert!(
        record_bytes <= 20 * mapping_count + (64 << 10),
        "{record_bytes} bytes, {mapping_count} mappings"
    );
}

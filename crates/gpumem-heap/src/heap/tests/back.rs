//! The heap releases free handles and empty mappings.

use super::super::BlockRequest;
use super::pair::{Pair, Step};
use gpumem_base::HeapTuning;
use gpumem_base::order::{Stamp, StreamIndex};

#[test]
fn what_nobody_holds_goes_back_once_it_is_complete() {
    let mut pair = Pair::new(HeapTuning::BALANCED);
    (0..20).for_each(|i| {
        pair.run(&Step::Take { size_bytes: 3_000_000 * (i % 7 + 1), alignment: 256, stream: 0 })
    });
    (0..20).for_each(|_| pair.run(&Step::Give { index: 0, uses: 1, complete: false }));
    let reserved_bytes = pair.heap.reserved_bytes();
    assert_eq!(pair.heap.trim(0, &pair.known, &mut pair.driver), Ok(0), "nothing is complete");
    pair.known.observe(0);
    pair.heap.settle(&pair.known);
    pair.heap.check().unwrap();
    let kept_bytes =
        reserved_bytes - pair.heap.trim(reserved_bytes / 2, &pair.known, &mut pair.driver).unwrap();
    assert!(0 < kept_bytes && kept_bytes <= reserved_bytes / 2);
    assert_eq!(pair.heap.trim(0, &pair.known, &mut pair.driver), Ok(kept_bytes));
    pair.heap.check().unwrap();
    assert!(pair.driver.mapped.is_empty() && pair.driver.created.is_empty());
}

#[test]
fn neighbours_that_waited_for_several_streams_go_back_together() {
    let mut pair = Pair::new(HeapTuning::BALANCED);
    let request = BlockRequest { size_bytes: 1 << 20, alignment: 256, stream: StreamIndex(0) };
    let halves = [0, 1].map(|_| pair.climb(&request).unwrap());
    for half in halves {
        pair.heap.give(half.record, &[Stamp::new(StreamIndex(0), 1), Stamp::new(StreamIndex(1), 1)]);
    }
    [0, 1].into_iter().for_each(|stream| pair.known.observe(stream));
    let reserved_bytes = pair.heap.reserved_bytes();
    assert_eq!(pair.heap.trim(0, &pair.known, &mut pair.driver), Ok(reserved_bytes));
}

#[test]
fn a_trim_releases_the_smallest_handle_that_will_do() {
    let mut pair = Pair::new(HeapTuning::BALANCED);
    let requests = [24, 2, 16, 4].map(|mib| BlockRequest {
        size_bytes: mib << 20,
        alignment: 256,
        stream: StreamIndex(0),
    });
    let blocks = requests.map(|request| pair.climb(&request).unwrap());
    let mut sizes_bytes: Vec<u64> = pair.driver.created.values().copied().collect();
    sizes_bytes.sort_unstable();
    assert!(sizes_bytes.windows(2).all(|pair| pair[0] < pair[1]) && sizes_bytes.len() > 2, "{sizes_bytes:?}");
    for block in blocks {
        pair.heap.give(block.record, &[]);
    }
    let reserved_bytes = pair.heap.reserved_bytes();
    let second_bytes = sizes_bytes[1];
    let keep_bytes = reserved_bytes - sizes_bytes[0] - 1;
    assert_eq!(pair.heap.trim(keep_bytes, &pair.known, &mut pair.driver), Ok(second_bytes));
}

#[test]
fn what_was_reserved_ahead_is_the_heaps_own_and_there() {
    let mut pair = Pair::new(HeapTuning::FAST);
    pair.heap.set_outside_bytes(64 << 20);
    assert_eq!(pair.heap.reserve(100_000_000, &mut pair.driver, u64::MAX), Ok(true));
    let ahead_bytes = 100_000_000_u64.next_multiple_of(2 << 20);
    assert_eq!(pair.heap.keepable_bytes(), ahead_bytes, "what is beside the heap is no part of it");
    assert_eq!(pair.heap.reserve(1 << 30, &mut pair.driver, 1 << 30), Ok(false));
    assert_eq!(pair.heap.keepable_bytes(), ahead_bytes);
    pair.heap.trim(0, &pair.known, &mut pair.driver).unwrap();
    assert_eq!(pair.heap.keepable_bytes(), 0);
    // All growth from here on was needed.
    let requests =
        [3, 5].map(|mib| BlockRequest { size_bytes: mib << 20, alignment: 256, stream: StreamIndex(0) });
    let blocks = requests.map(|request| pair.climb(&request).unwrap());
    pair.heap.give(blocks[1].record, &[]);
    assert_eq!((pair.heap.blocks_bytes(), pair.heap.keepable_bytes()), (8 << 20, 0));
}

#[test]
fn memory_reserved_ahead_is_plentiful_while_every_block_could_be_a_quarter_larger() {
    let mut pair = Pair::new(HeapTuning::TIGHT);
    assert!(!pair.heap.is_far_ahead(), "nothing is reserved ahead");
    assert_eq!(pair.heap.reserve(100 << 20, &mut pair.driver, u64::MAX), Ok(true));
    let mut is_far_ahead_with = |size_bytes| {
        pair.climb(&BlockRequest { size_bytes, alignment: 256, stream: StreamIndex(0) }).unwrap();
        pair.heap.keepable_bytes();
        pair.heap.is_far_ahead()
    };
    assert!(is_far_ahead_with(78 << 20));
    assert!(!is_far_ahead_with(4 << 20));
}

#[test]
fn addresses_that_were_unmapped_are_used_again() {
    let mut pair = Pair::new(HeapTuning::BALANCED);
    let mut reached = Vec::new();
    for _ in 0..6 {
        (0..12).for_each(|i| {
            pair.run(&Step::Take { size_bytes: 5_000_000 * (i % 5 + 1), alignment: 256, stream: 0 })
        });
        (0..12).for_each(|_| pair.run(&Step::Give { index: 0, uses: 1, complete: true }));
        pair.heap.trim(0, &pair.known, &mut pair.driver).unwrap();
        pair.heap.check().unwrap();
        reached.push(pair.heap.map.spaces[1].end());
    }
    assert_eq!(reached[2..].iter().max(), reached[2..].iter().min(), "{reached:?}");
}

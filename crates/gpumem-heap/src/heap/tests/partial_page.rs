//! Pages that blocks of one stream share, each byte in one of several mappings.

use super::super::BlockRequest;
use super::super::space::PAGE_BYTES;
use super::pair::{Pair, Step};
use gpumem_base::HeapTuning;
use gpumem_base::order::StreamIndex;

fn take(pair: &mut Pair, pages: f64, stream: usize) {
    let size_bytes = (pages * PAGE_BYTES as f64) as u64;
    pair.run(&Step::Take { size_bytes, alignment: 256, stream });
}

fn give(pair: &mut Pair, index: usize) {
    pair.run(&Step::Give { index, uses: 1, complete: false });
}

fn pages(pair: &Pair) -> u64 {
    pair.heap.reserved_bytes() / PAGE_BYTES
}

/// A page of another stream, and a block that leaves half a page behind it, of memory that its stream has used before.
fn begun() -> Pair {
    let mut pair = Pair::new(HeapTuning::TIGHT);
    take(&mut pair, 1.0, 1);
    take(&mut pair, 3.0, 0);
    give(&mut pair, 1);
    take(&mut pair, 2.5, 0);
    assert_eq!(pages(&pair), 4);
    pair
}

#[test]
fn a_block_starts_with_what_its_stream_left_of_a_page() {
    let mut pair = begun();
    take(&mut pair, 4.5, 0);
    assert_eq!((pages(&pair), pair.heap.map.pages.shared().count()), (8, 1));
    // Once all of it is free, the page is whole again in any mapping.
    give(&mut pair, 1);
    give(&mut pair, 1);
    take(&mut pair, 7.0, 0);
    assert_eq!((pages(&pair), pair.heap.map.pages.shared().count()), (8, 0));
}

#[test]
fn what_one_stream_left_is_not_what_another_starts_with() {
    let mut pair = begun();
    take(&mut pair, 4.5, 1);
    assert_eq!((pages(&pair), pair.heap.map.pages.shared().count()), (9, 0));
}

#[test]
fn a_page_in_several_mappings_goes_back_with_the_rest() {
    let mut pair = begun();
    take(&mut pair, 4.5, 0);
    (0..3).for_each(|_| give(&mut pair, 0));
    [0, 1].into_iter().for_each(|stream| pair.known.observe(stream));
    pair.run(&Step::Trim { keep_bytes: 0 });
    assert!(pair.driver.created.is_empty() && pair.driver.mapped.is_empty());
}

#[test]
fn what_is_asked_for_at_an_alignment_starts_there() {
    let mut pair = begun();
    let size_bytes = 9 * PAGE_BYTES / 2;
    let block =
        pair.climb(&BlockRequest { size_bytes, alignment: PAGE_BYTES, stream: StreamIndex(0) }).unwrap();
    assert_eq!(block.address % PAGE_BYTES, 0);
    pair.heap.check().unwrap();
}

/// Two pages that another stream uses in part: the end of one is free, and the start of the other.
fn at_its_limit(pages: u64) -> Pair {
    let mut pair = Pair { limit_bytes: pages * PAGE_BYTES, ..Pair::new(HeapTuning::FAST) };
    for size in [0.75, 0.75, 2.0, 1.0] {
        take(&mut pair, size, 1);
    }
    give(&mut pair, 0);
    pair.known.observe(1);
    pair.run(&Step::Settle);
    pair
}

#[test]
fn at_a_limit_a_block_starts_and_ends_in_pages_of_others() {
    let mut pair = at_its_limit(7);
    let before = pages(&pair);
    assert_eq!(before, 5);
    // Half a page is free behind the second block, three quarters before it; two pages are left below the limit.
    take(&mut pair, 3.0, 0);
    assert_eq!((pages(&pair), pair.live.len(), pair.heap.map.pages.shared().count()), (7, 4, 2));
    pair.run(&Step::Give { index: 0, uses: 1, complete: true });
    pair.heap.check().unwrap();
}

#[test]
fn what_is_not_free_yet_is_not_shared() {
    let mut pair = Pair { limit_bytes: 5 * PAGE_BYTES, ..Pair::new(HeapTuning::FAST) };
    take(&mut pair, 3.0, 1);
    let request = BlockRequest { size_bytes: 5 * PAGE_BYTES / 2, alignment: 256, stream: StreamIndex(0) };
    give(&mut pair, 0);
    take(&mut pair, 2.25, 1);
    assert_eq!(pair.climb(&request), None);
    pair.known.observe(1);
    pair.run(&Step::Settle);
    assert!(pair.climb(&request).is_some());
}

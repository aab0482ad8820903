//! [`Depot`]: the batch that a request gets.

use crate::block::HeapBlock;
use crate::cache::depot::{Batch, Depot, SHELF_COUNT_MAX};
use crate::size_class::SizeClass;

fn class(size_bytes: u64) -> SizeClass {
    SizeClass::of(size_bytes).unwrap()
}

fn batch(stamp: u32) -> Batch<u32> {
    Batch { stamp, blocks: vec![HeapBlock { address: 0, record: stamp }] }
}

#[test]
fn the_latest_batch_that_may_be_had_is_taken() {
    let depot = Depot::new();
    for stamp in 1..=4 {
        depot.add(class(256), batch(stamp)).unwrap();
    }
    assert_eq!(depot.take(class(512), |_| true, &mut Vec::new()), None);
    assert_eq!(depot.take(class(256), |stamp| stamp % 2 == 1, &mut Vec::new()), Some(batch(3)));
    assert_eq!(depot.take(class(256), |stamp| stamp % 2 == 1, &mut Vec::new()), Some(batch(1)));
    assert_eq!(depot.take(class(256), |stamp| stamp % 2 == 1, &mut Vec::new()), None);
    assert_eq!(depot.take(class(256), |_| true, &mut Vec::new()), Some(batch(4)));
}

#[test]
fn a_full_shelf_gives_the_batch_back() {
    let depot = Depot::new();
    for stamp in 0..SHELF_COUNT_MAX as u32 {
        depot.add(class(256), batch(stamp)).unwrap();
    }
    assert_eq!(depot.add(class(256), batch(99)), Err(batch(99)));
    depot.add(class(512), batch(99)).unwrap();
    let mut drained = Vec::new();
    depot.drain(|class, batch| drained.push((class.size_bytes(), batch.stamp)));
    assert_eq!(drained.len(), SHELF_COUNT_MAX + 1);
    assert_eq!(drained.last(), Some(&(512, 99)));
    assert_eq!(depot.take(class(256), |_| true, &mut Vec::new()), None);
}

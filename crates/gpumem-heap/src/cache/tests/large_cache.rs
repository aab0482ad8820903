//! [`LargeCache`]: the blocks that are handed out again, and the blocks that go to the heap.

use crate::block::HeapBlock;
use crate::cache::large_cache::{CLOSE_STEPS, LOOSE_STEPS, LargeBlock, LargeCache, Retention, SizeStep};

const MIB: u64 = 1 << 20;

fn large(record: u32, size_bytes: u64) -> LargeBlock {
    let block = HeapBlock { address: u64::from(record) << 32, record };
    LargeBlock { block, size_bytes, step: SizeStep::floor(size_bytes), stamp: 7 }
}

fn loosely(keep_bytes: u64) -> Retention {
    Retention { keep_bytes, excess_steps: LOOSE_STEPS }
}

fn records(recent: &LargeCache) -> Vec<u32> {
    recent.as_slice().iter().map(|large| large.block.record).collect()
}

#[test]
fn the_block_that_went_out_last_comes_out_again_if_it_came_back_last() {
    let mut recent = LargeCache::new();
    recent.note_out(3, loosely(0));
    assert!(recent.put(large(3, 64)));
    assert_eq!(recent.take(65), None);
    for _ in 0..2 {
        assert_eq!(recent.take(64), Some(large(3, 64)));
        assert_eq!(recent.take(64), None);
        assert!(recent.put(large(3, 64)));
    }
    // Another block of this size was freed since: the heap decides where the request is placed.
    assert!(recent.put(large(4, 64)));
    assert_eq!(recent.take(64), None);
}

#[test]
fn a_few_wait_and_leave_together_as_they_came() {
    let mut recent = LargeCache::new();
    let put = (0..9).take_while(|record| recent.put(large(*record, 64))).count();
    assert!(put > 1 && put < 9);
    let mut left = Vec::new();
    recent.make_way(|large| left.push(large));
    assert_eq!(left, (0..put as u32).map(|record| large(record, 64)).collect::<Vec<_>>());
    assert!(recent.as_slice().is_empty() && recent.put(large(9, 64)));
}

#[test]
fn of_those_that_are_kept_the_smallest_that_is_large_enough_comes_out() {
    let mut recent = LargeCache::new();
    recent.note_out(99, loosely(100 * MIB));
    for (record, mib) in [(0, 10), (1, 12), (2, 9), (3, 30), (4, 12)] {
        assert!(recent.put(large(record, mib * MIB)));
    }
    let taken = |recent: &mut LargeCache, size_bytes| recent.take(size_bytes).map(|large| large.block.record);
    assert_eq!(taken(&mut recent, 9 * MIB + 1), Some(0));
    assert_eq!(taken(&mut recent, 9 * MIB), Some(2));
    // More than a quarter larger: left to the heap.
    assert_eq!(taken(&mut recent, 9 * MIB), None);
    assert_eq!(taken(&mut recent, 31 * MIB), None);
    let pair = [taken(&mut recent, 12 * MIB), taken(&mut recent, 12 * MIB)];
    assert!(pair == [Some(1), Some(4)] || pair == [Some(4), Some(1)]);
    assert_eq!(taken(&mut recent, 12 * MIB), None);
    assert_eq!(records(&recent), [3]);
}

#[test]
fn without_slack_a_kept_block_is_a_sixteenth_larger_at_most() {
    let mut recent = LargeCache::new();
    recent.note_out(99, Retention { keep_bytes: 100 * MIB, excess_steps: CLOSE_STEPS });
    for (record, mib) in [(0, 20), (1, 17)] {
        assert!(recent.put(large(record, mib * MIB)));
    }
    assert!(recent.keeps() && !recent.is_loose());
    assert_eq!(recent.take(16 * MIB), Some(large(1, 17 * MIB)));
    assert_eq!(recent.take(16 * MIB), None);
    recent.note_out(99, loosely(100 * MIB));
    assert!(recent.is_loose());
    assert_eq!(recent.take(16 * MIB), Some(large(0, 20 * MIB)));
}

#[test]
fn a_set_keeps_no_more_than_it_was_told() {
    let mut recent = LargeCache::new();
    recent.note_out(99, loosely(100 * MIB));
    let put = (0..200).take_while(|record| recent.put(large(*record, 10 * MIB))).count();
    assert_eq!(put, 10);
    let mut left = Vec::new();
    recent.make_way(|large| left.push(large.block.record));
    assert_eq!(left, [0, 1, 2]);
    assert!((10..13).all(|record| recent.put(large(record, 10 * MIB))));
    assert!(!recent.put(large(13, 10 * MIB)) && !recent.put(large(14, u64::MAX)));
    // The number of blocks is limited by what a search can read.
    recent.note_out(99, loosely(u64::MAX));
    let put = (100..999).take_while(|record| recent.put(large(*record, 2 * MIB))).count();
    assert_eq!(recent.as_slice().len(), 10 + put);
    assert_eq!(recent.as_slice().len(), 128);
    recent.note_out(99, loosely(0));
    recent.empty_unkept(|_| ());
    assert!(recent.as_slice().is_empty() && recent.take(2 * MIB).is_none());
}

#[test]
fn who_was_emptied_keeps_none_until_the_heap_says_so() {
    let mut recent = LargeCache::new();
    recent.note_out(99, loosely(100 * MIB));
    assert!(recent.put(large(0, 10 * MIB)));
    recent.empty(|_| ());
    assert!(recent.put(large(1, 10 * MIB)) && recent.take(10 * MIB).is_none());
    recent.note_out(99, loosely(100 * MIB));
    assert_eq!(recent.take(9 * MIB), Some(large(1, 10 * MIB)));
}

#[test]
fn a_step_is_no_more_than_its_size_and_a_64th_less_at_most() {
    let sizes = (0..64).flat_map(|power| [0, 1, 77, u64::MAX].map(|more| (1 << power) + more % (1 << power)));
    for size_bytes in sizes {
        let step = SizeStep::floor(size_bytes);
        assert!(step.number() < SizeStep::COUNT && SizeStep::at(step.number()) == Some(step));
        assert!(step.size_bytes() <= size_bytes && size_bytes - step.size_bytes() <= size_bytes / 64);
        assert!(SizeStep::floor(step.size_bytes()) == step);
    }
}

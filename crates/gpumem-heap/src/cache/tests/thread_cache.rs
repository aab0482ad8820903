//! [`ThreadCache`]: stacks, room and allowance.

use crate::block::HeapBlock;
use crate::cache::tests::own;
use crate::cache::thread_cache::{ThreadCache, close_all, visit_all};
use crate::size_class::SizeClass;

fn class(size_bytes: u64) -> SizeClass {
    SizeClass::of(size_bytes).unwrap()
}

fn block(record: u32) -> HeapBlock {
    HeapBlock { address: 0x1000 * u64::from(record), record }
}

/// A cache that holds blocks 1 to `count` of a class, and has room for nothing more.
fn filled(class: SizeClass, count: u32) -> ThreadCache {
    let cache = ThreadCache::new(7);
    for record in 1..=count {
        own(&cache).with(|magazines| magazines.add_room(class.size_bytes())).unwrap();
        assert!(own(&cache).with(|magazines| magazines.make_space(class)).unwrap().is_none());
        assert!(own(&cache).put(class, 100, block(record)));
    }
    cache
}

#[test]
fn the_piece_put_in_last_is_handed_out_first() {
    let cache = filled(class(4096), 3);
    assert_eq!(own(&cache).take(class(4096), 4000), Some(block(3)));
    assert_eq!(own(&cache).take(class(4096), 4000), Some(block(2)));
    assert_eq!(own(&cache).take(class(8192), 8000), None);
    let counters = cache.counters();
    assert_eq!(counters.in_use_bytes(), 8000_u64.wrapping_sub(300));
    assert_eq!(counters.operation_count(), 5);
}

#[test]
fn nothing_goes_in_beyond_the_allowance() {
    let cache = filled(class(4096), 1);
    assert!(!own(&cache).put(class(256), 256, block(9)));
    assert_eq!(own(&cache).take(class(4096), 4096), Some(block(1)));
    own(&cache).with(|magazines| magazines.make_space(class(256))).unwrap();
    // The blocks that left make room for others of equal size.
    assert!(own(&cache).put(class(256), 256, block(9)));
    assert_eq!(own(&cache).with(|magazines| magazines.room_bytes()), Some(4096 - 256));
    assert_eq!(own(&cache).with(|magazines| magazines.held_bytes()), Some(256));
}

#[test]
fn a_full_stack_gives_up_its_older_half_with_the_allowance() {
    let largest = class(1 << 20);
    let cache = filled(largest, 8);
    let mut batch = own(&cache).with(|magazines| magazines.make_space(largest)).unwrap().unwrap();
    assert_eq!(batch, [block(1), block(2), block(3), block(4)]);
    assert_eq!(
        own(&cache).with(|magazines| (magazines.room_bytes(), magazines.held_bytes())),
        Some((0, 4 << 20))
    );
    own(&cache).with(|magazines| magazines.refill(largest, &mut batch)).unwrap();
    assert_eq!(own(&cache).with(|magazines| magazines.held_bytes()), Some(8 << 20));
}

/// A batch need not be full, so a stack may have any length.
#[test]
fn a_stack_that_is_a_little_short_of_its_longest_grows_by_that_little() {
    let largest = class(1 << 20);
    let cache = ThreadCache::new(7);
    let mut blocks: Vec<HeapBlock> = (1..=6).map(block).collect();
    own(&cache).with(|magazines| magazines.refill(largest, &mut blocks)).unwrap();
    for record in 7..=8 {
        own(&cache).with(|magazines| magazines.add_room(largest.size_bytes())).unwrap();
        assert!(own(&cache).with(|magazines| magazines.make_space(largest)).unwrap().is_none());
        assert!(own(&cache).put(largest, 100, block(record)));
    }
    assert_eq!(own(&cache).with(|magazines| magazines.held_bytes()), Some(8 << 20));
}

#[test]
fn shrinking_gives_up_room_and_then_large_pieces() {
    let cache = filled(class(4096), 2);
    own(&cache).with(|magazines| magazines.add_room(1 << 20)).unwrap();
    own(&cache).with(|magazines| magazines.make_space(class(256))).unwrap();
    assert!(own(&cache).put(class(256), 256, block(9)));
    let mut left = Vec::new();
    let mut shrink = |keep_bytes| {
        let given_bytes =
            own(&cache).with(|magazines| magazines.shrink(keep_bytes, |block| left.push(block.record)));
        (given_bytes.unwrap(), core::mem::take(&mut left))
    };
    assert_eq!(shrink(10_000), ((1 << 20) + 8192 - 10_000, vec![]));
    assert_eq!(shrink(5_000), (5_000, vec![2]));
    assert_eq!(shrink(300), (4_700, vec![1]));
    assert_eq!(shrink(0), (300, vec![9]));
    assert_eq!(shrink(0), (0, vec![]));
}

#[test]
fn use_is_noticed_once() {
    let cache = filled(class(256), 1);
    assert!(cache.was_used());
    assert!(!cache.was_used());
    own(&cache).take(class(256), 1).unwrap();
    assert!(cache.was_used());
}

#[test]
fn a_closed_set_takes_and_gives_nothing() {
    let cache = filled(class(256), 2);
    own(&cache).take(class(256), 256).unwrap();
    close_all([&cache], |_, magazines| assert_eq!(magazines.shrink(0, |_| ()), 512));
    assert!(cache.is_closed());
    assert!(!own(&cache).put(class(256), 256, block(2)));
    assert_eq!(own(&cache).take(class(256), 256), None);
    assert!(!own(&cache).count_in(1));
}

#[test]
fn only_one_thread_adopts_what_another_left() {
    let cache = ThreadCache::new(7);
    assert!(!cache.adopt());
    cache.hand_over();
    assert!(cache.adopt());
    assert!(!cache.adopt());
}

/// The owner takes and puts, while another thread removes everything again and again.
#[test]
fn an_owner_and_a_drainer_lose_nothing() {
    let cache = filled(class(256), 4);
    let (rounds, count) = if cfg!(miri) { (3, 10) } else { (300, 1_000) };
    std::thread::scope(|scope| {
        let drainer = scope.spawn(|| {
            let mut drained = Vec::new();
            for _ in 0..rounds {
                visit_all([(&cache, ())], |_, (), magazines| {
                    magazines.shrink(0, |block| drained.push(block.record));
                });
                std::thread::yield_now();
            }
            drained
        });
        let cache = own(&cache);
        let mut kept = Vec::new();
        let mut next = 5;
        while !drainer.is_finished() {
            for _ in 0..count {
                // Fails while the other thread has revoked the cache, and when it is empty.
                let block = cache.take(class(256), 256).unwrap_or_else(|| {
                    next += 1;
                    block(next - 1)
                });
                cache.with(|magazines| {
                    magazines.add_room(256);
                    magazines.make_space(class(256))
                });
                if !cache.put(class(256), 256, block) {
                    kept.push(block.record);
                }
            }
        }
        let mut records = drainer.join().unwrap();
        cache.with(|magazines| magazines.shrink(0, |block| records.push(block.record)));
        records.extend(kept);
        records.sort_unstable();
        assert_eq!(records, (1..next).collect::<Vec<_>>());
    });
}

/// The host memory of a cache, which the pool reports as `Status::record_bytes`.
#[test]
fn a_set_takes_six_kibibytes() {
    assert!(size_of::<ThreadCache>() <= 6 << 10, "{}", size_of::<ThreadCache>());
    assert_eq!(size_of::<HeapBlock>(), 16);
}

//! [`ThreadCache`]: stacks, room and allowance.

use crate::block::HeapBlock;
use crate::cache::tests::own;
use crate::cache::thread_cache::{ThreadCache, close_all, visit_all};
use crate::size_class::SizeClass;

fn class(size_bytes: u64) -> SizeClass {
    SizeClass::of(size_bytes).unwrap()
}

fn piece(record: u32) -> HeapBlock {
    HeapBlock { address: 0x1000 * u64::from(record), record }
}

/// A set that holds pieces 1 to `count` of a class, and has room for nothing more.
fn filled(class: SizeClass, count: u32) -> ThreadCache {
    let set = ThreadCache::new(7);
    for record in 1..=count {
        own(&set).with(|magazines| magazines.add_room(class.size_bytes())).unwrap();
        assert!(own(&set).with(|magazines| magazines.make_space(class)).unwrap().is_none());
        assert!(own(&set).put(class, 100, piece(record)));
    }
    set
}

#[test]
fn the_piece_put_in_last_is_handed_out_first() {
    let set = filled(class(4096), 3);
    assert_eq!(own(&set).take(class(4096), 4000), Some(piece(3)));
    assert_eq!(own(&set).take(class(4096), 4000), Some(piece(2)));
    assert_eq!(own(&set).take(class(8192), 8000), None);
    let counters = set.counters();
    assert_eq!(counters.in_use_bytes(), 8000_u64.wrapping_sub(300));
    assert_eq!(counters.operation_count(), 5);
}

#[test]
fn nothing_goes_in_beyond_the_allowance() {
    let set = filled(class(4096), 1);
    assert!(!own(&set).put(class(256), 256, piece(9)));
    assert_eq!(own(&set).take(class(4096), 4096), Some(piece(1)));
    own(&set).with(|magazines| magazines.make_space(class(256))).unwrap();
    // What left makes room for others of the same bytes together.
    assert!(own(&set).put(class(256), 256, piece(9)));
    assert_eq!(own(&set).with(|magazines| magazines.room_bytes()), Some(4096 - 256));
    assert_eq!(own(&set).with(|magazines| magazines.held_bytes()), Some(256));
}

#[test]
fn a_full_stack_gives_up_its_older_half_with_the_allowance() {
    let largest = class(1 << 20);
    let set = filled(largest, 8);
    let mut batch = own(&set).with(|magazines| magazines.make_space(largest)).unwrap().unwrap();
    assert_eq!(batch, [piece(1), piece(2), piece(3), piece(4)]);
    assert_eq!(
        own(&set).with(|magazines| (magazines.room_bytes(), magazines.held_bytes())),
        Some((0, 4 << 20))
    );
    own(&set).with(|magazines| magazines.refill(largest, &mut batch)).unwrap();
    assert_eq!(own(&set).with(|magazines| magazines.held_bytes()), Some(8 << 20));
}

/// A batch need not be full, so a stack may come to any length.
#[test]
fn a_stack_that_is_a_little_short_of_its_longest_grows_by_that_little() {
    let largest = class(1 << 20);
    let set = ThreadCache::new(7);
    let mut pieces: Vec<HeapBlock> = (1..=6).map(piece).collect();
    own(&set).with(|magazines| magazines.refill(largest, &mut pieces)).unwrap();
    for record in 7..=8 {
        own(&set).with(|magazines| magazines.add_room(largest.size_bytes())).unwrap();
        assert!(own(&set).with(|magazines| magazines.make_space(largest)).unwrap().is_none());
        assert!(own(&set).put(largest, 100, piece(record)));
    }
    assert_eq!(own(&set).with(|magazines| magazines.held_bytes()), Some(8 << 20));
}

#[test]
fn shrinking_gives_up_room_and_then_large_pieces() {
    let set = filled(class(4096), 2);
    own(&set).with(|magazines| magazines.add_room(1 << 20)).unwrap();
    own(&set).with(|magazines| magazines.make_space(class(256))).unwrap();
    assert!(own(&set).put(class(256), 256, piece(9)));
    let mut left = Vec::new();
    let mut shrink = |keep_bytes| {
        let given_bytes =
            own(&set).with(|magazines| magazines.shrink(keep_bytes, |piece| left.push(piece.record)));
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
    let set = filled(class(256), 1);
    assert!(set.was_used());
    assert!(!set.was_used());
    own(&set).take(class(256), 1).unwrap();
    assert!(set.was_used());
}

#[test]
fn a_closed_set_takes_and_gives_nothing() {
    let set = filled(class(256), 2);
    own(&set).take(class(256), 256).unwrap();
    close_all([&set], |_, magazines| assert_eq!(magazines.shrink(0, |_| ()), 512));
    assert!(set.is_closed());
    assert!(!own(&set).put(class(256), 256, piece(2)));
    assert_eq!(own(&set).take(class(256), 256), None);
    assert!(!own(&set).count_in(1));
}

#[test]
fn only_one_thread_adopts_what_another_left() {
    let set = ThreadCache::new(7);
    assert!(!set.adopt());
    set.hand_over();
    assert!(set.adopt());
    assert!(!set.adopt());
}

/// The owner hands out and takes back, while another takes all away again and again.
#[test]
fn an_owner_and_a_drainer_lose_nothing() {
    let set = filled(class(256), 4);
    let (rounds, count) = if cfg!(miri) { (3, 10) } else { (300, 1_000) };
    std::thread::scope(|scope| {
        let drainer = scope.spawn(|| {
            let mut drained = Vec::new();
            for _ in 0..rounds {
                visit_all([(&set, ())], |_, (), magazines| {
                    magazines.shrink(0, |piece| drained.push(piece.record));
                });
                std::thread::yield_now();
            }
            drained
        });
        let set = own(&set);
        let mut kept = Vec::new();
        let mut next = 5;
        while !drainer.is_finished() {
            for _ in 0..count {
                // It fails while the other is at the set, and when all is gone.
                let piece = set.take(class(256), 256).unwrap_or_else(|| {
                    next += 1;
                    piece(next - 1)
                });
                set.with(|magazines| {
                    magazines.add_room(256);
                    magazines.make_space(class(256))
                });
                if !set.put(class(256), 256, piece) {
                    kept.push(piece.record);
                }
            }
        }
        let mut records = drainer.join().unwrap();
        set.with(|magazines| magazines.shrink(0, |piece| records.push(piece.record)));
        records.extend(kept);
        records.sort_unstable();
        assert_eq!(records, (1..next).collect::<Vec<_>>());
    });
}

/// What is told of the records' host memory ([`Status::record_bytes`](crate::Status::record_bytes)).
#[test]
fn a_set_takes_six_kibibytes() {
    assert!(size_of::<ThreadCache>() <= 6 << 10, "{}", size_of::<ThreadCache>());
    assert_eq!(size_of::<HeapBlock>(), 16);
}

//! The queue, on memory that only counts.

use super::{RoomQueue, RoomSize, RoomSupply};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn supply(free_bytes: u64, in_use: &[(u16, u64)]) -> RoomSupply {
    RoomSupply { free_bytes, in_use_bytes: in_use.iter().copied().collect(), ..RoomSupply::default() }
}

#[test]
fn requests_are_admitted_in_order_while_they_fit() {
    let mut queue = RoomQueue::default();
    let numbers =
        [40, 50, 20, 10].map(|size_bytes| queue.add(RoomSize { tag: size_bytes as u16, size_bytes }));
    queue.admit(&supply(100, &[]));
    // 20 does not fit beside 90, and 10 passes it.
    assert_eq!(numbers.map(|number| queue.is_admitted(number)), [true, true, false, true]);
    queue.remove(numbers[0]);
    queue.admit(&supply(100, &[]));
    assert!(queue.is_admitted(numbers[2]));
}

#[test]
fn a_request_is_passed_by_as_much_as_it_asks_for() {
    let mut queue = RoomQueue::default();
    let first = queue.add(RoomSize { tag: 1, size_bytes: 60 });
    queue.admit(&supply(100, &[]));
    let large = queue.add(RoomSize { tag: 2, size_bytes: 50 });
    let small: Vec<_> = (3..20).map(|tag| queue.add(RoomSize { tag, size_bytes: 10 })).collect();
    for number in small {
        queue.admit(&supply(100, &[]));
        if queue.is_admitted(number) {
            queue.remove(number);
        }
    }
    assert_eq!(queue.waiting.len(), 13, "five of 17 have passed");
    queue.remove(first);
    queue.admit(&supply(100, &[]));
    assert!(queue.is_admitted(large));
}

#[test]
fn what_a_tag_has_is_not_asked_for_again() {
    let mut queue = RoomQueue::default();
    let session = RoomSize { tag: 7, size_bytes: 60 };
    let number = queue.add(session);
    queue.admit(&supply(10, &[(7, 50)]));
    assert!(queue.is_admitted(number));
    assert_eq!(queue.outstanding_bytes(&supply(10, &[(7, 50)])), 10);
    assert_eq!(queue.outstanding_bytes(&supply(0, &[(7, 70)])), 0);
}

#[test]
fn what_moves_away_makes_room_unless_it_is_needed() {
    let movable = |tags: &[(u16, u64)]| RoomSupply {
        movable_bytes: tags.iter().copied().collect(),
        in_use_bytes: tags.iter().copied().collect(),
        ..RoomSupply::default()
    };
    let mut queue = RoomQueue::default();
    let first = queue.add(RoomSize { tag: 1, size_bytes: 60 });
    queue.admit(&movable(&[(0, 20), (1, 50)]));
    assert!(queue.is_admitted(first), "it lacks 10, and 20 of another tag could move");
    let second = queue.add(RoomSize { tag: 2, size_bytes: 30 });
    queue.admit(&movable(&[(0, 20), (1, 60)]));
    assert!(!queue.is_admitted(second), "the memory of the first does not move");
    queue.remove(first);
    queue.admit(&movable(&[(0, 20), (1, 60)]));
    assert!(queue.is_admitted(second));
    let third = queue.add(RoomSize { tag: 1, size_bytes: 60 });
    queue.admit(&movable(&[(0, 20), (1, 60)]));
    assert!(!queue.is_admitted(third), "the second counts on a part of its memory");
}

/// Sessions of 60 in a memory of 300, which holds five: where one has to make way for another, two are admitted.
#[test]
fn where_contents_make_way_half_of_the_memory_is_reserved() {
    let sessions = |idle: &[u16], free_bytes| RoomSupply {
        total_bytes: 300,
        free_bytes,
        movable_bytes: idle.iter().map(|tag| (*tag, 60)).collect(),
        in_use_bytes: (1..=5).map(|tag| (tag, 60)).collect(),
    };
    let mut queue = RoomQueue::default();
    let resident: Vec<_> = (1..=2).map(|tag| queue.add(RoomSize { tag, size_bytes: 60 })).collect();
    let away: Vec<_> = (6..=7).map(|tag| queue.add(RoomSize { tag, size_bytes: 60 })).collect();
    queue.admit(&sessions(&[3, 4, 5], 0));
    assert!(resident.iter().all(|number| queue.is_admitted(*number)));
    assert!(!queue.is_admitted(away[0]), "it would take 180 of 300");
    queue.remove(resident[0]);
    queue.admit(&sessions(&[1, 3, 4, 5], 0));
    assert!(queue.is_admitted(away[0]) && !queue.is_admitted(away[1]));
    // Nothing has to make way.
    queue.admit(&sessions(&[1, 3, 4, 5], 120));
    assert!(queue.is_admitted(away[1]));
}

proptest! {
    /// In every order of requests and ends, reservations fit together, and no request is passed by more bytes than it asks for.
    #[test]
    fn reservations_fit(steps in prop::collection::vec((0_u8..4, 1_u64..60, 0_u16..6), 1..120)) {
        let capacity = 100;
        let mut queue = RoomQueue::default();
        // What each reservation has drawn.
        let mut drawn: BTreeMap<u64, (u16, u64, u64)> = BTreeMap::new();
        for (kind, size_bytes, tag) in steps {
            let numbers: Vec<u64> = queue.admitted.keys().copied().collect();
            match kind {
                0 | 1 => drop(queue.add(RoomSize { tag, size_bytes })),
                2 => {
                    if let Some(number) = numbers.get(size_bytes as usize % numbers.len().max(1)) {
                        queue.remove(*number);
                        drawn.remove(number);
                    }
                }
                _ => {
                    if let Some(number) = numbers.get(size_bytes as usize % numbers.len().max(1)) {
                        let room = queue.admitted[number];
                        let entry = drawn.entry(*number).or_insert((room.tag, room.size_bytes, 0));
                        entry.2 = entry.1.min(entry.2 + size_bytes);
                    }
                }
            }
            let mut in_use = BTreeMap::new();
            for (tag, _, bytes) in drawn.values() {
                *in_use.entry(*tag).or_insert(0) += bytes;
            }
            let used: u64 = in_use.values().sum();
            prop_assert!(used <= capacity);
            let supply = RoomSupply {
                free_bytes: capacity - used,
                in_use_bytes: in_use,
                ..RoomSupply::default()
            };
            queue.admit(&supply);
            prop_assert!(queue.outstanding_bytes(&supply) <= supply.free_bytes);
            prop_assert!(queue.waiting.iter().all(|one| one.passed_bytes <= one.room.size_bytes));
            // The first one waits only while it does not fit.
            if let Some(first) = queue.waiting.front() {
                prop_assert!(!queue.fits(first.room, &supply));
            }
        }
    }
}

//! [`ThreadCaches`]: single steps, and any order of steps against a list of what is live.

use crate::block::HeapBlock;
use crate::cache::tests::own;
use crate::cache::thread_cache::ThreadCache;
use crate::cache::thread_caches::{REFUSALS_BETWEEN_REBALANCES, Spill, ThreadCaches};
use crate::size_class::SizeClass;
use proptest::prelude::*;
use std::sync::Arc;

fn class(size_bytes: u64) -> SizeClass {
    SizeClass::of(size_bytes).unwrap()
}

/// A front over a heap that has everything: records are numbers, stamps say on which stream a piece was freed.
struct World {
    front: ThreadCaches<u64>,
    sets: Vec<Arc<ThreadCache>>,
    next_record: u32,
    spill: Spill<u64>,
    heap_visits: u32,
}

impl World {
    fn new(cap_bytes: u64, streams: impl IntoIterator<Item = u64>) -> Self {
        let front = ThreadCaches::new(cap_bytes);
        let sets = streams.into_iter().map(|stream| front.adopt(stream).unwrap()).collect();
        Self { front, sets, next_record: 0, spill: Vec::new(), heap_visits: 0 }
    }

    fn take(&mut self, set: usize, class: SizeClass) -> HeapBlock {
        let set = own(&self.sets[set]);
        let near = set.take(class, class.size_bytes());
        if let Some(piece) = near {
            return piece;
        }
        if self.front.refill(set, class, |stamp| *stamp == set.stream()) {
            return set.take(class, class.size_bytes()).unwrap();
        }
        self.heap_visits += 1;
        self.next_record += 1;
        HeapBlock { address: class.size_bytes(), record: self.next_record }
    }

    fn put(&mut self, set: usize, class: SizeClass, piece: HeapBlock) {
        let set = own(&self.sets[set]);
        if set.put(class, class.size_bytes(), piece) {
            return;
        }
        if self.front.make_way(set, class, |stream| stream, &mut self.spill) {
            assert!(set.put(class, class.size_bytes(), piece), "way was made");
        } else {
            self.heap_visits += 1;
            self.spill.push((piece, set.stream()));
            assert!(set.count_in(class.size_bytes()));
        }
    }

    fn held_bytes(&self) -> u64 {
        let held = |set: &Arc<ThreadCache>| own(set).with(|magazines| magazines.held_bytes());
        self.sets.iter().filter_map(held).sum()
    }

    /// The numbers of all pieces that have come back to the heap.
    fn drained(&mut self) -> Vec<u32> {
        self.front.drain(|stream| stream, &mut self.spill);
        let mut records: Vec<u32> = self.spill.iter().map(|(piece, _)| piece.record).collect();
        records.sort_unstable();
        records
    }
}

#[test]
fn what_one_thread_frees_another_takes_by_the_batch() {
    // The first set is the producer's, the second the consumer's; both are of stream 7.
    let mut world = World::new(8 << 20, [7, 7]);
    let size = class(4096);
    let mut produced = std::collections::VecDeque::new();
    for _ in 0..10_000 {
        produced.push_back(world.take(0, size));
        if produced.len() > 100 {
            let piece = produced.pop_front().unwrap();
            world.put(1, size, piece);
        }
    }
    assert!(world.heap_visits < 400, "{} visits of the heap", world.heap_visits);
    assert!(world.front.granted_bytes() <= 8 << 20);
}

#[test]
fn sixteen_threads_that_cycle_a_mebibyte_hit_though_one_was_greedy() {
    // 0.5 % of 4 GiB.
    let cap_bytes = (4 << 30) / 200;
    let mut world = World::new(cap_bytes, 0..16);
    let size = class(1 << 20);
    for small in [class(900 << 10), class(1000 << 10), size] {
        let pieces: Vec<HeapBlock> = (0..10).map(|_| world.take(0, small)).collect();
        pieces.into_iter().for_each(|piece| world.put(0, small, piece));
    }
    let cycle = |world: &mut World| {
        for set in 0..16 {
            let piece = world.take(set, size);
            world.put(set, size, piece);
        }
    };
    (0..100).for_each(|_| cycle(&mut world));
    world.heap_visits = 0;
    (0..100).for_each(|_| cycle(&mut world));
    assert_eq!(world.heap_visits, 0);
    assert!(world.held_bytes() <= cap_bytes);
}

#[test]
fn what_nobody_uses_makes_room() {
    let mut world = World::new(1 << 20, 0..3);
    let size = class(64 << 10);
    let held: Vec<HeapBlock> = (0..16).map(|_| world.take(0, size)).collect();
    held.into_iter().for_each(|piece| world.put(0, size, piece));
    assert_eq!(world.held_bytes(), 1 << 20);
    for _ in 0..2 * REFUSALS_BETWEEN_REBALANCES {
        let piece = world.take(1, size);
        world.put(1, size, piece);
    }
    world.heap_visits = 0;
    let piece = world.take(1, size);
    world.put(1, size, piece);
    assert_eq!(world.heap_visits, 0);
}

#[test]
fn a_set_that_a_thread_left_is_adopted_with_what_is_in_it() {
    let mut world = World::new(8 << 20, [7]);
    let piece = world.take(0, class(256));
    world.put(0, class(256), piece);
    world.sets.remove(0).hand_over();
    assert!(own(&world.front.adopt(8).unwrap()).take(class(256), 256).is_none());
    world.sets.push(world.front.adopt(7).unwrap());
    assert_eq!(world.take(0, class(256)), piece);
}

#[test]
fn sets_of_a_stream_that_is_gone_are_closed_and_their_counts_kept() {
    let mut world = World::new(8 << 20, [7, 8]);
    let piece = world.take(0, class(256));
    world.put(0, class(256), piece);
    assert_eq!(world.take(0, class(256)), piece);
    let before = world.front.counters();
    world.front.purge(|stream| stream == 7, |stream| stream, &mut world.spill);
    assert!(world.sets[0].is_closed() && !world.sets[1].is_closed());
    assert_eq!(world.front.counters(), before);
    assert!(!world.front.make_way(own(&world.sets[0]), class(256), |stream| stream, &mut world.spill));
}

#[test]
fn a_closed_front_has_counted_everything_and_adopts_nobody() {
    let mut world = World::new(8 << 20, [7, 8]);
    let pieces = [world.take(0, class(256)), world.take(1, class(512))];
    world.put(1, class(256), pieces[0]);
    let open = world.front.counters();
    assert_eq!(world.front.close(|stream| stream, &mut world.spill), open);
    assert_eq!(world.spill, [(pieces[0], 8)]);
    assert!(world.front.adopt(7).is_none());
    assert!(!world.front.count_in(8, 512));
    assert_eq!(world.front.granted_bytes(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Take { set: usize, class: usize },
    Put { set: usize, live: usize },
    Drain,
    Purge { stream: u64 },
    SetCap { cap_bytes: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![0..SizeClass::COUNT, Just(0), Just(SizeClass::COUNT - 1)];
    prop_oneof![
        8 => (0_usize..6, class).prop_map(|(set, class)| Step::Take { set, class }),
        8 => (0_usize..6, any::<usize>()).prop_map(|(set, live)| Step::Put { set, live }),
        1 => Just(Step::Drain),
        1 => (10_u64..13).prop_map(|stream| Step::Purge { stream }),
        1 => (0_u64..16 << 20).prop_map(|cap_bytes| Step::SetCap { cap_bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// The naive twin is a list of what is live: everything else must come back in a drain, once.
    #[test]
    fn no_piece_is_lost_or_handed_out_twice(steps in prop::collection::vec(step(), 1..400)) {
        let mut world = World::new(1 << 20, [0, 1, 2].iter().flat_map(|stream| [10 + stream; 2]));
        let mut live: Vec<(SizeClass, HeapBlock)> = Vec::new();
        let mut cap_bytes = 1 << 20;
        for step in steps {
            match step {
                Step::Take { set, class } => {
                    let class = SizeClass::at(class).unwrap();
                    let piece = world.take(set, class);
                    prop_assert_eq!(piece.address, class.size_bytes());
                    prop_assert!(live.iter().all(|(_, other)| other.record != piece.record));
                    live.push((class, piece));
                }
                Step::Put { set, live: index } if !live.is_empty() && !world.sets[set].is_closed() => {
                    let (class, piece) = live.swap_remove(index % live.len());
                    world.put(set, class, piece);
                }
                Step::Put { .. } => {}
                Step::Drain => drop(world.drained()),
                Step::Purge { stream } => {
                    world.front.purge(|other| other == stream, |stream| stream, &mut world.spill);
                    for set in &mut world.sets {
                        if set.is_closed() {
                            *set = world.front.adopt(stream).unwrap();
                        }
                    }
                }
                Step::SetCap { cap_bytes: new_bytes } => {
                    world.front.set_cap(new_bytes);
                    cap_bytes = cap_bytes.max(new_bytes);
                }
            }
            prop_assert!(world.held_bytes() <= world.front.granted_bytes());
            prop_assert!(world.front.granted_bytes() <= cap_bytes);
        }
        let mut records = world.drained();
        prop_assert_eq!(world.front.granted_bytes(), 0);
        records.extend(live.iter().map(|(_, piece)| piece.record));
        records.sort_unstable();
        prop_assert_eq!(records, (1..=world.next_record).collect::<Vec<_>>());
    }
}

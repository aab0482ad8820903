//! [`ThreadCaches`]: single steps, and any order of steps against a list of what is live.

use crate::block::HeapBlock;
use crate::cache::tests::own;
use crate::cache::thread_cache::ThreadCache;
use crate::cache::thread_caches::{Drained, REFUSALS_BETWEEN_REBALANCES, ThreadCaches};
use crate::size_class::SizeClass;
use proptest::prelude::*;
use std::sync::Arc;

fn class(size_bytes: u64) -> SizeClass {
    SizeClass::of(size_bytes).unwrap()
}

/// Thread caches over a heap that never runs out: records are numbers, stamps name the stream on which a block was freed.
struct World {
    pool: ThreadCaches<u64>,
    caches: Vec<Arc<ThreadCache>>,
    next_record: u32,
    drained: Drained<u64>,
    heap_visits: u32,
}

impl World {
    fn new(cap_bytes: u64, streams: impl IntoIterator<Item = u64>) -> Self {
        let pool = ThreadCaches::new(cap_bytes);
        let caches = streams.into_iter().map(|stream| pool.adopt(stream).unwrap()).collect();
        Self { pool, caches, next_record: 0, drained: Vec::new(), heap_visits: 0 }
    }

    fn take(&mut self, cache: usize, class: SizeClass) -> HeapBlock {
        let cache = own(&self.caches[cache]);
        let near = cache.take(class, class.size_bytes());
        if let Some(block) = near {
            return block;
        }
        let batch = self.pool.refill(cache, class, class.size_bytes(), |stamp| *stamp == cache.stream());
        if let Some(block) = batch {
            return block;
        }
        self.heap_visits += 1;
        self.next_record += 1;
        HeapBlock { address: class.size_bytes(), record: self.next_record }
    }

    fn put(&mut self, cache: usize, class: SizeClass, block: HeapBlock) {
        let cache = own(&self.caches[cache]);
        if cache.put(class, class.size_bytes(), block) {
            return;
        }
        if self.pool.make_way(cache, class, |stream| stream, &mut self.drained) {
            assert!(cache.put(class, class.size_bytes(), block), "way was made");
        } else {
            self.heap_visits += 1;
            self.drained.push((block, cache.stream()));
            assert!(cache.count_in(class.size_bytes()));
        }
    }

    fn held_bytes(&self) -> u64 {
        let held = |cache: &Arc<ThreadCache>| own(cache).with(|magazines| magazines.held_bytes());
        self.caches.iter().filter_map(held).sum()
    }

    /// The numbers of all blocks that have come back to the heap.
    fn drained(&mut self) -> Vec<u32> {
        self.pool.drain(|stream| stream, &mut self.drained);
        let mut records: Vec<u32> = self.drained.iter().map(|(block, _)| block.record).collect();
        records.sort_unstable();
        records
    }
}

#[test]
fn what_one_thread_frees_another_takes_by_the_batch() {
    // The first cache is the producer's, the second the consumer's; both are of stream 7.
    let mut world = World::new(8 << 20, [7, 7]);
    let size = class(4096);
    let mut produced = std::collections::VecDeque::new();
    for _ in 0..10_000 {
        produced.push_back(world.take(0, size));
        if produced.len() > 100 {
            let block = produced.pop_front().unwrap();
            world.put(1, size, block);
        }
    }
    assert!(world.heap_visits < 400, "{} visits of the heap", world.heap_visits);
    assert!(world.pool.granted_bytes() <= 8 << 20);
}

#[test]
fn sixteen_threads_that_cycle_a_mebibyte_hit_though_one_was_greedy() {
    // 0.5 % of 4 GiB.
    let cap_bytes = (4 << 30) / 200;
    let mut world = World::new(cap_bytes, 0..16);
    let size = class(1 << 20);
    for small in [class(900 << 10), class(1000 << 10), size] {
        let blocks: Vec<HeapBlock> = (0..10).map(|_| world.take(0, small)).collect();
        blocks.into_iter().for_each(|block| world.put(0, small, block));
    }
    let cycle = |world: &mut World| {
        for cache in 0..16 {
            let block = world.take(cache, size);
            world.put(cache, size, block);
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
    held.into_iter().for_each(|block| world.put(0, size, block));
    assert_eq!(world.held_bytes(), 1 << 20);
    for _ in 0..2 * REFUSALS_BETWEEN_REBALANCES {
        let block = world.take(1, size);
        world.put(1, size, block);
    }
    world.heap_visits = 0;
    let block = world.take(1, size);
    world.put(1, size, block);
    assert_eq!(world.heap_visits, 0);
}

#[test]
fn a_set_that_a_thread_left_is_adopted_with_what_is_in_it() {
    let mut world = World::new(8 << 20, [7]);
    let block = world.take(0, class(256));
    world.put(0, class(256), block);
    world.caches.remove(0).hand_over();
    assert!(own(&world.pool.adopt(8).unwrap()).take(class(256), 256).is_none());
    world.caches.push(world.pool.adopt(7).unwrap());
    assert_eq!(world.take(0, class(256)), block);
}

#[test]
fn sets_of_a_stream_that_is_gone_are_closed_and_their_counts_kept() {
    let mut world = World::new(8 << 20, [7, 8]);
    let block = world.take(0, class(256));
    world.put(0, class(256), block);
    assert_eq!(world.take(0, class(256)), block);
    let before = world.pool.counters();
    world.pool.purge(|stream| stream == 7, |stream| stream, &mut world.drained);
    assert!(world.caches[0].is_closed() && !world.caches[1].is_closed());
    assert_eq!(world.pool.counters(), before);
    assert!(!world.pool.make_way(own(&world.caches[0]), class(256), |stream| stream, &mut world.drained));
}

#[test]
fn a_closed_front_has_counted_everything_and_adopts_nobody() {
    let mut world = World::new(8 << 20, [7, 8]);
    let blocks = [world.take(0, class(256)), world.take(1, class(512))];
    world.put(1, class(256), blocks[0]);
    let open = world.pool.counters();
    assert_eq!(world.pool.close(|stream| stream, &mut world.drained), open);
    assert_eq!(world.drained, [(blocks[0], 8)]);
    assert!(world.pool.adopt(7).is_none());
    assert!(!world.pool.count_in(8, 512));
    assert_eq!(world.pool.granted_bytes(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Take { cache: usize, class: usize },
    Put { cache: usize, live: usize },
    Drain,
    Purge { stream: u64 },
    SetCap { cap_bytes: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![0..SizeClass::COUNT, Just(0), Just(SizeClass::COUNT - 1)];
    prop_oneof![
        8 => (0_usize..6, class).prop_map(|(cache, class)| Step::Take { cache, class }),
        8 => (0_usize..6, any::<usize>()).prop_map(|(cache, live)| Step::Put { cache, live }),
        1 => Just(Step::Drain),
        1 => (10_u64..13).prop_map(|stream| Step::Purge { stream }),
        1 => (0_u64..16 << 20).prop_map(|cap_bytes| Step::SetCap { cap_bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// The naive twin is a list of live blocks: everything else must come back in a drain, once.
    #[test]
    fn no_piece_is_lost_or_handed_out_twice(steps in prop::collection::vec(step(), 1..400)) {
        let mut world = World::new(1 << 20, [0, 1, 2].iter().flat_map(|stream| [10 + stream; 2]));
        let mut live: Vec<(SizeClass, HeapBlock)> = Vec::new();
        let mut cap_bytes = 1 << 20;
        for step in steps {
            match step {
                Step::Take { cache, class } => {
                    let class = SizeClass::at(class).unwrap();
                    let block = world.take(cache, class);
                    prop_assert_eq!(block.address, class.size_bytes());
                    prop_assert!(live.iter().all(|(_, other)| other.record != block.record));
                    live.push((class, block));
                }
                Step::Put { cache, live: index } if !live.is_empty() && !world.caches[cache].is_closed() => {
                    let (class, block) = live.swap_remove(index % live.len());
                    world.put(cache, class, block);
                }
                Step::Put { .. } => {}
                Step::Drain => drop(world.drained()),
                Step::Purge { stream } => {
                    world.pool.purge(|other| other == stream, |stream| stream, &mut world.drained);
                    for cache in &mut world.caches {
                        if cache.is_closed() {
                            *cache = world.pool.adopt(stream).unwrap();
                        }
                    }
                }
                Step::SetCap { cap_bytes: new_bytes } => {
                    world.pool.set_cap(new_bytes);
                    cap_bytes = cap_bytes.max(new_bytes);
                }
            }
            prop_assert!(world.held_bytes() <= world.pool.granted_bytes());
            prop_assert!(world.pool.granted_bytes() <= cap_bytes);
        }
        let mut records = world.drained();
        prop_assert_eq!(world.pool.granted_bytes(), 0);
        records.extend(live.iter().map(|(_, block)| block.record));
        records.sort_unstable();
        prop_assert_eq!(records, (1..=world.next_record).collect::<Vec<_>>());
    }
}

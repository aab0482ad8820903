//! [`Front`]: the magazines and the depot of one pool. All that small allocations and frees touch as long as they hit.
//!
//! ```text
//! take: this thread's set ── empty ──▶ a batch from the depot ── none ──▶ the caller asks the heap
//! put:  this thread's set ── full ───▶ its older half to the depot ── no allowance ──▶ the caller gives to the heap
//! ```
//!
//! What leaves the front for the heap is collected in a [`Spill`], each piece with its stamp. `S` is the stamp: the front
//! asks for one when pieces leave a set, and passes it on.
//!
//! *Order.* A piece in a set was freed by work that had been queued before. Its stamp is therefore read after it has left
//! the set: the event that closes the stamp's epoch is recorded later still, and so behind that work.
//!
//! *The last touch.* A pool may be torn down as soon as its last block has been counted in. So a free does everything
//! else first, and counts last, in a set that its thread keeps alive.

use super::budget::Budget;
use super::class::Class;
use super::depot::{Batch, Depot};
use super::magazine::{Magazines, Piece, Set};
use super::stats::Counters;
use super::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering};

#[derive(Debug)]
pub(super) struct Front<S> {
    budget: Budget,
    depot: Depot<S>,
    registry: Mutex<Registry>,
    /// Counts where no thread's set is at hand: a thread past its destructors, a stream that is gone.
    common: Set,
    refusal_count: AtomicU32,
}

/// All sets: those that a thread owns, and those whose thread has ended.
#[derive(Debug)]
struct Registry {
    sets: Vec<Arc<Set>>,
    /// What sets counted that are gone.
    retired: Counters,
    is_closed: bool,
}

/// Pieces on their way to the heap, each free once its stamp is.
pub(super) type Spill<S> = Vec<(Piece, S)>;

impl<S: Copy> Front<S> {
    pub(super) fn new(cap_bytes: u64) -> Self {
        Self {
            budget: Budget::new(cap_bytes),
            depot: Depot::new(),
            registry: Mutex::new(Registry {
                sets: Vec::new(),
                retired: Counters::default(),
                is_closed: false,
            }),
            common: Set::new(0),
            refusal_count: AtomicU32::new(0),
        }
    }

    /// How much all magazines and the depot may hold together from now on.
    pub(super) fn set_cap(&self, cap_bytes: u64) {
        self.budget.set_cap(cap_bytes);
    }

    /// A set for a thread that has none for the stream: one that another thread left, or a new one. `None` once closed.
    pub(super) fn adopt(&self, stream: u64) -> Option<Arc<Set>> {
        let mut registry = self.lock();
        if registry.is_closed {
            return None;
        }
        let left = registry.sets.iter().find(|set| set.stream() == stream && !set.is_closed() && set.adopt());
        if let Some(set) = left {
            return Some(Arc::clone(set));
        }
        let set = Arc::new(Set::new(stream));
        registry.sets.push(Arc::clone(&set));
        Some(set)
    }

    /// Fills the class's empty stack from the depot; false if nothing there may be had. A set that runs empty allocates
    /// more than it frees, so it gives up most of its room: pieces that are handed out leave theirs behind.
    pub(super) fn refill(&self, set: &Set, class: Class, may_have: impl Fn(&S) -> bool) -> bool {
        let kept_bytes = ROOM_KEPT_BYTES.max(class.size_bytes());
        self.budget.give_back(set.with(|magazines| magazines.give_up_room(kept_bytes)).unwrap_or(0));
        let Some(batch) = self.depot.take(class, may_have) else { return false };
        if set.with(|magazines| magazines.refill(class, &batch.pieces)).is_some() {
            return true;
        }
        // Closed: the stream is gone. The shelf may have filled up, by others' work, so this can make it one too long.
        self.depot.put_back(class, batch);
        false
    }

    /// Makes way in a set for one more piece of a class, if the allowances permit. The piece itself is put in last.
    pub(super) fn make_way(
        &self,
        set: &Set,
        class: Class,
        stamp: impl Fn(u64) -> S,
        spill: &mut Spill<S>,
    ) -> bool {
        let Some((batch, room_bytes)) =
            set.with(|magazines| (magazines.make_space(class), magazines.room_bytes()))
        else {
            return false;
        };
        if let Some(pieces) = batch {
            self.shelve(class, Batch { stamp: stamp(set.stream()), pieces }, spill);
        }
        if room_bytes >= class.size_bytes() || self.grant(set, class) {
            return true;
        }
        // Looking at all sets takes a while: one refusal of many does it.
        if self.refusal_count.fetch_add(1, Ordering::Relaxed) % REFUSALS_BETWEEN_REBALANCES != 0 {
            return false;
        }
        self.rebalance(set, stamp, spill);
        self.grant(set, class)
    }

    /// Takes all pieces out of a set, and its allowance.
    pub(super) fn drain_set(&self, set: &Set, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) {
        self.shrink(set, 0, stamp, spill);
    }

    /// Takes all pieces out of all sets and the depot, whatever their threads are doing.
    pub(super) fn drain(&self, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) {
        let registry = self.lock();
        registry.sets.iter().for_each(|set| self.shrink(set, 0, &stamp, spill));
        self.drain_depot(spill);
    }

    /// Drains and forgets the sets of streams that are gone.
    pub(super) fn purge(
        &self,
        is_gone: impl Fn(u64) -> bool,
        stamp: impl Fn(u64) -> S,
        spill: &mut Spill<S>,
    ) {
        let mut registry = self.lock();
        let mut retired = registry.retired;
        registry.sets.retain(|set| {
            let is_gone = is_gone(set.stream());
            if is_gone {
                retired = retired + self.close_set(set, &stamp, spill);
            }
            !is_gone
        });
        registry.retired = retired;
    }

    /// Drains everything for good. From now on nothing is counted here; returns the sum of what was.
    pub(super) fn close(&self, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) -> Counters {
        let mut registry = self.lock();
        registry.is_closed = true;
        let sets = core::mem::take(&mut registry.sets);
        let sets = sets.iter().map(|set| self.close_set(set, &stamp, spill));
        let sum = sets.fold(registry.retired, |sum, counters| sum + counters);
        self.drain_depot(spill);
        sum + self.close_set(&self.common, stamp, spill)
    }

    /// The sum of what all sets have counted.
    pub(super) fn counters(&self) -> Counters {
        let registry = self.lock();
        let sets = registry.sets.iter().map(|set| &**set).chain([&self.common]);
        let counters = sets.filter_map(|set| set.with(|magazines| magazines.counters()));
        counters.fold(registry.retired, |sum, counters| sum + counters)
    }

    /// The set for threads that have none.
    pub(super) fn common(&self) -> &Set {
        &self.common
    }

    /// What the magazines and the depot hold, or may hold without asking.
    pub(super) fn granted_bytes(&self) -> u64 {
        self.budget.granted_bytes()
    }

    fn grant(&self, set: &Set, class: Class) -> bool {
        let needed_bytes = class.size_bytes();
        let granted_bytes = self.budget.grant(needed_bytes, GRANT_BYTES.max(needed_bytes));
        if granted_bytes > 0 && set.with(|magazines| magazines.add_room(granted_bytes)).is_none() {
            self.budget.give_back(granted_bytes);
            return false;
        }
        granted_bytes > 0
    }

    /// Takes allowance back: all of it from sets that were not used since the last time, and from the others what exceeds
    /// an equal share. The depot gives up the oldest batch of each shelf.
    fn rebalance(&self, asking: &Set, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) {
        // Whoever holds it is here already, or changes the sets anyway.
        let Ok(registry) = self.registry.try_lock() else { return };
        let others = registry.sets.iter().filter(|set| !core::ptr::eq(&***set, asking));
        let others: Vec<_> = others.map(|set| (set, set.with(Magazines::was_used) == Some(true))).collect();
        let used_count = others.iter().filter(|(_, was_used)| *was_used).count() as u64;
        let share_bytes = self.budget.cap_bytes() / (used_count + 1);
        for (set, was_used) in others {
            self.shrink(set, if was_used { share_bytes } else { 0 }, &stamp, spill);
        }
        self.depot.age(|class, batch| self.leave(class, batch, spill));
    }

    fn shrink(&self, set: &Set, keep_bytes: u64, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) {
        let mut pieces = Vec::new();
        if let Some(given_bytes) =
            set.with(|magazines| magazines.shrink(keep_bytes, |piece| pieces.push(piece)))
        {
            self.budget.give_back(given_bytes);
            stamped(set, pieces, stamp, spill);
        }
    }

    fn close_set(&self, set: &Set, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) -> Counters {
        let mut pieces = Vec::new();
        let last = set.close(|magazines| {
            let given_bytes = magazines.shrink(0, |piece| pieces.push(piece));
            (given_bytes, magazines.counters())
        });
        let (given_bytes, counters) = last.unwrap_or_default();
        self.budget.give_back(given_bytes);
        stamped(set, pieces, stamp, spill);
        counters
    }

    /// Lays a batch into the depot; what does not fit leaves.
    fn shelve(&self, class: Class, batch: Batch<S>, spill: &mut Spill<S>) {
        if let Err(batch) = self.depot.add(class, batch) {
            self.leave(class, batch, spill);
        }
    }

    fn drain_depot(&self, spill: &mut Spill<S>) {
        self.depot.drain(|class, batch| self.leave(class, batch, spill));
    }

    fn leave(&self, class: Class, batch: Batch<S>, spill: &mut Spill<S>) {
        self.budget.give_back(class.size_bytes() * batch.pieces.len() as u64);
        spill.extend(batch.pieces.into_iter().map(|piece| (piece, batch.stamp)));
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        // Nothing here panics half way through a change.
        self.registry.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Reads the stamp, now that the pieces have left the set.
fn stamped<S: Copy>(set: &Set, pieces: Vec<Piece>, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) {
    if !pieces.is_empty() {
        let stamp = stamp(set.stream());
        spill.extend(pieces.into_iter().map(|piece| (piece, stamp)));
    }
}

/// What a set is granted at a time, at least: so small pieces rarely ask.
const GRANT_BYTES: u64 = 64 << 10;

/// What a set that runs empty keeps of its room.
const ROOM_KEPT_BYTES: u64 = 256 << 10;

/// A rebalance looks at every set.
const REFUSALS_BETWEEN_REBALANCES: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn class(size_bytes: u64) -> Class {
        Class::of(size_bytes).unwrap()
    }

    /// A front over a heap that has everything: records are numbers, stamps say on which stream a piece was freed.
    struct World {
        front: Front<u64>,
        sets: Vec<Arc<Set>>,
        next_record: u32,
        spill: Spill<u64>,
        heap_visits: u32,
    }

    impl World {
        fn new(cap_bytes: u64, streams: impl IntoIterator<Item = u64>) -> Self {
            let front = Front::new(cap_bytes);
            let sets = streams.into_iter().map(|stream| front.adopt(stream).unwrap()).collect();
            Self { front, sets, next_record: 0, spill: Vec::new(), heap_visits: 0 }
        }

        fn take(&mut self, set: usize, class: Class) -> Piece {
            let set = &self.sets[set];
            let near = set.take(class, class.size_bytes());
            if let Some(piece) = near {
                return piece;
            }
            if self.front.refill(set, class, |stamp| *stamp == set.stream()) {
                return set.take(class, class.size_bytes()).unwrap();
            }
            self.heap_visits += 1;
            self.next_record += 1;
            Piece { address: class.size_bytes(), record: self.next_record }
        }

        fn put(&mut self, set: usize, class: Class, piece: Piece) {
            let set = &self.sets[set];
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
            let mut held_bytes = 0;
            for set in &self.sets {
                held_bytes += set.with(|magazines| magazines.held_bytes()).unwrap_or(0);
            }
            held_bytes
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
        assert!(world.heap_visits < 250, "{} visits of the heap", world.heap_visits);
        assert!(world.front.granted_bytes() <= 8 << 20);
    }

    #[test]
    fn sixteen_threads_that_cycle_a_mebibyte_hit_though_one_was_greedy() {
        // 0.5 % of 4 GiB.
        let cap_bytes = (4 << 30) / 200;
        let mut world = World::new(cap_bytes, 0..16);
        let size = class(1 << 20);
        for small in [class(900 << 10), class(1000 << 10), size] {
            let pieces: Vec<Piece> = (0..10).map(|_| world.take(0, small)).collect();
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
        let held: Vec<Piece> = (0..16).map(|_| world.take(0, size)).collect();
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
        assert!(world.front.adopt(8).unwrap().take(class(256), 256).is_none());
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
        assert!(!world.front.make_way(&world.sets[0], class(256), |stream| stream, &mut world.spill));
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
        assert!(!world.front.common().count_in(512));
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
        let class = prop_oneof![0..Class::COUNT, Just(0), Just(Class::COUNT - 1)];
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
            let mut live: Vec<(Class, Piece)> = Vec::new();
            let mut cap_bytes = 1 << 20;
            for step in steps {
                match step {
                    Step::Take { set, class } => {
                        let class = Class::at(class).unwrap();
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
}

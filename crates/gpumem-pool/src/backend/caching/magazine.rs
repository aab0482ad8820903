//! [`Set`]: what one thread keeps at hand of one stream's freed blocks, a stack for each size class.
//!
//! Everything in a set was freed on its stream, or was ready for it, so an allocation on that stream takes any of it
//! without a further look. The thread that owns the set works on it through its lock word; so does anyone who drains it,
//! reads its counters or takes its allowance back.
//!
//! *Allowance*: the bytes that a set may hold, granted by the device's [`Budget`](super::budget::Budget). A set keeps
//! only the part that is unused, its room: putting a piece in takes from the room, taking one out adds to it.

use super::class::Class;
use super::lock::Locked;
use super::stats::Counters;
use super::sync::{AtomicBool, Ordering};

/// Some device memory, and the heap's record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) record: u32,
}

/// Aligned, so that two threads' sets share no cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Set {
    magazines: Locked<Magazines>,
    stream: u64,
    is_owned: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Magazines {
    room_bytes: u64,
    counters: Counters,
    /// The operations that [`Magazines::was_used`] has seen.
    seen_count: u64,
    stacks: [Vec<Piece>; Class::COUNT],
}

impl Set {
    /// An empty one without allowance, owned by the thread that asks for it.
    pub(super) fn new(stream: u64) -> Self {
        let magazines = Magazines {
            room_bytes: 0,
            counters: Counters::default(),
            seen_count: 0,
            stacks: [const { Vec::new() }; Class::COUNT],
        };
        Self { magazines: Locked::new(magazines), stream, is_owned: AtomicBool::new(true) }
    }

    pub(super) fn stream(&self) -> u64 {
        self.stream
    }

    /// Hands out a piece, and counts it; `None` if there is none of the class.
    #[inline]
    pub(super) fn take(&self, class: Class, size_bytes: u64) -> Option<Piece> {
        self.magazines.with(|magazines| magazines.take(class, size_bytes)).flatten()
    }

    /// Takes a piece back, and counts it; false if there is no room. When it returns true, nothing of the pool is touched
    /// any more: this may have been the pool's last block.
    #[inline]
    pub(super) fn put(&self, class: Class, size_bytes: u64, piece: Piece) -> bool {
        self.magazines.with(|magazines| magazines.put(class, size_bytes, piece)) == Some(true)
    }

    /// Counts a block in that went elsewhere; false if the set is closed.
    pub(super) fn count_in(&self, size_bytes: u64) -> bool {
        self.with(|magazines| magazines.counters.count_in(size_bytes)).is_some()
    }

    /// As [`Locked::with`].
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Magazines) -> R) -> Option<R> {
        self.magazines.with(work)
    }

    /// As [`Locked::close`].
    pub(super) fn close<R>(&self, work: impl FnOnce(&mut Magazines) -> R) -> Option<R> {
        self.magazines.close(work)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.magazines.is_closed()
    }

    /// Its thread ends: what it holds stays, for the next thread that works on the stream or for whoever drains it.
    pub(super) fn hand_over(&self) {
        self.is_owned.store(false, Ordering::Release);
    }

    /// Makes the calling thread the owner, if there is none.
    pub(super) fn adopt(&self) -> bool {
        self.is_owned.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

impl Magazines {
    #[inline]
    fn take(&mut self, class: Class, size_bytes: u64) -> Option<Piece> {
        let piece = self.stacks[class.index()].pop()?;
        self.room_bytes += class.size_bytes();
        self.counters.count_out(size_bytes);
        Some(piece)
    }

    #[inline]
    fn put(&mut self, class: Class, size_bytes: u64, piece: Piece) -> bool {
        let stack = &mut self.stacks[class.index()];
        // A stack grows only in `make_space`: a push never allocates.
        if self.room_bytes < class.size_bytes() || stack.len() == stack.capacity() {
            return false;
        }
        self.room_bytes -= class.size_bytes();
        stack.push(piece);
        self.counters.count_in(size_bytes);
        true
    }

    /// Makes space for one more piece in the class's stack. If that is as long as it may get, its older half leaves, and
    /// takes its allowance along.
    pub(super) fn make_space(&mut self, class: Class) -> Option<Vec<Piece>> {
        let stack = &mut self.stacks[class.index()];
        if stack.len() < stack.capacity() {
            return None;
        }
        let (batch_count, longest) = (class.batch_count(), 2 * class.batch_count());
        if stack.len() < longest {
            stack.reserve_exact((3 * stack.len()).clamp(4, longest - stack.len()));
            return None;
        }
        Some(stack.drain(..batch_count).collect())
    }

    /// Puts pieces in that bring their allowance along.
    pub(super) fn refill(&mut self, class: Class, pieces: &[Piece]) {
        self.stacks[class.index()].extend_from_slice(pieces);
    }

    pub(super) fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    pub(super) fn add_room(&mut self, granted_bytes: u64) {
        self.room_bytes += granted_bytes;
    }

    /// Gives up room beyond `keep_bytes`. Returns how much.
    pub(super) fn give_up_room(&mut self, keep_bytes: u64) -> u64 {
        let excess_bytes = self.room_bytes.saturating_sub(keep_bytes);
        self.room_bytes -= excess_bytes;
        excess_bytes
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let classes = (0..).map_while(Class::at);
        classes.map(|class| class.size_bytes() * self.stacks[class.index()].len() as u64).sum()
    }

    /// Gives up allowance until no more than `keep_bytes` are left: unused room first, then pieces, large ones first.
    /// Returns how much.
    pub(super) fn shrink(&mut self, keep_bytes: u64, mut leaves: impl FnMut(Piece)) -> u64 {
        let mut held_bytes = self.held_bytes();
        let before_bytes = held_bytes + self.room_bytes;
        for class in (0..Class::COUNT).rev().filter_map(Class::at) {
            let stack = &mut self.stacks[class.index()];
            while held_bytes > keep_bytes
                && let Some(piece) = stack.pop()
            {
                held_bytes -= class.size_bytes();
                leaves(piece);
            }
        }
        self.room_bytes = self.room_bytes.min(keep_bytes.saturating_sub(held_bytes));
        before_bytes - held_bytes - self.room_bytes
    }

    /// Whether anything was handed out or came back since the last time that this was asked.
    pub(super) fn was_used(&mut self) -> bool {
        let seen_count = core::mem::replace(&mut self.seen_count, self.counters.operation_count());
        seen_count != self.seen_count
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(size_bytes: u64) -> Class {
        Class::of(size_bytes).unwrap()
    }

    fn piece(record: u32) -> Piece {
        Piece { address: 0x1000 * u64::from(record), record }
    }

    /// A set that holds pieces 1 to `count` of a class, and has room for nothing more.
    fn filled(class: Class, count: u32) -> Set {
        let set = Set::new(7);
        for record in 1..=count {
            set.with(|magazines| magazines.add_room(class.size_bytes())).unwrap();
            assert!(set.with(|magazines| magazines.make_space(class)).unwrap().is_none());
            assert!(set.put(class, 100, piece(record)));
        }
        set
    }

    #[test]
    fn the_piece_put_in_last_is_handed_out_first() {
        let set = filled(class(4096), 3);
        assert_eq!(set.take(class(4096), 4000), Some(piece(3)));
        assert_eq!(set.take(class(4096), 4000), Some(piece(2)));
        assert_eq!(set.take(class(8192), 8000), None);
        let counters = set.with(|magazines| magazines.counters()).unwrap();
        assert_eq!(counters.in_use_bytes(), 8000_u64.wrapping_sub(300));
        assert_eq!(counters.operation_count(), 5);
    }

    #[test]
    fn nothing_goes_in_beyond_the_allowance() {
        let set = filled(class(4096), 1);
        assert!(!set.put(class(256), 256, piece(9)));
        assert_eq!(set.take(class(4096), 4096), Some(piece(1)));
        set.with(|magazines| magazines.make_space(class(256))).unwrap();
        // What left makes room for others of the same bytes together.
        assert!(set.put(class(256), 256, piece(9)));
        assert_eq!(set.with(|magazines| magazines.room_bytes()), Some(4096 - 256));
        assert_eq!(set.with(|magazines| magazines.held_bytes()), Some(256));
    }

    #[test]
    fn a_full_stack_gives_up_its_older_half_with_the_allowance() {
        let largest = class(1 << 20);
        let set = filled(largest, 8);
        let batch = set.with(|magazines| magazines.make_space(largest)).unwrap().unwrap();
        assert_eq!(batch, [piece(1), piece(2), piece(3), piece(4)]);
        assert_eq!(
            set.with(|magazines| (magazines.room_bytes(), magazines.held_bytes())),
            Some((0, 4 << 20))
        );
        set.with(|magazines| magazines.refill(largest, &batch)).unwrap();
        assert_eq!(set.with(|magazines| magazines.held_bytes()), Some(8 << 20));
    }

    #[test]
    fn shrinking_gives_up_room_and_then_large_pieces() {
        let set = filled(class(4096), 2);
        set.with(|magazines| magazines.add_room(1 << 20)).unwrap();
        set.with(|magazines| magazines.make_space(class(256))).unwrap();
        assert!(set.put(class(256), 256, piece(9)));
        let mut left = Vec::new();
        let mut shrink = |keep_bytes| {
            let given_bytes =
                set.with(|magazines| magazines.shrink(keep_bytes, |piece| left.push(piece.record)));
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
        assert_eq!(set.with(Magazines::was_used), Some(true));
        assert_eq!(set.with(Magazines::was_used), Some(false));
        set.take(class(256), 1).unwrap();
        assert_eq!(set.with(Magazines::was_used), Some(true));
    }

    #[test]
    fn a_closed_set_takes_and_gives_nothing() {
        let set = filled(class(256), 2);
        set.take(class(256), 256).unwrap();
        assert_eq!(set.close(|magazines| magazines.shrink(0, |_| ())), Some(512));
        assert!(set.is_closed());
        assert!(!set.put(class(256), 256, piece(2)));
        assert_eq!(set.take(class(256), 256), None);
        assert!(!set.count_in(1));
    }

    #[test]
    fn only_one_thread_adopts_what_another_left() {
        let set = Set::new(7);
        assert!(!set.adopt());
        set.hand_over();
        assert!(set.adopt());
        assert!(!set.adopt());
    }

    #[test]
    fn two_threads_at_one_set_lose_nothing() {
        let set = filled(class(256), 4);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 30 } else { 50_000 } {
                        let piece = set.take(class(256), 256).expect("two threads hold at most two of four");
                        assert!(set.put(class(256), 256, piece));
                    }
                });
            }
        });
        let mut records = Vec::new();
        set.close(|magazines| magazines.shrink(0, |piece| records.push(piece.record)));
        records.sort_unstable();
        assert_eq!(records, [1, 2, 3, 4]);
    }
}

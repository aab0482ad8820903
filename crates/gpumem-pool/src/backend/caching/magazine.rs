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
    stacks: [Stack; Class::COUNT],
}

/// The free pieces of one class.
#[derive(Debug)]
struct Stack {
    pieces: Vec<Piece>,
    /// The class's size, here because it is needed whenever the stack is.
    size_bytes: u64,
}

impl Set {
    /// An empty one without allowance, owned by the thread that asks for it.
    pub(super) fn new(stream: u64) -> Self {
        let magazines = Magazines {
            room_bytes: 0,
            counters: Counters::default(),
            seen_count: 0,
            stacks: core::array::from_fn(|index| Stack {
                pieces: Vec::new(),
                size_bytes: Class::at(index).map_or(0, Class::size_bytes),
            }),
        };
        Self { magazines: Locked::new(magazines), stream, is_owned: AtomicBool::new(true) }
    }

    pub(super) fn stream(&self) -> u64 {
        self.stream
    }

    /// Hands out a piece, and counts it; `None` if there is none of the class, or if somebody else is at the set.
    #[inline]
    pub(super) fn take(&self, class: Class, size_bytes: u64) -> Option<Piece> {
        self.magazines.try_with(|magazines| magazines.take(class, size_bytes)).flatten()
    }

    /// Takes a piece back, and counts it; false if there is no room, or if somebody else is at the set. When it returns
    /// true, nothing of the pool is touched any more: this may have been the pool's last block.
    #[inline]
    pub(super) fn put(&self, class: Class, size_bytes: u64, piece: Piece) -> bool {
        self.magazines.try_with(|magazines| magazines.put(class, size_bytes, piece)) == Some(true)
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
        let stack = self.stacks.get_mut(class.index())?;
        let piece = stack.pieces.pop()?;
        self.room_bytes += stack.size_bytes;
        self.counters.count_out(size_bytes);
        Some(piece)
    }

    #[inline]
    fn put(&mut self, class: Class, size_bytes: u64, piece: Piece) -> bool {
        let Some(Stack { pieces, size_bytes: class_bytes }) = self.stacks.get_mut(class.index()) else {
            return false;
        };
        // A stack grows only in `make_space`: a push never allocates.
        if self.room_bytes < *class_bytes || pieces.len() == pieces.capacity() {
            return false;
        }
        self.room_bytes -= *class_bytes;
        pieces.push(piece);
        self.counters.count_in(size_bytes);
        true
    }

    /// Makes space for one more piece in the class's stack. If that is as long as it may get, its older half leaves, and
    /// takes its allowance along.
    pub(super) fn make_space(&mut self, class: Class) -> Option<Vec<Piece>> {
        let stack = &mut self.stacks[class.index()].pieces;
        if stack.len() < stack.capacity() {
            return None;
        }
        let (batch_count, longest) = (class.batch_count(), 2 * class.batch_count());
        if stack.len() < longest {
            stack.reserve_exact((3 * stack.len()).max(4).min(longest - stack.len()));
            return None;
        }
        Some(stack.drain(..batch_count).collect())
    }

    /// Puts pieces in that bring their allowance along.
    pub(super) fn refill(&mut self, class: Class, pieces: &[Piece]) {
        self.stacks[class.index()].pieces.extend_from_slice(pieces);
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

    pub(super) fn piece_count(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.pieces.len() as u64).sum()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.size_bytes * stack.pieces.len() as u64).sum()
    }

    /// Gives up allowance until no more than `keep_bytes` are left: unused room first, then pieces, large ones first.
    /// Returns how much.
    pub(super) fn shrink(&mut self, keep_bytes: u64, mut leaves: impl FnMut(Piece)) -> u64 {
        let mut held_bytes = self.held_bytes();
        let before_bytes = held_bytes + self.room_bytes;
        for stack in self.stacks.iter_mut().rev() {
            while held_bytes > keep_bytes
                && let Some(piece) = stack.pieces.pop()
            {
                held_bytes -= stack.size_bytes;
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

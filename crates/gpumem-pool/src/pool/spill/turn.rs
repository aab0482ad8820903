//! [`Turns`]: one thread at a time moves contents, and may allocate while it does.

use crate::pool::events;
use crate::pool::observer::SpillMove;
use crate::pool::state::PoolHandle;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use gpumem_base::sync::Lock;
use gpumem_device::internal::catch_panic;
use std::sync::MutexGuard;

/// The lock of a spiller's decisions. The thread that holds it may begin further turns inside.
#[derive(Default)]
pub(super) struct Turns {
    lock: Lock<()>,
    /// The thread of the current turn, 0 for none.
    owner: AtomicUsize,
    number: AtomicU64,
    /// The moves of the current turn.
    moves: Lock<Vec<(PoolHandle, SpillMove)>>,
}

/// A turn of this thread.
#[must_use = "the turn ends when it is dropped"]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    /// `None` inside another turn of this thread.
    lock: Option<MutexGuard<'a, ()>>,
}

impl Turns {
    /// Waits for the turn of another thread.
    pub(super) fn begin(&self) -> Turn<'_> {
        if self.is_own() {
            return Turn { turns: self, lock: None };
        }
        self.own(self.lock.lock())
    }

    /// `None` if another thread has the turn.
    pub(super) fn try_begin(&self) -> Option<Turn<'_>> {
        if self.is_own() {
            return Some(Turn { turns: self, lock: None });
        }
        self.lock.try_lock().map(|lock| self.own(lock))
    }

    /// Notes a move in the current turn.
    pub(super) fn note(&self, pool: &PoolHandle, moved: SpillMove) {
        self.moves.lock().push((pool.clone(), moved));
    }

    fn own<'a>(&'a self, lock: MutexGuard<'a, ()>) -> Turn<'a> {
        self.owner.store(this_thread(), Ordering::Relaxed);
        self.number.fetch_add(1, Ordering::Relaxed);
        Turn { turns: self, lock: Some(lock) }
    }

    /// The number of the turn of this thread, if it has one.
    pub(super) fn own_number(&self) -> Option<u64> {
        self.is_own().then(|| self.number.load(Ordering::Relaxed))
    }

    /// Only this thread stores its own number.
    fn is_own(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == this_thread()
    }
}

impl Turn<'_> {
    /// The number of the turn, from 1. Turns inside of it have the same.
    pub(super) fn number(&self) -> u64 {
        self.turns.number.load(Ordering::Relaxed)
    }

    /// Ends the turn, and returns its moves; none inside another turn.
    pub(super) fn end(&mut self) -> Vec<(PoolHandle, SpillMove)> {
        let Some(lock) = self.lock.take() else { return Vec::new() };
        let moves = core::mem::take(&mut *self.turns.moves.lock());
        self.turns.owner.store(0, Ordering::Relaxed);
        drop(lock);
        moves
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        announce(self.end());
    }
}

/// Tells subscribers and records of moves. No lock is held. This runs in drops, and a subscriber may panic.
pub(super) fn announce(moves: Vec<(PoolHandle, SpillMove)>) {
    for (pool, moved) in moves {
        let _ = catch_panic(|| events::moved(&pool, &moved));
        let witnesses = pool.witnesses();
        witnesses.iter().for_each(|witness| witness.moved(pool.id(), &moved));
    }
}

/// A number of the thread, unique while it lives.
fn this_thread() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| core::ptr::from_ref(place).addr())
}

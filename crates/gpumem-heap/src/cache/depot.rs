//! [`Depot`]: batches of freed pieces that any thread may take, a shelf for each size class.
//!
//! What one thread frees and another allocates travels through here, many pieces for one lock. A batch carries one stamp:
//! when it may go to which stream is for the caller to say. Its allowance comes and goes with it, so what lies here counts
//! against the device's budget like what lies in a magazine.
//!
//! Between two threads each cache line that both write costs as much as a dozen pieces that don't move. So a visit touches
//! few: a shelf has its lines to itself, and the lists that batches come in go back and forth with them, empty one way,
//! instead of to the allocator.

use crate::block::HeapBlock;
use crate::size_class::SizeClass;
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

/// Pieces of one class, all of them free once `stamp` is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch<S> {
    pub(super) stamp: S,
    pub(super) pieces: Vec<HeapBlock>,
}

#[derive(Debug)]
pub(super) struct Depot<S> {
    shelves: [Shelf<S>; SizeClass::COUNT],
}

#[derive(Debug)]
#[repr(align(128))]
struct Shelf<S> {
    /// How many batches there are, so that a look at an empty shelf takes no lock. Written under the lock.
    count: AtomicU32,
    pile: Mutex<Pile<S>>,
}

#[derive(Debug)]
struct Pile<S> {
    batches: Vec<Batch<S>>,
    /// Lists without pieces, for the next batches.
    spares: Vec<Vec<HeapBlock>>,
}

impl<S> Depot<S> {
    pub(super) fn new() -> Self {
        Self {
            shelves: core::array::from_fn(|_| Shelf {
                count: AtomicU32::new(0),
                pile: Mutex::new(Pile { batches: Vec::new(), spares: Vec::new() }),
            }),
        }
    }

    /// Lays a batch on its shelf; gives it back if that is full. Returns an empty list for the next one.
    pub(super) fn add(&self, class: SizeClass, batch: Batch<S>) -> Result<Vec<HeapBlock>, Batch<S>> {
        let shelf = &self.shelves[class.index()];
        let mut pile = shelf.lock();
        if pile.batches.len() >= SHELF_COUNT_MAX {
            return Err(batch);
        }
        pile.batches.push(batch);
        shelf.note(&pile);
        Ok(pile.spares.pop().unwrap_or_default())
    }

    /// The batch that came last of those that may be had, for the list of an earlier one.
    pub(super) fn take(
        &self,
        class: SizeClass,
        may_have: impl Fn(&S) -> bool,
        spare: &mut Vec<HeapBlock>,
    ) -> Option<Batch<S>> {
        let shelf = &self.shelves[class.index()];
        // One that is being added at this moment may be missed, as if it came a moment later.
        if shelf.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut pile = shelf.lock();
        let place = pile.batches.iter().rposition(|batch| may_have(&batch.stamp))?;
        let batch = pile.batches.remove(place);
        if spare.capacity() > 0 && pile.spares.len() < SPARE_COUNT_MAX {
            pile.spares.push(core::mem::take(spare));
        }
        shelf.note(&pile);
        Some(batch)
    }

    /// Lays a batch back, however full the shelf is.
    pub(super) fn put_back(&self, class: SizeClass, batch: Batch<S>) {
        let shelf = &self.shelves[class.index()];
        let mut pile = shelf.lock();
        pile.batches.push(batch);
        shelf.note(&pile);
    }

    /// Takes the oldest batch off each shelf.
    pub(super) fn age(&self, mut leaves: impl FnMut(SizeClass, Batch<S>)) {
        for (index, shelf) in self.shelves.iter().enumerate() {
            let Some(class) = SizeClass::at(index) else { return };
            if shelf.count.load(Ordering::Relaxed) > 0 {
                let mut pile = shelf.lock();
                let oldest = (!pile.batches.is_empty()).then(|| pile.batches.remove(0));
                shelf.note(&pile);
                drop(pile);
                oldest.into_iter().for_each(|batch| leaves(class, batch));
            }
        }
    }

    /// How many pieces lie here, and their bytes.
    pub(super) fn held(&self) -> (u64, u64) {
        let counts = self.shelves.iter().enumerate().filter_map(|(index, shelf)| {
            let count: usize = shelf.lock().batches.iter().map(|batch| batch.pieces.len()).sum();
            Some((count as u64, count as u64 * SizeClass::at(index)?.size_bytes()))
        });
        counts.fold((0, 0), |(count, bytes), (more, more_bytes)| (count + more, bytes + more_bytes))
    }

    /// Empties all shelves.
    pub(super) fn drain(&self, mut leaves: impl FnMut(SizeClass, Batch<S>)) {
        for (index, shelf) in self.shelves.iter().enumerate() {
            let Some(class) = SizeClass::at(index) else { return };
            let mut pile = shelf.lock();
            pile.spares.clear();
            for batch in pile.batches.drain(..) {
                leaves(class, batch);
            }
            shelf.note(&pile);
        }
    }
}

impl<S> Shelf<S> {
    fn lock(&self) -> MutexGuard<'_, Pile<S>> {
        // Nothing here panics half way through a change.
        self.pile.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note(&self, pile: &Pile<S>) {
        self.count.store(pile.batches.len() as u32, Ordering::Relaxed);
    }
}

/// As many batches as a shelf takes: what is far behind gets cold, and a search looks at each.
pub(super) const SHELF_COUNT_MAX: usize = 64;

/// Lists that wait for pieces: two threads that hand over need few.
const SPARE_COUNT_MAX: usize = 4;

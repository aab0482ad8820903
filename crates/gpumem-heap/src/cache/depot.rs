//! [`Depot`]: batches of freed blocks that any thread may take, one shelf for each size class.
//!
//! Blocks that one thread frees and another allocates move through the depot, many blocks per lock. A batch carries one stamp; the caller
//! decides whether it may go to a stream. Its allowance moves with it, so blocks in the depot count against the budget like blocks in a
//! magazine. Magazines and depot follow Bonwick and Adams, "Magazines and Vmem" (USENIX 2001).
//!
//! A cache line that two threads write costs as much as a dozen local hits, so a visit touches few: a shelf has its own cache lines, and
//! the lists that carry blocks are reused in both directions instead of being allocated and freed.

use crate::block::HeapBlock;
use crate::size_class::SizeClass;
use gpumem_base::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch<S> {
    pub(super) stamp: S,
    pub(super) blocks: Vec<HeapBlock>,
}

#[derive(Debug)]
pub(super) struct Depot<S> {
    shelves: [DepotShelf<S>; SizeClass::COUNT],
}

#[derive(Debug)]
#[repr(align(128))]
struct DepotShelf<S> {
    /// The number of batches, so that checking an empty shelf takes no lock. Written under the lock.
    count: AtomicU32,
    pile: Mutex<Pile<S>>,
}

#[derive(Debug)]
struct Pile<S> {
    batches: Vec<Batch<S>>,
    /// Empty lists for the next batches.
    spares: Vec<Vec<HeapBlock>>,
}

impl<S> Depot<S> {
    pub(super) fn new() -> Self {
        Self {
            shelves: core::array::from_fn(|_| DepotShelf {
                count: AtomicU32::new(0),
                pile: Mutex::new(Pile { batches: Vec::new(), spares: Vec::new() }),
            }),
        }
    }

    /// Adds a batch, or returns it if the shelf is full. Returns an empty list for the next batch.
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

    /// Takes the newest batch that `may_have` accepts, and keeps `spare` for a later batch.
    pub(super) fn take(
        &self,
        class: SizeClass,
        may_have: impl Fn(&S) -> bool,
        spare: &mut Vec<HeapBlock>,
    ) -> Option<Batch<S>> {
        let shelf = &self.shelves[class.index()];
        // A batch that is being added at this moment may be missed, as if it were added a moment later.
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

    /// Adds a batch, even if the shelf is full.
    pub(super) fn put_back(&self, class: SizeClass, batch: Batch<S>) {
        let shelf = &self.shelves[class.index()];
        let mut pile = shelf.lock();
        pile.batches.push(batch);
        shelf.note(&pile);
    }

    /// Takes the oldest batch of each shelf.
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

    pub(super) fn held(&self) -> (u64, u64) {
        let counts = self.shelves.iter().enumerate().filter_map(|(index, shelf)| {
            let count: usize = shelf.lock().batches.iter().map(|batch| batch.blocks.len()).sum();
            Some((count as u64, count as u64 * SizeClass::at(index)?.size_bytes()))
        });
        counts.fold((0, 0), |(count, bytes), (more, more_bytes)| (count + more, bytes + more_bytes))
    }

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

impl<S> DepotShelf<S> {
    fn lock(&self) -> MutexGuard<'_, Pile<S>> {
        // A poisoned lock stays usable: no code under it panics in the middle of a change.
        self.pile.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note(&self, pile: &Pile<S>) {
        self.count.store(pile.batches.len() as u32, Ordering::Relaxed);
    }
}

/// Batches per shelf. Old batches have left the processor's caches, and a search looks at each one.
pub(super) const SHELF_COUNT_MAX: usize = 64;

/// Empty lists per shelf: two threads that hand blocks over need few.
const SPARE_COUNT_MAX: usize = 4;

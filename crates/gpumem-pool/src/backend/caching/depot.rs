//! [`Depot`]: batches of freed pieces that any thread may take, a shelf for each size class.
//!
//! What one thread frees and another allocates travels through here, many pieces for one lock. A batch carries one stamp:
//! when it may go to which stream is for the caller to say. Its allowance comes and goes with it, so what lies here counts
//! against the device's budget like what lies in a magazine.

use super::class::Class;
use super::magazine::Piece;
use super::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

/// Pieces of one class, all of them free once `stamp` is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch<S> {
    pub(super) stamp: S,
    pub(super) pieces: Vec<Piece>,
}

#[derive(Debug)]
pub(super) struct Depot<S> {
    shelves: [Shelf<S>; Class::COUNT],
}

#[derive(Debug)]
struct Shelf<S> {
    /// How many there are, so that a look at an empty shelf takes no lock. Written under the lock.
    count: AtomicU32,
    batches: Mutex<Vec<Batch<S>>>,
}

impl<S> Depot<S> {
    pub(super) fn new() -> Self {
        Self {
            shelves: core::array::from_fn(|_| Shelf {
                count: AtomicU32::new(0),
                batches: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Lays a batch on its shelf; gives it back if that is full.
    pub(super) fn add(&self, class: Class, batch: Batch<S>) -> Result<(), Batch<S>> {
        let shelf = &self.shelves[class.index()];
        let mut batches = shelf.lock();
        if batches.len() >= SHELF_COUNT_MAX {
            return Err(batch);
        }
        batches.push(batch);
        shelf.note(&batches);
        Ok(())
    }

    /// The batch that came last of those that may be had.
    pub(super) fn take(&self, class: Class, may_have: impl Fn(&S) -> bool) -> Option<Batch<S>> {
        let shelf = &self.shelves[class.index()];
        // One that is being added at this moment may be missed, as if it came a moment later.
        if shelf.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut batches = shelf.lock();
        let place = batches.iter().rposition(|batch| may_have(&batch.stamp))?;
        let batch = batches.remove(place);
        shelf.note(&batches);
        Some(batch)
    }

    /// Lays a batch back, however full the shelf is.
    pub(super) fn put_back(&self, class: Class, batch: Batch<S>) {
        let shelf = &self.shelves[class.index()];
        let mut batches = shelf.lock();
        batches.push(batch);
        shelf.note(&batches);
    }

    /// Takes the oldest batch off each shelf.
    pub(super) fn age(&self, mut leaves: impl FnMut(Class, Batch<S>)) {
        for (index, shelf) in self.shelves.iter().enumerate() {
            let Some(class) = Class::at(index) else { return };
            if shelf.count.load(Ordering::Relaxed) > 0 {
                let mut batches = shelf.lock();
                let oldest = (!batches.is_empty()).then(|| batches.remove(0));
                shelf.note(&batches);
                drop(batches);
                oldest.into_iter().for_each(|batch| leaves(class, batch));
            }
        }
    }

    /// How many pieces lie here, and their bytes.
    pub(super) fn held(&self) -> (u64, u64) {
        let counts = self.shelves.iter().enumerate().filter_map(|(index, shelf)| {
            let count: usize = shelf.lock().iter().map(|batch| batch.pieces.len()).sum();
            Some((count as u64, count as u64 * Class::at(index)?.size_bytes()))
        });
        counts.fold((0, 0), |(count, bytes), (more, more_bytes)| (count + more, bytes + more_bytes))
    }

    /// Empties all shelves.
    pub(super) fn drain(&self, mut leaves: impl FnMut(Class, Batch<S>)) {
        for (index, shelf) in self.shelves.iter().enumerate() {
            let Some(class) = Class::at(index) else { return };
            let mut batches = shelf.lock();
            for batch in batches.drain(..) {
                leaves(class, batch);
            }
            shelf.note(&batches);
        }
    }
}

impl<S> Shelf<S> {
    fn lock(&self) -> MutexGuard<'_, Vec<Batch<S>>> {
        // Nothing here panics half way through a change.
        self.batches.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note(&self, batches: &[Batch<S>]) {
        self.count.store(batches.len() as u32, Ordering::Relaxed);
    }
}

/// As many batches as a shelf takes: what is far behind gets cold, and a search looks at each.
pub(super) const SHELF_COUNT_MAX: usize = 64;

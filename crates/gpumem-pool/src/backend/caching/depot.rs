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
const SHELF_COUNT_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn class(size_bytes: u64) -> Class {
        Class::of(size_bytes).unwrap()
    }

    fn batch(stamp: u32) -> Batch<u32> {
        Batch { stamp, pieces: vec![Piece { address: 0, record: stamp }] }
    }

    #[test]
    fn the_latest_batch_that_may_be_had_is_taken() {
        let depot = Depot::new();
        for stamp in 1..=4 {
            depot.add(class(256), batch(stamp)).unwrap();
        }
        assert_eq!(depot.take(class(512), |_| true), None);
        assert_eq!(depot.take(class(256), |stamp| stamp % 2 == 1), Some(batch(3)));
        assert_eq!(depot.take(class(256), |stamp| stamp % 2 == 1), Some(batch(1)));
        assert_eq!(depot.take(class(256), |stamp| stamp % 2 == 1), None);
        assert_eq!(depot.take(class(256), |_| true), Some(batch(4)));
    }

    #[test]
    fn a_full_shelf_gives_the_batch_back() {
        let depot = Depot::new();
        for stamp in 0..SHELF_COUNT_MAX as u32 {
            depot.add(class(256), batch(stamp)).unwrap();
        }
        assert_eq!(depot.add(class(256), batch(99)), Err(batch(99)));
        depot.add(class(512), batch(99)).unwrap();
        let mut drained = Vec::new();
        depot.drain(|class, batch| drained.push((class.size_bytes(), batch.stamp)));
        assert_eq!(drained.len(), SHELF_COUNT_MAX + 1);
        assert_eq!(drained.last(), Some(&(512, 99)));
        assert_eq!(depot.take(class(256), |_| true), None);
    }
}

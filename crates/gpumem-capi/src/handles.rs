//! Pools and streams by handle. A handle is a number, never an address: a destroyed one is found to be so, and no other object gets it.
//!
//! A lookup takes no lock. The object stays alive until the call that found it has returned, so any call, and any callback inside a
//! call, may destroy it.

use crate::error::{Failure, Outcome, gpumem_result};
use arc_swap::ArcSwapOption;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// At most [`SLOT_COUNT`] objects of one type.
pub(crate) struct Table<T> {
    /// The type of object, in the upper bits of its handles.
    tag: u64,
    name: &'static str,
    slots: [ArcSwapOption<Entry<T>>; SLOT_COUNT],
    free: Mutex<Free>,
}

struct Entry<T> {
    handle: u64,
    value: T,
}

#[derive(Debug)]
struct Free {
    /// Slots from this one on were never used.
    fresh: usize,
    /// Used slots that are empty again.
    emptied: Vec<usize>,
    /// The number of objects ever made.
    generation: u64,
}

/// The number of live objects of one type.
const SLOT_COUNT: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;
/// Handles are 60 bits and a tag.
const TAG_SHIFT: u32 = 60;

impl<T> Table<T> {
    pub(crate) const fn new(tag: u64, name: &'static str) -> Self {
        Self {
            tag,
            name,
            slots: [const { ArcSwapOption::const_empty() }; SLOT_COUNT],
            free: Mutex::new(Free { fresh: 0, emptied: Vec::new(), generation: 0 }),
        }
    }

    /// Adds an object and returns its handle, which is not 0.
    pub(crate) fn add(&self, value: T) -> Outcome<u64> {
        let mut free = self.lock();
        let slot = match free.emptied.pop() {
            Some(slot) => slot,
            None if free.fresh < SLOT_COUNT => {
                free.fresh += 1;
                free.fresh - 1
            }
            None => {
                let text = format!(
                    "too many: {SLOT_COUNT} handles of the type {} are in use; destroy some",
                    self.name
                );
                return Err(Failure { code: gpumem_result::GPUMEM_ERROR_STATE, text });
            }
        };
        free.generation += 1;
        let number = free.generation << SLOT_BITS & ((1 << TAG_SHIFT) - 1);
        let handle = self.tag << TAG_SHIFT | number | slot as u64;
        self.slots[slot].store(Some(Arc::new(Entry { handle, value })));
        Ok(handle)
    }

    /// Calls `work` with the object.
    #[inline]
    pub(crate) fn with<R>(&self, handle: u64, work: impl FnOnce(&T) -> Outcome<R>) -> Outcome<R> {
        let found = self.slots[slot(handle)].load();
        match found.as_deref() {
            Some(entry) if entry.handle == handle => work(&entry.value),
            _ => Err(self.unknown(handle)),
        }
    }

    /// Destroys a handle. The object is dropped with the last call that uses it.
    pub(crate) fn remove(&self, handle: u64) -> Outcome {
        let mut free = self.lock();
        let found = self.slots[slot(handle)].load_full();
        if found.as_ref().is_none_or(|entry| entry.handle != handle) {
            return Err(self.unknown(handle));
        }
        self.slots[slot(handle)].store(None);
        free.emptied.push(slot(handle));
        // The end of an object may take time, and other locks.
        drop(free);
        drop(found);
        Ok(())
    }

    #[cold]
    fn unknown(&self, handle: u64) -> Failure {
        let text = match handle {
            0 => format!("the {} is null", self.name),
            _ => format!("{handle:#x} is not a {}, or was destroyed", self.name),
        };
        Failure { code: gpumem_result::GPUMEM_ERROR_INVALID_HANDLE, text }
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
fn slot(handle: u64) -> usize {
    handle as usize & (SLOT_COUNT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroyed_handle_is_never_valid_again() {
        static TABLE: Table<u32> = Table::new(5, "number");
        let first = TABLE.add(1).unwrap_or(0);
        assert_eq!(TABLE.with(first, |value| Ok(*value)).ok(), Some(1));
        // Destroyed while it is in use.
        let seen = TABLE.with(first, |value| {
            TABLE.remove(first)?;
            Ok(*value)
        });
        assert_eq!(seen.ok(), Some(1));
        let second = TABLE.add(2).unwrap_or(0);
        assert_eq!(slot(first), slot(second));
        assert!(TABLE.with(first, |_| Ok(())).is_err() && TABLE.remove(first).is_err());
        assert_eq!(TABLE.with(second, |value| Ok(*value)).ok(), Some(2));
        for wrong in [0, 1, u64::MAX, second ^ 1 << TAG_SHIFT] {
            assert!(TABLE.with(wrong, |_| Ok(())).is_err(), "{wrong:#x}");
        }
        TABLE.remove(second).unwrap_or_else(|failure| panic!("{failure:?}"));
    }

    #[test]
    fn a_full_table_refuses() {
        static TABLE: Table<()> = Table::new(1, "nothing");
        let handles: Vec<_> = (0..SLOT_COUNT).filter_map(|_| TABLE.add(()).ok()).collect();
        assert_eq!(handles.len(), SLOT_COUNT);
        assert!(TABLE.add(()).is_err());
        assert!(handles.iter().all(|handle| TABLE.remove(*handle).is_ok()));
        assert!(TABLE.add(()).is_ok());
    }
}

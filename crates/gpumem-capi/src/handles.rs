//! Pools and streams by handle. A handle is a number, never an address: a destroyed handle is detected, and no other object gets it.
//!
//! A lookup takes no lock and writes no shared memory: the thread notes the handle in its own record, which the end of an object reads
//! ([`users`]). The object stays alive until the call that found it has returned, so any call, and any callback inside a call, may destroy
//! it.

mod users;

use crate::error::{CallResult, Failure, gpumem_result};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use gpumem_pool::sys::fork;
use std::sync::{Mutex, MutexGuard, PoisonError};
use users::Note;

/// At most [`SLOT_COUNT`] objects of one type.
pub(crate) struct HandleTable<T> {
    /// The type of object, in the upper bits of its handles.
    tag: u64,
    name: &'static str,
    slots: [HandleSlot<T>; SLOT_COUNT],
    changes: Mutex<Changes>,
    /// The number of [`Changes::removed`], readable without the lock.
    removed_count: AtomicUsize,
}

/// A place for an object.
struct HandleSlot<T> {
    /// The object's handle; 0 before it is added and once it is destroyed.
    handle: AtomicU64,
    /// Owned by the table. Set before the handle, and taken when the object is destroyed and no call uses it.
    value: AtomicPtr<T>,
}

struct Changes {
    /// This slot and later ones were never used.
    fresh: usize,
    /// Used slots that are empty again.
    emptied: Vec<usize>,
    /// The former handles of destroyed objects that calls may still use.
    removed: Vec<u64>,
    /// The number of objects ever made.
    generation: u64,
}

/// The number of live objects of one type.
const SLOT_COUNT: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;
/// Handles are 60 bits and a tag.
const TAG_SHIFT: u32 = 60;

impl<T: Send + Sync> HandleTable<T> {
    pub(crate) const fn new(tag: u64, name: &'static str) -> Self {
        Self {
            tag,
            name,
            slots: [const { HandleSlot { handle: AtomicU64::new(0), value: AtomicPtr::new(null_mut()) } };
                SLOT_COUNT],
            changes: Mutex::new(Changes {
                fresh: 0,
                emptied: Vec::new(),
                removed: Vec::new(),
                generation: 0,
            }),
            removed_count: AtomicUsize::new(0),
        }
    }

    /// Adds an object and returns its handle, which is not 0.
    pub(crate) fn add(&self, value: T) -> CallResult<u64> {
        let mut changes = self.lock();
        let slot = match changes.emptied.pop() {
            Some(slot) => slot,
            None if changes.fresh < SLOT_COUNT => {
                changes.fresh += 1;
                changes.fresh - 1
            }
            None => {
                let text = format!(
                    "too many: {SLOT_COUNT} handles of the type {} are in use; destroy some",
                    self.name
                );
                return Err(Failure { code: gpumem_result::GPUMEM_ERROR_STATE, text });
            }
        };
        changes.generation += 1;
        let number = changes.generation << SLOT_BITS & ((1 << TAG_SHIFT) - 1);
        let handle = self.tag << TAG_SHIFT | number | slot as u64;
        self.slots[slot].value.store(Box::into_raw(Box::new(value)), Ordering::Relaxed);
        self.slots[slot].handle.store(handle, Ordering::Release);
        Ok(handle)
    }

    /// Calls `work` with the object.
    #[inline]
    pub(crate) fn with<R>(&self, handle: u64, work: impl FnOnce(&T) -> CallResult<R>) -> CallResult<R> {
        let slot = &self.slots[slot(handle)];
        let _using = Using { table: self, note: Note::new(handle) };
        if slot.handle.load(Ordering::Acquire) != handle || handle == 0 {
            return Err(self.unknown(handle));
        }
        let value = slot.value.load(Ordering::Relaxed);
        // SAFETY: the pointer was set before the handle. `end_unused` takes it only after the handle is gone and no thread has a note
        // of it, and this thread's note was made before it saw the handle; the slot gets no other object before that.
        work(unsafe { &*value })
    }

    /// Destroys a handle. The object is dropped with the last call that uses it.
    pub(crate) fn remove(&self, handle: u64) -> CallResult {
        let mut changes = self.lock();
        let slot = &self.slots[slot(handle)];
        if slot.handle.load(Ordering::Relaxed) != handle || handle == 0 {
            return Err(self.unknown(handle));
        }
        slot.handle.store(0, Ordering::Relaxed);
        changes.removed.push(handle);
        self.removed_count.store(changes.removed.len(), Ordering::Relaxed);
        drop(changes);
        self.end_unused();
        Ok(())
    }

    /// Drops the destroyed objects that no call uses.
    #[cold]
    fn end_unused(&self) {
        if fork::is_child() {
            return;
        }
        let mut changes = self.lock();
        if changes.removed.is_empty() {
            return;
        }
        let in_use = users::handles_in_use();
        let (kept, unused): (Vec<_>, Vec<_>) =
            changes.removed.drain(..).partition(|handle| in_use.contains(handle));
        changes.removed = kept;
        self.removed_count.store(changes.removed.len(), Ordering::Relaxed);
        let mut values = Vec::new();
        for handle in unused {
            let value = self.slots[slot(handle)].value.swap(null_mut(), Ordering::Relaxed);
            // SAFETY: `add` made it with `Box::into_raw`, and the swap gives it out once. Its handle was gone before the notes were
            // read, and no note had it, so no call uses the object or will find it.
            values.push(unsafe { Box::from_raw(value) });
            changes.emptied.push(slot(handle));
        }
        // The end of an object may take time, and other locks.
        drop(changes);
        drop(values);
    }

    #[cold]
    fn unknown(&self, handle: u64) -> Failure {
        let text = match handle {
            0 => format!("the {0} is null, or was closed; create a {0} before this call", self.name),
            _ => format!(
                "{handle:#x} is not a {0}, or was destroyed; pass a {0} until its end only",
                self.name
            ),
        };
        Failure { code: gpumem_result::GPUMEM_ERROR_INVALID_HANDLE, text }
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that uses a handle.
struct Using<'a, T: Send + Sync> {
    table: &'a HandleTable<T>,
    note: Note,
}

impl<T: Send + Sync> Drop for Using<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.note.erase();
        if self.table.removed_count.load(Ordering::Relaxed) > 0 {
            self.table.end_unused();
        }
    }
}

#[inline]
fn slot(handle: u64) -> usize {
    handle as usize & (SLOT_COUNT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_destroyed_handle_is_never_valid_again() {
        static TABLE: HandleTable<u32> = HandleTable::new(5, "number");
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
        static TABLE: HandleTable<()> = HandleTable::new(1, "nothing");
        let handles: Vec<_> = (0..SLOT_COUNT).filter_map(|_| TABLE.add(()).ok()).collect();
        assert_eq!(handles.len(), SLOT_COUNT);
        assert!(TABLE.add(()).is_err());
        assert!(handles.iter().all(|handle| TABLE.remove(*handle).is_ok()));
        assert!(TABLE.add(()).is_ok());
    }

    /// An object is dropped by the call that destroys it, or by the last call that uses it, at any depth of nested calls.
    #[test]
    fn an_object_ends_with_its_last_call() {
        static TABLE: HandleTable<Arc<()>> = HandleTable::new(2, "counted");
        let count = Arc::new(());
        let unused = TABLE.add(count.clone()).unwrap_or(0);
        assert!(TABLE.remove(unused).is_ok());
        assert_eq!(Arc::strong_count(&count), 1);

        fn deep(handle: u64, depth: usize) -> CallResult {
            TABLE.with(handle, |object| {
                match depth {
                    0 => TABLE.remove(handle)?,
                    _ => deep(handle, depth - 1)?,
                }
                assert_eq!(Arc::strong_count(object), 2, "in use at depth {depth}");
                Ok(())
            })
        }
        let used = TABLE.add(count.clone()).unwrap_or(0);
        assert!(deep(used, 40).is_ok());
        assert_eq!(Arc::strong_count(&count), 1);
    }

    /// No thread uses an object that another thread has dropped, and every object is dropped.
    #[test]
    fn threads_use_what_others_destroy() {
        static TABLE: HandleTable<Guarded> = HandleTable::new(3, "guarded");
        static CURRENT: AtomicU64 = AtomicU64::new(0);
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        let count = Arc::new(());
        let new = || TABLE.add(Guarded { value: Box::new(ALIVE), _count: count.clone() }).unwrap_or(0);
        CURRENT.store(new(), Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !IS_OVER.load(Ordering::Relaxed) {
                        let _ = TABLE.with(CURRENT.load(Ordering::Relaxed), |object| {
                            assert_eq!(*object.value, ALIVE);
                            Ok(())
                        });
                    }
                });
            }
            for _ in 0..2_000 {
                let before = CURRENT.swap(new(), Ordering::Relaxed);
                assert!(TABLE.remove(before).is_ok());
                std::thread::yield_now();
            }
            IS_OVER.store(true, Ordering::Relaxed);
        });
        assert!(TABLE.remove(CURRENT.load(Ordering::Relaxed)).is_ok());
        assert_eq!(Arc::strong_count(&count), 1);
    }

    struct Guarded {
        value: Box<u64>,
        _count: Arc<()>,
    }

    impl Drop for Guarded {
        fn drop(&mut self) {
            *self.value = 0;
        }
    }

    const ALIVE: u64 = 0x1234_5678_9ABC_DEF0;
}

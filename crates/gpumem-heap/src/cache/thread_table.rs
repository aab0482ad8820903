//! Which magazine set is this thread's for a stream: one look into a small table, without a destructor to ask about.
//!
//! The table is direct-mapped and holds bare pointers. Behind it this thread keeps each of its sets; when the thread
//! ends, that map's destructor clears the table and hands the sets over: the pool lists them too, so nothing is lost with
//! the thread. Later destructors of the same thread find neither, and their frees take the slow path.

use super::thread_cache::{OwnerGuard, ThreadCache};
use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lets `work` have this thread's set for a front and a stream; `None` if the table does not have it.
#[inline]
pub fn with_cache<R>(front: u64, stream: u64, work: impl FnOnce(OwnerGuard<'_>) -> R) -> Option<R> {
    let entry = NEAR.with(|near| near[place(front, stream)].get());
    if entry.front != front || entry.stream != stream {
        return None;
    }
    // SAFETY: an entry stands in the table only while this thread's map holds the set (`OwnCaches::keep`, `Drop`), and the map
    // changes only in `bring_near` and at the thread's end: no `work` is as far as either. What it holds, the thread has
    // adopted, and hands over when the map ends; and no `work` that a view is given comes back here.
    Some(work(unsafe { (*entry.set).own() }))
}

/// As [`with_cache`], but looks behind the table if need be, and puts there what it finds. `adopt` finds a set that this
/// thread does not have yet. `None` if it finds none, or if this thread is past keeping any.
#[cold]
pub fn with_cache_or_adopt<R>(
    front: u64,
    stream: u64,
    adopt: impl FnOnce() -> Option<Arc<ThreadCache>>,
    work: impl FnOnce(OwnerGuard<'_>) -> R,
) -> Option<R> {
    if with_cache(front, stream, |set| set.is_closed()) != Some(false) {
        bring_near(front, stream, adopt)?;
    }
    with_cache(front, stream, work)
}

fn bring_near(front: u64, stream: u64, adopt: impl FnOnce() -> Option<Arc<ThreadCache>>) -> Option<()> {
    let brought = SETS.try_with(|sets| {
        let mut sets = sets.try_borrow_mut().ok()?;
        let known = sets.map.get(&(front, stream)).filter(|set| !set.is_closed());
        let set = match known.map(Arc::as_ptr) {
            Some(set) => set,
            None => sets.keep(front, stream, adopt()?),
        };
        NEAR.with(|near| near[place(front, stream)].set(Near { front, stream, set }));
        Some(())
    });
    brought.ok().flatten()
}

/// Shows all sets that this thread has of a front.
pub fn each_cache(front: u64, mut work: impl FnMut(OwnerGuard<'_>)) {
    // A thread past keeping any has handed them over.
    let _ = SETS.try_with(|sets| {
        if let Ok(sets) = sets.try_borrow() {
            let own = sets.map.range((front, 0)..=(front, u64::MAX));
            // SAFETY: as in `with_cache`.
            own.for_each(|(_, set)| work(unsafe { set.own() }));
        }
    });
}

#[derive(Clone, Copy)]
struct Near {
    front: u64,
    stream: u64,
    set: *const ThreadCache,
}

/// As many streams of pools as a thread works on at a time without a longer look.
const NEAR_COUNT: usize = 16;

/// Fronts are numbered in such steps, so that those of two pools on the same streams don't get in each other's way.
pub const KEY_STEP: u64 = 5;

/// No front has the number 0.
const NOTHING: Near = Near { front: 0, stream: 0, set: core::ptr::null() };

#[inline]
fn place(front: u64, stream: u64) -> usize {
    front.wrapping_add(stream) as usize % NEAR_COUNT
}

struct OwnCaches {
    map: BTreeMap<(u64, u64), Arc<ThreadCache>>,
}

impl OwnCaches {
    /// Adds a set, and lets go of those that have been closed: their pool or their stream is gone.
    fn keep(&mut self, front: u64, stream: u64, set: Arc<ThreadCache>) -> *const ThreadCache {
        if self.map.values().any(|set| set.is_closed()) {
            forget_near();
            self.map.retain(|_, set| !set.is_closed());
        }
        let address = Arc::as_ptr(&set);
        self.map.insert((front, stream), set);
        address
    }
}

impl Drop for OwnCaches {
    fn drop(&mut self) {
        forget_near();
        self.map.values().for_each(|set| set.hand_over());
    }
}

fn forget_near() {
    // Threads of a model lose it sooner.
    let _ = NEAR.try_with(|near| near.iter().for_each(|entry| entry.set(NOTHING)));
}

crate::sync::thread_local! {
    static NEAR: [Cell<Near>; NEAR_COUNT] = const { [const { Cell::new(NOTHING) }; NEAR_COUNT] };
    static SETS: RefCell<OwnCaches> = const { RefCell::new(OwnCaches { map: BTreeMap::new() }) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::thread_cache::close_all;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Numbers of fronts that no other test uses.
    fn front() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
        NEXT.fetch_add(KEY_STEP, Ordering::Relaxed)
    }

    fn made(stream: u64) -> impl FnOnce() -> Option<Arc<ThreadCache>> {
        move || Some(Arc::new(ThreadCache::new(stream)))
    }

    #[test]
    fn a_set_is_adopted_once_and_found_again() {
        let front = front();
        assert_eq!(with_cache(front, 3, |set| set.stream()), None);
        assert_eq!(with_cache_or_adopt(front, 3, made(3), |set| set.stream()), Some(3));
        assert_eq!(with_cache(front, 3, |set| set.stream()), Some(3));
        assert_eq!(with_cache(front, 4, |set| set.stream()), None);
        assert_eq!(
            with_cache_or_adopt(front, 3, || unreachable!("it is there already"), |set| set.stream()),
            Some(3)
        );
    }

    #[test]
    fn many_streams_share_the_table() {
        let front = front();
        for stream in 0..3 * NEAR_COUNT as u64 {
            with_cache_or_adopt(front, stream, made(stream), |_| ()).unwrap();
        }
        for stream in 0..3 * NEAR_COUNT as u64 {
            assert_eq!(with_cache_or_adopt(front, stream, || None, |set| set.stream()), Some(stream));
            assert_eq!(with_cache(front, stream, |set| set.stream()), Some(stream));
        }
        let mut streams = Vec::new();
        each_cache(front, |set| streams.push(set.stream()));
        assert_eq!(streams, (0..3 * NEAR_COUNT as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_closed_set_makes_way_for_a_new_one() {
        let front = front();
        let first = Arc::new(ThreadCache::new(3));
        with_cache_or_adopt(front, 3, || Some(Arc::clone(&first)), |_| ()).unwrap();
        close_all([&*first], |_, _| ());
        with_cache_or_adopt(front, 3, made(3), |set| assert!(!set.is_closed())).unwrap();
        with_cache(front, 3, |set| assert!(!set.is_closed())).unwrap();
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn the_end_of_a_thread_hands_its_sets_over() {
        let (front, set) = (front(), Arc::new(ThreadCache::new(3)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                with_cache_or_adopt(front, 3, || Some(Arc::clone(&set)), |set| assert!(!set.adopt()))
            });
        });
        // A scope ends before its threads' destructors do.
        while Arc::strong_count(&set) > 1 {
            std::thread::yield_now();
        }
        assert!(set.adopt());
    }

    #[test]
    fn a_thread_past_its_destructors_keeps_nothing() {
        struct Late(u64, std::sync::mpsc::Sender<(bool, bool)>);
        impl Drop for Late {
            fn drop(&mut self) {
                let is_near = with_cache(self.0, 3, |_| ()).is_some();
                let is_kept = with_cache_or_adopt(self.0, 3, made(3), |_| ()).is_some();
                let _ = self.1.send((is_near, is_kept));
            }
        }
        thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });
        let (sender, receiver) = std::sync::mpsc::channel();
        let front = front();
        std::thread::spawn(move || {
            // Destructors run in some order of their first uses: with one on either side, one of the two runs late.
            LATE.with(|late| *late.borrow_mut() = Some(Late(front, sender)));
            with_cache_or_adopt(front, 3, made(3), |_| ()).unwrap();
        })
        .join()
        .unwrap();
        let (is_near, is_kept) = receiver.recv().unwrap();
        assert_eq!(is_near, is_kept, "the table says what the map says");
    }
}

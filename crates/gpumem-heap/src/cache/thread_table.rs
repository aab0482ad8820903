//! The calling thread's cache for a pool and a stream: one lookup in a small thread-local table, which needs no destructor.
//!
//! The table is direct-mapped and holds bare pointers. A map behind it keeps all caches that the thread owns. When the thread ends,
//! the map's destructor clears the table and hands the caches over; the pool lists them too, so no block is lost with the thread.
//! Later destructors of the same thread find neither table nor map, and their frees take the slow path.

use super::thread_cache::{OwnerGuard, ThreadCache};
use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Runs `work` on the thread's cache for a pool and a stream. `None` if the table does not contain it.
#[inline]
pub fn with_cache<R>(pool: u64, stream: u64, work: impl FnOnce(OwnerGuard<'_>) -> R) -> Option<R> {
    // SAFETY: the map changes only in `add_entry` and at the end of the thread, never while a `work` runs. No `work` comes back here.
    find_cache(pool, stream).map(|found| work(unsafe { found.own() }))
}

/// A cache of the thread that [`find_cache`] found, for use in a later call. A function with this argument needs no lookup, for which it
/// would have to save registers.
#[derive(Clone, Copy, Debug)]
pub struct FoundCache(*const ThreadCache);

/// Returns the thread's cache for a pool and a stream. `None` if the table does not contain it.
#[inline]
pub fn find_cache(pool: u64, stream: u64) -> Option<FoundCache> {
    let entry = TABLE.with(|table| table[place(pool, stream)].get());
    (entry.pool == pool && entry.stream == stream).then_some(FoundCache(entry.cache))
}

impl FoundCache {
    /// The thread's access to the cache.
    ///
    /// # Safety
    ///
    /// Between [`find_cache`] and the last use of the guard, the thread does not call [`with_cache_or_adopt`] and does not start its
    /// destructors. A closure that runs inside one of the guard's functions does not use the cache.
    #[inline]
    pub unsafe fn own<'a>(self) -> OwnerGuard<'a> {
        // SAFETY: a pointer is in the table only while this thread's map holds the cache (`OwnCaches::keep` and `drop`), and the map
        // has not changed since: it changes only in `add_entry` and at the end of the thread. The thread owns every cache in its map:
        // it has adopted it, and hands it over when the map ends.
        unsafe { (*self.0).own() }
    }
}

/// Like [`with_cache`], but falls back to the thread's map, and then to `adopt`, and adds the cache that it finds to the table.
/// `None` if `adopt` returns none, or if the thread has already destroyed its caches.
#[cold]
pub fn with_cache_or_adopt<R>(
    pool: u64,
    stream: u64,
    adopt: impl FnOnce() -> Option<Arc<ThreadCache>>,
    work: impl FnOnce(OwnerGuard<'_>) -> R,
) -> Option<R> {
    if with_cache(pool, stream, |cache| cache.is_closed()) != Some(false) {
        add_entry(pool, stream, adopt)?;
    }
    with_cache(pool, stream, work)
}

fn add_entry(pool: u64, stream: u64, adopt: impl FnOnce() -> Option<Arc<ThreadCache>>) -> Option<()> {
    let brought = CACHES.try_with(|caches| {
        let mut caches = caches.try_borrow_mut().ok()?;
        let known = caches.map.get(&(pool, stream)).filter(|cache| !cache.is_closed());
        let cache = match known.map(Arc::as_ptr) {
            Some(cache) => cache,
            None => caches.keep(pool, stream, adopt()?),
        };
        TABLE.with(|table| table[place(pool, stream)].set(CacheEntry { pool, stream, cache }));
        Some(())
    });
    brought.ok().flatten()
}

/// Runs `work` on all caches of the calling thread for a pool.
pub fn each_cache(pool: u64, mut work: impl FnMut(OwnerGuard<'_>)) {
    // A thread past its destructors has handed its caches over.
    let _ = CACHES.try_with(|caches| {
        if let Ok(caches) = caches.try_borrow() {
            let own = caches.map.range((pool, 0)..=(pool, u64::MAX));
            // SAFETY: as in `with_cache`.
            own.for_each(|(_, cache)| work(unsafe { cache.own() }));
        }
    });
}

#[derive(Clone, Copy)]
struct CacheEntry {
    pool: u64,
    stream: u64,
    cache: *const ThreadCache,
}

/// The number of streams, over all pools, that a thread can alternate between without a search outside the table.
const ENTRY_COUNT: usize = 16;

/// The difference between the keys of two pools, so that their caches of the same streams have different places in the table.
pub const KEY_STEP: u64 = 5;

/// No pool has the key 0.
const EMPTY: CacheEntry = CacheEntry { pool: 0, stream: 0, cache: core::ptr::null() };

#[inline]
fn place(pool: u64, stream: u64) -> usize {
    pool.wrapping_add(stream) as usize % ENTRY_COUNT
}

struct OwnCaches {
    map: BTreeMap<(u64, u64), Arc<ThreadCache>>,
}

impl OwnCaches {
    /// Adds a cache, and drops those that are closed: their pool or their stream is gone.
    fn keep(&mut self, pool: u64, stream: u64, cache: Arc<ThreadCache>) -> *const ThreadCache {
        if self.map.values().any(|cache| cache.is_closed()) {
            clear_table();
            self.map.retain(|_, cache| !cache.is_closed());
        }
        let address = Arc::as_ptr(&cache);
        self.map.insert((pool, stream), cache);
        address
    }
}

impl Drop for OwnCaches {
    fn drop(&mut self) {
        clear_table();
        self.map.values().for_each(|cache| cache.hand_over());
    }
}

/// Makes the calling thread find none of its caches. A fork handler: other threads may have revoked a cache at the fork, so no operation of
/// the child may hit one. The thread's map keeps the caches.
pub extern "C" fn forget_found() {
    clear_table();
}

fn clear_table() {
    // Under a model checker threads lose the table sooner.
    let _ = TABLE.try_with(|table| table.iter().for_each(|entry| entry.set(EMPTY)));
}

gpumem_base::sync::thread_local! {
    static TABLE: [Cell<CacheEntry>; ENTRY_COUNT] = const { [const { Cell::new(EMPTY) }; ENTRY_COUNT] };
    static CACHES: RefCell<OwnCaches> = const { RefCell::new(OwnCaches { map: BTreeMap::new() }) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::thread_cache::close_all;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A key that no other test uses.
    fn pool() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
        NEXT.fetch_add(KEY_STEP, Ordering::Relaxed)
    }

    fn made(stream: u64) -> impl FnOnce() -> Option<Arc<ThreadCache>> {
        move || Some(Arc::new(ThreadCache::new(stream)))
    }

    #[test]
    fn a_set_is_adopted_once_and_found_again() {
        let pool = pool();
        assert_eq!(with_cache(pool, 3, |cache| cache.stream()), None);
        assert_eq!(with_cache_or_adopt(pool, 3, made(3), |cache| cache.stream()), Some(3));
        assert_eq!(with_cache(pool, 3, |cache| cache.stream()), Some(3));
        assert_eq!(with_cache(pool, 4, |cache| cache.stream()), None);
        assert_eq!(
            with_cache_or_adopt(pool, 3, || unreachable!("it is there already"), |cache| cache.stream()),
            Some(3)
        );
    }

    #[test]
    fn a_cache_is_found_for_a_later_use() {
        let pool = pool();
        assert!(find_cache(pool, 3).is_none());
        with_cache_or_adopt(pool, 3, made(3), |_| ()).unwrap();
        let found = find_cache(pool, 3).unwrap();
        assert!(find_cache(pool, 4).is_none());
        // SAFETY: no cache was adopted since.
        assert_eq!(unsafe { found.own() }.stream(), 3);
    }

    #[test]
    fn many_streams_share_the_table() {
        let pool = pool();
        for stream in 0..3 * ENTRY_COUNT as u64 {
            with_cache_or_adopt(pool, stream, made(stream), |_| ()).unwrap();
        }
        for stream in 0..3 * ENTRY_COUNT as u64 {
            assert_eq!(with_cache_or_adopt(pool, stream, || None, |cache| cache.stream()), Some(stream));
            assert_eq!(with_cache(pool, stream, |cache| cache.stream()), Some(stream));
        }
        let mut streams = Vec::new();
        each_cache(pool, |cache| streams.push(cache.stream()));
        assert_eq!(streams, (0..3 * ENTRY_COUNT as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_closed_set_makes_way_for_a_new_one() {
        let pool = pool();
        let first = Arc::new(ThreadCache::new(3));
        with_cache_or_adopt(pool, 3, || Some(Arc::clone(&first)), |_| ()).unwrap();
        close_all([&*first], |_, _| ());
        with_cache_or_adopt(pool, 3, made(3), |cache| assert!(!cache.is_closed())).unwrap();
        with_cache(pool, 3, |cache| assert!(!cache.is_closed())).unwrap();
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn the_end_of_a_thread_hands_its_sets_over() {
        let (pool, cache) = (pool(), Arc::new(ThreadCache::new(3)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                with_cache_or_adopt(pool, 3, || Some(Arc::clone(&cache)), |cache| assert!(!cache.adopt()))
            });
        });
        // A scope ends before its threads' destructors do.
        while Arc::strong_count(&cache) > 1 {
            std::thread::yield_now();
        }
        assert!(cache.adopt());
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
        let pool = pool();
        std::thread::spawn(move || {
            // Destructors run in an unspecified order: with one registered before and one after, one of the two runs late.
            LATE.with(|late| *late.borrow_mut() = Some(Late(pool, sender)));
            with_cache_or_adopt(pool, 3, made(3), |_| ()).unwrap();
        })
        .join()
        .unwrap();
        let (is_near, is_kept) = receiver.recv().unwrap();
        assert_eq!(is_near, is_kept, "the table says what the map says");
    }
}

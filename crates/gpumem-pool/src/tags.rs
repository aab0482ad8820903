//! [`Tags`]: what blocks are for, as the scopes say that they are allocated in, and how much each tag has.
//!
//! A pool numbers its tags from 1; blocks outside of scopes have none, and pay nothing but a look at that. Every thread
//! counts for itself, in a tally for each pool and tag, which it finds in a small table; the pool lists them all. When a
//! thread ends, its tallies go to the next thread that counts for the same tag.

mod names;

pub(crate) use names::Names;

use crate::counters::{Counters, Tally};
use crate::out_of_memory::Holder;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The tags of one pool.
pub(crate) struct Tags {
    /// Of no other pool, ever: by this threads find their tallies.
    serial: u64,
    names: Arc<Names>,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    tallies: Vec<(u16, Arc<Owned>)>,
    /// What threads counted that were past keeping tallies.
    elsewhere: BTreeMap<u16, Counters>,
}

/// A tally that one thread at a time writes.
struct Owned {
    tally: Tally,
    is_owned: AtomicBool,
}

impl Tags {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { serial: NEXT.fetch_add(1, Ordering::Relaxed), names: Arc::default(), book: Mutex::default() }
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    pub(crate) fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// Lets `count` have this thread's tally for a tag.
    #[inline]
    pub(crate) fn count(&self, tag: u16, count: impl FnOnce(&Tally)) {
        let near = NEAR.with(|near| near[place(self.serial, tag)].get());
        if near.serial == self.serial && near.tag == tag {
            // SAFETY: an entry stands in the table only while this thread's map keeps the tally: what leaves the map, or
            // the end of the thread, clears the table first.
            return count(unsafe { &*near.tally });
        }
        self.count_far(tag, count);
    }

    #[cold]
    fn count_far(&self, tag: u16, count: impl FnOnce(&Tally)) {
        let kept =
            TALLIES.try_with(|tallies| tallies.try_borrow_mut().ok().map(|mut kept| kept.get(self, tag)));
        match kept.ok().flatten() {
            Some(owned) => {
                let near = Near { serial: self.serial, tag, tally: &raw const owned.tally };
                NEAR.with(|table| table[place(self.serial, tag)].set(near));
                count(&owned.tally);
            }
            None => {
                let tally = Tally::default();
                count(&tally);
                let mut book = self.book();
                let sum = book.elsewhere.entry(tag).or_default();
                *sum = *sum + tally.counters();
            }
        }
    }

    /// A tally that nobody has, for the calling thread.
    fn adopt(&self, tag: u16) -> Arc<Owned> {
        let mut book = self.book();
        let is_left = |owned: &Owned| {
            owned.is_owned.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if let Some((_, owned)) = book.tallies.iter().find(|(other, owned)| *other == tag && is_left(owned)) {
            return Arc::clone(owned);
        }
        let owned = Arc::new(Owned { tally: Tally::default(), is_owned: AtomicBool::new(true) });
        book.tallies.push((tag, Arc::clone(&owned)));
        owned
    }

    /// What each tag has that was ever counted, in the order of their first scopes.
    pub(crate) fn sums(&self) -> Vec<(Arc<str>, Counters)> {
        let names = self.names.all().into_iter();
        let mut sums: Vec<_> = names.map(|name| (name, Counters::default())).collect();
        let book = self.book();
        let counted = book.tallies.iter().map(|(tag, owned)| (*tag, owned.tally.counters()));
        for (tag, counters) in counted.chain(book.elsewhere.iter().map(|(tag, sum)| (*tag, *sum))) {
            if let Some((_, sum)) = sums.get_mut(usize::from(tag).wrapping_sub(1)) {
                *sum = *sum + counters;
            }
        }
        sums.retain(|(_, sum)| sum.operation_count() > 0 || sum.in_use_bytes() > 0);
        sums
    }

    /// Those that hold most, for a report.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        let mut sums = self.sums();
        sums.retain(|(_, sum)| sum.in_use_bytes() > 0);
        sums.sort_by_key(|(_, sum)| core::cmp::Reverse(sum.in_use_bytes()));
        sums.truncate(HOLDER_COUNT_MAX);
        let holder = |(tag, sum): (Arc<str>, Counters)| Holder {
            tag: (*tag).into(),
            in_use_bytes: sum.in_use_bytes(),
            block_count: sum.block_count(),
        };
        sums.into_iter().map(holder).collect()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy)]
struct Near {
    serial: u64,
    tag: u16,
    tally: *const Tally,
}

/// No pool has the serial 0.
const NOTHING: Near = Near { serial: 0, tag: 0, tally: core::ptr::null() };

/// As many tags as a thread uses at a time without a longer look.
const NEAR_COUNT: usize = 8;

#[inline]
fn place(serial: u64, tag: u16) -> usize {
    serial.wrapping_mul(3).wrapping_add(u64::from(tag)) as usize % NEAR_COUNT
}

/// All tallies of this thread.
struct Kept(BTreeMap<(u64, u16), Arc<Owned>>);

impl Kept {
    fn get(&mut self, tags: &Tags, tag: u16) -> Arc<Owned> {
        if let Some(owned) = self.0.get(&(tags.serial, tag)) {
            return Arc::clone(owned);
        }
        // Those of pools that are gone are kept by nobody else.
        if self.0.values().any(|owned| Arc::strong_count(owned) == 1) {
            forget_near();
            self.0.retain(|_, owned| Arc::strong_count(owned) > 1);
        }
        let owned = tags.adopt(tag);
        self.0.insert((tags.serial, tag), Arc::clone(&owned));
        owned
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        forget_near();
        self.0.values().for_each(|owned| owned.is_owned.store(false, Ordering::Release));
    }
}

fn forget_near() {
    NEAR.with(|near| near.iter().for_each(|entry| entry.set(NOTHING)));
}

thread_local! {
    static NEAR: [Cell<Near>; NEAR_COUNT] = const { [const { Cell::new(NOTHING) }; NEAR_COUNT] };
    static TALLIES: RefCell<Kept> = const { RefCell::new(Kept(BTreeMap::new())) };
}

/// As many as a report names.
const HOLDER_COUNT_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(tags: &Tags) -> Vec<(String, u64, u64)> {
        let sum =
            |(name, sum): (Arc<str>, Counters)| (name.to_string(), sum.in_use_bytes(), sum.block_count());
        tags.sums().into_iter().map(sum).collect()
    }

    #[test]
    fn threads_count_apart_and_leave_their_tallies() {
        let tags = Tags::new();
        let tag = tags.names().number("a");
        for _ in 0..3 {
            std::thread::scope(|scope| {
                scope.spawn(|| tags.count(tag, |tally| tally.count_out(100))).join().unwrap();
                scope.spawn(|| tags.count(tag, |tally| tally.count_in(40)));
            });
        }
        assert_eq!(sums(&tags), [("a".into(), 180, 0)]);
        assert!(tags.book().tallies.len() < 6, "nobody takes what is left");
    }

    #[test]
    fn pools_that_are_gone_leave_nothing() {
        let count = |tags: &Tags| tags.count(tags.names().number("a"), |tally| tally.count_out(1));
        let kept = || TALLIES.with(|tallies| tallies.borrow().0.len());
        (0..100).for_each(|_| count(&Tags::new()));
        assert!(kept() <= 2);
    }

    #[test]
    fn a_thread_past_its_destructors_counts_too() {
        struct Late(Arc<Tags>);
        impl Drop for Late {
            fn drop(&mut self) {
                self.0.count(1, |tally| tally.count_out(7));
            }
        }
        thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });
        let tags = Arc::new(Tags::new());
        tags.names().number("a");
        std::thread::spawn({
            let tags = Arc::clone(&tags);
            move || {
                LATE.with(|late| *late.borrow_mut() = Some(Late(Arc::clone(&tags))));
                tags.count(1, |tally| tally.count_out(7));
            }
        })
        .join()
        .unwrap();
        assert_eq!(sums(&tags), [("a".into(), 14, 2)]);
    }
}

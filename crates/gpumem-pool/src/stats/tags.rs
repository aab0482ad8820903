//! [`Tags`]: the memory of each tag, as named by the scopes in which blocks are allocated.
//!
//! A pool numbers its tags from 1. Blocks outside scopes have tag 0 and cost only the check for it. Every thread has its own counters, one
//! share per pool and tag, which it finds in a small table. The pool lists all shares. When a thread ends, its shares go to the next thread
//! that counts for the tag. When a name is forgotten, its number and its shares go to another name: counters continue from their old
//! values, which are subtracted.

mod names;
mod share;

pub(crate) use names::{Name, Names};
pub(crate) use share::Share;

use crate::error::Holder;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::counters::Counters;
use gpumem_base::sync::Lock;
use gpumem_sys::fork;
use share::Peak;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The counters of all tags of a pool, by name. Clones share them.
#[derive(Clone)]
pub(crate) struct Tags {
    /// Unique to the pool, never reused: threads find their shares by it.
    pub(crate) serial: u64,
    pub(crate) names: Arc<Names>,
    all: Arc<Lock<TagShares>>,
}

#[derive(Default)]
struct TagShares {
    shares: BTreeMap<u16, Vec<Arc<Share>>>,
    peaks: BTreeMap<u16, Arc<Peak>>,
    /// Counts of threads whose thread-local storage was gone, minus the counts of forgotten names.
    elsewhere: BTreeMap<u16, Counters>,
}

#[derive(Clone)]
pub(crate) struct TagSum {
    pub(crate) name: Arc<str>,
    pub(crate) counters: Counters,
    /// The peak of its bytes; approximate if several threads count.
    pub(crate) peak_bytes: u64,
}

impl TagSum {
    /// True if memory has counted for the tag: a scope may end without an allocation.
    fn is_used(&self) -> bool {
        self.counters != Counters::default() || self.peak_bytes > 0
    }
}

impl Tags {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { serial: NEXT.fetch_add(1, Ordering::Relaxed), names: Arc::default(), all: Arc::default() }
    }

    /// The tag of a name. The number belongs to the name while the result, or a block that counts for it, lives.
    pub(crate) fn hold(&self, name: &str) -> Arc<Name> {
        if fork::is_child() {
            return Arc::new(Name { text: name.into(), number: 0 });
        }
        let mut table = self.names.0.lock();
        if let Some(found) = table.find(name) {
            return found;
        }
        if table.is_due() {
            let mut all = self.all.lock();
            let forgotten = table.forget_unused(|tag| all.is_unused(tag));
            forgotten.into_iter().for_each(|tag| all.clear(tag));
        }
        table.add(name)
    }

    /// Calls `count` with this thread's share of a tag.
    #[inline]
    pub(crate) fn count(&self, tag: u16, count: impl FnOnce(&Share)) {
        let cached = CACHE.with(|cache| cache[place(self.serial, tag)].get());
        if cached.serial == self.serial && cached.tag == tag {
            // SAFETY: an entry is in the table only while this thread's map holds the share: removals from the map and
            // the end of the thread clear the table first.
            return count(unsafe { &*cached.share });
        }
        self.count_slow(tag, count);
    }

    /// Returns this thread's share of a tag; `None` if the thread's destructors have run.
    pub(crate) fn share(&self, tag: u16) -> Option<Arc<Share>> {
        if fork::is_child() {
            return None;
        }
        let kept = SHARES.try_with(|shares| shares.try_borrow_mut().ok().map(|mut kept| kept.get(self, tag)));
        kept.ok().flatten()
    }

    #[cold]
    fn count_slow(&self, tag: u16, count: impl FnOnce(&Share)) {
        if fork::is_child() {
            return;
        }
        match self.share(tag) {
            Some(share) => {
                let cached = CachedShare { serial: self.serial, tag, share: Arc::as_ptr(&share) };
                CACHE.with(|cache| cache[place(self.serial, tag)].set(cached));
                count(&share);
            }
            None => {
                let mut all = self.all.lock();
                let share = Share::new(all.peaks.entry(tag).or_default());
                count(&share);
                share.publish();
                let sum = all.elsewhere.entry(tag).or_default();
                *sum = *sum + share.counters();
            }
        }
    }

    /// A share without an owner, or a new one, for the calling thread.
    fn adopt(&self, tag: u16) -> Arc<Share> {
        let mut all = self.all.lock();
        let is_left = |share: &Share| {
            share.is_owned.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let TagShares { shares, peaks, .. } = &mut *all;
        let shares = shares.entry(tag).or_default();
        if let Some(share) = shares.iter().find(|share| is_left(share)) {
            return Arc::clone(share);
        }
        let share = Arc::new(Share::new(peaks.entry(tag).or_default()));
        shares.push(Arc::clone(&share));
        share
    }

    /// The sums of all tags that have counted and are not forgotten, in the order of their first scopes.
    pub(crate) fn sums(&self) -> Vec<TagSum> {
        // While the table is locked, no name is forgotten.
        let table = self.names.0.lock();
        let all = self.all.lock();
        let sum = |name: Arc<Name>| {
            let (counters, peak_bytes) = (all.sum(name.number).shown(), all.peak_bytes(name.number)?);
            Some(TagSum { name: Arc::clone(&name.text), counters, peak_bytes })
        };
        table.all().into_iter().filter_map(sum).filter(TagSum::is_used).collect()
    }

    /// What these tags have in use, by number.
    pub(crate) fn in_use_of(&self, tags: &BTreeSet<u16>) -> BTreeMap<u16, u64> {
        let all = self.all.lock();
        tags.iter().map(|tag| (*tag, all.sum(*tag).shown().in_use_bytes())).collect()
    }

    pub(crate) fn in_use(&self) -> Vec<(Arc<str>, u64)> {
        self.sums().into_iter().map(|sum| (sum.name, sum.counters.in_use_bytes())).collect()
    }

    pub(crate) fn reset_peaks(&self) {
        let all = self.all.lock();
        all.shares.values().flatten().for_each(|share| share.reset_peak());
        all.peaks.values().for_each(|peak| peak.reset());
    }

    pub(crate) fn holders(&self) -> Vec<Holder> {
        let mut sums = self.sums();
        sums.retain(|sum| sum.counters.in_use_bytes() > 0);
        sums.sort_by_key(|sum| core::cmp::Reverse(sum.counters.in_use_bytes()));
        sums.truncate(HOLDER_COUNT_MAX);
        let holder = |TagSum { name, counters, .. }: TagSum| Holder {
            tag: (*name).into(),
            in_use_bytes: counters.in_use_bytes(),
            block_count: counters.block_count(),
        };
        sums.into_iter().map(holder).collect()
    }
}

impl TagShares {
    fn of(&self, tag: u16) -> impl Iterator<Item = &Arc<Share>> {
        self.shares.get(&tag).into_iter().flatten()
    }

    fn sum(&self, tag: u16) -> Counters {
        let elsewhere = self.elsewhere.get(&tag).copied().unwrap_or_default();
        self.of(tag).fold(elsewhere, |sum, share| sum + share.counters())
    }

    /// The peak of a tag; `None` if nothing was ever counted.
    fn peak_bytes(&self, tag: u16) -> Option<u64> {
        let unpublished = self.of(tag).map(|share| share.unpublished_peak_bytes());
        Some(self.peaks.get(&tag)?.bytes(unpublished.fold(0, u64::wrapping_add)))
    }

    /// True if no block counts for a tag that nothing can allocate for. Frees may be running: each subtracts its bytes last, so a sum of
    /// zero is final.
    fn is_unused(&self, tag: u16) -> bool {
        let sum = self.sum(tag);
        sum.in_use_bytes() == 0 && sum.block_count() == 0
    }

    fn clear(&mut self, tag: u16) {
        let sum = self.sum(tag);
        if sum != Counters::default() {
            let elsewhere = self.elsewhere.entry(tag).or_default();
            *elsewhere = *elsewhere - sum;
        }
        self.of(tag).for_each(|share| share.reset_peak());
        self.peaks.get(&tag).iter().for_each(|peak| peak.reset());
    }
}

#[derive(Clone, Copy)]
struct CachedShare {
    serial: u64,
    tag: u16,
    share: *const Share,
}

/// An empty entry: no pool has serial 0.
const EMPTY: CachedShare = CachedShare { serial: 0, tag: 0, share: core::ptr::null() };

/// The number of tags that a thread finds without a lookup in its map.
const CACHE_COUNT: usize = 8;

#[inline]
fn place(serial: u64, tag: u16) -> usize {
    serial.wrapping_mul(3).wrapping_add(u64::from(tag)) as usize % CACHE_COUNT
}

struct OwnShares {
    shares: BTreeMap<(u64, u16), Arc<Share>>,
    /// At this number of shares, those of dropped pools are removed.
    due_count: usize,
}

impl OwnShares {
    fn get(&mut self, tags: &Tags, tag: u16) -> Arc<Share> {
        if let Some(share) = self.shares.get(&(tags.serial, tag)) {
            return Arc::clone(share);
        }
        if self.shares.len() >= self.due_count {
            clear_cache();
            // Shares of dropped pools have no other holder.
            self.shares.retain(|_, share| Arc::strong_count(share) > 1);
            self.due_count = DUE_COUNT_MIN.max(2 * self.shares.len());
        }
        let share = tags.adopt(tag);
        self.shares.insert((tags.serial, tag), Arc::clone(&share));
        share
    }
}

impl Drop for OwnShares {
    fn drop(&mut self) {
        clear_cache();
        self.shares.values().for_each(|share| share.is_owned.store(false, Ordering::Release));
    }
}

fn clear_cache() {
    CACHE.with(|cache| cache.iter().for_each(|entry| entry.set(EMPTY)));
}

thread_local! {
    static CACHE: [Cell<CachedShare>; CACHE_COUNT] = const { [const { Cell::new(EMPTY) }; CACHE_COUNT] };
    static SHARES: RefCell<OwnShares> = const { RefCell::new(OwnShares { shares: BTreeMap::new(), due_count: DUE_COUNT_MIN }) };
}

const DUE_COUNT_MIN: usize = 16;

const HOLDER_COUNT_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(tags: &Tags) -> Vec<(String, u64, u64)> {
        let sum = |TagSum { name, counters, .. }: TagSum| {
            (name.to_string(), counters.in_use_bytes(), counters.block_count())
        };
        tags.sums().into_iter().map(sum).collect()
    }

    #[test]
    fn threads_count_apart_and_leave_their_shares() {
        let tags = Tags::new();
        let name = tags.hold("a");
        let tag = name.number;
        for _ in 0..3 {
            std::thread::scope(|scope| {
                scope.spawn(|| tags.count(tag, |share| share.count_out(100))).join().unwrap();
                scope.spawn(|| tags.count(tag, |share| share.count_in(40)));
            });
        }
        assert_eq!(sums(&tags), [("a".into(), 180, 0)]);
        assert!(
            tags.all.lock().shares.values().flatten().count() < 6,
            "shares of ended threads are not reused"
        );
    }

    #[test]
    fn pools_that_are_gone_leave_nothing() {
        let count = |tags: &Tags| tags.count(tags.hold("a").number, |share| share.count_out(1));
        let kept = || SHARES.with(|shares| shares.borrow().shares.len());
        (0..100).for_each(|_| count(&Tags::new()));
        assert!(kept() <= DUE_COUNT_MIN);
    }

    #[test]
    fn a_thread_past_its_destructors_counts_too() {
        struct Late(Arc<Tags>);
        impl Drop for Late {
            fn drop(&mut self) {
                self.0.count(1, |share| share.count_out(7));
            }
        }
        thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });
        let tags = Arc::new(Tags::new());
        drop(tags.hold("a"));
        std::thread::spawn({
            let tags = Arc::clone(&tags);
            move || {
                LATE.with(|late| *late.borrow_mut() = Some(Late(Arc::clone(&tags))));
                tags.count(1, |share| share.count_out(7));
            }
        })
        .join()
        .unwrap();
        assert_eq!(sums(&tags), [("a".into(), 14, 2)]);
    }

    /// A forgotten name leaves nothing to the name that gets its number, and no counter of a live block is lost.
    #[test]
    fn names_that_come_and_go_are_forgotten() {
        let tags = Tags::new();
        let held = tags.hold("held");
        tags.count(held.number, |share| share.count_out(1));
        let mut live = Vec::new();
        for index in 0..20_000_u64 {
            let name = tags.hold(&format!("request {index}"));
            tags.count(name.number, |share| share.count_out(4 << 20));
            if index % 1000 == 0 {
                live.push((name.number, format!("request {index}")));
            } else {
                tags.count(name.number, |share| share.count_in(4 << 20));
            }
        }
        let all = tags.sums();
        assert!(all.len() < 3 * names::UNUSED_COUNT_MAX, "{}", all.len());
        let of = |name: &str| all.iter().find(|sum| &*sum.name == name).unwrap();
        assert_eq!(of("held").counters.in_use_bytes(), 1);
        for (_, name) in &live {
            assert_eq!((of(name).counters.in_use_bytes(), of(name).counters.block_count()), (4 << 20, 1));
        }
        for sum in &all {
            assert_eq!(
                (sum.counters.allocation_count(), sum.peak_bytes),
                (1, sum.peak_bytes.min(4 << 20)),
                "{}",
                sum.name
            );
        }
        live.iter().for_each(|(number, _)| tags.count(*number, |share| share.count_in(4 << 20)));
        assert_eq!(tags.sums().iter().map(|sum| sum.counters.in_use_bytes()).sum::<u64>(), 1);
    }

    /// Threads allocate under their own names, pass blocks on, and free blocks of others.
    #[test]
    fn names_are_forgotten_while_threads_count() {
        let tags = Tags::new();
        let (passed, received) = std::sync::mpsc::channel::<(u16, u64)>();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (tags, passed) = (&tags, passed.clone());
                scope.spawn(move || {
                    for index in 0..3000_u64 {
                        let name = tags.hold(&format!("{thread} {index}"));
                        let size_bytes = 1 + index % 7 * (300 << 10);
                        tags.count(name.number, |share| share.count_out(size_bytes));
                        if index % 100 != 99 {
                            passed.send((name.number, size_bytes)).unwrap();
                        }
                    }
                });
            }
            drop(passed);
            received.iter().for_each(|(tag, size_bytes)| tags.count(tag, |share| share.count_in(size_bytes)));
        });
        let all = tags.sums();
        let live: Vec<_> = all.iter().filter(|sum| sum.counters.block_count() > 0).collect();
        assert_eq!(live.len(), 90);
        for sum in live {
            let index: u64 = sum.name.split_once(' ').unwrap().1.parse().unwrap();
            assert_eq!(
                (index % 100, sum.counters.in_use_bytes()),
                (99, 1 + index % 7 * (300 << 10)),
                "{}",
                sum.name
            );
        }
        assert!(all.iter().all(|sum| sum.counters.allocation_count() == 1));
    }
}

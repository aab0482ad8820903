//! [`ThreadCache`]: what one thread keeps at hand of one stream's freed blocks, its [`Magazines`] behind a lock that costs it nothing.
//!
//! Everything in a set was freed on its stream, or was ready for it, so an allocation on that stream takes any of it
//! without a further look. The thread that owns the set works on it as [`OwnerGuard`]; others take it away for a moment, to drain
//! it or to take its allowance back. Its counters, and what it may hold, anyone reads as they are.

use super::large_cache::{LargeBlock, Retention};
use super::magazine::Magazines;
use crate::block::HeapBlock;
use crate::counters::{Counters, LocalCounters};
use crate::size_class::SizeClass;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{BiasedLock, revoke_all};
use core::marker::PhantomData;
use core::ops::Deref;

/// Aligned, so that two threads' sets share no cache line.
#[derive(Debug)]
#[repr(align(128))]
pub struct ThreadCache {
    magazines: BiasedLock<Magazines>,
    /// What was handed out and came back here. Written by whoever is at the magazines.
    tally: LocalCounters,
    /// As the magazines say since the last change.
    allowance_bytes: AtomicU64,
    /// How many are recent, likewise.
    recent_count: AtomicU32,
    /// The operations that [`ThreadCache::was_used`] has seen.
    seen_count: AtomicU64,
    stream: u64,
    is_owned: AtomicBool,
}

/// A set as the thread has it that owns it.
#[derive(Clone, Copy)]
pub struct OwnerGuard<'a> {
    set: &'a ThreadCache,
    _thread: PhantomData<*const ()>,
}

impl ThreadCache {
    /// An empty one without allowance, owned by the thread that asks for it.
    pub fn new(stream: u64) -> Self {
        Self {
            magazines: BiasedLock::new(Magazines::new()),
            tally: LocalCounters::default(),
            allowance_bytes: AtomicU64::new(0),
            recent_count: AtomicU32::new(0),
            seen_count: AtomicU64::new(0),
            stream,
            is_owned: AtomicBool::new(true),
        }
    }

    /// The number of its stream.
    #[inline]
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// True once it is closed, for good: its stream or its pool is gone.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.magazines.is_closed()
    }

    /// What was counted here. While the owner is at it, a moment old.
    pub fn counters(&self) -> Counters {
        self.tally.counters()
    }

    /// What it may hold, as it was a moment ago.
    pub fn allowance_bytes(&self) -> u64 {
        self.allowance_bytes.load(Ordering::Relaxed)
    }

    /// Whether it had any large blocks a moment ago.
    pub fn has_recent(&self) -> bool {
        self.recent_count.load(Ordering::Relaxed) > 0
    }

    /// Whether anything was handed out or came back since the last time that this was asked.
    pub fn was_used(&self) -> bool {
        let now_count = self.counters().operation_count();
        self.seen_count.swap(now_count, Ordering::Relaxed) != now_count
    }

    /// The calling thread's view of it.
    ///
    /// # Safety
    ///
    /// The calling thread owns it: it made it or adopted it, and has not handed it over since, nor does before the last
    /// use of the view. Within `work` that it gives to the view, it does not use it.
    #[inline]
    pub unsafe fn own(&self) -> OwnerGuard<'_> {
        OwnerGuard { set: self, _thread: PhantomData }
    }

    /// Its thread ends: what it holds stays, for the next thread that works on the stream or for whoever drains it.
    pub fn hand_over(&self) {
        self.is_owned.store(false, Ordering::Release);
    }

    /// Makes the calling thread the owner, if there is none.
    pub fn adopt(&self) -> bool {
        self.is_owned.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn noting<R>(&self, magazines: &mut Magazines, work: impl FnOnce(&mut Magazines) -> R) -> R {
        let result = work(magazines);
        self.allowance_bytes.store(magazines.allowance_bytes(), Ordering::Relaxed);
        self.note_recent(magazines);
        result
    }

    #[inline]
    fn note_recent(&self, magazines: &Magazines) {
        self.recent_count.store(magazines.recent.as_slice().len() as u32, Ordering::Relaxed);
    }
}

/// Takes all that are not closed from their owners, in turn, for one barrier. One caller at a time.
pub(super) fn visit_all<'a, K>(
    sets: impl IntoIterator<Item = (&'a ThreadCache, K)>,
    mut visit: impl FnMut(&'a ThreadCache, K, &mut Magazines),
) {
    for ((set, key), revoked) in revoke_all(sets.into_iter().map(keyed)) {
        revoked.with(|magazines| set.noting(magazines, |magazines| visit(set, key, magazines)));
    }
}

/// The same for the last time: they are closed then.
pub(super) fn close_all<'a>(
    sets: impl IntoIterator<Item = &'a ThreadCache>,
    mut visit: impl FnMut(&'a ThreadCache, &mut Magazines),
) {
    for ((set, ()), revoked) in revoke_all(sets.into_iter().map(|set| keyed((set, ())))) {
        revoked.close(|magazines| set.noting(magazines, |magazines| visit(set, magazines)));
    }
}

fn keyed<K>((set, key): (&ThreadCache, K)) -> ((&ThreadCache, K), &BiasedLock<Magazines>) {
    ((set, key), &set.magazines)
}

impl OwnerGuard<'_> {
    /// Hands out a piece, and counts it; `None` if there is none of the class, or if somebody else is at the set.
    #[inline]
    pub fn take(self, class: SizeClass, size_bytes: u64) -> Option<HeapBlock> {
        self.try_with(|magazines| {
            let piece = magazines.take(class)?;
            self.tally.count_out(size_bytes);
            Some(piece)
        })?
    }

    /// Takes a piece back, and counts it; false if there is no room, or if somebody else is at the set. When it returns
    /// true, nothing of the pool is touched any more: this may have been the pool's last block.
    #[inline]
    pub fn put(self, class: SizeClass, size_bytes: u64, piece: HeapBlock) -> bool {
        let put = self.try_with(|magazines| {
            let is_in = magazines.put(class, piece);
            if is_in {
                self.tally.count_in(size_bytes);
            }
            is_in
        });
        put == Some(true)
    }

    /// As [`OwnerGuard::take`], of what is beyond the classes.
    #[inline]
    pub fn take_large(self, size_bytes: u64) -> Option<LargeBlock> {
        self.try_with(|magazines| {
            let large = magazines.recent.take(size_bytes)?;
            self.note_recent(magazines);
            self.tally.count_out(size_bytes);
            Some(large)
        })?
    }

    /// As [`OwnerGuard::put`], of what is beyond the classes.
    #[inline]
    pub fn put_large(self, large: LargeBlock) -> bool {
        let put = self.try_with(|magazines| {
            let is_in = magazines.recent.put(large);
            if is_in {
                self.note_recent(magazines);
                self.tally.count_in(large.size_bytes);
            }
            is_in
        });
        put == Some(true)
    }

    /// As [`OwnerGuard::take`], of a class that is nearly it, if the set keeps [`LargeCache`] blocks that are.
    pub fn take_oversized(self, class: SizeClass, size_bytes: u64) -> Option<(SizeClass, HeapBlock)> {
        self.with(|magazines| {
            if !magazines.recent.is_loose() {
                return None;
            }
            let found = class.nearly().find_map(|near| Some((near, magazines.take(near)?)))?;
            self.tally.count_out(size_bytes);
            Some(found)
        })?
    }

    /// Takes out all that is beyond the classes.
    pub fn empty_recent(self, leaves: impl FnMut(LargeBlock)) {
        self.with(|magazines| magazines.recent.empty(leaves));
    }

    /// As [`LargeCache::empty_unkept`].
    pub fn empty_unkept(self, leaves: impl FnMut(LargeBlock)) -> (u64, u64) {
        self.with(|magazines| magazines.recent.empty_unkept(leaves)).unwrap_or_default()
    }

    /// Takes out some of what is beyond the classes, if there is any.
    pub fn make_way_large(self, leaves: impl FnMut(LargeBlock)) {
        self.with(|magazines| magazines.recent.make_way(leaves));
    }

    /// The heap has handed out a block that is beyond the classes; as [`LargeCache::note_out`].
    pub fn note_out(self, record: u32, retention: Retention) {
        self.with(|magazines| magazines.recent.note_out(record, retention));
    }

    /// Counts a block out that came from elsewhere; false if the set is closed.
    pub fn count_out(self, size_bytes: u64) -> bool {
        self.with(|_| self.tally.count_out(size_bytes)).is_some()
    }

    /// Counts a block in that went elsewhere; false if the set is closed.
    pub fn count_in(self, size_bytes: u64) -> bool {
        self.with(|_| self.tally.count_in(size_bytes)).is_some()
    }

    /// As [`BiasedLock::own`].
    pub(super) fn with<R>(self, work: impl FnOnce(&mut Magazines) -> R) -> Option<R> {
        // SAFETY: as whoever made the view has promised.
        unsafe { self.magazines.own(|magazines| self.noting(magazines, work)) }
    }

    #[inline]
    fn try_with<R>(self, work: impl FnOnce(&mut Magazines) -> R) -> Option<R> {
        // SAFETY: as whoever made the view has promised.
        unsafe { self.magazines.try_own(work) }
    }
}

impl Deref for OwnerGuard<'_> {
    type Target = ThreadCache;

    #[inline]
    fn deref(&self) -> &ThreadCache {
        self.set
    }
}

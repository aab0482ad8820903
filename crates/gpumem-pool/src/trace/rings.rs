//! [`Rings`]: the rings of all threads that record for one trace or flight recorder.

use super::event::Raw;
use super::ring::{Level, Overflow, Ring, Timed};
use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::sync::Lock;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Rings {
    /// Unique in the process.
    number: u64,
    start: Instant,
    overflow: Overflow,
    list: Lock<RingList>,
    /// The held bytes of pools at their last events, by the pool's number. Pools that share an entry record more events.
    held_bytes: [AtomicU64; HELD_COUNT],
    dropped_count: AtomicU64,
}

struct RingList {
    all: Vec<Arc<Ring>>,
    thread_count: u32,
    /// For threads that cannot have their own ring. Used under the lock.
    common: Arc<Ring>,
}

thread_local! {
    static OWN: RefCell<Vec<(u64, Arc<Ring>)>> = const { RefCell::new(Vec::new()) };
}

impl Rings {
    pub(super) fn new(overflow: Overflow) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let common = Arc::new(Ring::new(0, overflow));
        Self {
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            start: Instant::now(),
            overflow,
            list: Lock::new(RingList { all: vec![Arc::clone(&common)], thread_count: 1, common }),
            held_bytes: [const { AtomicU64::new(u64::MAX) }; HELD_COUNT],
            dropped_count: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn record(&self, raw: Raw) -> Level {
        let now_ns = self.now_ns();
        let put = OWN.try_with(|own| {
            let Ok(own) = own.try_borrow() else { return None };
            let (_, ring) = own.iter().find(|(number, _)| *number == self.number)?;
            Some(ring.put(now_ns, raw))
        });
        match put {
            Ok(Some(level)) => level,
            other => self.record_first(now_ns, raw, other.is_ok()),
        }
    }

    /// Records an event on a thread that has no ring yet, or whose thread-local storage is gone.
    #[cold]
    fn record_first(&self, now_ns: u64, raw: Raw, may_have_ring: bool) -> Level {
        let mut list = self.list.lock();
        if !may_have_ring {
            return list.common.put(now_ns, raw);
        }
        let ring = match list.all.len() > self.overflow.ring_count_max() {
            false => {
                let ring = Arc::new(Ring::new(list.thread_count, self.overflow));
                list.thread_count += 1;
                list.all.push(Arc::clone(&ring));
                ring
            }
            // A ring that overwrites outlives its thread, and the next thread reuses it. Without holders besides the list, no thread puts
            // events into it; holders are added only under the lock.
            true => match list.all.iter().skip(1).find(|ring| Arc::strong_count(ring) == 1) {
                Some(ring) if self.overflow == Overflow::Oldest => Arc::clone(ring),
                _ => return list.common.put(now_ns, raw),
            },
        };
        drop(list);
        let level = ring.put(now_ns, raw);
        let _ended = OWN.try_with(|own| {
            if let Ok(mut own) = own.try_borrow_mut() {
                own.retain(|(_, other)| !other.is_closed());
                own.push((self.number, ring));
            }
        });
        level
    }

    /// Returns true if the held bytes of a pool differ from those at its last event, and stores them.
    #[inline]
    pub(super) fn note_held(&self, pool: u32, held_bytes: u64) -> bool {
        let place = &self.held_bytes[pool as usize % HELD_COUNT];
        place.load(Ordering::Relaxed) != held_bytes && place.swap(held_bytes, Ordering::Relaxed) != held_bytes
    }

    pub(super) fn all(&self) -> Vec<Arc<Ring>> {
        self.list.lock().all.clone()
    }

    /// Removes the empty rings of threads that are gone.
    pub(super) fn remove_left(&self) {
        self.list.lock().all.retain(|ring| {
            // This list is the only holder: the ring's thread is gone.
            let is_left = Arc::strong_count(ring) == 1 && ring.is_empty();
            if is_left {
                self.dropped_count.fetch_add(ring.dropped_count(), Ordering::Relaxed);
            }
            !is_left
        });
    }

    /// The last events of all threads, with the number of the thread's ring, and the number of overwritten events.
    pub(super) fn last(&self) -> (Vec<(u32, Vec<Timed>)>, u64) {
        let rings = self.all();
        let last: Vec<_> = rings.iter().map(|ring| (ring.thread, ring.last())).collect();
        let kept_count: u64 = last.iter().map(|(_, events)| events.len() as u64).sum();
        let put_count: u64 = rings.iter().map(|ring| ring.put_count()).sum();
        (last, put_count.saturating_sub(kept_count))
    }

    /// Counts events that could not be written and belong to no ring.
    pub(super) fn note_dropped(&self, count: u64) {
        self.dropped_count.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub(super) fn dropped_count(&self) -> u64 {
        let of_rings = self.list.lock().all.iter().map(|ring| ring.dropped_count()).sum::<u64>();
        of_rings + self.dropped_count.load(Ordering::Relaxed)
    }

    /// Marks the rings, so that their threads release them.
    pub(super) fn close(&self) {
        self.list.lock().all.iter().for_each(|ring| ring.close());
    }
}

/// The number of pools whose held bytes are stored apart.
const HELD_COUNT: usize = 64;

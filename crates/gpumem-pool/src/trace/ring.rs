//! [`Ring`]: one thread's events, on their way to the writer or until newer ones overwrite them. One thread puts events in;
//! the writer takes them out, or any thread copies the last ones. No thread waits for another.

use super::event::{EventKind, Raw};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overflow {
    /// New events: a writer empties the ring.
    Newest,
    /// The oldest events: nothing empties the ring.
    Oldest,
}

impl Overflow {
    /// Beyond this number of rings, threads share one.
    pub(super) fn ring_count_max(self) -> usize {
        match self {
            Self::Newest => 1024,
            Self::Oldest => 64,
        }
    }
}

pub(super) struct Ring {
    places: Box<[[AtomicU64; WORD_COUNT]]>,
    put_count: Line<AtomicU64>,
    taken_count: Line<AtomicU64>,
    /// The time of the last event. The next one is later.
    last_ns: AtomicU64,
    dropped_count: AtomicU64,
    /// True if the writer has ended, so that further events are not written.
    is_closed: AtomicBool,
    pub(super) thread: u32,
    overflow: Overflow,
}

#[repr(align(128))]
struct Line<T>(T);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timed {
    pub(super) time_ns: u64,
    pub(super) raw: Raw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Fine,
    /// It has just become half full.
    Half,
    /// It was full, and the event is lost.
    Full,
}

impl Ring {
    pub(super) fn new(thread: u32, overflow: Overflow) -> Self {
        let place = |_| [const { AtomicU64::new(0) }; WORD_COUNT];
        Self {
            places: (0..EVENT_COUNT).map(place).collect(),
            put_count: Line(AtomicU64::new(0)),
            taken_count: Line(AtomicU64::new(0)),
            last_ns: AtomicU64::new(0),
            dropped_count: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            thread,
            overflow,
        }
    }

    /// Puts an event in. Called by the ring's thread only.
    #[inline]
    pub(super) fn put(&self, now_ns: u64, raw: Raw) -> Level {
        let count = self.put_count.0.load(Ordering::Relaxed);
        // Acquire: the writer has read the entry that this event overwrites.
        let used_count = count - self.taken_count.0.load(Ordering::Acquire);
        if self.overflow == Overflow::Oldest {
            // Release: a reader that sees a word of this event sees the count of the events before it; see `last`.
            fence(Ordering::Release);
        } else if used_count >= EVENT_COUNT {
            self.dropped_count.fetch_add(1, Ordering::Relaxed);
            return Level::Full;
        }
        // A thread's events have increasing times at any clock resolution.
        let time_ns = now_ns.max(self.last_ns.load(Ordering::Relaxed) + 1);
        self.last_ns.store(time_ns, Ordering::Relaxed);
        let place = &self.places[(count % EVENT_COUNT) as usize];
        place[0].store(time_ns << 8 | raw.kind as u64, Ordering::Relaxed);
        for (place, word) in place[1..].iter().zip(raw.words) {
            place.store(word, Ordering::Relaxed);
        }
        // Release: a thread that sees the count sees the event.
        self.put_count.0.store(count + 1, Ordering::Release);
        if used_count + 1 == EVENT_COUNT / 2 { Level::Half } else { Level::Fine }
    }

    /// Takes all events out. Called by the writer only.
    pub(super) fn take(&self, events: &mut Vec<Timed>) {
        let (outcome, put) =
            (self.taken_count.0.load(Ordering::Relaxed), self.put_count.0.load(Ordering::Acquire));
        events.extend((outcome..put).filter_map(|count| self.event(count)));
        self.taken_count.0.store(put, Ordering::Release);
    }

    /// Copies the last events of a ring that overwrites the oldest. The ring's thread may put in more events during the copy.
    pub(super) fn last(&self) -> Vec<Timed> {
        let end = self.put_count.0.load(Ordering::Acquire);
        let begin = end.saturating_sub(EVENT_COUNT);
        let events: Vec<_> = (begin..end).map(|count| self.event(count)).collect();
        // Acquire: if a word above came from a newer event, this sees at least the count before that event.
        fence(Ordering::Acquire);
        let now = self.put_count.0.load(Ordering::Relaxed);
        // The event `now` may be half written, over the event one round before.
        let overwritten_count = (now + 1).saturating_sub(EVENT_COUNT).saturating_sub(begin);
        events.into_iter().skip(overwritten_count as usize).flatten().collect()
    }

    fn event(&self, count: u64) -> Option<Timed> {
        let place = &self.places[(count % EVENT_COUNT) as usize];
        let [first, words @ ..] = place.each_ref().map(|word| word.load(Ordering::Relaxed));
        Some(Timed { time_ns: first >> 8, raw: Raw { kind: EventKind::of(first as u8)?, words } })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken_count.0.load(Ordering::Relaxed) == self.put_count.0.load(Ordering::Acquire)
    }

    pub(super) fn put_count(&self) -> u64 {
        self.put_count.0.load(Ordering::Relaxed)
    }

    pub(super) fn dropped_count(&self) -> u64 {
        self.dropped_count.load(Ordering::Relaxed)
    }

    /// Counts taken events that could not be written.
    pub(super) fn drop_more(&self, count: u64) {
        self.dropped_count.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

/// Time with kind, and four more words.
const WORD_COUNT: usize = 5;

/// 160 KiB for each thread.
pub(super) const EVENT_COUNT: u64 = 4096;

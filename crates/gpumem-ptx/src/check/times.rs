//! [`ThreadTimes`]: the vector clock of a thread. For each thread of the launch, it has the time up to which that thread's accesses are
//! ordered before the owner's next one. A launch has too many threads for an array in each of them.
//!
//! - Threads with the same time are one word. A tree of eight parts at each level has the times, and a part in which all are equal is not
//!   divided. What a barrier orders, a block or a warp, is a few parts, as in BARRACUDA (Eizenberg et al., PLDI 2017), whose clocks are
//!   compressed by the hierarchy of the threads without loss.
//! - Parts never change, so a copy is a pointer, and a new tree has all parts of the old one but those on the way to what has changed
//!   (path copying: Driscoll, Sarnak, Sleator and Tarjan, 1989). A million threads that publish at one address share nearly everything.
//! - Two trees are joined only where they differ: not within a part that both have, nor within one whose latest time is no later than the
//!   earliest of the other. Times are steps of the run, so what was published later is usually later in each thread. Tree clocks (Mathur
//!   et al., ASPLOS 2022) leave out the same parts for the same reason.

use core::ops::Range;
use std::rc::Rc;

/// For each thread of the launch, by its number, a time. It begins with 0 for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadTimes {
    /// The tree has `PARTS` to this power threads.
    levels: u32,
    root: Part,
}

/// The times of a range of threads: either all are equal, or the range is divided into parts.
#[derive(Clone, Debug)]
enum Part {
    Same(u64),
    Differing(Rc<Parts>),
}

#[derive(Debug)]
struct Parts {
    earliest: u64,
    latest: u64,
    parts: [Part; PARTS as usize],
}

const PARTS: u64 = 8;

impl Default for Part {
    fn default() -> Self {
        Self::Same(0)
    }
}

impl ThreadTimes {
    /// True if each time is 0.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.root, Part::Same(0))
    }

    pub(crate) fn of(&self, thread: u64) -> u64 {
        let mut len = PARTS.pow(self.levels);
        let (mut part, mut number) = (&self.root, thread);
        if number >= len {
            return 0;
        }
        while let Part::Differing(below) = part {
            len /= PARTS;
            part = &below.parts[(number / len) as usize];
            number %= len;
        }
        part.latest()
    }

    /// Lets each of these threads have at least this time.
    pub(crate) fn raise(&mut self, threads: Range<u64>, time: u64) {
        while threads.end > PARTS.pow(self.levels) {
            self.grow();
        }
        if let Some(root) = self.root.raised(PARTS.pow(self.levels), threads, time) {
            self.root = root;
        }
    }

    /// Lets each thread have the later of its two times.
    pub(crate) fn join(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            self.clone_from(other);
            return;
        }
        let mut grown;
        let mut other = other;
        if other.levels < self.levels {
            grown = other.clone();
            while grown.levels < self.levels {
                grown.grow();
            }
            other = &grown;
        }
        while self.levels < other.levels {
            self.grow();
        }
        self.root = self.root.joined(&other.root);
    }

    /// Makes room for `PARTS` times as many threads.
    fn grow(&mut self) {
        let root = core::mem::take(&mut self.root);
        let mut parts: [Part; PARTS as usize] = Default::default();
        parts[0] = root;
        (self.levels, self.root) = (self.levels + 1, Part::of(parts));
    }
}

impl Part {
    fn of(parts: [Self; PARTS as usize]) -> Self {
        let earliest = parts.iter().map(Self::earliest).min().unwrap_or(0);
        let latest = parts.iter().map(Self::latest).max().unwrap_or(0);
        if earliest == latest {
            return Self::Same(latest);
        }
        Self::Differing(Rc::new(Parts { earliest, latest, parts }))
    }

    fn earliest(&self) -> u64 {
        match self {
            Self::Same(time) => *time,
            Self::Differing(parts) => parts.earliest,
        }
    }

    fn latest(&self) -> u64 {
        match self {
            Self::Same(time) => *time,
            Self::Differing(parts) => parts.latest,
        }
    }

    /// The part with this index.
    fn part(&self, index: usize) -> &Self {
        match self {
            Self::Same(_) => self,
            Self::Differing(below) => &below.parts[index],
        }
    }

    /// True if it is the same part in memory, too.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Same(own), Self::Same(other)) => own == other,
            (Self::Differing(own), Self::Differing(other)) => Rc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// This part of `len` threads with the times of `threads` raised to at least `time`. `None` if that changes nothing.
    fn raised(&self, len: u64, threads: Range<u64>, time: u64) -> Option<Self> {
        if threads.is_empty() || self.earliest() >= time {
            return None;
        }
        if threads == (0..len) && self.latest() <= time {
            return Some(Self::Same(time));
        }
        let below = len / PARTS;
        let raised = |index: usize| {
            let start = index as u64 * below;
            let within = |thread: u64| thread.saturating_sub(start).min(below);
            self.part(index).raised(below, within(threads.start)..within(threads.end), time)
        };
        let mut is_changed = false;
        let parts = core::array::from_fn(|index| match raised(index) {
            Some(part) => {
                is_changed = true;
                part
            }
            None => self.part(index).clone(),
        });
        is_changed.then(|| Self::of(parts))
    }

    fn joined(&self, other: &Self) -> Self {
        if self.is(other) || other.latest() <= self.earliest() {
            return self.clone();
        }
        if self.latest() <= other.earliest() {
            return other.clone();
        }
        let parts: [Self; PARTS as usize] =
            core::array::from_fn(|index| self.part(index).joined(other.part(index)));
        // One that is there already keeps what is shared with it.
        for known in [self, other] {
            if parts.iter().enumerate().all(|(index, part)| part.is(known.part(index))) {
                return known.clone();
            }
        }
        Self::of(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const THREADS: u64 = 700;

    /// What is done to one of a few values.
    #[derive(Clone, Debug)]
    enum Deed {
        Raise { threads: Range<u64>, time: u64 },
        Join { other: usize },
        Copy { other: usize },
    }

    fn deed() -> impl Strategy<Value = (usize, Deed)> {
        let threads = prop_oneof![
            (0..THREADS).prop_map(|thread| thread..thread + 1),
            (0..THREADS / 32).prop_map(|warp| 32 * warp..32 * (warp + 1)),
            (0..THREADS, 0..THREADS).prop_map(|(one, other)| one.min(other)..one.max(other)),
        ];
        let deed = prop_oneof![
            3 => (threads, 0_u64..40).prop_map(|(threads, time)| Deed::Raise { threads, time }),
            2 => (0_usize..4).prop_map(|other| Deed::Join { other }),
            1 => (0_usize..4).prop_map(|other| Deed::Copy { other }),
        ];
        (0_usize..4, deed)
    }

    proptest! {
        /// The same as a list with a time for each thread.
        #[test]
        fn times_are_those_of_a_list(deeds in prop::collection::vec(deed(), 0..60)) {
            let mut trees: [ThreadTimes; 4] = Default::default();
            let mut lists = [[0; THREADS as usize]; 4];
            for (own, deed) in deeds {
                match deed {
                    Deed::Raise { threads, time } => {
                        for thread in threads.clone() {
                            lists[own][thread as usize] = time.max(lists[own][thread as usize]);
                        }
                        trees[own].raise(threads, time);
                    }
                    Deed::Join { other } => {
                        let other_list = lists[other];
                        lists[own].iter_mut().zip(other_list).for_each(|(time, other)| *time = other.max(*time));
                        let other = trees[other].clone();
                        trees[own].join(&other);
                    }
                    Deed::Copy { other } => {
                        lists[own] = lists[other];
                        trees[own] = trees[other].clone();
                    }
                }
                for (tree, list) in trees.iter().zip(&lists) {
                    prop_assert!((0..THREADS).all(|thread| tree.of(thread) == list[thread as usize]));
                    prop_assert_eq!(tree.is_empty(), list.iter().all(|time| *time == 0));
                    prop_assert_eq!(tree.of(u64::MAX), 0);
                }
            }
        }
    }

    /// Threads with one time need no memory, and a tree that is joined with an earlier one is still the same in memory.
    #[test]
    fn parts_are_shared() {
        let mut all = ThreadTimes::default();
        all.raise(0..1 << 30, 5);
        assert!(matches!(all.root, Part::Same(5)));
        let mut later = all.clone();
        later.raise(77..78, 9);
        let before = later.root.clone();
        later.join(&all);
        assert!(later.root.is(&before));
        all.join(&later);
        assert!(all.root.is(&before));
        later.raise(77..78, 8);
        assert!(later.root.is(&before));
    }
}

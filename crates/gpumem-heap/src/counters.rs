//! [`Counters`]: what was handed out and came back, counted by whoever served it.
//!
//! Every thread counts for itself, in a [`LocalCounters`] that it alone writes. A block may be handed out by one and come back to
//! another, so a single count means little and wraps around zero; the sum of all is exact once no call is under way.

use core::ops::Add;
use core::sync::atomic::{AtomicU64, Ordering};

/// Blocks and bytes handed out and given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    in_use_bytes: u64,
    allocation_count: u64,
    free_count: u64,
}

/// Counters that one thread at a time writes and that anyone reads.
#[derive(Debug)]
pub struct LocalCounters {
    in_use_bytes: AtomicU64,
    allocation_count: AtomicU64,
    free_count: AtomicU64,
}

impl LocalCounters {
    /// A block of so many bytes was handed out.
    #[inline]
    pub fn count_out(&self, size_bytes: u64) {
        raise(&self.in_use_bytes, size_bytes);
        raise(&self.allocation_count, 1);
    }

    /// A block of so many bytes came back.
    #[inline]
    pub fn count_in(&self, size_bytes: u64) {
        raise(&self.in_use_bytes, size_bytes.wrapping_neg());
        raise(&self.free_count, 1);
    }

    /// Something that is no block of its own has more bytes than before, or fewer.
    pub fn change(&self, from_bytes: u64, to_bytes: u64) {
        raise(&self.in_use_bytes, to_bytes.wrapping_sub(from_bytes));
    }

    /// What was handed out and has not come back, of what is counted here: may be less than nothing.
    #[inline]
    pub fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes.load(Ordering::Relaxed)
    }

    /// The counts at this moment; an operation that runs meanwhile may be counted in part.
    pub fn counters(&self) -> Counters {
        Counters {
            in_use_bytes: self.in_use_bytes.load(Ordering::Relaxed),
            allocation_count: self.allocation_count.load(Ordering::Relaxed),
            free_count: self.free_count.load(Ordering::Relaxed),
        }
    }
}

impl Default for LocalCounters {
    fn default() -> Self {
        let [in_use_bytes, allocation_count, free_count] = [(); 3].map(|()| AtomicU64::new(0));
        Self { in_use_bytes, allocation_count, free_count }
    }
}

/// By the only thread that writes it at this time: no exchange.
#[inline]
fn raise(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Counters {
    /// A block of so many bytes was handed out.
    pub fn count_out(&mut self, size_bytes: u64) {
        self.in_use_bytes = self.in_use_bytes.wrapping_add(size_bytes);
        self.allocation_count += 1;
    }

    /// A block of so many bytes came back.
    pub fn count_in(&mut self, size_bytes: u64) {
        self.in_use_bytes = self.in_use_bytes.wrapping_sub(size_bytes);
        self.free_count += 1;
    }

    /// For people: while calls are under way, a block's end may have been seen and its beginning not. Then there is nothing,
    /// rather than less.
    pub fn shown(self) -> Self {
        Self {
            in_use_bytes: self.in_use_bytes.cast_signed().max(0).unsigned_abs(),
            free_count: self.free_count.min(self.allocation_count),
            ..self
        }
    }

    /// In blocks that are alive, as they were asked for.
    pub fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes
    }

    /// Blocks that are alive.
    pub fn block_count(&self) -> u64 {
        self.allocation_count.wrapping_sub(self.free_count)
    }

    /// Blocks ever handed out.
    pub fn allocation_count(&self) -> u64 {
        self.allocation_count
    }

    /// How often it was used: what has not moved since is idle.
    pub fn operation_count(&self) -> u64 {
        self.allocation_count.wrapping_add(self.free_count)
    }
}

impl Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            in_use_bytes: self.in_use_bytes.wrapping_add(other.in_use_bytes),
            allocation_count: self.allocation_count.wrapping_add(other.allocation_count),
            free_count: self.free_count.wrapping_add(other.free_count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_that_is_seen_alone_shows_as_nothing() {
        let (out, back) = (LocalCounters::default(), LocalCounters::default());
        out.count_out(700);
        back.count_in(700);
        assert_eq!((out.counters() + back.counters()).shown(), out.counters() + back.counters());
        let shown = back.counters().shown();
        assert_eq!((shown.in_use_bytes(), shown.block_count()), (0, 0));
        assert_eq!(out.counters().shown(), out.counters());
    }
}

//! [`Counters`]: blocks and bytes allocated and freed.
//!
//! Each thread counts in a [`LocalCounters`] that only it writes. One thread may allocate a block and another free it, so the counters of
//! one thread mean little and wrap around zero; their sum is exact once no call is running.

use core::ops::{Add, Sub};
use core::sync::atomic::{AtomicU64, Ordering};

/// Blocks and bytes allocated and freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    in_use_bytes: u64,
    allocation_count: u64,
    free_count: u64,
}

/// Counters that one thread at a time writes and any thread reads.
#[derive(Debug)]
pub struct LocalCounters {
    in_use_bytes: AtomicU64,
    allocation_count: AtomicU64,
    free_count: AtomicU64,
}

impl LocalCounters {
    /// Counts an allocated block. Returns [`LocalCounters::in_use_bytes`].
    #[inline]
    pub fn count_out(&self, size_bytes: u64) -> u64 {
        raise(&self.allocation_count, 1);
        raise(&self.in_use_bytes, size_bytes)
    }

    /// Counts several allocated blocks, of `size_bytes` each.
    #[inline]
    pub fn count_run_out(&self, count: u64, size_bytes: u64) {
        raise(&self.in_use_bytes, count.wrapping_mul(size_bytes));
        raise(&self.allocation_count, count);
    }

    /// Counts a freed block. Returns [`LocalCounters::in_use_bytes`].
    #[inline]
    pub fn count_in(&self, size_bytes: u64) -> u64 {
        raise(&self.free_count, 1);
        raise(&self.in_use_bytes, size_bytes.wrapping_neg())
    }

    /// Counts a change of size of a block that is counted elsewhere.
    pub fn change(&self, from_bytes: u64, to_bytes: u64) {
        raise(&self.in_use_bytes, to_bytes.wrapping_sub(from_bytes));
    }

    /// Bytes allocated here minus bytes freed here. Wraps around zero: a negative difference is a number near [`u64::MAX`].
    #[inline]
    pub fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes.load(Ordering::Relaxed)
    }

    /// The counters at this moment. An operation that runs at the same time may be counted in part.
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

/// Adds to a counter without an atomic read-modify-write: only one thread at a time writes it. Returns the sum.
#[inline]
fn raise(count: &AtomicU64, by: u64) -> u64 {
    let sum = count.load(Ordering::Relaxed).wrapping_add(by);
    count.store(sum, Ordering::Relaxed);
    sum
}

impl Counters {
    /// Counts an allocated block.
    pub fn count_out(&mut self, size_bytes: u64) {
        self.in_use_bytes = self.in_use_bytes.wrapping_add(size_bytes);
        self.allocation_count += 1;
    }

    /// Counts a freed block.
    pub fn count_in(&mut self, size_bytes: u64) {
        self.in_use_bytes = self.in_use_bytes.wrapping_sub(size_bytes);
        self.free_count += 1;
    }

    /// The counters for display. While calls run, a free may be read without its allocation; the difference is then shown as zero.
    pub fn shown(self) -> Self {
        Self {
            in_use_bytes: self.in_use_bytes.cast_signed().max(0).unsigned_abs(),
            free_count: self.free_count.min(self.allocation_count),
            ..self
        }
    }

    /// The bytes of live blocks, by their requested sizes.
    pub fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes
    }

    /// The number of live blocks.
    pub fn block_count(&self) -> u64 {
        self.allocation_count.wrapping_sub(self.free_count)
    }

    /// The number of blocks ever allocated.
    pub fn allocation_count(&self) -> u64 {
        self.allocation_count
    }

    /// The number of allocations and frees. Two equal readings mean that nothing happened in between.
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

impl Sub for Counters {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            in_use_bytes: self.in_use_bytes.wrapping_sub(other.in_use_bytes),
            allocation_count: self.allocation_count.wrapping_sub(other.allocation_count),
            free_count: self.free_count.wrapping_sub(other.free_count),
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

    #[test]
    fn blocks_that_wander_are_counted_once() {
        let (mut producer, mut consumer) = (Counters::default(), Counters::default());
        producer.count_out(300);
        producer.count_out(700);
        consumer.count_in(300);
        let sum = producer + consumer;
        assert_eq!((sum.in_use_bytes(), sum.block_count(), sum.allocation_count()), (700, 1, 2));
        consumer.count_in(700);
        assert_eq!((producer + consumer).in_use_bytes(), 0);
        assert_eq!((producer + consumer).block_count(), 0);
        assert_eq!(consumer.operation_count(), 2);
    }
}

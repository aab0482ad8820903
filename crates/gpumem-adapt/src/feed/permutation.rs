//! [`Permutation`]: a random order without a table.

/// A permutation of `0..len` that depends on a seed. It needs no memory at any length.
///
/// A Feistel network permutes the numbers of an even number of bits, which are at most four times as many as `len`. A result that is not
/// below `len` is permuted again: the cycle that it lies on leads back below `len`, and to each number from one start only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUND_COUNT],
}

impl Permutation {
    pub(super) fn new(len: usize, seed: u64) -> Self {
        let len = len as u64;
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let mut rng = fastrand::Rng::with_seed(seed);
        Self { len, half_bits: bits.div_ceil(2).max(1), keys: core::array::from_fn(|_| rng.u64(..)) }
    }

    /// The number at a place, which is below the length.
    pub(super) fn at(&self, place: usize) -> usize {
        let mut number = place as u64;
        loop {
            number = self.permuted(number);
            if number < self.len || place as u64 >= self.len {
                return number as usize;
            }
        }
    }

    fn permuted(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits & mask, number & mask);
        for key in self.keys {
            (left, right) = (right, left ^ mixed(right ^ key) & mask);
        }
        left << self.half_bits | right
    }
}

/// The finaliser of SplitMix64: every bit of the result depends on every bit of the word.
fn mixed(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Four make a network hard to tell from a random permutation; small halves need more.
const ROUND_COUNT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn every_number_occurs_once() {
        for len in (0..70).chain([127, 128, 129, 1000, 4096, 4097, 100_000]) {
            for seed in 0..4 {
                let permutation = Permutation::new(len, seed);
                let mut numbers: Vec<usize> = (0..len).map(|place| permutation.at(place)).collect();
                numbers.sort_unstable();
                assert!(numbers.into_iter().eq(0..len), "{len}, seed {seed}");
            }
        }
    }

    #[test]
    fn the_longest_permutation_needs_no_table() {
        let permutation = Permutation::new(usize::MAX, 3);
        let numbers: Vec<usize> = [0, 1, usize::MAX - 1].map(|place| permutation.at(place)).to_vec();
        assert!(numbers.iter().all(|number| *number < usize::MAX));
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2]);
    }

    /// Each of the 120 orders of five numbers has about its share of 24,000 seeds (200; the standard deviation is 14).
    #[test]
    fn all_orders_are_as_likely() {
        let mut counts: HashMap<Vec<usize>, u32> = HashMap::new();
        for seed in 0..24_000 {
            let permutation = Permutation::new(5, seed);
            *counts.entry((0..5).map(|place| permutation.at(place)).collect()).or_default() += 1;
        }
        assert_eq!(counts.len(), 120);
        assert!(counts.values().all(|count| (130..270).contains(count)), "{counts:?}");
    }
}

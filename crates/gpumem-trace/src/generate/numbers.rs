//! [`Random`]: pseudo-random numbers from a seed.

/// Splitmix64: integer arithmetic only, so the numbers are equal on every machine.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A random number between two bounds, both included.
    pub(super) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// A random number: uniform over the octaves between two powers of two, then uniform within the octave.
    pub(super) fn log_uniform(&mut self, first: u64, end: u64) -> u64 {
        let octave = self.between(u64::from(first.ilog2()), u64::from(end.ilog2()) - 1);
        (1 << octave) + self.below(1 << octave)
    }
}

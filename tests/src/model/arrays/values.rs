//! [`Value`]: the element types, and what each operation makes of them.

use super::operation::Arithmetic;
use super::trees::Reference;
use crate::array::dlpack::DlpackElement;
use crate::array::ndarray::{ArrayD, IxDyn, Zip};
use crate::array::{ArrayError, ConvertsTo, GpuArray, Numeric, Place, Random, Rng};
use std::fmt::Debug;

/// An element type of programs.
pub(super) trait Value:
    Numeric + Reference + ConvertsTo<f64> + Random + DlpackElement + Debug
{
    fn of(number: i8) -> Self;
    /// A value whose bytes are all equal.
    fn of_byte(byte: u8) -> Self;
    fn calculate(operation: Arithmetic, left: Self, right: Self) -> Self;
    fn opposite(self) -> Self;
    fn magnitude(self) -> Self;
    /// The larger one. NaN is passed over, and the zero without a sign is the larger one.
    fn larger(self, other: Self) -> Self;
    /// To 32 bits and back.
    fn through_word(self) -> Self;
    /// As 64 bits with a fraction.
    fn as_double(self) -> f64;
    /// True if the values are equal to the last bit, or both are not a number.
    fn is_same(self, other: Self) -> bool;
    /// True if `sum` is the sum of the terms in some order.
    fn is_sum(sum: Self, terms: impl Iterator<Item = Self>) -> bool;
    /// The first numbers of the generator with this seed.
    fn random(seed: u64, count: usize) -> Vec<Self>;
    /// Normally distributed numbers, if the type has them.
    fn normal<P: Place>(
        place: &P,
        dim: IxDyn,
        seed: u64,
    ) -> Result<GpuArray<Self, IxDyn, P::Kind>, ArrayError>;
}

impl Value for i32 {
    fn of(number: i8) -> Self {
        number.into()
    }

    fn of_byte(byte: u8) -> Self {
        Self::from_ne_bytes([byte; 4])
    }

    fn calculate(operation: Arithmetic, left: Self, right: Self) -> Self {
        match operation {
            Arithmetic::Add => left.wrapping_add(right),
            Arithmetic::Sub => left.wrapping_sub(right),
            Arithmetic::Mul => left.wrapping_mul(right),
            Arithmetic::Div if right == 0 => 0,
            Arithmetic::Div => left.wrapping_div(right),
            Arithmetic::Rem if right == 0 => 0,
            Arithmetic::Rem => left.wrapping_rem(right),
        }
    }

    fn opposite(self) -> Self {
        self.wrapping_neg()
    }

    fn magnitude(self) -> Self {
        self.wrapping_abs()
    }

    fn larger(self, other: Self) -> Self {
        self.max(other)
    }

    fn through_word(self) -> Self {
        self
    }

    fn as_double(self) -> f64 {
        self.into()
    }

    fn is_same(self, other: Self) -> bool {
        self == other
    }

    fn is_sum(sum: Self, terms: impl Iterator<Item = Self>) -> bool {
        sum == terms.fold(0, Self::wrapping_add)
    }

    fn random(seed: u64, count: usize) -> Vec<Self> {
        let words = (0..).flat_map(|block| philox(seed, block));
        words.map(u32::cast_signed).take(count).collect()
    }

    fn normal<P: Place>(
        place: &P,
        dim: IxDyn,
        seed: u64,
    ) -> Result<GpuArray<Self, IxDyn, P::Kind>, ArrayError> {
        GpuArray::random(place, dim, &mut Rng::new(seed))
    }
}

impl Value for f64 {
    fn of(number: i8) -> Self {
        number.into()
    }

    fn of_byte(byte: u8) -> Self {
        Self::from_ne_bytes([byte; 8])
    }

    fn calculate(operation: Arithmetic, left: Self, right: Self) -> Self {
        match operation {
            Arithmetic::Add => left + right,
            Arithmetic::Sub => left - right,
            Arithmetic::Mul => left * right,
            Arithmetic::Div => left / right,
            Arithmetic::Rem => left % right,
        }
    }

    fn opposite(self) -> Self {
        -self
    }

    fn magnitude(self) -> Self {
        self.abs()
    }

    fn larger(self, other: Self) -> Self {
        match (self.is_nan(), other.is_nan()) {
            (true, _) => other,
            (false, true) => self,
            (false, false) if self.total_cmp(&other).is_gt() => self,
            (false, false) => other,
        }
    }

    fn through_word(self) -> Self {
        (self as i32).into()
    }

    fn as_double(self) -> f64 {
        self
    }

    fn is_same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits() || self.is_nan() && other.is_nan()
    }

    fn is_sum(sum: Self, terms: impl Iterator<Item = Self>) -> bool {
        let (mut expected, mut size) = (0.0, 0.0);
        for term in terms {
            expected += term;
            size += term.abs();
        }
        // In another order, large terms may overflow.
        size.is_nan() || size > 1e300 || (sum - expected).abs() <= 1e-9 * size
    }

    fn random(seed: u64, count: usize) -> Vec<Self> {
        let pairs = (0..).flat_map(|block| {
            let [a, b, c, d] = philox(seed, block).map(u64::from);
            [a | b << 32, c | d << 32]
        });
        pairs.map(|word| (word >> 11) as Self / 2_f64.powi(53)).take(count).collect()
    }

    fn normal<P: Place>(
        place: &P,
        dim: IxDyn,
        seed: u64,
    ) -> Result<GpuArray<Self, IxDyn, P::Kind>, ArrayError> {
        GpuArray::random_normal(place, dim, &mut Rng::new(seed))
    }
}

/// Philox4x32-10, stream 0.
fn philox(seed: u64, block: u64) -> [u32; 4] {
    let halves = |wide: u64| (wide as u32, (wide >> 32) as u32);
    let ((mut k0, mut k1), (c0, c1)) = (halves(seed), halves(block));
    let mut counter = [c0, c1, 0, 0];
    for _ in 0..10 {
        let (low0, high0) = halves(u64::from(counter[0]) * 0xD251_1F53);
        let (low1, high1) = halves(u64::from(counter[2]) * 0xCD9E_8D57);
        counter = [high1 ^ counter[1] ^ k0, low1, high0 ^ counter[3] ^ k1, low0];
        (k0, k1) = (k0.wrapping_add(0x9E37_79B9), k1.wrapping_add(0xBB67_AE85));
    }
    counter
}

/// Calculates element by element, with repeated elements. The shapes fit.
pub(super) fn calculated<T: Value>(
    operation: Arithmetic,
    left: &ArrayD<T>,
    right: &ArrayD<T>,
) -> Result<ArrayD<T>, String> {
    let shape = super::views::joint(left.shape(), right.shape());
    let (Some(left), Some(right)) = (left.broadcast(shape.clone()), right.broadcast(shape)) else {
        return Err("the twin cannot repeat these elements".into());
    };
    Ok(Zip::from(&left).and(&right).map_collect(|left, right| T::calculate(operation, *left, *right)))
}

//! Numbers of 16 bits with a fraction, alone and in pairs.
//!
//! A sum, product, quotient or root of two of them that is rounded to 32 bits and then to 16 is the nearest one: 24 bits are at least
//! twice as many as theirs and two more. A product with a sum is rounded to an odd number of 64 bits first.

use crate::number::eight::Eight;
use crate::number::{Alu, alu};
use crate::syntax::Type;
use ::half::{bf16, f16};

/// What both kinds can do.
pub(crate) trait Half: Copy {
    /// The only NaN that operations give.
    const CANONICAL_NAN: Self;
    const LEAST_NORMAL: f32;
    fn from_single(value: f32) -> Self;
    fn from_double(value: f64) -> Self;
    fn single(self) -> f32;
    fn raw(self) -> u16;
    fn of_raw(bits: u16) -> Self;
}

macro_rules! halves {
    ($($half:ty),*) => {$(
        impl Half for $half {
            const CANONICAL_NAN: Self = Self::from_bits(0x7fff);
            const LEAST_NORMAL: f32 = Self::MIN_POSITIVE.to_f32_const();
            fn from_single(value: f32) -> Self {
                if value.is_nan() { Self::CANONICAL_NAN } else { Self::from_f32(value) }
            }
            fn from_double(value: f64) -> Self {
                Self::from_single(odd_single(value))
            }
            fn single(self) -> f32 {
                self.to_f32()
            }
            fn raw(self) -> u16 {
                self.to_bits()
            }
            fn of_raw(bits: u16) -> Self {
                Self::from_bits(bits)
            }
        }
    )*};
}
halves!(f16, bf16);

fn fused<H: Half>(a: H, b: H, c: H) -> H {
    let product = f64::from(a.single()) * f64::from(b.single());
    H::from_double(odd_sum(product, f64::from(c.single())))
}

/// A sum whose last bit is set if it is not exact, so that rounding it again is as good as rounding once.
fn odd_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let of_b = sum - a;
    let error = (a - (sum - of_b)) + (b - of_b);
    if error == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        sum
    } else if error > 0.0 {
        sum.next_up()
    } else {
        sum.next_down()
    }
}

/// A number of 32 bits whose last bit is set if it is not exact, so that rounding it again is as good as rounding once.
fn odd_single(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) == value || near.to_bits() & 1 == 1 || !near.is_finite() {
        near
    } else if f64::from(near) < value {
        near.next_up()
    } else {
        near.next_down()
    }
}

pub(crate) fn least<H: Half>(a: H, b: H) -> H {
    let (left, right) = (a.single(), b.single());
    match (left.is_nan(), right.is_nan()) {
        (true, true) => H::CANONICAL_NAN,
        (true, false) => b,
        (false, true) => a,
        _ if left == right => H::of_raw(a.raw() | b.raw()),
        _ => {
            if left < right {
                a
            } else {
                b
            }
        }
    }
}

pub(crate) fn greatest<H: Half>(a: H, b: H) -> H {
    let (left, right) = (a.single(), b.single());
    match (left.is_nan(), right.is_nan()) {
        (true, true) => H::CANONICAL_NAN,
        (true, false) => b,
        (false, true) => a,
        _ if left == right => H::of_raw(a.raw() & b.raw()),
        _ => {
            if left > right {
                a
            } else {
                b
            }
        }
    }
}

/// Zero with the sign, for a number below the normal ones.
fn flushed<H: Half>(a: H) -> H {
    if a.single().abs() < H::LEAST_NORMAL { H::of_raw(a.raw() & 0x8000) } else { a }
}

/// Between 0 and 1; 0 for NaN.
fn saturated<H: Half>(a: H) -> H {
    H::from_single(if a.single() > 0.0 { a.single().min(1.0) } else { 0.0 })
}

/// The largest number in place of infinity.
fn finite<H: Half>(a: H) -> H {
    if a.single().is_infinite() { H::of_raw(a.raw() - 1) } else { a }
}

fn positive<H: Half>(a: H) -> H {
    H::of_raw(a.raw() & 0x7fff)
}

/// A positive number with the product of the signs of two others. NaN stays as it is.
fn signed<H: Half>(value: H, a: H, b: H) -> H {
    if value.single().is_nan() {
        H::CANONICAL_NAN
    } else {
        H::of_raw(value.raw() | (a.raw() ^ b.raw()) & 0x8000)
    }
}

/// A pair of halves as two numbers of 8 bits.
pub(crate) fn narrowed(pair: u32, to: Eight) -> u16 {
    let half = |shift: u32| f16::from_bits((pair >> shift) as u16).single();
    to.nearest_pair(half(16), half(0))
}

/// The number, or the hardware's NaN.
fn numeric<H: Half>(a: H) -> H {
    if a.single().is_nan() { H::CANONICAL_NAN } else { a }
}

fn with_nan<H: Half>(a: H, b: H, f: fn(H, H) -> H) -> H {
    if a.single().is_nan() || b.single().is_nan() { H::CANONICAL_NAN } else { f(a, b) }
}

fn pair_1<H: Half>(a: u32, f: impl Fn(H) -> H) -> u32 {
    let at = |shift: u32| u32::from(f(H::of_raw((a >> shift) as u16)).raw());
    at(0) | at(16) << 16
}

fn pair_2<H: Half>(a: u32, b: u32, f: impl Fn(H, H) -> H) -> u32 {
    let at = |shift: u32| u32::from(f(H::of_raw((a >> shift) as u16), H::of_raw((b >> shift) as u16)).raw());
    at(0) | at(16) << 16
}

fn pair_3<H: Half>(a: u32, b: u32, c: u32, f: impl Fn(H, H, H) -> H) -> u32 {
    let part = |value: u32, shift: u32| H::of_raw((value >> shift) as u16);
    let at = |shift: u32| u32::from(f(part(a, shift), part(b, shift), part(c, shift)).raw());
    at(0) | at(16) << 16
}

/// An operation by its name, such as `add`, `fma`, `max.nan`, `tanh.approx`. The names of what follows another one begin with a dot.
pub(crate) fn choose(name: &str, of: Type) -> Option<Alu> {
    macro_rules! both {
        ($half:ty, |$a:ident| $f:expr) => {
            match of {
                Type::F16 | Type::Bf16 => alu!(|$a: $half| $f),
                _ => alu!(|a: u32| pair_1(a, |$a: $half| $f)),
            }
        };
        ($half:ty, |$a:ident, $b:ident| $f:expr) => {
            match of {
                Type::F16 | Type::Bf16 => alu!(|$a: $half, $b: $half| $f),
                _ => alu!(|a: u32, b: u32| pair_2(a, b, |$a: $half, $b: $half| $f)),
            }
        };
        ($half:ty, |$a:ident, $b:ident, $c:ident| $f:expr) => {
            match of {
                Type::F16 | Type::Bf16 => alu!(|$a: $half, $b: $half, $c: $half| $f),
                _ => alu!(|a: u32, b: u32, c: u32| pair_3(a, b, c, |$a: $half, $b: $half, $c: $half| $f)),
            }
        };
    }
    macro_rules! of_half {
        ($half:ty) => {
            match name {
                "add" => both!($half, |a, b| <$half>::from_single(a.single() + b.single())),
                "sub" => both!($half, |a, b| <$half>::from_single(a.single() - b.single())),
                "mul" => both!($half, |a, b| <$half>::from_single(a.single() * b.single())),
                "fma" => both!($half, |a, b, c| fused(a, b, c)),
                ".relu" => both!($half, |a| with_nan(a, <$half>::of_raw(0), greatest)),
                ".ftz" => both!($half, |a| flushed(a)),
                ".sat" => both!($half, |a| saturated(a)),
                ".satfinite" => both!($half, |a| finite(a)),
                "min" => both!($half, |a, b| least(a, b)),
                "max" => both!($half, |a, b| greatest(a, b)),
                "min.nan" => both!($half, |a, b| with_nan(a, b, least)),
                "max.nan" => both!($half, |a, b| with_nan(a, b, greatest)),
                "min.xorsign" => both!($half, |a, b| signed(least(positive(a), positive(b)), a, b)),
                "max.xorsign" => both!($half, |a, b| signed(greatest(positive(a), positive(b)), a, b)),
                "min.nan.xorsign" => {
                    both!($half, |a, b| signed(with_nan(positive(a), positive(b), least), a, b))
                }
                "max.nan.xorsign" => {
                    both!($half, |a, b| signed(with_nan(positive(a), positive(b), greatest), a, b))
                }
                "neg" => both!($half, |a| numeric(<$half>::of_raw(a.raw() ^ 0x8000))),
                "abs" => both!($half, |a| numeric(<$half>::of_raw(a.raw() & 0x7fff))),
                "ex2.approx" => both!($half, |a| <$half>::from_double(f64::from(a.single()).exp2())),
                "tanh.approx" => both!($half, |a| <$half>::from_double(f64::from(a.single()).tanh())),
                _ => return None,
            }
        };
    }
    Some(match of {
        Type::F16 | Type::F16x2 => of_half!(f16),
        Type::Bf16 | Type::Bf16x2 => of_half!(bf16),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustc_apfloat::ieee;
    use rustc_apfloat::{Float, Round};

    /// Against numbers of any size, over pseudo-random bits of both kinds.
    #[test]
    fn a_fused_product_is_rounded_once() {
        let mut state = 1_u64;
        let mut bits = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as u16
        };
        for _ in 0..200_000 {
            let [a, b, c] = [bits(), bits(), bits()];
            let exact = ieee::Half::from_bits(a.into())
                .mul_add_r(
                    ieee::Half::from_bits(b.into()),
                    ieee::Half::from_bits(c.into()),
                    Round::NearestTiesToEven,
                )
                .value;
            let found = fused(f16::from_bits(a), f16::from_bits(b), f16::from_bits(c));
            assert!(
                exact.is_nan() && found.is_nan() || exact.to_bits() as u16 == found.to_bits(),
                "{a:x} {b:x} {c:x}"
            );
            let exact = ieee::BFloat::from_bits(a.into())
                .mul_add_r(
                    ieee::BFloat::from_bits(b.into()),
                    ieee::BFloat::from_bits(c.into()),
                    Round::NearestTiesToEven,
                )
                .value;
            let found = fused(bf16::from_bits(a), bf16::from_bits(b), bf16::from_bits(c));
            assert!(
                exact.is_nan() && found.is_nan() || exact.to_bits() as u16 == found.to_bits(),
                "{a:x} {b:x} {c:x}"
            );
        }
    }
}

//! Integers: wrapping, as PTX defines them. A division by zero gives what the hardware gives: quotient and remainder have all bits set.

use crate::number::float::flushed;
use crate::number::{Alu, alu};
use crate::syntax::Type;

/// An integer operation by its name, such as `add`, `mul.hi`, `mul.wide`, `mad.lo`, `add.sat`, and the type.
pub(crate) fn choose(name: &str, of: Type) -> Option<Alu> {
    macro_rules! of_integers {
        ($($pattern:pat => $value:ty, $wide:ty;)*) => {
            match of {
                $($pattern => integer!($value, $wide),)*
                _ => return None,
            }
        };
    }
    macro_rules! integer {
        ($value:ty, $wide:ty) => {
            match name {
                "add" => alu!(|a: $value, b: $value| a.wrapping_add(b)),
                "sub" => alu!(|a: $value, b: $value| a.wrapping_sub(b)),
                "mul.lo" => alu!(|a: $value, b: $value| a.wrapping_mul(b)),
                "mul.hi" => {
                    alu!(|a: $value, b: $value| ((a as $wide * b as $wide) >> <$value>::BITS) as $value)
                }
                "mad.lo" => alu!(|a: $value, b: $value, c: $value| a.wrapping_mul(b).wrapping_add(c)),
                "mad.hi" => alu!(|a: $value, b: $value, c: $value| {
                    (((a as $wide * b as $wide) >> <$value>::BITS) as $value).wrapping_add(c)
                }),
                "div" => alu!(|a: $value, b: $value| if b == 0 { !0 } else { a.wrapping_div(b) }),
                "rem" => alu!(|a: $value, b: $value| if b == 0 { !0 } else { a.wrapping_rem(b) }),
                "min" => alu!(|a: $value, b: $value| a.min(b)),
                "max" => alu!(|a: $value, b: $value| a.max(b)),
                "sad" => alu!(|a: $value, b: $value, c: $value| c.wrapping_add(a.abs_diff(b) as $value)),
                "add.sat" => alu!(|a: $value, b: $value| a.saturating_add(b)),
                "sub.sat" => alu!(|a: $value, b: $value| a.saturating_sub(b)),
                "mad.hi.sat" => alu!(|a: $value, b: $value, c: $value| {
                    (((a as $wide * b as $wide) >> <$value>::BITS) as $value).saturating_add(c)
                }),
                "add.carry" => alu!(|a: $value, b: $value| a.unsigned().checked_add(b.unsigned()).is_none()),
                // As on a GPU, the carry of a difference is that of the sum with the complement: set if nothing was borrowed.
                "sub.carry" => alu!(|a: $value, b: $value| a.unsigned() >= b.unsigned()),
                "addc" => alu!(|a: $value, b: $value, c: bool| a.wrapping_add(b).wrapping_add(c as $value)),
                "addc.carry" => alu!(|a: $value, b: $value, c: bool| {
                    let (sum, first) = a.unsigned().overflowing_add(b.unsigned());
                    first | sum.overflowing_add(u8::from(c).into()).1
                }),
                "subc" => alu!(|a: $value, b: $value, c: bool| a.wrapping_sub(b).wrapping_sub(!c as $value)),
                "subc.carry" => alu!(|a: $value, b: $value, c: bool| {
                    let (difference, first) = a.unsigned().overflowing_sub(b.unsigned());
                    !(first | difference.overflowing_sub(u8::from(!c).into()).1)
                }),
                "shr" => alu!(|a: $value, by: u32| {
                    if by < <$value>::BITS { a >> by } else { (a >> (<$value>::BITS - 1)) >> 1 }
                }),
                _ => return signed_or_bits(name, of),
            }
        };
    }
    if of == Type::Pred {
        return choose_predicate(name);
    }
    Some(of_integers! {
        Type::U16 | Type::B16 => u16, u32;
        Type::S16 => i16, i32;
        Type::U32 | Type::B32 => u32, u64;
        Type::S32 => i32, i64;
        Type::U64 | Type::B64 => u64, u128;
        Type::S64 => i64, i128;
    })
}

/// Gives the bits of a signed number as an unsigned one.
trait Unsigned {
    type Bits;
    fn unsigned(self) -> Self::Bits;
}

macro_rules! unsigned {
    ($($of:ty: $bits:ty),*) => {$(
        impl Unsigned for $of {
            type Bits = $bits;
            fn unsigned(self) -> $bits {
                self as $bits
            }
        }
    )*};
}
unsigned!(u16: u16, i16: u16, u32: u32, i32: u32, u64: u64, i64: u64);

fn signed_or_bits(name: &str, of: Type) -> Option<Alu> {
    Some(match (name, of) {
        ("neg", Type::S16) => alu!(|a: i16| a.wrapping_neg()),
        ("neg", Type::S32) => alu!(|a: i32| a.wrapping_neg()),
        ("neg", Type::S64) => alu!(|a: i64| a.wrapping_neg()),
        ("abs", Type::S16) => alu!(|a: i16| a.wrapping_abs()),
        ("abs", Type::S32) => alu!(|a: i32| a.wrapping_abs()),
        ("abs", Type::S64) => alu!(|a: i64| a.wrapping_abs()),
        ("min.relu", Type::S32) => alu!(|a: i32, b: i32| a.min(b).max(0)),
        ("max.relu", Type::S32) => alu!(|a: i32, b: i32| a.max(b).max(0)),
        ("mul.wide", Type::U16) => alu!(|a: u16, b: u16| u32::from(a) * u32::from(b)),
        ("mul.wide", Type::S16) => alu!(|a: i16, b: i16| i32::from(a) * i32::from(b)),
        ("mul.wide", Type::U32) => alu!(|a: u32, b: u32| u64::from(a) * u64::from(b)),
        ("mul.wide", Type::S32) => alu!(|a: i32, b: i32| i64::from(a) * i64::from(b)),
        ("mad.wide", Type::U16) => {
            alu!(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c))
        }
        ("mad.wide", Type::S16) => {
            alu!(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c))
        }
        ("mad.wide", Type::U32) => {
            alu!(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c))
        }
        ("mad.wide", Type::S32) => {
            alu!(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c))
        }
        ("mul24.lo", Type::U32) => alu!(|a: u32, b: u32| (low_24(a) * low_24(b)) as u32),
        ("mul24.lo", Type::S32) => alu!(|a: u32, b: u32| (signed_24(a) * signed_24(b)) as i32),
        ("mul24.hi", Type::U32) => alu!(|a: u32, b: u32| ((low_24(a) * low_24(b)) >> 16) as u32),
        ("mul24.hi", Type::S32) => alu!(|a: u32, b: u32| ((signed_24(a) * signed_24(b)) >> 16) as i32),
        ("mad24.lo", Type::U32) => {
            alu!(|a: u32, b: u32, c: u32| ((low_24(a) * low_24(b)) as u32).wrapping_add(c))
        }
        ("mad24.lo", Type::S32) => {
            alu!(|a: u32, b: u32, c: i32| ((signed_24(a) * signed_24(b)) as i32).wrapping_add(c))
        }
        ("mad24.hi", Type::U32) => {
            alu!(|a: u32, b: u32, c: u32| (((low_24(a) * low_24(b)) >> 16) as u32).wrapping_add(c))
        }
        ("mad24.hi", Type::S32) => {
            alu!(|a: u32, b: u32, c: i32| (((signed_24(a) * signed_24(b)) >> 16) as i32).wrapping_add(c))
        }
        ("mad24.hi.sat", Type::S32) => {
            alu!(|a: u32, b: u32, c: i32| (((signed_24(a) * signed_24(b)) >> 16) as i32).saturating_add(c))
        }
        ("popc", Type::B32) => alu!(|a: u32| a.count_ones()),
        ("popc", Type::B64) => alu!(|a: u64| a.count_ones()),
        ("clz", Type::B32) => alu!(|a: u32| a.leading_zeros()),
        ("clz", Type::B64) => alu!(|a: u64| a.leading_zeros()),
        ("brev", Type::B32) => alu!(|a: u32| a.reverse_bits()),
        ("brev", Type::B64) => alu!(|a: u64| a.reverse_bits()),
        ("bfind", Type::U32) => alu!(|a: u32| highest(u64::from(a))),
        ("bfind", Type::U64) => alu!(|a: u64| highest(a)),
        ("bfind", Type::S32) => alu!(|a: i32| highest(u64::from((a ^ (a >> 31)) as u32))),
        ("bfind", Type::S64) => alu!(|a: i64| highest((a ^ (a >> 63)) as u64)),
        ("bfind.shiftamt", Type::U32) => alu!(|a: u32| shift_amount(highest(u64::from(a)), 31)),
        ("bfind.shiftamt", Type::U64) => alu!(|a: u64| shift_amount(highest(a), 63)),
        ("bfind.shiftamt", Type::S32) => {
            alu!(|a: i32| shift_amount(highest(u64::from((a ^ (a >> 31)) as u32)), 31))
        }
        ("bfind.shiftamt", Type::S64) => alu!(|a: i64| shift_amount(highest((a ^ (a >> 63)) as u64), 63)),
        _ => return bits(name, of),
    })
}

fn low_24(value: u32) -> u64 {
    u64::from(value & 0xff_ffff)
}

fn signed_24(value: u32) -> i64 {
    i64::from((value << 8) as i32 >> 8)
}

/// The place of the highest set bit; all bits set if there is none.
fn highest(value: u64) -> u32 {
    value.checked_ilog2().unwrap_or(u32::MAX)
}

fn shift_amount(highest: u32, top: u32) -> u32 {
    if highest == u32::MAX { highest } else { top - highest }
}

/// Operations on bits, which the sign does not matter for.
fn bits(name: &str, of: Type) -> Option<Alu> {
    macro_rules! logic {
        ($value:ty) => {
            match name {
                "and" => alu!(|a: $value, b: $value| a & b),
                "or" => alu!(|a: $value, b: $value| a | b),
                "xor" => alu!(|a: $value, b: $value| a ^ b),
                "not" => alu!(|a: $value| !a),
                "cnot" => alu!(|a: $value| if a == 0 { 1 as $value } else { 0 }),
                "shl" => alu!(|a: $value, by: u32| a.checked_shl(by).unwrap_or(0)),
                "selp" => alu!(|a: $value, b: $value, which: bool| if which { a } else { b }),
                "slct" => alu!(|a: $value, b: $value, which: i32| if which >= 0 { a } else { b }),
                "slct.ftz" => {
                    alu!(|a: $value, b: $value, which: f32| if flushed(which) >= 0.0 { a } else { b })
                }
                "slct.f32" => alu!(|a: $value, b: $value, which: f32| if which >= 0.0 { a } else { b }),
                _ => return permute(name, of),
            }
        };
    }
    Some(match of.bytes() {
        2 => logic!(u16),
        4 => logic!(u32),
        8 => logic!(u64),
        _ => return None,
    })
}

/// An operation on predicates.
pub(crate) fn choose_predicate(name: &str) -> Option<Alu> {
    Some(match name {
        "and" => alu!(|a: bool, b: bool| a & b),
        "or" => alu!(|a: bool, b: bool| a | b),
        "xor" => alu!(|a: bool, b: bool| a ^ b),
        "not" => alu!(|a: bool| !a),
        _ => return None,
    })
}

fn permute(name: &str, of: Type) -> Option<Alu> {
    Some(match (name, of) {
        ("prmt", Type::B32) => alu!(|a: u32, b: u32, selector: u32| picked(a, b, selector)),
        ("prmt.f4e", Type::B32) => alu!(|a: u32, b: u32, n: u32| picked(a, b, 0x3210 + 0x1111 * (n & 3))),
        ("prmt.b4e", Type::B32) => {
            alu!(|a: u32, b: u32, n: u32| picked(a, b, [0x5670, 0x6701, 0x7012, 0x0123][(n & 3) as usize]))
        }
        ("prmt.rc8", Type::B32) => alu!(|a: u32, b: u32, n: u32| picked(a, b, 0x1111 * (n & 3))),
        ("prmt.ecl", Type::B32) => {
            alu!(|a: u32, b: u32, n: u32| picked(a, b, [0x3210, 0x3211, 0x3222, 0x3333][(n & 3) as usize]))
        }
        ("prmt.ecr", Type::B32) => {
            alu!(|a: u32, b: u32, n: u32| picked(a, b, [0x0000, 0x1110, 0x2210, 0x3210][(n & 3) as usize]))
        }
        ("prmt.rc16", Type::B32) => {
            alu!(|a: u32, b: u32, n: u32| picked(a, b, if n & 1 == 0 { 0x1010 } else { 0x3232 }))
        }
        ("shf.l.wrap", Type::B32) => alu!(|low: u32, high: u32, by: u32| funnel_left(low, high, by & 31)),
        ("shf.l.clamp", Type::B32) => alu!(|low: u32, high: u32, by: u32| funnel_left(low, high, by.min(32))),
        ("shf.r.wrap", Type::B32) => alu!(|low: u32, high: u32, by: u32| funnel_right(low, high, by & 31)),
        ("shf.r.clamp", Type::B32) => {
            alu!(|low: u32, high: u32, by: u32| funnel_right(low, high, by.min(32)))
        }
        ("bfe", Type::U32) => {
            alu!(|a: u32, at: u32, len: u32| extract(u64::from(a), at & 255, len & 255, 32, false) as u32)
        }
        ("bfe", Type::S32) => {
            alu!(|a: i32, at: u32, len: u32| extract(a as i64 as u64, at & 255, len & 255, 32, true) as u32)
        }
        ("bfe", Type::U64) => alu!(|a: u64, at: u32, len: u32| extract(a, at & 255, len & 255, 64, false)),
        ("bfe", Type::S64) => alu!(|a: u64, at: u32, len: u32| extract(a, at & 255, len & 255, 64, true)),
        ("bmsk.clamp", Type::B32) => alu!(|at: u32, len: u32| mask(at, len)),
        ("bmsk.wrap", Type::B32) => alu!(|at: u32, len: u32| mask(at & 31, len & 31)),
        ("szext.clamp", Type::U32) => alu!(|a: u32, len: u32| zero_extended(a, len)),
        ("szext.wrap", Type::U32) => alu!(|a: u32, len: u32| zero_extended(a, len & 31)),
        ("szext.clamp", Type::S32) => alu!(|a: u32, len: u32| sign_extended(a, len)),
        ("szext.wrap", Type::S32) => alu!(|a: u32, len: u32| sign_extended(a, len & 31)),
        _ => return None,
    })
}

/// Four bytes of eight, by the nibbles of `selector`; a nibble's top bit asks for copies of the byte's sign.
fn picked(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    u32::from_le_bytes(core::array::from_fn(|at| {
        let nibble = selector >> (4 * at);
        let byte = bytes[(nibble & 7) as usize];
        if nibble & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    }))
}

fn funnel_left(low: u32, high: u32, by: u32) -> u32 {
    (((u64::from(high) << 32 | u64::from(low)) << by) >> 32) as u32
}

fn funnel_right(low: u32, high: u32, by: u32) -> u32 {
    ((u64::from(high) << 32 | u64::from(low)) >> by) as u32
}

/// A field of bits. The bits above it are zeros, or copies of its highest bit; a field that passes the end has the number's highest.
fn extract(value: u64, at: u32, len: u32, width: u32, is_signed: bool) -> u64 {
    if len == 0 {
        return 0;
    }
    let last = (at + len - 1).min(width - 1);
    let sign = is_signed && value >> last & 1 == 1;
    let low = if at < width { value >> at } else { 0 };
    let count = if at < width { (last - at + 1).min(64) } else { 0 };
    let field = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    let above = if sign { !field } else { 0 };
    (low & field) | above
}

/// `len` bits of `a` put into `b` from bit `at` on.
pub(crate) fn inserted(a: u64, b: u64, at: u32, len: u32, width: u32) -> u64 {
    let (at, len) = (at & 255, len & 255);
    if at >= width || len == 0 {
        return b;
    }
    let len = len.min(width - at);
    let field = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    (b & !(field << at)) | (a & field) << at
}

fn mask(at: u32, len: u32) -> u32 {
    let ones = if len >= 32 { u32::MAX } else { (1 << len) - 1 };
    ones.checked_shl(at).unwrap_or(0)
}

fn zero_extended(value: u32, len: u32) -> u32 {
    if len >= 32 { value } else { value & ((1 << len) - 1) }
}

fn sign_extended(value: u32, len: u32) -> u32 {
    match len {
        0 => 0,
        1..32 => ((value << (32 - len)) as i32 >> (32 - len)) as u32,
        _ => value,
    }
}

/// Any function of three bits, by its table.
pub(crate) fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..8).filter(|row| table >> row & 1 == 1).fold(0, |found, row| {
        let side = |value: u32, bit: u32| if row >> bit & 1 == 1 { value } else { !value };
        found | side(a, 2) & side(b, 1) & side(c, 0)
    })
}

/// The position of the `n`th set bit from `base` on, as `fns` gives it.
pub(crate) fn nth_set(mask: u32, base: u32, n: i32) -> u32 {
    let base = base & 31;
    let is_set = |bit: &u32| mask >> bit & 1 == 1;
    let found = match n {
        0 => Some(base).filter(is_set),
        1.. => (base..32).filter(is_set).nth(n as usize - 1),
        _ => (0..=base).rev().filter(is_set).nth(n.unsigned_abs() as usize - 1),
    };
    found.unwrap_or(u32::MAX)
}

/// A sum of products of the bytes of two numbers, or of two bytes and two halves.
pub(crate) fn dot(a: [i64; 4], b: [i64; 4], c: i64) -> u32 {
    (c + a.iter().zip(b).map(|(a, b)| a * b).sum::<i64>()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::LANES;

    fn run(name: &str, of: Type, values: &[u64]) -> u64 {
        let lanes = |index: usize| [values[index]; LANES];
        match choose(name, of).unwrap_or_else(|| panic!("{name}")) {
            Alu::One(f) => f(&lanes(0))[7],
            Alu::Two(f) => f(&lanes(0), &lanes(1))[7],
            Alu::Three(f) => f(&lanes(0), &lanes(1), &lanes(2))[7],
        }
    }

    #[test]
    fn results_of_the_manual() {
        let minus = |value: i64| value as u64 & 0xffff_ffff;
        assert_eq!(run("add", Type::U32, &[0xffff_ffff, 2]), 1);
        assert_eq!(run("add.sat", Type::S32, &[0x7fff_ffff, 2]), 0x7fff_ffff);
        assert_eq!(run("mul.hi", Type::S32, &[minus(-1), 5]), minus(-1));
        assert_eq!(run("mul.wide", Type::S32, &[minus(-3), 5]), -15_i64 as u64);
        assert_eq!(run("div", Type::S32, &[1 << 31, minus(-1)]), 1 << 31);
        assert_eq!(run("shl", Type::B32, &[1, 32]), 0);
        assert_eq!(run("shr", Type::S32, &[1 << 31, 99]), minus(-1));
        assert_eq!(run("shr", Type::U16, &[0x8000, 16]), 0);
        assert_eq!(run("bfind", Type::U32, &[0]), 0xffff_ffff);
        assert_eq!(run("bfind.shiftamt", Type::U32, &[0x10]), 27);
        assert_eq!(run("prmt", Type::B32, &[0x4433_2211, 0x8877_6655, 0x0f54]), 0x11ff_6655);
        assert_eq!(run("bfe", Type::S32, &[0x00f0, 4, 4]), minus(-1));
        assert_eq!(run("bfe", Type::U32, &[0xff00_0000, 28, 16]), 0xf);
        assert_eq!(run("shf.l.wrap", Type::B32, &[0x8000_0000, 1, 1]), 3);
        assert_eq!(run("addc.carry", Type::U32, &[0xffff_ffff, 0, 1]), 1);
        assert_eq!(inserted(0xff, 0, 28, 8, 32), 0xf000_0000);
        assert_eq!(lop3(0xf0, 0xcc, 0xaa, 0x80) & 0xff, 0x80);
        assert_eq!(nth_set(0b1010, 0, 2), 3);
    }
}

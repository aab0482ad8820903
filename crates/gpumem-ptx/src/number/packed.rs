//! Integers in one register of 32 bits: two of 16 bits, or four of 8.

use crate::number::{Alu, alu};
use crate::syntax::Type;

/// A register as numbers.
trait Packed: Copy {
    fn map_2(a: u32, b: u32, f: impl Fn(i32, i32) -> i32) -> u32;
    fn sum(a: u32) -> u32;
    fn clamped(value: i32) -> i32;
}

macro_rules! packed {
    ($($of:ty),*) => {$(
        impl Packed for $of {
            fn map_2(a: u32, b: u32, f: impl Fn(i32, i32) -> i32) -> u32 {
                (0..32).step_by(Self::BITS as usize).fold(0, |all, shift| {
                    let part = f((a >> shift) as Self as i32, (b >> shift) as Self as i32);
                    all | (part as u32 & (u32::MAX >> (32 - Self::BITS))) << shift
                })
            }
            fn sum(a: u32) -> u32 {
                (0..32).step_by(Self::BITS as usize).map(|shift| (a >> shift) as Self as i32).sum::<i32>() as u32
            }
            fn clamped(value: i32) -> i32 {
                value.clamp(Self::MIN as i32, Self::MAX as i32)
            }
        }
    )*};
}
packed!(i8, u8, i16, u16);

/// An operation on two numbers of 16 bits by its name, such as `add` or `min.relu`.
pub(crate) fn choose(name: &str, of: Type) -> Option<Alu> {
    macro_rules! pairs {
        ($value:ty) => {
            match name {
                "add" => alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| a + b)),
                "min" => alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| a.min(b))),
                "max" => alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| a.max(b))),
                "min.relu" => alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| a.min(b).max(0))),
                "max.relu" => alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| a.max(b).max(0))),
                _ => return None,
            }
        };
    }
    match of {
        Type::U16x2 if !name.ends_with(".relu") => Some(pairs!(u16)),
        Type::S16x2 => Some(pairs!(i16)),
        _ => None,
    }
}

/// A video instruction such as `vadd4`, on numbers with a sign or without.
pub(crate) fn video(name: &str, is_signed: bool, is_clamped: bool) -> Option<Alu> {
    let (name, is_four) = match name.strip_suffix('4') {
        Some(name) => (name, true),
        None => (name.strip_suffix('2')?, false),
    };
    macro_rules! of {
        ($value:ty) => {
            match (name, is_clamped) {
                ("vadd", false) => alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| a + b)),
                ("vadd", true) => {
                    alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| <$value>::clamped(a + b)))
                }
                ("vsub", false) => alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| a - b)),
                ("vsub", true) => {
                    alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| <$value>::clamped(a - b)))
                }
                ("vabsdiff", false) => {
                    alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| (a - b).abs()))
                }
                ("vabsdiff", true) => {
                    alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| <$value>::clamped((a - b).abs())))
                }
                // Half a number is rounded up.
                ("vavrg", false) => {
                    alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| (a + b + i32::from(a + b >= 0)) >> 1))
                }
                ("vmin", _) => alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| a.min(b))),
                ("vmax", _) => alu!(|a: u32, b: u32| <$value>::map_2(a, b, |a, b| a.max(b))),
                _ => return None,
            }
        };
    }
    Some(match (is_four, is_signed) {
        (true, true) => of!(i8),
        (true, false) => of!(u8),
        (false, true) => of!(i16),
        (false, false) => of!(u16),
    })
}

/// The sum of the numbers in a register, plus another one.
pub(crate) fn sum(is_four: bool, is_signed: bool) -> Alu {
    match (is_four, is_signed) {
        (true, true) => alu!(|a: u32, c: u32| i8::sum(a).wrapping_add(c)),
        (true, false) => alu!(|a: u32, c: u32| u8::sum(a).wrapping_add(c)),
        (false, true) => alu!(|a: u32, c: u32| i16::sum(a).wrapping_add(c)),
        (false, false) => alu!(|a: u32, c: u32| u16::sum(a).wrapping_add(c)),
    }
}

/// Two numbers of 32 bits clamped to 16 bits, or to 8 with the lower half of a third register above them.
pub(crate) fn clamped(to: Type) -> Option<Alu> {
    Some(match to {
        Type::U16 => alu!(|a: i32, b: i32| joined(u16::clamped(a), u16::clamped(b), 16)),
        Type::S16 => alu!(|a: i32, b: i32| joined(i16::clamped(a), i16::clamped(b), 16)),
        Type::U8 => alu!(|a: i32, b: i32, c: u32| c << 16 | joined(u8::clamped(a), u8::clamped(b), 8)),
        Type::S8 => alu!(|a: i32, b: i32, c: u32| c << 16 | joined(i8::clamped(a), i8::clamped(b), 8)),
        _ => return None,
    })
}

fn joined(high: i32, low: i32, bits: u32) -> u32 {
    let field = (1 << bits) - 1;
    (high as u32 & field) << bits | low as u32 & field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::LANES;

    fn run(function: Alu, values: [u32; 3]) -> u32 {
        let [a, b, c] = values.map(|value| [u64::from(value); LANES]);
        let lanes = match function {
            Alu::One(f) => f(&a),
            Alu::Two(f) => f(&a, &b),
            Alu::Three(f) => f(&a, &b, &c),
        };
        lanes[3] as u32
    }

    #[test]
    fn results_of_the_manual() {
        let video = |name, is_signed, is_clamped, a, b| {
            run(video(name, is_signed, is_clamped).unwrap_or_else(|| panic!("{name}")), [a, b, 0])
        };
        assert_eq!(video("vabsdiff4", false, false, 0x00ff_1020, 0xff00_2010), 0xffff_1010);
        assert_eq!(video("vadd4", false, false, 0xff01_0203, 0x0101_0101), 0x0002_0304);
        assert_eq!(video("vadd2", true, true, 0x7fff_8000, 0x0001_ffff), 0x7fff_8000);
        assert_eq!(video("vavrg4", false, false, 0xff01_0300, 0xff02_0401), 0xff02_0401);
        assert_eq!(run(sum(true, false), [0xff01_0203, 7, 0]), 0xff + 6 + 7);
        let relu = choose("max.relu", Type::S16x2);
        assert_eq!(relu.map(|relu| run(relu, [0xffff_0003, 0xfffe_ffff, 0])), Some(3));
        let pack = clamped(Type::U8);
        assert_eq!(pack.map(|pack| run(pack, [300, -5_i32 as u32, 0xabcd_1234])), Some(0x1234_ff00));
    }
}

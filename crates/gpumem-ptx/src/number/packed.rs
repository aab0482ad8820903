//! Integers in one register of 32 bits: two of 16 bits, or four of 8.

use crate::number::{Alu, alu};
use crate::syntax::Type;

/// A register as numbers.
trait Packed: Copy {
    const WIDTH: u32;
    fn part(a: u32, shift: u32) -> i32;
    fn map_2(a: u32, b: u32, f: impl Fn(i32, i32) -> i32) -> u32;
    fn sum(a: u32) -> u32;
    fn clamped(value: i32) -> i32;
}

macro_rules! packed {
    ($($of:ty),*) => {$(
        impl Packed for $of {
            const WIDTH: u32 = Self::BITS;
            fn part(a: u32, shift: u32) -> i32 {
                (a >> shift) as Self as i32
            }
            fn map_2(a: u32, b: u32, f: impl Fn(i32, i32) -> i32) -> u32 {
                map_2::<Self, Self>(a, b, f)
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

/// An operation on the numbers of two registers, which are as many, and of which the low bits of the results count.
fn map_2<A: Packed, B: Packed>(a: u32, b: u32, f: impl Fn(i32, i32) -> i32) -> u32 {
    (0..32).step_by(A::WIDTH as usize).fold(0, |all, shift| {
        let part = f(A::part(a, shift), B::part(b, shift));
        all | (part as u32 & (u32::MAX >> (32 - A::WIDTH))) << shift
    })
}

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
pub(crate) fn video(name: &str, are_signed: [bool; 3], is_clamped: bool) -> Option<Alu> {
    let (name, is_four) = match name.strip_suffix('4') {
        Some(name) => (name, true),
        None => (name.strip_suffix('2')?, false),
    };
    macro_rules! of {
        ($a:ty, $b:ty, $to:ty) => {
            match (name, is_clamped) {
                ("vadd", false) => alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| a + b)),
                ("vadd", true) => {
                    alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| <$to>::clamped(a + b)))
                }
                ("vsub", false) => alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| a - b)),
                ("vsub", true) => {
                    alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| <$to>::clamped(a - b)))
                }
                ("vabsdiff", false) => {
                    alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| (a - b).abs()))
                }
                ("vabsdiff", true) => {
                    alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| <$to>::clamped((a - b).abs())))
                }
                // Half a number is rounded up.
                ("vavrg", false) => {
                    alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| (a + b + i32::from(a + b >= 0)) >> 1))
                }
                ("vmin", false) => alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| a.min(b))),
                ("vmin", true) => {
                    alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| <$to>::clamped(a.min(b))))
                }
                ("vmax", false) => alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| a.max(b))),
                ("vmax", true) => {
                    alu!(|a: u32, b: u32| map_2::<$a, $b>(a, b, |a, b| <$to>::clamped(a.max(b))))
                }
                _ => return None,
            }
        };
    }
    macro_rules! of_signs {
        ($signed:ty, $unsigned:ty) => {
            match are_signed {
                [true, true, true] => of!($signed, $signed, $signed),
                [false, true, true] => of!($signed, $signed, $unsigned),
                [true, true, false] => of!($signed, $unsigned, $signed),
                [false, true, false] => of!($signed, $unsigned, $unsigned),
                [true, false, true] => of!($unsigned, $signed, $signed),
                [false, false, true] => of!($unsigned, $signed, $unsigned),
                [true, false, false] => of!($unsigned, $unsigned, $signed),
                [false, false, false] => of!($unsigned, $unsigned, $unsigned),
            }
        };
    }
    Some(if is_four { of_signs!(i8, u8) } else { of_signs!(i16, u16) })
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

/// Two numbers of 32 bits clamped to 4 or 2 bits, with the lower part of a third register above them.
pub(crate) fn clamped_few(to: &str) -> Option<Alu> {
    Some(match to {
        "u4" => alu!(|a: i32, b: i32, c: u32| c << 8 | joined(a.clamp(0, 15), b.clamp(0, 15), 4)),
        "s4" => alu!(|a: i32, b: i32, c: u32| c << 8 | joined(a.clamp(-8, 7), b.clamp(-8, 7), 4)),
        "u2" => alu!(|a: i32, b: i32, c: u32| c << 4 | joined(a.clamp(0, 3), b.clamp(0, 3), 2)),
        "s2" => alu!(|a: i32, b: i32, c: u32| c << 4 | joined(a.clamp(-2, 1), b.clamp(-2, 1), 2)),
        _ => return None,
    })
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
        let of_video = |name, is_signed: bool, is_clamped, a, b| {
            run(video(name, [is_signed; 3], is_clamped).unwrap_or_else(|| panic!("{name}")), [a, b, 0])
        };
        assert_eq!(of_video("vabsdiff4", false, false, 0x00ff_1020, 0xff00_2010), 0xffff_1010);
        assert_eq!(of_video("vadd4", false, false, 0xff01_0203, 0x0101_0101), 0x0002_0304);
        assert_eq!(of_video("vadd2", true, true, 0x7fff_8000, 0x0001_ffff), 0x7fff_8000);
        assert_eq!(of_video("vavrg4", false, false, 0xff01_0300, 0xff02_0401), 0xff02_0401);
        // Of different signs: the result's counts where it is clamped.
        let mixed = |name, are_signed, is_clamped, a, b| {
            run(video(name, are_signed, is_clamped).unwrap_or_else(|| panic!("{name}")), [a, b, 0])
        };
        assert_eq!(mixed("vadd4", [false, true, false], true, 0xff7f_80ff, 0x01ff_0502), 0x00ff_0001);
        assert_eq!(mixed("vadd4", [true, true, false], true, 0xff7f_80ff, 0x01ff_0502), 0x007f_8501);
        assert_eq!(mixed("vmax2", [true, true, false], false, 0xffff_0001, 0x0002_8000), 0x0002_8000);
        assert_eq!(mixed("vabsdiff2", [false, true, false], false, 0xffff_0001, 0x0002_8000), 0x0003_7fff);
        assert_eq!(run(sum(true, false), [0xff01_0203, 7, 0]), 0xff + 6 + 7);
        let relu = choose("max.relu", Type::S16x2);
        assert_eq!(relu.map(|relu| run(relu, [0xffff_0003, 0xfffe_ffff, 0])), Some(3));
        let few = |to| clamped_few(to).map(|few| run(few, [9, -5_i32 as u32, 0x12]));
        assert_eq!(["u4", "s4", "u2", "s2"].map(few), [0x1290, 0x127b, 0x12c, 0x126].map(Some));
        let pack = clamped(Type::U8);
        assert_eq!(pack.map(|pack| run(pack, [300, -5_i32 as u32, 0xabcd_1234])), Some(0x1234_ff00));
    }
}

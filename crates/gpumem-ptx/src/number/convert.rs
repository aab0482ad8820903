//! Conversions between the types, as chains of functions of one register.

use crate::number::float::{Rounding, SATURATE_32, SATURATE_64, nan_32, quiet};
use crate::number::half::Half;
use crate::number::{Alu, alu};
use crate::syntax::Type;
use ::half::{bf16, f16};
use rustc_apfloat::ieee::{BFloat, Double, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

/// The functions that convert a number. The result has the width of `to`.
pub(crate) fn chain(
    from: Type,
    to: Type,
    rounding: Option<Rounding>,
    is_saturating: bool,
) -> Option<Vec<Alu>> {
    match (from.is_float(), to.is_float()) {
        (false, false) if rounding.is_some() => None,
        (false, false) => integer_to_integer(from, to, is_saturating),
        (false, true) => {
            let mut chain = vec![widened(from)?, from_integer(from.is_signed(), to, rounding?)?];
            chain.extend(saturated(to, is_saturating)?);
            Some(chain)
        }
        (true, false) => {
            let is_wide = from == Type::F64 || to.bytes() == 8;
            Some(
                [to_double(from)?, integral(rounding?)]
                    .into_iter()
                    .flatten()
                    .chain([to_integer(to, is_wide)?])
                    .collect(),
            )
        }
        (true, true) => {
            let mut chain = float_to_float(from, to, rounding)?;
            chain.extend(saturated(to, is_saturating)?);
            Some(chain)
        }
    }
}

/// A number with the sign of its type in all 64 bits.
pub(crate) fn widened(from: Type) -> Option<Alu> {
    Some(match from {
        Type::U8 | Type::B8 => alu!(|a: u8| a),
        Type::U16 | Type::B16 => alu!(|a: u16| a),
        Type::U32 | Type::B32 => alu!(|a: u32| a),
        Type::U64 | Type::B64 | Type::S64 => alu!(|a: u64| a),
        Type::S8 => alu!(|a: i8| i64::from(a)),
        Type::S16 => alu!(|a: i16| i64::from(a)),
        Type::S32 => alu!(|a: i32| i64::from(a)),
        _ => return None,
    })
}

/// The low bits of a number.
pub(crate) fn narrowed(bytes: u32) -> Alu {
    match bytes {
        1 => alu!(|a: u8| a),
        2 => alu!(|a: u16| a),
        4 => alu!(|a: u32| a),
        _ => alu!(|a: u64| a),
    }
}

fn integer_to_integer(from: Type, to: Type, is_saturating: bool) -> Option<Vec<Alu>> {
    let mut chain = vec![widened(from)?];
    if is_saturating {
        macro_rules! clamped {
            ($($of:pat => $value:ty),*) => {
                match (to, from.is_signed()) {
                    $(
                        ($of, true) => alu!(|a: i64| a.clamp(<$value>::MIN as i64, <$value>::MAX as i64) as $value),
                        ($of, false) => alu!(|a: u64| a.min(<$value>::MAX as u64) as $value),
                    )*
                    (Type::U64, true) => alu!(|a: i64| a.max(0)),
                    (Type::S64, false) => alu!(|a: u64| a.min(i64::MAX as u64)),
                    (Type::U64 | Type::S64, _) => alu!(|a: u64| a),
                    _ => return None,
                }
            };
        }
        chain.push(clamped!(
            Type::U8 => u8, Type::U16 => u16, Type::U32 => u32, Type::S8 => i8, Type::S16 => i16, Type::S32 => i32
        ));
    }
    chain.push(narrowed(to.bytes()));
    Some(chain)
}

fn saturated(to: Type, is_saturating: bool) -> Option<Option<Alu>> {
    Some(match (to, is_saturating) {
        (_, false) => None,
        (Type::F32, true) => Some(SATURATE_32),
        (Type::F64, true) => Some(SATURATE_64),
        (Type::F16, true) => Some(alu!(|a: f16| if a.single() > 0.0 {
            f16::from_single(a.single().min(1.0))
        } else {
            f16::ZERO
        })),
        _ => return None,
    })
}

macro_rules! by_rounding {
    ($rounding:expr, $near:expr, |$mode:ident| $directed:expr) => {
        match $rounding {
            Rounding::Near => $near,
            Rounding::Zero => {
                macro_rules! $mode {
                    () => {
                        Round::TowardZero
                    };
                }
                $directed
            }
            Rounding::Down => {
                macro_rules! $mode {
                    () => {
                        Round::TowardNegative
                    };
                }
                $directed
            }
            Rounding::Up => {
                macro_rules! $mode {
                    () => {
                        Round::TowardPositive
                    };
                }
                $directed
            }
        }
    };
}

fn from_integer(is_signed: bool, to: Type, rounding: Rounding) -> Option<Alu> {
    macro_rules! both_signs {
        ($out:expr, $kind:ty, $near_signed:expr, $near_unsigned:expr) => {
            if is_signed {
                by_rounding!(rounding, $near_signed, |mode| alu!(|a: i64| {
                    $out(<$kind>::from_i128_r(a.into(), mode!()).value.to_bits())
                }))
            } else {
                by_rounding!(rounding, $near_unsigned, |mode| alu!(|a: u64| {
                    $out(<$kind>::from_u128_r(a.into(), mode!()).value.to_bits())
                }))
            }
        };
    }
    Some(match to {
        Type::F32 => both_signs!(
            |bits: u128| f32::from_bits(bits as u32),
            Single,
            alu!(|a: i64| a as f32),
            alu!(|a: u64| a as f32)
        ),
        Type::F64 => both_signs!(
            |bits: u128| f64::from_bits(bits as u64),
            Double,
            alu!(|a: i64| a as f64),
            alu!(|a: u64| a as f64)
        ),
        Type::F16 => both_signs!(
            |bits: u128| f16::from_bits(bits as u16),
            rustc_apfloat::ieee::Half,
            alu!(|a: i64| f16::from_double(a as f64)),
            alu!(|a: u64| f16::from_double(a as f64))
        ),
        Type::Bf16 => both_signs!(
            |bits: u128| bf16::from_bits(bits as u16),
            BFloat,
            alu!(|a: i64| bf16::from_bits(
                BFloat::from_i128_r(a.into(), Round::NearestTiesToEven).value.to_bits() as u16
            )),
            alu!(|a: u64| bf16::from_bits(
                BFloat::from_u128_r(a.into(), Round::NearestTiesToEven).value.to_bits() as u16
            ))
        ),
        _ => return None,
    })
}

fn to_double(from: Type) -> Option<Option<Alu>> {
    Some(match from {
        Type::F16 => Some(alu!(|a: f16| f64::from(a.single()))),
        Type::Bf16 => Some(alu!(|a: bf16| f64::from(a.single()))),
        Type::F32 => Some(alu!(|a: f32| f64::from(a))),
        Type::F64 => None,
        _ => return None,
    })
}

fn integral(rounding: Rounding) -> Option<Alu> {
    Some(match rounding {
        Rounding::Near => alu!(|a: f64| a.round_ties_even()),
        Rounding::Zero => alu!(|a: f64| a.trunc()),
        Rounding::Down => alu!(|a: f64| a.floor()),
        Rounding::Up => alu!(|a: f64| a.ceil()),
    })
}

/// Out of range is the nearest integer. NaN is 0, and the bit of the sign if one of the types has 64 bits.
fn to_integer(to: Type, is_wide: bool) -> Option<Alu> {
    macro_rules! integers {
        ($($of:pat => $value:ty),*) => {
            match (to, is_wide) {
                $(
                    ($of, false) => alu!(|a: f64| a as $value),
                    ($of, true) => alu!(|a: f64| if a.is_nan() { 1 << (<$value>::BITS - 1) } else { a as $value }),
                )*
                _ => return None,
            }
        };
    }
    Some(integers!(
        Type::U8 => u8, Type::U16 => u16, Type::U32 => u32, Type::U64 => u64,
        Type::S8 => i8, Type::S16 => i16, Type::S32 => i32, Type::S64 => i64
    ))
}

fn float_to_float(from: Type, to: Type, rounding: Option<Rounding>) -> Option<Vec<Alu>> {
    let is_narrower = from != to && to.bytes() < from.bytes();
    if is_narrower && rounding.is_none() {
        return None;
    }
    let near = rounding.unwrap_or(Rounding::Near);
    Some(match (from, to) {
        // Of equal types, the rounding is one to integers.
        (Type::F32, Type::F32) => match rounding {
            Some(Rounding::Near) => vec![alu!(|a: f32| nan_32(a.round_ties_even()))],
            Some(Rounding::Zero) => vec![alu!(|a: f32| nan_32(a.trunc()))],
            Some(Rounding::Down) => vec![alu!(|a: f32| nan_32(a.floor()))],
            Some(Rounding::Up) => vec![alu!(|a: f32| nan_32(a.ceil()))],
            None => vec![alu!(|a: f32| nan_32(a))],
        },
        (Type::F64, Type::F64) => {
            rounding.and_then(integral).into_iter().chain([alu!(|a: f64| quiet(a))]).collect()
        }
        (Type::F16, Type::F16) => match rounding {
            Some(Rounding::Near) => vec![alu!(|a: f16| f16::from_single(a.single().round_ties_even()))],
            Some(Rounding::Zero) => vec![alu!(|a: f16| f16::from_single(a.single().trunc()))],
            Some(Rounding::Down) => vec![alu!(|a: f16| f16::from_single(a.single().floor()))],
            Some(Rounding::Up) => vec![alu!(|a: f16| f16::from_single(a.single().ceil()))],
            None => Vec::new(),
        },
        (Type::Bf16, Type::Bf16) => match rounding {
            Some(Rounding::Near) => vec![alu!(|a: bf16| bf16::from_single(a.single().round_ties_even()))],
            Some(Rounding::Zero) => vec![alu!(|a: bf16| bf16::from_single(a.single().trunc()))],
            Some(Rounding::Down) => vec![alu!(|a: bf16| bf16::from_single(a.single().floor()))],
            Some(Rounding::Up) => vec![alu!(|a: bf16| bf16::from_single(a.single().ceil()))],
            None => Vec::new(),
        },
        (Type::F16, Type::Bf16) if near == Rounding::Near => {
            vec![alu!(|a: f16| bf16::from_single(a.single()))]
        }
        (Type::Bf16, Type::F16) if near == Rounding::Near => {
            vec![alu!(|a: bf16| f16::from_single(a.single()))]
        }
        // A number of 32 bits holds either.
        (Type::F16 | Type::Bf16, Type::F16 | Type::Bf16) => {
            let mut chain = float_to_float(from, Type::F32, None)?;
            chain.extend(float_to_float(Type::F32, to, rounding)?);
            chain
        }
        (Type::F16, Type::F32) => vec![alu!(|a: f16| nan_32(a.single()))],
        (Type::Bf16, Type::F32) => vec![alu!(|a: bf16| nan_32(a.single()))],
        (Type::F16, Type::F64) => vec![alu!(|a: f16| f64::from(a.single()))],
        (Type::Bf16, Type::F64) => vec![alu!(|a: bf16| f64::from(a.single()))],
        (Type::F32, Type::F64) => vec![alu!(|a: f32| f64::from(a))],
        (Type::F64, Type::F32) => {
            vec![by_rounding!(near, alu!(|a: f64| narrowed_nan(a).unwrap_or(a as f32)), |mode| alu!(
                |a: f64| {
                    let exact: Single =
                        Double::from_bits(a.to_bits().into()).convert_r(mode!(), &mut false).value;
                    narrowed_nan(a).unwrap_or(f32::from_bits(exact.to_bits() as u32))
                }
            ))]
        }
        (Type::F32, Type::F16) => {
            vec![by_rounding!(near, alu!(|a: f32| f16::from_single(a)), |mode| alu!(|a: f32| {
                let exact: rustc_apfloat::ieee::Half =
                    Single::from_bits(a.to_bits().into()).convert_r(mode!(), &mut false).value;
                if a.is_nan() { f16::CANONICAL_NAN } else { f16::from_bits(exact.to_bits() as u16) }
            }))]
        }
        (Type::F32, Type::Bf16) => {
            vec![by_rounding!(near, alu!(|a: f32| bf16::from_single(a)), |mode| alu!(|a: f32| {
                let exact: BFloat =
                    Single::from_bits(a.to_bits().into()).convert_r(mode!(), &mut false).value;
                if a.is_nan() { bf16::CANONICAL_NAN } else { bf16::from_bits(exact.to_bits() as u16) }
            }))]
        }
        (Type::F64, Type::F16) => vec![by_rounding!(
            near,
            alu!(|a: f64| narrowest_nan(a).unwrap_or(f16::from_double(a))),
            |mode| alu!(|a: f64| {
                let exact: rustc_apfloat::ieee::Half =
                    Double::from_bits(a.to_bits().into()).convert_r(mode!(), &mut false).value;
                narrowest_nan(a).unwrap_or(f16::from_bits(exact.to_bits() as u16))
            })
        )],
        (Type::F64, Type::Bf16) => {
            vec![by_rounding!(near, alu!(|a: f64| bf16::from_double(a)), |mode| alu!(|a: f64| {
                let exact: BFloat =
                    Double::from_bits(a.to_bits().into()).convert_r(mode!(), &mut false).value;
                if a.is_nan() { bf16::CANONICAL_NAN } else { bf16::from_bits(exact.to_bits() as u16) }
            }))]
        }
        _ => return None,
    })
}

/// A NaN of 64 bits as one of 32, with its sign and the upper bits of its mantissa.
fn narrowed_nan(value: f64) -> Option<f32> {
    let bits = value.to_bits();
    let narrowed = (bits >> 32 & 0x8000_0000) | 0x7fc0_0000 | (bits >> 29 & 0x3f_ffff);
    value.is_nan().then_some(f32::from_bits(narrowed as u32))
}

/// The same with 16 bits.
fn narrowest_nan(value: f64) -> Option<f16> {
    let bits = value.to_bits();
    let narrowed = (bits >> 48 & 0x8000) | 0x7e00 | (bits >> 42 & 0x1ff);
    value.is_nan().then_some(f16::from_bits(narrowed as u16))
}

/// Two numbers rounded to a pair of 16 bits; the first is the upper half.
pub(crate) fn pair(to: Type, rounding: Rounding) -> Option<Alu> {
    Some(match (to, rounding) {
        (Type::F16x2, Rounding::Near) => {
            alu!(|high: f32, low: f32| joined([high, low].map(f16::from_single)))
        }
        (Type::F16x2, Rounding::Zero) => {
            alu!(|high: f32, low: f32| joined([high, low].map(truncated::<f16>)))
        }
        (Type::Bf16x2, Rounding::Near) => {
            alu!(|high: f32, low: f32| joined([high, low].map(bf16::from_single)))
        }
        (Type::Bf16x2, Rounding::Zero) => {
            alu!(|high: f32, low: f32| joined([high, low].map(truncated::<bf16>)))
        }
        _ => return None,
    })
}

fn joined<H: Half>([high, low]: [H; 2]) -> u32 {
    u32::from(high.raw()) << 16 | u32::from(low.raw())
}

/// The nearest number that is not farther from zero.
fn truncated<H: Half>(value: f32) -> H {
    let near = H::from_single(value);
    if near.single().abs() > value.abs() { H::of_raw(near.raw() - 1) } else { near }
}

/// A number of 19 bits, in the upper bits of 32, after this is added to the others. NaN is the hardware's.
pub(crate) fn nineteen(value: f32, added: u32) -> f32 {
    if value.is_finite() {
        f32::from_bits(value.to_bits().wrapping_add(added) & !0x1fff)
    } else {
        nan_32(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::LANES;

    fn converted(from: Type, to: Type, rounding: Option<Rounding>, is_saturating: bool, bits: u64) -> u64 {
        let start = [bits; LANES];
        let chain = chain(from, to, rounding, is_saturating).unwrap();
        chain.into_iter().fold(start, |lanes, step| match step {
            Alu::One(f) => f(&lanes),
            _ => unreachable!("a conversion has one operand"),
        })[3]
    }

    #[test]
    fn results_of_the_manual() {
        use Type::*;
        let near = Some(Rounding::Near);
        let bits = |value: f32| u64::from(value.to_bits());
        assert_eq!(converted(S8, S32, None, false, 0xff), 0xffff_ffff);
        assert_eq!(converted(U32, U8, None, false, 0x1ff), 0xff);
        assert_eq!(converted(S32, U8, None, true, (-5_i32) as u32 as u64), 0);
        assert_eq!(converted(U32, S8, None, true, 300), 127);
        assert_eq!(converted(F32, S32, near, false, bits(2.5)), 2);
        assert_eq!(converted(F32, S32, near, false, bits(f32::NAN)), 0);
        assert_eq!(converted(F32, S64, near, false, bits(f32::NAN)), 1 << 63);
        assert_eq!(converted(F32, U8, Some(Rounding::Zero), false, bits(1e9)), 255);
        assert_eq!(converted(S32, F32, Some(Rounding::Zero), false, 0x7fff_ffff), bits(2_147_483_500.0));
        assert_eq!(converted(U64, F32, near, false, u64::MAX), bits(18_446_744_000_000_000_000.0));
        assert_eq!(converted(F64, F32, Some(Rounding::Up), false, 0.1_f64.to_bits()), bits(0.1));
        assert_eq!(
            converted(F64, F32, Some(Rounding::Down), false, 0.1_f64.to_bits()),
            bits(0.1_f32.next_down())
        );
        assert_eq!(converted(F32, F32, None, true, bits(7.0)), bits(1.0));
        assert_eq!(converted(F32, F16, near, false, bits(65_520.0)), 0x7c00);
    }
}

//! Numbers of 32 and 64 bits with a fraction. Operations on 32 bits give one NaN only, [`NAN_32`]. Those on
//! 64 bits give the last operand that is NaN, made quiet, and [`NAN_64`] if none is.

use crate::number::{Alu, alu};
use crate::syntax::Type;
use rustc_apfloat::ieee::{Double, Single};
use rustc_apfloat::{Float, Round};

/// How a result is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Near,
    Zero,
    Down,
    Up,
}

impl Rounding {
    /// The rounding of this name, without its dot; `rni` and the like round to integers.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "rn" | "rni" => Some(Self::Near),
            "rz" | "rzi" => Some(Self::Zero),
            "rm" | "rmi" => Some(Self::Down),
            "rp" | "rpi" => Some(Self::Up),
            _ => None,
        }
    }
}

/// The bits of the only NaN that operations on 32 bits give.
pub(crate) const NAN_32: u32 = 0x7fff_ffff;

/// Replaces any NaN by the hardware's.
pub(crate) fn nan_32(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(NAN_32) } else { value }
}

/// The NaN of an operation on 64 bits whose operands are numbers.
const NAN_64: u64 = 0xfff8_0000_0000_0000;

/// The same NaN, made quiet.
pub(crate) fn quiet(value: f64) -> f64 {
    if value.is_nan() { f64::from_bits(value.to_bits() | 1 << 51) } else { value }
}

/// Replaces a NaN that an operation gave by that of its operands.
fn nan_64<const N: usize>(result: f64, operands: [f64; N]) -> f64 {
    if !result.is_nan() {
        return result;
    }
    operands.into_iter().rev().find(|operand| operand.is_nan()).map_or(f64::from_bits(NAN_64), quiet)
}

/// Zero with the sign, for a number below the normal ones.
pub(crate) fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}

/// Between 0 and 1; 0 for NaN.
pub(crate) const SATURATE_32: Alu = alu!(|a: f32| if a > 0.0 { a.min(1.0) } else { 0.0 });
pub(crate) const SATURATE_64: Alu = alu!(|a: f64| if a > 0.0 { a.min(1.0) } else { 0.0 });
pub(crate) const FLUSH_32: Alu = alu!(|a: f32| flushed(a));
/// For approximate functions. No other operation on 64 bits flushes.
pub(crate) const FLUSH_64: Alu = alu!(|a: f64| if a.is_subnormal() { 0.0_f64.copysign(a) } else { a });

/// Flushes a result that is tiny, before rounding or after.
pub(crate) const FLUSH_TINY_32: Alu =
    alu!(|result: f32, is_tiny: bool| if is_tiny { 0.0_f32.copysign(result) } else { flushed(result) });

/// Whether the result of an operation is below the normal numbers when it is rounded to as many bits as they have: with `ftz` it is flushed,
/// although rounding it to the coarser bits there may give a normal number. `None` for operations whose tiny results are exact.
pub(crate) fn tiny_32(name: &str, rounding: Rounding) -> Option<Alu> {
    macro_rules! with {
        ($($rounding:ident),*) => {
            match (name, rounding) {
                $(
                    // A product of two numbers of 24 bits is exact in 53.
                    ("mul", Rounding::$rounding) => alu!(|a: f32, b: f32| {
                        is_tiny(f64::from(a) * f64::from(b), Rounding::$rounding)
                    }),
                    ("fma" | "mad", Rounding::$rounding) => alu!(|a: f32, b: f32, c: f32| {
                        is_tiny(f64::from(a) * f64::from(b) + f64::from(c), Rounding::$rounding)
                    }),
                    ("div", Rounding::$rounding) => alu!(|a: f32, b: f32| {
                        is_tiny(f64::from(a) / f64::from(b), Rounding::$rounding)
                    }),
                    ("rcp", Rounding::$rounding) => alu!(|a: f32| is_tiny(1.0 / f64::from(a), Rounding::$rounding)),
                )*
                _ => return None,
            }
        };
    }
    Some(with!(Near, Zero, Down, Up))
}

fn is_tiny(exact: f64, rounding: Rounding) -> bool {
    const LEAST: f64 = f32::MIN_POSITIVE as f64;
    // The last number of 24 bits below it, and the middle between both.
    const BELOW: f64 = LEAST * (1.0 - f32::EPSILON as f64 / 2.0);
    const MIDDLE: f64 = LEAST * (1.0 - f32::EPSILON as f64 / 4.0);
    let size = exact.abs();
    match rounding {
        Rounding::Near => size < MIDDLE,
        Rounding::Up if exact > 0.0 => size <= BELOW,
        Rounding::Down if exact < 0.0 => size <= BELOW,
        _ => size < LEAST,
    }
}

/// An operation by its name, such as `add`, `fma`, `min.nan`, `ex2.approx`.
pub(crate) fn choose(name: &str, of: Type, rounding: Rounding) -> Option<Alu> {
    match of {
        Type::F32 if rounding == Rounding::Near => near_32(name),
        Type::F64 if rounding == Rounding::Near => near_64(name),
        Type::F32 | Type::F64 => directed(name, of, rounding),
        _ => None,
    }
}

fn near_32(name: &str) -> Option<Alu> {
    Some(match name {
        "add" => alu!(|a: f32, b: f32| nan_32(a + b)),
        "sub" => alu!(|a: f32, b: f32| nan_32(a - b)),
        "mul" => alu!(|a: f32, b: f32| nan_32(a * b)),
        "fma" | "mad" => alu!(|a: f32, b: f32, c: f32| nan_32(a.mul_add(b, c))),
        "div" | "div.full" | "div.approx" => alu!(|a: f32, b: f32| nan_32(a / b)),
        "rcp" | "rcp.approx" => alu!(|a: f32| nan_32(1.0 / a)),
        "sqrt" | "sqrt.approx" => alu!(|a: f32| nan_32(a.sqrt())),
        "rsqrt.approx" => alu!(|a: f32| nan_32((1.0 / f64::from(a).sqrt()) as f32)),
        "ex2.approx" => alu!(|a: f32| nan_32(f64::from(a).exp2() as f32)),
        "lg2.approx" => alu!(|a: f32| nan_32(f64::from(a).log2() as f32)),
        "sin.approx" => alu!(|a: f32| nan_32(f64::from(a).sin() as f32)),
        "cos.approx" => alu!(|a: f32| nan_32(f64::from(a).cos() as f32)),
        "tanh.approx" => alu!(|a: f32| nan_32(f64::from(a).tanh() as f32)),
        "abs" => alu!(|a: f32| nan_32(a.abs())),
        "neg" => alu!(|a: f32| nan_32(-a)),
        "min" => alu!(|a: f32, b: f32| nan_32(least_32(a, b))),
        "max" => alu!(|a: f32, b: f32| nan_32(-least_32(-a, -b))),
        "min.nan" => {
            alu!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { nan_32(f32::NAN) } else { least_32(a, b) })
        }
        "max.nan" => {
            alu!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { nan_32(f32::NAN) } else { -least_32(-a, -b) })
        }
        "min.xorsign" => alu!(|a: f32, b: f32| signed_32(least_32(a.abs(), b.abs()), a, b)),
        "max.xorsign" => alu!(|a: f32, b: f32| signed_32(-least_32(-a.abs(), -b.abs()), a, b)),
        "min.nan.xorsign" => alu!(|a: f32, b: f32| if a.is_nan() || b.is_nan() {
            nan_32(f32::NAN)
        } else {
            signed_32(least_32(a.abs(), b.abs()), a, b)
        }),
        "max.nan.xorsign" => alu!(|a: f32, b: f32| if a.is_nan() || b.is_nan() {
            nan_32(f32::NAN)
        } else {
            signed_32(-least_32(-a.abs(), -b.abs()), a, b)
        }),
        "copysign" => alu!(|sign: f32, value: f32| value.copysign(sign)),
        // Follows another operation.
        ".relu" => alu!(|a: f32| if a > 0.0 || a.is_nan() { nan_32(a) } else { 0.0 }),
        _ => return None,
    })
}

fn near_64(name: &str) -> Option<Alu> {
    Some(match name {
        "add" => alu!(|a: f64, b: f64| nan_64(a + b, [a, b])),
        "sub" => alu!(|a: f64, b: f64| nan_64(a - b, [a, b])),
        "mul" => alu!(|a: f64, b: f64| nan_64(a * b, [a, b])),
        "fma" | "mad" => alu!(|a: f64, b: f64, c: f64| nan_64(a.mul_add(b, c), [a, b, c])),
        "div" => alu!(|a: f64, b: f64| nan_64(a / b, [a, b])),
        "rcp" => alu!(|a: f64| nan_64(1.0 / a, [a])),
        "sqrt" => alu!(|a: f64| nan_64(a.sqrt(), [a])),
        // Only the upper half of the result is computed.
        "rcp.approx" => alu!(|a: f64| upper_half(1.0 / a)),
        "rsqrt.approx" => alu!(|a: f64| upper_half(1.0 / a.sqrt())),
        "abs" => alu!(|a: f64| if a.is_nan() { quiet(a) } else { a.abs() }),
        "neg" => alu!(|a: f64| if a.is_nan() { quiet(a) } else { -a }),
        "min" => alu!(|a: f64, b: f64| least_64(a, b)),
        "max" => alu!(|a: f64, b: f64| -least_64(-a, -b)),
        "copysign" => alu!(|sign: f64, value: f64| value.copysign(sign)),
        _ => return None,
    })
}

fn upper_half(value: f64) -> f64 {
    f64::from_bits(value.to_bits() >> 32 << 32)
}

/// The smaller number, of a number and a NaN the number, of two zeros the negative one.
fn least_32(a: f32, b: f32) -> f32 {
    if a == b { f32::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) }
}

/// A number without a sign, with the product of two signs.
fn signed_32(size: f32, a: f32, b: f32) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & 1 << 31;
    nan_32(f32::from_bits(size.to_bits() ^ sign))
}

fn least_64(a: f64, b: f64) -> f64 {
    if a == b { f64::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) }
}

/// Roundings other than to the nearest.
fn directed(name: &str, of: Type, rounding: Rounding) -> Option<Alu> {
    macro_rules! all {
        ($($round:ident: $mode:ident),*) => {
            match (of, rounding) {
                $(
                    (Type::F32, Rounding::$round) => match name {
                        "add" => alu!(|a: f32, b: f32| out_32(in_32(a).add_r(in_32(b), Round::$mode).value)),
                        "sub" => alu!(|a: f32, b: f32| out_32(in_32(a).sub_r(in_32(b), Round::$mode).value)),
                        "mul" => alu!(|a: f32, b: f32| out_32(in_32(a).mul_r(in_32(b), Round::$mode).value)),
                        "div" => alu!(|a: f32, b: f32| out_32(in_32(a).div_r(in_32(b), Round::$mode).value)),
                        "rcp" => alu!(|a: f32| out_32(in_32(1.0).div_r(in_32(a), Round::$mode).value)),
                        "fma" | "mad" => alu!(|a: f32, b: f32, c: f32| {
                            out_32(in_32(a).mul_add_r(in_32(b), in_32(c), Round::$mode).value)
                        }),
                        "sqrt" => alu!(|a: f32| root_32(a, Rounding::$round)),
                        _ => return None,
                    },
                    (Type::F64, Rounding::$round) => match name {
                        "add" => alu!(|a: f64, b: f64| nan_64(out_64(in_64(a).add_r(in_64(b), Round::$mode).value), [a, b])),
                        "sub" => alu!(|a: f64, b: f64| nan_64(out_64(in_64(a).sub_r(in_64(b), Round::$mode).value), [a, b])),
                        "mul" => alu!(|a: f64, b: f64| nan_64(out_64(in_64(a).mul_r(in_64(b), Round::$mode).value), [a, b])),
                        "div" => alu!(|a: f64, b: f64| nan_64(out_64(in_64(a).div_r(in_64(b), Round::$mode).value), [a, b])),
                        "rcp" => alu!(|a: f64| nan_64(out_64(in_64(1.0).div_r(in_64(a), Round::$mode).value), [a])),
                        "fma" | "mad" => alu!(|a: f64, b: f64, c: f64| {
                            nan_64(out_64(in_64(a).mul_add_r(in_64(b), in_64(c), Round::$mode).value), [a, b, c])
                        }),
                        "sqrt" => alu!(|a: f64| nan_64(root_64(a, Rounding::$round), [a])),
                        _ => return None,
                    },
                )*
                _ => return None,
            }
        };
    }
    Some(all!(Zero: TowardZero, Down: TowardNegative, Up: TowardPositive))
}

fn in_32(value: f32) -> Single {
    Single::from_bits(value.to_bits().into())
}

fn out_32(value: Single) -> f32 {
    nan_32(f32::from_bits(value.to_bits() as u32))
}

fn in_64(value: f64) -> Double {
    Double::from_bits(value.to_bits().into())
}

fn out_64(value: Double) -> f64 {
    f64::from_bits(value.to_bits() as u64)
}

/// A square root rounded away from the nearest number where the remainder asks for it. A root is positive, so rounding towards zero
/// is rounding down.
fn root_64(value: f64, rounding: Rounding) -> f64 {
    let near = value.sqrt();
    if !near.is_finite() || near == 0.0 {
        return near;
    }
    // Scaled, so that the remainder is no subnormal number.
    let (near_scaled, scaled) =
        if value < 1e-200 { (near * 2_f64.powi(300), value * 2_f64.powi(600)) } else { (near, value) };
    let remainder = (-near_scaled).mul_add(near_scaled, scaled);
    match rounding {
        Rounding::Up if remainder > 0.0 => near.next_up(),
        Rounding::Zero | Rounding::Down if remainder < 0.0 => near.next_down(),
        _ => near,
    }
}

fn root_32(value: f32, rounding: Rounding) -> f32 {
    let near = value.sqrt();
    if !near.is_finite() || near == 0.0 {
        return nan_32(near);
    }
    // Exact: a product of two such numbers has 48 bits.
    let remainder = f64::from(value) - f64::from(near) * f64::from(near);
    match rounding {
        Rounding::Up if remainder > 0.0 => near.next_up(),
        Rounding::Zero | Rounding::Down if remainder < 0.0 => near.next_down(),
        _ => near,
    }
}

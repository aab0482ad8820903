//! Comparisons and tests, which give predicates.

use crate::number::{Alu, alu};
use crate::syntax::Type;
use ::half::{bf16, f16};

/// A comparison by its name, such as `lt` or `ltu`: the second is true too if a number is NaN.
pub(crate) fn choose(name: &str, of: Type) -> Option<Alu> {
    let is_of_unsigned = matches!(name, "lo" | "ls" | "hi" | "hs");
    let is_of_bits = matches!(name, "eq" | "ne");
    match of {
        Type::B16 | Type::B32 | Type::B64 if !is_of_bits => return None,
        Type::S16 | Type::S32 | Type::S64 if is_of_unsigned => return None,
        _ => {}
    }
    macro_rules! ordered {
        ($value:ty) => {
            match name {
                "eq" => alu!(|a: $value, b: $value| a == b),
                "ne" => alu!(|a: $value, b: $value| a != b),
                "lt" | "lo" => alu!(|a: $value, b: $value| a < b),
                "le" | "ls" => alu!(|a: $value, b: $value| a <= b),
                "gt" | "hi" => alu!(|a: $value, b: $value| a > b),
                "ge" | "hs" => alu!(|a: $value, b: $value| a >= b),
                _ => return None,
            }
        };
    }
    macro_rules! float {
        ($value:ty) => {
            match name {
                "eq" => alu!(|a: $value, b: $value| a == b),
                "ne" => alu!(|a: $value, b: $value| a.partial_cmp(&b).is_some_and(|order| order.is_ne())),
                "lt" => alu!(|a: $value, b: $value| a < b),
                "le" => alu!(|a: $value, b: $value| a <= b),
                "gt" => alu!(|a: $value, b: $value| a > b),
                "ge" => alu!(|a: $value, b: $value| a >= b),
                "equ" => alu!(|a: $value, b: $value| a.partial_cmp(&b).is_none_or(|order| order.is_eq())),
                "neu" => alu!(|a: $value, b: $value| a != b),
                "ltu" => alu!(|a: $value, b: $value| a.partial_cmp(&b).is_none_or(|order| order.is_lt())),
                "leu" => alu!(|a: $value, b: $value| a.partial_cmp(&b).is_none_or(|order| order.is_le())),
                "gtu" => alu!(|a: $value, b: $value| a.partial_cmp(&b).is_none_or(|order| order.is_gt())),
                "geu" => alu!(|a: $value, b: $value| a.partial_cmp(&b).is_none_or(|order| order.is_ge())),
                "num" => alu!(|a: $value, b: $value| a.partial_cmp(&b).is_some()),
                "nan" => alu!(|a: $value, b: $value| a.partial_cmp(&b).is_none()),
                _ => return None,
            }
        };
    }
    Some(match of {
        Type::B16 | Type::U16 => ordered!(u16),
        Type::B32 | Type::U32 => ordered!(u32),
        Type::B64 | Type::U64 => ordered!(u64),
        Type::S16 => ordered!(i16),
        Type::S32 => ordered!(i32),
        Type::S64 => ordered!(i64),
        Type::F16 => float!(f16),
        Type::Bf16 => float!(bf16),
        Type::F32 => float!(f32),
        Type::F64 => float!(f64),
        _ => return None,
    })
}

/// A property of a number, as `testp` asks for it.
pub(crate) fn property(name: &str, of: Type) -> Option<Alu> {
    macro_rules! float {
        ($value:ty) => {
            match name {
                "finite" => alu!(|a: $value| a.is_finite()),
                "infinite" => alu!(|a: $value| a.is_infinite()),
                "number" => alu!(|a: $value| !a.is_nan()),
                "notanumber" => alu!(|a: $value| a.is_nan()),
                // Zero is one.
                "normal" => alu!(|a: $value| a.is_normal() || a == 0.0),
                "subnormal" => alu!(|a: $value| a.is_subnormal()),
                _ => return None,
            }
        };
    }
    Some(match of {
        Type::F32 => float!(f32),
        Type::F64 => float!(f64),
        _ => return None,
    })
}

//! ConstantValue expressions: `4*8`, `(1<<2)|1`, `~15`. Pure.

use crate::error::{Place, PtxError};

/// The value of an expression, or of a part of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ConstantValue {
    /// 64 bits, taken as signed.
    Integer(u64),
    /// The bits of a number written as `0f…`.
    Single(u32),
    Double(f64),
}

/// The operators between two operands, those that bind least first.
pub(crate) const OPERATORS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

impl ConstantValue {
    pub(crate) fn double(self) -> f64 {
        match self {
            Self::Integer(bits) => bits as i64 as f64,
            Self::Single(bits) => f32::from_bits(bits).into(),
            Self::Double(value) => value,
        }
    }

    pub(crate) fn is_true(self) -> bool {
        match self {
            Self::Integer(bits) => bits != 0,
            other => other.double() != 0.0,
        }
    }

    /// `-`, `+`, `~` or `!` before it.
    pub(crate) fn unary(self, mark: u8, place: Place) -> Result<Self, PtxError> {
        Ok(match (mark, self) {
            (b'+', same) => same,
            (b'-', Self::Integer(bits)) => Self::Integer(bits.wrapping_neg()),
            (b'-', Self::Single(bits)) => Self::Single(bits ^ 1 << 31),
            (b'-', Self::Double(value)) => Self::Double(-value),
            (b'!', same) => truth(!same.is_true()),
            (b'~', Self::Integer(bits)) => Self::Integer(!bits),
            _ => return Err(PtxError::syntax(place, "an operator for integers has a fraction")),
        })
    }

    pub(crate) fn binary(self, operator: &str, other: Self, place: Place) -> Result<Self, PtxError> {
        match (self, other) {
            _ if operator == "||" => Ok(truth(self.is_true() || other.is_true())),
            _ if operator == "&&" => Ok(truth(self.is_true() && other.is_true())),
            (Self::Integer(a), Self::Integer(b)) => integers(operator, a, b)
                .ok_or_else(|| PtxError::syntax(place, "a constant is divided by zero")),
            _ => doubles(operator, self.double(), other.double())
                .ok_or_else(|| PtxError::syntax(place, "an operator for integers has a fraction")),
        }
    }
}

fn truth(is_true: bool) -> ConstantValue {
    ConstantValue::Integer(is_true.into())
}

/// `None` for a division by zero.
fn integers(operator: &str, a: u64, b: u64) -> Option<ConstantValue> {
    let (signed_a, signed_b) = (a as i64, b as i64);
    let by = u32::try_from(b).unwrap_or(u32::MAX);
    Some(ConstantValue::Integer(match operator {
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        "/" if b == 0 => return None,
        "/" => signed_a.wrapping_div(signed_b) as u64,
        "%" if b == 0 => return None,
        "%" => signed_a.wrapping_rem(signed_b) as u64,
        "<<" => a.checked_shl(by).unwrap_or(0),
        ">>" => (signed_a >> by.min(63)) as u64,
        "&" => a & b,
        "|" => a | b,
        "^" => a ^ b,
        "==" => (a == b).into(),
        "!=" => (a != b).into(),
        "<" => (signed_a < signed_b).into(),
        ">" => (signed_a > signed_b).into(),
        "<=" => (signed_a <= signed_b).into(),
        _ => (signed_a >= signed_b).into(),
    }))
}

/// `None` for an operator that fractions do not have.
fn doubles(operator: &str, a: f64, b: f64) -> Option<ConstantValue> {
    Some(match operator {
        "+" => ConstantValue::Double(a + b),
        "-" => ConstantValue::Double(a - b),
        "*" => ConstantValue::Double(a * b),
        "/" => ConstantValue::Double(a / b),
        "==" => truth(a == b),
        "!=" => truth(a != b),
        "<" => truth(a < b),
        ">" => truth(a > b),
        "<=" => truth(a <= b),
        ">=" => truth(a >= b),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_integer_beside_a_fraction_stays_negative() {
        let minus_one = ConstantValue::Integer(u64::MAX);
        assert_eq!(minus_one.double(), -1.0);
        assert_eq!(doubles("*", minus_one.double(), 0.5), Some(ConstantValue::Double(-0.5)));
    }
}

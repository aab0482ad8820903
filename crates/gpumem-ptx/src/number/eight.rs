//! Numbers of 8 bits with a fraction.

use crate::number::half::Half;
use ::half::f16;

/// How the bits below the sign are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eight {
    /// 4 bits of an exponent, 3 of a fraction. There is no infinity.
    E4m3,
    /// The upper half of a number of 16 bits.
    E5m2,
}

/// The only NaN that a conversion gives.
const NAN: u8 = 0x7f;

impl Eight {
    /// The value, which is exact.
    pub(crate) fn value(self, bits: u8) -> f32 {
        match self {
            Self::E5m2 => f16::from_bits(u16::from(bits) << 8).single(),
            Self::E4m3 if bits & NAN == NAN => f32::NAN,
            Self::E4m3 => {
                let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
                let size = match exponent {
                    0 => fraction * 2_f32.powi(-9),
                    _ => (8.0 + fraction) * 2_f32.powi(exponent - 10),
                };
                if bits & 0x80 == 0 { size } else { -size }
            }
        }
    }

    /// The nearest number, of two equally near ones the even one. What exceeds the largest number becomes it.
    pub(crate) fn nearest(self, value: f32) -> u8 {
        if value.is_nan() {
            return NAN;
        }
        let (fraction_bits, bias, largest) = match self {
            Self::E4m3 => (3, 7, 448.0),
            Self::E5m2 => (2, 15, 57_344.0),
        };
        let size = f64::from(value.abs()).min(largest);
        let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(1 - bias);
        // The bit above the fraction, where there is one, counts the exponent up.
        let steps = (size / 2_f64.powi(exponent - fraction_bits)).round_ties_even() as i32;
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        sign | (((exponent + bias - 1) << fraction_bits) + steps) as u8
    }

    /// A pair of halves of these two numbers. NaN is the hardware's.
    pub(crate) fn pair(self, bits: u16) -> u32 {
        let half = |byte: u8| u32::from(f16::from_single(self.value(byte)).raw());
        half(bits as u8) | half((bits >> 8) as u8) << 16
    }

    /// Two numbers, the first one in the upper byte.
    pub(crate) fn nearest_pair(self, high: f32, low: f32) -> u16 {
        u16::from(self.nearest(high)) << 8 | u16::from(self.nearest(low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_the_nearest_to_itself() {
        for of in [Eight::E4m3, Eight::E5m2] {
            for bits in 0..=u8::MAX {
                let value = of.value(bits);
                let expected = if value.is_nan() {
                    NAN
                } else if value.is_infinite() {
                    bits & 0x80 | 0x7b
                } else {
                    bits
                };
                assert_eq!(of.nearest(value), expected, "{of:?} {bits:#x}");
            }
        }
        assert_eq!(Eight::E4m3.value(0x38), 1.0);
        assert_eq!(Eight::E4m3.value(0x7e), 448.0);
        assert_eq!(Eight::E5m2.value(0xbc), -1.0);
    }

    #[test]
    fn ties_are_even_and_what_is_too_large_is_the_largest() {
        assert_eq!(Eight::E4m3.nearest(1.0625), 0x38);
        assert_eq!(Eight::E4m3.nearest(1.1875), 0x3a);
        assert_eq!(Eight::E4m3.nearest(-1e9), 0xfe);
        assert_eq!(Eight::E4m3.nearest(2_f32.powi(-10)), 0);
        assert_eq!(Eight::E4m3.nearest(1.5 * 2_f32.powi(-10)), 1);
        assert_eq!(Eight::E5m2.nearest(1.125), 0x3c);
        assert_eq!(Eight::E5m2.nearest(f32::INFINITY), 0x7b);
        assert_eq!(Eight::E4m3.nearest_pair(1.0, -0.0), 0x3880);
        assert_eq!(Eight::E4m3.pair(0x38ff), 0x3c00_7fff);
    }
}

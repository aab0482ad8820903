//! Values in memory that streams wait for and write.
//!
//! A wait checks its value whenever the schedule reaches it. The value is written by work of another stream, or by the host
//! through pinned memory. A wait for a value that is never written lasts forever, as on a GPU.

use crate::base::codes::{Answer, INVALID_VALUE};

/// An unsigned number of four or eight bytes at an address: the operand of a comparison or of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) address: u64,
    pub(crate) is_wide: bool,
    pub(crate) value: u64,
}

/// The condition of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The value is reached or passed, as a cyclic comparison.
    Reached,
    Equal,
    /// Any common bit.
    AnyBit,
    /// Not all bits are set in the union of both.
    Nor,
}

impl Condition {
    /// Parses the flags of a call. The flush of remote writes has no effect here.
    pub(crate) fn from_flags(flags: u32) -> Answer<Self> {
        match flags & !FLUSH {
            0 => Ok(Self::Reached),
            1 => Ok(Self::Equal),
            2 => Ok(Self::AnyBit),
            3 => Ok(Self::Nor),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn is_met(self, found: u64, wish: &Value) -> bool {
        let (found, value) = (wish.cut(found), wish.cut(wish.value));
        match self {
            Self::Reached if wish.is_wide => found.wrapping_sub(value).cast_signed() >= 0,
            Self::Reached => (found as u32).wrapping_sub(value as u32).cast_signed() >= 0,
            Self::Equal => found == value,
            Self::AnyBit => found & value != 0,
            Self::Nor => wish.cut(!(found | value)) != 0,
        }
    }
}

impl Value {
    pub(crate) fn size_bytes(&self) -> u64 {
        if self.is_wide { 8 } else { 4 }
    }

    fn cut(&self, value: u64) -> u64 {
        if self.is_wide { value } else { value & u64::from(u32::MAX) }
    }
}

const FLUSH: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions() {
        let narrow = |value| Value { address: 0, is_wide: false, value };
        let wide = |value| Value { address: 0, is_wide: true, value };
        assert!(Condition::Reached.is_met(3, &narrow(3)) && !Condition::Reached.is_met(2, &narrow(3)));
        assert!(Condition::Reached.is_met(1, &narrow(0xffff_ffff)));
        assert!(!Condition::Reached.is_met(1, &wide(0xffff_ffff)));
        assert!(Condition::Reached.is_met(1, &wide(u64::MAX)));
        assert!(Condition::AnyBit.is_met(6, &narrow(2)) && !Condition::AnyBit.is_met(6, &narrow(1)));
        assert!(Condition::Nor.is_met(1, &narrow(2)) && !Condition::Nor.is_met(0xffff_fff0, &narrow(0xf)));
        assert!(Condition::Nor.is_met(0xffff_fff0, &wide(0xf)));
        assert!(!Condition::Equal.is_met(1, &narrow(2)));
    }
}

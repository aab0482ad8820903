//! Arithmetic on the registers of a warp, with PTX's rules. Pure.
//!
//! A register is 32 values of 64 bits, one for each lane. A narrower value has zeros above it. Functions compute all lanes, the ones that
//! do not take part too, so they are defined for all values.

pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod eight;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod matrix;
pub(crate) mod packed;

/// The lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A register of a warp.
pub(crate) type Lanes = [u64; LANES];

/// A function of registers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Alu {
    One(fn(&Lanes) -> Lanes),
    Two(fn(&Lanes, &Lanes) -> Lanes),
    Three(fn(&Lanes, &Lanes, &Lanes) -> Lanes),
}

/// A value of a lane.
pub(crate) trait Value: Copy {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! integers {
    ($($signed:ty: $unsigned:ty),*) => {$(
        impl Value for $unsigned {
            fn of(bits: u64) -> Self {
                bits as Self
            }
            fn bits(self) -> u64 {
                self as u64
            }
        }
        impl Value for $signed {
            fn of(bits: u64) -> Self {
                bits as Self
            }
            fn bits(self) -> u64 {
                self as $unsigned as u64
            }
        }
    )*};
}
integers!(i8: u8, i16: u16, i32: u32, i64: u64);

impl Value for bool {
    fn of(bits: u64) -> Self {
        bits & 1 != 0
    }
    fn bits(self) -> u64 {
        u64::from(self)
    }
}

impl Value for f32 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Value for f64 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits)
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Value for ::half::f16 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u16)
    }
    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Value for ::half::bf16 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u16)
    }
    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

pub(crate) fn one<A: Value, R: Value>(a: &Lanes, f: impl Fn(A) -> R) -> Lanes {
    core::array::from_fn(|lane| f(A::of(a[lane])).bits())
}

pub(crate) fn two<A: Value, B: Value, R: Value>(a: &Lanes, b: &Lanes, f: impl Fn(A, B) -> R) -> Lanes {
    core::array::from_fn(|lane| f(A::of(a[lane]), B::of(b[lane])).bits())
}

pub(crate) fn three<A: Value, B: Value, C: Value, R: Value>(
    a: &Lanes,
    b: &Lanes,
    c: &Lanes,
    f: impl Fn(A, B, C) -> R,
) -> Lanes {
    core::array::from_fn(|lane| f(A::of(a[lane]), B::of(b[lane]), C::of(c[lane])).bits())
}

/// An [`Alu`] from an expression of one value of each of its operands.
macro_rules! alu {
    (|$a:ident: $ta:ty| $f:expr) => {
        $crate::number::Alu::One(|a| $crate::number::one(a, |$a: $ta| $f))
    };
    (|$a:ident: $ta:ty, $b:ident: $tb:ty| $f:expr) => {
        $crate::number::Alu::Two(|a, b| $crate::number::two(a, b, |$a: $ta, $b: $tb| $f))
    };
    (|$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty| $f:expr) => {
        $crate::number::Alu::Three(|a, b, c| $crate::number::three(a, b, c, |$a: $ta, $b: $tb, $c: $tc| $f))
    };
}
pub(crate) use alu;

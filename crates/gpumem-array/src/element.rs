//! [`Element`]: the types that arrays hold; [`Numeric`]: those that the kernels of this crate calculate with.

/// A type whose values are copied between host and device as bytes.
///
/// # Safety
///
/// - The type has no padding: every byte of a value is initialised.
/// - Every pattern of bytes is a valid value, except those that [`Element::first_invalid`] finds. All zeros is valid.
/// - Its size is not zero.
/// - It holds no pointers or references into host memory that device code could follow.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Returns the index of the first element in `bytes`, written by the device, that is not a valid value.
    ///
    /// The default returns `None`, which is correct for numbers.
    #[must_use]
    fn first_invalid(bytes: &[u8]) -> Option<usize> {
        let _ = bytes;
        None
    }
}

macro_rules! elements {
    ($($kind:ty),*) => {
        $(
            // SAFETY: a primitive number: no padding, every pattern of bytes is a value, not empty.
            unsafe impl Element for $kind {}
        )*
    };
}
elements!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

// SAFETY: one byte without padding; the patterns other than 0 and 1 are found below.
unsafe impl Element for bool {
    fn first_invalid(bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|byte| *byte > 1)
    }
}

/// An element type with arithmetic: `f32`, `f64`, `i32`, `i64`.
///
/// Integers wrap on overflow; an integer divided by zero is zero.
pub trait Numeric: Element + sealed::Sealed {}

pub(crate) mod sealed {
    /// The index of the compiled kernels of a type.
    pub trait Sealed {
        const KIND: super::Kind;
    }
}

/// The numeric types, in the order of the kernel table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F64,
    I32,
    I64,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::F32, Self::F64, Self::I32, Self::I64];

    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }
}

macro_rules! numeric {
    ($($kind:ident: $type:ty),*) => {
        $(
            impl Numeric for $type {}
            impl sealed::Sealed for $type {
                const KIND: Kind = Kind::$kind;
            }
        )*
    };
}
numeric!(F32: f32, F64: f64, I32: i32, I64: i64);

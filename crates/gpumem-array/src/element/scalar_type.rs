//! [`ScalarType`]: the types that kernels calculate with, and what PTX calls them.

/// The type of a value in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ScalarType {
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    F16,
    Bf16,
    Complex32,
    Complex64,
}

impl ScalarType {
    const ALL: [Self; 15] = [
        Self::F32,
        Self::F64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::Bool,
        Self::F16,
        Self::Bf16,
        Self::Complex32,
        Self::Complex64,
    ];

    /// The type with this number in a recording.
    pub(crate) fn of_token(token: u8) -> Self {
        Self::ALL.get(usize::from(token)).copied().unwrap_or(Self::F32)
    }

    /// The unsigned integer of 1, 2, 4 or 8 bytes.
    pub(crate) fn unsigned(size: usize) -> Self {
        match size {
            1 => Self::U8,
            2 => Self::U16,
            4 => Self::U32,
            _ => Self::U64,
        }
    }

    pub(crate) fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 | Self::Complex32 => 8,
            Self::Complex64 => 16,
        }
    }

    /// True for a type of two numbers, whose names below are those of one of them.
    pub(crate) fn is_complex(self) -> bool {
        matches!(self, Self::Complex32 | Self::Complex64)
    }

    /// The type of the real and of the imaginary part.
    pub(crate) fn part(self) -> Self {
        if self.is_complex() { self.wide() } else { self }
    }

    /// The type that instructions calculate with. Smaller types are widened, and their results are rounded or wrapped.
    pub(crate) fn wide(self) -> Self {
        match self {
            Self::Complex32 => Self::F32,
            Self::Complex64 => Self::F64,
            Self::I8 | Self::I16 => Self::I32,
            Self::U8 | Self::U16 => Self::U32,
            Self::F16 | Self::Bf16 => Self::F32,
            other => other,
        }
    }

    /// The type of instructions.
    pub(crate) fn name(self) -> &'static str {
        match self.wide() {
            Self::F64 => "f64",
            Self::I32 => "s32",
            Self::I64 => "s64",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::Bool => "pred",
            _ => "f32",
        }
    }

    /// The type of loads and stores.
    pub(crate) fn memory(self) -> &'static str {
        match self {
            Self::I8 => "s8",
            Self::I16 => "s16",
            Self::U8 | Self::Bool => "u8",
            Self::U16 | Self::F16 | Self::Bf16 => "u16",
            other => other.name(),
        }
    }

    /// The type of instructions that move bits.
    pub(crate) fn bits(self) -> &'static str {
        match self.register() {
            'd' | 'l' => "b64",
            _ => "b32",
        }
    }

    /// The first letter of the registers that hold a value.
    pub(crate) fn register(self) -> char {
        match self.wide() {
            Self::F32 => 'f',
            Self::F64 => 'd',
            Self::I64 | Self::U64 => 'l',
            Self::Bool => 'p',
            _ => 'r',
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self.wide(), Self::F32 | Self::F64)
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self.wide(), Self::I32 | Self::I64) || self.is_float()
    }

    /// A number as an operand of an instruction.
    pub(crate) fn literal(self, value: f64) -> String {
        match self.wide() {
            Self::F32 => format!("0f{:08X}", (value as f32).to_bits()),
            Self::F64 => format!("0d{:016X}", value.to_bits()),
            _ => format!("{}", value as i64),
        }
    }

    /// The number that no other number of the type is below, or above.
    pub(crate) fn limit(self, is_upper: bool) -> String {
        let bits = 8 * self.size() as u32;
        match (self, is_upper) {
            (of, _) if of.is_float() => of.literal(if is_upper { f64::INFINITY } else { f64::NEG_INFINITY }),
            (of, true) if of.is_signed() => (i64::MAX >> (64 - bits)).to_string(),
            (of, false) if of.is_signed() => (i64::MIN >> (64 - bits)).to_string(),
            (_, true) => (u64::MAX >> (64 - bits)).to_string(),
            (_, false) => "0".to_owned(),
        }
    }
}

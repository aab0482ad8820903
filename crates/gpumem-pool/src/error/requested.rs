//! [`Requested`]: a requested size in messages, exact if only an arithmetic bug can produce it.

use core::fmt;
use gpumem_device::Bytes;

/// Prints a requested size as [`Bytes`] does, or the exact number if no device has that many bytes.
pub(crate) struct Requested(pub(crate) u64);

impl Requested {
    /// True if the size exceeds the address space of any device: the program computed it wrongly.
    pub(crate) fn is_miscomputed(&self) -> bool {
        self.0 >= 1 << 49
    }

    pub(crate) fn miscomputed(&self) -> String {
        let signed = match self.0.cast_signed() {
            signed @ ..0 => format!(", and as a signed number they are {signed}"),
            _ => String::new(),
        };
        format!(
            "no program needs that many bytes{signed}; check the computation of the size for underflow or overflow"
        )
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_miscomputed() { write!(f, "{} bytes", self.0) } else { Bytes(self.0).fmt(f) }
    }
}

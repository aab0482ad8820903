//! [`KernelText`]: PTX that is checked in, for the elements that it was compiled for and for others.
//!
//! Integers take the text of floats of their size: registers, loads and stores become those of untyped words, and sums and products those of
//! integers. Narrow elements take the text of 16 bytes: a load or store moves the first half of its registers, or less.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

/// A checked-in text, and what is different for the elements of a kernel.
#[derive(Clone, Copy)]
pub(crate) struct KernelText {
    pub(crate) checked_in: &'static str,
    pub(crate) elements: TextElements,
}

/// The elements of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextElements {
    /// Those that it was compiled for.
    Own,
    /// `i32` or `i64`, in the place of `f32` or `f64`.
    I32,
    I64,
    /// Units of fewer bytes than 16.
    Narrow {
        bytes: u8,
    },
}

impl KernelText {
    /// The text for its elements, made once in a process.
    pub(crate) fn filled(self) -> Arc<str> {
        static FILLED: Mutex<Vec<(KernelText, Arc<str>)>> = Mutex::new(Vec::new());
        let mut filled = FILLED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = filled.iter().find(|(known, _)| known.is(self)) {
            return Arc::clone(text);
        }
        let text = self.checked_in;
        let text: Arc<str> = match self.elements {
            TextElements::Own => text.into(),
            TextElements::I32 => replaced(text, &I32).into(),
            TextElements::I64 => replaced(text, &I64).into(),
            TextElements::Narrow { bytes } => narrowed(text, bytes).into(),
        };
        filled.push((self, Arc::clone(&text)));
        text
    }

    /// True if this is the same text for the same elements.
    pub(crate) fn is(self, other: Self) -> bool {
        core::ptr::eq(self.checked_in, other.checked_in) && self.elements == other.elements
    }
}

/// Words of a text and those in their place.
type Words = [(&'static str, &'static str); 5];

const I32: Words = [
    ("fma.rn.f32", "mad.lo.s32"),
    ("add.f32", "add.s32"),
    ("0f00000000", "0"),
    (".f32", ".b32"),
    ("_f32", "_i32"),
];
const I64: Words = [
    ("fma.rn.f64", "mad.lo.s64"),
    ("add.f64", "add.s64"),
    ("0d0000000000000000", "0"),
    (".f64", ".b64"),
    ("_f64", "_i64"),
];

fn replaced(text: &str, words: &Words) -> String {
    words.iter().fold(text.to_owned(), |text, (known, other)| text.replace(known, other))
}

/// `ld.global.v2.u64 {%rd1, %rd2}, [%rd3]` becomes `ld.global.u32 %rd1, [%rd3]`: a register may be wider than what is loaded or stored.
fn narrowed(text: &str, bytes: u8) -> String {
    let bits = u32::from(bytes) * 8;
    let narrow = |line: &str| {
        let (before, pair) = line.split_once(".v2.u64")?;
        let (start, registers) = pair.split_once('{')?;
        let (registers, end) = registers.split_once('}')?;
        let (first, _) = registers.split_once(',')?;
        Some(format!("{before}.u{bits}{start}{first}{end}"))
    };
    let lines = text.lines().map(|line| narrow(line).map_or(Cow::Borrowed(line), Cow::Owned));
    let text = lines.collect::<Vec<_>>().join("\n") + "\n";
    text.replace("_16(", &format!("_{bytes}(")).replace("_16_param", &format!("_{bytes}_param"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_units_move_the_first_of_two_registers() {
        let text = "gpumem_copy_16(\nld.global.v2.u64 \t{%rd1, %rd2}, [%rd3];\nst.global.v2.u64 \t[%rd3], {%rd1, %rd2};\n";
        let narrow = "gpumem_copy_2(\nld.global.u16 \t%rd1, [%rd3];\nst.global.u16 \t[%rd3], %rd1;\n";
        assert_eq!(narrowed(text, 2), narrow);
    }
}

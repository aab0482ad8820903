//! `printf` and `assert`: texts in device memory.

use crate::fault::Mistake;
use crate::memory::get;
use crate::program::{Access, Assertion, Memory, Order, Slot};
use crate::run::Run;
use crate::run::access::ThreadMemory;
use sprintf::{Printf, vsprintf};

/// The bytes of a text of `printf` or `assert`, at most.
const TEXT_BYTES_MAX: u64 = 1 << 12;
/// The bytes that a launch prints, at most: the default size of a device's buffer. More is dropped.
const PRINTED_BYTES_MAX: usize = 1 << 20;

impl Run<'_> {
    /// Formats and keeps a text. Returns the number of its arguments.
    pub(crate) fn print(
        &mut self,
        format: u64,
        arguments: u64,
        thread: &ThreadMemory<'_>,
    ) -> Result<u32, Mistake> {
        let format = self.text(format, thread)?;
        let mut at = arguments;
        let mut count = 0;
        let mut line = String::new();
        for piece in pieces(&format) {
            match piece {
                Piece::Plain(text) => line.push_str(text),
                Piece::Conversion { text, stars, conversion, is_wide } => {
                    let mut values: Vec<Box<dyn Printf>> = Vec::new();
                    for _ in 0..stars {
                        values.push(Box::new(self.value(&mut at, 4, thread)? as i32));
                    }
                    let bytes = if is_wide || b"feEgGaAsp".contains(&conversion) { 8 } else { 4 };
                    let value = self.value(&mut at, bytes, thread)?;
                    values.push(match conversion {
                        b'd' | b'i' if is_wide => Box::new(value as i64),
                        b'd' | b'i' => Box::new(value as i32),
                        b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                            Box::new(f64::from_bits(value))
                        }
                        b'c' => Box::new(char::from(value as u8)),
                        b's' => Box::new(self.text(value, thread)?),
                        b'p' => Box::new(format!("{value:#x}")),
                        _ if is_wide => Box::new(value),
                        _ => Box::new(value as u32),
                    });
                    let text = if conversion == b'p' { text.replace('p', "s") } else { text };
                    let values: Vec<&dyn Printf> = values.iter().map(|value| &**value).collect();
                    // What no `printf` formats is shown as it is written.
                    line.push_str(&vsprintf(&text, &values).unwrap_or(text));
                    count += 1 + stars;
                }
            }
        }
        if self.printed.len() + line.len() <= PRINTED_BYTES_MAX {
            self.printed.push_str(&line);
        }
        Ok(count)
    }

    /// The mistake of a failed assertion.
    pub(crate) fn failed(
        &mut self,
        assertion: &Assertion,
        value: impl Fn(&Self, Slot) -> u64,
        thread: &ThreadMemory<'_>,
    ) -> Mistake {
        let text = |run: &mut Self, slot| {
            let address = value(run, slot);
            run.text(address, thread).unwrap_or_default()
        };
        Mistake::Assert {
            text: text(self, assertion.text),
            file: text(self, assertion.file),
            function: text(self, assertion.function),
            line: value(self, assertion.line) as u32,
        }
    }

    /// The argument at `at`, which is moved behind it.
    fn value(&mut self, at: &mut u64, bytes: u8, thread: &ThreadMemory<'_>) -> Result<u64, Mistake> {
        let address = at.next_multiple_of(u64::from(bytes));
        *at = address.wrapping_add(u64::from(bytes));
        Ok(get(self.cells(&generic(bytes), address, thread, false)?))
    }

    /// The text at an address, up to its zero.
    fn text(&mut self, address: u64, thread: &ThreadMemory<'_>) -> Result<String, Mistake> {
        let mut bytes = Vec::new();
        for at in address..address.saturating_add(TEXT_BYTES_MAX) {
            match self.cells(&generic(1), at, thread, false)?.first().map_or(0, |cell| cell.get()) {
                0 => break,
                byte => bytes.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// An access that belongs to no instruction with a place of its own.
fn generic(bytes: u8) -> Access {
    Access {
        space: Memory::Generic,
        at: Slot::Constant(0),
        offset_bytes: 0,
        bytes,
        count: 1,
        site: 0,
        order: Order::default(),
    }
}

/// A part of a format.
enum Piece<'f> {
    Plain(&'f str),
    Conversion {
        /// Without its length, which the type of the value replaces.
        text: String,
        /// The widths that are arguments.
        stars: u32,
        conversion: u8,
        is_wide: bool,
    },
}

/// The parts of a format, in order.
fn pieces(format: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = format;
    while let Some(start) = rest.find('%') {
        pieces.push(Piece::Plain(&rest[..start]));
        rest = &rest[start..];
        let end = rest[1..].find(|c: char| c.is_ascii_alphabetic() && !"hlLqjzt".contains(c) || c == '%');
        let Some(end) = end.map(|end| end + 1) else { break };
        let whole = &rest[..=end];
        rest = &rest[end + 1..];
        if whole == "%%" {
            pieces.push(Piece::Plain("%"));
            continue;
        }
        let length = |c: char| "hlLqjzt".contains(c);
        pieces.push(Piece::Conversion {
            text: whole.chars().filter(|c| !length(*c)).collect(),
            stars: whole.matches('*').count() as u32,
            conversion: whole.as_bytes()[end],
            is_wide: whole.contains(['l', 'q', 'j', 'z', 't']),
        });
    }
    pieces.push(Piece::Plain(rest));
    pieces
}

//! [`Pickle`]: reads a pickle, and keeps which of its parts are shared.
//!
//! A snapshot of PyTorch names each stack once, and refers to it from every event. The values here are numbers of lists and dictionaries
//! in tables, so a reference costs as much as in the file, whatever it refers to, and cycles are harmless. Nothing is called or
//! imported: objects of classes are opaque.

use std::collections::HashMap;

/// The values of a pickle.
pub(super) struct Pickle {
    pub(super) root: Value,
    texts: Vec<Box<str>>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
}

/// A value; texts, lists (also tuples) and dictionaries by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    None,
    Int(i64),
    /// A number above those of `Int`.
    Large(u64),
    Text(u32),
    List(u32),
    Dict(u32),
    /// Anything else: an object, bytes, a float, a set.
    Opaque,
}

/// Why a pickle cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    what: &'static str,
    offset: usize,
}

impl core::fmt::Display for Flaw {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} at byte {}", self.what, self.offset)
    }
}

impl Pickle {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Flaw> {
        let mut machine = Machine { bytes, ..Machine::default() };
        match machine.run() {
            Ok(root) => {
                let Machine { texts, lists, dicts, .. } = machine;
                Ok(Self { root, texts, lists, dicts })
            }
            Err(what) => Err(Flaw { what, offset: machine.at }),
        }
    }

    pub(super) fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(number) => self.texts.get(number as usize).map(|text| &**text),
            _ => None,
        }
    }

    pub(super) fn list(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(number) => self.lists.get(number as usize).map(Vec::as_slice),
            _ => None,
        }
    }

    /// The first items of a dictionary whose keys are texts. No dictionary of a snapshot has more; a file may refer to a long one often.
    pub(super) fn items(&self, value: Value) -> Option<impl Iterator<Item = (&str, Value)>> {
        let Value::Dict(number) = value else { return None };
        let items = self.dicts.get(number as usize)?;
        Some(items.iter().take(ITEM_COUNT_MAX).filter_map(|(key, value)| Some((self.text(*key)?, *value))))
    }

    /// An item of a dictionary.
    pub(super) fn item(&self, dict: Value, key: &str) -> Option<Value> {
        self.items(dict)?.find(|(own, _)| *own == key).map(|(_, value)| value)
    }
}

impl Value {
    pub(super) fn as_u64(self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(number).ok(),
            Self::Large(number) => Some(number),
            _ => None,
        }
    }
}

/// The machine that a pickle is a program for.
#[derive(Default)]
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    /// The first entries of the memo, and those that are put out of order.
    memo: Vec<Value>,
    memo_of_others: HashMap<u32, Value>,
    texts: Vec<Box<str>>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
}

type Step<T> = Result<T, &'static str>;

impl<'a> Machine<'a> {
    fn run(&mut self) -> Step<Value> {
        loop {
            let code = self.byte()?;
            match code {
                b'.' => return self.pop(),
                b'\x80' => _ = self.byte()?,
                // A frame: the lengths of the values in it bound the reads as well.
                b'\x95' => _ = self.take(8)?,
                b'(' => self.marks.push(self.stack.len()),
                b'0' => _ = self.pop()?,
                b'1' => _ = self.pop_mark()?,
                b'2' => self.push(*self.stack.last().ok_or(EMPTY)?),
                b'N' | b'K' | b'M' | b'J' | b'I' | b'L' | b'\x88' | b'\x89' | b'\x8a' | b'\x8b' => {
                    let number = self.number(code)?;
                    self.push(number);
                }
                b'G' => self.opaque_bytes(8)?,
                b'F' => {
                    self.line()?;
                    self.push(Value::Opaque);
                }
                b'X' | b'\x8c' | b'\x8d' => self.text(code)?,
                b'U' | b'T' | b'C' | b'B' | b'\x8e' | b'\x96' => {
                    let length = self.length(code)?;
                    self.opaque_bytes(length)?;
                }
                b']' | b'l' | b')' | b't' | b'\x85' | b'\x86' | b'\x87' | b'a' | b'e' => {
                    self.list_step(code)?
                }
                b'}' | b'd' | b's' | b'u' => self.dict_step(code)?,
                b'q' | b'r' | b'\x94' | b'h' | b'j' => self.memo_step(code)?,
                _ => self.object_step(code)?,
            }
        }
    }

    fn number(&mut self, code: u8) -> Step<Value> {
        Ok(match code {
            b'N' => Value::None,
            b'K' => Value::Int(self.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.array()?).into()),
            b'J' => Value::Int(i32::from_le_bytes(self.array()?).into()),
            b'\x88' => Value::Int(1),
            b'\x89' => Value::Int(0),
            b'\x8a' | b'\x8b' => {
                let length = if code == b'\x8a' {
                    self.byte()?.into()
                } else {
                    u32::from_le_bytes(self.array()?) as usize
                };
                long(self.take(length)?)
            }
            _ => {
                let line = self.line()?.trim_ascii_end();
                let digits = line.strip_suffix(b"L").unwrap_or(line);
                let number = core::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
                number.map_or(Value::Opaque, Value::Int)
            }
        })
    }

    fn text(&mut self, code: u8) -> Step<()> {
        let length = self.length(code)?;
        let bytes = self.take(length)?;
        // Python writes lone surrogates of names too, which are no UTF-8.
        let text = String::from_utf8_lossy(bytes);
        self.texts.push(text.into());
        self.push(Value::Text(number_of(self.texts.len())?));
        Ok(())
    }

    fn list_step(&mut self, code: u8) -> Step<()> {
        let items = match code {
            b']' | b')' => Vec::new(),
            b'l' | b't' | b'e' => self.pop_mark()?,
            b'\x85' | b'\x86' | b'\x87' => {
                let count = usize::from(code - b'\x84');
                let start = self.stack.len().checked_sub(count).ok_or(EMPTY)?;
                self.stack.split_off(start)
            }
            _ => vec![self.pop()?],
        };
        if matches!(code, b'a' | b'e') {
            // A list that a class makes is opaque.
            if let Value::List(number) = *self.stack.last().ok_or(EMPTY)? {
                self.lists[number as usize].extend(items);
            }
            return Ok(());
        }
        self.lists.push(items);
        self.push(Value::List(number_of(self.lists.len())?));
        Ok(())
    }

    fn dict_step(&mut self, code: u8) -> Step<()> {
        let items = match code {
            b'}' => Vec::new(),
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                vec![key, value]
            }
            _ => self.pop_mark()?,
        };
        let pairs = items.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        if matches!(code, b's' | b'u') {
            if let Value::Dict(number) = *self.stack.last().ok_or(EMPTY)? {
                self.dicts[number as usize].extend(pairs);
            }
            return Ok(());
        }
        self.dicts.push(pairs.collect());
        self.push(Value::Dict(number_of(self.dicts.len())?));
        Ok(())
    }

    fn memo_step(&mut self, code: u8) -> Step<()> {
        let number = match code {
            b'\x94' => number_of(self.memo.len() + 1)?,
            b'q' | b'h' => self.byte()?.into(),
            _ => u32::from_le_bytes(self.array()?),
        };
        if matches!(code, b'h' | b'j') {
            let known = self.memo.get(number as usize).or_else(|| self.memo_of_others.get(&number));
            let value = *known.ok_or("a reference to nothing")?;
            self.push(value);
            return Ok(());
        }
        let value = *self.stack.last().ok_or(EMPTY)?;
        let (place, length) = (number as usize, self.memo.len());
        if place < length {
            self.memo[place] = value;
        } else if place == length {
            self.memo.push(value);
        } else {
            self.memo_of_others.insert(number, value);
        }
        Ok(())
    }

    /// Classes, their objects, and what else a snapshot may have at its edges.
    fn object_step(&mut self, code: u8) -> Step<()> {
        let operand_count = match code {
            // A class, by name or by number; an object by a name.
            b'c' => {
                self.line()?;
                self.line()?;
                0
            }
            b'P' => {
                self.line()?;
                0
            }
            b'\x82' => self.take(1).map(|_| 0)?,
            b'\x83' => self.take(2).map(|_| 0)?,
            b'\x84' => self.take(4).map(|_| 0)?,
            b'Q' => 1,
            b'R' | b'\x81' | b'\x93' => 2,
            b'\x92' => 3,
            // The state of an object, which stays on the stack.
            b'b' => {
                self.pop()?;
                return Ok(());
            }
            // Objects of old protocols, and sets.
            b'i' => {
                self.line()?;
                self.line()?;
                self.pop_mark()?;
                0
            }
            b'o' | b'\x91' => self.pop_mark().map(|_| 0)?,
            b'\x8f' => 0,
            b'\x90' => {
                self.pop_mark()?;
                return Ok(());
            }
            _ => return Err("an unknown instruction"),
        };
        for _ in 0..operand_count {
            self.pop()?;
        }
        self.push(Value::Opaque);
        Ok(())
    }

    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    /// Takes the last value, but none that a mark is behind.
    fn pop(&mut self) -> Step<Value> {
        if self.marks.last().is_some_and(|mark| *mark >= self.stack.len()) {
            return Err(EMPTY);
        }
        self.stack.pop().ok_or(EMPTY)
    }

    /// Takes the values since the last mark.
    fn pop_mark(&mut self) -> Step<Vec<Value>> {
        let mark = self.marks.pop().ok_or("no mark")?;
        if mark > self.stack.len() {
            return Err(EMPTY);
        }
        Ok(self.stack.split_off(mark))
    }

    fn byte(&mut self) -> Step<u8> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| CUT)
    }

    fn take(&mut self, length: usize) -> Step<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let bytes = rest.get(..length).ok_or(CUT)?;
        self.at += length;
        Ok(bytes)
    }

    /// The bytes up to the end of a line.
    fn line(&mut self) -> Step<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or(CUT)?;
        self.at += length + 1;
        Ok(&rest[..length])
    }

    /// The length of a text, or of bytes.
    fn length(&mut self, code: u8) -> Step<usize> {
        Ok(match code {
            b'\x8c' | b'U' | b'C' => self.byte()?.into(),
            b'X' | b'T' | b'B' => u32::from_le_bytes(self.array()?) as usize,
            _ => usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| CUT)?,
        })
    }

    fn opaque_bytes(&mut self, length: usize) -> Step<()> {
        self.take(length)?;
        self.push(Value::Opaque);
        Ok(())
    }
}

/// The number of the last entry of a table.
fn number_of(length: usize) -> Step<u32> {
    u32::try_from(length - 1).map_err(|_| "too many values")
}

/// A number in two's complement, least byte first.
fn long(bytes: &[u8]) -> Value {
    let is_negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
    let fill = if is_negative { 0xff } else { 0 };
    let byte = |index: usize| bytes.get(index).copied().unwrap_or(fill);
    if (9..bytes.len()).any(|index| byte(index) != fill) {
        return Value::Opaque;
    }
    let number = u64::from_le_bytes(core::array::from_fn(byte));
    let is_signed = byte(8) == fill && (number >> 63 == 1) == is_negative;
    match byte(8) {
        _ if is_signed => Value::Int(number as i64),
        0 => Value::Large(number),
        _ => Value::Opaque,
    }
}

const ITEM_COUNT_MAX: usize = 64;
const CUT: &str = "it ends too early";
const EMPTY: &str = "a value is missing";

#[cfg(test)]
mod tests {
    use super::{Pickle, Value, long};
    use proptest::prelude::*;

    #[test]
    fn numbers_keep_their_sign() {
        let cases: [(&[u8], Value); 7] = [
            (&[], Value::Int(0)),
            (&[0xff], Value::Int(-1)),
            (&[0xff, 0], Value::Int(255)),
            (&[0, 0, 0, 0, 0, 0, 0, 0x80], Value::Int(i64::MIN)),
            (&[0, 0, 0, 0, 0, 0, 0, 0x80, 0], Value::Large(1 << 63)),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 1], Value::Opaque),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff], Value::Opaque),
        ];
        for (bytes, expected) in cases {
            assert_eq!(long(bytes), expected, "{bytes:?}");
        }
    }

    /// A list that contains itself, and is used twice: `x = []; x.append(x); {"a": x, "b": x}`.
    #[test]
    fn parts_that_are_shared_or_contain_themselves_are_kept() {
        let bytes = b"\x80\x04}\x94(\x8c\x01a\x94]\x94h\x02a\x8c\x01bh\x02u.";
        let pickle = Pickle::read(bytes).unwrap();
        let (a, b) = (pickle.item(pickle.root, "a").unwrap(), pickle.item(pickle.root, "b").unwrap());
        assert_eq!((a, pickle.list(a).unwrap()), (b, &[a][..]));
    }

    /// Each reference to a list of references costs two bytes; a reader that copies would need 2^40 values.
    #[test]
    fn references_do_not_multiply() {
        let mut bytes = b"\x80\x04]\x94".to_vec();
        for level in 0..40 {
            bytes.extend([b']', 0x94, b'(', b'h', level, b'h', level, b'e']);
        }
        bytes.push(b'.');
        assert_eq!(Pickle::read(&bytes).unwrap().lists.len(), 41);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Pickle::read(&bytes);
        }

        /// Programs of the instructions that matter most.
        #[test]
        fn no_program_makes_it_panic(
            bytes in proptest::collection::vec(prop::sample::select(&b"(012NK]l)ta}dsuqh\x94\x85\x86\x87e\x8f\x90R\x93b."[..]), 0..200)
        ) {
            let _ = Pickle::read(&bytes);
        }
    }
}

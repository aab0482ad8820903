//! The words of a PTX text, with their places. Pure.

use crate::error::{Place, PtxError};

/// What a word is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Word<'t> {
    /// A name, an opcode with its modifiers, a directive, a register: `ld.global.u32`, `.reg`, `%tid.x`, `$L__BB0_1`.
    Name(&'t str),
    Integer(u64),
    /// The bits of a number written as `0f…`.
    Single(u32),
    /// The bits of a number written as `0d…`, or of a decimal fraction.
    Double(u64),
    Text(&'t str),
    Mark(u8),
    End,
}

/// Splits a text into words.
#[derive(Clone)]
pub(crate) struct Words<'t> {
    text: &'t str,
    at: usize,
    line: u32,
    line_start: usize,
}

impl<'t> Words<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self { text, at: 0, line: 1, line_start: 0 }
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn place(&self) -> Place {
        Place { line: self.line, column: (self.at - self.line_start) as u32 + 1 }
    }

    /// Skips spaces and comments.
    fn skip(&mut self) -> Result<(), PtxError> {
        while self.at < self.text.len() {
            match (self.byte(0), self.byte(1)) {
                (b'\n', _) => {
                    self.at += 1;
                    (self.line, self.line_start) = (self.line.saturating_add(1), self.at);
                }
                (b' ' | b'\t' | b'\r' | 0x0b | 0x0c, _) => self.at += 1,
                (b'/', b'/') => {
                    self.at += self.text[self.at..].find('\n').unwrap_or(self.text.len() - self.at);
                }
                (b'/', b'*') => {
                    let start = self.place();
                    let rest = &self.text[self.at + 2..];
                    let len =
                        rest.find("*/").ok_or_else(|| PtxError::syntax(start, "a comment without an end"))?;
                    let lines = rest[..len].bytes().filter(|byte| *byte == b'\n').count();
                    if lines > 0 {
                        self.line = self.line.saturating_add(lines as u32);
                        self.line_start = self.at + 2 + rest[..len].rfind('\n').unwrap_or(0) + 1;
                    }
                    self.at += 2 + len + 2;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Everything up to the next space.
    pub(crate) fn unsplit(&mut self) -> Result<(&'t str, Place), PtxError> {
        self.skip()?;
        let (place, start) = (self.place(), self.at);
        let rest = &self.text[start..];
        self.at += rest.find(char::is_whitespace).unwrap_or(rest.len());
        Ok((&self.text[start..self.at], place))
    }

    /// The next word and its place.
    pub(crate) fn next(&mut self) -> Result<(Word<'t>, Place), PtxError> {
        self.skip()?;
        let place = self.place();
        let start = self.at;
        if start >= self.text.len() {
            return Ok((Word::End, place));
        }
        let first = self.byte(0);
        if first.is_ascii_digit() || first == b'.' && self.byte(1).is_ascii_digit() {
            return Ok((self.number(place)?, place));
        }
        if is_name_byte(first) || first == b'.' && is_name_byte(self.byte(1)) {
            self.at += 1;
            loop {
                let ahead = self.byte(0);
                // A directive ends before the next one, also without a space: `.reg.b32`.
                let goes_on = ahead == b'.' && first != b'.' && is_name_byte(self.byte(1));
                if is_name_byte(ahead) || goes_on {
                    self.at += 1;
                } else if ahead == b':' && self.byte(1) == b':' && is_name_byte(self.byte(2)) {
                    self.at += 2;
                } else {
                    break;
                }
            }
            return Ok((Word::Name(&self.text[start..self.at]), place));
        }
        if first == b'"' {
            let len = self.text[start + 1..].find(['"', '\n']).filter(|len| self.byte(1 + len) == b'"');
            let len = len.ok_or_else(|| PtxError::syntax(place, "a text without an end"))?;
            self.at += len + 2;
            return Ok((Word::Text(&self.text[start + 1..start + 1 + len]), place));
        }
        if !first.is_ascii_graphic() {
            return Err(PtxError::syntax(place, "a character that no PTX has"));
        }
        self.at += 1;
        Ok((Word::Mark(first), place))
    }

    fn number(&mut self, place: Place) -> Result<Word<'t>, PtxError> {
        let start = self.at;
        let is_hex_start =
            self.byte(0) == b'0' && matches!(self.byte(1), b'x' | b'X' | b'f' | b'F' | b'd' | b'D');
        let is_fraction_byte = |words: &Self| {
            let (byte, before) = (words.byte(0), words.text.as_bytes()[words.at - 1]);
            byte == b'.' || !is_hex_start && matches!(byte, b'+' | b'-') && matches!(before, b'e' | b'E')
        };
        self.at += 1;
        while self.byte(0).is_ascii_alphanumeric() || is_fraction_byte(self) {
            self.at += 1;
        }
        let word = &self.text[start..self.at];
        let wrong = || PtxError::syntax(place, format!("`{}` is no number", crate::error::short(word)));
        let hex = |digits: &str, len: usize| {
            u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == len && !digits.starts_with('+'))
        };
        match word.as_bytes().get(1) {
            Some(b'f' | b'F') => {
                return hex(&word[2..], 8).map(|bits| Word::Single(bits as u32)).ok_or_else(wrong);
            }
            Some(b'd' | b'D') => return hex(&word[2..], 16).map(Word::Double).ok_or_else(wrong),
            _ => {}
        }
        if !is_hex_start && word.contains(['.', 'e', 'E']) {
            let value: f64 = word.parse().map_err(|_| wrong())?;
            let is_zero = || {
                word.bytes()
                    .take_while(|byte| !matches!(byte, b'e' | b'E'))
                    .all(|byte| matches!(byte, b'0' | b'.'))
            };
            return match value.is_normal() || value == 0.0 && is_zero() {
                true => Ok(Word::Double(value.to_bits())),
                false => {
                    let what =
                        format!("`{}` is too large or too small for 64 bits", crate::error::short(word));
                    Err(PtxError::syntax(place, what))
                }
            };
        }
        let digits = word.strip_suffix(['u', 'U']).unwrap_or(word);
        let (digits, radix) = match digits.get(..2) {
            Some("0x" | "0X") => (&digits[2..], 16),
            Some("0b" | "0B") => (&digits[2..], 2),
            _ if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
            _ => (digits, 10),
        };
        u64::from_str_radix(digits, radix).map(Word::Integer).map_err(|_| wrong())
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Word<'_>> {
        let mut words = Words::new(text);
        let mut found = Vec::new();
        loop {
            match words.next().unwrap().0 {
                Word::End => return found,
                word => found.push(word),
            }
        }
    }

    #[test]
    fn words_of_every_kind() {
        use Word::*;
        assert_eq!(
            all("@%p1 ld.shared::cta.v2.u32 {%r1, _}, [a+4]; // end\n/* x\n */ mov.f32 %f1, 0f3F800000;"),
            [
                Mark(b'@'),
                Name("%p1"),
                Name("ld.shared::cta.v2.u32"),
                Mark(b'{'),
                Name("%r1"),
                Mark(b','),
                Name("_"),
                Mark(b'}'),
                Mark(b','),
                Mark(b'['),
                Name("a"),
                Mark(b'+'),
                Integer(4),
                Mark(b']'),
                Mark(b';'),
                Name("mov.f32"),
                Name("%f1"),
                Mark(b','),
                Single(0x3F80_0000),
                Mark(b';'),
            ]
        );
        assert_eq!(
            all("0x1fU 017 0b11 42 1.5 2e-1"),
            [
                Integer(31),
                Integer(15),
                Integer(3),
                Integer(42),
                Double(1.5_f64.to_bits()),
                Double(0.2_f64.to_bits()),
            ]
        );
    }

    #[test]
    fn directives_need_no_space_between_them() {
        let names = [".reg", ".b32", "f"].map(Word::Name);
        assert_eq!(all(".reg.b32 f"), names);
        assert_eq!(all(".reg .b32 f"), names);
        assert_eq!(all("ld.global.b32"), [Word::Name("ld.global.b32")]);
    }

    #[test]
    fn places_count_lines_and_columns() {
        let mut words = Words::new("a /* \n\n */ b\n  c");
        let mut places = Vec::new();
        while let (Word::Name(_), place) = words.next().unwrap() {
            places.push((place.line, place.column));
        }
        assert_eq!(places, [(1, 1), (3, 5), (4, 3)]);
    }

    #[test]
    fn what_is_no_word_is_refused() {
        for text in ["/* a", "\"a", "0fzz", "0d12", "99999999999999999999", "\u{e9}", "0x"] {
            let mut words = Words::new(text);
            assert!(words.next().is_err(), "{text}");
        }
    }
}

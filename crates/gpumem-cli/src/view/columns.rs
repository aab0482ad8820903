//! [`Columns`]: numbers for a page, in a small form: LEB128, compressed, in base64.

use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::io::{self, Write};

/// Columns of numbers, one after another.
#[derive(Default)]
pub(super) struct Columns {
    bytes: Vec<u8>,
    /// The name of each column, and how many numbers it has.
    pub(super) index: Vec<(&'static str, usize)>,
}

impl Columns {
    pub(super) fn add(&mut self, name: &'static str, numbers: impl IntoIterator<Item = u64>) {
        let mut count = 0;
        for number in numbers {
            self.push(number.min(NUMBER_MAX));
            count += 1;
        }
        self.index.push((name, count));
    }

    /// Adds the differences between the numbers, which may be negative.
    pub(super) fn add_differences(&mut self, name: &'static str, numbers: impl IntoIterator<Item = u64>) {
        let mut last = 0;
        self.add(
            name,
            numbers.into_iter().map(|number| {
                let number = number.min(NUMBER_MAX / 2) as i64;
                let difference = number - last;
                last = number;
                ((difference << 1) ^ (difference >> 63)) as u64
            }),
        );
    }

    fn push(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Writes the columns as base64 of a raw deflate stream.
    pub(super) fn write(&self, output: &mut dyn Write) -> io::Result<()> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
        encoder.write_all(&self.bytes)?;
        output.write_all(base64(&encoder.finish()?).as_bytes())
    }
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// JavaScript calculates with floats, which hold these numbers exactly.
pub(super) const NUMBER_MAX: u64 = (1 << f64::MANTISSA_DIGITS) - 1;

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_others() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(texts, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}

//! A number of bytes, printed for people: binary units, three decimals unless told otherwise.

use core::fmt;

/// Prints a number of bytes as `0 bytes`, `8.000 KiB` or, with `{:.1}`, `139.8 GiB`.
///
/// ```
/// use gpumem_pool::Bytes;
///
/// assert_eq!(Bytes(8 << 10).to_string(), "8.000 KiB");
/// assert_eq!(format!("{:.1}", Bytes(150_754_820_096)), "140.4 GiB");
/// assert_eq!(Bytes(1).to_string(), "1 byte");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.pad("1 byte"),
            count if count < 1 << 10 => f.pad(&format!("{count} bytes")),
            count => {
                let (unit, name) = UNITS[(count.ilog2() / 10 - 1) as usize];
                let decimals = f.precision().unwrap_or(3);
                // Padded without the precision, which would cut the text.
                let text = format!("{:.decimals$} {name}", count as f64 / unit as f64);
                match f.width() {
                    Some(width) => write!(f, "{text:>width$}"),
                    None => f.write_str(&text),
                }
            }
        }
    }
}

const UNITS: [(u64, &str); 6] = [
    (1 << 10, "KiB"),
    (1 << 20, "MiB"),
    (1 << 30, "GiB"),
    (1 << 40, "TiB"),
    (1 << 50, "PiB"),
    (1 << 60, "EiB"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_prints_in_its_own_unit() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1.000 KiB"),
            (32 << 20, "32.000 MiB"),
            (2_764_875_366, "2.575 GiB"),
            (1 << 40, "1.000 TiB"),
            (u64::MAX, "16.000 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:12}|{:.0}", Bytes(1024), Bytes(1024)), "   1.000 KiB|1 KiB");
    }
}

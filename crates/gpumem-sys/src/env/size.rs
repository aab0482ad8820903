//! Parsers of sizes such as `100M`, `1.5GiB`, `10000`. Limits, options and variables use them.

/// Parses a size and returns its bytes, rounded down. A size is a number and an optional unit in upper or lower case; a decimal
/// point requires a unit larger than a byte.
///
/// `KiB` to `EiB` are binary. `KB` to `EB` and the bare letters are decimal, as on a disk: `100M` is a hundred million bytes.
/// Returns `None` for any other text, and for sizes beyond [`u64::MAX`].
///
/// ```
/// use gpumem_sys::env::parse_size;
///
/// assert_eq!(parse_size("1.5GiB"), Some(1_610_612_736));
/// assert_eq!(parse_size("100M"), Some(100_000_000));
/// assert_eq!(parse_size("10000"), Some(10_000));
/// assert_eq!(parse_size("lots"), None);
/// ```
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (amount, unit) = text.split_at(digits);
    let unit_bytes = unit_bytes(&unit.trim_start().to_ascii_uppercase())?;
    if let Ok(whole) = amount.parse::<u64>() {
        return whole.checked_mul(unit_bytes);
    }
    // A fraction of a byte is a mistake: a percentage, or a size whose unit is missing.
    let product = parse_number(amount).filter(|_| unit_bytes > 1)? * unit_bytes as f64;
    // The largest float below 2^64 fits; 2^64 itself does not.
    (product < u64::MAX as f64).then_some(product as u64)
}

/// Parses a number of digits with at most one decimal point. Signs, exponents, infinity and NaN, which [`f64`] accepts, are refused.
///
/// ```
/// use gpumem_sys::env::parse_number;
///
/// assert_eq!(parse_number("6.25"), Some(6.25));
/// assert_eq!(parse_number("1e9"), None);
/// ```
#[must_use]
pub fn parse_number(text: &str) -> Option<f64> {
    let is_plain = text.chars().all(|c| c.is_ascii_digit() || c == '.') && text.contains(|c: char| c != '.');
    is_plain.then(|| text.parse().ok()).flatten().filter(|value: &f64| value.is_finite())
}

/// The size of a unit in upper case; an empty unit is one byte.
fn unit_bytes(unit: &str) -> Option<u64> {
    let stem = unit.strip_suffix('B').unwrap_or(unit);
    let (prefix, base) = match stem.strip_suffix('I') {
        Some(prefix) => (prefix, 1024_u64),
        None if stem.is_empty() => return Some(1),
        None => (stem, 1000_u64),
    };
    let power = ["K", "M", "G", "T", "P", "E"].iter().position(|known| *known == prefix)? + 1;
    Some(base.pow(power as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("10000", 10_000),
            ("10000B", 10_000),
            ("100M", 100_000_000),
            ("1.5kb", 1_500),
            ("1.5GiB", 3 << 29),
            (" 4 gib ", 4 << 30),
            (".5KiB", 512),
            ("0.0001KiB", 0),
            ("15EiB", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let wrong = [
            "",
            " ",
            "lots",
            "-1",
            "+1",
            "NaN",
            "inf",
            "1e9",
            "50%",
            ".",
            "1.2.3",
            "GiB",
            "5 apples",
            "0.5",
            "1.5B",
            "1,5GiB",
            "16EiB",
            "20000000000GiB",
            "18446744073709551616",
            "1.5.GiB",
            "½GiB",
            "0x10",
            "1IB",
        ];
        for text in wrong {
            assert_eq!(parse_size(text), None, "{text:?}");
        }
    }
}

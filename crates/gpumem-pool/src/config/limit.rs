//! [`Limit`]: an amount of device memory in text form, `1.5GiB` or `50%`. Pure.

use crate::config::{ConfigError, MemoryKind};
use core::fmt;
use core::str::FromStr;
use gpumem_sys::env::{parse_number, parse_size};

/// An amount of memory: a number of bytes, or a share of the device.
///
/// ```
/// use gpumem_pool::Limit;
///
/// assert_eq!("1.5GiB".parse::<Limit>()?, Limit::Bytes(1_610_612_736));
/// assert_eq!("50%".parse::<Limit>()?.resolve(1 << 30)?, 512 << 20);
/// assert!("lots".parse::<Limit>().unwrap_err().to_string().contains("100M, 1.5GiB"));
/// # Ok::<(), gpumem_pool::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Limit {
    /// A number of bytes.
    Bytes(u64),
    /// A share of the device's memory, from 0 to 100.
    Percent(f64),
}

impl Limit {
    /// The limit in bytes on a device with `total_bytes`, rounded down.
    ///
    /// # Errors
    ///
    /// [`ConfigError::LimitSyntax`] if a share is outside 0 to 100 %.
    pub fn resolve(self, total_bytes: u64) -> Result<u64, ConfigError> {
        match self {
            Self::Bytes(count) => Ok(count),
            Self::Percent(share) if (0.0..=100.0).contains(&share) => {
                // An `f64` has 53 bits: beyond 8 PiB the product may round up past the total.
                Ok(((total_bytes as f64 * (share / 100.0)) as u64).min(total_bytes))
            }
            Self::Percent(_) => Err(ConfigError::LimitSyntax { value: self.to_string() }),
        }
    }
}

impl Limit {
    /// Like [`Limit::resolve`], but refuses a share for host memory, which is not part of the device's memory.
    pub(crate) fn resolve_for(self, kind: MemoryKind, device_bytes: u64) -> Result<u64, ConfigError> {
        match (self, kind) {
            (Self::Percent(_), MemoryKind::Host) => {
                Err(ConfigError::ShareOfHost { limit: self, limit_option: None, kind_option: None })
            }
            _ => self.resolve(device_bytes),
        }
    }
}

impl FromStr for Limit {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let trimmed = text.trim();
        let parsed = match trimmed.strip_suffix('%') {
            Some(share) => parse_number(share.trim_end()).filter(|share| *share <= 100.0).map(Self::Percent),
            None => parse_size(trimmed).map(Self::Bytes),
        };
        parsed.ok_or_else(|| ConfigError::LimitSyntax { value: text.into() })
    }
}

impl From<u64> for Limit {
    fn from(count: u64) -> Self {
        Self::Bytes(count)
    }
}

/// Prints a text that parses to an equal limit: the largest binary unit that divides the number, or a share.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Percent(share) => write!(f, "{share}%"),
            Self::Bytes(count) => {
                let divides = |power: &u32| count != 0 && count % 1024_u64.pow(*power) == 0;
                match (1..=6).rev().find(divides) {
                    None => write!(f, "{count}"),
                    Some(power) => {
                        write!(f, "{}{}iB", count / 1024_u64.pow(power), PREFIXES[power as usize - 1])
                    }
                }
            }
        }
    }
}

/// The prefixes of the binary units, smallest first.
const PREFIXES: [&str; 6] = ["K", "M", "G", "T", "P", "E"];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Option<Limit> {
        text.parse().ok()
    }

    #[test]
    fn the_seeds_forms_parse() {
        assert_eq!(parsed("100M"), Some(Limit::Bytes(100_000_000)));
        assert_eq!(parsed("1.5GiB"), Some(Limit::Bytes(3 << 29)));
        assert_eq!(parsed("50%"), Some(Limit::Percent(50.0)));
        assert_eq!(parsed("10000"), Some(Limit::Bytes(10_000)));
        assert_eq!(parsed(" 4 gib "), Some(Limit::Bytes(4 << 30)));
        assert_eq!(parsed("18446744073709551615"), Some(Limit::Bytes(u64::MAX)));
        assert_eq!(parsed(".5%"), Some(Limit::Percent(0.5)));
    }

    #[test]
    fn what_is_no_limit_is_refused_with_the_forms() {
        let wrong = [
            "",
            " ",
            "lots",
            "-1",
            "-1GiB",
            "+1",
            "NaN",
            "nan%",
            "inf",
            "inf%",
            "1e9",
            "1e400",
            "101%",
            "-5%",
            "%",
            ".",
            ".%",
            "1.2.3",
            "GiB",
            "5 apples",
            "0.5",
            "1.5B",
            "1,5GiB",
            "18446744073709551616",
            "16EiB",
            "20000000000GiB",
            "1.5.GiB",
            "½GiB",
            "5%%",
            "0x10",
        ];
        for text in wrong {
            let error = text.parse::<Limit>().expect_err(text).to_string();
            assert!(error.contains("100M, 1.5GiB") && error.contains("50%"), "{error}");
        }
    }

    #[test]
    fn a_share_built_by_hand_is_checked_too() {
        for share in [-0.1, 100.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(matches!(Limit::Percent(share).resolve(1 << 30), Err(ConfigError::LimitSyntax { .. })));
        }
        assert_eq!(Limit::Percent(100.0).resolve(u64::MAX).unwrap(), u64::MAX);
        assert_eq!(Limit::Percent(0.0).resolve(1 << 40).unwrap(), 0);
    }

    const UNITS: [(&str, u128); 10] = [
        ("", 1),
        ("B", 1),
        ("K", 1_000),
        ("kB", 1_000),
        ("Ki", 1_024),
        ("MiB", 1_048_576),
        ("GB", 1_000_000_000),
        ("TiB", 1_099_511_627_776),
        ("P", 1_000_000_000_000_000),
        ("EiB", 1_152_921_504_606_846_976),
    ];

    proptest! {
        #[test]
        fn printing_and_parsing_agree(limit in prop_oneof![
            any::<u64>().prop_map(Limit::Bytes),
            (any::<u64>(), 0_u32..64).prop_map(|(count, shift)| Limit::Bytes(count << shift)),
            (0.0..=100.0).prop_map(Limit::Percent),
        ]) {
            prop_assert_eq!(parsed(&limit.to_string()), Some(limit));
        }

        /// The naive twin: 128-bit integer arithmetic.
        #[test]
        fn whole_numbers_with_a_unit_are_exact(count in any::<u64>(), unit in 0..UNITS.len(), shift in 0_u32..64) {
            let (name, unit_bytes) = UNITS[unit];
            let count = count >> shift;
            let exact = u128::from(count) * unit_bytes;
            let expected = u64::try_from(exact).ok().map(Limit::Bytes);
            prop_assert_eq!(parsed(&format!("{count}{name}")), expected);
            prop_assert_eq!(parsed(&format!("{count} {}", name.to_lowercase())), expected);
        }

        #[test]
        fn a_share_never_passes_the_whole(share in 0.0..=100.0, total in any::<u64>()) {
            prop_assert!(Limit::Percent(share).resolve(total).unwrap() <= total);
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parsed(&text);
        }
    }
}

//! [`Limit`]: an amount of device memory in text form, `1.5GiB`, `50%` or `50%free`. [`IntoLimit`]: arguments that are limits. Pure.

use crate::config::{ConfigError, MemoryKind};
use core::fmt;
use core::str::FromStr;
use gpumem_sys::env::{parse_number, parse_size};

/// An amount of memory: a number of bytes, or a share of the device's total or free memory.
///
/// ```
/// use gpumem_pool::Limit;
///
/// assert_eq!("1.5GiB".parse::<Limit>()?, Limit::Bytes(1_610_612_736));
/// assert_eq!("50%".parse::<Limit>()?.resolve(1 << 30, 256 << 20)?, 512 << 20);
/// assert_eq!("50%free".parse::<Limit>()?.resolve(1 << 30, 256 << 20)?, 128 << 20);
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
    /// A share of the device's free memory, from 0 to 100, at the time when the limit is set. Memory that the pool itself has reserved
    /// counts as free.
    PercentFree(f64),
}

impl Limit {
    /// The limit in bytes on a device with `total_bytes`, of which `free_bytes` are free, rounded down.
    ///
    /// # Errors
    ///
    /// [`ConfigError::LimitSyntax`] if a share is outside 0 to 100 %.
    pub fn resolve(self, total_bytes: u64, free_bytes: u64) -> Result<u64, ConfigError> {
        let (share, whole_bytes) = match self {
            Self::Bytes(count) => return Ok(count),
            Self::Percent(share) => (share, total_bytes),
            Self::PercentFree(share) => (share, free_bytes),
        };
        match (0.0..=100.0).contains(&share) {
            // An `f64` has 53 bits: beyond 8 PiB the product may round up past the whole.
            true => Ok(((whole_bytes as f64 * (share / 100.0)) as u64).min(whole_bytes)),
            false => Err(ConfigError::LimitSyntax { value: self.to_string() }),
        }
    }
}

/// A limit as an argument: a number of bytes, a [`Limit`], or its text.
///
/// ```
/// use gpumem_pool::{Device, Limit, Pool};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).hard_limit("4GiB").soft_limit(1 << 30).build()?;
/// pool.set_hard_limit("50%free")?;
/// pool.set_hard_limit(Limit::Percent(25.0))?;
/// assert_eq!(pool.status()?.hard_limit_bytes, Some(2 << 30));
/// assert!(Pool::builder(&device).hard_limit("lots").build().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait IntoLimit: sealed::Sealed {
    /// Returns the limit.
    ///
    /// # Errors
    ///
    /// [`ConfigError::LimitSyntax`] for a text that is not a limit.
    fn into_limit(self) -> Result<Limit, ConfigError>;
}

impl IntoLimit for Limit {
    fn into_limit(self) -> Result<Limit, ConfigError> {
        Ok(self)
    }
}

impl IntoLimit for u64 {
    fn into_limit(self) -> Result<Limit, ConfigError> {
        Ok(Limit::Bytes(self))
    }
}

impl IntoLimit for &str {
    fn into_limit(self) -> Result<Limit, ConfigError> {
        self.parse()
    }
}

impl IntoLimit for String {
    fn into_limit(self) -> Result<Limit, ConfigError> {
        self.parse()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Limit {}
    impl Sealed for u64 {}
    impl Sealed for &str {}
    impl Sealed for String {}
}

impl Limit {
    /// Checks the limit for a kind of memory: a share must be valid, and not of host memory, which is not part of the device's
    /// memory.
    pub(crate) fn check_for(self, kind: MemoryKind) -> Result<(), ConfigError> {
        match (self, kind) {
            (Self::Percent(_) | Self::PercentFree(_), MemoryKind::Host) => {
                Err(ConfigError::ShareOfHost { limit: self, limit_option: None, kind_option: None })
            }
            _ => self.resolve(0, 0).map(drop),
        }
    }
}

impl FromStr for Limit {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let trimmed = text.trim();
        let share = |share: &str| parse_number(share.trim_end()).filter(|share| *share <= 100.0);
        let parsed = match trimmed.split_once('%') {
            Some((text, "")) => share(text).map(Self::Percent),
            Some((text, whole)) if whole.trim_start().eq_ignore_ascii_case("free") => {
                share(text).map(Self::PercentFree)
            }
            Some(_) => None,
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
            Self::PercentFree(share) => write!(f, "{share}%free"),
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

const PREFIXES: [&str; 6] = ["K", "M", "G", "T", "P", "E"];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Option<Limit> {
        text.parse().ok()
    }

    #[test]
    fn every_form_parses() {
        assert_eq!(parsed("100M"), Some(Limit::Bytes(100_000_000)));
        assert_eq!(parsed("1.5GiB"), Some(Limit::Bytes(3 << 29)));
        assert_eq!(parsed("50%"), Some(Limit::Percent(50.0)));
        assert_eq!(parsed("10000"), Some(Limit::Bytes(10_000)));
        assert_eq!(parsed(" 4 gib "), Some(Limit::Bytes(4 << 30)));
        assert_eq!(parsed("18446744073709551615"), Some(Limit::Bytes(u64::MAX)));
        assert_eq!(parsed(".5%"), Some(Limit::Percent(0.5)));
        for text in ["50%free", " 50 % FREE ", "50.0% Free"] {
            assert_eq!(parsed(text), Some(Limit::PercentFree(50.0)), "{text}");
        }
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
            "101%free",
            "%free",
            "50%used",
            "50free",
            "50%free%",
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
            let forms = ["100M, 1.5GiB", "(50%)", "(50%free)"];
            assert!(forms.into_iter().all(|form| error.contains(form)), "{error}");
        }
    }

    #[test]
    fn a_share_beyond_the_whole_is_named() {
        for text in ["101%", " 250.5 %", "101%free"] {
            let error = text.parse::<Limit>().unwrap_err().to_string();
            assert!(error.contains(": a share of memory is at most 100%; expected"), "{error}");
        }
        let error = Limit::Percent(120.0).resolve(1 << 30, 0).unwrap_err().to_string();
        assert!(error.contains("at most 100%; expected"), "{error}");
        let error = crate::config::Options::parse("hard_limit:101%").unwrap_err().to_string();
        assert!(error.contains("hard_limit:101%, a share of memory is at most 100%; expected"), "{error}");
        assert!(!"5%%".parse::<Limit>().unwrap_err().to_string().contains("at most"));
    }

    #[test]
    fn a_share_built_by_hand_is_checked_too() {
        for share in [-0.1, 100.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for limit in [Limit::Percent(share), Limit::PercentFree(share)] {
                assert!(matches!(limit.resolve(1 << 30, 1 << 20), Err(ConfigError::LimitSyntax { .. })));
            }
        }
        assert_eq!(Limit::Percent(100.0).resolve(u64::MAX, 5).unwrap(), u64::MAX);
        assert_eq!(Limit::PercentFree(100.0).resolve(u64::MAX, 5).unwrap(), 5);
        assert_eq!(Limit::Percent(0.0).resolve(1 << 40, 1 << 40).unwrap(), 0);
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
            (0.0..=100.0).prop_map(Limit::PercentFree),
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
            prop_assert!(Limit::Percent(share).resolve(total, 0).unwrap() <= total);
            prop_assert!(Limit::PercentFree(share).resolve(u64::MAX, total).unwrap() <= total);
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parsed(&text);
        }
    }
}

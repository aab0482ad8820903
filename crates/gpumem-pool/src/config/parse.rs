//! Options in text form: `key:value,…`, and the values of single options.

#[cfg(test)]
mod tests;

use crate::config::options::{KEYS, Key, Options};
use crate::config::{BackendKind, Limit, SizeRounding};
use core::str::FromStr;
use core::time::Duration;
use gpumem_heap::SPLIT_BYTES_MAX_MIN;
use gpumem_sys::env;
use gpumem_sys::text::{Shown, debug_is_display};

/// An option or value is invalid.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The limit is not a size or a share.
    #[error("invalid memory limit {:?}{}; expected {}", Shown::name(.value), beyond_whole(.value), expected("hard_limit"))]
    LimitSyntax {
        /// The given text.
        value: String,
    },
    /// A limit for host memory is given as a share.
    #[error(
        "invalid limit {limit}{} for host memory{}, because a share refers to device memory; expected bytes (10000), with or \
         without a unit (100M, 1.5GiB)",
        in_parentheses(.limit_option), in_parentheses(.kind_option)
    )]
    ShareOfHost {
        /// The given limit.
        limit: Limit,
        /// The option or variable of the limit; `None` for a limit that a method of [`Pool`](crate::Pool) sets.
        limit_option: Option<&'static str>,
        /// The option or variable of the kind of memory; `None` for a limit that a method of [`Pool`](crate::Pool) sets.
        kind_option: Option<&'static str>,
    },
    /// The option is unknown.
    #[error("unknown option {:?}{}; the options are {}", Shown::name(.key), did_you_mean(.nearest), known())]
    UnknownKey {
        /// The given name.
        key: String,
        /// The option with the most similar name, if one is close.
        nearest: Option<&'static str>,
    },
    /// An option has no value.
    #[error("the option {:?} has no value; expected key:value, with commas between options", Shown::name(.item))]
    NoValue {
        /// The given text.
        item: String,
    },
    /// A value is unknown, malformed or out of range.
    #[error("invalid option {key}:{}{}; expected {expected}", Shown::sentence(.value), after_comma(.place))]
    BadValue {
        /// The option.
        key: &'static str,
        /// The given value.
        value: String,
        /// The position of the mistake in a list, and the mistake; empty for other values.
        place: String,
        /// The valid forms.
        expected: &'static str,
    },
    /// An option is given twice, or two options contradict each other.
    #[error("{key} {}", clash(.key, .other))]
    Twice {
        /// The option.
        key: &'static str,
        /// The other option.
        other: &'static str,
    },
}

debug_is_display!(ConfigError);

impl ConfigError {
    /// A value that is not valid for an option.
    pub(crate) fn bad_value(key: &'static str, value: &str, place: String) -> Self {
        Self::BadValue { key, value: value.into(), place, expected: expected(key) }
    }
}

impl Options {
    /// The options of `key:value,…`.
    pub(crate) fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut options = Self::default();
        for item in items(text).map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) = read(item)?;
            if let Some(other) = (key.given)(&options) {
                return Err(ConfigError::Twice { key: key.name, other });
            }
            key.set(&mut options, value, key.name)?;
        }
        Ok(options)
    }
}

impl Key {
    /// Sets the option to a value in text form, given under the name of a key or variable.
    pub(crate) fn set(
        &self,
        options: &mut Options,
        value: &str,
        given_as: &'static str,
    ) -> Result<(), ConfigError> {
        (self.set)(options, value, given_as).map_err(|place| ConfigError::bad_value(self.name, value, place))
    }
}

/// Splits at the commas outside lists.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut is_in_list = false;
    text.split(move |letter| {
        is_in_list = letter == '[' || is_in_list && letter != ']';
        letter == ',' && !is_in_list
    })
}

fn read(item: &str) -> Result<(&'static Key, &str), ConfigError> {
    let (name, value) = item.split_once(':').ok_or_else(|| ConfigError::NoValue { item: item.into() })?;
    let name = name.trim().to_lowercase();
    let key = KEYS.iter().find(|key| key.name == name).ok_or_else(|| {
        let nearest = env::nearest_of(&name, KEYS.iter().map(|key| key.name));
        ConfigError::UnknownKey { key: name, nearest }
    })?;
    Ok((key, value.trim()))
}

/// The valid forms of an option's value.
pub(crate) fn expected(name: &str) -> &'static str {
    KEYS.iter().find(|key| key.name == name).map_or("", |key| key.expected)
}

fn known() -> String {
    KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!(", did you mean {name}?")).unwrap_or_default()
}

fn in_parentheses(name: &Option<&'static str>) -> String {
    name.map(|name| format!(" ({name})")).unwrap_or_default()
}

/// The problem with a share that exceeds the whole.
fn beyond_whole(value: &str) -> &'static str {
    let share = value.split_once('%').and_then(|(share, _)| env::parse_number(share.trim()));
    match share {
        Some(100.0..) if share != Some(100.0) => ": a share of memory is at most 100%",
        _ => "",
    }
}

fn after_comma(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!(", {}", Shown::sentence(place)) }
}

fn clash(key: &str, other: &str) -> String {
    if key == other {
        "is given twice; keep one of the values".into()
    } else {
        format!("contradicts {other}; keep one of them")
    }
}

/// A parsed value, or the position of the mistake: empty, except in lists.
type Parsed<T> = Result<T, String>;

fn parsed<T: FromStr>(text: &str, is_valid: impl Fn(&T) -> bool) -> Parsed<T> {
    text.trim().parse().ok().filter(is_valid).ok_or_else(String::new)
}

/// A name of an enum, or a [`Limit`].
pub(crate) fn named<T: FromStr>(text: &str) -> Parsed<T> {
    parsed(text, |_| true)
}

pub(super) fn number(text: &str) -> Parsed<u32> {
    parsed(text, |_| true)
}

pub(super) fn boolean(text: &str) -> Parsed<bool> {
    match text.to_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(String::new()),
    }
}

/// The backend for PyTorch's setting that turns caching off.
pub(super) fn no_caching(text: &str) -> Parsed<BackendKind> {
    boolean(text)?.then_some(BackendKind::None).ok_or_else(String::new)
}

/// A number between 0 and 1.
pub(super) fn share(text: &str) -> Parsed<f64> {
    parsed(text, |share| *share > 0.0 && *share < 1.0)
}

/// A share of the device's memory as a number.
pub(super) fn fraction(text: &str) -> Parsed<Limit> {
    parsed(text, |share| *share > 0.0 && *share <= 1.0).map(|share: f64| Limit::Percent(100.0 * share))
}

pub(super) fn byte_count(text: &str) -> Parsed<u64> {
    match named(text)? {
        Limit::Bytes(size_bytes) => Ok(size_bytes),
        Limit::Percent(_) | Limit::PercentFree(_) => Err(String::new()),
    }
}

/// The size of a handle, in pages of 2 MiB.
pub(super) fn handle_pages(text: &str) -> Parsed<u32> {
    Ok((byte_count(text)? >> 21).clamp(1, 64) as u32)
}

/// A number of MiB from which segments are not shared, in bytes rounded up to 2 MiB.
pub(super) fn split_bytes(text: &str) -> Parsed<u64> {
    let size_mib = parsed::<u32>(text, |size_mib| u64::from(*size_mib) << 20 >= SPLIT_BYTES_MAX_MIN)?;
    Ok(u64::from(size_mib).next_multiple_of(2) << 20)
}

pub(super) fn milliseconds(text: &str) -> Parsed<Duration> {
    Ok(Duration::from_millis(named(text)?).min(DURATION_MAX))
}

pub(super) fn microseconds(text: &str) -> Parsed<Duration> {
    Ok(Duration::from_micros(named(text)?).min(DURATION_MAX))
}

pub(super) fn rounding(text: &str) -> Parsed<SizeRounding> {
    text.parse()
}

/// A century: adding it to an `Instant` cannot overflow.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

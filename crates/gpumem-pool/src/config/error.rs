//! [`ConfigError`]: a mistake in an option.

use crate::config::Limit;
use gpumem_sys::env;
use gpumem_sys::text::{Shown, debug_is_display};

/// An option or value is invalid.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The limit is not a size or a share.
    #[error("invalid memory limit {:?}{}; expected {}", Shown::name(.value), after(": ", beyond_whole(.value)), LIMIT_FORMS)]
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
    #[error("unknown option {:?}{}; the options are {}", Shown::name(.key), did_you_mean(.nearest), .known.join(", "))]
    UnknownKey {
        /// The given name.
        key: String,
        /// The option with the most similar name, if one is close.
        nearest: Option<&'static str>,
        /// The names of all options.
        known: Vec<&'static str>,
    },
    /// An option has no value.
    #[error("the option {:?} has no value; expected key:value, with commas between options", Shown::name(.item))]
    NoValue {
        /// The given text.
        item: String,
    },
    /// A value is unknown, malformed or out of range.
    #[error("invalid option {key}:{}{}; expected {expected}", Shown::sentence(.value), after(", ", .place))]
    BadValue {
        /// The option.
        key: &'static str,
        /// The given value.
        value: String,
        /// The mistake, with its position in a list; empty if there is no more to say.
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
    pub(crate) fn bad_value(key: &'static str, value: &str, place: String, expected: &'static str) -> Self {
        Self::BadValue { key, value: value.into(), place, expected }
    }
}

pub(crate) const LIMIT_FORMS: &str = "bytes (10000), with a unit (100M, 1.5GiB), or a share of the device's memory (50%) or of its free memory (50%free)";

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!(", did you mean {name}?")).unwrap_or_default()
}

fn in_parentheses(name: &Option<&'static str>) -> String {
    name.map(|name| format!(" ({name})")).unwrap_or_default()
}

/// The problem with a share that exceeds the whole.
pub(super) fn beyond_whole(value: &str) -> &'static str {
    let share = value.split_once('%').and_then(|(share, _)| env::parse_number(share.trim()));
    match share {
        Some(100.0..) if share != Some(100.0) => "a share of memory is at most 100%",
        _ => "",
    }
}

fn after(mark: &str, place: &str) -> String {
    if place.is_empty() { String::new() } else { format!("{mark}{}", Shown::sentence(place)) }
}

fn clash(key: &str, other: &str) -> String {
    if key == other {
        "is given twice; keep one of the values".into()
    } else {
        format!("contradicts {other}; keep one of them")
    }
}

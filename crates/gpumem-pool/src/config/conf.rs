//! The named options of a pool: `key:value,…`, for [`PoolBuilder::conf`](crate::PoolBuilder::conf) and `GPUMEM_CONF`.
//!
//! | key | value | `caching` | `native` | `none` |
//! | --- | --- | --- | --- | --- |
//! | `backend` | `caching`, `native`, `none`; `cudaMallocAsync` is `native`; PyTorch's `native` is `caching` | | | |
//! | `no_caching` | `true`, `false` | selects the backend `none` | as `caching` | no change |
//! | `kind` | `device`, `unified`, `host` | the kind of memory | as `caching` | as `caching` |
//! | `profile` | `fast`, `balanced`, `tight` | sets all tuning options; tuning options by name win | – | – |
//! | `hard_limit` | `100M`, `1.5GiB`, `50%`, `10000` | bounds reserved memory | bounds memory in use | bounds memory in use |
//! | `per_process_memory_fraction` | above 0, up to 1 | the hard limit as a share of the device | as `caching` | as `caching` |
//! | `soft_limit` | as `hard_limit` | cached memory above it is released at synchronisation | as `caching` | – |
//! | `garbage_collection_threshold` | between 0 and 1 | above this share of the hard limit (of the device, if there is none), idle memory is released before the heap is searched further or grows | idle memory above the threshold is released when the driver's pool grows | – |
//! | `roundup_power2_divisions` | a power of two, up to 64, or a list by size: `[256:1,512:2,1024:4,>:8]`, see [`SizeRounding`] | blocks above 1 MiB are rounded up to a multiple of this part of their power of two | – | – |
//! | `max_split_size_mb` | MiB, at least 20 | over plain segments, each larger block has its own segment ([`Tuning::split_bytes_max`]); otherwise – | – | – |
//! | `expandable_segments` | `true`, `false` | `false` selects plain segments; `true` has no effect where only plain segments exist | – | – |
//! | `oversubscribe` | `true`, `false` | see [`PoolBuilder::oversubscribe`](crate::PoolBuilder::oversubscribe) | – | as `caching` |
//! | `exact_peaks` | `true`, `false` | see [`PoolBuilder::exact_peaks`](crate::PoolBuilder::exact_peaks) | –: peaks are always exact | –: peaks are always exact |
//! | `trim_when_idle_ms` | milliseconds | see [`PoolBuilder::trim_when_idle`](crate::PoolBuilder::trim_when_idle) | as `caching` | – |
//! | `growth_slack`, `growth_slack_max`, `window_allowance`, `magazine_share` | thousandths | the tuning option of this name, see [`Tuning`] | – | – |
//! | `growth_divisor`, `rounding_divisor`, `empty_windows_max` | a number | the tuning option of this name | – | – |
//! | `handle_bytes_max`, `magazine_bytes_min` | bytes, with or without a unit | the tuning option of this name | – | – |
//! | `poll_budget_us` | microseconds | the tuning option `poll_budget` | as `caching`, for host-accessible memory | – |
//! | `release_budget_us` | microseconds | the tuning option `release_budget` | –: the driver releases everything at once when the host has waited | – |
//! | `wait_deadline_ms` | milliseconds | the tuning option `wait_deadline` | as `caching` | as `caching` |
//! | `inserted_waits` | `true`, `false` | the tuning option of this name | – | – |
//!
//! An option without effect on the pool's backend (–) is accepted, and
//! [`Pool::ignored_options`](crate::Pool::ignored_options) lists it.
//!
//! In PyTorch, `max_split_size_mb` prevents small blocks from splitting large ones, which would make the rest unusable
//! as a whole. Over virtual memory, `caching` remaps the idle memory around a small block to where it is needed, so the
//! option has no effect there; `profile` and `growth_slack` bound the memory that is reserved beyond the blocks. Plain
//! segments, which also hold the other kinds of memory, are split like PyTorch's, and there the option works as in
//! PyTorch.
//!
//! Keys and values are case-insensitive, and spaces around them are ignored. The last call on the builder wins. In the
//! environment, a variable for one option (`GPUMEM_POOL`) wins over `GPUMEM_CONF`. Tuning options by name win over any
//! profile.

#[cfg(test)]
mod tests;

use crate::config::{BackendKind, Config, FORMS, Limit, Profile, SizeRounding, Tuning, size_rounding};
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use gpumem_sys::env;

/// An option or value is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The limit is not a size or a share.
    #[error("invalid memory limit {value:?}; expected {FORMS}")]
    LimitSyntax {
        /// The given text.
        value: String,
    },
    /// A limit of host memory is given as a share.
    #[error(
        "invalid limit {limit} for host memory, because a share refers to device memory; expected bytes (10000), with or \
         without a unit (100M, 1.5GiB)"
    )]
    ShareOfHost {
        /// The given limit.
        limit: Limit,
    },
    /// The kind of memory is unknown.
    #[error("unknown kind of memory {name:?}; expected `device`, `unified` or `host`")]
    UnknownKind {
        /// The given name.
        name: String,
    },
    /// The backend is unknown.
    #[error("unknown backend {name:?}; expected `caching`, `native` or `none`")]
    UnknownBackend {
        /// The given name.
        name: String,
    },
    /// The profile is unknown.
    #[error("unknown profile {name:?}; expected `fast`, `balanced` or `tight`")]
    UnknownProfile {
        /// The given name.
        name: String,
    },
    /// The option is unknown.
    #[error("unknown option {key:?}{}; the options are {}", did_you_mean(.nearest), known())]
    UnknownKey {
        /// The given name.
        key: String,
        /// The option with the most similar name, if one is close.
        nearest: Option<&'static str>,
    },
    /// An option has no value.
    #[error("the option {item:?} has no value; expected key:value, with commas between options")]
    NoValue {
        /// The given text.
        item: String,
    },
    /// A value is malformed or out of range.
    #[error("invalid option {key}:{value}{place}; expected {expected}")]
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
    #[error("{key} is given twice or contradicts {other}; keep one of them")]
    Twice {
        /// The option.
        key: &'static str,
        /// The other option.
        other: &'static str,
    },
}

/// An option that was given and has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IgnoredOption {
    /// The option.
    pub option: &'static str,
    /// The pool's backend, which ignores the option.
    pub backend: BackendKind,
    /// The alternative, or the reason why the option is unnecessary.
    pub instead: &'static str,
}

impl fmt::Display for IgnoredOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no effect on the backend {}: {}", self.option, self.backend, self.instead)
    }
}

/// An option: the parser of its value, and the backends that ignore it.
struct Key {
    name: &'static str,
    expected: &'static str,
    set: Set,
    /// Locates the mistake in an invalid value.
    place: fn(&str) -> String,
    /// The text of [`IgnoredOption::instead`] where the option has no effect: on `caching`, `native` and `none`, and on
    /// `caching` over plain segments.
    idle: [Option<&'static str>; 4],
}

const KEYS: &[Key] = &[
    everywhere("backend", "`caching`, `native` (`cudaMallocAsync`) or `none`", |options, value| {
        options.backend = Some(if value == "cudamallocasync" { BackendKind::Native } else { parsed(value)? });
        Some(())
    }),
    everywhere("no_caching", BOOL, |options, value| {
        if boolean(value)? {
            options.backend = Some(BackendKind::None);
        }
        Some(())
    }),
    everywhere("kind", "`device`, `unified` or `host`", |options, value| {
        options.kind = parsed(value)?;
        Some(())
    }),
    of_caching("profile", "`fast`, `balanced` or `tight`", |options, value| {
        options.tuning = Tuning::of(parsed::<Profile>(value)?);
        Some(())
    }),
    everywhere("hard_limit", FORMS, |options, value| {
        options.hard_limit = Some(parsed(value)?);
        Some(())
    }),
    everywhere("per_process_memory_fraction", "a number above 0, up to 1", |options, value| {
        let share = parsed::<f64>(value).filter(|share| *share > 0.0 && *share <= 1.0)?;
        options.hard_limit = Some(Limit::Percent(100.0 * share));
        Some(())
    }),
    of_caches("soft_limit", FORMS, |options, value| {
        options.soft_limit = Some(parsed(value)?);
        Some(())
    }),
    of_caches("garbage_collection_threshold", "a number between 0 and 1", |options, value| {
        options.collect_above = Some(parsed(value).filter(|share| *share > 0.0 && *share < 1.0)?);
        Some(())
    }),
    Key {
        place: |value| {
            let error = value.parse::<SizeRounding>().err();
            error.map_or(String::new(), |error| format!(", {}", error.place()))
        },
        ..of_caching("roundup_power2_divisions", size_rounding::FORMS, |options, value| {
            options.tuning.rounding = parsed(value)?;
            Some(())
        })
    },
    Key {
        name: "max_split_size_mb",
        expected: "a number of MiB, 20 or more",
        place: nowhere,
        set: |options, value| {
            let size_mib = parsed::<u32>(value).filter(|size_mib| *size_mib >= 20)?;
            options.tuning = options.tuning.clone().split_bytes_max(u64::from(size_mib) << 20);
            Some(())
        },
        idle: [
            Some(
                "idle memory around small blocks is remapped for large blocks; set profile:tight to reserve less",
            ),
            Some(
                "the driver's pool places blocks itself; set backend:caching, where small blocks waste no memory around them",
            ),
            NOTHING_KEPT,
            None,
        ],
    },
    Key {
        // The last text is for programs that requested expandable segments.
        idle: [
            None,
            ONLY_CACHING,
            NOTHING_KEPT,
            Some(
                "memory lies in plain segments, because this driver or device has no virtual memory management or refuses it, \
                 or because memory of this kind is never mapped",
            ),
        ],
        ..of_caching("expandable_segments", BOOL, |options, value| {
            options.expandable_segments = boolean(value)?;
            options.plain_segments = !options.expandable_segments;
            Some(())
        })
    },
    everywhere("oversubscribe", BOOL, |options, value| {
        options.oversubscribes = boolean(value)?;
        Some(())
    }),
    Key {
        idle: [None, EXACT_ANYWAY, EXACT_ANYWAY, None],
        ..of_caching("exact_peaks", BOOL, |options, value| {
            options.exact_peaks = boolean(value)?;
            Some(())
        })
    },
    of_caches("trim_when_idle_ms", "milliseconds", |options, value| {
        options.idle_after = Some(Duration::from_millis(parsed(value)?));
        Some(())
    }),
    of_caching("growth_slack", NUMBER, |options, value| tune(options, value, Tuning::growth_slack)),
    of_caching("growth_slack_max", NUMBER, |options, value| tune(options, value, Tuning::growth_slack_max)),
    of_windows("window_allowance", NUMBER, |options, value| tune(options, value, Tuning::window_allowance)),
    of_caching("growth_divisor", NUMBER, |options, value| tune(options, value, Tuning::growth_divisor)),
    of_caching("rounding_divisor", NUMBER, |options, value| tune(options, value, Tuning::rounding_divisor)),
    of_caching("magazine_share", NUMBER, |options, value| tune(options, value, Tuning::magazine_share)),
    of_windows("empty_windows_max", NUMBER, |options, value| tune(options, value, Tuning::empty_windows_max)),
    of_caching("handle_bytes_max", SIZE, |options, value| {
        options.tuning = options.tuning.clone().handle_bytes_max(size_bytes(value)?);
        Some(())
    }),
    of_caching("magazine_bytes_min", SIZE, |options, value| {
        options.tuning = options.tuning.clone().magazine_bytes_min(size_bytes(value)?);
        Some(())
    }),
    of_caches("poll_budget_us", "microseconds", |options, value| {
        options.tuning.poll_budget = Duration::from_micros(parsed(value)?);
        Some(())
    }),
    of_caching("release_budget_us", "microseconds", |options, value| {
        options.tuning.release_budget = Duration::from_micros(parsed(value)?);
        Some(())
    }),
    everywhere("wait_deadline_ms", "milliseconds", |options, value| {
        options.tuning = options.tuning.clone().wait_deadline(Duration::from_millis(parsed(value)?));
        Some(())
    }),
    of_caching("inserted_waits", BOOL, |options, value| {
        options.tuning.inserted_waits = boolean(value)?;
        Some(())
    }),
];

type Set = fn(&mut Config, &str) -> Option<()>;

const fn everywhere(name: &'static str, expected: &'static str, set: Set) -> Key {
    Key { name, expected, set, place: nowhere, idle: [None; 4] }
}

const fn of_caching(name: &'static str, expected: &'static str, set: Set) -> Key {
    let idle = [None, ONLY_CACHING, NOTHING_KEPT, None];
    Key { name, expected, set, place: nowhere, idle }
}

const fn of_windows(name: &'static str, expected: &'static str, set: Set) -> Key {
    let Key { idle: [caching, native, none, _], .. } = of_caching(name, expected, set);
    let idle = [caching, native, none, Some("memory in plain segments is never remapped")];
    Key { name, expected, set, place: nowhere, idle }
}

const fn of_caches(name: &'static str, expected: &'static str, set: Set) -> Key {
    Key { name, expected, set, place: nowhere, idle: [None, None, NOTHING_KEPT, None] }
}

fn nowhere(_: &str) -> String {
    String::new()
}

const ONLY_CACHING: Option<&str> = Some("only the backend caching has this tuning option");
const NOTHING_KEPT: Option<&str> = Some("this backend caches nothing");
const EXACT_ANYWAY: Option<&str> = Some("its peaks are always exact");
const BOOL: &str = "`true` or `false`";
const NUMBER: &str = "a number";
const SIZE: &str = "bytes, with or without a unit (2097152, 64MiB)";

/// Pairs of options that set one property.
const ALIKE: [(&str, &str); 3] = [
    ("hard_limit", "per_process_memory_fraction"),
    ("backend", "no_caching"),
    ("rounding_divisor", "roundup_power2_divisions"),
];

/// Applies the options of `text`, the profile first. A `profile` argument, chosen elsewhere, replaces the one in
/// `text`.
pub(crate) fn apply(options: &mut Config, text: &str, profile: Option<Profile>) -> Result<(), ConfigError> {
    let items = items(text).map(str::trim).filter(|item| !item.is_empty());
    let mut given = items.map(read).collect::<Result<Vec<_>, _>>()?;
    for (index, (key, _)) in given.iter().enumerate() {
        let clash = |other: &&(&Key, &str)| {
            other.0.name == key.name
                || ALIKE.contains(&(key.name, other.0.name))
                || ALIKE.contains(&(other.0.name, key.name))
        };
        if let Some((other, _)) = given[..index].iter().find(clash) {
            return Err(ConfigError::Twice { key: key.name, other: other.name });
        }
    }
    given.sort_by_key(|(key, _)| key.name != "profile");
    if let Some(profile) = profile {
        given.retain(|(key, _)| key.name != "profile");
        options.tuning = Tuning::of(profile);
        options.asked.push("profile");
    }
    for (key, value) in given {
        let Key { name, expected, set, place, .. } = *key;
        set(options, &value.to_lowercase()).ok_or_else(|| ConfigError::BadValue {
            key: name,
            value: value.into(),
            place: place(value),
            expected,
        })?;
        options.asked.push(name);
    }
    Ok(())
}

/// Splits at the commas outside of lists.
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

/// The given options that have no effect on a backend. `can_map` states whether its memory can be remapped.
pub(crate) fn ignored_options(options: &Config, backend: BackendKind, can_map: bool) -> Vec<IgnoredOption> {
    let keys = KEYS.iter().filter(|key| options.asked.contains(&key.name));
    let idle = |key: &Key| {
        // The pool uses plain segments, as requested.
        let is_as_asked = key.name == "expandable_segments" && !options.expandable_segments;
        key.idle[match backend {
            BackendKind::Caching if !can_map && !is_as_asked => 3,
            BackendKind::Caching => 0,
            BackendKind::Native => 1,
            BackendKind::None => 2,
        }]
    };
    keys.filter_map(|key| Some(IgnoredOption { option: key.name, backend, instead: idle(key)? })).collect()
}

fn parsed<T: FromStr>(value: &str) -> Option<T> {
    value.parse().ok()
}

fn boolean(value: &str) -> Option<bool> {
    match value {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

fn size_bytes(value: &str) -> Option<u64> {
    match parsed(value)? {
        Limit::Bytes(size_bytes) => Some(size_bytes),
        Limit::Percent(_) => None,
    }
}

fn tune(options: &mut Config, value: &str, set: fn(Tuning, u32) -> Tuning) -> Option<()> {
    options.tuning = set(options.tuning.clone(), parsed(value)?);
    Some(())
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!(", did you mean {name}?")).unwrap_or_default()
}

fn known() -> String {
    KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

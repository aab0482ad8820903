//! The options of a pool by name: `key:value,…`, as [`PoolBuilder::conf`](crate::PoolBuilder::conf) and `GPUMEM_CONF` take them.
//!
//! | key | value | `caching` | `native` | `none` |
//! | --- | --- | --- | --- | --- |
//! | `backend` | `caching`, `native`, `none`; `cudaMallocAsync` is `native`; what PyTorch calls `native` is `caching` | | | |
//! | `no_caching` | `true`, `false` | takes the backend `none` | the same | as it is |
//! | `kind` | `device`, `unified`, `host` | whose memory | the same | the same |
//! | `profile` | `fast`, `balanced`, `tight` | all tuning options at once; tuning options by name win | – | – |
//! | `hard_limit` | `100M`, `1.5GiB`, `50%`, `10000` | bounds what is reserved | what is in use | what is in use |
//! | `per_process_memory_fraction` | above 0, up to 1 | the same as a share of the device | the same | the same |
//! | `soft_limit` | as `hard_limit` | given back down to it at synchronisation | the same | – |
//! | `garbage_collection_threshold` | between 0 and 1 | beyond this part of the hard limit (of the device, if there is none), idle memory is given back before the heap is searched further or grows | the same when the driver's pool grows | – |
//! | `roundup_power2_divisions` | a power of two, up to 64, or a list by size: `[256:1,512:2,1024:4,>:8]`, see [`SizeRounding`] | blocks beyond 1 MiB are rounded up to this part of their power of two | – | – |
//! | `max_split_size_mb` | MiB, at least 20 | over plain segments, larger blocks have a segment each ([`Tuning::split_bytes_max`]); else – | – | – |
//! | `expandable_segments` | `true`, `false` | `false` takes plain segments; `true` has no effect where there are no others | – | – |
//! | `oversubscribe` | `true`, `false` | see [`PoolBuilder::oversubscribe`](crate::PoolBuilder::oversubscribe) | – | the same |
//! | `exact_peaks` | `true`, `false` | see [`PoolBuilder::exact_peaks`](crate::PoolBuilder::exact_peaks) | –: they are anyway | –: likewise |
//! | `trim_when_idle_ms` | milliseconds | see [`PoolBuilder::trim_when_idle`](crate::PoolBuilder::trim_when_idle) | the same | – |
//! | `growth_slack`, `growth_slack_max`, `window_allowance`, `magazine_share`, `large_share` | thousandths | the tuning options of that name, see [`Tuning`] | – | – |
//! | `growth_divisor`, `rounding_divisor`, `empty_windows_max` | a number | the same | – | – |
//! | `handle_bytes_max`, `magazine_bytes_min` | bytes, with or without a unit | the same | – | – |
//! | `poll_budget_us` | microseconds | the same | the same for memory that the host may use | – |
//! | `release_budget_us` | microseconds | the same | –: the driver gives back all at once, when the host has waited | – |
//! | `wait_deadline_ms` | milliseconds | the same | the same | the same |
//! | `inserted_waits` | `true`, `false` | the same | – | – |
//!
//! An option that has no effect on the pool's backend (–) is accepted, and told of by [`Pool::ignored_options`](crate::Pool::ignored_options).
//! `max_split_size_mb` keeps PyTorch's large blocks from being cut up for small ones, which then keep the rest from being used
//! whole. Where memory can be mapped, `caching` maps what is idle around a small block to where it is wanted, so there is
//! nothing to prevent: what is held beside the blocks is the say of `profile` and `growth_slack` there. Plain segments, which
//! memory of other kinds lies in too, are cut up like PyTorch's, and there it does the same as PyTorch's does.
//!
//! Keys and values may be written in any case, with spaces around them. What the builder is told last wins; of the
//! environment, a variable of an option's own (`GPUMEM_POOL`) wins over `GPUMEM_CONF`; tuning options by name win over any profile.

#[cfg(test)]
mod tests;

use crate::config::{BackendKind, Config, FORMS, Limit, Profile, SizeRounding, Tuning, size_rounding};
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use gpumem_sys::env;

/// A setting that can't be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A limit that can't be read.
    #[error("{value:?} is no memory limit: use {FORMS}")]
    LimitSyntax {
        /// What was given.
        value: String,
    },
    /// A limit of host memory that is a share.
    #[error(
        "{limit} is no limit for host memory, which is no part of the device's: use bytes (10000), with or without a unit \
         (100M, 1.5GiB)"
    )]
    ShareOfHost {
        /// What was given.
        limit: Limit,
    },
    /// No kind of memory has this name.
    #[error("{name:?} names no kind of memory; use `device`, `unified` or `host`")]
    UnknownKind {
        /// What was given.
        name: String,
    },
    /// No backend has this name.
    #[error("{name:?} names no backend of the pool; use `caching`, `native` or `none`")]
    UnknownBackend {
        /// What was given.
        name: String,
    },
    /// No profile has this name.
    #[error("{name:?} names no profile of the pool; use `fast`, `balanced` or `tight`")]
    UnknownProfile {
        /// What was given.
        name: String,
    },
    /// No option has this name.
    #[error("no option is called {key:?}{}; there are {}", did_you_mean(.nearest), known())]
    UnknownKey {
        /// What was given.
        key: String,
        /// One that is spelled almost like it.
        nearest: Option<&'static str>,
    },
    /// An option without a value.
    #[error("{item:?} is no option: write key:value, and commas between options")]
    NoValue {
        /// What was given.
        item: String,
    },
    /// A value that can't be read, or that is out of range.
    #[error("{key}:{value} can't be used{place}: it takes {expected}")]
    BadValue {
        /// The option.
        key: &'static str,
        /// What was given.
        value: String,
        /// Where in a list the mistake is, and what; else nothing.
        place: String,
        /// The forms that it takes.
        expected: &'static str,
    },
    /// The same option twice, or two that say opposite things.
    #[error("{key} is given twice, or contradicts {other}: leave one")]
    Twice {
        /// The option.
        key: &'static str,
        /// What it can't stand beside.
        other: &'static str,
    },
}

/// An option that was given and has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IgnoredOption {
    /// The option.
    pub option: &'static str,
    /// Where it has none.
    pub backend: BackendKind,
    /// What serves instead, or why nothing has to.
    pub instead: &'static str,
}

impl fmt::Display for IgnoredOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no effect on the backend {}: {}", self.option, self.backend, self.instead)
    }
}

/// An option: how its value is read, and where it has an effect.
struct Key {
    name: &'static str,
    expected: &'static str,
    set: Set,
    /// Where in a value that can't be used the mistake is.
    place: fn(&str) -> String,
    /// What is said where it has none: on `caching`, `native` and `none`, and on `caching` where memory can't be mapped.
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
                "idle memory around small blocks is mapped to where a large one needs it; set profile:tight to hold less",
            ),
            Some(
                "the driver's pool places its blocks itself; set backend:caching, where small blocks lose nothing",
            ),
            NOTHING_KEPT,
            None,
        ],
    },
    Key {
        // Told to those who asked for other ones.
        idle: [
            None,
            A_DIAL_OF_CACHING,
            NOTHING_KEPT,
            Some(
                "memory lies in plain segments, because this driver or device has no virtual memory management or refuses it, \
                 or because the pool is of a kind of memory that is never mapped",
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
    of_caching("large_share", NUMBER, |options, value| tune(options, value, Tuning::large_share)),
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
    let idle = [None, A_DIAL_OF_CACHING, NOTHING_KEPT, None];
    Key { name, expected, set, place: nowhere, idle }
}

const fn of_windows(name: &'static str, expected: &'static str, set: Set) -> Key {
    let Key { idle: [caching, native, none, _], .. } = of_caching(name, expected, set);
    let idle = [caching, native, none, Some("no memory is mapped anew where it lies in plain segments")];
    Key { name, expected, set, place: nowhere, idle }
}

const fn of_caches(name: &'static str, expected: &'static str, set: Set) -> Key {
    Key { name, expected, set, place: nowhere, idle: [None, None, NOTHING_KEPT, None] }
}

fn nowhere(_: &str) -> String {
    String::new()
}

const A_DIAL_OF_CACHING: Option<&str> = Some("it is a tuning option of the backend caching");
const NOTHING_KEPT: Option<&str> = Some("it keeps nothing");
const EXACT_ANYWAY: Option<&str> = Some("it counts to the byte anyway");
const BOOL: &str = "`true` or `false`";
const NUMBER: &str = "a number";
const SIZE: &str = "bytes, with or without a unit (2097152, 64MiB)";

/// Options that say the same thing.
const ALIKE: [(&str, &str); 3] = [
    ("hard_limit", "per_process_memory_fraction"),
    ("backend", "no_caching"),
    ("rounding_divisor", "roundup_power2_divisions"),
];

/// Sets everything that a text names, the profile first: this one, if it has been chosen elsewhere.
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

/// Between commas that are in no list.
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

/// What was asked for and has no effect on a backend, which may be able to map memory.
pub(crate) fn ignored_options(options: &Config, backend: BackendKind, can_map: bool) -> Vec<IgnoredOption> {
    let keys = KEYS.iter().filter(|key| options.asked.contains(&key.name));
    let idle = |key: &Key| {
        // Plain segments have that effect.
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

//! The environment variables of this project: the one list of their names, and how they are read.
//!
//! Only constructors named `from_env…` read them. Each reading first refuses names that are not on the list, so that
//! a typing error is not a silent default. What a value means is decided by the layer that owns the variable.

use std::ffi::OsStr;

/// One variable: its name and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name.
    pub name: &'static str,
    /// Values and meaning, on one line.
    pub meaning: &'static str,
}

/// Every variable that any layer reads.
pub const VARIABLES: &[Variable] = &[
    Variable { name: "GPUMEM_DRIVER", meaning: "cuda | sim: which driver `from_env` takes (default cuda)" },
    Variable {
        name: "GPUMEM_POOL",
        meaning: "caching | native | none: which backend a pool takes (default the first that is built and works)",
    },
    Variable {
        name: "GPUMEM_KIND",
        meaning: "device | unified | host: whose memory a pool hands out (default device)",
    },
    Variable {
        name: "GPUMEM_PROFILE",
        meaning: "fast | balanced | tight: what the caching backend trades (default balanced)",
    },
    Variable {
        name: "GPUMEM_CONF",
        meaning: "key:value,…: any option of a pool by its name, PyTorch's knobs among them",
    },
    Variable {
        name: "GPUMEM_SOFT_LIMIT",
        meaning: "100M, 1.5GiB, 50%, 10000: cached memory above it is given back",
    },
    Variable {
        name: "GPUMEM_HARD_LIMIT",
        meaning: "100M, 1.5GiB, 50%, 10000: the pool never hands out more",
    },
    Variable {
        name: "GPUMEM_TRACE",
        meaning: "a file, %p in it is the process: what pools are asked for is recorded, for `cargo xtask replay`",
    },
    Variable {
        name: "GPUMEM_SIM_SEED",
        meaning: "a number: the order in which the software driver runs queued work",
    },
    Variable {
        name: "GPUMEM_SIM_DEVICES",
        meaning: "a number: how many devices the software driver has (default 1)",
    },
    Variable {
        name: "GPUMEM_SIM_SCHEDULE",
        meaning: "random | late | early | 0.2.1: in which of the allowed orders queued work runs (default random)",
    },
    Variable {
        name: "GPUMEM_SIM_RULES",
        meaning: "cuMemAlloc#3=fail:OUT_OF_MEMORY;…: injected faults in the software driver's calls (#3+ for the third and later)",
    },
    Variable {
        name: "GPUMEM_SIM_BACKTRACES",
        meaning: "1 | 0: whether its findings show the call stacks of allocations (default 0)",
    },
    Variable { name: "GPUMEM_SIM_MEMORY", meaning: "8GiB: the memory of each of its devices" },
];

/// The environment holds something of ours that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// A name that starts like ours but is none of ours.
    #[error("unknown environment variable {name}{}; unset it or correct its name (known: {})", did_you_mean(.nearest), known())]
    UnknownVariable {
        /// The name found.
        name: String,
        /// A known name that is spelled almost like it.
        nearest: Option<&'static str>,
    },
    /// A value that does not parse.
    #[error("{name}={value:?} can't be used: {expected}")]
    BadValue {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        expected: String,
    },
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!(", did you mean {name}?")).unwrap_or_default()
}

fn known() -> String {
    VARIABLES.iter().map(|variable| variable.name).collect::<Vec<_>>().join(", ")
}

/// Reads one of our variables, after checking that no unknown `GPUMEM_…` name is set. Empty counts as unset.
///
/// In a program that has more rights than its caller (setuid, setgid or file capabilities: `AT_SECURE` on Linux) every
/// variable counts as unset, so that the caller can't choose a file that the program writes.
///
/// # Errors
///
/// [`EnvError::UnknownVariable`] for any unknown name; [`EnvError::BadValue`] for a value that is not Unicode.
pub fn read(name: &'static str) -> Result<Option<String>, EnvError> {
    debug_assert!(VARIABLES.iter().any(|variable| variable.name == name), "{name} is not in the list");
    if is_secure() {
        return Ok(None);
    }
    check_names(std::env::vars_os().map(|(name, _)| name))?;
    match std::env::var_os(name).filter(|value| !value.is_empty()).map(std::ffi::OsString::into_string) {
        None => Ok(None),
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(value)) => Err(EnvError::BadValue {
            name,
            value: value.to_string_lossy().into_owned(),
            expected: "it is not valid Unicode".into(),
        }),
    }
}

/// Whether the environment is that of a caller with fewer rights.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn is_secure() -> bool {
    use core::ffi::c_ulong;
    // SAFETY: every C library on Linux, which std links anyway, has this function with this signature; it takes any number.
    unsafe extern "C" {
        safe fn getauxval(kind: c_ulong) -> c_ulong;
    }
    const AT_SECURE: c_ulong = 23;
    !cfg!(miri) && getauxval(AT_SECURE) != 0
}

#[cfg(not(target_os = "linux"))]
fn is_secure() -> bool {
    false
}

fn check_names(names: impl Iterator<Item = impl AsRef<OsStr>>) -> Result<(), EnvError> {
    for name in names {
        let name = name.as_ref().to_string_lossy();
        if name.starts_with("GPUMEM_") && !VARIABLES.iter().any(|variable| variable.name == name) {
            return Err(EnvError::UnknownVariable { nearest: nearest(&name), name: name.into_owned() });
        }
    }
    Ok(())
}

fn nearest(name: &str) -> Option<&'static str> {
    nearest_of(name, VARIABLES.iter().map(|variable| variable.name))
}

/// The known name with the fewest edits, of those that somebody who mistyped it, or left words out, may have meant.
#[must_use]
pub fn nearest_of(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let ranked = known.map(|known| (strsim::levenshtein(name, known), known));
    ranked.filter(|(edits, known)| *edits <= 3 || is_shortened(name, known)).min().map(|(_, known)| known)
}

/// Whether all its words are the other's, in that order.
fn is_shortened(name: &str, known: &str) -> bool {
    let mut words = known.split('_');
    name.split('_').all(|word| words.any(|other| other == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_foreign_names_pass() {
        assert_eq!(check_names(["PATH", "GPUMEM_DRIVER", "GPUMEM_HARD_LIMIT"].iter()), Ok(()));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest_known_one() {
        let error = check_names(["GPUMEM_HARDLIMIT"].iter()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("did you mean GPUMEM_HARD_LIMIT?"), "{text}");
        assert_eq!(nearest("GPUMEM_LIMIT"), Some("GPUMEM_HARD_LIMIT"));
        assert_eq!((nearest("GPUMEM_"), nearest("")), (None, None));
        let far = check_names(["GPUMEM_COFFEE_MACHINE"].iter()).unwrap_err().to_string();
        assert!(!far.contains("did you mean") && far.contains("GPUMEM_POOL"), "{far}");
    }
}

//! The environment variables of this project: a registry of their names, and functions that read them.
//!
//! Only constructors named `from_env…` read variables. Each crate has a list of its own variables and registers it with its first
//! read. Each read refuses `GPUMEM_…` names that are neither registered nor [`RESERVED`], so that a misspelt name is not ignored.
//! The crate that owns a variable parses its value.

mod size;

pub use size::{parse_number, parse_size};

use crate::fork;
use crate::text::{Shown, debug_is_display};
use std::ffi::OsStr;
use std::sync::{Mutex, PoisonError};

/// An environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name.
    pub name: &'static str,
    /// The values and their meaning, in one line.
    pub meaning: &'static str,
}

/// The variables that this crate reads, and those that the Python package reads, which has no crate.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "GPUMEM_DRIVER",
        meaning: "`cuda` (default), `drop-in` or `sim`: NVIDIA's driver, the simulator as libcuda.so.1, or the simulator in programs with the crate `gpumem-sim`",
    },
    Variable {
        name: "GPUMEM_INSTALL",
        meaning: "`torch`, `cupy` or both with a comma, and with them `stacks` and `summary`; default none: for Python, where the wheel is installed: \
                  the libraries that allocate from gpumem as soon as a program imports them, whether tensors count for the line of Python that \
                  allocates them, and whether the process says at its end where its memory went",
    },
    Variable {
        name: "GPUMEM_TORCH",
        meaning: "`full` or `pluggable` (default): how gpumem becomes PyTorch's allocator: as a class of its own, compiled once with a C++ compiler, \
                  that has all that PyTorch's own allocator offers, or as a pluggable one, which needs no compiler",
    },
];

/// Names of crates above this one. They are accepted before their crate has registered them, because a program may choose its driver
/// first, and in programs without that crate. A name that ends with `_` is a prefix: it stands for all names that begin with it,
/// until one of them is registered.
pub const RESERVED: &[&str] = &[
    "GPUMEM_POOL",
    "GPUMEM_KIND",
    "GPUMEM_PROFILE",
    "GPUMEM_CONF",
    "GPUMEM_SOFT_LIMIT",
    "GPUMEM_HARD_LIMIT",
    "GPUMEM_FLIGHT_RECORDER",
    "GPUMEM_TRACE",
    "GPUMEM_TRACE_LIMIT",
    "GPUMEM_PEERS",
    "GPUMEM_SPILL",
    "GPUMEM_STATUS",
    "GPUMEM_STAGING",
    "GPUMEM_SIM_",
];

/// The lists of the crates that have registered.
static REGISTERED: Mutex<Vec<&'static [Variable]>> = Mutex::new(Vec::new());

/// Adds the variables of a crate to the registry. Repeated calls have no effect.
pub fn register(variables: &'static [Variable]) {
    // In a forked child the lock may be held forever, and nothing is opened.
    if fork::is_child() {
        return;
    }
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if !registered.contains(&variables) {
        registered.push(variables);
    }
}

/// All known names: the registered ones, those of this crate, and the reserved ones that no registered name replaces.
fn known_names() -> Vec<&'static str> {
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let lists = registered.iter().copied().chain([VARIABLES]);
    let mut names: Vec<_> = lists.flatten().map(|variable| variable.name).collect();
    let is_replaced = |reserved: &&&str| names.iter().any(|name| is_of(name, reserved));
    let reserved: Vec<_> = RESERVED.iter().filter(|reserved| !is_replaced(reserved)).copied().collect();
    names.extend(reserved);
    names.sort_unstable();
    names.dedup();
    names
}

/// True if `name` is the known name, or begins with the known prefix.
fn is_of(name: &str, known: &str) -> bool {
    name == known || known.ends_with('_') && name.starts_with(known)
}

/// A `GPUMEM_…` variable is unknown or has an invalid value.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// A name begins with `GPUMEM_` but is unknown.
    #[error(
        "unknown environment variable {}{}; unset it or correct its name (known: {})",
        Shown::name(.name), did_you_mean(.nearest), known().join(", ")
    )]
    UnknownVariable {
        /// The name.
        name: String,
        /// A known name with a similar spelling.
        nearest: Option<&'static str>,
    },
    /// A value is invalid.
    #[error("invalid {name}={:?}: {}", Shown::name(.value), Shown::sentence(.expected))]
    BadValue {
        /// The variable.
        name: &'static str,
        /// The value.
        value: String,
        /// The values that are accepted.
        expected: String,
    },
}

debug_is_display!(EnvError);

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!(", did you mean {name}?")).unwrap_or_default()
}

/// The names as errors list them, a prefix as `GPUMEM_SIM_…`.
fn known() -> Vec<String> {
    let shown = |name: &str| if name.ends_with('_') { format!("{name}…") } else { name.to_string() };
    known_names().into_iter().map(shown).collect()
}

/// Registers the `variables` of a crate, checks that no unknown `GPUMEM_…` name is set, and reads the variable `name`. An empty value
/// counts as unset.
///
/// In a program that has more rights than its caller (setuid, setgid or file capabilities: `AT_SECURE` on Linux) every
/// variable counts as unset, so that the caller cannot choose a file that the program writes.
///
/// # Errors
///
/// [`EnvError::UnknownVariable`] if any `GPUMEM_…` name is unknown; [`EnvError::BadValue`] if the value is not Unicode.
pub fn read(variables: &'static [Variable], name: &'static str) -> Result<Option<String>, EnvError> {
    debug_assert!(variables.iter().any(|variable| variable.name == name), "{name} is not in the list");
    register(variables);
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
            expected: "expected valid Unicode".into(),
        }),
    }
}

/// True if the process has more rights than the caller that set its environment.
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
        // Most variables are of other programs.
        if !name.as_ref().as_encoded_bytes().starts_with(b"GPUMEM_") {
            continue;
        }
        let (name, known) = (name.as_ref().to_string_lossy(), known_names());
        if !known.iter().any(|known| is_of(&name, known)) {
            let nearest = nearest(&name, &known);
            return Err(EnvError::UnknownVariable { nearest, name: name.into_owned() });
        }
    }
    Ok(())
}

fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    nearest_of(name, known.iter().copied().filter(|known| !known.ends_with('_')))
}

/// Returns the known name with the fewest edits to `name`: at most three, and for at most half of its letters; or any number if the words
/// of `name` are among its words.
#[must_use]
pub fn nearest_of(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    // A name of any length may come from outside. Names whose lengths differ by more need more edits, and are not compared.
    let letters = name.chars().count();
    let is_similar = |known: &&str| letters.abs_diff(known.chars().count()) <= EDITS_MAX;
    let near = known.filter(|known| is_similar(known) || is_shortened(name, known));
    let ranked = near.map(|known| (strsim::levenshtein(name, known), known));
    ranked
        .filter(|(edits, known)| *edits <= EDITS_MAX.min(letters / 2) || is_shortened(name, known))
        .min()
        .map(|(_, known)| known)
}

/// The edits between a name and the one that was meant.
const EDITS_MAX: usize = 3;

/// True if all words of `name` are words of `known`, in that order.
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
        let nearest = |name| nearest(name, &known_names());
        assert_eq!(nearest("GPUMEM_LIMIT"), Some("GPUMEM_HARD_LIMIT"));
        assert_eq!((nearest("GPUMEM_"), nearest("")), (None, None));
        let option = |name| nearest_of(name, ["rdma", "kind"].into_iter());
        assert_eq!((option("name"), option("kin")), (None, Some("kind")));
        let far = check_names(["GPUMEM_COFFEE_MACHINE"].iter()).unwrap_err().to_string();
        assert!(!far.contains("did you mean") && far.contains("GPUMEM_POOL"), "{far}");
    }

    #[test]
    fn a_family_passes_until_its_crate_registers_it() {
        assert!(is_of("GPUMEM_SIM_SEDE", "GPUMEM_SIM_") && !is_of("GPUMEM_SIMULATOR", "GPUMEM_SIM_"));
        assert!(!is_of("GPUMEM_POOLS", "GPUMEM_POOL"));
        assert_eq!(check_names(["GPUMEM_SIM_SEED"].iter()), Ok(()));
        register(&[Variable { name: "GPUMEM_SIM_SEED", meaning: "a number" }]);
        assert_eq!(check_names(["GPUMEM_SIM_SEED"].iter()), Ok(()));
        let text = check_names(["GPUMEM_SIM_SEDE"].iter()).unwrap_err().to_string();
        assert!(text.contains("did you mean GPUMEM_SIM_SEED?"), "{text}");
    }
}

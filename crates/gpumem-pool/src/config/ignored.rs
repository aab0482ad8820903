//! [`IgnoredOption`]: given options that have no effect on a pool.

use crate::config::options::KEYS;
use crate::config::{BackendKind, Config};
use core::fmt;

/// A given option that has no effect.
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

/// [`IgnoredOption::instead`] where an option has no effect: on `caching`, `native`, `none`, and on `caching` over plain
/// segments.
pub(crate) type Instead = [Option<&'static str>; 4];

pub(crate) const ALL: Instead = [None; 4];
pub(crate) const CACHES: Instead = [None, None, CACHES_NOTHING, None];
pub(crate) const CACHING: Instead = [None, ONLY_CACHING, CACHES_NOTHING, None];
pub(crate) const MAPPED: Instead =
    [None, ONLY_CACHING, CACHES_NOTHING, Some("memory in plain segments is never remapped")];
pub(crate) const SEGMENTS: Instead = [
    Some("idle memory around small blocks is remapped for large blocks; set profile:tight to reserve less"),
    Some(
        "the driver's pool places blocks itself; set backend:caching, where small blocks waste no memory around them",
    ),
    CACHES_NOTHING,
    None,
];
/// The last text is for programs that requested expandable segments.
pub(crate) const VIRTUAL: Instead = [
    None,
    ONLY_CACHING,
    CACHES_NOTHING,
    Some(
        "memory lies in plain segments, because this driver or device has no virtual memory management or refuses it, or \
         because memory of this kind is never mapped",
    ),
];

const ONLY_CACHING: Option<&str> = Some("only the backend caching has this tuning option");
const CACHES_NOTHING: Option<&str> = Some("this backend caches nothing");
const SOFT_ABOVE_HARD: &str = "it is above the hard limit; set a soft limit below the hard limit";

/// The given options that have no effect on a backend. `can_map` states whether its memory can be remapped, and
/// `is_soft_idle` whether its soft limit is above the hard limit and the cached memory is bounded by that.
pub(crate) fn ignored_options(
    config: &Config,
    backend: BackendKind,
    can_map: bool,
    is_soft_idle: bool,
) -> Vec<IgnoredOption> {
    let given = &config.given;
    let is_segmented = backend == BackendKind::Caching && !can_map;
    let instead = |name, texts: Instead| match (name, backend) {
        // The pool uses plain segments, as requested.
        ("expandable_segments", _)
            if is_segmented && matches!(given.expandable_segments, Some((false, _))) =>
        {
            None
        }
        ("soft_limit", _) if is_soft_idle => Some(SOFT_ABOVE_HARD),
        (_, BackendKind::Caching) => texts[if is_segmented { 3 } else { 0 }],
        (_, BackendKind::Native) => texts[1],
        (_, BackendKind::None) => texts[2],
    };
    let given_keys = KEYS.iter().filter(|key| (key.given)(given).is_some());
    let ignored = |option, texts| Some(IgnoredOption { option, backend, instead: instead(option, texts)? });
    // A soft limit that was set on the pool is not among the given options.
    let is_set_later = is_soft_idle && given.soft_limit.is_none();
    let later =
        is_set_later.then_some(IgnoredOption { option: "soft_limit", backend, instead: SOFT_ABOVE_HARD });
    given_keys.filter_map(|key| ignored(key.name, key.instead)).chain(later).collect()
}

//! The backends of the pool that this program was built with, and their profiles, for tests that hold for each.

use crate::pool::{BackendKind, Device, Pool, PoolBuilder, PoolError, Profile};
use std::fmt;

/// A backend, and one of the profiles where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Where the bytes come from.
    pub backend: BackendKind,
    /// What it trades.
    pub profile: Option<Profile>,
    /// Over plain segments, where the backend has the choice.
    pub plain_segments: bool,
}

impl Setting {
    /// Starts a pool of this kind.
    pub fn builder(self, device: &Device) -> PoolBuilder {
        let builder = Pool::builder(device).backend(self.backend);
        let builder = if self.plain_segments { builder.plain_segments() } else { builder };
        match self.profile {
            Some(profile) => builder.profile(profile),
            None => builder,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segments = if self.plain_segments { " (plain segments)" } else { "" };
        match self.profile {
            Some(profile) => write!(f, "{}{segments} {profile}", self.backend),
            None => write!(f, "{}{segments}", self.backend),
        }
    }
}

/// Every backend that is built in, with every profile it has, and over plain segments where it has the choice.
#[must_use]
pub fn settings(device: &Device) -> Vec<Setting> {
    let of = |backend| match backend {
        BackendKind::Caching => [
            (Some(Profile::Fast), false),
            (Some(Profile::Balanced), false),
            (Some(Profile::Tight), false),
            (Some(Profile::Balanced), true),
        ]
        .to_vec(),
        _ => vec![(None, false)],
    };
    let setting = |backend| move |(profile, plain_segments)| Setting { backend, profile, plain_segments };
    backends(device).into_iter().flat_map(|backend| of(backend).into_iter().map(setting(backend))).collect()
}

/// Every backend by name; one that is not built in is left out below, and one that is new joins here.
const NAMES: [&str; 3] = ["caching", "native", "none"];

/// Those that are built in.
///
/// # Panics
///
/// When one is built in and does not work here: a test must not pass because its subject is broken.
#[must_use]
pub fn backends(device: &Device) -> Vec<BackendKind> {
    let kinds = NAMES.iter().filter_map(|name| name.parse::<BackendKind>().ok());
    kinds.filter(|kind| is_built(device, *kind)).collect()
}

fn is_built(device: &Device, kind: BackendKind) -> bool {
    match Pool::builder(device).backend(kind).build() {
        Ok(_) => true,
        Err(PoolError::BackendNotBuilt { .. }) => false,
        Err(error) => panic!("{kind}: {error}"),
    }
}

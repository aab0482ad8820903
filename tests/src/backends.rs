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
}

impl Setting {
    /// Starts a pool of this kind.
    pub fn builder(self, device: &Device) -> PoolBuilder {
        let builder = Pool::builder(device).backend(self.backend);
        match self.profile {
            Some(profile) => builder.profile(profile),
            None => builder,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.profile {
            Some(profile) => write!(f, "{} {profile}", self.backend),
            None => write!(f, "{}", self.backend),
        }
    }
}

/// Every backend that is built in, with every profile it has.
#[must_use]
pub fn settings(device: &Device) -> Vec<Setting> {
    let profiles = |backend: &BackendKind| match backend.to_string().as_str() {
        "caching" => [Profile::Fast, Profile::Balanced, Profile::Tight].map(Some).to_vec(),
        _ => vec![None],
    };
    let all = backends(device).into_iter();
    all.flat_map(|backend| profiles(&backend).into_iter().map(move |profile| Setting { backend, profile }))
        .collect()
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

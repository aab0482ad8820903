//! The backends of the pool that this program was built with, and their profiles, for tests that hold for each.

use crate::pool::{BackendKind, Device, MemoryKind, Pool, PoolBuilder, PoolError, Profile};
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
    /// Whose memory it is.
    pub kind: MemoryKind,
}

impl Setting {
    /// Starts a pool of this kind.
    pub fn builder(self, device: &Device) -> PoolBuilder {
        let builder = Pool::builder(device).backend(self.backend).kind(self.kind);
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
        write!(f, "{}{segments}", self.backend)?;
        if let Some(profile) = self.profile {
            write!(f, " {profile}")?;
        }
        if self.kind != MemoryKind::Device { write!(f, " of {} memory", self.kind) } else { Ok(()) }
    }
}

/// Every backend that is built in, with every profile it has, and over plain segments where it has the choice; on the
/// simulator with every kind of memory too. A GPU's cases of other kinds are small, and in a file of their own.
#[must_use]
pub fn settings(device: &Device) -> Vec<Setting> {
    let is_real = gpumem_sim::Sim::of(device.driver()).is_none();
    let mut all = Vec::new();
    for backend in backends(device) {
        let plain = Setting { backend, profile: None, plain_segments: false, kind: MemoryKind::Device };
        let balanced = Setting { profile: Some(Profile::Balanced), ..plain };
        match backend {
            BackendKind::Caching => {
                let profiles = [Profile::Fast, Profile::Balanced, Profile::Tight].map(Some);
                all.extend(profiles.map(|profile| Setting { profile, ..plain }));
                all.push(Setting { plain_segments: true, ..balanced });
            }
            _ => all.push(plain),
        }
        if !is_real {
            let setting = if backend == BackendKind::Caching { balanced } else { plain };
            all.extend([MemoryKind::Unified, MemoryKind::Host].map(|kind| Setting { kind, ..setting }));
        }
    }
    all
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

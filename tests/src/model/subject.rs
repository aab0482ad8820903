//! What is under test: a backend, and for `caching` what it trades.

use super::operation::Case;
use crate::pool::{BackendKind, Device, Dials, Pool, PoolBuilder, PoolError, Profile};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A backend, and its profile if it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The backend.
    pub backend: BackendKind,
    /// Only for `caching`.
    pub profile: Option<Profile>,
    /// Whether that is over plain segments.
    pub plain_segments: bool,
}

impl Subject {
    /// Every one that is built in.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let others = [BackendKind::None, BackendKind::Native].map(Self::plain);
        let profiles = [Profile::Fast, Profile::Balanced, Profile::Tight].map(Self::caching);
        let is_built = |subject: &Self| match subject.backend {
            BackendKind::Native => cfg!(feature = "backend-native"),
            BackendKind::Caching => cfg!(feature = "backend-caching"),
            _ => true,
        };
        others.into_iter().chain(profiles).chain([Self::segments()]).filter(is_built).collect()
    }

    fn plain(backend: BackendKind) -> Self {
        Self { backend, profile: None, plain_segments: false }
    }

    fn caching(profile: Profile) -> Self {
        Self { profile: Some(profile), ..Self::plain(BackendKind::Caching) }
    }

    fn segments() -> Self {
        Self { plain_segments: true, ..Self::caching(Profile::Balanced) }
    }

    fn builder(self, device: &Device) -> PoolBuilder {
        let builder = Pool::builder(device).backend(self.backend);
        if self.plain_segments { builder.plain_segments() } else { builder }
    }

    /// Whether it is our own heap.
    pub(super) fn is_caching(self) -> bool {
        self.backend == BackendKind::Caching
    }

    /// Whether it has blocks that grow.
    pub(super) fn grows(self) -> bool {
        self.is_caching() && !self.plain_segments
    }

    /// A pool without limits.
    pub(super) fn open_plain(self, device: &Device) -> Result<Pool, PoolError> {
        let dials = self.profile.map_or_else(Dials::default, Dials::of);
        self.builder(device).dials(dials).build()
    }

    /// A pool as the case wants it.
    pub(super) fn open(self, case: &Case, device: &Device) -> Result<Pool, PoolError> {
        let mut builder = self.builder(device);
        if let Some(limit_bytes) = case.hard_limit_bytes {
            builder = builder.hard_limit(limit_bytes);
        }
        if let Some(limit_bytes) = case.soft_limit_bytes {
            builder = builder.soft_limit(limit_bytes);
        }
        if let Some(profile) = self.profile {
            let budget = if case.polls { Duration::MAX } else { Duration::ZERO };
            // What is given back early is so by the clock, which would make cases differ.
            let dials = Dials::of(profile).poll_budget(budget).release_budget(Duration::ZERO);
            builder = builder.dials(match case.empty_windows_max {
                Some(count) => dials.empty_windows_max(count),
                None => dials,
            });
        }
        builder.build()
    }
}

impl FromStr for Subject {
    type Err = PoolError;

    fn from_str(name: &str) -> Result<Self, PoolError> {
        match name.split_once('/') {
            Some(("caching", "segments")) => Ok(Self::segments()),
            Some((backend, profile)) => {
                Ok(Self { profile: Some(profile.parse()?), ..Self::plain(backend.parse()?) })
            }
            None => Ok(Self::plain(name.parse()?)),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.profile {
            Some(_) if self.plain_segments => write!(f, "{}/segments", self.backend),
            Some(profile) => write!(f, "{}/{profile}", self.backend),
            None => write!(f, "{}", self.backend),
        }
    }
}

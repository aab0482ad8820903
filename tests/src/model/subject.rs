//! What is under test: a backend, and for `caching` what it trades.

use super::operation::Case;
use crate::pool::{BackendKind, Device, Dials, Pool, PoolError, Profile};
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
}

impl Subject {
    /// Every one that is built in.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let others = [BackendKind::None, BackendKind::Native].map(|backend| Self { backend, profile: None });
        let profiles = [Profile::Fast, Profile::Balanced, Profile::Tight].map(Self::caching);
        let is_built = |subject: &Self| match subject.backend {
            BackendKind::Native => cfg!(feature = "backend-native"),
            BackendKind::Caching => cfg!(feature = "backend-caching"),
            _ => true,
        };
        others.into_iter().chain(profiles).filter(is_built).collect()
    }

    fn caching(profile: Profile) -> Self {
        Self { backend: BackendKind::Caching, profile: Some(profile) }
    }

    /// Whether it is our own heap.
    pub(super) fn is_caching(self) -> bool {
        self.backend == BackendKind::Caching
    }

    /// A pool without limits.
    pub(super) fn open_plain(self, device: &Device) -> Result<Pool, PoolError> {
        let dials = self.profile.map_or_else(Dials::default, Dials::of);
        Pool::builder(device).backend(self.backend).dials(dials).build()
    }

    /// A pool as the case wants it.
    pub(super) fn open(self, case: &Case, device: &Device) -> Result<Pool, PoolError> {
        let mut builder = Pool::builder(device).backend(self.backend);
        if let Some(limit_bytes) = case.hard_limit_bytes {
            builder = builder.hard_limit(limit_bytes);
        }
        if let Some(limit_bytes) = case.soft_limit_bytes {
            builder = builder.soft_limit(limit_bytes);
        }
        if let Some(profile) = self.profile {
            let budget = if case.polls { Duration::MAX } else { Duration::ZERO };
            let dials = Dials::of(profile).poll_budget(budget);
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
            Some((backend, profile)) => {
                Ok(Self { backend: backend.parse()?, profile: Some(profile.parse()?) })
            }
            None => Ok(Self { backend: name.parse()?, profile: None }),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.profile {
            Some(profile) => write!(f, "{}/{profile}", self.backend),
            None => write!(f, "{}", self.backend),
        }
    }
}

//! The subject of a test: a backend with its kind of memory, profile and adaptors.

use super::objects::Adapted;
use super::operation::Case;
use crate::pool::{BackendKind, Device, MemoryKind, Pool, PoolBuilder, PoolError, Profile, Spill};
use std::fmt;
use std::str::FromStr;

/// A backend, its kind of memory, and its profile if it has profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The backend.
    pub backend: BackendKind,
    /// The profile; `caching` only.
    pub profile: Option<Profile>,
    /// True if `caching` uses plain segments.
    pub plain_segments: bool,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// True if adaptors are attached.
    pub is_adapted: bool,
}

impl Subject {
    /// All subjects that are built in.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let others = [BackendKind::None, BackendKind::Native].map(Self::plain);
        let profiles = Profile::ALL.iter().copied().map(Self::caching);
        let of_kinds = [MemoryKind::Unified, MemoryKind::Host]
            .map(|kind| Self { kind, ..Self::caching(Profile::Balanced) });
        let is_built = |subject: &Self| match subject.backend {
            BackendKind::Native => cfg!(feature = "backend-native"),
            BackendKind::Caching => cfg!(feature = "backend-caching"),
            _ => true,
        };
        let of_devices = others.into_iter().chain(profiles).chain([Self::segments()]);
        let adapted = [Self::caching(Profile::Balanced), Self::plain(BackendKind::Native)]
            .map(|subject| Self { is_adapted: true, ..subject });
        of_devices.chain(of_kinds).chain(adapted).filter(is_built).collect()
    }

    fn plain(backend: BackendKind) -> Self {
        Self { backend, profile: None, plain_segments: false, kind: MemoryKind::Device, is_adapted: false }
    }

    fn caching(profile: Profile) -> Self {
        Self { profile: Some(profile), ..Self::plain(BackendKind::Caching) }
    }

    fn segments() -> Self {
        Self { plain_segments: true, ..Self::caching(Profile::Balanced) }
    }

    fn builder(self, device: &Device) -> Result<PoolBuilder, PoolError> {
        let builder = Pool::builder(device).backend(self.backend).kind(self.kind);
        Ok(builder.conf(if self.plain_segments { "expandable_segments:false" } else { "" })?)
    }

    /// True if the backend is `caching`.
    pub(super) fn is_caching(self) -> bool {
        self.backend == BackendKind::Caching
    }

    /// True if the pool supports growable blocks.
    pub(super) fn grows(self) -> bool {
        self.maps() && !self.is_adapted
    }

    /// True if the pool maps memory.
    pub(super) fn maps(self) -> bool {
        self.is_caching() && !self.plain_segments && self.kind == MemoryKind::Device
    }

    /// The hard limit of the pool. Host memory always has one, so that the model does not exhaust the machine.
    pub(super) fn hard_limit_bytes(self, case: &Case) -> Option<u64> {
        let is_host = self.kind == MemoryKind::Host;
        case.hard_limit_bytes.or_else(|| is_host.then_some(case.memory_bytes))
    }

    /// The memory available to all pools together. Unified memory leaves a margin of the device free.
    pub(super) fn machine_bytes(self, case: &Case) -> u64 {
        match self.kind {
            MemoryKind::Unified => case.memory_bytes - case.memory_bytes / 16,
            _ => case.memory_bytes,
        }
    }

    /// Options that remove the dependence on the clock, which would make cases differ: completion is polled without a time budget
    /// or not at all, and memory is not released early. (Backends other than `caching` poll too.)
    fn tuning(self, case: &Case) -> String {
        let poll_budget_us = if case.polls { u64::MAX } else { 0 };
        let mut conf = format!("poll_budget_us:{poll_budget_us},release_budget_us:0");
        if case.soft_limit_bytes.is_some() {
            conf += ",max_split_size_mb:20";
        }
        // Few programs have more empty mappings than a profile keeps. These two keep at most two, so that the limit is exercised.
        let keeps_few = self.profile == Some(Profile::Tight) || self.is_adapted;
        let few = keeps_few.then_some((case.sim_seed % 3) as u32);
        if let Some(count) = case.empty_mappings_max.or(few) {
            conf += &format!(",empty_mappings_max:{count}");
        }
        conf
    }

    /// Builds a pool without limits.
    pub(super) fn open_plain(self, device: &Device) -> Result<Pool, PoolError> {
        self.builder(device)?.profile(self.profile.unwrap_or_default()).build()
    }

    /// Builds a pool without limits, whose arrays move when the program says so.
    pub(super) fn open_spilling(self, device: &Device) -> Result<Pool, PoolError> {
        let builder = self.builder(device)?.profile(self.profile.unwrap_or_default());
        builder.spill(Spill::to_host(64 << 20)).conf("spill_bytes_min:1")?.build()
    }

    /// The adaptors of the subject, if it has any.
    pub(super) fn adapted(self, case: &Case) -> Option<Adapted> {
        self.is_adapted.then(|| Adapted::new(case))
    }

    /// Builds the pool of a case.
    pub(super) fn open(
        self,
        case: &Case,
        device: &Device,
        adapted: Option<&Adapted>,
    ) -> Result<Pool, PoolError> {
        let adaptors = adapted.map(Adapted::adaptors).into_iter().flatten();
        let mut builder = adaptors.fold(self.builder(device)?, PoolBuilder::adaptor);
        if let Some(limit_bytes) = self.hard_limit_bytes(case) {
            builder = builder.hard_limit(limit_bytes);
        }
        if let Some(limit_bytes) = case.soft_limit_bytes {
            builder = builder.soft_limit(limit_bytes);
        }
        if case.empty_mappings_max.is_some() {
            builder = builder.conf("garbage_collection_threshold:0.5")?;
        }
        let pool = builder.profile(self.profile.unwrap_or_default()).conf(&self.tuning(case))?.build()?;
        if self.profile == Some(Profile::Fast) && case.soft_limit_bytes.is_none() {
            let whole_bytes = self.hard_limit_bytes(case).unwrap_or(u64::MAX).min(case.memory_bytes);
            // From this reserve, threads cache large blocks too. A failure is ignored: if another pool has the memory, threads
            // cache less.
            let _ = pool.reserve(whole_bytes / 4 * 3);
        }
        Ok(pool)
    }
}

impl FromStr for Subject {
    type Err = PoolError;

    /// Parses backend, profile, kind and `adapted`, separated by slashes; defaults may be omitted.
    fn from_str(name: &str) -> Result<Self, PoolError> {
        let mut words = name.split('/');
        let backend = words.next().unwrap_or_default().parse()?;
        let usual = match backend {
            BackendKind::Caching => Self::caching(Profile::Balanced),
            _ => Self::plain(backend),
        };
        words.try_fold(usual, |subject, word| match word {
            "adapted" => Ok(Self { is_adapted: true, ..subject }),
            "segments" => Ok(Self { plain_segments: true, ..subject }),
            "device" | "unified" | "host" => Ok(Self { kind: word.parse()?, ..subject }),
            profile => Ok(Self { profile: Some(profile.parse()?), ..subject }),
        })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.backend)?;
        match self.profile {
            Some(_) if self.plain_segments => write!(f, "/segments")?,
            Some(Profile::Balanced) if self.kind.is_host_accessible() || self.is_adapted => {}
            Some(profile) => write!(f, "/{profile}")?,
            None => {}
        }
        if self.kind.is_host_accessible() {
            write!(f, "/{}", self.kind)?;
        }
        if self.is_adapted { f.write_str("/adapted") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_found_by_the_names_that_are_printed() {
        for subject in Subject::all() {
            assert_eq!(subject.to_string().parse::<Subject>().unwrap(), subject);
        }
        assert_eq!("caching/tight/host".parse::<Subject>().unwrap().to_string(), "caching/tight/host");
        assert_eq!("none/host/adapted".parse::<Subject>().unwrap().to_string(), "none/host/adapted");
        assert!("caching/loose".parse::<Subject>().is_err() && "other/host".parse::<Subject>().is_err());
    }
}

//! What is under test: a backend, whose memory it hands out, and for `caching` what it trades.

use super::adapted::Adapted;
use super::operation::Case;
use crate::pool::{BackendKind, Device, MemoryKind, Pool, PoolBuilder, PoolError, Profile};
use gpumem_sim::SimConfig;
use std::fmt;
use std::str::FromStr;

/// A backend, its kind of memory, and its profile if it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The backend.
    pub backend: BackendKind,
    /// Only for `caching`.
    pub profile: Option<Profile>,
    /// Whether that is over plain segments.
    pub plain_segments: bool,
    /// Whose memory.
    pub kind: MemoryKind,
    /// Whether adaptors stand around it.
    pub is_adapted: bool,
}

impl Subject {
    /// Every one that is built in, and whose backend has such memory.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Self::built().into_iter().filter(|subject| subject.refusal().is_none()).collect()
    }

    /// The others that are built in, and why their backend refuses them.
    #[must_use]
    pub fn refused() -> Vec<(Self, String)> {
        let refusals = Self::built().into_iter().map(|subject| (subject, subject.refusal()));
        refusals.filter_map(|(subject, refusal)| Some((subject, refusal?))).collect()
    }

    fn built() -> Vec<Self> {
        let others = [BackendKind::None, BackendKind::Native].map(Self::plain);
        let profiles = [Profile::Fast, Profile::Balanced, Profile::Tight].map(Self::caching);
        let hosts = [Self::caching(Profile::Balanced), Self::plain(BackendKind::Native)];
        let of_kinds = hosts
            .into_iter()
            .flat_map(|subject| [MemoryKind::Unified, MemoryKind::Host].map(|kind| Self { kind, ..subject }));
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

    /// Why its backend has no such memory, if it says so.
    #[must_use]
    pub fn refusal(self) -> Option<String> {
        let open = || {
            let driver = gpumem_sim::driver(SimConfig::new()).map_err(|error| error.to_string())?;
            let device = Device::new(&driver, 0).map_err(|error| error.to_string())?;
            self.open_plain(&device).map_err(|error| error.to_string())
        };
        if self.kind.is_host_accessible() { open().err() } else { None }
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

    /// Whether it is our own heap.
    pub(super) fn is_caching(self) -> bool {
        self.backend == BackendKind::Caching
    }

    /// Whether it has blocks that grow.
    pub(super) fn grows(self) -> bool {
        self.is_caching() && !self.plain_segments && self.kind == MemoryKind::Device
    }

    /// Its pool's hard limit. Host memory always has one: the machine's is not the model's to use up.
    pub(super) fn hard_limit_bytes(self, case: &Case) -> Option<u64> {
        let is_host = self.kind == MemoryKind::Host;
        case.hard_limit_bytes.or_else(|| is_host.then_some(case.memory_bytes))
    }

    /// What all its pools together may have of the machine: unified memory leaves the device a margin.
    pub(super) fn machine_bytes(self, case: &Case) -> u64 {
        match self.kind {
            MemoryKind::Unified => case.memory_bytes - case.memory_bytes / 16,
            _ => case.memory_bytes,
        }
    }

    /// What depends on the clock would make cases differ: what is asked is asked to the end, or not at all, and nothing is
    /// given back early. (Backends that do not trade anything ask too.)
    fn tuning(self, case: &Case) -> String {
        let poll_budget_us = if case.polls { u64::MAX } else { 0 };
        let mut conf = format!("poll_budget_us:{poll_budget_us},release_budget_us:0");
        if case.soft_limit_bytes.is_some() {
            conf += ",max_split_size_mb:20";
        }
        // Few programs have more mappings than any profile keeps, so these two mostly keep hardly any.
        let keeps_few = self.profile == Some(Profile::Tight) || self.is_adapted;
        let few = keeps_few.then_some((case.sim_seed % 3) as u32);
        if let Some(count) = case.empty_windows_max.or(few) {
            conf += &format!(",empty_mappings_max:{count}");
        }
        conf
    }

    /// A pool without limits.
    pub(super) fn open_plain(self, device: &Device) -> Result<Pool, PoolError> {
        self.builder(device)?.profile(self.profile.unwrap_or_default()).build()
    }

    /// The adaptors that stand around its pools.
    pub(super) fn adapted(self, case: &Case) -> Option<Adapted> {
        self.is_adapted.then(|| Adapted::new(case))
    }

    /// A pool as the case wants it.
    pub(super) fn open(
        self,
        case: &Case,
        device: &Device,
        adapted: Option<&Adapted>,
    ) -> Result<Pool, PoolError> {
        let adaptors = adapted.map(Adapted::adaptors).into_iter().flatten();
        let mut builder = adaptors.fold(self.builder(device)?, PoolBuilder::adaptor);
        if self.is_adapted {
            builder = builder.conf("exact_peaks:true")?;
        }
        if let Some(limit_bytes) = self.hard_limit_bytes(case) {
            builder = builder.hard_limit(limit_bytes);
        }
        if let Some(limit_bytes) = case.soft_limit_bytes {
            builder = builder.soft_limit(limit_bytes);
        }
        if case.empty_windows_max.is_some() {
            builder = builder.conf("garbage_collection_threshold:0.5")?;
        }
        let pool = builder.profile(self.profile.unwrap_or_default()).conf(&self.tuning(case))?.build()?;
        if self.profile == Some(Profile::Fast) && case.soft_limit_bytes.is_none() {
            let whole_bytes = self.hard_limit_bytes(case).unwrap_or(u64::MAX).min(case.memory_bytes);
            // Of that, threads keep large blocks too. Another may have the memory: then they keep less.
            let _ = pool.reserve(whole_bytes / 4 * 3);
        }
        Ok(pool)
    }
}

impl FromStr for Subject {
    type Err = PoolError;

    /// Backend, profile, kind and whether adaptors stand around it, as far as they are not the usual ones.
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
        for subject in Subject::built() {
            assert_eq!(subject.to_string().parse::<Subject>().unwrap(), subject);
        }
        assert_eq!("caching/tight/host".parse::<Subject>().unwrap().to_string(), "caching/tight/host");
        assert_eq!("none/host/adapted".parse::<Subject>().unwrap().to_string(), "none/host/adapted");
        assert!("caching/loose".parse::<Subject>().is_err() && "other/host".parse::<Subject>().is_err());
    }

    /// What is refused is so because of its kind.
    #[test]
    fn nothing_of_the_devices_own_is_refused() {
        assert!(Subject::refused().iter().all(|(subject, _)| subject.kind.is_host_accessible()));
        assert_eq!(Subject::all().len() + Subject::refused().len(), Subject::built().len());
    }
}

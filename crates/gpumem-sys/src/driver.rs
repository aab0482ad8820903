//! [`Driver`]: a cheap, cloneable handle to a filled table, and the choice of who fills it.

use crate::error::LoadError;
use crate::table::Table;
use crate::{cuda, env};
use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A driver: the table of its functions, and what keeps them callable.
///
/// Clones share the table. The vendor's library is loaded once a process and never unloaded; a software driver lives
/// until the last clone of its `Driver` is gone.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    table: Table,
    source: Source,
    /// Shared with every table made from this one: they all take down the same objects.
    teardown: Arc<Mutex<()>>,
}

enum Source {
    Cuda,
    #[cfg(feature = "sim")]
    Sim(crate::sim::Sim),
}

/// Who fills a driver's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DriverKind {
    /// The vendor's library, with real GPUs.
    Cuda,
    /// The software driver of this crate.
    Sim,
}

impl Driver {
    /// The vendor's driver, loaded and initialised on first use.
    ///
    /// # Errors
    ///
    /// [`LoadError`], when there is no library, no GPU, or the driver does not start.
    pub fn cuda() -> Result<Self, LoadError> {
        cuda::driver()
    }

    /// A software driver of its own: its devices, memory and queues are shared with no other instance.
    ///
    /// # Errors
    ///
    /// [`LoadError::Sim`], when too many instances are alive.
    #[cfg(feature = "sim")]
    pub fn sim(config: crate::sim::SimConfig) -> Result<Self, LoadError> {
        let (sim, table) = crate::sim::Sim::start(config)?;
        Ok(Self::new(table, Source::Sim(sim)))
    }

    /// The driver that `GPUMEM_DRIVER` names: `cuda` (also when unset) or `sim`, which obeys the `GPUMEM_SIM_…`
    /// variables.
    ///
    /// # Errors
    ///
    /// What [`Driver::cuda`] gives; or an unknown driver name, an unknown `GPUMEM_…` variable, a value that does not
    /// parse, or a build without the feature `sim`.
    pub fn from_env() -> Result<Self, LoadError> {
        Self::named(env::read("GPUMEM_DRIVER")?.as_deref().unwrap_or("cuda"))
    }

    /// The vendor's driver, or where there is none, or no GPU, a software driver set up by the `GPUMEM_SIM_…` variables.
    ///
    /// For tests, examples and tools, which print [`Driver::kind`]: nothing should run on a simulator unnoticed. A
    /// library takes a `Driver` from its caller instead.
    ///
    /// # Errors
    ///
    /// What setting up the software driver can give; [`LoadError::Start`] and [`LoadError::Impostor`], since a machine
    /// whose driver is broken should not quietly become one without a GPU. Without the feature `sim`, as
    /// [`Driver::cuda`].
    pub fn cuda_or_sim() -> Result<Self, LoadError> {
        match Self::cuda() {
            Err(LoadError::NoLibrary { .. } | LoadError::NoDevice(_)) if cfg!(feature = "sim") => {
                Self::named("sim")
            }
            other => other,
        }
    }

    /// [`Driver::from_env`] where `GPUMEM_DRIVER` is set, else [`Driver::cuda_or_sim`].
    ///
    /// # Errors
    ///
    /// As those two.
    pub fn from_env_or_sim() -> Result<Self, LoadError> {
        match env::read("GPUMEM_DRIVER")? {
            Some(name) => Self::named(&name),
            None => Self::cuda_or_sim(),
        }
    }

    fn named(name: &str) -> Result<Self, LoadError> {
        match name {
            "cuda" => Self::cuda(),
            #[cfg(feature = "sim")]
            "sim" => Self::sim(crate::sim::SimConfig::from_env()?),
            #[cfg(not(feature = "sim"))]
            "sim" => Err(LoadError::SimNotBuilt),
            other => Err(LoadError::UnknownDriver(other.to_string())),
        }
    }

    /// A driver whose library is loaded and initialised.
    pub(crate) fn loaded(table: Table) -> Self {
        Self::new(table, Source::Cuda)
    }

    fn new(table: Table, source: Source) -> Self {
        Self(Arc::new(Inner { table, source, teardown: Arc::default() }))
    }

    /// Who fills the table.
    #[must_use]
    pub fn kind(&self) -> DriverKind {
        match self.0.source {
            Source::Cuda => DriverKind::Cuda,
            #[cfg(feature = "sim")]
            Source::Sim(_) => DriverKind::Sim,
        }
    }

    /// The software driver behind the table, to register kernels with or to look into; `None` for the vendor's.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn simulator(&self) -> Option<&crate::sim::Sim> {
        match &self.0.source {
            Source::Cuda => None,
            Source::Sim(sim) => Some(sim),
        }
    }

    /// The raw table.
    #[must_use]
    #[inline]
    pub fn table(&self) -> &Table {
        &self.0.table
    }

    /// The same driver with some functions wrapped, replaced or taken away: `change` gets a copy of the table.
    ///
    /// For tests that count or fail calls.
    ///
    /// # Safety
    ///
    /// Whatever `change` puts into a field has the behaviour that the driver documents for that function.
    #[must_use]
    pub unsafe fn with_table(&self, change: impl FnOnce(&mut Table)) -> Self {
        let mut table = self.0.table;
        change(&mut table);
        let source = match &self.0.source {
            Source::Cuda => Source::Cuda,
            #[cfg(feature = "sim")]
            Source::Sim(sim) => Source::Sim(sim.clone()),
        };
        Self(Arc::new(Inner { table, source, teardown: Arc::clone(&self.0.teardown) }))
    }

    /// Whether both reach the same devices: the vendor's driver, or one software driver, through whatever table.
    ///
    /// A handle of one machine means nothing to another, and the vendor's driver would follow a foreign one.
    #[must_use]
    pub fn is_same_machine(&self, other: &Self) -> bool {
        match (&self.0.source, &other.0.source) {
            (Source::Cuda, Source::Cuda) => true,
            #[cfg(feature = "sim")]
            (Source::Sim(ours), Source::Sim(theirs)) => ours == theirs,
            #[cfg(feature = "sim")]
            _ => false,
        }
    }

    /// Held around the destruction of streams, events and contexts: the vendor's driver crashes when several threads
    /// take things down at once.
    ///
    /// The lock is not reentrant: a stream or an event of the layers above that is dropped while its own thread holds
    /// the guard waits forever.
    pub fn teardown(&self) -> MutexGuard<'_, ()> {
        self.0.teardown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether both handles reach the same table.
impl PartialEq for Driver {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Driver {}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("kind", &self.kind())
            .field("missing", &self.table().missing().count())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "NVIDIA driver",
            Self::Sim => "software driver (no GPU)",
        })
    }
}

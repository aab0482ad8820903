//! [`Sim`]: the handle to an instance.

#[allow(unsafe_code)]
pub(crate) mod driver;

use crate::config::SimConfig;
use crate::config::choices::Choice;
use crate::config::error::SimError;
use crate::device::launch::Kernel;
use crate::entry::slot::{self, Shared};
use crate::machine::Machine;
use crate::report::Report;
use crate::report::finding::{AccessKind, Finding};
use core::fmt;
use core::time::Duration;
use gpumem_sys::Table;
use std::sync::Arc;

/// A handle to a running simulated machine. Clones share it; it is gone with the last one.
///
/// A kernel of the machine may look at it ([`Sim::report`], [`Sim::choices`], [`Sim::seed`]). What would change it
/// does nothing there, and the kernel fails with a text that says so.
#[derive(Clone)]
pub struct Sim(Arc<Shared>);

impl Sim {
    /// Starts a machine; the table reaches it for as long as a handle lives.
    pub(crate) fn start(config: SimConfig) -> Result<(Self, Table), SimError> {
        let shared = slot::take(config)?;
        let table = shared.table;
        Ok((Self(shared), table))
    }

    /// Makes kernels known, which modules loaded later or before then find by name. The last of a name counts.
    pub fn register(&self, kernels: &'static [Kernel]) {
        let named = kernels.iter().map(|kernel| (kernel.name, *kernel));
        self.0.change("register", |machine| machine.kernels.extend(named));
    }

    /// The seed that decides the order of queued work.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.look(|machine| machine.config.seed)
    }

    /// The host's place on the virtual clock: what all calls so far have cost it, and what it has waited for.
    ///
    /// ```
    /// use gpumem_sim::SimConfig;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new())?;
    /// let sim = gpumem_sim::Sim::of(&driver).ok_or("not a simulator")?;
    /// let before = sim.host_time();
    /// // SAFETY: initialising has no conditions.
    /// unsafe { driver.cuInit(0)? };
    /// assert_eq!((sim.host_time() - before).as_millis(), 208);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn host_time(&self) -> Duration {
        Duration::from_nanos(self.0.look(|machine| machine.host_ns))
    }

    /// Another process takes free memory of a device, as much as there is of `size_bytes`. Says how much it got; of a
    /// device that does not exist, nothing.
    ///
    /// ```
    /// use gpumem_sim::SimConfig;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(64 << 20))?;
    /// let sim = gpumem_sim::Sim::of(&driver).ok_or("not a simulator")?;
    /// assert_eq!(sim.take_memory(0, 48 << 20), 48 << 20);
    /// assert_eq!(sim.take_memory(0, 48 << 20), 16 << 20);
    /// // From here on every allocation is out of memory, until
    /// assert_eq!(sim.return_memory(0, u64::MAX), 64 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_memory(&self, device: u32, size_bytes: u64) -> u64 {
        self.0.change("take_memory", |machine| machine.take_memory(device, size_bytes))
    }

    /// What [`Sim::take_memory`] took is free again, as much of it as there is of `size_bytes`. Says how much.
    pub fn return_memory(&self, device: u32, size_bytes: u64) -> u64 {
        self.0.change("return_memory", |machine| machine.return_memory(device, size_bytes))
    }

    /// What [`Sim::take_memory`] has taken of a device and not given back.
    #[must_use]
    pub fn others_bytes(&self, device: u32) -> u64 {
        self.0.look(|machine| machine.others_bytes(device))
    }

    /// What the machine holds now.
    #[must_use]
    pub fn report(&self) -> Report {
        self.0.look(Machine::report)
    }
}

/// Whether both are handles to one machine.
impl PartialEq for Sim {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Sim {}

impl Sim {
    /// The choices of the schedule so far, under [`Schedule::Choices`](crate::Schedule::Choices).
    #[must_use]
    pub fn choices(&self) -> Vec<Choice> {
        self.0.look(|machine| machine.schedule.choices().to_vec())
    }

    /// Takes the findings out of the report: for a test that is wrong on purpose.
    pub fn take_findings(&self) -> Vec<Finding> {
        self.0.change("take_findings", |machine| machine.findings.take())
    }

    /// Says that the host reads memory that devices write, pinned memory say, which no call of the driver shows. A
    /// copy into it that nothing orders before this is found as a race.
    pub fn host_reads<T>(&self, memory: *const T, len: usize) {
        let size_bytes = len.saturating_mul(size_of::<T>());
        self.0.change("host_reads", |machine| {
            machine.host_touches(AccessKind::HostRead, memory.addr(), size_bytes)
        });
    }

    /// Says that the host writes memory that devices reach. As [`Sim::host_reads`].
    pub fn host_writes<T>(&self, memory: *const T, len: usize) {
        let size_bytes = len.saturating_mul(size_of::<T>());
        self.0.change("host_writes", |machine| {
            machine.host_touches(AccessKind::HostWrite, memory.addr(), size_bytes)
        });
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").finish_non_exhaustive()
    }
}

//! [`Sim`]: the handle to an instance.

#[allow(unsafe_code)]
pub(crate) mod driver;

use crate::config::choices::Choice;
use crate::config::error::SimError;
use crate::config::{DEVICES_MAX, MEMORY_BYTES_MAX, SimConfig};
use crate::device::declared::{DeclaredRange, declaring};
use crate::device::launch::Kernel;
use crate::entry::slot::{self, Shared};
use crate::entry::{TABLES, rule_names};
use crate::machine::Machine;
use crate::report::Report;
use crate::report::finding::{AccessKind, Finding};
use core::fmt;
use core::time::Duration;
use gpumem_sys::Table;
use std::sync::Arc;

/// A handle to a running instance of the simulator. Clones share the instance; it ends with the last of them.
///
/// A kernel of the instance may read it ([`Sim::report`], [`Sim::choices`], [`Sim::seed`]). Functions that change the instance do
/// nothing inside of a kernel, and the kernel fails with a text that names the function.
#[derive(Clone)]
pub struct Sim(Arc<Shared>);

impl Sim {
    /// Starts a machine; the table reaches it for as long as a handle lives.
    pub(crate) fn start(config: SimConfig) -> Result<(Self, Table), SimError> {
        if config.device_count > DEVICES_MAX {
            return Err(SimError::TooManyDevices { count: config.device_count });
        }
        if config.memory_bytes > MEMORY_BYTES_MAX {
            return Err(SimError::TooMuchMemory { size_bytes: config.memory_bytes });
        }
        rule_names::check_all(&config.rules, config.device_count)?;
        let shared = slot::take(config, &TABLES)?;
        let table = shared.table;
        Ok((Self(shared), table))
    }

    /// Registers kernels. Modules find them by name, whether loaded before or after. A later kernel replaces an earlier one with the
    /// same name.
    pub fn register(&self, kernels: &'static [Kernel]) {
        let named = kernels.iter().map(|kernel| (kernel.name, *kernel));
        self.0.change("register", |machine| machine.kernels.extend(named));
    }

    /// Calls `launch`. Kernels that this thread launches in it, on any simulator, fail if they access other bytes than `declares` lists, or
    /// write those that are only read. `declares` is called during the launch, and calls no driver.
    #[doc(hidden)]
    #[inline]
    pub fn declaring<R>(declares: &dyn Fn() -> Vec<DeclaredRange>, launch: impl FnOnce() -> R) -> R {
        declaring(declares, launch)
    }

    /// The seed that decides the order of queued work.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.look(|machine| machine.config.seed)
    }

    /// The host's time on the virtual clock: the cost of all calls so far, and the waits.
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

    /// Takes free memory of a device as another process would: `size_bytes`, or less if less is free. Returns the number of bytes
    /// taken; 0 for a device that does not exist.
    ///
    /// ```
    /// use gpumem_sim::SimConfig;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(64 << 20))?;
    /// let sim = gpumem_sim::Sim::of(&driver).ok_or("not a simulator")?;
    /// assert_eq!(sim.take_memory(0, 48 << 20), 48 << 20);
    /// assert_eq!(sim.take_memory(0, 48 << 20), 16 << 20);
    /// // Every allocation is out of memory until the memory is returned.
    /// assert_eq!(sim.return_memory(0, u64::MAX), 64 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_memory(&self, device: u32, size_bytes: u64) -> u64 {
        self.0.change("take_memory", |machine| machine.take_memory(device, size_bytes))
    }

    /// Returns memory that [`Sim::take_memory`] took: `size_bytes`, or less if less is taken. Returns the number of bytes.
    pub fn return_memory(&self, device: u32, size_bytes: u64) -> u64 {
        self.0.change("return_memory", |machine| machine.return_memory(device, size_bytes))
    }

    /// The bytes of a device that [`Sim::take_memory`] has taken and that are not returned.
    #[must_use]
    pub fn others_bytes(&self, device: u32) -> u64 {
        self.0.look(|machine| machine.others_bytes(device))
    }

    /// The contents of the instance at this moment, and the findings so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.0.look(Machine::report)
    }
}

/// True if both are handles to one machine.
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

    /// Removes the findings from the report and returns them, for tests that provoke findings.
    pub fn take_findings(&self) -> Vec<Finding> {
        self.0.change("take_findings", |machine| machine.findings.take())
    }

    /// Declares that the host reads memory that devices write, such as pinned memory: no call of the driver shows it. A copy into that
    /// memory that is not ordered before this call is reported as a race.
    pub fn host_reads<T>(&self, memory: *const T, len: usize) {
        let size_bytes = len.saturating_mul(size_of::<T>());
        self.0.change("host_reads", |machine| {
            machine.host_touches(AccessKind::HostRead, memory.addr(), size_bytes)
        });
    }

    /// Declares that the host writes memory that devices access; see [`Sim::host_reads`].
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

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use gpumem_sys::types::{CUcontext, CUstream};

    /// Each ended thread left a stream and its clock: 8,000 of them took 388 MiB.
    #[test]
    fn ended_threads_leave_no_streams() {
        let driver = crate::driver(SimConfig::new()).unwrap();
        let mut context: CUcontext = core::ptr::null_mut();
        let mut buffer = 0;
        // SAFETY: the places outlive the calls.
        unsafe {
            driver.cuInit(0).unwrap();
            driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
            driver.cuCtxSetCurrent(context).unwrap();
            driver.cuMemAlloc_v2(&mut buffer, 64).unwrap();
        }
        let context = context.expose_provenance();
        for at in 0..100 {
            let driver = driver.clone();
            let work = move || {
                let stream: CUstream = core::ptr::without_provenance_mut(2);
                // SAFETY: the context and the buffer are alive.
                unsafe {
                    driver.cuCtxPushCurrent_v2(core::ptr::with_exposed_provenance_mut(context)).unwrap();
                    driver.cuMemsetD8Async(buffer, at, 64, stream).unwrap();
                    let mut popped = core::ptr::null_mut();
                    driver.cuCtxPopCurrent_v2(&mut popped).unwrap();
                }
            };
            std::thread::spawn(work).join().unwrap();
        }
        let mut last = 0_u8;
        // SAFETY: the context is current, and the target outlives the call.
        unsafe {
            driver.cuCtxSynchronize().unwrap();
            driver.cuMemcpyDtoH_v2((&raw mut last).cast(), buffer, 1).unwrap();
        }
        let sim = Sim::of(&driver).unwrap();
        assert!(sim.0.look(|machine| machine.streams.len()) < 8);
    }
}

//! Slots: how a bare C function pointer finds its instance.
//!
//! The entries of a driver are plain C functions without a user argument. Each exists once for every slot, with the slot as a const
//! parameter, so the address of the function identifies the instance. A slot is taken by [`Sim::start`](crate::Sim::start) and
//! released with the last handle to the instance; an entry of a free slot returns that the driver is shut down.

use crate::base::codes::{Answer, DEINITIALIZED, NOT_INITIALIZED};
use crate::config::error::SimError;
use crate::config::{DEVICES_MAX, MEMORY_BYTES_MAX, SimConfig};
use crate::entry;
use crate::entry::rule_names;
use crate::machine::Machine;
use crate::machine::device::view;
use gpumem_sys::Table;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// An instance, shared by its handles and its entries.
pub(crate) struct Shared {
    machine: Mutex<Machine>,
    pub(crate) instance: u64,
    /// Notified whenever a host function has returned.
    pub(crate) returned: Condvar,
    pub(crate) table: Table,
    /// The number of threads in the driver, including those that wait for the lock.
    pub(crate) threads: AtomicU64,
}

impl Shared {
    /// The state. A panic while the lock was held has been turned into an error; the state that it left is consistent enough to be
    /// read.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state. A kernel may call it.
    pub(crate) fn look<T>(&self, mut look: impl FnMut(&Machine) -> T) -> T {
        view::with(self.instance, &mut look).unwrap_or_else(|| look(&self.lock()))
    }

    /// Changes the state. A call from a kernel is refused, and the kernel fails.
    pub(crate) fn change<T: Default>(&self, call: &'static str, change: impl FnOnce(&mut Machine) -> T) -> T {
        if view::refuse(self.instance, call) { T::default() } else { change(&mut self.lock()) }
    }
}

/// Starts an instance in a free slot.
pub(crate) fn take(config: SimConfig) -> Result<Arc<Shared>, SimError> {
    if config.device_count > DEVICES_MAX {
        return Err(SimError::TooManyDevices { count: config.device_count });
    }
    if config.memory_bytes > MEMORY_BYTES_MAX {
        return Err(SimError::TooMuchMemory { size_bytes: config.memory_bytes });
    }
    rule_names::check_all(&config.rules, config.device_count)?;
    static STARTED: AtomicU64 = AtomicU64::new(0);
    for (slot, holder) in SLOTS.iter().enumerate() {
        // A slot whose lock is held is in use. In a forked child it may stay locked forever.
        let mut holder = match holder.try_lock() {
            Ok(holder) => holder,
            Err(TryLockError::Poisoned(holder)) => holder.into_inner(),
            Err(TryLockError::WouldBlock) => continue,
        };
        if holder.strong_count() == 0 {
            // Handles keep only the low bits. The slot is part of them, so no two live instances have equal handles.
            let instance = STARTED.fetch_add(1, Ordering::Relaxed) * SLOTS.len() as u64 + slot as u64;
            let shared = Arc::new(Shared {
                machine: Mutex::new(Machine::new(config, slot, instance)),
                instance,
                returned: Condvar::new(),
                table: TABLES[slot](),
                threads: AtomicU64::new(0),
            });
            *holder = Arc::downgrade(&shared);
            PROCESSES[slot].store(std::process::id(), Ordering::Relaxed);
            return Ok(shared);
        }
    }
    Err(SimError::TooManyInstances(SLOTS.len()))
}

/// The instance that holds a slot.
///
/// # Errors
///
/// `NOT_INITIALIZED` in a process that was forked from the one that started the instance: a thread that does not exist in the child
/// may hold the lock. `DEINITIALIZED` if the instance has ended.
pub(crate) fn find(slot: usize) -> Answer<Arc<Shared>> {
    let (holder, process) = SLOTS.get(slot).zip(PROCESSES.get(slot)).ok_or(DEINITIALIZED)?;
    let process = process.load(Ordering::Relaxed);
    if process != 0 && process != std::process::id() {
        return Err(NOT_INITIALIZED);
    }
    holder.lock().unwrap_or_else(PoisonError::into_inner).upgrade().ok_or(DEINITIALIZED)
}

macro_rules! slots {
    ($($slot:literal)*) => {
        const TABLES: &[fn() -> Table] = &[$(entry::table::<$slot>),*];
        /// The process that started the last instance of each slot.
        static PROCESSES: [AtomicU32; TABLES.len()] = [const { AtomicU32::new(0) }; TABLES.len()];
        static SLOTS: [Mutex<Weak<Shared>>; TABLES.len()] = [$({ const _: usize = $slot; Mutex::new(Weak::new()) }),*];
    };
}

slots! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
}

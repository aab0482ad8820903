//! Slots: how a bare C function pointer finds its instance.
//!
//! The entries of a driver are plain C functions without a user argument. Each exists once for every slot, with the slot as a const
//! parameter, so the address of the function identifies the instance. A slot is taken by [`Sim::start`](crate::Sim::start) and
//! released with the last handle to the instance; an entry of a free slot returns that the driver is shut down.

use crate::base::codes::{Answer, DEINITIALIZED, NOT_INITIALIZED};
use crate::config::SimConfig;
use crate::config::error::SimError;
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

/// Starts an instance in a free slot, with the slot's table of functions.
pub(crate) fn take(config: SimConfig, tables: &[fn() -> Table; SLOT_COUNT]) -> Result<Arc<Shared>, SimError> {
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
                table: tables[slot](),
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

/// The largest number of instances at a time.
pub(crate) const SLOT_COUNT: usize = 64;
static SLOTS: [Mutex<Weak<Shared>>; SLOT_COUNT] = [const { Mutex::new(Weak::new()) }; SLOT_COUNT];
/// The process that started the last instance of each slot.
static PROCESSES: [AtomicU32; SLOT_COUNT] = [const { AtomicU32::new(0) }; SLOT_COUNT];

//! Access to the machine from a running kernel through a [`Sim`](crate::Sim) handle.
//!
//! A kernel runs on the thread that holds the lock of its machine, so a second lock there would deadlock. So the thread records
//! the machine while a kernel runs: a read uses it directly, and a change is refused and ends the kernel with a fault. Threads
//! that a kernel starts take the lock like others, and wait.

use crate::machine::Machine;
use core::cell::Cell;
use core::marker::PhantomData;

/// While this lives, its thread runs a kernel of this machine.
pub(crate) struct View<'a> {
    before: Option<Running>,
    machine: PhantomData<&'a Machine>,
}

/// The instance whose kernel a thread runs.
#[derive(Clone, Copy)]
struct Running {
    machine: *const Machine,
    instance: u64,
    /// The refused call that would have changed the machine.
    refused: Option<&'static str>,
}

impl<'a> View<'a> {
    pub(crate) fn open(machine: &'a Machine) -> Self {
        let running = Running { machine, instance: machine.instance, refused: None };
        Self { before: RUNNING.replace(Some(running)), machine: PhantomData }
    }

    /// The last call that was refused.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        RUNNING.get()?.refused
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        RUNNING.set(self.before);
    }
}

/// Passes the machine of this instance to `look`, if one of its kernels runs on this thread.
pub(crate) fn with<T>(instance: u64, look: impl FnOnce(&Machine) -> T) -> Option<T> {
    let running = RUNNING.get().filter(|running| running.instance == instance)?;
    // SAFETY: the view on this thread borrows the machine, shared, until its drop removes this pointer; `look` has returned
    // before that.
    Some(look(unsafe { &*running.machine }))
}

/// Refuses a call that changes the machine of this instance, if a kernel of it runs on this thread. True if it was
/// refused; the kernel's launch then fails and names the call.
pub(crate) fn refuse(instance: u64, call: &'static str) -> bool {
    let Some(running) = RUNNING.get().filter(|running| running.instance == instance) else { return false };
    RUNNING.set(Some(Running { refused: Some(call), ..running }));
    true
}

thread_local!(static RUNNING: Cell<Option<Running>> = const { Cell::new(None) });

//! The machine as a running kernel finds it when it asks by a [`Sim`](super::Sim) handle.
//!
//! A kernel runs under its machine's lock, on the thread that holds it; waiting for the lock there would be for ever.
//! So while one runs, its thread knows which machine that is: a look is a look at that one, and a change is refused,
//! which ends the kernel in a fault that says so. Threads that a kernel starts are not the kernel, and wait.

use super::machine::Machine;
use super::slot::Shared;
use core::cell::Cell;
use core::marker::PhantomData;

/// For as long as it lives, its thread runs a kernel of this machine.
pub(super) struct View<'a> {
    before: Option<Running>,
    machine: PhantomData<&'a Machine>,
}

/// Whose kernel a thread runs.
#[derive(Clone, Copy)]
struct Running {
    machine: *const Machine,
    instance: u64,
    /// What it has called that would have changed the machine.
    refused: Option<&'static str>,
}

impl<'a> View<'a> {
    pub(super) fn open(machine: &'a Machine) -> Self {
        let running = Running { machine, instance: machine.instance, refused: None };
        Self { before: RUNNING.replace(Some(running)), machine: PhantomData }
    }

    /// The last call that was refused.
    pub(super) fn refused(&self) -> Option<&'static str> {
        RUNNING.get()?.refused
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        RUNNING.set(self.before);
    }
}

impl Shared {
    /// Looks at the state, also from inside of a kernel.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        match RUNNING.get().filter(|running| running.instance == self.instance) {
            // SAFETY: the view on this thread borrows the machine, shared, until it drops and takes this pointer away;
            // the look is over before that.
            Some(running) => look(unsafe { &*running.machine }),
            None => look(&self.lock()),
        }
    }

    /// Changes the state. From inside of a kernel that is refused, and so is said.
    pub(super) fn change<T: Default>(&self, call: &'static str, change: impl FnOnce(&mut Machine) -> T) -> T {
        match RUNNING.get().filter(|running| running.instance == self.instance) {
            Some(running) => {
                RUNNING.set(Some(Running { refused: Some(call), ..running }));
                T::default()
            }
            None => change(&mut self.lock()),
        }
    }
}

thread_local!(static RUNNING: Cell<Option<Running>> = const { Cell::new(None) });

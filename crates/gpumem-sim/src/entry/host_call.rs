//! Host functions, which run on threads of the driver: a host function may wait for the thread whose driver call started it.

use crate::base::handle::Handle;
use crate::base::thread::Inside;
use crate::entry::slot::Shared;
use crate::machine::Machine;
use crate::stream::operation::HostCall;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

/// Starts a host function that is due, and releases the lock until the function has returned, or for
/// [`SimConfig::host_function_wait`](crate::SimConfig::host_function_wait). A function that returns in time has returned at the same
/// point in every run of a program.
pub(crate) fn run<'a>(
    shared: &'a Arc<Shared>,
    machine: MutexGuard<'a, Machine>,
    stream: Handle,
    call: HostCall,
) -> MutexGuard<'a, Machine> {
    let has_returned = Arc::new(AtomicBool::new(false));
    let (its_shared, its_flag) = (shared.clone(), has_returned.clone());
    let thread = std::thread::Builder::new().name("host function".into());
    match thread.spawn(move || invoke(&its_shared, stream, call, &its_flag)) {
        Ok(_) => {
            let is_running = |_: &mut Machine| !has_returned.load(Ordering::Relaxed);
            let wait = machine.config.host_function_wait;
            let waited = shared.returned.wait_timeout_while(machine, wait, is_running);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
        // No thread can be started, so this one runs the function.
        Err(_) => {
            drop(machine);
            invoke(shared, stream, call, &has_returned);
            shared.lock()
        }
    }
}

fn invoke(shared: &Shared, stream: Handle, call: HostCall, has_returned: &AtomicBool) {
    {
        let _inside = Inside::enter();
        // SAFETY: the program requested this call with this argument, and the stream has reached it.
        unsafe { call.invoke() };
    }
    let mut machine = shared.lock();
    machine.call_returned(stream);
    has_returned.store(true, Ordering::Relaxed);
    shared.returned.notify_all();
}

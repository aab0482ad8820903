//! One call of the driver: from the slot of its table to the instance, under the lock of the instance, and back to a result code.
//!
//! Queued work runs only here: a little at the end of each call, at the pace that the seed draws, and as much as needed in a call
//! that waits. Host functions run without the lock on threads of their own, so that they may wait for threads that call the
//! driver. While one runs, its stream counts as busy, and a thread that needs later work of the stream sleeps until it is
//! complete. Kernels run under the lock. Neither may call the driver: such a call is refused.

use crate::base::codes::{Answer, NOT_PERMITTED, NOT_READY, UNKNOWN};
use crate::base::handle::Handle;
use crate::base::thread::{Inside, ThreadKey};
use crate::device::launch::panic_text;
use crate::entry::slot::Shared;
use crate::entry::{host_call, slot};
use crate::machine::Machine;
use crate::machine::call_cost::CallCost;
use crate::order::Point;
use crate::stream::operation::HostCall;
use crate::stream::schedule::Step;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use gpumem_sys::types::CUresult;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

/// A call in progress: the locked machine, and the calling thread.
pub(crate) struct Call<'a> {
    shared: &'a Arc<Shared>,
    /// `None` only while a host function runs.
    machine: Option<MutexGuard<'a, Machine>>,
    pub(crate) thread: ThreadKey,
}

/// Runs the body of an entry on the instance of a slot.
pub(crate) fn enter(
    slot: usize,
    name: &'static str,
    cost: CallCost,
    body: impl FnOnce(&mut Call<'_>) -> Answer<()>,
) -> CUresult {
    if Inside::is_inside() {
        return NOT_PERMITTED;
    }
    let shared = match slot::find(slot) {
        Ok(shared) => shared,
        Err(code) => return code,
    };
    let other_threads = shared.threads.fetch_add(1, Ordering::Relaxed);
    // A panic would be a bug of the simulator. It must not unwind into the caller, which is C code.
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let mut call = Call { machine: Some(shared.lock()), shared: &shared, thread: ThreadKey::current() };
        call.charge_call(cost, other_threads);
        (call.call_count, call.caller, call.call_name) = (call.call_count + 1, call.thread, name);
        let answer = call.offer(name).map_or_else(|| body(&mut call), Err);
        if let Err(code) = answer {
            call.note_if_capture_forbids(code);
        }
        call.progress();
        (answer, core::mem::take(&mut call.printed))
    }));
    shared.threads.fetch_sub(1, Ordering::Relaxed);
    let (answer, printed) = answer.unwrap_or_else(|panic| {
        panic_text(panic);
        (Err(UNKNOWN), String::new())
    });
    write_out(&printed);
    answer.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Writes what kernels have printed to the output of the program, as a device does. No lock is held, so a program that holds the output may
/// call the driver. Output that cannot be written is lost.
fn write_out(printed: &str) {
    if !printed.is_empty() {
        let mut output = std::io::stdout();
        let _ = output.write_all(printed.as_bytes()).and_then(|()| output.flush());
    }
}

impl Call<'_> {
    /// The table that fills this instance's slot.
    pub(crate) fn table(&self) -> &gpumem_sys::Table {
        &self.shared.table
    }

    /// Runs some queued work, at the pace that the seed draws.
    fn progress(&mut self) {
        let count = self.progress_count();
        self.schedule.set_may_stop(true);
        self.step_up_to(count);
        self.schedule.set_may_stop(false);
    }

    /// Runs queued work until a condition holds.
    pub(crate) fn wait_until(&mut self, is_done: impl Fn(&Machine) -> bool) -> Answer<()> {
        while !is_done(self) {
            match self.step() {
                Step::Ran => {}
                Step::Call(stream, call) => self.call_host(stream, call),
                Step::Busy => self.sleep(),
                // Each wait is for work that is queued, so this is not reached.
                Step::Idle => return Err(UNKNOWN),
            }
        }
        Ok(())
    }

    /// Waits for a point, if there is one. Its context may fail meanwhile.
    pub(crate) fn wait_for(&mut self, point: Option<Point>) -> Answer<()> {
        let Some(point) = point else { return Ok(()) };
        let context = self.streams.get(point.stream).map(|stream| stream.context);
        self.wait_for_point(point)?;
        self.host_saw_stream(point.stream);
        context.map_or(Ok(()), |context| self.check_context(context))
    }

    /// Waits for a point, and runs the work that it depends on.
    pub(crate) fn wait_for_point(&mut self, point: Point) -> Answer<()> {
        self.schedule.set_goal(Some(point.stream));
        let answer = self.wait_until(|machine| machine.is_done(point));
        self.schedule.set_goal(None);
        answer
    }

    /// Waits for all work of a context.
    pub(crate) fn wait_for_context(&mut self, context: Handle) -> Answer<()> {
        self.wait_until(|machine| machine.is_context_idle(context))?;
        self.host_saw_context(context);
        self.check_context(context)
    }

    /// Waits for all work of a device.
    pub(crate) fn wait_for_device(&mut self, device: usize) -> Answer<()> {
        self.wait_until(|machine| machine.is_device_idle(device))?;
        self.host_learns_device(device);
        Ok(())
    }

    /// Waits for all queued work.
    pub(crate) fn wait_for_all(&mut self) -> Answer<()> {
        self.wait_until(|machine| machine.active.is_empty())?;
        self.host_learns_all();
        Ok(())
    }

    /// True if a point is reached. If not, some work may run, so that repeated queries end.
    pub(crate) fn poll(&mut self, is_done: impl Fn(&Machine) -> bool) -> Answer<()> {
        if is_done(self) {
            return Ok(());
        }
        let count = self.poll_count();
        self.step_up_to(count);
        Err(NOT_READY)
    }

    /// Waits while the stream's queue is full. A capture may refuse the work.
    pub(crate) fn make_room(&mut self, stream: Handle) -> Answer<()> {
        self.capture_check(stream)?;
        self.wait_until(|machine| !machine.is_full(stream))
    }

    /// Refuses a call that may wait for the device, if a capture forbids it.
    pub(crate) fn refuse_unsafe(&mut self) -> Answer<()> {
        let thread = self.thread;
        self.capture_check_unsafe(thread)
    }

    /// Like [`Self::refuse_unsafe`], unless the call names a capturing stream, whose capture records the call as a node.
    pub(crate) fn refuse_outside_capture(&mut self, stream: Handle) -> Answer<()> {
        if self.is_capturing(stream) { Ok(()) } else { self.refuse_unsafe() }
    }

    fn step_up_to(&mut self, count: usize) {
        for _ in 0..count {
            match self.step() {
                Step::Ran => {}
                Step::Call(stream, call) => self.call_host(stream, call),
                Step::Busy | Step::Idle => return,
            }
        }
    }

    /// Runs a host function without the lock.
    fn call_host(&mut self, stream: Handle, call: HostCall) {
        if let Some(machine) = self.machine.take() {
            self.machine = Some(host_call::run(self.shared, machine, stream, call));
        }
    }

    /// Releases the lock until a host function has returned, or for a short time: any thread may write a value that streams wait
    /// for.
    fn sleep(&mut self) {
        if let Some(machine) = self.machine.take() {
            let woken = self.shared.returned.wait_timeout(machine, MOMENT);
            self.machine = Some(woken.unwrap_or_else(PoisonError::into_inner).0);
        }
    }
}

impl Deref for Call<'_> {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        match &self.machine {
            Some(machine) => machine,
            None => unreachable!("the lock is given away only while nothing else runs in this call"),
        }
    }
}

impl DerefMut for Call<'_> {
    fn deref_mut(&mut self) -> &mut Machine {
        match &mut self.machine {
            Some(machine) => machine,
            None => unreachable!("the lock is given away only while nothing else runs in this call"),
        }
    }
}

/// The time that a call sleeps between two checks.
const MOMENT: Duration = Duration::from_millis(1);

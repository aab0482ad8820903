//! Runs queued work: draws the next operation among those that are ready.

use crate::base::handle::Handle;
use crate::config::choices::Schedule;
use crate::machine::Machine;
use crate::order::races::Running;
use crate::stream::operation::{HostCall, HostFunction, Operation};
use crate::stream::schedule::Step;

impl Machine {
    /// The number of operations that run at the end of a call that does not wait.
    pub(crate) fn progress_count(&mut self) -> usize {
        if self.active.is_empty() { 0 } else { self.schedule.allowance() }
    }

    /// The number of operations to run at a query whose work is not complete: sometimes one, so that polling ends.
    pub(crate) fn poll_count(&mut self) -> usize {
        match self.schedule.mode {
            Schedule::Random => self.schedule.random.below(3),
            _ => 1,
        }
    }

    /// True if a stream's queue is full.
    pub(crate) fn is_full(&self, stream: Handle) -> bool {
        self.staged_bytes > STAGED_BYTES_MAX
            || self.streams.get(stream).is_some_and(|stream| stream.queue.len() > QUEUE_MAX)
    }

    /// Runs one operation that is ready.
    pub(crate) fn step(&mut self) -> Step {
        let Some(stream) = self.draw() else {
            return if self.active.is_empty() { Step::Idle } else { Step::Busy };
        };
        if let Some(call) = self.due_call(stream) {
            return Step::Call(stream, call);
        }
        self.run_head(stream);
        Step::Ran
    }

    /// A stream whose first operation is ready. A stream delayed by a rule is chosen only if there is no other.
    fn draw(&mut self) -> Option<Handle> {
        if self.schedule.delays.is_empty() {
            return self.draw_any();
        }
        self.schedule.delays.retain_mut(|(_, step_count)| {
            *step_count = step_count.saturating_sub(1);
            *step_count > 0
        });
        self.draw_any().or_else(|| {
            let delays = core::mem::take(&mut self.schedule.delays);
            let drawn = self.draw_any();
            self.schedule.delays = delays;
            drawn
        })
    }

    fn draw_any(&mut self) -> Option<Handle> {
        match self.schedule.mode {
            Schedule::Random => self.draw_at_random(),
            Schedule::Early => self.active.iter().find_map(|&stream| self.runnable(stream)),
            Schedule::Late => {
                let goal = self.schedule.goal.filter(|&stream| !self.is_stream_idle(stream));
                goal.into_iter()
                    .chain(self.active.iter().rev().copied())
                    .find_map(|stream| self.runnable(stream))
            }
            Schedule::Choices(_) => self.draw_by_choice(),
        }
    }

    fn draw_by_choice(&mut self) -> Option<Handle> {
        let mut ready: Vec<Handle> = self.active.iter().filter_map(|&stream| self.runnable(stream)).collect();
        ready.sort();
        ready.dedup();
        let may_stop = usize::from(self.schedule.may_stop);
        if ready.is_empty() {
            return None;
        }
        let taken = self.schedule.choose(ready.len() + may_stop);
        ready.get(taken.checked_sub(may_stop)?).copied()
    }

    fn draw_at_random(&mut self) -> Option<Handle> {
        if let Some(stream) = self.schedule.burst.filter(|_| self.schedule.burst_left > 0) {
            self.schedule.burst_left -= 1;
            if self.streams.get(stream).is_some_and(|stream| !stream.is_idle())
                && let Some(stream) = self.runnable(stream)
            {
                return Some(stream);
            }
        }
        let start = self.schedule.random.below(self.active.len());
        let burst_bits = self.schedule.random.below(6);
        self.schedule.burst_left = (1 << burst_bits) - 1;
        let count = self.active.len();
        let found = (0..count).find_map(|step| self.runnable(self.active[(start + step) % count]));
        self.schedule.burst = found;
        found
    }

    /// This stream if its first operation is ready; otherwise the stream that it waits for, recursively, whose work must run
    /// first. `None` if it waits for a host function, or for a value that is not written yet.
    fn runnable(&self, stream: Handle) -> Option<Handle> {
        let mut at = stream;
        loop {
            let stream = self.streams.get(at).filter(|stream| !stream.is_busy)?;
            match &stream.queue.front()?.operation {
                Operation::Wait { point, .. } if !self.is_done(*point) => at = point.stream,
                Operation::WaitValue(wish, condition) if !self.value_is_met(at, wish, *condition) => {
                    return None;
                }
                _ if self.schedule.delays.iter().any(|(number, _)| *number == stream.clock.number) => {
                    return None;
                }
                _ => return Some(at),
            }
        }
    }

    /// The host function at the head of a stream, which then counts as busy. In a context that has failed, host functions
    /// are skipped and callbacks get the error.
    fn due_call(&mut self, handle: Handle) -> Option<HostCall> {
        let stream = self.streams.get_mut(handle)?;
        let Operation::Call(mut call) = stream.queue.front()?.operation else { return None };
        if let Some(error) = self.contexts.get(stream.context).and_then(|context| context.error) {
            let HostFunction::Callback { status, .. } = &mut call.run else { return None };
            *status = error;
        }
        stream.is_busy = true;
        Some(call)
    }

    /// The host function that [`Step::Call`] named has returned.
    pub(crate) fn call_returned(&mut self, handle: Handle) {
        if let Some(stream) = self.streams.get_mut(handle) {
            stream.is_busy = false;
        }
        self.host_function_ran(handle);
        self.run_head(handle);
    }

    fn run_head(&mut self, handle: Handle) {
        let Some(stream) = self.streams.get_mut(handle) else { return };
        let Some(mut queued) = stream.queue.pop_front() else { return };
        self.staged_bytes -= queued.operation.staged_bytes();
        let position = stream.done_count + 1;
        let order = self.order_before(handle, &mut queued);
        self.running = Some(Running { stream: handle, position, call: order.call });
        self.execute(handle, queued);
        self.running = None;
        self.order_after(handle, &order);
        self.finish_head(handle);
    }

    fn finish_head(&mut self, handle: Handle) {
        let Some(stream) = self.streams.get_mut(handle) else { return };
        stream.done_count += 1;
        if stream.is_idle() {
            if let Some(index) = self.active.iter().position(|&active| active == handle) {
                self.active.swap_remove(index);
            }
            self.remove_if_drained(handle);
        }
    }
}

/// The maximum number of queued operations of a stream; then a call waits.
const QUEUE_MAX: usize = 4096;

/// The maximum of pageable memory held by queued copies; then a call waits.
const STAGED_BYTES_MAX: u64 = 64 << 20;

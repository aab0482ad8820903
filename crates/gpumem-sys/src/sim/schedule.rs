//! Which queued operation runs next: any that streams and events allow, as the seed decides.
//!
//! The seed draws two things. The *pace* is how much runs by itself at each call of the driver, from nothing (work is
//! done only when somebody waits for it) to everything in sight. The *order* comes in bursts: a stream runs for a
//! while before another is drawn, so that both fine interleavings and one stream far ahead of another are common. A
//! queue is finite like the real one: a stream with [`QUEUE_MAX`] operations, or too much staged memory, runs some.

use super::handle::Handle;
use super::machine::Machine;
use super::operation::{HostCall, Operation};
use super::random::Random;

/// What the seed decides, and where it stands.
pub(super) struct Schedule {
    random: Random,
    pace: Pace,
    burst: Option<Handle>,
    burst_left: usize,
}

/// How much runs by itself at a call of the driver.
#[derive(Clone, Copy, Debug)]
enum Pace {
    Never,
    Seldom,
    Often,
    Always,
}

/// What one step came to.
pub(super) enum Step {
    /// An operation ran.
    Ran,
    /// A host function is due: the caller runs it without the lock, then says so.
    Call(Handle, HostCall),
    /// Everything that is left stands behind a host function that another thread is running.
    Busy,
    /// Nothing is queued.
    Idle,
}

impl Schedule {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let pace = [Pace::Never, Pace::Seldom, Pace::Often, Pace::Always][random.below(4)];
        Self { random, pace, burst: None, burst_left: 0 }
    }

    /// How many operations run by themselves at this call.
    fn allowance(&mut self) -> usize {
        match self.pace {
            Pace::Never => 0,
            Pace::Seldom if self.random.one_in(16) => 1 + self.random.below(4),
            Pace::Often if self.random.one_in(2) => 1 + self.random.below(4),
            Pace::Always => 1 + self.random.below(16),
            _ => 0,
        }
    }
}

impl Machine {
    /// How many operations run by themselves when a call has done its own part.
    pub(super) fn progress_count(&mut self) -> usize {
        if self.active.is_empty() { 0 } else { self.schedule.allowance() }
    }

    /// How many run when somebody asks whether work is done and it is not: sometimes one, so that polling ends.
    pub(super) fn poll_count(&mut self) -> usize {
        self.schedule.random.below(3)
    }

    /// Whether a stream has as much queued as it may.
    pub(super) fn is_full(&self, stream: Handle) -> bool {
        self.staged_bytes > STAGED_BYTES_MAX
            || self.streams.get(stream).is_some_and(|stream| stream.queue.len() > QUEUE_MAX)
    }

    /// Runs one operation that is ready.
    pub(super) fn step(&mut self) -> Step {
        let Some(stream) = self.draw() else {
            return if self.active.is_empty() { Step::Idle } else { Step::Busy };
        };
        if let Some(call) = self.due_call(stream) {
            return Step::Call(stream, call);
        }
        self.run_head(stream);
        Step::Ran
    }

    /// A stream whose first operation is ready.
    fn draw(&mut self) -> Option<Handle> {
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

    /// This stream if its first operation is ready; else the one that it waits for, or that one's, which must come
    /// first anyway. None if a host function is in the way.
    fn runnable(&self, stream: Handle) -> Option<Handle> {
        let mut at = stream;
        loop {
            let stream = self.streams.get(at).filter(|stream| !stream.is_busy)?;
            match stream.queue.front()?.operation {
                Operation::Wait { point, .. } if !self.is_done(point) => at = point.stream,
                _ => return Some(at),
            }
        }
    }

    /// The host function at the head of a stream, which then counts as busy. Skipped in a context that has failed.
    fn due_call(&mut self, handle: Handle) -> Option<HostCall> {
        let stream = self.streams.get_mut(handle)?;
        let Operation::Call(call) = stream.queue.front()?.operation else { return None };
        if self.contexts.get(stream.context).is_some_and(|context| context.error.is_some()) {
            return None;
        }
        stream.is_busy = true;
        Some(call)
    }

    /// The host function that [`Step::Call`] named has returned.
    pub(super) fn call_returned(&mut self, handle: Handle) {
        if let Some(stream) = self.streams.get_mut(handle) {
            stream.is_busy = false;
        }
        self.run_head(handle);
    }

    fn run_head(&mut self, handle: Handle) {
        let Some(stream) = self.streams.get_mut(handle) else { return };
        let Some(queued) = stream.queue.pop_front() else { return };
        self.staged_bytes -= queued.operation.staged_bytes();
        self.execute(handle, queued);
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

/// As many operations as a stream holds before a call waits.
const QUEUE_MAX: usize = 4096;

/// As much pageable memory as queued copies hold before a call waits.
const STAGED_BYTES_MAX: u64 = 64 << 20;

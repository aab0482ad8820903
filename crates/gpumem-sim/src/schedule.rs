//! Which queued operation runs next: any that streams and events allow, as the schedule decides.
//!
//! With [`Schedule::Random`] the seed draws two things. The *pace* is how much runs by itself at each call of the driver, from nothing (work is
//! done only when somebody waits for it) to everything in sight. The *order* comes in bursts: a stream runs for a
//! while before another is drawn, so that both fine interleavings and one stream far ahead of another are common. A
//! queue is finite like the real one: a stream with [`QUEUE_MAX`] operations, or too much staged memory, runs some.

use super::choices::{Choice, Schedule};
use super::handle::Handle;
use super::machine::Machine;
use super::operation::{HostCall, HostFunction, Operation};
use super::races::Running;
use super::random::Random;

/// What the seed decides, and where it stands.
pub(super) struct Scheduler {
    mode: Schedule,
    /// What came of the choices so far.
    choices: Vec<Choice>,
    /// A call may end now, with work left to run.
    may_stop: bool,
    /// The stream that somebody waits for.
    goal: Option<Handle>,
    /// Streams that rules hold back, by number, and for how many operations.
    delays: Vec<(u32, u64)>,
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
    /// Everything that is left stands behind a host function that another thread is running, or behind a value that
    /// is still to be written.
    Busy,
    /// Nothing is queued.
    Idle,
}

impl Scheduler {
    pub(super) fn new(seed: u64, mode: Schedule) -> Self {
        let mut random = Random::new(seed);
        let pace = [Pace::Never, Pace::Seldom, Pace::Often, Pace::Always][random.below(4)];
        Self {
            mode,
            choices: Vec::new(),
            may_stop: false,
            goal: None,
            delays: Vec::new(),
            random,
            pace,
            burst: None,
            burst_left: 0,
        }
    }

    pub(super) fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Says which stream a wait is for, or that it is over.
    pub(super) fn set_goal(&mut self, goal: Option<Handle>) {
        self.goal = goal;
    }

    /// Says whether what runs next is up to nobody's wait.
    pub(super) fn set_may_stop(&mut self, may_stop: bool) {
        self.may_stop = may_stop;
    }

    pub(super) fn delay(&mut self, stream_number: u32, step_count: u64) {
        self.delays.push((stream_number, step_count));
    }

    /// One of so many alternatives, as the list says.
    fn choose(&mut self, count: usize) -> usize {
        if count < 2 {
            return 0;
        }
        let Schedule::Choices(list) = &self.mode else { return 0 };
        let taken = list.get(self.choices.len()).map_or(0, |&taken| taken as usize).min(count - 1);
        self.choices.push(Choice { taken: taken as u32, count: count as u32 });
        taken
    }

    /// How many operations run by themselves at this call.
    fn allowance(&mut self) -> usize {
        match self.mode {
            Schedule::Random => self.allowance_of_pace(),
            Schedule::Late => 0,
            Schedule::Early | Schedule::Choices(_) => usize::MAX,
        }
    }

    fn allowance_of_pace(&mut self) -> usize {
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
        match self.schedule.mode {
            Schedule::Random => self.schedule.random.below(3),
            _ => 1,
        }
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

    /// A stream whose first operation is ready; one that a rule holds back only if there is no other.
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

    /// This stream if its first operation is ready; else the one that it waits for, or that one's, which must come
    /// first anyway. None if a host function is in the way, or a value that nobody has written.
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

    /// The host function at the head of a stream, which then counts as busy. Skipped in a context that has failed, but
    /// for callbacks, which are told.
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
    pub(super) fn call_returned(&mut self, handle: Handle) {
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

/// As many operations as a stream holds before a call waits.
const QUEUE_MAX: usize = 4096;

/// As much pageable memory as queued copies hold before a call waits.
const STAGED_BYTES_MAX: u64 = 64 << 20;

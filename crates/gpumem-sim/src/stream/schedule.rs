//! Chooses the queued operation that runs next, among those that streams and events allow.
//!
//! With [`Schedule::Random`] the seed draws two things. The *pace* is the amount of work that runs at each call of the driver, from
//! none (work runs only during waits) to all that is ready. The *order* comes in bursts: a stream runs for a while before another
//! is drawn, so that both fine interleavings and one stream far ahead of another are common. A queue is finite as on a GPU: a
//! stream with [`QUEUE_MAX`] operations, or too much staged memory, runs some.

use crate::base::handle::Handle;
use crate::base::random::Random;
use crate::config::choices::{Choice, Schedule};
use crate::stream::operation::HostCall;

/// The state of the schedule.
pub(crate) struct Scheduler {
    pub(crate) mode: Schedule,
    /// The choices so far.
    choices: Vec<Choice>,
    /// True if a call may return now, with pending work.
    pub(crate) may_stop: bool,
    /// The stream that a call waits for.
    pub(crate) goal: Option<Handle>,
    /// Streams delayed by rules, by number, and the number of operations left.
    pub(crate) delays: Vec<(u32, u64)>,
    pub(crate) random: Random,
    pace: Pace,
    pub(crate) burst: Option<Handle>,
    pub(crate) burst_left: usize,
}

/// The amount of work that runs at a driver call.
#[derive(Clone, Copy, Debug)]
enum Pace {
    Never,
    Seldom,
    Often,
    Always,
}

/// The result of one step.
pub(crate) enum Step {
    /// An operation ran.
    Ran,
    /// A host function is due: the caller runs it without the lock, then reports its end.
    Call(Handle, HostCall),
    /// All remaining work is behind a host function that another thread is running, or behind a value that is not yet written.
    Busy,
    /// Nothing is queued.
    Idle,
}

impl Scheduler {
    pub(crate) fn new(seed: u64, mode: Schedule) -> Self {
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

    pub(crate) fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Sets the stream of a wait; `None` ends the wait.
    pub(crate) fn set_goal(&mut self, goal: Option<Handle>) {
        self.goal = goal;
    }

    /// Sets whether no wait needs the next operation.
    pub(crate) fn set_may_stop(&mut self, may_stop: bool) {
        self.may_stop = may_stop;
    }

    pub(crate) fn delay(&mut self, stream_number: u32, step_count: u64) {
        self.delays.push((stream_number, step_count));
    }

    /// Chooses one of `count` alternatives, from the list.
    pub(crate) fn choose(&mut self, count: usize) -> usize {
        if count < 2 {
            return 0;
        }
        let Schedule::Choices(list) = &self.mode else { return 0 };
        let taken = list.get(self.choices.len()).map_or(0, |&taken| taken as usize).min(count - 1);
        self.choices.push(Choice { taken: taken as u32, count: count as u32 });
        taken
    }

    /// The number of operations that run at this call.
    pub(crate) fn allowance(&mut self) -> usize {
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

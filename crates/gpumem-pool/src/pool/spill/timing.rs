//! [`Timings`]: how long copies take, and how long streams wait for them, by events that are read once they are complete. The host never
//! waits for one.
//!
//! A measurement that the driver refuses is missing in the sums, and so are those of work while streams capture. Rates come from the copies
//! that were measured.

use crate::figures::ActivityCounters;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use gpumem_base::sync::Lock;
use gpumem_device::{Device, Event, Stream};
use std::collections::VecDeque;
use std::sync::Arc;

/// What happens between two events on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interval {
    /// A copy of so many bytes to the host.
    Down(u64),
    /// A copy of so many bytes from the host.
    Up(u64),
    /// The wait of a stream for contents.
    Wait,
}

/// The measurements of one pool.
pub(super) struct Timings {
    device: Device,
    activity: Arc<ActivityCounters>,
    events: Lock<TimedEvents>,
    down: Rate,
    up: Rate,
}

#[derive(Default)]
struct TimedEvents {
    /// Starts, ends, and what they enclose, the earliest first.
    running: VecDeque<(Event, Event, Interval)>,
    spare: Vec<Event>,
}

/// The sums of the copies in one direction.
#[derive(Default)]
struct Rate {
    bytes: AtomicU64,
    time_ns: AtomicU64,
}

impl Timings {
    pub(super) fn new(device: &Device, activity: &Arc<ActivityCounters>) -> Self {
        let (device, activity) = (device.clone(), Arc::clone(activity));
        Self { device, activity, events: Lock::default(), down: Rate::default(), up: Rate::default() }
    }

    /// Begins an interval behind the work that is queued on a stream. `None` if it is not measured.
    pub(super) fn begin(&self, stream: &Stream) -> Option<Event> {
        self.read_complete();
        if self.events.lock().running.len() >= RUNNING_MAX {
            return None;
        }
        self.record(stream)
    }

    /// Ends an interval behind the work that is queued on the stream by now.
    pub(super) fn end(&self, start: Option<Event>, stream: &Stream, interval: Interval) {
        let ends = start.and_then(|start| Some((start, self.record(stream)?)));
        if let Some((start, end)) = ends {
            self.events.lock().running.push_back((start, end, interval));
        }
    }

    /// The bytes per second of copies to the host and from it; `None` before a copy was measured.
    pub(super) fn rates(&self) -> [Option<u64>; 2] {
        self.read_complete();
        [self.down.bytes_per_second(), self.up.bytes_per_second()]
    }

    fn record(&self, stream: &Stream) -> Option<Event> {
        // An event of a capture would become part of its graph.
        if self.device.clocks().captures().is_open() {
            return None;
        }
        let spare = self.events.lock().spare.pop();
        let event = spare.map_or_else(|| Event::with_timing(&self.device).ok(), Some)?;
        event.record(stream).ok()?;
        Some(event)
    }

    /// Adds the intervals that are over, up to the first one that is not.
    fn read_complete(&self) {
        if self.device.clocks().captures().is_open() {
            return;
        }
        let mut events = self.events.lock();
        while let Some((start, end, interval)) = events.running.front() {
            let Ok(elapsed_ms) = end.elapsed_ms_since(start) else { break };
            let time = Duration::try_from_secs_f32(elapsed_ms / 1e3).unwrap_or_default();
            match *interval {
                Interval::Down(bytes) => self.down.add(bytes, time),
                Interval::Up(bytes) => self.up.add(bytes, time),
                Interval::Wait => self.activity.spill_wait_time.add_time(time),
            }
            if let Some((start, end, _)) = events.running.pop_front() {
                events.spare.extend([start, end]);
            }
        }
    }
}

impl Rate {
    fn add(&self, bytes: u64, time: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.time_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn bytes_per_second(&self) -> Option<u64> {
        let (bytes, time_ns) = (self.bytes.load(Ordering::Relaxed), self.time_ns.load(Ordering::Relaxed));
        (time_ns > 0).then(|| (bytes as f64 / (time_ns as f64 / 1e9)) as u64).filter(|rate| *rate > 0)
    }
}

/// Measurements at once. A host that runs further ahead loses some.
const RUNNING_MAX: usize = 256;

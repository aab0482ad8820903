//! Vector clocks: which accesses are ordered, whatever order the schedule chose.
//!
//! Each stream counts its operations, and the host counts its calls. The clock of a stream or of the host holds, for each
//! stream, the last operation that happens before its next one, and the last host call that does. An operation takes the clock
//! of its stream, the host's clock at the call that queued it, and the clocks of the points that it waited for. The host's clock
//! advances when it synchronises. An access is ordered before another if the clock of the other's stream includes it.
//!
//! All host threads share one clock, so they count as ordered by the lock of the instance. The simulator cannot observe how
//! threads synchronise with each other (channels, mutexes, joins), and reports of ordered threads would be false. So races
//! between the calls of two host threads are not detected, but a program whose threads are ordered has no false report.
//!
//! Clocks are copied on write: a snapshot shares its numbers with the stream that it was taken of.

use crate::base::handle::Handle;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// A moment of a stream, or of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) slot: u32,
    pub(crate) time: u64,
}

/// The host's place among the clocks; streams count from 0.
pub(crate) const HOST: u32 = u32::MAX;

/// The vector clock of a stream, an operation or the host: all that happens before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct VectorClock {
    /// By slot: the last operation that happens before.
    streams: Arc<Vec<u64>>,
    /// The last call that happens before.
    pub(crate) host: u64,
}

impl VectorClock {
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        match epoch.slot {
            HOST => self.host >= epoch.time,
            slot => self.streams.get(slot as usize).is_some_and(|&time| time >= epoch.time),
        }
    }

    /// Merges another clock into this one. Returns whether the part about streams advanced.
    pub(crate) fn learn(&mut self, other: &Self) -> bool {
        self.host = self.host.max(other.host);
        let is_known =
            |(slot, &time): (usize, &u64)| self.streams.get(slot).map_or(time == 0, |&own| own >= time);
        if Arc::ptr_eq(&self.streams, &other.streams) || other.streams.iter().enumerate().all(is_known) {
            return false;
        }
        let streams = Arc::make_mut(&mut self.streams);
        if streams.len() < other.streams.len() {
            streams.resize(other.streams.len(), 0);
        }
        streams.iter_mut().zip(other.streams.iter()).for_each(|(own, &other)| *own = (*own).max(other));
        true
    }

    pub(crate) fn learn_epoch(&mut self, epoch: Epoch) -> bool {
        if self.covers(epoch) {
            return false;
        }
        let streams = Arc::make_mut(&mut self.streams);
        if streams.len() <= epoch.slot as usize {
            streams.resize(epoch.slot as usize + 1, 0);
        }
        streams[epoch.slot as usize] = epoch.time;
        true
    }

    pub(crate) fn learn_snapshot(&mut self, snapshot: &Snapshot) -> bool {
        let learned = self.learn(&snapshot.knows);
        self.learn_epoch(snapshot.at) || learned
    }
}

/// A stream at one of its points.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    knows: VectorClock,
    at: Epoch,
}

/// Where a snapshot will be once the operation that it belongs to has run.
pub(crate) type Mark = Arc<OnceLock<Snapshot>>;

/// The clock that an operation keeps until it runs.
#[derive(Default)]
pub(crate) struct Order {
    /// The call that queued it.
    pub(crate) call: u64,
    /// What the host has learned since the last operation queued on the stream, and the legacy stream's order.
    pub(crate) learns: Option<Box<VectorClock>>,
    /// The point that it waits for.
    pub(crate) waits_for: Option<Mark>,
    /// Whoever waits for this operation.
    pub(crate) mark: Option<Mark>,
}

/// A stream's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamClock {
    /// Given with the first operation.
    pub(crate) slot: Option<u32>,
    /// Among the streams in the order of first use, from 1.
    pub(crate) number: u32,
    /// The slot's time when the stream got it.
    pub(crate) base: u64,
    pub(crate) knows: VectorClock,
    /// Which state of the host's knowledge the last operation queued here carries.
    pub(crate) host_version: u64,
    /// Up to which operation the legacy stream knows this one, and this one the legacy stream, while idle.
    pub(crate) before_legacy: u64,
    pub(crate) after_legacy: u64,
}

impl StreamClock {
    /// Whether an access is ordered before what the stream does now.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        self.slot == Some(epoch.slot) || self.knows.covers(epoch)
    }

    pub(crate) fn snapshot(&self, position: u64) -> Option<Snapshot> {
        let at = self.epoch(position)?;
        Some(Snapshot { knows: self.knows.clone(), at })
    }

    pub(crate) fn epoch(&self, position: u64) -> Option<Epoch> {
        Some(Epoch { slot: self.slot?, time: self.base + position })
    }
}

/// The clocks that are no stream's: the host's, and those of streams that are gone.
#[derive(Default)]
pub(crate) struct Clocks {
    pub(crate) host: VectorClock,
    pub(crate) host_version: u64,
    /// Streams that were destroyed and that the host has not synchronised with since.
    pub(crate) gone: Vec<Gone>,
    /// Slots whose last owner is over for everybody, each with its time.
    vacant: Vec<Epoch>,
    slot_count: u32,
    /// What the streams knew that last wrote the values in memory that others wait for.
    pub(crate) values: BTreeMap<u64, Snapshot>,
}

pub(crate) struct Gone {
    pub(crate) context: Handle,
    pub(crate) device: usize,
    pub(crate) is_blocking: bool,
    pub(crate) end: Snapshot,
}

impl Clocks {
    pub(crate) fn host_learns(&mut self, snapshot: Option<Snapshot>) {
        if snapshot.is_some_and(|snapshot| self.host.learn_snapshot(&snapshot)) {
            self.host_version += 1;
        }
    }

    /// A slot for a new stream: whatever its last owner did is known to the host, and so to all that it queues now.
    pub(crate) fn slot(&mut self) -> Epoch {
        let host = &self.host;
        let vacant = &mut self.vacant;
        self.gone.retain(|gone| {
            let is_over = host.covers(gone.end.at);
            if is_over {
                vacant.push(gone.end.at);
            }
            !is_over
        });
        self.vacant.pop().unwrap_or_else(|| {
            self.slot_count += 1;
            Epoch { slot: self.slot_count - 1, time: 0 }
        })
    }
}

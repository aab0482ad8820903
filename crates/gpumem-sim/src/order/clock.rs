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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Epoch {
    pub(crate) stream_index: u32,
    pub(crate) time: u64,
}

/// The index of the host among the clocks; streams count from 0.
pub(crate) const HOST: u32 = u32::MAX;

/// The vector clock of a stream, an operation or the host: all that happens before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct VectorClock {
    /// The last operation that happens before, by stream index.
    streams: Arc<Vec<u64>>,
    /// The last call that happens before.
    pub(crate) host: u64,
}

impl VectorClock {
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        match epoch.stream_index {
            HOST => self.host >= epoch.time,
            stream_index => self.streams.get(stream_index as usize).is_some_and(|&time| time >= epoch.time),
        }
    }

    /// Merges another clock into this one. True if the part about streams advanced.
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        self.host = self.host.max(other.host);
        let is_known = |(stream_index, &time): (usize, &u64)| {
            self.streams.get(stream_index).map_or(time == 0, |&own| own >= time)
        };
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

    pub(crate) fn merge_epoch(&mut self, epoch: Epoch) -> bool {
        if self.covers(epoch) {
            return false;
        }
        let streams = Arc::make_mut(&mut self.streams);
        if streams.len() <= epoch.stream_index as usize {
            streams.resize(epoch.stream_index as usize + 1, 0);
        }
        streams[epoch.stream_index as usize] = epoch.time;
        true
    }

    pub(crate) fn merge_snapshot(&mut self, snapshot: &Snapshot) -> bool {
        let is_merged = self.merge(&snapshot.vector);
        self.merge_epoch(snapshot.at) || is_merged
    }
}

/// A stream at one of its points.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    vector: VectorClock,
    at: Epoch,
}

/// The place of a snapshot that exists once its operation has run.
pub(crate) type Mark = Arc<OnceLock<Snapshot>>;

/// The clock that an operation keeps until it runs.
#[derive(Default)]
pub(crate) struct Order {
    /// The call that queued it.
    pub(crate) call: u64,
    /// The host's clock, if it has advanced since the last operation queued on the stream, and the legacy stream's order.
    pub(crate) host_clock: Option<Box<VectorClock>>,
    /// The point that it waits for.
    pub(crate) waits_for: Option<Mark>,
    /// The snapshot for operations that wait for this one.
    pub(crate) mark: Option<Mark>,
}

/// A stream's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamClock {
    /// Assigned with the first operation.
    pub(crate) stream_index: Option<u32>,
    /// The stream's number in the order of first use, from 1.
    pub(crate) number: u32,
    /// The time of the stream index when the stream got it.
    pub(crate) base: u64,
    pub(crate) vector: VectorClock,
    /// The version of the host's clock in the last operation queued here.
    pub(crate) host_version: u64,
    /// The last operation of this stream in the legacy stream's clock, and the reverse, while idle.
    pub(crate) before_legacy: u64,
    pub(crate) after_legacy: u64,
}

impl StreamClock {
    /// True if an access is ordered before the stream's current operation.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        self.stream_index == Some(epoch.stream_index) || self.vector.covers(epoch)
    }

    pub(crate) fn snapshot(&self, position: u64) -> Option<Snapshot> {
        let at = self.epoch(position)?;
        Some(Snapshot { vector: self.vector.clone(), at })
    }

    pub(crate) fn epoch(&self, position: u64) -> Option<Epoch> {
        Some(Epoch { stream_index: self.stream_index?, time: self.base + position })
    }
}

/// The clocks of the host and of destroyed streams.
#[derive(Default)]
pub(crate) struct Clocks {
    pub(crate) host: VectorClock,
    pub(crate) host_version: u64,
    /// Streams that were destroyed and that the host has not synchronised with since.
    pub(crate) gone: Vec<Gone>,
    /// Stream indices for reuse, each with its time: the host's clock includes all work of the last owner.
    vacant: Vec<Epoch>,
    index_count: u32,
    /// The snapshots of the streams that last wrote the values in memory for which other streams wait.
    pub(crate) values: BTreeMap<u64, Snapshot>,
}

pub(crate) struct Gone {
    pub(crate) context: Handle,
    pub(crate) device: usize,
    pub(crate) is_blocking: bool,
    pub(crate) end: Snapshot,
}

impl Clocks {
    pub(crate) fn host_merges(&mut self, snapshot: Option<Snapshot>) {
        if snapshot.is_some_and(|snapshot| self.host.merge_snapshot(&snapshot)) {
            self.host_version += 1;
        }
    }

    /// A stream index for a new stream. The host's clock includes all work of the last owner, and so does all new work.
    pub(crate) fn assign_index(&mut self) -> Epoch {
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
            self.index_count += 1;
            Epoch { stream_index: self.index_count - 1, time: 0 }
        })
    }
}

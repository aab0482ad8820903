//! [`Coverage`]: the operations, outcomes and slow paths that a search has exercised.

use super::faults::{Call, Seen};
use super::search;
use super::subject::Subject;
use crate::pool::{Block, PoolError, RefusedBy};
use std::collections::BTreeSet;
use std::fmt;

/// The coverage of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The number of seeds.
    pub seeds: u64,
    /// The number of operations that had an effect.
    pub operations: u64,
    /// Operations that returned an error that the twin confirmed.
    pub refused: u64,
    /// Allocated blocks.
    pub blocks: u64,
    /// Blocks that the host filled directly.
    pub host_fills: u64,
    /// Blocks whose guards were checked.
    pub guarded: u64,
    /// Failures injected by an adaptor.
    pub failures: u64,
    /// Blocks allocated in scopes.
    pub tagged: u64,
    /// Blocks allocated by concurrent threads.
    pub blocks_of_threads: u64,
    /// Blocks allocated in captures.
    pub parts: u64,
    /// Graphs made from captures.
    pub graphs: u64,
    /// Launches of graphs.
    pub launches: u64,
    /// Requests refused because the device was full.
    pub out_of_memory: u64,
    /// Requests refused because of a limit.
    pub limit_reached: u64,
    /// Requests larger than the device.
    pub too_large: u64,
    /// Driver calls with an injected error.
    pub faults: u64,
    /// The number of allocations of the caching backend that reached each rung, in the order of [`Coverage::rungs_by_name`].
    pub rungs: [u64; RUNGS.len()],
    /// Distinct combinations of an operation, its driver calls, the call that failed, and the outcome.
    pub states: BTreeSet<(&'static str, Seen, bool)>,
}

/// The rungs that an allocation of the caching backend can reach, detected from its driver calls. One allocation can reach
/// several.
pub(super) const RUNGS: [(&str, Rung); 8] = [
    ("ready memory", |seen| seen.is_empty()),
    ("queried completion", |seen| seen.has(Call::EventQuery)),
    ("recorded a marker", |seen| seen.has(Call::EventRecord)),
    ("grown", |seen| GROWTH.iter().any(|call| seen.has(*call))),
    ("remapped", |seen| seen.has(Call::Map) && !seen.has(Call::Create)),
    ("made the stream wait", |seen| seen.has(Call::StreamWaitEvent)),
    ("waited on the host", |seen| seen.has(Call::ContextRecord)),
    ("released", |seen| seen.has(Call::Release)),
];

/// Calls that allocate physical memory: handles, segments of device memory, and memory of other kinds.
const GROWTH: [Call; 4] = [Call::Create, Call::Alloc, Call::AllocManaged, Call::HostAlloc];

type Rung = fn(Seen) -> bool;

impl Coverage {
    /// Counts the outcome of a request.
    pub(super) fn count_block(&mut self, subject: Subject, outcome: &Result<Block, PoolError>, seen: Seen) {
        match outcome {
            Ok(_) => self.blocks += 1,
            Err(PoolError::OutOfMemory { .. }) => self.out_of_memory += 1,
            Err(PoolError::LimitReached(report)) if report.refused_by != RefusedBy::Budget => {
                self.limit_reached += 1
            }
            Err(PoolError::TooLarge { .. }) => self.too_large += 1,
            Err(_) => {}
        }
        if subject.is_caching() {
            for (count, (_, is_reached)) in self.rungs.iter_mut().zip(RUNGS) {
                *count += u64::from(is_reached(seen));
            }
        }
        self.count("alloc", seen, outcome.is_ok());
    }

    /// Counts the outcome of an operation.
    pub(super) fn count(&mut self, name: &'static str, seen: Seen, is_ok: bool) {
        self.refused += u64::from(!is_ok);
        self.faults += u64::from(seen.refused().is_some());
        self.states.insert((name, seen, is_ok));
    }

    /// The number of allocations of the caching backend that reached each rung. One allocation can reach several.
    pub fn rungs_by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RUNGS.iter().zip(self.rungs).map(|((name, _), count)| (*name, count))
    }
}

impl search::Coverage for Coverage {
    fn of_seed() -> Self {
        Self { seeds: 1, ..Self::default() }
    }

    fn seed_count(&self) -> u64 {
        self.seeds
    }

    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.operations += other.operations;
        self.refused += other.refused;
        self.blocks += other.blocks;
        self.host_fills += other.host_fills;
        self.guarded += other.guarded;
        self.failures += other.failures;
        self.tagged += other.tagged;
        self.blocks_of_threads += other.blocks_of_threads;
        self.parts += other.parts;
        self.graphs += other.graphs;
        self.launches += other.launches;
        self.out_of_memory += other.out_of_memory;
        self.limit_reached += other.limit_reached;
        self.too_large += other.too_large;
        self.faults += other.faults;
        self.rungs.iter_mut().zip(other.rungs).for_each(|(count, more)| *count += more);
        self.states.extend(other.states);
    }

    fn summary(&self) -> String {
        let rungs = self.rungs_by_name().map(|(name, count)| format!("{name} {count}"));
        format!("{self}\nallocations of caching: {}", rungs.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, operations, refused, blocks, faults, .. } = self;
        let Self {
            host_fills, guarded, tagged, failures, blocks_of_threads, parts, graphs, launches, ..
        } = self;
        let Self { out_of_memory, limit_reached, too_large, .. } = self;
        write!(
            f,
            "{seeds} seeds, {operations} operations ({refused} refused), {blocks} blocks ({guarded} guarded, \
             {tagged} tagged), {host_fills} fills by the host, {blocks_of_threads} blocks of threads, {parts} in captures, {graphs} graphs, {launches} launches, {faults} faults and {failures} failures, {} states; \
             refused: {out_of_memory} by a full device, {limit_reached} by the limit, {too_large} beyond the device",
            self.states.len()
        )
    }
}

//! [`Coverage`]: what a search has been through.

use super::faults::{Call, Seen};
use super::subject::Subject;
use crate::pool::{Block, PoolError};
use std::collections::BTreeSet;
use std::fmt;

/// The coverage of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Seeds that were tried.
    pub seeds: u64,
    /// Operations that were carried out.
    pub operations: u64,
    /// Operations that came back with an error, as they should.
    pub refused: u64,
    /// Blocks that were handed out.
    pub blocks: u64,
    /// Blocks that the host filled where they lie.
    pub host_fills: u64,
    /// Blocks whose guards were looked at.
    pub guarded: u64,
    /// Failures that an adaptor made on purpose.
    pub failures: u64,
    /// Blocks that were allocated in scopes.
    pub tagged: u64,
    /// Blocks that were handed out to threads at once.
    pub blocks_of_threads: u64,
    /// Blocks that were handed out in captures.
    pub parts: u64,
    /// Graphs that captures have become.
    pub graphs: u64,
    /// Launches of them.
    pub launches: u64,
    /// Requests that met a full device.
    pub out_of_memory: u64,
    /// Requests that met the limit.
    pub limit_reached: u64,
    /// Requests beyond the device's size.
    pub too_large: u64,
    /// Calls that the driver was made to refuse.
    pub faults: u64,
    /// How far allocations of the caching backend had to go, in the order of [`Coverage::rungs_by_name`].
    pub rungs: [u64; RUNGS.len()],
    /// Combinations of an operation, the calls that it made, the one that failed, and whether it succeeded.
    pub states: BTreeSet<(&'static str, Seen, bool)>,
}

/// What an allocation of the caching backend may come to, told by the driver's calls. One may come to several.
pub(super) const RUNGS: [(&str, Rung); 8] = [
    ("at hand", |seen| seen.is_empty()),
    ("asked what is done", |seen| seen.has(Call::EventQuery)),
    ("marked", |seen| seen.has(Call::EventRecord)),
    ("grown", |seen| GROWTH.iter().any(|call| seen.has(*call))),
    ("mapped anew", |seen| seen.has(Call::Map) && !seen.has(Call::Create)),
    ("waited on the device", |seen| seen.has(Call::StreamWaitEvent)),
    ("waited for the device", |seen| seen.has(Call::ContextRecord)),
    ("given back", |seen| seen.has(Call::Release)),
];

/// What handles, segments of the device's memory and those of other kinds are made by.
const GROWTH: [Call; 4] = [Call::Create, Call::Alloc, Call::AllocManaged, Call::HostAlloc];

type Rung = fn(Seen) -> bool;

impl Coverage {
    /// Counts what came of a request.
    pub(super) fn count_block(&mut self, subject: Subject, outcome: &Result<Block, PoolError>, seen: Seen) {
        match outcome {
            Ok(_) => self.blocks += 1,
            Err(PoolError::OutOfMemory { .. }) => self.out_of_memory += 1,
            Err(PoolError::LimitReached { .. }) => self.limit_reached += 1,
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

    /// Counts what came of an operation.
    pub(super) fn count(&mut self, name: &'static str, seen: Seen, is_ok: bool) {
        self.refused += u64::from(!is_ok);
        self.faults += u64::from(seen.refused().is_some());
        self.states.insert((name, seen, is_ok));
    }

    /// How many allocations of the caching backend came to what, by the driver's calls. One may come to several.
    pub fn rungs_by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RUNGS.iter().zip(self.rungs).map(|((name, _), count)| (*name, count))
    }

    /// Adds the coverage of another search.
    pub(super) fn add(&mut self, other: Self) {
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

//! What an instance holds at a moment: live memory, queued work, faults. For tests to look at and to print.

pub(crate) mod finding;
pub(crate) mod origins;

use crate::config::choices::Schedule;
use crate::config::rules::Rule;
use crate::report::finding::{Finding, Origin};
use core::fmt;

/// What an instance holds. Printed when a test fails.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The seed that decides the order of queued work.
    pub seed: u64,
    /// In which of the orders that are allowed queued work runs.
    pub schedule: Schedule,
    /// The faults on purpose.
    pub rules: Vec<Rule>,
    /// What the program has allocated and not freed, by address.
    pub allocations: Vec<LiveAllocation>,
    /// Streams that the program made and did not destroy.
    pub stream_count: usize,
    /// Events that the program made and did not destroy.
    pub event_count: usize,
    /// Graphs that the program made, and did not destroy.
    pub graph_count: usize,
    /// Executable graphs that the program made, and did not destroy.
    pub executable_graph_count: usize,
    /// Handles of physical memory that the program created or retained and did not release as often.
    pub handle_count: usize,
    /// Address ranges that the program reserved and did not free.
    pub reservation_count: usize,
    /// Operations that have not run.
    pub queued_count: usize,
    /// What went wrong while queued work ran, oldest first.
    pub faults: Vec<String>,
    /// What is wrong with the program, oldest first, as far as it was kept.
    pub findings: Vec<Finding>,
    /// How many more findings there were, of the same operations or beyond what is kept.
    pub more_findings_count: usize,
    pub(crate) leaks: Vec<Origin>,
}

/// Memory that the program has allocated and not freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveAllocation {
    /// Its first address.
    pub address: u64,
    /// Its size as asked for.
    pub size_bytes: u64,
    /// The device it belongs to.
    pub device: u32,
    /// What kind it is.
    pub kind: AllocationKind,
}

/// How memory was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocationKind {
    /// `cuMemAlloc`.
    Device,
    /// A memory pool.
    Pool,
    /// Another address of memory that was exported, one's own or another's: `cuMemPoolImportPointer`,
    /// `cuIpcOpenMemHandle`.
    Imported,
    /// An allocation node of a graph.
    Graph,
    /// Pinned host memory.
    Host,
    /// The program's own host memory, registered.
    Registered,
    /// Managed memory.
    Managed,
    /// A handle of virtual memory management, mapped.
    Mapped,
    /// A handle that is mapped nowhere; its number stands for the address.
    Handle,
}

impl Report {
    /// What nobody has told the program: races and the like, and, since this is asked at its end, what was not freed.
    /// A test fails if there is any.
    #[must_use]
    pub fn silent_findings(&self) -> Vec<Finding> {
        let leaks = self.leaks.iter().map(|allocation| Finding::Leak { allocation: allocation.clone() });
        self.findings.iter().filter(|finding| finding.is_silent()).cloned().chain(leaks).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live_bytes: u64 = self.allocations.iter().map(|live| live.size_bytes).sum();
        writeln!(
            f,
            "simulator, seed {}, schedule {}: {} allocations live ({live_bytes} bytes), {} streams, {} events, {} operations queued",
            self.seed,
            self.schedule,
            self.allocations.len(),
            self.stream_count,
            self.event_count,
            self.queued_count
        )?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "  rule: {rule}"))?;
        for live in self.allocations.iter().take(SHOWN_MAX) {
            let LiveAllocation { address, size_bytes, device, kind } = live;
            writeln!(f, "  {address:#x}: {size_bytes} bytes, {kind:?}, device {device}")?;
        }
        if self.allocations.len() > SHOWN_MAX {
            writeln!(f, "  and {} more", self.allocations.len() - SHOWN_MAX)?;
        }
        self.findings.iter().try_for_each(|finding| writeln!(f, "  {finding}"))?;
        match self.more_findings_count {
            0 => Ok(()),
            count => writeln!(f, "  and {count} more findings"),
        }
    }
}

const SHOWN_MAX: usize = 16;

//! [`Report`]: the contents of an instance at a moment, for tests to check and to print.

pub(crate) mod finding;
pub(crate) mod origins;

use crate::config::choices::Schedule;
use crate::config::rules::Rule;
use crate::report::finding::{Finding, Origin};
use core::fmt;

/// The contents of an instance, and the findings. Print it when a test fails.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The seed that decides the order of queued work.
    pub seed: u64,
    /// The schedule of queued work.
    pub schedule: Schedule,
    /// The injected faults.
    pub rules: Vec<Rule>,
    /// Memory that the program has allocated and not freed, by address.
    pub allocations: Vec<LiveAllocation>,
    /// Streams that the program made and did not destroy.
    pub stream_count: usize,
    /// Default streams of threads (`CU_STREAM_PER_THREAD`). Those of ended threads go when another thread gets one, or later if they
    /// have queued work or capture.
    pub thread_stream_count: usize,
    /// Events that the program made and did not destroy.
    pub event_count: usize,
    /// Graphs that the program made, and did not destroy.
    pub graph_count: usize,
    /// Executable graphs that the program made, and did not destroy.
    pub executable_graph_count: usize,
    /// Modules and libraries that the program loaded and did not unload.
    pub module_count: usize,
    /// Handles of physical memory that the program created or retained and did not release as often.
    pub handle_count: usize,
    /// Address ranges that the program reserved and did not free.
    pub reservation_count: usize,
    /// Operations that have not run.
    pub queued_count: usize,
    /// Faults of queued work as texts, oldest first.
    pub faults: Vec<String>,
    /// The findings that were kept, oldest first.
    pub findings: Vec<Finding>,
    /// The number of further findings: repeated ones between two operations, and those beyond the limit.
    pub more_findings_count: usize,
    pub(crate) leaks: Vec<Origin>,
}

/// Memory that the program has allocated and not freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveAllocation {
    /// The first address.
    pub address: u64,
    /// The requested size.
    pub size_bytes: u64,
    /// The device it belongs to.
    pub device: u32,
    /// The kind of allocation.
    pub kind: AllocationKind,
}

/// The kind of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocationKind {
    /// `cuMemAlloc`.
    Device,
    /// A memory pool.
    Pool,
    /// A second address of exported memory: `cuMemPoolImportPointer`, `cuIpcOpenMemHandle`.
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
    /// An unmapped handle; `address` is its number.
    Handle,
}

impl Report {
    /// The findings that no return code reported, such as races, and memory that was not freed: call this at the end of a test. The
    /// list is empty for a correct program.
    #[must_use]
    pub fn silent_findings(&self) -> Vec<Finding> {
        let leaks = self.leaks.iter().map(|allocation| Finding::Leak { allocation: allocation.clone() });
        self.findings.iter().filter(|finding| finding.is_silent()).cloned().chain(leaks).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live_bytes: u64 =
            self.allocations.iter().fold(0, |sum, live| sum.saturating_add(live.size_bytes));
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

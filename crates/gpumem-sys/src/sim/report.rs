//! What an instance holds at a moment: live memory, queued work, faults. For tests to look at and to print.

use super::machine::Machine;
use super::memory::{Allocation, Owner};
use core::fmt;

/// What an instance holds. Printed when a test fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The seed that decides the order of queued work.
    pub seed: u64,
    /// What the program has allocated and not freed, by address.
    pub allocations: Vec<LiveAllocation>,
    /// Streams that the program made and did not destroy.
    pub stream_count: usize,
    /// Events that the program made and did not destroy.
    pub event_count: usize,
    /// Handles of physical memory that the program created or retained and did not release as often.
    pub handle_count: usize,
    /// Address ranges that the program reserved and did not free.
    pub reservation_count: usize,
    /// Operations that have not run.
    pub queued_count: usize,
    /// What went wrong while queued work ran, oldest first.
    pub faults: Vec<String>,
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
}

impl Machine {
    pub(super) fn report(&self) -> Report {
        let is_live =
            |found: &&Allocation| found.owner != Owner::Graph || self.graph_memory_is_live(found.base);
        let allocations = self.memory.at_call.values().filter(is_live).map(|found| LiveAllocation {
            address: found.base,
            size_bytes: found.size_bytes,
            device: found.device as u32,
            kind: match found.owner {
                Owner::Plain => AllocationKind::Device,
                Owner::Pool(_) => AllocationKind::Pool,
                Owner::Graph => AllocationKind::Graph,
                Owner::Host { .. } => AllocationKind::Host,
                Owner::Registered { .. } => AllocationKind::Registered,
                Owner::Managed => AllocationKind::Managed,
                Owner::Mapped { .. } => AllocationKind::Mapped,
            },
        });
        Report {
            seed: self.config.seed,
            allocations: allocations.collect(),
            stream_count: self.streams.iter().filter(|(_, stream)| stream.is_of_program()).count(),
            event_count: self.events.len(),
            handle_count: self.virtual_memory.handle_count(),
            reservation_count: self.virtual_memory.reservations.len(),
            queued_count: self.streams.iter().map(|(_, stream)| stream.queue.len()).sum(),
            faults: self.faults.clone(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live_bytes: u64 = self.allocations.iter().map(|live| live.size_bytes).sum();
        writeln!(
            f,
            "software driver, seed {}: {} allocations live ({live_bytes} bytes), {} streams, {} events, {} operations queued",
            self.seed,
            self.allocations.len(),
            self.stream_count,
            self.event_count,
            self.queued_count
        )?;
        for live in self.allocations.iter().take(SHOWN_MAX) {
            let LiveAllocation { address, size_bytes, device, kind } = live;
            writeln!(f, "  {address:#x}: {size_bytes} bytes, {kind:?}, device {device}")?;
        }
        if self.allocations.len() > SHOWN_MAX {
            writeln!(f, "  and {} more", self.allocations.len() - SHOWN_MAX)?;
        }
        self.faults.iter().try_for_each(|fault| writeln!(f, "  fault: {fault}"))
    }
}

const SHOWN_MAX: usize = 16;

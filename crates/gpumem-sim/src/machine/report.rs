//! Fills the [`Report`].

use crate::machine::Machine;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::report::finding::Origin;
use crate::report::{AllocationKind, LiveAllocation, Report};

impl Machine {
    pub(crate) fn report(&self) -> Report {
        let is_live = |found: &&Allocation| self.is_of_program(found);
        let allocations = self.memory.at_call.values().filter(is_live).map(|found| LiveAllocation {
            address: found.base,
            size_bytes: found.size_bytes,
            device: found.device as u32,
            kind: found.allocated_by.kind(),
        });
        Report {
            seed: self.config.seed,
            schedule: self.config.schedule.clone(),
            rules: self.config.rules.clone(),
            allocations: allocations.collect(),
            stream_count: self.streams.iter().filter(|(_, stream)| stream.is_of_program()).count(),
            thread_stream_count: self.streams.iter().filter(|(_, stream)| stream.is_of_thread()).count(),
            event_count: self.events.len(),
            graph_count: self.graph_count(),
            executable_graph_count: self.exec_count(),
            module_count: self.modules.iter().filter(|(_, module)| module.library.is_none()).count()
                + self.libraries.len(),
            handle_count: self.virtual_memory.handle_count(),
            reservation_count: self.virtual_memory.reservations.len(),
            queued_count: self.streams.iter().map(|(_, stream)| stream.queue.len()).sum(),
            faults: self.faults.clone(),
            findings: self.findings.list().to_vec(),
            more_findings_count: self.findings.more_count,
            leaks: self.leaks(),
        }
    }

    /// True for memory that the program allocated, as far as a graph has allocated it.
    fn is_of_program(&self, found: &Allocation) -> bool {
        match found.allocated_by {
            AllocatedBy::Graph => self.graph_memory_is_live(found.base),
            AllocatedBy::Variable => false,
            _ => true,
        }
    }

    /// The leaks: allocated or mapped memory, and handles without a mapping.
    fn leaks(&self) -> Vec<Origin> {
        let is_live = |found: &&Allocation| self.is_of_program(found);
        let allocations = self.memory.at_call.values().filter(is_live).map(|found| self.origin_of(found));
        let handles = self.virtual_memory.unmapped().map(|(handle, device, size_bytes, call)| {
            self.origin_made(handle.to_bits(), size_bytes, (device, AllocationKind::Handle), call)
        });
        allocations.chain(handles).collect()
    }
}

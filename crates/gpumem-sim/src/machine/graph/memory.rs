//! Memory of graphs: allocation and free nodes, and the memory that an executable keeps between launches.

use crate::base::address::CHUNK_BYTES;
use crate::base::codes::{Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::graph::Work;
use crate::graph::memory::{GraphMemory, MemoryUse};
use crate::machine::Machine;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::plain::{GAP_BYTES, round_up};
use crate::order::Point;
use crate::stream::operation::Operation;
use gpumem_sys::types::CUgraphMem_attribute as Attribute;

impl Machine {
    /// Adds an allocation node to the graph that a stream captures. Returns null for zero bytes.
    pub(crate) fn capture_alloc(&mut self, stream: Handle, device: usize, size_bytes: u64) -> Answer<u64> {
        let found = self.streams.get(stream).ok_or(INVALID_VALUE)?;
        let (context, joined) = (found.context, found.capture.as_ref().ok_or(INVALID_VALUE)?);
        if size_bytes == 0 {
            return Ok(0);
        }
        let graph = joined.graph;
        let base = self.graph_memory_create(graph, device, context, size_bytes)?;
        self.capture_work(stream, Work::Alloc(base))?;
        Ok(base)
    }

    /// Adds a free node to the graph that a stream captures.
    pub(crate) fn capture_free(&mut self, stream: Handle, base: u64) -> Answer<()> {
        let joined = self.streams.get(stream).and_then(|stream| stream.capture.as_ref());
        let graph = joined.ok_or(INVALID_VALUE)?.graph;
        self.graph_memory_free_within(graph, base)?;
        self.capture_work(stream, Work::Free(base)).map(drop)
    }

    /// Adds an allocation node explicitly. Returns the node and its address.
    pub(crate) fn graph_add_alloc(
        &mut self,
        graph: Handle,
        (device, context): (usize, Handle),
        size_bytes: u64,
        after: Vec<Handle>,
    ) -> Answer<(Handle, u64)> {
        self.graph_check_nodes(graph, &after)?;
        if size_bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let base = self.graph_memory_create(graph, device, context, size_bytes)?;
        Ok((self.graph_add(graph, context, Work::Alloc(base), after)?, base))
    }

    /// Adds a free node explicitly.
    pub(crate) fn graph_add_free(
        &mut self,
        graph: Handle,
        context: Handle,
        base: u64,
        after: Vec<Handle>,
    ) -> Answer<Handle> {
        self.graph_check_nodes(graph, &after)?;
        self.graph_memory_free_within(graph, base)?;
        self.graph_add(graph, context, Work::Free(base), after)
    }

    fn graph_memory_create(
        &mut self,
        graph: Handle,
        device: usize,
        context: Handle,
        size_bytes: u64,
    ) -> Answer<u64> {
        let mapped_bytes = round_up(size_bytes, CHUNK_BYTES)?;
        let owner = self.devices.get_mut(device).ok_or(INVALID_DEVICE)?;
        // Launches count the capacity. `map` subtracts the admitted bytes if it fails.
        owner.reserved_bytes += mapped_bytes;
        let (base, backing) = owner.map(mapped_bytes)?;
        owner.reserved_bytes -= mapped_bytes;
        let bytes = backing.bytes();
        let call = self.made_here();
        let allocation = Allocation {
            base,
            size_bytes,
            bytes,
            device,
            context,
            allocated_by: AllocatedBy::Graph,
            call,
            born: None,
        };
        self.memory.at_call.insert(base, allocation);
        let memory = GraphMemory {
            allocation,
            graph,
            mapped_bytes,
            backing,
            holder_count: 1,
            is_freed_within: false,
            is_live: false,
            pending_count: 0,
            is_resident: false,
        };
        self.graphs.memory.insert(base, memory);
        Ok(base)
    }

    fn graph_memory(&mut self, base: u64) -> Answer<&mut GraphMemory> {
        self.graphs.memory.get_mut(&base).ok_or(INVALID_VALUE)
    }

    /// Notes that a graph frees an allocation: its own at most once.
    fn graph_memory_free_within(&mut self, graph: Handle, base: u64) -> Answer<()> {
        let memory = self.graph_memory(base)?;
        if memory.is_freed_within {
            return Err(INVALID_VALUE);
        }
        memory.is_freed_within = memory.graph == graph;
        Ok(())
    }

    pub(crate) fn graph_memory_hold(&mut self, base: u64) {
        if let Some(memory) = self.graphs.memory.get_mut(&base) {
            memory.holder_count += 1;
        }
    }

    /// Releases one owner: the node or the executable.
    pub(crate) fn graph_memory_unhold(&mut self, base: u64) {
        if let Some(memory) = self.graphs.memory.get_mut(&base) {
            memory.holder_count = memory.holder_count.saturating_sub(1);
        }
        self.graph_memory_drop_if_unused(base);
    }

    /// Checks that a launch may allocate again the memory of an earlier one. Returns the memory to free first, if the executable
    /// frees automatically.
    pub(crate) fn graph_memory_check(&self, works: &[Work], frees_first: bool) -> Answer<Vec<u64>> {
        let mut stale = Vec::new();
        let is_allocated_here =
            |base: u64| works.iter().any(|work| matches!(work, Work::Alloc(own) if *own == base));
        for work in works {
            match work {
                Work::Alloc(base) if self.graph_memory_is_live(*base) => stale.push(*base),
                // Memory of another graph must be allocated.
                Work::Free(base) if !is_allocated_here(*base) && !self.graph_memory_is_live(*base) => {
                    return Err(INVALID_VALUE);
                }
                _ => {}
            }
        }
        if stale.is_empty() || frees_first { Ok(stale) } else { Err(INVALID_VALUE) }
    }

    /// Takes the capacity that a launch needs and does not have; all of it or none.
    pub(crate) fn graph_memory_admit(&mut self, works: &[Work]) -> Answer<()> {
        let mut admitted = Vec::new();
        for work in works {
            let Work::Alloc(base) = work else { continue };
            let memory = self.graph_memory(*base)?;
            let (device, mapped_bytes) = (memory.allocation.device, memory.mapped_bytes);
            if memory.is_resident {
                continue;
            }
            if let Err(code) = self.admit(device, mapped_bytes) {
                admitted.into_iter().for_each(|base| self.graph_memory_evict(base));
                return Err(code);
            }
            self.graph_memory(*base)?.is_resident = true;
            self.graphs.memory_use.entry(device).or_default().reserved.add(mapped_bytes);
            admitted.push(*base);
        }
        Ok(())
    }

    fn graph_memory_evict(&mut self, base: u64) {
        let Some(memory) = self.graphs.memory.get_mut(&base).filter(|memory| memory.is_resident) else {
            return;
        };
        memory.is_resident = false;
        let (device, mapped_bytes) = (memory.allocation.device, memory.mapped_bytes);
        self.devices[device].reserved_bytes -= mapped_bytes;
        self.graphs.memory_use.entry(device).or_default().reserved.current -= mapped_bytes;
    }

    /// The operation of an allocation node.
    pub(crate) fn graph_memory_launch_alloc(&mut self, base: u64) -> Answer<Operation> {
        let memory = self.graph_memory(base)?;
        memory.is_live = !memory.is_freed_within;
        memory.pending_count += 1;
        let (allocation, mapped_bytes) = (memory.allocation, memory.mapped_bytes);
        self.graphs.memory_use.entry(allocation.device).or_default().used.add(mapped_bytes);
        Ok(Operation::Alloc(allocation))
    }

    /// The operation of a free node.
    pub(crate) fn graph_memory_launch_free(&mut self, base: u64) -> Answer<Operation> {
        let memory = self.graph_memory(base)?;
        memory.is_live = false;
        Ok(Operation::Free(memory.allocation))
    }

    /// Notes the point of a queued allocation node.
    pub(crate) fn graph_memory_born(&mut self, base: u64, born: Point) {
        if let Some(memory) = self.graphs.memory.get_mut(&base) {
            memory.allocation.born = Some(born);
            self.memory.at_call.insert(base, memory.allocation);
        }
    }

    /// True if the program may free it: launched, not freed, and not freed by a node.
    pub(crate) fn graph_memory_is_live(&self, base: u64) -> bool {
        self.graphs.memory.get(&base).is_some_and(|memory| memory.is_live)
    }

    /// Notes that the program has freed it.
    pub(crate) fn graph_memory_retire(&mut self, base: u64) {
        if let Some(memory) = self.graphs.memory.get_mut(&base) {
            memory.is_live = false;
        }
    }

    /// Notes that a free has run.
    pub(crate) fn graph_memory_released(&mut self, base: u64) {
        if let Some(memory) = self.graphs.memory.get_mut(&base) {
            memory.pending_count = memory.pending_count.saturating_sub(1);
            let (device, mapped_bytes) = (memory.allocation.device, memory.mapped_bytes);
            self.graphs.memory_use.entry(device).or_default().used.current -= mapped_bytes;
        }
        self.graph_memory_drop_if_unused(base);
    }

    fn graph_memory_drop_if_unused(&mut self, base: u64) {
        let is_unused =
            |memory: &GraphMemory| memory.holder_count == 0 && !memory.is_live && memory.pending_count == 0;
        if self.graphs.memory.get(&base).is_some_and(is_unused) {
            self.graph_memory_remove(base);
        }
    }

    /// Removes it in any state, with its context.
    pub(crate) fn graph_memory_remove(&mut self, base: u64) {
        self.graph_memory_evict(base);
        self.memory.remove(base);
        if let Some(memory) = self.graphs.memory.remove(&base) {
            let device = &mut self.devices[memory.allocation.device];
            device.space.give(base, memory.mapped_bytes + GAP_BYTES);
            device.spares.give(memory.backing);
        }
    }

    /// Releases the capacity of memory that no launch uses.
    pub(crate) fn graph_memory_trim(&mut self, device: usize) {
        let is_idle = |memory: &&GraphMemory| {
            memory.allocation.device == device && !memory.is_live && memory.pending_count == 0
        };
        let idle = self.graphs.memory.values().filter(is_idle).map(|memory| memory.allocation.base);
        let idle: Vec<u64> = idle.collect();
        idle.into_iter().for_each(|base| self.graph_memory_evict(base));
    }

    pub(crate) fn graph_memory_attribute(&self, device: usize, attribute: Attribute) -> Answer<u64> {
        let MemoryUse { used, reserved } = self.graphs.memory_use.get(&device).copied().unwrap_or_default();
        match attribute {
            Attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => Ok(used.current),
            Attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => Ok(used.high),
            Attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => Ok(reserved.current),
            Attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => Ok(reserved.high),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Sets an attribute: the two peaks may be reset, to zero only.
    pub(crate) fn graph_memory_set_attribute(
        &mut self,
        device: usize,
        attribute: Attribute,
        value: u64,
    ) -> Answer<()> {
        let found = self.graphs.memory_use.entry(device).or_default();
        let gauge = match attribute {
            Attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => &mut found.used,
            Attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => &mut found.reserved,
            _ => return Err(INVALID_VALUE),
        };
        if value != 0 {
            return Err(INVALID_VALUE);
        }
        gauge.high = gauge.current;
        Ok(())
    }
}

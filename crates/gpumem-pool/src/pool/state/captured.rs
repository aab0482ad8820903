//! The pool while streams capture: allocations that belong to a graph, and frees of memory that a graph may keep.

use crate::backend::{Allocation, FreeRequest};
use crate::config::ALIGNMENT_MIN;
use crate::device::{Clocks, GRAPH_BIT, Part, Stream, StreamIndex};
use crate::error::PoolError;
use crate::pool::{Block, StateRef, graph_memory::rounded};
use gpumem_sys::fork;
use std::sync::Arc;

impl StateRef {
    /// Allocates on a stream that may be part of a capture, for a request that has been checked. Returns the allocation
    /// and its initial uses; `None` if the stream does not capture.
    pub(crate) fn alloc_captured(
        self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Option<(Allocation, u64)>, PoolError> {
        let Some(graph) = stream.captures_for()? else { return Ok(None) };
        let memory = self.graph_memory();
        let part = |address| (Allocation::new(address, 0, Allocation::NO_CLASS), GRAPH_BIT);
        if alignment <= ALIGNMENT_MIN
            && let Some(address) = memory.take_part(graph, self, size_bytes, stream.id())
        {
            return Ok(Some(part(address)));
        }
        let source = stream.source_of(graph)?;
        let chunk = self.alloc(rounded(size_bytes), alignment, &source)?;
        let address = chunk.address();
        memory.add_chunk(graph, self, chunk, stream.id());
        Ok(Some(part(address)))
    }

    /// Handles a free while streams capture, or of a block that a graph uses. Returns the request if the block must still be freed in the
    /// usual way. After `None` the pool may be gone.
    pub(crate) fn free_captured(self, freed: FreeRequest) -> Option<FreeRequest> {
        // This call may end the pool, but the graph memory must outlive it.
        let memory = Arc::clone(self.graph_memory());
        let clocks = memory.clocks();
        let is_noted = freed.uses & GRAPH_BIT != 0;
        let graphs = if clocks.captures().is_open() { captures_of(clocks, &freed) } else { Vec::new() };
        match (is_noted, graphs.is_empty()) {
            (true, _) => memory.drop_noted(&graphs, self, freed),
            (false, true) => Some(freed),
            (false, false) => memory.keep(&graphs, self, freed),
        }
    }
}

impl Block {
    /// Records a use while streams capture: if `stream` does, the memory stays for the graph.
    #[cold]
    pub(crate) fn note_use(&self, stream: &Stream) {
        if fork::is_child() {
            return;
        }
        // The handle or the index of a stream that this thread cannot use may have been reused by another stream.
        if stream.check_usable().is_err() {
            return;
        }
        let pool = self.state();
        let memory = pool.graph_memory();
        // A stream of another machine cannot have work that uses this block.
        if !Arc::ptr_eq(stream.device().clocks(), memory.clocks()) {
            return;
        }
        let (graph, slot) = match stream.captures_for() {
            Ok(graph) => (graph, Some(stream.stream_index())),
            // The query failed and the use may be part of a capture, so the block is kept for the open capture.
            Err(_) => (stream.clocks().captures().capture_of(stream.stream_index(), true), None),
        };
        if let Some(graph) = graph
            && self.size_bytes() > 0
        {
            self.add_uses(GRAPH_BIT);
            memory.note_use(graph, self.address(), slot);
        }
    }
}

/// Returns the captures that a block's streams are part of now.
fn captures_of(clocks: &Clocks, freed: &FreeRequest) -> Vec<u64> {
    let slots = core::iter::once(freed.owner_stream.stream_index()).chain(clocks.used(freed.uses));
    let mut graphs: Vec<u64> = slots.filter_map(|slot| capture_of(clocks, slot)).collect();
    graphs.sort_unstable();
    graphs.dedup();
    graphs
}

fn capture_of(clocks: &Clocks, slot: StreamIndex) -> Option<u64> {
    match clocks.own_part(slot) {
        Some(Part::In(graph)) => Some(graph).filter(|graph| clocks.captures().knows(*graph)),
        Some(Part::Broken) => clocks.captures().capture_of(slot, true),
        Some(Part::Runs) => None,
        // A stream of another library is queried only in calls that name it.
        None => clocks.captures().capture_of(slot, false),
    }
}

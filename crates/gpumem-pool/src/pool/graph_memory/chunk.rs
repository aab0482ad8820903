//! [`Chunk`]: a block allocated for a capture and handed out in parts.

use crate::backend::{Allocation, FreeRequest};
use crate::config::ALIGNMENT_MIN;
use crate::device::{GRAPH_BIT, StreamId, order::uses};
use crate::pool::{Block, StateRef};
use gpumem_heap::heap::FreeVaRanges;
use gpumem_sys::types::CUdeviceptr;

pub(super) struct Chunk {
    /// Freed with the recorded `uses` when the chunk is dropped.
    block: Block,
    pool: StateRef,
    /// The group of the capture that the chunk was allocated for; `owner_stream` is the allocating stream there.
    group: u64,
    owner_stream: StreamId,
    /// True if the host may use the memory. Then data that the host writes into a part must stay until the graph runs.
    is_for_host: bool,
    /// The graphs that may still use the chunk.
    graphs: Vec<u64>,
    /// True once a graph of another group has used the chunk: the order of their launches is unknown here.
    is_shared: bool,
    /// The free ranges, in bytes.
    free: FreeVaRanges,
    part_count: usize,
    /// The streams on which the chunk was used outside captures, in the format of [`uses`].
    uses: u64,
}

impl Chunk {
    /// Creates a chunk that consists of one part in use.
    pub(super) fn new(graph: u64, group: u64, pool: StateRef, block: Block, owner_stream: StreamId) -> Self {
        let (is_for_host, graphs) = (block.kind().is_host_accessible(), vec![graph]);
        Self {
            block,
            pool,
            group,
            owner_stream,
            is_for_host,
            graphs,
            is_shared: false,
            free: FreeVaRanges::default(),
            part_count: 1,
            uses: 0,
        }
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        self.block.address()
    }

    pub(super) fn contains(&self, address: CUdeviceptr) -> bool {
        address - self.block.address() < self.block.size_bytes()
    }

    /// Returns the whole allocation, and the pool that owns it.
    pub(super) fn whole(&self) -> (StateRef, Allocation) {
        (self.block.state(), self.block.allocation())
    }

    /// True if no part is in use and no graph may use the chunk.
    pub(super) fn is_over(&self) -> bool {
        self.part_count == 0 && self.graphs.is_empty()
    }

    /// Returns the chunk's size if it belongs to a matching pool and only graphs keep it.
    pub(super) fn kept_bytes(&self, is_of: impl Fn(&StateRef) -> bool) -> Option<u64> {
        (self.part_count == 0 && is_of(&self.pool)).then(|| self.block.size_bytes())
    }

    /// The graphs that may still use the chunk.
    pub(super) fn graphs(&self) -> &[u64] {
        &self.graphs
    }

    /// Adds a graph of a group that uses the chunk. False if already known.
    pub(super) fn add_graph(&mut self, graph: u64, group: u64) -> bool {
        self.is_shared |= group != self.group;
        let is_new = !self.graphs.contains(&graph);
        if is_new {
            self.graphs.push(graph);
        }
        is_new
    }

    /// True if free ranges of the chunk may be allocated on this stream in a capture of this group.
    pub(super) fn serves(&self, group: u64, pool: StateRef, owner_stream: StreamId) -> bool {
        self.group == group && self.pool == pool && self.owner_stream == owner_stream && !self.is_for_host
    }

    /// Returns the size and address of the smallest free range that is large enough.
    pub(super) fn best_fit(&self, size_bytes: u64) -> Option<(u64, CUdeviceptr)> {
        let fitting = self.free.iter().filter(|(_, free_bytes)| *free_bytes >= rounded(size_bytes));
        fitting.map(|(address, free_bytes)| (free_bytes, address)).min()
    }

    /// Allocates from the beginning of the best-fitting range.
    pub(super) fn take(&mut self, size_bytes: u64) -> Option<CUdeviceptr> {
        let (_, address) = self.best_fit(size_bytes)?;
        self.free.fill(address, rounded(size_bytes));
        self.part_count += 1;
        Some(address)
    }

    /// Handles the drop of a part. The part becomes free for the next allocation on the stream in a capture of the group, unless other
    /// streams, or graphs of other groups, have used it. After the group's last capture the free range has no effect.
    pub(super) fn drop_part(&mut self, freed: &FreeRequest) {
        self.part_count -= 1;
        let others = freed.uses & !GRAPH_BIT;
        self.uses = uses::with(uses::joined(self.uses, others), freed.owner_stream.stream_index());
        if others == 0 && !self.is_shared {
            self.free.add(freed.allocation.address, rounded(freed.size_bytes));
        }
    }

    /// Removes a graph, which was launched on these streams.
    pub(super) fn let_go(&mut self, graph: u64, launched: u64) {
        if let Some(at) = self.graphs.iter().position(|other| *other == graph) {
            self.graphs.remove(at);
            self.uses = uses::joined(self.uses, launched);
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.block.add_uses(self.uses);
    }
}

/// Returns the bytes that a part occupies in a chunk.
pub(crate) fn rounded(size_bytes: u64) -> u64 {
    // A size that overflows is unchanged, and refused as too large.
    size_bytes.checked_next_multiple_of(ALIGNMENT_MIN).unwrap_or(size_bytes)
}

//! [`Chunk`]: a block that a capture has allocated, handed out in parts.

use crate::backend::{Allocation, FreeRequest};
use crate::config::ALIGNMENT_MIN;
use crate::device::{GRAPH_BIT, StreamId, order::uses};
use crate::pool::{Block, StateRef};
use gpumem_sys::types::CUdeviceptr;
use std::collections::BTreeMap;

pub(super) struct Chunk {
    /// Freed with what `uses` says once the chunk is dropped.
    block: Block,
    pool: StateRef,
    /// The capture that it was made for, and the stream there.
    maker: u64,
    owner_stream: StreamId,
    /// Whether the host may use it: then what it writes into a part must be there when the graph runs.
    is_for_host: bool,
    /// Those that may still use it.
    pub(super) graphs: Vec<u64>,
    /// Sizes by address. Neighbours have been merged.
    free: BTreeMap<CUdeviceptr, u64>,
    part_count: usize,
    /// Streams on which it was used outside of captures, in the form of [`uses`].
    uses: u64,
}

impl Chunk {
    /// All of it is one part.
    pub(super) fn new(maker: u64, pool: StateRef, block: Block, owner_stream: StreamId) -> Self {
        let (is_for_host, graphs) = (block.kind().is_host_accessible(), vec![maker]);
        Self {
            block,
            pool,
            maker,
            owner_stream,
            is_for_host,
            graphs,
            free: BTreeMap::new(),
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

    /// What all of it is, and the pool that has it.
    pub(super) fn whole(&self) -> (StateRef, Allocation) {
        (self.block.state(), self.block.allocation())
    }

    /// Nobody has a part, and no graph may use it.
    pub(super) fn is_over(&self) -> bool {
        self.part_count == 0 && self.graphs.is_empty()
    }

    /// Its size if it is such a pool's, and nobody but graphs has a part.
    pub(super) fn kept_bytes(&self, is_of: impl Fn(&StateRef) -> bool) -> Option<u64> {
        (self.part_count == 0 && is_of(&self.pool)).then(|| self.block.size_bytes())
    }

    /// Whether what is free in it may be handed out on this stream in this capture.
    pub(super) fn serves(&self, capture: u64, pool: StateRef, owner_stream: StreamId) -> bool {
        self.maker == capture && self.pool == pool && self.owner_stream == owner_stream && !self.is_for_host
    }

    /// The smallest free range that is large enough: its size and address.
    pub(super) fn best_fit(&self, size_bytes: u64) -> Option<(u64, CUdeviceptr)> {
        let fitting = self.free.iter().filter(|(_, free_bytes)| **free_bytes >= rounded(size_bytes));
        fitting.map(|(address, free_bytes)| (*free_bytes, *address)).min()
    }

    /// The beginning of that range.
    pub(super) fn take(&mut self, size_bytes: u64) -> Option<CUdeviceptr> {
        let (free_bytes, address) = self.best_fit(size_bytes)?;
        self.free.remove(&address);
        if free_bytes > rounded(size_bytes) {
            self.free.insert(address + rounded(size_bytes), free_bytes - rounded(size_bytes));
        }
        self.part_count += 1;
        Some(address)
    }

    /// The program has dropped a part. While the capture goes on, which it does if the chunk serves anyone, the part is
    /// free for the next allocation on the stream, unless other streams or graphs have used it.
    pub(super) fn drop_part(&mut self, freed: &FreeRequest) {
        self.part_count -= 1;
        let others = freed.uses & !GRAPH_BIT;
        self.uses = uses::with(uses::joined(self.uses, others), freed.owner_stream.stream_index());
        if others == 0 && self.graphs == [self.maker] {
            self.merge(freed.allocation.address, rounded(freed.size_bytes));
        }
    }

    fn merge(&mut self, mut address: CUdeviceptr, mut size_bytes: u64) {
        if let Some(next_bytes) = self.free.remove(&(address + size_bytes)) {
            size_bytes += next_bytes;
        }
        if let Some((&before, &before_bytes)) = self.free.range(..address).next_back()
            && before + before_bytes == address
        {
            self.free.remove(&before);
            (address, size_bytes) = (before, before_bytes + size_bytes);
        }
        self.free.insert(address, size_bytes);
    }

    /// A graph is gone, which was launched on these streams.
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

/// What a part takes of a chunk.
pub(crate) fn rounded(size_bytes: u64) -> u64 {
    // Of what is too large, so much is too.
    size_bytes.checked_next_multiple_of(ALIGNMENT_MIN).unwrap_or(size_bytes)
}

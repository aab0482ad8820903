//! [`GraphMemory`]: the memory that captures, and the graphs made by them, keep from other use.
//!
//! Memory is kept under a graph's number until the graph's last handle is dropped
//! (`Captures`):
//!
//! - *Chunks*: memory that was allocated while the stream captured. Each chunk is an ordinary block of its pool, allocated on a stream that
//!   never captures. The program holds parts of it, which are marked with [`GRAPH_BIT`]. Parts dropped during the capture are reused for
//!   later allocations of that stream in that capture, and in later captures of its group, whose graphs run one after another. A part may
//!   outlive the graph; the chunk is then freed with its last part. Launches write to the place of a dropped part, so they are ordered
//!   after its uses.
//! - *Outside* blocks, which were used in the capture, or dropped while one of their streams was part of it. While
//!   the program holds such a block, only its address is recorded here. After the drop, the block itself is kept.
//!
//! The free of kept memory waits for all streams that the graph was launched on, stored as bits like in a block.
//!
//! One lock protects the tables. Neither the driver nor a pool is called under it: memory to be freed is moved out
//! first.

use crate::backend::{Allocation, FreeRequest};
use crate::config::ALIGNMENT_MIN;
use crate::pool::block::Block;
use crate::pool::request::report::Kept;
use crate::pool::state::{State, StateRef};
use gpumem_base::FreeVaRanges;
use gpumem_base::sync::Lock;
use gpumem_device::internal::{AnyStream, Clocks, GRAPH_BIT, StreamIndex, uses};
use gpumem_device::{MemoryRange, StreamId};
use gpumem_sys::types::CUdeviceptr;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

pub(crate) struct GraphMemory {
    pub(crate) clocks: Arc<Clocks>,
    table: Lock<Table>,
}

#[derive(Default)]
struct Table {
    /// Each graph, from the beginning of its capture to its last handle.
    graphs: BTreeMap<u64, GraphEntry>,
    /// By address, like `outside`: live memory has a unique address on the whole machine.
    chunks: BTreeMap<CUdeviceptr, Chunk>,
    outside: BTreeMap<CUdeviceptr, OutsideBlock>,
}

struct GraphEntry {
    /// The first graph of the group whose captures share memory.
    group: u64,
    /// The blocks that the program has dropped and the graph keeps.
    retained: Vec<(StateRef, FreeRequest)>,
}

/// A block that graphs use, and that the program or one of those graphs holds.
#[derive(Default)]
struct OutsideBlock {
    graphs: Vec<u64>,
    /// The streams on which graphs that are gone were launched.
    uses: u64,
}

/// Memory that no graph keeps any more. Dropping it frees the memory, and must happen without locks.
#[derive(Default)]
#[must_use = "to be dropped when the lock is free"]
struct Released {
    chunks: Vec<Chunk>,
    retained: Vec<(StateRef, FreeRequest)>,
    source: Option<Arc<dyn AnyStream>>,
}

impl GraphMemory {
    /// Returns the graph memory of a machine, which lives as long as a pool or a graph of the machine.
    pub(crate) fn of(clocks: &Arc<Clocks>) -> Arc<Self> {
        static MACHINES: Lock<Vec<Weak<GraphMemory>>> = Lock::new(Vec::new());
        let mut machines = MACHINES.lock();
        let live: Vec<_> = machines.iter().filter_map(Weak::upgrade).collect();
        let found = live.iter().find(|memory| Arc::ptr_eq(&memory.clocks, clocks)).cloned();
        machines.retain(|memory| memory.strong_count() > 0);
        let memory = found.unwrap_or_else(|| {
            let memory = Arc::new(Self { clocks: Arc::clone(clocks), table: Lock::default() });
            machines.push(Arc::downgrade(&memory));
            memory
        });
        // The list must be unlocked when another machine's graph memory is dropped.
        drop(machines);
        memory
    }

    /// Records the beginning of a capture, in the group that begins with the graph `group`. A known capture is unchanged.
    pub(crate) fn begin(&self, graph: u64, group: u64) {
        self.table.lock().graphs.entry(graph).or_insert_with(|| GraphEntry { group, retained: Vec::new() });
    }

    /// Drops a handle of a graph. The last handle frees the memory that only this graph keeps.
    pub(crate) fn drop_handle(&self, graph: u64) {
        if let Some((launched, source)) = self.clocks.captures().drop_handle(graph) {
            let mut released = self.table.lock().let_go(graph, launched);
            released.source = source;
            // Dropped here, after the lock has been released.
            drop(released);
        }
    }

    /// Reuses a part of this stream that was dropped in this capture, or in or after an earlier one of its group.
    pub(crate) fn take_part(
        &self,
        graph: u64,
        pool: StateRef,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> Option<CUdeviceptr> {
        let mut table = self.table.lock();
        let group = table.graphs.get(&graph)?.group;
        self.clocks.captures().add_member(graph, owner_stream.stream_index());
        let chunks = table.chunks.values_mut().filter(|chunk| chunk.serves(group, pool, owner_stream));
        let fitting = chunks.filter_map(|chunk| Some((chunk.best_fit(size_bytes)?, chunk)));
        let (_, chunk) = fitting.min_by_key(|((free_bytes, _), _)| *free_bytes)?;
        if chunk.add_graph(graph, group) {
            self.clocks.captures().add_owner_stream(graph, owner_stream.stream_index());
        }
        chunk.take(size_bytes)
    }

    pub(crate) fn add_chunk(&self, graph: u64, pool: StateRef, block: Block, owner_stream: StreamId) {
        let mut table = self.table.lock();
        let group = table.graphs.get(&graph).map_or(graph, |entry| entry.group);
        let chunk = Chunk::new(graph, group, pool, block, owner_stream);
        self.clocks.captures().add_owner_stream(graph, owner_stream.stream_index());
        table.chunks.insert(chunk.address(), chunk);
    }

    /// Records the use of a block in a capture: its memory stays for the graph.
    pub(crate) fn note_use(&self, graph: u64, address: CUdeviceptr, slot: Option<StreamIndex>) {
        let mut table = self.table.lock();
        let Some(group) = table.graphs.get(&graph).map(|entry| entry.group) else { return };
        if let Some(slot) = slot {
            self.clocks.captures().add_member(graph, slot);
        }
        if let Some(chunk) = table.chunk_at(address) {
            chunk.add_graph(graph, group);
            return;
        }
        let graphs = &mut table.outside.entry(address).or_default().graphs;
        if !graphs.contains(&graph) {
            graphs.push(graph);
        }
    }

    /// Handles the drop of a block with [`GRAPH_BIT`], whose streams are in these captures. Returns the request if
    /// the pool must free the block, because no graph keeps it.
    pub(crate) fn drop_noted(
        &self,
        graphs: &[u64],
        pool: StateRef,
        freed: FreeRequest,
    ) -> Option<FreeRequest> {
        for graph in graphs {
            self.note_use(*graph, freed.allocation.address, None);
        }
        let mut table = self.table.lock();
        if let Some(chunk) = table.chunk_at(freed.allocation.address) {
            chunk.drop_part(&freed);
            let (base, is_over, graphs) = (chunk.address(), chunk.is_over(), chunk.graphs.to_vec());
            self.launch_after(&graphs, &freed);
            let released = is_over.then(|| table.chunks.remove(&base));
            drop(table);
            drop(released);
            return None;
        }
        table.drop_outside(pool, freed)
    }

    /// Keeps a dropped block whose streams are in captures for their graphs.
    pub(crate) fn keep(&self, graphs: &[u64], pool: StateRef, mut freed: FreeRequest) -> Option<FreeRequest> {
        let mut table = self.table.lock();
        let known = graphs.iter().filter(|graph| table.graphs.contains_key(graph)).copied().collect();
        freed.uses |= GRAPH_BIT;
        table.outside.insert(freed.allocation.address, OutsideBlock { graphs: known, uses: 0 });
        table.drop_outside(pool, freed)
    }

    /// Orders launches after the uses of a dropped part outside captures. Launches write to the part's place again, and nothing else orders
    /// them after those uses, because the part's user had only an address.
    fn launch_after(&self, graphs: &[u64], freed: &FreeRequest) {
        let freed = FreeRequest { uses: freed.uses & !GRAPH_BIT, ..*freed };
        for graph in graphs {
            self.clocks.captures().add_after_parts(*graph, freed.stamps(&self.clocks), self.clocks.epochs());
        }
    }

    /// The memory that a launch of a graph uses: one byte of each block suffices, since a sleeping pool has added all its addresses.
    pub(crate) fn of_graph(&self, graph: u64) -> Vec<MemoryRange> {
        let table = self.table.lock();
        let chunks = table.chunks.values().filter(|chunk| chunk.graphs.contains(&graph));
        let outside = table.outside.iter().filter(|(_, outside)| outside.graphs.contains(&graph));
        let retained = table.graphs.get(&graph).into_iter().flat_map(|entry| &entry.retained);
        let starts = chunks
            .map(Chunk::address)
            .chain(outside.map(|(address, _)| *address))
            .chain(retained.map(|(_, freed)| freed.allocation.address));
        starts.map(|address| MemoryRange::new(address, 1)).collect()
    }

    /// Returns the chunk that contains a live part, and the chunk's pool.
    pub(crate) fn chunk_of(&self, address: CUdeviceptr) -> Option<(StateRef, Allocation)> {
        self.table.lock().chunk_at(address).map(|chunk| chunk.whole())
    }

    /// Returns the memory of a pool that graphs keep and the program has dropped. All of it becomes available once no graph is left.
    pub(crate) fn kept(&self, pool: &State) -> Kept {
        let is_of = |other: &StateRef| core::ptr::eq(&raw const **other, pool);
        let table = self.table.lock();
        let chunks = table.chunks.values();
        let chunks = chunks.filter_map(|chunk| Some((&*chunk.graphs, chunk.kept_bytes(is_of)?)));
        let retained = table.graphs.iter().flat_map(|(graph, entry)| {
            let of_pool = entry.retained.iter().filter(|(pool, _)| is_of(pool));
            of_pool.map(move |(_, freed)| (core::slice::from_ref(graph), freed.size_bytes))
        });
        let mut kept = Kept::default();
        for (graphs, size_bytes) in chunks.chain(retained) {
            kept.bytes = kept.bytes.saturating_add(size_bytes);
            let stream = graphs.iter().find_map(|graph| self.clocks.captures().open_on(*graph));
            if stream.is_some() {
                kept.capture_bytes = kept.capture_bytes.saturating_add(size_bytes);
                kept.capture_stream = stream;
            }
        }
        kept
    }
}

impl Table {
    fn chunk_at(&mut self, address: CUdeviceptr) -> Option<&mut Chunk> {
        let (_, chunk) = self.chunks.range_mut(..=address).next_back()?;
        Some(chunk).filter(|chunk| chunk.contains(address))
    }

    /// Moves the block to the first of the graphs that use it. Returns the request if there is none.
    fn drop_outside(&mut self, pool: StateRef, freed: FreeRequest) -> Option<FreeRequest> {
        let outside = self.outside.get(&freed.allocation.address);
        let holder = outside.and_then(|outside| outside.graphs.first());
        if let Some(entry) = holder.and_then(|graph| self.graphs.get_mut(graph)) {
            // A caller's guarantee of completion covers past work, not future launches.
            entry.retained.push((pool, FreeRequest { is_complete: false, ..freed }));
            return None;
        }
        let uses = self.outside.remove(&freed.allocation.address).map_or(0, |outside| outside.uses);
        Some(FreeRequest { uses: uses::joined(freed.uses & !GRAPH_BIT, uses), ..freed })
    }

    fn let_go(&mut self, graph: u64, launched: u64) -> Released {
        let Some(GraphEntry { retained, .. }) = self.graphs.remove(&graph) else {
            return Released::default();
        };
        self.chunks.values_mut().for_each(|chunk| chunk.let_go(graph, launched));
        let over: Vec<_> =
            self.chunks.iter().filter(|(_, chunk)| chunk.is_over()).map(|(base, _)| *base).collect();
        let chunks = over.iter().filter_map(|base| self.chunks.remove(base)).collect();
        for outside in self.outside.values_mut() {
            if let Some(at) = outside.graphs.iter().position(|other| *other == graph) {
                outside.graphs.remove(at);
                outside.uses = uses::joined(outside.uses, launched);
            }
        }
        Released { chunks, retained, source: None }
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        self.chunks.clear();
        for (pool, freed) in self.retained.drain(..) {
            // The block is freed as if it were dropped now, because another graph may use it too.
            pool.free(&freed);
        }
        self.source = None;
    }
}

/// A block allocated for a capture and handed out in parts.
struct Chunk {
    /// Freed with the recorded `uses` when the chunk is dropped.
    block: Block,
    pool: StateRef,
    /// The group of the capture that the chunk was allocated for; `owner_stream` is the allocating stream there.
    group: u64,
    owner_stream: StreamId,
    /// True if the host may use the memory. Then data that the host writes into a part must stay until the graph runs.
    is_for_host: bool,
    graphs: Vec<u64>,
    /// True once a graph of another group has used the chunk: the order of their launches is unknown here.
    is_shared: bool,
    free: FreeVaRanges,
    part_count: usize,
    /// The streams on which the chunk was used outside captures, in the format of [`uses`].
    uses: u64,
}

impl Chunk {
    fn new(graph: u64, group: u64, pool: StateRef, block: Block, owner_stream: StreamId) -> Self {
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

    fn address(&self) -> CUdeviceptr {
        self.block.address()
    }

    fn contains(&self, address: CUdeviceptr) -> bool {
        address - self.block.address() < self.block.size_bytes()
    }

    fn whole(&self) -> (StateRef, Allocation) {
        (self.block.pool, self.block.allocation())
    }

    /// True if no part is in use and no graph may use the chunk.
    fn is_over(&self) -> bool {
        self.part_count == 0 && self.graphs.is_empty()
    }

    /// Returns the chunk's size if it belongs to a matching pool and only graphs keep it.
    fn kept_bytes(&self, is_of: impl Fn(&StateRef) -> bool) -> Option<u64> {
        (self.part_count == 0 && is_of(&self.pool)).then(|| self.block.size_bytes())
    }

    /// Adds a graph of a group that uses the chunk. False if already known.
    fn add_graph(&mut self, graph: u64, group: u64) -> bool {
        self.is_shared |= group != self.group;
        let is_new = !self.graphs.contains(&graph);
        if is_new {
            self.graphs.push(graph);
        }
        is_new
    }

    /// True if free ranges of the chunk may be allocated on this stream in a capture of this group.
    fn serves(&self, group: u64, pool: StateRef, owner_stream: StreamId) -> bool {
        self.group == group && self.pool == pool && self.owner_stream == owner_stream && !self.is_for_host
    }

    /// Returns the size and address of the smallest free range that is large enough.
    fn best_fit(&self, size_bytes: u64) -> Option<(u64, CUdeviceptr)> {
        let fitting = self.free.iter().filter(|(_, free_bytes)| *free_bytes >= rounded(size_bytes));
        fitting.map(|(address, free_bytes)| (free_bytes, address)).min()
    }

    fn take(&mut self, size_bytes: u64) -> Option<CUdeviceptr> {
        let (_, address) = self.best_fit(size_bytes)?;
        self.free.fill(address, rounded(size_bytes));
        self.part_count += 1;
        Some(address)
    }

    /// Handles the drop of a part. The part becomes free for the next allocation on the stream in a capture of the group, unless other
    /// streams, or graphs of other groups, have used it. After the group's last capture the free range has no effect.
    fn drop_part(&mut self, freed: &FreeRequest) {
        self.part_count -= 1;
        let others = freed.uses & !GRAPH_BIT;
        self.uses = uses::with(uses::joined(self.uses, others), freed.owner_stream.stream_index());
        if others == 0 && !self.is_shared {
            self.free.add(freed.allocation.address, rounded(freed.size_bytes));
        }
    }

    /// Removes a graph, which was launched on these streams.
    fn let_go(&mut self, graph: u64, launched: u64) {
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

pub(crate) fn rounded(size_bytes: u64) -> u64 {
    // A size that overflows is unchanged, and refused as too large.
    size_bytes.checked_next_multiple_of(ALIGNMENT_MIN).unwrap_or(size_bytes)
}

//! [`Holds`]: what captures, and the graphs made by them, keep from being used otherwise.
//!
//! A capture has a number, the driver's; the graph that it becomes and every executable of that go by the same. Kept
//! under it, until the last of them is gone:
//!
//! - *Chunks*: memory that was allocated while the stream captured. Each is an ordinary block of its pool, allocated on a
//!   stream that never captures; what the program holds are parts of it, whose bits say [`GRAPH_BIT`]. Parts that are
//!   dropped during the capture serve later allocations of the same stream in the same capture. A part may outlive the
//!   graph: then the chunk goes with its last part. Launches write to its place: they come after it once it is dropped.
//! - *Outside* blocks that were used in the capture, or dropped while one of their streams was part of it. While the
//!   program has one, only its address is noted here; dropped, the block itself is kept.
//!
//! What goes, goes with the marks of all streams that the graph was launched on: bits, as in a block.
//!
//! One lock, under which neither the driver nor a pool is called: what is to be freed is handed out first.

use crate::attention::Attention;
use crate::backend::{Freed, Piece};
use crate::block::Block;
use crate::clock::{Clocks, GRAPH_BIT, Order, Stamp, StreamId, StreamIndex, uses};
use crate::device::{Device, WeakDevice};
use crate::graph::chunk::Chunk;
use crate::state::{State, StateRef};
use crate::stream::Stream;
use gpumem_sys::types::CUdeviceptr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// What captures and graphs of one machine keep.
#[derive(Default)]
pub(crate) struct Holds {
    /// Counts the captures that go on. While there is none, nothing here is asked about a stream.
    attention: Attention,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    graphs: BTreeMap<u64, Held>,
    /// By address, as are the two kinds of memory below: what is alive has one of its own, on the whole machine.
    chunks: BTreeMap<CUdeviceptr, Chunk>,
    outside: BTreeMap<CUdeviceptr, Outside>,
}

/// A capture, and then a graph with its executables.
#[derive(Default)]
struct Held {
    handle_count: usize,
    is_open: bool,
    /// Its end has begun: streams may run their work again.
    is_ending: bool,
    /// Where it began: the stream, and the thread that has to end it.
    origin: Option<(StreamIndex, ThreadId)>,
    /// Those of the members.
    devices: Vec<WeakDevice>,
    /// Streams that are known to be part of the capture.
    members: BTreeSet<StreamIndex>,
    /// The stream where the capture began and those that have joined it. Owned ones live until it ends: the driver breaks a
    /// capture when one of its streams is destroyed.
    streams: Vec<Stream>,
    /// What launches come after; and the streams, which come after it too once they run again.
    after: Vec<(StreamIndex, Stamp)>,
    /// What was done outside with parts of its memory that are gone: launches come after that too.
    after_parts: Vec<Stamp>,
    /// Where chunks are allocated.
    source: Option<Stream>,
    /// The streams that it has been launched on, in the form of [`uses`].
    launched: u64,
    kept: Vec<Kept>,
}

/// A block that the program has dropped.
struct Kept {
    pool: StateRef,
    freed: Freed,
}

/// A block that graphs use, and that the program or one of those graphs has.
#[derive(Default)]
struct Outside {
    graphs: Vec<u64>,
    /// Where graphs that are gone have been launched.
    uses: u64,
}

/// What nobody keeps any more. Dropping it frees it, with no lock held.
#[derive(Default)]
#[must_use = "to be dropped when the lock is free"]
struct Released {
    chunks: Vec<Chunk>,
    kept: Vec<Kept>,
    source: Option<Stream>,
}

impl Holds {
    /// Whether any capture goes on that was begun through this crate.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.attention.has_captures()
    }

    /// The machine's.
    #[inline]
    pub(crate) fn attention(&self) -> &Attention {
        &self.attention
    }

    /// A capture is about to begin: from now on streams are asked about.
    pub(crate) fn announce(&self) {
        self.attention.add_capture();
    }

    /// It was announced, and did not begin or has ended.
    pub(crate) fn withdraw(&self) {
        self.attention.remove_capture();
    }

    /// A capture has begun. One handle, to be given back by [`Holds::let_go`].
    pub(crate) fn begin(&self, graph: u64, stream: &Stream) {
        let members = BTreeSet::from([stream.stream_index()]);
        let devices = vec![stream.device().downgrade()];
        let (origin, streams) =
            (Some((stream.stream_index(), std::thread::current().id())), vec![stream.clone()]);
        let held =
            Held { handle_count: 1, is_open: true, origin, devices, members, streams, ..Held::default() };
        self.table().graphs.insert(graph, held);
    }

    /// A stream has become part of a capture.
    pub(crate) fn join(&self, graph: u64, stream: &Stream) {
        let device = stream.device().downgrade();
        self.with(graph, |held| {
            held.members.insert(stream.stream_index());
            if !held.is_ending && !held.streams.contains(stream) {
                held.streams.push(stream.clone());
            }
            if !held.devices.iter().any(|known| known.is_same(&device)) {
                held.devices.push(device);
            }
        });
    }

    /// The streams of a capture that goes on, each once, always in the same order.
    pub(crate) fn members(&self, graph: u64) -> Vec<Stream> {
        let mut streams = self.with(graph, |held| held.streams.clone()).unwrap_or_default();
        streams.sort_unstable_by_key(Stream::id);
        streams
    }

    /// The capture's end begins. False if it had begun before.
    pub(crate) fn end_begins(&self, graph: u64) -> bool {
        self.with(graph, |held| !core::mem::replace(&mut held.is_ending, true)).unwrap_or(false)
    }

    /// The captures that go on, of which streams of a device are part, and that this thread has begun; with their first streams.
    pub(crate) fn begun_here(&self, device: &Device) -> Vec<(u64, StreamIndex)> {
        let thread = std::thread::current().id();
        let open: Vec<_> = {
            let table = self.table();
            let open = table.graphs.iter().filter(|(_, held)| held.is_open && !held.is_ending);
            let begun = open.filter_map(|(graph, held)| Some((*graph, held.origin?, held.devices.clone())));
            begun.filter(|(_, (_, by), _)| *by == thread).collect()
        };
        // Devices are let go of after the lock: the end of one takes others.
        let is_of = |devices: Vec<WeakDevice>| {
            devices.iter().filter_map(WeakDevice::upgrade).any(|other| other == *device)
        };
        open.into_iter()
            .filter_map(|(graph, (slot, _), devices)| is_of(devices).then_some((graph, slot)))
            .collect()
    }

    /// The capture has ended. Its streams still have to wait for what they were asked to wait for meanwhile, and for
    /// the memory that they have allocated.
    pub(crate) fn end(&self, graph: u64, clocks: &Clocks) -> Vec<(StreamIndex, Stamp)> {
        let streams = self.with(graph, |held| core::mem::take(&mut held.streams));
        // Outside of the lock: with the last clone a stream is destroyed.
        drop(streams);
        let ended = self.with(graph, |held| {
            held.is_open = false;
            (held.after.clone(), held.source.as_ref().map(|source| clocks.stamp(source.stream_index())))
        });
        self.withdraw();
        let (mut after, made) = ended.unwrap_or_default();
        if let Some(made) = made {
            let homes: BTreeSet<StreamIndex> =
                self.table().chunks.values().filter_map(|chunk| chunk.home_in(graph)).collect();
            after.extend(homes.into_iter().map(|home| (home, made)));
        }
        after
    }

    pub(crate) fn add_handle(&self, graph: u64) {
        self.with(graph, |held| held.handle_count += 1);
    }

    /// One handle less; with the last, what only this graph keeps is freed.
    pub(crate) fn let_go(&self, graph: u64) {
        let released = self.table().let_go(graph);
        drop(released);
    }

    /// Whether it is a capture that goes on and was begun through this crate.
    pub(crate) fn knows(&self, graph: u64) -> bool {
        self.table().graphs.get(&graph).is_some_and(|held| held.is_open && !held.is_ending)
    }

    /// Whether a capture goes on that streams of this device are part of.
    pub(crate) fn captures_on(&self, device: &Device) -> bool {
        if !self.is_open() {
            return false;
        }
        // Let go of after the lock: the end of a device takes others.
        let open: Vec<_> = self
            .table()
            .graphs
            .values()
            .filter(|held| held.is_open)
            .flat_map(|held| held.devices.iter().cloned())
            .collect();
        open.iter().filter_map(WeakDevice::upgrade).any(|other| other == *device)
    }

    /// A capture that a stream belongs to, by what is noted of it. For a broken one that nobody knows of, any that goes
    /// on: what it keeps too long it gives back in the end.
    pub(crate) fn capture_of(&self, slot: StreamIndex, is_broken: bool) -> Option<u64> {
        let table = self.table();
        let mut open = table.graphs.iter().filter(|(_, held)| held.is_open);
        let member = open.clone().find(|(_, held)| held.members.contains(&slot));
        member.or_else(|| open.next().filter(|_| is_broken)).map(|(graph, _)| *graph)
    }

    /// A stream of the capture is to come after this: launches do, and the stream itself once it runs again.
    pub(crate) fn add_after(&self, graph: u64, slot: StreamIndex, stamps: impl IntoIterator<Item = Stamp>) {
        self.with(graph, |held| held.after.extend(stamps.into_iter().map(|stamp| (slot, stamp))));
    }

    /// Notes a launch that is about to be made; what it comes after, and what it comes after where that can be waited for:
    /// another library's stream can't always.
    pub(crate) fn launch(&self, graph: u64, on: StreamIndex, clocks: &Clocks) -> (Vec<Stamp>, Vec<Stamp>) {
        let noted = self.with(graph, |held| {
            held.launched = uses::with(held.launched, on);
            let source = held.source.as_ref().map(|source| clocks.stamp(source.stream_index()));
            let after = held.after.iter().map(|(_, stamp)| *stamp).chain(source).collect();
            (after, held.after_parts.clone())
        });
        noted.unwrap_or_default()
    }

    /// The stream that a capture's chunks are allocated on, once one has been put there.
    pub(crate) fn source(&self, graph: u64) -> Option<Stream> {
        self.with(graph, |held| held.source.clone()).flatten()
    }

    /// Puts one there, unless another thread has been faster; the one that counts.
    pub(crate) fn set_source(&self, graph: u64, source: Stream) -> Stream {
        let kept = self.with(graph, |held| held.source.get_or_insert_with(|| source.clone()).clone());
        kept.unwrap_or(source)
    }

    /// A part that was dropped in the same capture on the same stream.
    pub(crate) fn take_part(
        &self,
        graph: u64,
        pool: StateRef,
        size_bytes: u64,
        home: StreamId,
    ) -> Option<CUdeviceptr> {
        let mut table = self.table();
        table.graphs.get_mut(&graph)?.members.insert(home.stream_index());
        let chunks = table.chunks.values_mut().filter(|chunk| chunk.serves(graph, pool, home));
        let fitting = chunks.filter_map(|chunk| Some((chunk.best_fit(size_bytes)?, chunk)));
        let (_, chunk) = fitting.min_by_key(|((free_bytes, _), _)| *free_bytes)?;
        chunk.take(size_bytes)
    }

    /// A new chunk, all of which is handed out.
    pub(crate) fn add_chunk(&self, graph: u64, pool: StateRef, block: Block, home: StreamId) {
        let chunk = Chunk::new(graph, pool, block, home);
        let mut table = self.table();
        if let Some(held) = table.graphs.get_mut(&graph) {
            held.members.insert(home.stream_index());
        }
        table.chunks.insert(chunk.address(), chunk);
    }

    /// A block is used in a capture: its memory stays for the graph.
    pub(crate) fn note_use(&self, graph: u64, address: CUdeviceptr, slot: Option<StreamIndex>) {
        let mut table = self.table();
        let Some(held) = table.graphs.get_mut(&graph) else { return };
        held.members.extend(slot);
        let graphs = match table.chunk_at(address) {
            Some(chunk) => &mut chunk.graphs,
            None => &mut table.outside.entry(address).or_default().graphs,
        };
        if !graphs.contains(&graph) {
            graphs.push(graph);
        }
    }

    /// A block with [`GRAPH_BIT`] has been dropped, and its streams are in these captures. What is left to be freed in the
    /// pool's way, if no graph has a say.
    pub(crate) fn drop_noted(
        &self,
        graphs: &[u64],
        pool: StateRef,
        freed: Freed,
        clocks: &Clocks,
    ) -> Option<Freed> {
        for graph in graphs {
            self.note_use(*graph, freed.piece.address, None);
        }
        let mut table = self.table();
        if let Some(chunk) = table.chunk_at(freed.piece.address) {
            chunk.drop_part(&freed);
            let (base, is_over, graphs) = (chunk.address(), chunk.is_over(), chunk.graphs.clone());
            table.launch_after(&graphs, &freed, clocks);
            let released = is_over.then(|| table.chunks.remove(&base));
            drop(table);
            drop(released);
            return None;
        }
        table.drop_outside(pool, freed)
    }

    /// A block is dropped whose streams are in captures: it stays for their graphs.
    pub(crate) fn keep(&self, graphs: &[u64], pool: StateRef, mut freed: Freed) -> Option<Freed> {
        let mut table = self.table();
        let known = graphs.iter().filter(|graph| table.graphs.contains_key(graph)).copied().collect();
        freed.uses |= GRAPH_BIT;
        table.outside.insert(freed.piece.address, Outside { graphs: known, uses: 0 });
        table.drop_outside(pool, freed)
    }

    /// The block that a live part of a graph's memory lies in, and its pool.
    pub(crate) fn chunk_of(&self, address: CUdeviceptr) -> Option<(StateRef, Piece)> {
        self.table().chunk_at(address).map(|chunk| chunk.whole())
    }

    /// What is kept of a pool's memory that the program has dropped: all of it is to be had when no graph is left.
    pub(crate) fn kept_bytes(&self, pool: &State) -> u64 {
        let is_of = |other: &StateRef| core::ptr::eq(&raw const **other, pool);
        let table = self.table();
        let chunks = table.chunks.values().filter_map(|chunk| chunk.kept_bytes(is_of));
        let kept = table.graphs.values().flat_map(|held| &held.kept).filter(|kept| is_of(&kept.pool));
        chunks.chain(kept.map(|kept| kept.freed.size_bytes)).fold(0, u64::saturating_add)
    }

    fn with<T>(&self, graph: u64, work: impl FnOnce(&mut Held) -> T) -> Option<T> {
        self.table().graphs.get_mut(&graph).map(work)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn chunk_at(&mut self, address: CUdeviceptr) -> Option<&mut Chunk> {
        let (_, chunk) = self.chunks.range_mut(..=address).next_back()?;
        Some(chunk).filter(|chunk| chunk.contains(address))
    }

    /// A part of a chunk is gone: launches write to its place again, of which its user knew no more than the address. They come
    /// after what was done with it outside of captures.
    fn launch_after(&mut self, graphs: &[u64], freed: &Freed, clocks: &Clocks) {
        let freed = Freed { uses: freed.uses & !GRAPH_BIT, ..*freed };
        for graph in graphs {
            let Some(held) = self.graphs.get_mut(graph) else { continue };
            let outside = freed
                .stamps(clocks)
                .filter(|stamp| !(held.is_open && held.members.contains(&stamp.stream_index())));
            held.after_parts.retain(|stamp| !clocks.is_complete(*stamp));
            held.after_parts.extend(outside);
        }
    }

    /// To the first of the graphs that use it, or out of here.
    fn drop_outside(&mut self, pool: StateRef, freed: Freed) -> Option<Freed> {
        let outside = self.outside.get(&freed.piece.address);
        let holder = outside.and_then(|outside| outside.graphs.first());
        if let Some(held) = holder.and_then(|graph| self.graphs.get_mut(graph)) {
            // Who says that all work on it is done does not speak of launches to come.
            held.kept.push(Kept { pool, freed: Freed { is_complete: false, ..freed } });
            return None;
        }
        let uses = self.outside.remove(&freed.piece.address).map_or(0, |outside| outside.uses);
        Some(Freed { uses: uses::joined(freed.uses & !GRAPH_BIT, uses), ..freed })
    }

    fn let_go(&mut self, graph: u64) -> Released {
        let Some(held) = self.graphs.get_mut(&graph) else { return Released::default() };
        held.handle_count -= 1;
        if held.handle_count > 0 {
            return Released::default();
        }
        let Some(held) = self.graphs.remove(&graph) else { return Released::default() };
        self.chunks.values_mut().for_each(|chunk| chunk.let_go(graph, held.launched));
        let over: Vec<_> =
            self.chunks.iter().filter(|(_, chunk)| chunk.is_over()).map(|(base, _)| *base).collect();
        let chunks = over.iter().filter_map(|base| self.chunks.remove(base)).collect();
        for outside in self.outside.values_mut() {
            if let Some(at) = outside.graphs.iter().position(|other| *other == graph) {
                outside.graphs.remove(at);
                outside.uses = uses::joined(outside.uses, held.launched);
            }
        }
        Released { chunks, kept: held.kept, source: held.source }
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        self.chunks.clear();
        for Kept { pool, freed } in self.kept.drain(..) {
            // As if it were dropped now: another graph may use it too.
            pool.free(&freed);
        }
        self.source = None;
    }
}

//! The pool while streams capture: allocations that belong to a graph, and frees that a graph has a say in.

use super::chunk::rounded;
use crate::alignment::ALIGNMENT_MIN;
use crate::backend::{Freed, Piece};
use crate::block::Block;
use crate::clock::{Clocks, GRAPH_BIT, Part, StreamIndex};
use crate::context::Relaxed;
use crate::error::PoolError;
use crate::state::StateRef;
use crate::stream::Stream;

impl StateRef {
    /// An allocation on a stream that may be part of a capture, checked like any other; `None` if it is not.
    pub(crate) fn alloc_captured(
        self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Option<Block>, PoolError> {
        let Some(graph) = stream.captures_for()? else { return Ok(None) };
        let holds = stream.clocks().holds();
        let part = |address| {
            let block = Block::new(self, Piece::new(address, 0, Piece::NO_CLASS), size_bytes, stream.id());
            block.add_uses(GRAPH_BIT);
            block
        };
        if alignment <= ALIGNMENT_MIN
            && let Some(address) = holds.take_part(graph, self, size_bytes, stream.id())
        {
            return Ok(Some(part(address)));
        }
        let source = stream.source_of(graph)?;
        let chunk = self.alloc_aligned(rounded(size_bytes), alignment, &source)?;
        let address = chunk.address();
        holds.add_chunk(graph, self, chunk, stream.id());
        Ok(Some(part(address)))
    }

    /// A free while streams capture, or of a block that a graph uses. What is left to be freed in the usual way, if
    /// anything. After `None` the pool may be gone.
    pub(crate) fn free_captured(self, freed: Freed) -> Option<Freed> {
        // The pool may end here, but not what its graphs are kept in.
        let device = self.device().clone();
        let holds = device.clocks().holds();
        let is_noted = freed.uses & GRAPH_BIT != 0;
        let graphs = if holds.is_open() { captures_of(device.clocks(), &freed) } else { Vec::new() };
        match (is_noted, graphs.is_empty()) {
            (true, _) => holds.drop_noted(&graphs, self, freed, device.clocks()),
            (false, true) => Some(freed),
            (false, false) => holds.keep(&graphs, self, freed),
        }
    }
}

impl Block {
    /// A use while streams capture: if this one does, the memory stays for the graph.
    #[cold]
    pub(crate) fn note_use(&self, stream: &Stream) {
        // The handle or the slot of a stream that this thread cannot use may belong to another stream by now.
        if stream.check_usable().is_err() {
            return;
        }
        let holds = stream.clocks().holds();
        let (graph, slot) = match stream.captures_for() {
            Ok(graph) => (graph, Some(stream.stream_index())),
            // The driver did not answer, and the use may be part of a capture: the block is kept for the open one.
            Err(_) => (holds.capture_of(stream.stream_index(), true), None),
        };
        if let Some(graph) = graph
            && self.size_bytes() > 0
        {
            self.add_uses(GRAPH_BIT);
            holds.note_use(graph, self.address(), slot);
        }
    }
}

impl Stream {
    /// A stream of the capture's own, which never captures.
    pub(super) fn source_of(&self, graph: u64) -> Result<Self, PoolError> {
        let (device, holds) = (self.device(), self.clocks().holds());
        match holds.source(graph) {
            Some(source) => Ok(source),
            None => {
                let _relaxed = Relaxed::enter(device.driver())?;
                Ok(holds.set_source(graph, Self::new(device)?))
            }
        }
    }

    /// The capture that it is part of, if that was begun here.
    pub(crate) fn captures_for(&self) -> Result<Option<u64>, PoolError> {
        let holds = self.clocks().holds();
        match self.part()? {
            Part::In(graph) if holds.knows(graph) => Ok(Some(graph)),
            Part::Broken if holds.capture_of(self.stream_index(), true).is_some() => {
                Err(PoolError::CaptureBroken)
            }
            _ => Ok(None),
        }
    }
}

/// The captures that a block's streams are part of now.
fn captures_of(clocks: &Clocks, freed: &Freed) -> Vec<u64> {
    let slots = core::iter::once(freed.home.stream_index()).chain(clocks.used(freed.uses));
    let mut graphs: Vec<u64> = slots.filter_map(|slot| capture_of(clocks, slot)).collect();
    graphs.sort_unstable();
    graphs.dedup();
    graphs
}

fn capture_of(clocks: &Clocks, slot: StreamIndex) -> Option<u64> {
    match clocks.own_part(slot) {
        Some(Part::In(graph)) => Some(graph).filter(|graph| clocks.holds().knows(*graph)),
        Some(Part::Broken) => clocks.holds().capture_of(slot, true),
        Some(Part::Runs) => None,
        // Another library's stream is not asked about in a call that does not name it.
        None => clocks.holds().capture_of(slot, false),
    }
}

//! The state of a pool with adaptors: what stands between them and the backend.

use super::{State, StateRef};
use crate::backend::{Freed, Piece};
use crate::device::{GRAPH_BIT, StreamId};
use crate::pool::{Behind, Block, Stack};

impl StateRef {
    /// Past all adaptors, a piece of the backend's.
    pub(crate) fn free_own(
        self,
        piece: Piece,
        size_bytes: u64,
        home: StreamId,
        uses: u64,
        is_complete: bool,
    ) {
        let is_plain = uses == 0 && !is_complete && self.clocks.captures().slow_path().is_none();
        let put_back = || self.backend.put_back(self.backend.near(), &piece, size_bytes, home);
        if !(is_plain && self.poison.get().is_none() && put_back()) {
            self.free_to_backend(&Freed { piece, size_bytes, home, uses, is_complete });
        }
    }

    /// Another pool's block, which one of ours was.
    pub(crate) fn free_other(self, block: Block, uses: u64, is_complete: bool) {
        block.add_uses(uses);
        match is_complete {
            // SAFETY: whoever dropped our block has promised it, and this was its memory.
            true => unsafe { block.free_completed() },
            false => drop(block),
        }
        self.drop_block();
    }

    /// A block of another pool becomes one of ours.
    pub(crate) fn count_other(self) {
        self.lifetime.count_in();
    }

    /// The backend's piece that a live block is, or is part of, and the pool that has it.
    pub(crate) fn behind(self, piece: Piece) -> (Self, Piece) {
        if piece.class() == Piece::NO_CLASS {
            let chunk = self.graph_memory.chunk_of(piece.address);
            return chunk.map_or((self, piece), |(pool, piece)| pool.behind(piece));
        }
        let stack = self.stack.as_ref().filter(|_| piece.is_special());
        match stack.and_then(|stack| stack.behind(piece.record())) {
            None => (self, piece),
            Some(Behind::Own(piece)) => (self, piece),
            Some(Behind::Other(pool, piece)) => pool.behind(piece),
        }
    }

    /// How many blocks of other pools lie in a live block, one in the other.
    pub(crate) fn nesting(self, piece: Piece) -> usize {
        let stack = self.stack.as_ref().filter(|_| piece.is_special());
        stack.map_or(0, |stack| stack.nesting(piece.record()))
    }
}

impl State {
    #[inline]
    pub(crate) fn stack(&self) -> Option<&Stack> {
        self.stack.as_ref()
    }

    /// The adaptors, if they are all that is between a block and its pool: no graph has a say in what is done with it.
    #[inline]
    pub(crate) fn undisturbed_stack(&self, uses: u64) -> Option<&Stack> {
        let stack = self.stack.as_ref()?;
        (uses & GRAPH_BIT == 0 && self.clocks.captures().slow_path().is_none()).then_some(stack)
    }
}

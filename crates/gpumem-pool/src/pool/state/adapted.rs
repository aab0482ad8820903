//! The state of a pool with adaptors: the calls between the adaptors and the backend.

use super::{State, StateRef};
use crate::backend::{self, Allocation, FreeRequest};
use crate::device::{GRAPH_BIT, StreamId};
use crate::pool::{BackingAllocation, Block, Stack};

impl StateRef {
    /// Frees an allocation of the backend, after all adaptors.
    pub(crate) fn free_own(
        self,
        allocation: Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
        uses: u64,
        is_complete: bool,
    ) {
        let is_plain = uses == 0 && !is_complete && self.clocks.captures().slow_path().is_none();
        let key = self.backend_cache_key;
        let put_back = || {
            backend::put_back_small(key, &allocation, size_bytes, owner_stream)
                || self.backend.put_back(key, &allocation, size_bytes, owner_stream)
        };
        if !(is_plain && self.poison.get().is_none() && put_back()) {
            self.free_to_backend(&FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete });
        }
    }

    /// Frees another pool's block that a block of this pool consisted of.
    pub(crate) fn free_other(self, block: Block, uses: u64, is_complete: bool) {
        block.add_uses(uses);
        match is_complete {
            // SAFETY: the caller that dropped this pool's block has guaranteed completion, and the lent block is
            // its memory.
            true => unsafe { block.free_completed() },
            false => drop(block),
        }
        self.drop_block();
    }

    /// Counts a block of another pool as a block of this pool.
    pub(crate) fn count_other(self) {
        self.lifetime.count_in();
    }

    /// Returns the allocation of a backend that contains a live block, and the pool that owns it.
    pub(crate) fn backing_allocation(self, allocation: Allocation) -> (Self, Allocation) {
        if allocation.class() == Allocation::NO_CLASS {
            let chunk = self.graph_memory.chunk_of(allocation.address);
            return chunk
                .map_or((self, allocation), |(pool, allocation)| pool.backing_allocation(allocation));
        }
        let stack = self.stack.as_ref().filter(|_| allocation.is_special());
        match stack.and_then(|stack| stack.backing_allocation(allocation.record())) {
            None => (self, allocation),
            Some(BackingAllocation::Own(allocation)) => (self, allocation),
            Some(BackingAllocation::Other(pool, allocation)) => pool.backing_allocation(allocation),
        }
    }

    /// Returns the nesting depth of other pools' blocks in a live block.
    pub(crate) fn nesting(self, allocation: Allocation) -> usize {
        let stack = self.stack.as_ref().filter(|_| allocation.is_special());
        stack.map_or(0, |stack| stack.nesting(allocation.record()))
    }
}

impl State {
    #[inline]
    pub(crate) fn stack(&self) -> Option<&Stack> {
        self.stack.as_ref()
    }

    /// Returns the adaptors if they are the only stage between a block and the backend: no graph may keep the
    /// block.
    #[inline]
    pub(crate) fn fast_path_stack(&self, uses: u64) -> Option<&Stack> {
        let stack = self.stack.as_ref()?;
        (uses & GRAPH_BIT == 0 && self.clocks.captures().slow_path().is_none()).then_some(stack)
    }
}

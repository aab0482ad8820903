//! [`Core`]: the state under the heap's lock.

use crate::backend::caching::extent::Extents;
use gpumem_device::internal::StreamIndex;
use gpumem_heap::cache::LargeBlock;
use gpumem_heap::heap::Heap;

pub(in super::super) struct Core {
    pub(in super::super) heap: Heap,
    pub(in super::super) extents: Extents,
    /// The peak of the memory that the heap has handed out. It includes cached blocks.
    pub(super) out_peak_bytes: u64,
}

impl Core {
    pub(super) fn give_large(&mut self, large: LargeBlock) {
        self.heap.give(large.block.record, &[large.stamp.into()]);
    }

    /// True if memory sleeps, or is about to.
    pub(in super::super) fn is_sleeping(&self) -> bool {
        self.heap.is_sleeping() || self.extents.is_sleeping
    }

    pub(super) fn sleeping_bytes(&self) -> u64 {
        self.heap.sleeping_bytes() + self.extents.sleeping_bytes()
    }

    pub(super) fn pending_streams(&self) -> Vec<StreamIndex> {
        self.heap.pending_streams().into_iter().chain(self.extents.pending_streams()).collect()
    }

    pub(in super::super) fn note_peak(&mut self) {
        let out_bytes = self.heap.used_bytes() + self.extents.size_bytes();
        self.out_peak_bytes = self.out_peak_bytes.max(out_bytes);
    }
}

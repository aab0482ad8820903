//! [`HeapBlock`]: a block, as thread caches and heap exchange it.

/// A block of memory, and the heap's record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapBlock {
    /// The start address.
    pub address: u64,
    /// The heap's record, valid until the block is returned to the heap.
    pub record: u32,
}

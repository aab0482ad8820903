//! [`HeapBlock`]: what thread caches and heap exchange.

/// Some memory, and the heap's record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapBlock {
    /// Where it starts.
    pub address: u64,
    /// The heap's record, valid until the piece is given back.
    pub record: u32,
}

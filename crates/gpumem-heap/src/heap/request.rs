//! [`BlockRequest`]: what a caller wants of the heap.

use super::fit::UNIT_BYTES;
use gpumem_base::order::StreamIndex;

/// A request for a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockRequest {
    /// The size in bytes; not zero. Rounded up to a multiple of 256.
    pub size_bytes: u64,
    /// The alignment of the address in bytes: a power of two.
    pub alignment: u64,
    /// The stream that uses the block first.
    pub stream: StreamIndex,
}

impl BlockRequest {
    /// The space of the block: small blocks have a separate one.
    pub(super) fn space(&self) -> usize {
        usize::from(self.size_bytes > SMALL_MAX_BYTES)
    }

    /// The size of the block. `None` if no device has as much.
    pub(super) fn rounded_bytes(&self) -> Option<u64> {
        let size_bytes = self.size_bytes.max(1).checked_next_multiple_of(UNIT_BYTES);
        size_bytes.filter(|size| *size <= SIZE_MAX_BYTES)
    }
}

/// The space of large blocks.
pub(super) const LARGE_SPACE: usize = 1;
/// The largest small block.
pub(super) const SMALL_MAX_BYTES: u64 = 1 << 20;
/// More than any device has; the sum of a few such sizes fits a word.
const SIZE_MAX_BYTES: u64 = 1 << 50;

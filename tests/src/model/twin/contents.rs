//! The contents of blocks, as far as the twin tracks them.

use super::{Twin, TwinBlock};

impl Twin {
    /// Notes that a block was filled.
    pub fn fill(&mut self, name: u32, value: u8) {
        if let Some(block) = self.named(name) {
            let followed: u64 = windows(block.made.size_bytes).iter().map(|(_, length)| length).sum();
            block.contents = Some(vec![value; followed as usize]);
        }
    }

    /// Notes that the contents of a block are unknown.
    pub fn forget(&mut self, name: u32) {
        if let Some(block) = self.named(name) {
            block.contents = None;
        }
    }

    /// Notes a copy of `count` bytes.
    pub fn copy(&mut self, source: u32, target: u32, count: u64) {
        let Some(bytes) = self.contents(source).map(|bytes| bytes[..count as usize].to_vec()) else {
            return self.forget(target);
        };
        let Some(target) = self.named(target) else { return };
        let contents = target.contents.get_or_insert_with(|| vec![0; target.made.size_bytes as usize]);
        contents[..bytes.len()].copy_from_slice(&bytes);
    }

    /// The bytes in the block's windows, if the block was written.
    #[must_use]
    pub fn contents(&self, name: u32) -> Option<&[u8]> {
        let all = self.blocks.iter().chain(&self.kept);
        all.into_iter().find(|block| block.made.name == name)?.contents.as_deref()
    }

    fn named(&mut self, name: u32) -> Option<&mut TwinBlock> {
        self.blocks.iter_mut().chain(&mut self.kept).find(|block| block.made.name == name)
    }
}

/// The number of bytes that a copy between two blocks moves; `None` if its result could not be tracked. A block is known if it
/// was written.
#[must_use]
pub fn copyable_bytes(
    (source_bytes, source_known): (u64, bool),
    (target_bytes, target_known): (u64, bool),
) -> Option<u64> {
    let count = source_bytes.min(target_bytes);
    let is_followed = source_bytes.max(target_bytes) <= 2 * WINDOW_BYTES;
    (is_followed && source_known && (target_known || count == target_bytes)).then_some(count)
}

/// The windows of a block, as offset and length: all of a small block, both ends of a large one. The twin tracks their contents.
#[must_use]
pub fn windows(size_bytes: u64) -> Vec<(u64, u64)> {
    if size_bytes <= 2 * WINDOW_BYTES {
        vec![(0, size_bytes)]
    } else {
        vec![(0, WINDOW_BYTES), (size_bytes - WINDOW_BYTES, WINDOW_BYTES)]
    }
}

const WINDOW_BYTES: u64 = 4096;

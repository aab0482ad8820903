//! [`Memory`]: the location of the bytes of a storage.

use core::ptr::NonNull;
use gpumem_pool::{Block, Device, MemoryKind, Stream};

/// The memory of a storage.
pub(super) enum Memory {
    Block(Block),
    /// The program's own host memory, inside a closure whose end waits for all streams ([`Device::with_host_memory`]).
    Borrowed {
        device: Device,
        address: u64,
        size_bytes: u64,
    },
}

impl Memory {
    #[inline]
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Block(block) => block.address(),
            Self::Borrowed { address, .. } => *address,
        }
    }

    #[inline]
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Block(block) => block.size_bytes(),
            Self::Borrowed { size_bytes, .. } => *size_bytes,
        }
    }

    #[inline]
    pub(super) fn device(&self) -> &Device {
        match self {
            Self::Block(block) => block.device(),
            Self::Borrowed { device, .. } => device,
        }
    }

    pub(super) fn kind(&self) -> MemoryKind {
        match self {
            Self::Block(block) => block.kind(),
            Self::Borrowed { .. } => MemoryKind::Host,
        }
    }

    /// `None` for borrowed memory: its owner accesses it after the closure.
    pub(super) fn host_ptr(&self) -> Option<NonNull<u8>> {
        self.block().and_then(Block::host_ptr)
    }

    /// Makes the end of the memory wait for the stream.
    #[inline]
    pub(super) fn record_use(&self, stream: &Stream) {
        if let Self::Block(block) = self {
            block.record_use(stream);
        }
    }

    pub(super) fn block(&self) -> Option<&Block> {
        match self {
            Self::Block(block) => Some(block),
            Self::Borrowed { .. } => None,
        }
    }
}

//! [`StorageMemory`]: the location of the bytes of a storage.

#[cfg(any(feature = "cudarc", feature = "dlpack"))]
use super::foreign_memory::ForeignMemory;
use core::ptr::NonNull;
use gpumem_pool::{Block, Device, GrowableBlock, MemoryKind, SpillableBlock, Stream};

/// The memory of a storage. Rare variants are boxed: every array is as large as the largest variant.
pub(super) enum StorageMemory {
    Block(Block),
    /// A block of a pool that spills: it has an address only while it is in device memory.
    Spillable(SpillableBlock),
    /// Device memory that grows and shrinks at its end, at the same address.
    Growable(Box<GrowableBlock>),
    /// The program's own host memory, inside a closure whose end waits for all streams ([`Device::with_host_memory`]).
    Borrowed {
        device: Device,
        address: u64,
        size_bytes: u64,
    },
    /// A tensor or slice of another library.
    #[cfg(any(feature = "cudarc", feature = "dlpack"))]
    Foreign(Box<ForeignMemory>),
}

impl StorageMemory {
    /// The address at which work is planned. Only a spillable block has another one when the work is queued.
    #[inline]
    pub(super) fn planned(&self) -> u64 {
        match self {
            Self::Block(block) => block.address(),
            Self::Spillable(block) => PLANNED | (block.number() % PLANNED_COUNT * PLANNED_BYTES),
            Self::Growable(block) => block.address(),
            Self::Borrowed { address, .. } => *address,
            #[cfg(any(feature = "cudarc", feature = "dlpack"))]
            Self::Foreign(foreign) => foreign.address,
        }
    }

    #[inline]
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Block(block) => block.size_bytes(),
            Self::Spillable(block) => block.size_bytes(),
            Self::Growable(block) => block.size_bytes(),
            Self::Borrowed { size_bytes, .. } => *size_bytes,
            #[cfg(any(feature = "cudarc", feature = "dlpack"))]
            Self::Foreign(foreign) => foreign.size_bytes,
        }
    }

    #[inline]
    pub(super) fn device(&self) -> &Device {
        if let Self::Block(block) = self { block.device() } else { self.device_of_other() }
    }

    #[cold]
    fn device_of_other(&self) -> &Device {
        match self {
            Self::Block(block) => block.device(),
            Self::Spillable(block) => block.device(),
            Self::Growable(block) => block.device(),
            Self::Borrowed { device, .. } => device,
            #[cfg(any(feature = "cudarc", feature = "dlpack"))]
            Self::Foreign(foreign) => &foreign.device,
        }
    }

    pub(super) fn kind(&self) -> MemoryKind {
        match self {
            Self::Block(block) => block.kind(),
            Self::Spillable(_) | Self::Growable(_) => MemoryKind::Device,
            Self::Borrowed { .. } => MemoryKind::Host,
            #[cfg(any(feature = "cudarc", feature = "dlpack"))]
            Self::Foreign(foreign) => foreign.kind,
        }
    }

    /// The name of the memory in errors.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Block(_) | Self::Spillable(_) => "a block",
            Self::Growable(_) => "memory that grows in place",
            Self::Borrowed { .. } => "host memory of the program",
            #[cfg(any(feature = "cudarc", feature = "dlpack"))]
            Self::Foreign(_) => "memory of another library",
        }
    }

    /// `None` for memory that the host cannot access, and for borrowed and foreign memory, whose owners access it.
    pub(super) fn host_ptr(&self) -> Option<NonNull<u8>> {
        self.block().and_then(Block::host_ptr)
    }

    /// Makes the end of the memory wait for the stream.
    #[inline]
    pub(super) fn record_use(&self, stream: &Stream) {
        match self {
            Self::Block(block) => block.record_use(stream),
            Self::Spillable(block) => block.note_use(stream, false),
            Self::Growable(block) => block.record_use(stream),
            Self::Borrowed { .. } => {}
            #[cfg(any(feature = "cudarc", feature = "dlpack"))]
            Self::Foreign(foreign) => foreign.record_use(stream),
        }
    }

    /// Keeps a block for the graph that the stream captures. Other memory is alive at each launch, which takes its array.
    pub(super) fn keep_for_graph(&self, stream: &Stream) {
        match self {
            Self::Growable(_) => {}
            Self::Spillable(block) => block.keep_for_graph(stream),
            memory => memory.record_use(stream),
        }
    }

    pub(super) fn block(&self) -> Option<&Block> {
        match self {
            Self::Block(block) => Some(block),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn spillable(&self) -> Option<&SpillableBlock> {
        match self {
            Self::Spillable(block) => Some(block),
            _ => None,
        }
    }
}

/// Spillable blocks are planned at addresses that no device has: a program that used one would fault. Blocks of up to 1 TiB do not overlap,
/// and all are aligned as blocks are.
const PLANNED: u64 = 1 << 62;
const PLANNED_BYTES: u64 = 1 << 40;
const PLANNED_COUNT: u64 = 1 << 20;

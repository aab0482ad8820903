//! [`Memory`]: the location of the bytes of a storage.

use core::ptr::NonNull;
use gpumem_pool::{Block, Device, GrowableBlock, MemoryKind, Stream};
use std::sync::{Mutex, PoisonError};

/// The memory of a storage. What few arrays have is boxed: every array is as large as the largest variant.
pub(super) enum Memory {
    Block(Block),
    /// Device memory that grows and shrinks at its end, at the same address.
    Growable(Box<GrowableBlock>),
    /// The program's own host memory, inside a closure whose end waits for all streams ([`Device::with_host_memory`]).
    Borrowed {
        device: Device,
        address: u64,
        size_bytes: u64,
    },
    Foreign(Box<ForeignMemory>),
}

/// Memory of another library, and its owner there.
pub(super) struct ForeignMemory {
    device: Device,
    address: u64,
    size_bytes: u64,
    kind: MemoryKind,
    /// The other library uses the memory again in the order of this stream.
    home: Stream,
    /// Other streams that have used it.
    users: Mutex<Vec<Stream>>,
    owner: Option<Box<dyn Send + Sync>>,
}

impl ForeignMemory {
    pub(super) fn new(
        device: Device,
        home: Stream,
        (address, size_bytes, kind): (u64, u64, MemoryKind),
        owner: Box<dyn Send + Sync>,
    ) -> Self {
        let users = Mutex::default();
        Self { device, address, size_bytes, kind, home, users, owner: Some(owner) }
    }

    fn record_use(&self, stream: &Stream) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.id() != self.home.id() && !users.iter().any(|user| user.id() == stream.id()) {
            users.push(stream.clone());
        }
    }
}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        let users = self.users.get_mut().unwrap_or_else(PoisonError::into_inner);
        let is_ordered = users.iter().all(|user| {
            let waits = self.home.wait_for_point_outside_captures(user.point());
            waits.is_ok_and(|waits| waits || self.home.wait_for(user).is_ok())
        });
        if !is_ordered {
            // The other library would reuse the memory too early, so it never gets it back.
            core::mem::forget(self.owner.take());
        }
    }
}

impl Memory {
    #[inline]
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Block(block) => block.address(),
            Self::Growable(block) => block.address(),
            Self::Borrowed { address, .. } => *address,
            Self::Foreign(foreign) => foreign.address,
        }
    }

    #[inline]
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Block(block) => block.size_bytes(),
            Self::Growable(block) => block.size_bytes(),
            Self::Borrowed { size_bytes, .. } => *size_bytes,
            Self::Foreign(foreign) => foreign.size_bytes,
        }
    }

    #[inline]
    pub(super) fn device(&self) -> &Device {
        match self {
            Self::Block(block) => block.device(),
            Self::Growable(block) => block.device(),
            Self::Borrowed { device, .. } => device,
            Self::Foreign(foreign) => &foreign.device,
        }
    }

    pub(super) fn kind(&self) -> MemoryKind {
        match self {
            Self::Block(block) => block.kind(),
            Self::Growable(_) => MemoryKind::Device,
            Self::Borrowed { .. } => MemoryKind::Host,
            Self::Foreign(foreign) => foreign.kind,
        }
    }

    /// The memory, as errors name it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Block(_) => "a block",
            Self::Growable(_) => "memory that grows in place",
            Self::Borrowed { .. } => "host memory of the program",
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
            Self::Growable(block) => block.record_use(stream),
            Self::Borrowed { .. } => {}
            Self::Foreign(foreign) => foreign.record_use(stream),
        }
    }

    /// Keeps a block for the graph that the stream captures. Other memory is alive at each launch, which takes its array.
    pub(super) fn keep_for_graph(&self, stream: &Stream) {
        match self {
            Self::Growable(_) => {}
            memory => memory.record_use(stream),
        }
    }

    pub(super) fn block(&self) -> Option<&Block> {
        match self {
            Self::Block(block) => Some(block),
            Self::Growable(_) | Self::Borrowed { .. } | Self::Foreign(_) => None,
        }
    }
}

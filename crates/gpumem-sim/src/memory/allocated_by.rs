//! [`AllocatedBy`]: the call that made an allocation, which determines how it may be freed and used.

use crate::base::handle::Handle;
use crate::report::AllocationKind;

/// The origin of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocatedBy {
    /// `cuMemAlloc`.
    Plain,
    /// A variable of a module.
    Variable,
    /// A memory pool.
    Pool(Handle),
    /// A pool of pinned host memory.
    PinnedPool(Handle),
    /// A pool of managed memory.
    ManagedPool(Handle),
    /// A second address of a pool's memory, of this instance or another: the pool that it was imported through.
    Imported(Handle),
    /// Plain memory of another process, opened by its handle.
    Opened,
    /// An allocation node of a graph.
    Graph,
    /// Pinned host memory of the driver.
    Host { flags: u32 },
    /// The program's own memory, pinned.
    Registered { flags: u32 },
    /// Managed memory, which host and devices share.
    Managed,
    /// A handle of virtual memory management, mapped at an address chosen by the program. One bit for each device that has been
    /// given access.
    Mapped { handle: Handle, devices: u64 },
}

impl AllocatedBy {
    /// False for memory that may have contents without a write of this program: variables, and memory of other processes.
    pub(crate) fn has_known_writes(self) -> bool {
        !matches!(self, Self::Variable | Self::Imported(_) | Self::Opened)
    }

    pub(crate) fn kind(self) -> AllocationKind {
        match self {
            Self::Plain | Self::Variable => AllocationKind::Device,
            Self::Pool(_) | Self::PinnedPool(_) | Self::ManagedPool(_) => AllocationKind::Pool,
            Self::Imported(_) | Self::Opened => AllocationKind::Imported,
            Self::Host { .. } => AllocationKind::Host,
            Self::Registered { .. } => AllocationKind::Registered,
            Self::Graph => AllocationKind::Graph,
            Self::Managed => AllocationKind::Managed,
            Self::Mapped { .. } => AllocationKind::Mapped,
        }
    }

    pub(crate) fn is_host(self) -> bool {
        matches!(self, Self::Host { .. } | Self::Registered { .. } | Self::PinnedPool(_))
    }

    /// True if devices may only read it.
    pub(crate) fn is_read_only(self) -> bool {
        matches!(self, Self::Registered { flags } if flags & REGISTERED_READ_ONLY != 0)
    }

    pub(crate) fn is_managed(self) -> bool {
        matches!(self, Self::Managed | Self::ManagedPool(_))
    }

    /// True if it is mapped memory to which a device has access.
    pub(crate) fn is_open_to(self, device: usize) -> bool {
        matches!(self, Self::Mapped { devices, .. } if devices >> device & 1 == 1)
    }

    /// The pool that it was allocated from.
    pub(crate) fn pool(self) -> Option<Handle> {
        match self {
            Self::Pool(pool) | Self::PinnedPool(pool) | Self::ManagedPool(pool) => Some(pool),
            _ => None,
        }
    }
}

/// The flag of `cuMemHostRegister` for memory that devices only read.
const REGISTERED_READ_ONLY: u32 = 8;

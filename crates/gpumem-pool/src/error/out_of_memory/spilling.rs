//! [`SpillReport`]: what a pool that spills has moved for a refused request, and what stayed.

use core::fmt;

/// The arrays that a pool with [`PoolBuilder::spill`](crate::PoolBuilder::spill) has moved to the host, and the reasons for which others
/// stayed in device memory; see [`OutOfMemory::spilling`](crate::OutOfMemory::spilling).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpillReport {
    /// Bytes of arrays whose contents are on the host alone.
    pub away_bytes: u64,
    /// The limit of the host memory.
    pub host_limit_bytes: u64,
    /// The bytes of host memory that contents take, copies of contents on the device included.
    pub host_in_use_bytes: u64,
    /// The file that contents move on to, if there is one.
    pub file: Option<SpillFileReport>,
    /// The arrays that stayed, by reason. Each array counts once, for the first of its reasons in the order of [`KeptBy`].
    pub kept: Vec<KeptArrays>,
    /// The bytes of all arrays that the refused operation uses, those on the host included: they have to be in device memory together. 0 for
    /// a request that is not for the return of an array.
    pub operation_bytes: u64,
    /// Bytes of the memory in use that cannot move: blocks of the program and of other libraries, and arrays of less than 64 KiB, of graphs,
    /// or that grow.
    pub other_bytes: u64,
}

/// A file that contents move to when the host memory is full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpillFileReport {
    /// The limit of the file.
    pub limit_bytes: u64,
    /// The bytes of contents in it.
    pub in_use_bytes: u64,
    /// Why it could not be written last; `None` if it could.
    pub failure: Option<String>,
}

/// Arrays that stayed in device memory for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeptArrays {
    /// The reason.
    pub by: KeptBy,
    /// Their bytes.
    pub bytes: u64,
    /// Their number.
    pub array_count: u64,
}

/// Why an array stays in device memory although its pool spills. The first four are for as long as the array exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[repr(u8)]
#[non_exhaustive]
pub enum KeptBy {
    /// The program has asked for its address.
    Address,
    /// Another device has used it.
    PeerDevice,
    /// A graph was captured with its address.
    Graph,
    /// It is exported as a tensor of DLPack.
    Dlpack,
    /// It is lent to cudarc.
    Cudarc,
    /// It is lent by a guard, such as that of `read_on`, or a use in C has begun.
    Guard,
    /// A copy from or to host memory is being queued.
    HostCopy,
    /// The operation that was refused uses it: its arrays have to be in device memory together.
    Operation,
    /// The limit of the host memory is reached.
    HostLimit,
    /// The host has refused to pin memory.
    HostRefusal,
    /// Nothing: it can still move, but its memory would not have served the request, or another thread used it.
    Nothing,
}

impl KeptBy {
    /// The reasons that are holders of an address.
    pub(crate) const HOLDER_COUNT: usize = Self::HostCopy as usize + 1;

    /// All reasons, by their numbers. The holders come first.
    pub(crate) const ALL: [Self; 11] = [
        Self::Address,
        Self::PeerDevice,
        Self::Graph,
        Self::Dlpack,
        Self::Cudarc,
        Self::Guard,
        Self::HostCopy,
        Self::Operation,
        Self::HostLimit,
        Self::HostRefusal,
        Self::Nothing,
    ];

    /// The name in a table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::PeerDevice => "other device",
            Self::Graph => "graph",
            Self::Dlpack => "DLPack",
            Self::Cudarc => "cudarc",
            Self::Guard => "guard",
            Self::HostCopy => "copy",
            Self::Operation => "operation",
            Self::HostLimit | Self::HostRefusal => "no host room",
            Self::Nothing => "movable",
        }
    }
}

impl fmt::Display for KeptBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "the program has asked for the address",
            Self::PeerDevice => "another device has used it",
            Self::Graph => "a graph was captured with its address",
            Self::Dlpack => "exported as a tensor of DLPack",
            Self::Cudarc => "lent to cudarc",
            Self::Guard => "lent by a guard (read_on, write_on)",
            Self::HostCopy => "copied from or to host memory",
            Self::Operation => "used by this operation",
            Self::HostLimit => "the limit of host memory is reached",
            Self::HostRefusal => "the host has refused to pin memory",
            Self::Nothing => "could still move",
        })
    }
}

impl SpillReport {
    /// Adds an array that stayed.
    pub(crate) fn add(&mut self, by: KeptBy, bytes: u64) {
        match self.kept.iter_mut().find(|kept| kept.by == by) {
            Some(kept) => {
                kept.bytes = kept.bytes.saturating_add(bytes);
                kept.array_count += 1;
            }
            None => {
                self.kept.push(KeptArrays { by, bytes, array_count: 1 });
                self.kept.sort_by_key(|kept| kept.by);
            }
        }
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept.iter().map(|kept| kept.bytes).fold(0, u64::saturating_add)
    }
}

//! [`BackendKind`]: the source of a pool's memory.

use crate::config::text::names;

/// Uses of physical memory other than this process's kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HandleUse {
    pub(crate) exportable: bool,
    pub(crate) rdma: bool,
}

#[cfg(feature = "backend-caching")]
impl HandleUse {
    /// A separate bit for each use.
    pub(crate) fn bit(self) -> u8 {
        1 << (u8::from(self.exportable) | u8::from(self.rdma) << 1)
    }
}

/// The source of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum BackendKind {
    /// A heap over the driver's virtual memory, or over plain segments if that is missing, with a cache for each thread. Feature
    /// `backend-caching`.
    Caching,
    /// The driver's stream-ordered pool. Feature `backend-native`.
    Native,
    /// `cuMemAlloc` and `cuMemFree` without caching, for debugging tools and for drivers without pools. Freeing waits
    /// for the device.
    None,
}

names!(BackendKind of "backend": Caching = "caching", Native = "native" | "cudamallocasync", None = "none");

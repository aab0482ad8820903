//! [`BackendKind`]: the source of a pool's memory.

use crate::config::ConfigError;
use core::fmt;
use core::str::FromStr;

/// Uses of physical memory outside this process's own kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HandleUse {
    pub(crate) exportable: bool,
    pub(crate) rdma: bool,
}

/// The source of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum BackendKind {
    /// A heap over the driver's virtual memory, or over plain segments where that is missing, with a cache for each
    /// thread. Feature `backend-caching`.
    Caching,
    /// The driver's stream-ordered pool. Feature `backend-native`.
    Native,
    /// `cuMemAlloc` and `cuMemFree` without caching, for debugging tools and for drivers without pools. Freeing waits
    /// for the device.
    None,
}

impl FromStr for BackendKind {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        match name.trim() {
            "caching" => Ok(Self::Caching),
            "native" => Ok(Self::Native),
            "none" => Ok(Self::None),
            other => Err(ConfigError::UnknownBackend { name: other.into() }),
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Caching => "caching",
            Self::Native => "native",
            Self::None => "none",
        })
    }
}

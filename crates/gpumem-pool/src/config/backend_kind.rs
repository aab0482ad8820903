//! [`BackendKind`]: where a pool's bytes come from.

use crate::config::ConfigError;
use core::fmt;
use core::str::FromStr;

/// What physical memory is made for, beside being used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HandleUse {
    pub(crate) exportable: bool,
    pub(crate) rdma: bool,
}

/// Where a pool's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum BackendKind {
    /// Our own heap over the driver's virtual memory, or over plain segments where there is none, with caches that each
    /// thread has to itself. Feature `backend-caching`.
    Caching,
    /// The driver's own stream-ordered pool. Feature `backend-native`.
    Native,
    /// `cuMemAlloc` and `cuMemFree`, with nothing kept: for debugging tools, and for drivers without pools. Freeing
    /// waits for the device.
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

//! [`Spill`]: whether and how far the contents of arrays may move out of device memory.

use crate::config::{ConfigError, Limit};
use core::fmt;
use core::str::FromStr;

/// Selects where the contents of arrays move while device memory is short. By default they do not move, and the request is refused.
///
/// ```
/// use gpumem_pool::{Device, Pool, Spill};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).hard_limit("1GiB").spill("host:4GiB".parse::<Spill>()?).build()?;
/// # drop(pool);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spill {
    /// Contents stay where they are.
    #[default]
    Off,
    /// Contents move to pinned host memory.
    Host {
        /// The limit of the pinned memory, in bytes.
        limit_bytes: u64,
    },
}

impl Spill {
    /// Contents move to at most `limit_bytes` bytes of pinned host memory.
    #[must_use]
    pub const fn to_host(limit_bytes: u64) -> Self {
        Self::Host { limit_bytes }
    }
}

const FORMS: &str = "`off`, or `host:` with the bytes of host memory (host:32GiB)";

impl FromStr for Spill {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let refused = || ConfigError::bad_value("spill", text, String::new(), FORMS);
        let lower = text.trim().to_lowercase();
        if matches!(lower.as_str(), "off" | "false" | "0") {
            return Ok(Self::Off);
        }
        match lower.strip_prefix("host:").map(str::parse) {
            Some(Ok(Limit::Bytes(limit_bytes))) if limit_bytes > 0 => Ok(Self::Host { limit_bytes }),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad("off"),
            Self::Host { limit_bytes } => write!(f, "host:{limit_bytes}"),
        }
    }
}

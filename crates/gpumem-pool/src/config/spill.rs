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
        /// Memory of another device that contents move to first.
        neighbour: Option<SpillNeighbour>,
    },
}

/// Memory of another device that contents may move to. It is several times as fast as host memory where a link joins the two devices. If
/// the other device is short of memory, the contents make way to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillNeighbour {
    /// The driver's number of the other device.
    pub ordinal: u32,
    /// The limit of the memory there, in bytes.
    pub limit_bytes: u64,
}

impl Spill {
    /// Contents move to at most `limit_bytes` bytes of pinned host memory.
    #[must_use]
    pub const fn to_host(limit_bytes: u64) -> Self {
        Self::Host { limit_bytes, neighbour: None }
    }

    /// Contents move to at most `limit_bytes` bytes of another device's memory first, and to the host only beyond that.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Spill};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new().devices(2))?, 0)?;
    /// let spill = Spill::to_host(4 << 30).by_neighbour(1, 1 << 30);
    /// assert_eq!("host:4GiB+device1:1GiB".parse::<Spill>()?, spill);
    /// let pool = Pool::builder(&device).hard_limit("1GiB").spill(spill).build()?;
    /// # drop(pool);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn by_neighbour(self, ordinal: u32, limit_bytes: u64) -> Self {
        match self {
            Self::Off => Self::Off,
            Self::Host { limit_bytes: host_bytes, .. } => Self::Host {
                limit_bytes: host_bytes,
                neighbour: Some(SpillNeighbour { ordinal, limit_bytes }),
            },
        }
    }
}

impl SpillNeighbour {
    /// The error for a neighbour that is the pool's own device.
    pub(crate) fn own_device(self) -> ConfigError {
        let reason = format!(": device {} is the pool's own", self.ordinal);
        ConfigError::bad_value(
            "spill",
            &format!("device{}:{}", self.ordinal, self.limit_bytes),
            reason,
            FORMS,
        )
    }
}

const FORMS: &str = "`off`, or `host:` with the bytes of host memory (host:32GiB), and before that `device1:` with bytes of another device's \
    memory (host:32GiB+device1:16GiB)";

impl FromStr for Spill {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let refused = || ConfigError::bad_value("spill", text, String::new(), FORMS);
        let lower = text.trim().to_lowercase();
        if matches!(lower.as_str(), "off" | "false" | "0") {
            return Ok(Self::Off);
        }
        let parts = lower.strip_prefix("host:").ok_or_else(refused)?;
        let (host, neighbour) =
            parts.split_once('+').map_or((parts, None), |(host, rest)| (host, Some(rest)));
        let spill = Self::to_host(bytes_in(host).ok_or_else(refused)?);
        let Some(neighbour) = neighbour else { return Ok(spill) };
        let (ordinal, bytes) =
            neighbour.strip_prefix("device").and_then(|rest| rest.split_once(':')).ok_or_else(refused)?;
        let ordinal = ordinal.parse().map_err(|_| refused())?;
        Ok(spill.by_neighbour(ordinal, bytes_in(bytes).ok_or_else(refused)?))
    }
}

fn bytes_in(text: &str) -> Option<u64> {
    match text.parse() {
        Ok(Limit::Bytes(bytes)) if bytes > 0 => Some(bytes),
        _ => None,
    }
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad("off"),
            Self::Host { limit_bytes, neighbour: None } => write!(f, "host:{limit_bytes}"),
            Self::Host { limit_bytes, neighbour: Some(other) } => {
                write!(f, "host:{limit_bytes}+device{}:{}", other.ordinal, other.limit_bytes)
            }
        }
    }
}

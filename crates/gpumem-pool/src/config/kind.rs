//! [`MemoryKind`]: whose memory a pool hands out, and what the host may do with it.

use crate::config::ConfigError;
use core::fmt;
use core::str::FromStr;

/// Whose memory a pool hands out. Each pool has one kind, and its limits are for that alone.
///
/// ```
/// use gpumem_pool::{Device, MemoryKind, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).kind(MemoryKind::Host).hard_limit(64 << 20).build()?;
/// let stream = Stream::new(&device)?;
///
/// let block = pool.alloc(4096, &stream)?;
/// let host = block.host_ptr().ok_or("pinned memory is the host's too")?;
/// // SAFETY: the block has these bytes to itself, and no work uses them yet.
/// unsafe { host.write_bytes(7, 4096) };
/// // … queue work that uses `block.address()` on `stream` …
/// assert_eq!("unified".parse::<MemoryKind>()?, MemoryKind::Unified);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum MemoryKind {
    /// The device's own. Only work on streams can use it.
    #[default]
    Device,
    /// Managed memory: one address for the host and all devices, and pages that move to whoever uses them.
    Unified,
    /// Pinned host memory, which copies are fastest from and to, and which devices can use where it is.
    ///
    /// Of the backend `native` it is the host's alone to the driver's copies, though kernels use it: name it as the host's end
    /// of a copy, or let the driver look at the addresses (`cuMemcpyAsync`), as the array layer does.
    Host,
}

impl MemoryKind {
    /// Whether the host may follow its addresses. Such memory is handed out again only when every earlier use of it is
    /// complete: the host's next access is in no stream's order.
    #[must_use]
    pub fn is_host_accessible(self) -> bool {
        self != Self::Device
    }

    /// Whether memory of this kind that is released makes room for a kind which is short. Unified memory counts as the
    /// device's: its pages may be there.
    pub(crate) fn helps(self, short: Self) -> bool {
        (self == Self::Host) == (short == Self::Host)
    }
}

impl FromStr for MemoryKind {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        match name.trim() {
            "device" => Ok(Self::Device),
            "unified" => Ok(Self::Unified),
            "host" => Ok(Self::Host),
            other => Err(ConfigError::UnknownKind { name: other.into() }),
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Device => "device",
            Self::Unified => "unified",
            Self::Host => "host",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kinds_parse_as_they_print() {
        for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Host] {
            assert_eq!(kind.to_string().parse::<MemoryKind>().unwrap(), kind);
        }
        assert!("managed".parse::<MemoryKind>().unwrap_err().to_string().contains("unified"));
    }
}

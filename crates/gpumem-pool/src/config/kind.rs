//! [`MemoryKind`]: the kind of memory that a pool allocates, and its use by the host.

use crate::config::text::names;

/// The kind of memory that a pool allocates. Each pool has one kind, and its limits apply only to that kind.
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
    /// Device memory. Only work on streams can access it.
    #[default]
    Device,
    /// Managed memory: one address for the host and all devices. Pages migrate to the processor that accesses them.
    Unified,
    /// Pinned host memory: the fastest source and destination of copies. Devices can access it in place.
    Host,
}

impl MemoryKind {
    /// True if the host may dereference its addresses. Such memory is reused only when every earlier use is complete, because no stream
    /// orders the host's next access.
    #[must_use]
    pub fn is_host_accessible(self) -> bool {
        self != Self::Device
    }

    /// True if releasing memory of this kind makes room for the kind `short`. Unified memory counts as device memory, because its pages may
    /// be on the device.
    pub(crate) fn helps(self, short: Self) -> bool {
        (self == Self::Host) == (short == Self::Host)
    }
}

names!(MemoryKind of "kind": Device = "device", Unified = "unified", Host = "host");

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

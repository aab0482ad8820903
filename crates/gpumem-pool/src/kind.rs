//! [`MemoryKind`]: whose memory a pool hands out, and what the host may do with it.

use crate::block::Block;
use crate::device::Device;
use crate::error::PoolError;
use crate::state::StateRef;
use core::fmt;
use core::ptr::NonNull;
use core::str::FromStr;
use gpumem_sys::types::CUdevice_attribute;

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

    /// What pools of this kind need of a device. Says whether the host may use their memory while the device works.
    pub(crate) fn check_supported(self, device: &Device) -> Result<bool, PoolError> {
        let unsupported = |reason: String| PoolError::KindUnsupported { kind: self, reason };
        match self {
            Self::Device => Ok(false),
            Self::Host => Ok(true),
            Self::Unified => {
                let has = |attribute| Ok::<_, PoolError>(device.attribute(attribute)? != 0);
                if device.driver().table().cuMemAllocManaged.is_none()
                    || !has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?
                {
                    return Err(unsupported(format!("{device} has no managed memory")));
                }
                has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)
            }
        }
    }
}

impl FromStr for MemoryKind {
    type Err = PoolError;

    fn from_str(name: &str) -> Result<Self, PoolError> {
        match name.trim() {
            "device" => Ok(Self::Device),
            "unified" => Ok(Self::Unified),
            "host" => Ok(Self::Host),
            other => Err(PoolError::UnknownKind { name: other.into() }),
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

impl Block {
    /// Whose memory it is. Of a block that another pool lent ([`Fallback`](crate::adaptor::Fallback)), that pool's kind.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.origin().setup().kind
    }

    /// The pool whose backend has its memory.
    pub(crate) fn origin(&self) -> StateRef {
        self.state().behind(self.piece()).0
    }

    /// Where the host finds its bytes, at the address that the device has for them too. Nothing for the device's own
    /// memory and for an empty block, and for unified memory where host and device can't use it at once
    /// (`CONCURRENT_MANAGED_ACCESS` is 0).
    ///
    /// A block is the host's from the start: what used its memory before is complete. Whoever follows the pointer makes
    /// sure that the block is alive, and that work which uses it is waited for: before reading what it writes, and before
    /// writing what it uses. An adaptor that fills blocks does so as work on the stream.
    #[must_use]
    pub fn host_ptr(&self) -> Option<NonNull<u8>> {
        let address = if self.origin().setup().is_for_host { self.address() } else { 0 };
        NonNull::new(core::ptr::with_exposed_provenance_mut(address as usize))
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

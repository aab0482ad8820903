//! Host memory that stands in for a device's memory: reserved whole, paid for page by page as it is touched.

use super::codes::{Answer, OUT_OF_MEMORY};
use memmap2::{MmapMut, MmapOptions};

/// One mapping. Its bytes start as zeros and go back to the system with it.
#[derive(Debug)]
pub(super) struct Backing {
    _map: MmapMut,
    bytes: Bytes,
}

/// Where some bytes begin. Says nothing about their number or whether they are still there: [`super::memory`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) *mut u8);

// SAFETY: an address may be sent anywhere; only the owner of the instance's lock follows it.
unsafe impl Send for Bytes {}

impl Bytes {
    /// The address `offset_bytes` further on.
    pub(super) fn at(self, offset_bytes: u64) -> Self {
        Self(self.0.wrapping_add(offset_bytes as usize))
    }
}

impl Backing {
    /// # Errors
    ///
    /// `OUT_OF_MEMORY` where the host has no room, not even for the addresses.
    pub(super) fn new(size_bytes: u64) -> Answer<Self> {
        let len = usize::try_from(size_bytes).map_err(|_| OUT_OF_MEMORY)?;
        // Without this the system refuses a mapping larger than its memory even if little of it is ever touched.
        let mut map = MmapOptions::new().len(len).no_reserve_swap().map_anon().map_err(|_| OUT_OF_MEMORY)?;
        Ok(Self { bytes: Bytes(map.as_mut_ptr()), _map: map })
    }

    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }
}

//! Host memory that stands in for a device's memory: reserved whole, paid for page by page as it is touched.

#[allow(unsafe_code)]
pub(crate) mod pages;
pub(crate) mod ticket;

use crate::backing::pages::PageFile;
use crate::base::codes::{Answer, OUT_OF_MEMORY};
#[cfg(not(miri))]
use memmap2::MmapMut as Map;
#[cfg(not(miri))]
use memmap2::MmapOptions;
use std::collections::BTreeMap;

/// Miri knows no mappings of this kind, but an allocation of zeros is as good to it.
#[cfg(miri)]
#[derive(Debug)]
struct Map(*mut u8, std::alloc::Layout);

/// One mapping. Its bytes start as zeros and go back to the system with it.
#[derive(Debug)]
pub(crate) struct Backing {
    _map: Map,
    size_bytes: u64,
    bytes: Bytes,
    /// Others may have it too.
    is_shared: bool,
}

/// A few mappings that a device has no use for now. Taking pages from the system costs far more than anything else
/// here, and a pool whose threshold is 0 would do so after every synchronisation. What is taken again still holds its
/// old bytes, as on a real device.
#[derive(Default)]
pub(crate) struct Spares {
    by_size: BTreeMap<u64, Vec<Backing>>,
    kept_bytes: u64,
}

impl Spares {
    /// A mapping of this size, used before or new.
    ///
    /// # Errors
    ///
    /// As [`Backing::new`].
    pub(crate) fn take(&mut self, size_bytes: u64) -> Answer<Backing> {
        match self.by_size.get_mut(&size_bytes).and_then(Vec::pop) {
            Some(backing) => {
                self.kept_bytes -= size_bytes;
                Ok(backing)
            }
            None => Backing::new(size_bytes),
        }
    }

    /// Keeps a mapping, or gives it back to the system if enough are kept, or if others may have it too.
    pub(crate) fn give(&mut self, backing: Backing) {
        let size_bytes = backing.size_bytes;
        if !backing.is_shared && self.kept_bytes + size_bytes <= SPARE_BYTES_MAX {
            self.kept_bytes += size_bytes;
            self.by_size.entry(size_bytes).or_default().push(backing);
        }
    }
}

/// Where some bytes begin. Says nothing about their number or whether they are still there: [`crate::memory`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) *mut u8);

// SAFETY: an address is a number, which may be sent anywhere. Who follows it says why it may.
unsafe impl Send for Bytes {}

impl Bytes {
    /// The address `offset_bytes` further on.
    pub(crate) fn at(self, offset_bytes: u64) -> Self {
        Self(self.0.wrapping_add(offset_bytes as usize))
    }
}

impl Backing {
    /// # Errors
    ///
    /// `OUT_OF_MEMORY` where the host has no room, not even for the addresses.
    pub(crate) fn new(size_bytes: u64) -> Answer<Self> {
        let len = usize::try_from(size_bytes).map_err(|_| OUT_OF_MEMORY)?;
        let mut map = map(len)?;
        Ok(Self { bytes: Bytes(map.as_mut_ptr()), _map: map, size_bytes, is_shared: false })
    }

    /// A piece of a file that others may have as well.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(crate) fn of_file(mut map: Map, size_bytes: u64) -> Self {
        Self { bytes: Bytes(map.as_mut_ptr()), _map: map, size_bytes, is_shared: true }
    }

    /// Makes it the memory of a file, where it is, with its bytes.
    pub(crate) fn share(&mut self, file: &PageFile) -> Answer<()> {
        // SAFETY: the mapping is this one's, whole. Work and kernels follow its addresses only while they borrow the
        // machine, which the caller has to itself.
        unsafe { file.take_over(self.bytes, self.size_bytes)? };
        self.is_shared = true;
        Ok(())
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }
}

/// Without the reservation taken off, the system refuses more than its memory even if little is ever touched.
#[cfg(not(miri))]
fn map(len: usize) -> Answer<Map> {
    MmapOptions::new().len(len).no_reserve_swap().map_anon().map_err(|_| OUT_OF_MEMORY)
}

#[cfg(miri)]
fn map(len: usize) -> Answer<Map> {
    const PAGE_BYTES: usize = 4096;
    let layout = std::alloc::Layout::from_size_align(len.max(1), PAGE_BYTES).map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: the size is not zero.
    Ok(Map(unsafe { std::alloc::alloc_zeroed(layout) }, layout))
}

#[cfg(miri)]
impl Map {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0
    }
}

#[cfg(miri)]
impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout and is dropped once.
        unsafe { std::alloc::dealloc(self.0, self.1) }
    }
}

// SAFETY: it owns its allocation, which any thread may use and give back.
#[cfg(miri)]
unsafe impl Send for Map {}

/// The host memory that one device may keep without a use.
const SPARE_BYTES_MAX: u64 = 128 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "hundreds of MiB, all real there")]
    fn a_mapping_is_taken_again_and_only_so_many_are_kept() {
        let mut spares = Spares::default();
        let backing = spares.take(64 << 20).unwrap();
        let bytes = backing.bytes();
        spares.give(backing);
        assert_ne!(spares.take(2 << 20).unwrap().bytes(), bytes);
        assert_eq!(spares.take(64 << 20).unwrap().bytes(), bytes);
        (0..9).map(|_| Backing::new(32 << 20).unwrap()).for_each(|backing| spares.give(backing));
        assert_eq!(spares.kept_bytes, SPARE_BYTES_MAX);
    }
}

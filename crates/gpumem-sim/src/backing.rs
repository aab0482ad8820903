//! Host memory that represents a device's memory: reserved as a whole, and committed page by page on first use.

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

/// Miri does not support such mappings; an allocation of zeros has the same effect.
#[cfg(miri)]
#[derive(Debug)]
struct Map(*mut u8, std::alloc::Layout);

/// One mapping. Its bytes are zeros at first. Its drop returns it to the system.
#[derive(Debug)]
pub(crate) struct Backing {
    _map: Map,
    size_bytes: u64,
    bytes: Bytes,
    /// True if other processes may have the mapping's file.
    is_shared: bool,
}

/// Mappings that are kept for reuse. To get pages from the system is by far the most expensive operation of this crate, and a pool with
/// the threshold 0 would do it after every synchronisation. A reused mapping still has its old bytes, like memory of a real device.
#[derive(Default)]
pub(crate) struct Spares {
    by_size: BTreeMap<u64, Vec<Backing>>,
    kept_bytes: u64,
}

impl Spares {
    /// A mapping of this size, reused or new.
    ///
    /// # Errors
    ///
    /// The code of [`Backing::new`].
    pub(crate) fn take(&mut self, size_bytes: u64) -> Answer<Backing> {
        match self.by_size.get_mut(&size_bytes).and_then(Vec::pop) {
            Some(backing) => {
                self.kept_bytes -= size_bytes;
                Ok(backing)
            }
            None => Backing::new(size_bytes),
        }
    }

    /// Keeps a mapping for reuse. Returns it to the system if enough are kept, or if other processes may have its file.
    pub(crate) fn give(&mut self, backing: Backing) {
        let size_bytes = backing.size_bytes;
        if !backing.is_shared && self.kept_bytes + size_bytes <= SPARE_BYTES_MAX {
            self.kept_bytes += size_bytes;
            self.by_size.entry(size_bytes).or_default().push(backing);
        }
    }
}

/// The address of some bytes. Their number and lifetime are recorded in [`crate::memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) *mut u8);

// SAFETY: an address is a number, which any thread may have. Code that dereferences it states why it may.
unsafe impl Send for Bytes {}

impl Bytes {
    /// The address plus `offset_bytes`.
    pub(crate) fn at(self, offset_bytes: u64) -> Self {
        Self(self.0.wrapping_add(offset_bytes as usize))
    }
}

impl Backing {
    /// # Errors
    ///
    /// `OUT_OF_MEMORY` if the host has no memory or no addresses.
    pub(crate) fn new(size_bytes: u64) -> Answer<Self> {
        let len = usize::try_from(size_bytes).map_err(|_| OUT_OF_MEMORY)?;
        let mut map = map(len)?;
        Ok(Self { bytes: Bytes(map.as_mut_ptr()), _map: map, size_bytes, is_shared: false })
    }

    /// Maps a part of a file that other processes may have as well.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(crate) fn of_file(mut map: Map, size_bytes: u64) -> Self {
        Self { bytes: Bytes(map.as_mut_ptr()), _map: map, size_bytes, is_shared: true }
    }

    /// Replaces the mapping by a file with the same bytes, at the same address.
    pub(crate) fn share(&mut self, file: &PageFile) -> Answer<()> {
        // SAFETY: this object owns the whole mapping. Work and kernels dereference its addresses only while they borrow the
        // machine, which the caller has exclusively.
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

/// Does not reserve swap: otherwise the system refuses mappings larger than its memory, even if few pages are used.
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

// SAFETY: it owns its allocation, which any thread may use and free.
#[cfg(miri)]
unsafe impl Send for Map {}

/// The maximum of unused host memory that is kept for each device.
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

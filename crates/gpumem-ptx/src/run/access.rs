//! Accesses to global, shared and local memory and to parameters, one lane at a time.

use crate::fault::Mistake;
use crate::memory::{Region, get, set};
use crate::program::{Access, LOCAL_WINDOW, Memory, PARAMETER_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::run::Run;
use core::cell::Cell;
use core::ops::Range;

/// The bytes that one access of the program touched without gaps.
#[derive(Clone, Copy, Default)]
pub(crate) struct SiteRange {
    start: u64,
    end: u64,
    pub(crate) is_write: bool,
}

impl SiteRange {
    pub(crate) fn range(self) -> Range<u64> {
        self.start..self.end
    }
}

/// The memory of a thread that is accessed beside the device's.
pub(crate) struct ThreadMemory<'b> {
    pub(crate) shared: &'b [Cell<u8>],
    pub(crate) local: &'b [Cell<u8>],
    /// The beginning of the frame in local memory.
    pub(crate) frame: u64,
}

type Found<'c> = Result<&'c [Cell<u8>], Mistake>;

impl<'r> Run<'r> {
    /// The cells of an access at an address.
    #[inline]
    pub(crate) fn cells<'c>(
        &mut self,
        access: &Access,
        address: u64,
        thread: &ThreadMemory<'c>,
        is_write: bool,
    ) -> Found<'c>
    where
        'r: 'c,
    {
        let size_bytes = u64::from(access.bytes) * u64::from(access.count);
        let (memory, address) = match access.space {
            Memory::Generic => by_window(address),
            Memory::Frame => (Memory::Local, address.wrapping_add(thread.frame)),
            other => (other, address),
        };
        if address & (size_bytes - 1) != 0 {
            return Err(Mistake::Misaligned { address, size_bytes, is_write });
        }
        match memory {
            Memory::Shared => within("shared", thread.shared, address, size_bytes, is_write),
            Memory::Local | Memory::Frame => within("local", thread.local, address, size_bytes, is_write),
            _ => self.global(address, size_bytes, is_write, access.site),
        }
    }

    #[inline]
    fn global(&mut self, address: u64, size_bytes: u64, is_write: bool, site: u32) -> Found<'r> {
        let found = match self.regions.get(self.last) {
            Some(region) if holds(region, address, size_bytes) && (region.is_writable || !is_write) => {
                *region
            }
            _ => self.fetch(address, size_bytes, is_write)?,
        };
        let site = &mut self.sites[site as usize];
        if address == site.end {
            site.end += size_bytes;
        } else if address < site.start || address + size_bytes > site.end {
            let ended =
                core::mem::replace(site, SiteRange { start: address, end: address + size_bytes, is_write });
            if ended.is_write { &mut self.writes } else { &mut self.reads }.add(ended.range());
        }
        site.is_write = is_write;
        let start = (address - found.start) as usize;
        Ok(&found.cells[start..start + size_bytes as usize])
    }

    /// Finds the region of an address among the known ones, or asks the memory for it.
    #[cold]
    fn fetch(&mut self, address: u64, size_bytes: u64, is_write: bool) -> Result<Region<'r>, Mistake> {
        let index = self.regions.partition_point(|region| region.start <= address);
        let fits =
            |region: &Region<'r>| holds(region, address, size_bytes) && (region.is_writable || !is_write);
        if index > 0 && fits(&self.regions[index - 1]) {
            self.last = index - 1;
            return Ok(self.regions[self.last]);
        }
        let is_range = address.checked_add(size_bytes).is_some();
        let region =
            is_range.then(|| self.memory.region(address, size_bytes, is_write)).flatten().filter(fits);
        let region = region.ok_or(Mistake::Refused { address, size_bytes, is_write })?;
        let index = self.regions.partition_point(|known| known.start <= region.start);
        self.regions.insert(index, region);
        self.last = index;
        Ok(region)
    }

    /// Reads the parameters of the kernel.
    pub(crate) fn parameter(&self, access: &Access, address: u64, element: u8) -> Result<u64, Mistake> {
        let size_bytes = u64::from(access.bytes);
        let offset_bytes = address.wrapping_add(u64::from(element) * size_bytes);
        let bytes = usize::try_from(offset_bytes).ok().and_then(|start| self.launch.parameters.get(start..));
        let bytes = bytes.and_then(|bytes| bytes.get(..size_bytes as usize)).ok_or(Mistake::OutOfBounds {
            space: "parameter",
            offset_bytes,
            size_bytes,
            limit_bytes: self.launch.parameters.len() as u64,
            is_write: false,
        })?;
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

fn holds(region: &Region<'_>, address: u64, size_bytes: u64) -> bool {
    let offset_bytes = address.wrapping_sub(region.start);
    let len = region.cells.len() as u64;
    offset_bytes < len && len - offset_bytes >= size_bytes
}

/// The memory that a generic address names, and the address there.
pub(crate) fn by_window(address: u64) -> (Memory, u64) {
    if address.wrapping_sub(SHARED_WINDOW) < WINDOW_BYTES {
        (Memory::Shared, address - SHARED_WINDOW)
    } else if address.wrapping_sub(LOCAL_WINDOW) < WINDOW_BYTES {
        (Memory::Local, address - LOCAL_WINDOW)
    } else if address.wrapping_sub(PARAMETER_WINDOW) < WINDOW_BYTES {
        (Memory::Parameters, address - PARAMETER_WINDOW)
    } else {
        (Memory::Global, address)
    }
}

#[inline]
fn within<'c>(
    space: &'static str,
    cells: &'c [Cell<u8>],
    offset_bytes: u64,
    size_bytes: u64,
    is_write: bool,
) -> Found<'c> {
    let limit_bytes = cells.len() as u64;
    if offset_bytes < limit_bytes && size_bytes <= limit_bytes - offset_bytes {
        let start = offset_bytes as usize;
        Ok(&cells[start..start + size_bytes as usize])
    } else {
        Err(Mistake::OutOfBounds { space, offset_bytes, size_bytes, limit_bytes, is_write })
    }
}

/// The element of this number among the cells of an access.
pub(crate) fn element(cells: &[Cell<u8>], index: usize, bytes: u8) -> u64 {
    let bytes = usize::from(bytes);
    get(&cells[index * bytes..(index + 1) * bytes])
}

/// Writes the element of this number.
pub(crate) fn set_element(cells: &[Cell<u8>], index: usize, bytes: u8, value: u64) {
    let bytes = usize::from(bytes);
    set(&cells[index * bytes..(index + 1) * bytes], value);
}

//! Accesses to global, shared and local memory and to parameters, one lane at a time.

use crate::check::{Noted, Touch};
use crate::fault::Mistake;
use crate::memory::{Region, get, set};
use crate::number::Lanes;
use crate::program::{Access, LOCAL_WINDOW, Memory, PARAMETER_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::run::Run;
use core::cell::Cell;
use core::ops::Range;

/// The bytes that one access of the program touched without gaps.
#[derive(Clone, Copy, Default)]
pub(crate) struct SiteRange {
    start: u64,
    end: u64,
    /// The number of its ranges among those of [`Touched`](crate::memory::Touched).
    pub(crate) kind: u8,
}

impl SiteRange {
    pub(crate) fn range(self) -> Range<u64> {
        self.start..self.end
    }
}

/// A frame in the local memory of a thread, behind those of its callers.
#[derive(Clone, Copy)]
pub(crate) struct LocalFrame {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// The memory of a thread that is accessed beside the device's.
pub(crate) struct ThreadMemory<'b> {
    pub(crate) shared: &'b [Cell<u8>],
    /// Up to the end of the frame.
    pub(crate) local: &'b [Cell<u8>],
    /// The beginning of the frame in local memory.
    pub(crate) frame: u64,
    /// The thread's number in the block.
    pub(crate) number: u32,
}

/// Accesses of neighbouring lanes, at distances of `step` bytes.
pub(crate) struct Together<'c> {
    pub(crate) cells: &'c [Cell<u8>],
    pub(crate) first: usize,
    pub(crate) lanes: usize,
    step: usize,
}

impl Together<'_> {
    /// Reads the elements at a distance from the beginning of each lane's access.
    pub(crate) fn read(&self, offset: usize, bytes: u8, to: &mut Lanes) {
        let to = &mut to[self.first..self.first + self.lanes];
        match bytes {
            1 => self.read_as(offset, to, |[a]: [u8; 1]| u64::from(a)),
            2 => self.read_as(offset, to, |bytes| u64::from(u16::from_le_bytes(bytes))),
            4 => self.read_as(offset, to, |bytes| u64::from(u32::from_le_bytes(bytes))),
            _ => self.read_as(offset, to, u64::from_le_bytes),
        }
    }

    #[inline]
    fn read_as<const N: usize>(&self, offset: usize, to: &mut [u64], number: impl Fn([u8; N]) -> u64) {
        let at = |start: usize| {
            let cells = &self.cells[start..start + N];
            number(core::array::from_fn(|byte| cells[byte].get()))
        };
        if self.step == 0 {
            return to.fill(at(offset));
        }
        to.iter_mut().enumerate().for_each(|(lane, to)| *to = at(lane * self.step + offset));
    }

    /// Writes the elements at a distance from the beginning of each lane's access.
    pub(crate) fn write(&self, offset: usize, bytes: u8, from: &Lanes) {
        let from = &from[self.first..self.first + self.lanes];
        match bytes {
            1 => self.write_as(offset, from, |value| [value as u8]),
            2 => self.write_as(offset, from, |value| (value as u16).to_le_bytes()),
            4 => self.write_as(offset, from, |value| (value as u32).to_le_bytes()),
            _ => self.write_as(offset, from, u64::to_le_bytes),
        }
    }

    #[inline]
    fn write_as<const N: usize>(&self, offset: usize, from: &[u64], bytes: impl Fn(u64) -> [u8; N]) {
        for (lane, value) in from.iter().enumerate() {
            let cells = &self.cells[lane * self.step + offset..][..N];
            cells.iter().zip(bytes(*value)).for_each(|(cell, byte)| cell.set(byte));
        }
    }
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
        let (memory, address) = resolved(access, address, thread);
        if address & (size_bytes - 1) != 0 {
            let space = name(memory);
            return Err(Mistake::Misaligned { space, address, size_bytes, is_write });
        }
        match memory {
            Memory::Shared => self.shared(thread.shared, address, size_bytes, is_write),
            Memory::Local | Memory::Frame => within("local", thread.local, address, size_bytes, is_write),
            // Reads do not come here.
            Memory::Parameters => Err(Mistake::OutOfBounds {
                space: "parameter",
                offset_bytes: address,
                size_bytes,
                limit_bytes: 0,
                is_write,
            }),
            _ => self.global(address, size_bytes, is_write, access),
        }
    }

    /// The cells of accesses of several lanes that lie side by side, or at one address, in one memory, beginning at the first lane's.
    /// `None` if they do not, or if one of them is wrong: then each lane accesses by itself.
    #[inline]
    pub(crate) fn together<'c>(
        &mut self,
        access: &Access,
        addresses: &Lanes,
        active: u32,
        shared: &'c [Cell<u8>],
        is_write: bool,
    ) -> Option<Together<'c>>
    where
        'r: 'c,
    {
        let size_bytes = u64::from(access.bytes) * u64::from(access.count);
        let first = active.trailing_zeros() as usize;
        let lanes = (active >> first).trailing_ones();
        if self.checker.is_some() || lanes != active.count_ones() {
            return None;
        }
        let start = addresses[first];
        let step = addresses.get(first + 1).map_or(0, |second| second.wrapping_sub(start));
        let step = if lanes == 1 { 0 } else { step };
        let is_apart = step != size_bytes && (step != 0 || is_write && lanes > 1);
        let lie_together = |step: u64| {
            let all = addresses[first..first + lanes as usize].iter().enumerate();
            all.fold(true, |is, (at, address)| is & (*address == start.wrapping_add(at as u64 * step)))
        };
        if is_apart || !lie_together(step) {
            return None;
        }
        let address = start.wrapping_add_signed(access.offset_bytes);
        let (memory, address) = match access.space {
            Memory::Generic => by_window(address),
            other => (other, address),
        };
        let len = if step == 0 { size_bytes } else { u64::from(lanes) * size_bytes };
        if address & (size_bytes - 1) != 0 {
            return None;
        }
        let cells = match memory {
            Memory::Shared => self.shared(shared, address, len, is_write).ok()?,
            Memory::Global => self.global(address, len, is_write, access).ok()?,
            _ => return None,
        };
        Some(Together { cells, first, lanes: lanes as usize, step: step as usize })
    }

    /// Tells the checks of an access, if there are any.
    #[inline]
    pub(crate) fn note(
        &mut self,
        access: &Access,
        address: u64,
        thread: &ThreadMemory<'_>,
        touch: impl FnOnce() -> Touch,
    ) {
        if let Some(checker) = &mut self.checker {
            let (memory, address) = resolved(access, address, thread);
            let noted = Noted {
                touch: touch(),
                order: access.order,
                memory,
                address,
                size_bytes: u64::from(access.bytes) * u64::from(access.count),
                element_bytes: access.bytes,
                thread: thread.number,
                step: self.at,
                time: self.steps,
            };
            checker.note(&noted, self.memory);
        }
    }

    /// The cells of an access to shared memory, which lies in one variable.
    #[inline]
    fn shared<'c>(&self, cells: &'c [Cell<u8>], address: u64, size_bytes: u64, is_write: bool) -> Found<'c> {
        let limit_bytes = match &self.shared[..] {
            [] => 0,
            [only] => only.end,
            // The end of the variable at the address, or of the one before it.
            several => {
                let behind = several.partition_point(|variable| variable.start <= address);
                several[behind.saturating_sub(1)].end
            }
        };
        within("shared", &cells[..limit_bytes as usize], address, size_bytes, is_write)
    }

    #[inline]
    fn global(&mut self, address: u64, size_bytes: u64, is_write: bool, access: &Access) -> Found<'r> {
        let found = match self.regions.get(self.last) {
            Some(region) if holds(region, address, size_bytes) && (region.is_writable || !is_write) => {
                *region
            }
            _ => self.fetch(address, size_bytes, is_write)?,
        };
        let site = &mut self.sites[access.site as usize];
        if address == site.end {
            site.end += size_bytes;
        } else if address < site.start || address + size_bytes > site.end {
            let next = SiteRange { start: address, end: address + size_bytes, kind: site.kind };
            let ended = core::mem::replace(site, next);
            self.touched[usize::from(ended.kind)].add(ended.range());
        }
        site.kind = u8::from(is_write) | u8::from(access.order.is_for_launches()) << 1;
        let start = (address - found.start) as usize;
        Ok(&found.cells[start..start + size_bytes as usize])
    }

    /// Finds the region of an address among the known ones, or asks the memory for it.
    #[cold]
    pub(crate) fn fetch(
        &mut self,
        address: u64,
        size_bytes: u64,
        is_write: bool,
    ) -> Result<Region<'r>, Mistake> {
        let index = self.regions.partition_point(|region| region.start <= address);
        let fits =
            |region: &Region<'r>| holds(region, address, size_bytes) && (region.is_writable || !is_write);
        if index > 0 && fits(&self.regions[index - 1]) {
            self.last = index - 1;
            return Ok(self.regions[self.last]);
        }
        let is_range = address.checked_add(size_bytes).is_some();
        let region = is_range.then(|| self.memory.region(address, size_bytes, is_write)).flatten();
        let region = region.map(|region| self.apart(region, address));
        if is_write && region.is_some_and(|region| !region.is_writable && self.is_constant(address)) {
            return Err(Mistake::Constant { address, size_bytes });
        }
        let region = region.filter(fits).ok_or(Mistake::Refused { address, size_bytes, is_write })?;
        if region.cells.len() as u64 <= size_bytes {
            // Of memory that is given access by access.
            return Ok(region);
        }
        let index = self.regions.partition_point(|known| known.start <= region.start);
        self.regions.insert(index, region);
        self.last = index;
        Ok(region)
    }

    /// The part of a region around an address that is all constant memory, or none of it.
    fn apart(&self, region: Region<'r>, address: u64) -> Region<'r> {
        let behind = self.read_only.partition_point(|range| range.start <= address);
        let before = behind.checked_sub(1).map(|index| &self.read_only[index]);
        let is_constant = before.is_some_and(|range| range.end > address);
        let next = self.read_only.get(behind).map_or(u64::MAX, |range| range.start);
        let (start, end) = match before {
            Some(range) if is_constant => (range.start, range.end),
            Some(range) => (range.end, next),
            None => (0, next),
        };
        let start = start.max(region.start);
        let end = end.min(region.start.saturating_add(region.cells.len() as u64));
        let cells =
            region.cells.get((start - region.start) as usize..(end.max(start) - region.start) as usize);
        Region { start, cells: cells.unwrap_or_default(), is_writable: region.is_writable && !is_constant }
    }

    fn is_constant(&self, address: u64) -> bool {
        let behind = self.read_only.partition_point(|range| range.start <= address);
        behind.checked_sub(1).is_some_and(|index| self.read_only[index].end > address)
    }

    /// Reads the parameters of the kernel.
    pub(crate) fn parameter(&self, access: &Access, address: u64, element: u8) -> Result<u64, Mistake> {
        let size_bytes = u64::from(access.bytes);
        let whole_bytes = size_bytes * u64::from(access.count);
        if address & (whole_bytes - 1) != 0 {
            let space = "parameter";
            return Err(Mistake::Misaligned { space, address, size_bytes: whole_bytes, is_write: false });
        }
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

impl Access {
    /// True if an access at this address is one to shared memory.
    pub(crate) fn is_shared(&self, address: u64) -> bool {
        match self.space {
            Memory::Shared => true,
            Memory::Generic => by_window(address).0 == Memory::Shared,
            _ => false,
        }
    }
}

/// A kind of memory in findings.
fn name(memory: Memory) -> &'static str {
    match memory {
        Memory::Shared => "shared",
        Memory::Local | Memory::Frame => "local",
        Memory::Parameters => "parameter",
        Memory::Global | Memory::Generic => "global",
    }
}

/// The memory of an access, and the address there.
#[inline]
fn resolved(access: &Access, address: u64, thread: &ThreadMemory<'_>) -> (Memory, u64) {
    match access.space {
        Memory::Generic => by_window(address),
        Memory::Frame => (Memory::Local, address.wrapping_add(thread.frame)),
        other => (other, address),
    }
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

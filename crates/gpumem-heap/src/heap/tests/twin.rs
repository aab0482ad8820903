//! A naive driver: created, mapped and accessible memory in sorted maps. It knows where physical bytes are.

use super::super::space::PAGE_BYTES;
use crate::memory::{PhysicalMemory, RawHandle};
use std::collections::BTreeMap;

/// The failure that a test asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// Created and mapped memory, and when a call fails.
#[derive(Default)]
pub(super) struct Twin {
    pub(super) created: BTreeMap<u64, u64>,
    /// By address: size and handle.
    pub(super) mapped: BTreeMap<u64, (u64, u64)>,
    pub(super) accessible: BTreeMap<u64, u64>,
    pub(super) next: u64,
    /// The address of the next segment; there are no handles then.
    pub(super) next_segment: Option<u64>,
    /// The calls until one fails; calls that undo others do not count.
    pub(super) fails_in: Option<u32>,
}

impl Twin {
    fn refuse(&mut self) -> Result<(), Refused> {
        match &mut self.fails_in {
            Some(0) => {
                self.fails_in = None;
                Err(Refused)
            }
            Some(calls) => {
                *calls -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The physical bytes behind an address range: handle, start, end.
    pub(super) fn physical(&self, address: u64, size_bytes: u64) -> Vec<(u64, u64, u64)> {
        let (mut place, end) = (address, address + size_bytes);
        let mut found = Vec::new();
        while place < end {
            let (base, (mapped_bytes, handle)) = self.mapped.range(..=place).next_back().unwrap();
            assert!(place < base + mapped_bytes, "{place:#x} is not mapped");
            assert_eq!(self.accessible.get(base), Some(mapped_bytes), "{base:#x} is not accessible");
            let until = end.min(base + mapped_bytes);
            found.push((*handle, place - base, until - base));
            place = until;
        }
        found
    }
}

impl PhysicalMemory for Twin {
    type Error = Refused;
    type Refusal = Refused;

    fn create(&mut self, size_bytes: u64) -> Result<RawHandle, Refused> {
        self.refuse()?;
        if let Some(address) = &mut self.next_segment {
            let here = *address;
            // Some are adjacent.
            *address += size_bytes + if size_bytes.is_multiple_of(3) { PAGE_BYTES } else { 0 };
            self.created.insert(here, size_bytes);
            self.mapped.insert(here, (size_bytes, here));
            self.accessible.insert(here, size_bytes);
            return Ok(RawHandle(here));
        }
        self.next += 1;
        self.created.insert(self.next, size_bytes);
        Ok(RawHandle(self.next))
    }

    fn map(&mut self, address: u64, size_bytes: u64, handle: RawHandle) -> Result<(), Refused> {
        self.refuse()?;
        assert_eq!(self.created.get(&handle.0), Some(&size_bytes), "a handle is mapped whole");
        let before = self.mapped.range(..address + size_bytes).next_back();
        assert!(before.is_none_or(|(base, (size, _))| base + size <= address), "mapped twice");
        self.mapped.insert(address, (size_bytes, handle.0));
        Ok(())
    }

    fn set_access(&mut self, address: u64, size_bytes: u64) -> Result<(), Refused> {
        self.refuse()?;
        for (base, (mapped_bytes, _)) in self.mapped.range(address..address + size_bytes) {
            self.accessible.insert(*base, *mapped_bytes);
        }
        Ok(())
    }

    fn unmap(&mut self, address: u64, size_bytes: u64) -> Result<(), Refused> {
        // Calls that undo come right after a failure, so they do not fail.
        self.refuse()?;
        assert_eq!(self.mapped.remove(&address).unwrap().0, size_bytes, "a mapping is unmapped whole");
        self.accessible.remove(&address);
        Ok(())
    }

    fn release(&mut self, handle: RawHandle, _: u64) -> Result<(), Refused> {
        if self.next_segment.is_some() {
            self.refuse()?;
            self.mapped.remove(&handle.0);
        }
        assert!(self.created.remove(&handle.0).is_some(), "released once");
        Ok(())
    }
}

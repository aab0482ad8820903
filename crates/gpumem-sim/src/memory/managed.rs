//! Managed memory: one address for the host and every device, and a record of the location of its pages.
//!
//! The bytes are host memory, which the program accesses directly; devices access them when their work runs. So a program that
//! reads without waiting reads old bytes, as it can on a device with concurrent access. The location of pages determines the cost
//! of work and the free memory of a device, never the results: a use by a device moves a group of pages to it (unless advice
//! keeps the group elsewhere), a prefetch moves it ahead of use, and groups that do not fit are evicted to the host. Accesses of
//! the host cannot be observed, so its faults cost nothing.

use crate::backing::Backing;
use crate::base::codes::{Answer, INVALID_VALUE};
use core::cell::Cell;
use std::collections::BTreeMap;

/// All managed memory of an instance.
pub(crate) struct Managed {
    pub(crate) allocations: BTreeMap<u64, Pages>,
    /// Freed host memory that queued work may still access.
    pub(crate) lingering: Vec<Backing>,
    /// The resident bytes of each device. Cells, because work that holds a shared reference also moves pages.
    resident_bytes: Vec<Cell<u64>>,
    /// The time that the running operation has spent on faults.
    pub(crate) fault_ns: Cell<u64>,
}

/// The pages of one allocation, or of one segment of a pool, which owns its memory itself.
pub(crate) struct Pages {
    pub(crate) backing: Option<Backing>,
    pub(crate) groups: Vec<Cell<Group>>,
}

/// The state of [`GROUP_BYTES`] of pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    /// `None` before a device has used them.
    pub(crate) resident: Option<Place>,
    pub(crate) preferred: Option<Place>,
    pub(crate) last_prefetch: Option<Place>,
    pub(crate) is_read_mostly: bool,
    /// One bit for each device, and [`HOST_BIT`].
    pub(crate) accessed_by: u128,
}

/// A place for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Device(usize),
}

impl Managed {
    pub(crate) fn new(device_count: u32) -> Self {
        Self {
            allocations: BTreeMap::new(),
            lingering: Vec::new(),
            resident_bytes: (0..device_count).map(|_| Cell::new(0)).collect(),
            fault_ns: Cell::new(0),
        }
    }

    /// Adds a record for new memory.
    pub(crate) fn add(&mut self, base: u64, size_bytes: u64, backing: Option<Backing>) {
        let groups = vec![Cell::default(); size_bytes.div_ceil(GROUP_BYTES) as usize];
        self.allocations.insert(base, Pages { backing, groups });
    }

    /// The bytes on a device.
    pub(crate) fn resident_bytes(&self, device: usize) -> u64 {
        self.resident_bytes.get(device).map_or(0, Cell::get)
    }

    /// The time that the running operation has spent on faults. Resets it for the next operation.
    pub(crate) fn take_fault_ns(&self) -> u64 {
        self.fault_ns.take()
    }

    /// The groups that a range touches. The range must lie in one allocation.
    pub(crate) fn groups(&self, address: u64, size_bytes: u64) -> Answer<&[Cell<Group>]> {
        let (&base, pages) = self.allocations.range(..=address).next_back().ok_or(INVALID_VALUE)?;
        let last =
            size_bytes.checked_sub(1).and_then(|rest| address.checked_add(rest)).ok_or(INVALID_VALUE)?;
        let (first, last) = ((address - base) / GROUP_BYTES, (last - base) / GROUP_BYTES);
        pages.groups.get(first as usize..=last as usize).ok_or(INVALID_VALUE)
    }

    /// Moves groups. Returns the number of moved bytes.
    pub(crate) fn bring(&self, groups: &[Cell<Group>], to: Place) -> u64 {
        let mut moved_bytes = 0;
        for cell in groups {
            let group = cell.get();
            if group.resident != Some(to) {
                self.leave(group.resident);
                if let Some(resident) = self.on(to) {
                    resident.set(resident.get() + GROUP_BYTES);
                }
                cell.set(Group { resident: Some(to), ..group });
                moved_bytes += GROUP_BYTES;
            }
        }
        moved_bytes
    }

    pub(crate) fn leave(&self, place: Option<Place>) {
        if let Some(resident) = place.and_then(|place| self.on(place)) {
            resident.set(resident.get() - GROUP_BYTES);
        }
    }

    fn on(&self, place: Place) -> Option<&Cell<u64>> {
        match place {
            Place::Host => None,
            Place::Device(device) => self.resident_bytes.get(device),
        }
    }

    /// Moves groups to the host until at most `keep_bytes` are on a device, lowest addresses first.
    pub(crate) fn evict(&self, device: usize, keep_bytes: u64) {
        for cell in self.allocations.values().flat_map(|pages| &pages.groups) {
            if self.resident_bytes(device) <= keep_bytes {
                return;
            }
            if cell.get().resident == Some(Place::Device(device)) {
                self.bring(core::slice::from_ref(cell), Place::Host);
            }
        }
    }
}

impl Place {
    /// The number that the older functions use.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Host => HOST_NUMBER,
            Self::Device(device) => device as i32,
        }
    }

    pub(crate) fn bit(self) -> u128 {
        match self {
            Self::Host => HOST_BIT,
            Self::Device(device) => 1 << device,
        }
    }
}

/// The unit in which pages move.
const GROUP_BYTES: u64 = 64 << 10;

/// The bit of the host in [`Group::accessed_by`].
pub(crate) const HOST_BIT: u128 = 1 << 64;

/// The host, in place of a device number.
pub(crate) const HOST_NUMBER: i32 = -1;

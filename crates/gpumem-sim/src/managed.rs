//! Managed memory: one address for the host and every device, and books about where its pages would be.
//!
//! The bytes are host memory, which the program follows directly; devices use them when their work runs. So a program
//! that reads without waiting reads old bytes, as it can on a device with concurrent access. Where the pages are
//! decides what work costs and how much memory a device has free, never what is computed: a device's use brings a
//! group of pages to it (or leaves it where advice wants it), a prefetch moves it ahead of use, and what does not fit
//! goes back to the host. What the host touches can't be seen here, so its faults have no price.

use super::backing::{Backing, Bytes};
use super::codes::{Answer, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use super::handle::Handle;
use super::machine::Machine;
use super::memory::Allocation;
use super::operation::Operation;
use super::owner::Owner;
use core::cell::Cell;
use gpumem_sys::types::{CUmem_advise as Advice, CUmemLocation, CUmemLocationType as LocationType};
use std::collections::BTreeMap;

/// All managed memory of an instance.
pub(super) struct Managed {
    allocations: BTreeMap<u64, Pages>,
    /// Host memory that is gone, while work was queued that may follow its addresses.
    lingering: Vec<Backing>,
    /// What is on each device. Cells here and below: work that reads the books also moves pages.
    resident_bytes: Vec<Cell<u64>>,
    /// What the running operation has spent on faults.
    fault_ns: Cell<u64>,
}

/// The pages of one allocation, or of one segment of a pool, which has its memory itself.
struct Pages {
    backing: Option<Backing>,
    groups: Vec<Cell<Group>>,
}

/// What is known of [`GROUP_BYTES`] of pages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    /// None before anything but the host has used them.
    resident: Option<Place>,
    pub(super) preferred: Option<Place>,
    pub(super) last_prefetch: Option<Place>,
    pub(super) is_read_mostly: bool,
    /// One bit for each device, and [`HOST_BIT`].
    pub(super) accessed_by: u128,
}

/// Where pages can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Host,
    Device(usize),
}

impl Managed {
    pub(super) fn new(device_count: u32) -> Self {
        Self {
            allocations: BTreeMap::new(),
            lingering: Vec::new(),
            resident_bytes: (0..device_count).map(|_| Cell::new(0)).collect(),
            fault_ns: Cell::new(0),
        }
    }

    /// Books for memory that is new.
    pub(super) fn add(&mut self, base: u64, size_bytes: u64, backing: Option<Backing>) {
        let groups = vec![Cell::default(); size_bytes.div_ceil(GROUP_BYTES) as usize];
        self.allocations.insert(base, Pages { backing, groups });
    }

    /// What is on a device.
    pub(super) fn resident_bytes(&self, device: usize) -> u64 {
        self.resident_bytes.get(device).map_or(0, Cell::get)
    }

    /// What the running operation has spent on faults; the next one starts from nothing.
    pub(super) fn take_fault_ns(&self) -> u64 {
        self.fault_ns.take()
    }

    /// The groups that a range lies in, whole or in part. All of one allocation.
    pub(super) fn groups(&self, address: u64, size_bytes: u64) -> Answer<&[Cell<Group>]> {
        let (&base, pages) = self.allocations.range(..=address).next_back().ok_or(INVALID_VALUE)?;
        let last =
            size_bytes.checked_sub(1).and_then(|rest| address.checked_add(rest)).ok_or(INVALID_VALUE)?;
        let (first, last) = ((address - base) / GROUP_BYTES, (last - base) / GROUP_BYTES);
        pages.groups.get(first as usize..=last as usize).ok_or(INVALID_VALUE)
    }

    /// Moves groups, and says how many bytes that were elsewhere.
    fn bring(&self, groups: &[Cell<Group>], to: Place) -> u64 {
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

    fn leave(&self, place: Option<Place>) {
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

    /// Sends groups to the host until no more than this is on a device, lowest addresses first.
    fn evict(&self, device: usize, keep_bytes: u64) {
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

impl Machine {
    pub(super) fn managed_alloc(&mut self, context: Handle, size_bytes: u64, flags: u32) -> Answer<u64> {
        if size_bytes == 0 || !matches!(flags, ATTACH_GLOBAL | ATTACH_HOST) {
            return Err(INVALID_VALUE);
        }
        let device = self.contexts.get(context).ok_or(INVALID_CONTEXT)?.device;
        let backing = Backing::new(size_bytes)?;
        let base = backing.bytes().0.expose_provenance() as u64;
        let bytes = Bytes(core::ptr::with_exposed_provenance_mut(base as usize));
        self.managed.add(base, size_bytes, Some(backing));
        let call = self.made_here();
        self.memory.insert(Allocation {
            call,
            base,
            size_bytes,
            bytes,
            device,
            context,
            owner: Owner::Managed,
            born: None,
        });
        Ok(base)
    }

    /// The address means nothing any more. Frees wait for all work; a context that is destroyed waits for its own only.
    pub(super) fn managed_release(&mut self, base: u64) {
        let Some(pages) = self.managed.allocations.remove(&base) else { return };
        pages.groups.iter().for_each(|cell| self.managed.leave(cell.get().resident));
        if let Some(backing) = pages.backing {
            self.linger(backing);
        }
    }

    /// Keeps host memory whose addresses mean nothing any more for as long as work may follow them.
    pub(super) fn linger(&mut self, backing: Backing) {
        self.managed.lingering.push(backing);
        if self.active.is_empty() {
            self.managed.lingering.clear();
        }
    }

    /// Whether it is managed memory of its own, of no pool.
    pub(super) fn is_managed(&self, address: u64) -> bool {
        self.memory.known(address, 1).is_some_and(|found| found.owner == Owner::Managed)
    }

    /// What a device has free for the program to ask for.
    pub(super) fn reported_free_bytes(&self, device: usize) -> u64 {
        self.devices[device].free_bytes().saturating_sub(self.managed.resident_bytes(device))
    }

    /// A device's work uses memory that may be managed.
    pub(super) fn managed_touch(&self, context: Handle, address: u64, size_bytes: u64) {
        let Some(device) = self.contexts.get(context).map(|context| context.device) else { return };
        let Ok(groups) = self.managed.groups(address, size_bytes) else { return };
        let is_elsewhere = |place: Option<Place>| place.is_some_and(|place| place != Place::Device(device));
        let mut moved_bytes = 0;
        for cell in groups {
            let group = cell.get();
            if !(is_elsewhere(group.preferred) && group.resident == group.preferred) {
                moved_bytes += self.managed.bring(core::slice::from_ref(cell), Place::Device(device));
            }
        }
        self.managed_fit(device);
        self.managed.fault_ns.set(self.managed.fault_ns.get() + self.config.costs.of_faults(moved_bytes));
    }

    /// Queues a move.
    pub(super) fn managed_prefetch(
        &mut self,
        (address, size_bytes): (u64, u64),
        to: Place,
        stream: Handle,
    ) -> Answer<()> {
        self.check_managed(address, size_bytes)?;
        for cell in self.managed.groups(address, size_bytes)? {
            cell.set(Group { last_prefetch: Some(to), ..cell.get() });
        }
        self.enqueue(stream, Operation::Prefetch { address, size_bytes, to });
        Ok(())
    }

    /// The move's turn has come.
    pub(super) fn execute_prefetch(&self, address: u64, size_bytes: u64, to: Place) -> u64 {
        let Ok(groups) = self.managed.groups(address, size_bytes) else { return 0 };
        let moved_bytes = self.managed.bring(groups, to);
        if let Place::Device(device) = to {
            self.managed_fit(device);
        }
        self.config.costs.of_prefetch(to == Place::Host, moved_bytes)
    }

    /// Managed pages make room for everything else on a device.
    pub(super) fn managed_fit(&self, device: usize) {
        self.managed.evict(device, self.devices[device].free_bytes());
    }

    /// Keeps what a program says about its use of a range.
    pub(super) fn managed_advise(
        &self,
        (address, size_bytes): (u64, u64),
        advice: Advice,
        place: impl Fn() -> Answer<Place>,
    ) -> Answer<()> {
        self.check_managed(address, size_bytes)?;
        if !self.is_managed(address) {
            return Err(NOT_SUPPORTED);
        }
        let change: Box<dyn Fn(&mut Group)> = match advice {
            Advice::CU_MEM_ADVISE_SET_READ_MOSTLY => Box::new(|group| group.is_read_mostly = true),
            Advice::CU_MEM_ADVISE_UNSET_READ_MOSTLY => Box::new(|group| group.is_read_mostly = false),
            Advice::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => Box::new(|group| group.preferred = None),
            Advice::CU_MEM_ADVISE_SET_PREFERRED_LOCATION => {
                let place = place()?;
                Box::new(move |group| group.preferred = Some(place))
            }
            Advice::CU_MEM_ADVISE_SET_ACCESSED_BY => {
                let bit = place()?.bit();
                Box::new(move |group| group.accessed_by |= bit)
            }
            Advice::CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
                let bit = place()?.bit();
                Box::new(move |group| group.accessed_by &= !bit)
            }
            _ => return Err(INVALID_VALUE),
        };
        for cell in self.managed.groups(address, size_bytes)? {
            let mut group = cell.get();
            change(&mut group);
            cell.set(group);
        }
        Ok(())
    }

    /// A range of managed memory, not empty and inside one allocation.
    pub(super) fn check_managed(&self, address: u64, size_bytes: u64) -> Answer<()> {
        match self.memory.known(address, size_bytes).map(|found| found.owner) {
            Some(owner) if owner.is_managed() && size_bytes > 0 => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The place that a device's number names; −1 is the host.
    pub(super) fn place_of_device(&self, device: i32) -> Answer<Place> {
        if device == HOST_NUMBER { Ok(Place::Host) } else { self.device_index(device).map(Place::Device) }
    }

    pub(super) fn place(&self, location: &CUmemLocation) -> Answer<Place> {
        match location.type_ {
            LocationType::CU_MEM_LOCATION_TYPE_DEVICE => self.device_index(location.id).map(Place::Device),
            LocationType::CU_MEM_LOCATION_TYPE_HOST
            | LocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA
            | LocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(Place::Host),
            LocationType::CU_MEM_LOCATION_TYPE_INVALID => Err(INVALID_VALUE),
            _ => Err(NOT_SUPPORTED),
        }
    }
}

impl Place {
    /// The number that the older functions use.
    pub(super) fn number(self) -> i32 {
        match self {
            Self::Host => HOST_NUMBER,
            Self::Device(device) => device as i32,
        }
    }

    fn bit(self) -> u128 {
        match self {
            Self::Host => HOST_BIT,
            Self::Device(device) => 1 << device,
        }
    }
}

/// The unit in which pages move.
const GROUP_BYTES: u64 = 64 << 10;

/// In [`Group::accessed_by`].
pub(super) const HOST_BIT: u128 = 1 << 64;

/// The host, where a device's number is asked for.
const HOST_NUMBER: i32 = -1;

const ATTACH_GLOBAL: u32 = 1;
const ATTACH_HOST: u32 = 2;

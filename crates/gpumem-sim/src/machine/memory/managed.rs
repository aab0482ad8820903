//! Managed memory: allocation, faults, prefetches and advice.

use crate::backing::{Backing, Bytes};
use crate::base::codes::{Answer, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::managed::{Group, HOST_NUMBER, Place};
use crate::stream::operation::Operation;
use gpumem_sys::types::{CUmem_advise as Advice, CUmemLocation, CUmemLocationType as LocationType};

impl Machine {
    pub(crate) fn managed_alloc(&mut self, context: Handle, size_bytes: u64, flags: u32) -> Answer<u64> {
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
            allocated_by: AllocatedBy::Managed,
            born: None,
        });
        Ok(base)
    }

    /// Removes the address. Frees wait for all work; the end of a context waits only for the context's own work.
    pub(crate) fn managed_release(&mut self, base: u64) {
        let Some(pages) = self.managed.allocations.remove(&base) else { return };
        pages.groups.iter().for_each(|cell| self.managed.leave(cell.get().resident));
        if let Some(backing) = pages.backing {
            self.linger(backing);
        }
    }

    /// Keeps host memory of removed addresses until no work can access it.
    pub(crate) fn linger(&mut self, backing: Backing) {
        self.managed.lingering.push(backing);
        if self.active.is_empty() {
            self.managed.lingering.clear();
        }
    }

    /// True if the address is of a managed allocation that belongs to no pool.
    pub(crate) fn is_managed(&self, address: u64) -> bool {
        self.memory.known(address, 1).is_some_and(|found| found.allocated_by == AllocatedBy::Managed)
    }

    /// The free memory of a device as the driver reports it, which counts the page cache of an integrated device as used.
    pub(crate) fn reported_free_bytes(&self, device: usize) -> u64 {
        let page_cache_bytes = self.config.page_cache_bytes.unwrap_or_default();
        self.available_bytes(device).saturating_sub(page_cache_bytes)
    }

    /// The free memory of a device that the program can allocate.
    pub(crate) fn available_bytes(&self, device: usize) -> u64 {
        self.devices[device].free_bytes().saturating_sub(self.managed.resident_bytes(device))
    }

    /// Moves managed pages for an access by a device.
    pub(crate) fn managed_touch(&self, context: Handle, address: u64, size_bytes: u64) {
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

    /// Queues a migration.
    pub(crate) fn managed_prefetch(
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

    /// Runs a queued migration.
    pub(crate) fn execute_prefetch(&self, address: u64, size_bytes: u64, to: Place) -> u64 {
        let Ok(groups) = self.managed.groups(address, size_bytes) else { return 0 };
        let moved_bytes = self.managed.bring(groups, to);
        if let Place::Device(device) = to {
            self.managed_fit(device);
        }
        self.config.costs.of_prefetch(to == Place::Host, moved_bytes)
    }

    /// Evicts managed pages of a device to make room for other memory.
    pub(crate) fn managed_fit(&self, device: usize) {
        self.managed.evict(device, self.devices[device].free_bytes());
    }

    /// Records the program's advice for a range.
    pub(crate) fn managed_advise(
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

    /// A range of managed memory that is not empty and lies in one allocation.
    pub(crate) fn check_managed(&self, address: u64, size_bytes: u64) -> Answer<()> {
        match self.memory.known(address, size_bytes).map(|found| found.allocated_by) {
            Some(allocated_by) if allocated_by.is_managed() && size_bytes > 0 => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The place that a device number names; −1 is the host.
    pub(crate) fn place_of_device(&self, device: i32) -> Answer<Place> {
        if device == HOST_NUMBER { Ok(Place::Host) } else { self.device_index(device).map(Place::Device) }
    }

    pub(crate) fn place(&self, location: &CUmemLocation) -> Answer<Place> {
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

const ATTACH_GLOBAL: u32 = 1;
const ATTACH_HOST: u32 = 2;

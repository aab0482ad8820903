//! [`Extents`]: address ranges whose memory grows and shrinks at the end. The heap's lock protects them. They share
//! the heap's limit and are otherwise independent of the heap.
//!
//! An extent maps handles from its start on. Memory behind its size stays mapped until the work that used it is
//! complete. That is checked whenever an extent changes and whenever the pool releases memory.

use super::caching_pool::{AllocFailure, CachingPool};
use super::vmm::{BackingError, Vmm};
use crate::backend::Growing;
use crate::device::{CaptureModeGuard, Order, Stamp, StreamIndex, deadline};
use crate::error::{Attempt, PoolError};
use gpumem_heap::heap::{Heap, Lost};
use gpumem_heap::{PhysicalMemory, RawHandle};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUresult;
use std::collections::BTreeMap;
use std::time::Instant;

#[derive(Default)]
pub(super) struct Extents {
    by_id: BTreeMap<u64, Extent>,
    last_id: u64,
    /// Handles that the driver failed to release.
    lost: Lost,
    /// Address ranges that the driver failed to free, as address and size. Nothing is mapped there.
    lost_addresses: Vec<(u64, u64)>,
}

struct Extent {
    address: u64,
    addresses_bytes: u64,
    /// Adjacent handles from the start, each with its size.
    handles: Vec<(RawHandle, u64)>,
    mapped_bytes: u64,
    /// The size, from the start, to which devices have access.
    open_bytes: u64,
    size_bytes: u64,
    /// The last uses of the memory behind the size.
    cut: Vec<Stamp>,
    is_gone: bool,
}

impl Extents {
    fn add(&mut self, address: u64, addresses_bytes: u64) -> u64 {
        self.last_id += 1;
        let extent = Extent {
            address,
            addresses_bytes,
            handles: Vec::new(),
            mapped_bytes: 0,
            open_bytes: 0,
            size_bytes: 0,
            cut: Vec::new(),
            is_gone: false,
        };
        self.by_id.insert(self.last_id, extent);
        self.last_id
    }

    /// The memory that the driver has created for extents and that has not been released.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.lost.bytes() + self.by_id.values().map(|extent| extent.mapped_bytes).sum::<u64>()
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.by_id.values().map(|extent| extent.size_bytes).sum()
    }

    /// The mapped ranges, as address and size.
    pub(super) fn mappings(&self) -> impl Iterator<Item = (u64, u64)> {
        let mapped = self.by_id.values().filter(|extent| extent.mapped_bytes > 0);
        mapped.map(|extent| (extent.address, extent.mapped_bytes))
    }

    /// Releases unused memory behind the sizes of extents, and the addresses of removed extents. Tries all of them,
    /// and returns the first failure. The next call retries what failed.
    pub(super) fn settle(&mut self, order: &impl Order, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        let Self { by_id, lost, lost_addresses, .. } = self;
        let mut settled = Ok(());
        for extent in by_id.values_mut().filter(|extent| extent.is_settled(order)) {
            extent.cut.clear();
            settled = settled.and(extent.unmap_behind(extent.size_bytes, lost, vmm));
        }
        by_id.retain(|_, extent| {
            let is_over = extent.is_gone && extent.mapped_bytes == 0;
            if is_over {
                lost_addresses.push((extent.address, extent.addresses_bytes));
            }
            !is_over
        });
        lost_addresses.retain(|(address, size_bytes)| {
            let freed = vmm.free(*address, *size_bytes);
            settled = settled.and(freed);
            freed.is_err()
        });
        settled
    }

    /// Retries handles that the driver failed to release. Returns the first failure.
    pub(super) fn release_lost(&mut self, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        self.lost.release(vmm)
    }

    /// Checks the extents' counters against each other and returns the first contradiction.
    pub(super) fn check(&self, heap: &Heap) -> Result<(), String> {
        for (id, extent) in &self.by_id {
            let handles_bytes: u64 = extent.handles.iter().map(|(_, size_bytes)| size_bytes).sum();
            let sizes = [extent.size_bytes, extent.open_bytes, extent.mapped_bytes, extent.addresses_bytes];
            if handles_bytes != extent.mapped_bytes || !sizes.is_sorted() {
                return Err(format!("extent {id} has {sizes:?} bytes, and handles of {handles_bytes}"));
            }
        }
        match heap.outside_bytes() == self.reserved_bytes() {
            true => Ok(()),
            false => {
                Err(format!("{} bytes in extents, {} counted", self.reserved_bytes(), heap.outside_bytes()))
            }
        }
    }

    /// The streams with pending uses of memory behind a size.
    pub(super) fn pending_slots(&self) -> impl Iterator<Item = StreamIndex> {
        self.by_id.values().flat_map(|extent| &extent.cut).map(|stamp| stamp.stream_index())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.lost.is_empty() && self.lost_addresses.is_empty()
    }
}

impl Extent {
    fn is_settled(&self, order: &impl Order) -> bool {
        self.cut.iter().all(|stamp| order.is_complete(*stamp))
    }

    /// Maps new handles up to `end_bytes`. After an error, the extent is unchanged.
    fn map_up_to(&mut self, end_bytes: u64, lost: &mut Lost, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        let (start_bytes, open_bytes) = (self.mapped_bytes, self.open_bytes);
        let handle_bytes = (end_bytes / HANDLE_SHARE).clamp(PAGE_BYTES, HANDLE_MAX_BYTES);
        let handle_bytes = 1_u64 << handle_bytes.ilog2();
        let mut asked = Ok(());
        while asked.is_ok() && self.mapped_bytes < end_bytes {
            let size_bytes = handle_bytes.min(end_bytes - self.mapped_bytes);
            asked = self.map_one(size_bytes, lost, vmm);
        }
        let asked =
            asked.and_then(|()| vmm.set_access(self.address + open_bytes, self.mapped_bytes - open_bytes));
        match asked {
            Ok(()) => self.open_bytes = self.mapped_bytes,
            // Memory that cannot be unmapped now stays mapped and counted, for the next call.
            Err(_) => self.unmap_behind(start_bytes, lost, vmm).unwrap_or(()),
        }
        asked
    }

    fn map_one(&mut self, size_bytes: u64, lost: &mut Lost, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        let handle = vmm.create(size_bytes)?;
        let mapped = vmm.map(self.address + self.mapped_bytes, size_bytes, handle);
        match mapped {
            Ok(()) => {
                self.handles.push((handle, size_bytes));
                self.mapped_bytes += size_bytes;
            }
            Err(_) if vmm.release(handle, size_bytes).is_err() => lost.add(handle, size_bytes),
            Err(_) => {}
        }
        mapped
    }

    /// Releases the handles that lie completely behind `size_bytes`.
    fn unmap_behind(
        &mut self,
        size_bytes: u64,
        lost: &mut Lost,
        vmm: &mut Vmm<'_>,
    ) -> Result<(), DriverError> {
        while let Some((handle, handle_bytes)) = self.handles.last().copied()
            && self.mapped_bytes - handle_bytes >= size_bytes
        {
            vmm.unmap(self.address + self.mapped_bytes - handle_bytes, handle_bytes)?;
            self.handles.pop();
            self.mapped_bytes -= handle_bytes;
            self.open_bytes = self.open_bytes.min(self.mapped_bytes);
            vmm.release(handle, handle_bytes).inspect_err(|_| lost.add(handle, handle_bytes))?;
        }
        Ok(())
    }

    fn cut_to(&mut self, size_bytes: u64, uses: &[Stamp]) {
        self.size_bytes = size_bytes;
        self.cut
            .retain(|old| !uses.iter().any(|new| new.stream_index() == old.stream_index() && *new >= *old));
        self.cut.extend(uses);
    }
}

impl Growing for CachingPool {
    fn add(&self, max_bytes: u64) -> Result<(u64, u64), PoolError> {
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let addresses_bytes = max_bytes.next_multiple_of(PAGE_BYTES);
        let address = self.vmm().reserve(addresses_bytes)?;
        Ok((self.core().extents.add(address, addresses_bytes), address))
    }

    fn grow_to(&self, id: u64, size_bytes: u64) -> Result<(), PoolError> {
        let _request = deadline::Request::begin();
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let mut tried = self.try_grow(id, size_bytes)?;
        let mut attempts = Vec::new();
        while tried.is_err() {
            let before = self.begin_look();
            self.make_room(&mut attempts)?;
            tried = self.try_grow(id, size_bytes)?;
            // Memory that other threads held during the search may be free now.
            let more_bytes = size_bytes.saturating_sub(self.extent_bytes(id));
            let is_late = Instant::now() >= deadline::until(self.tuning.wait_deadline);
            if is_late || !self.may_look_again(&before, more_bytes) {
                break;
            }
            std::thread::yield_now();
        }
        // The extent's present memory is already counted as in use.
        let more_bytes = size_bytes.saturating_sub(self.extent_bytes(id));
        tried.map_err(|said| {
            self.refusal(more_bytes, AllocFailure { said, attempts, ..AllocFailure::default() })
        })
    }

    fn shrink_to(&self, id: u64, size_bytes: u64, uses: &[Stamp]) -> Result<(), PoolError> {
        // This comes first: the block is smaller from here on, even if a later step fails.
        if let Some(extent) = self.core().extents.by_id.get_mut(&id) {
            extent.cut_to(size_bytes, uses);
        }
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        // Memory whose uses are complete is released at once.
        self.look(uses.iter().map(|stamp| stamp.stream_index()).collect())?;
        Ok(self.settle_extents()?)
    }

    fn remove(&self, id: u64, uses: &[Stamp]) {
        if let Some(extent) = self.core().extents.by_id.get_mut(&id) {
            extent.cut_to(0, uses);
            extent.is_gone = true;
        }
        // The next change of an extent retries what fails now.
        let Ok(_relaxed) = CaptureModeGuard::enter(self.device.driver()) else { return };
        let Ok(_bound) = self.device.enter() else { return };
        let _ = self.look(uses.iter().map(|stamp| stamp.stream_index()).collect());
        let _ = self.settle_extents();
    }
}

impl CachingPool {
    /// Releases all free memory, including that of other pools under a limit that is reached.
    fn make_room(&self, attempts: &mut Vec<Attempt>) -> Result<(), PoolError> {
        let (start, before_bytes) = (Instant::now(), self.reserved().current_bytes);
        let others = self.short_family();
        // This comes before the wait: memory that enters the heap after the wait is not covered by it.
        self.drain_all();
        let is_idle = self.finish_for(&others)?;
        self.trim(0)?;
        others.iter().for_each(|other| other.give_back_all(is_idle));
        let gained_bytes = before_bytes.saturating_sub(self.reserved().current_bytes);
        let (name, failures) = ("wait for the device and trim", Vec::new());
        Attempt { name, gained_bytes, took: start.elapsed(), failures }.add_to(attempts);
        Ok(())
    }

    /// Grows the extent once. The inner error means that a limit or the driver has no room; it holds the driver's
    /// error if the driver was called.
    fn try_grow(&self, id: u64, size_bytes: u64) -> Result<Result<(), Option<BackingError>>, PoolError> {
        let mut core = self.core();
        let core = &mut *core;
        core.extents.settle(self.clocks(), &mut self.vmm())?;
        core.heap.set_outside_bytes(core.extents.reserved_bytes());
        let limit_bytes = self.limit_bytes(&core.heap);
        let Extents { by_id, lost, .. } = &mut core.extents;
        let Some(extent) = by_id.get_mut(&id) else { return Ok(Ok(())) };
        let end_bytes = size_bytes.next_multiple_of(PAGE_BYTES);
        if end_bytes > extent.open_bytes {
            let missing_bytes = end_bytes.saturating_sub(extent.mapped_bytes);
            if core.heap.reserved_bytes().saturating_add(missing_bytes) > limit_bytes {
                return Ok(Err(None));
            }
            let mut vmm = self.vmm();
            let mapped = extent.map_up_to(end_bytes, lost, &mut vmm);
            core.heap.set_outside_bytes(core.extents.reserved_bytes());
            match mapped {
                Err(error) if error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    return Ok(Err(Some(vmm.said(error))));
                }
                other => other?,
            }
        }
        if let Some(extent) = core.extents.by_id.get_mut(&id) {
            extent.size_bytes = size_bytes;
        }
        core.note_peak();
        Ok(Ok(()))
    }

    fn extent_bytes(&self, id: u64) -> u64 {
        self.core().extents.by_id.get(&id).map_or(0, |extent| extent.size_bytes)
    }

    /// Like [`Extents::settle`]; the device's context must be current.
    pub(super) fn settle_extents(&self) -> Result<(), DriverError> {
        let mut core = self.core();
        let core = &mut *core;
        let settled = core.extents.settle(self.clocks(), &mut self.vmm());
        core.heap.set_outside_bytes(core.extents.reserved_bytes());
        settled
    }
}

/// The unit of physical memory.
const PAGE_BYTES: u64 = 2 << 20;

/// A handle is at most this fraction of the extent, so that little excess memory stays mapped after a shrink.
const HANDLE_SHARE: u64 = 16;
const HANDLE_MAX_BYTES: u64 = 64 << 20;

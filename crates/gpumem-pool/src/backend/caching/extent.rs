//! [`Extents`]: address ranges whose memory grows and shrinks at the end. The heap's lock protects them. They share
//! the heap's limit and are otherwise independent of the heap.
//!
//! An extent maps handles from its start on. Memory behind its size stays mapped until the work that used it is
//! complete. That is checked whenever an extent changes and whenever the pool releases memory.

use super::vmm::Vmm;
use crate::error::Refusal;
use core::ops::Range;
use gpumem_device::internal::{Order, Stamp, StreamIndex};
use gpumem_heap::heap::{Heap, Lost};
use gpumem_heap::{PhysicalMemory, RawHandle};
use gpumem_sys::DriverError;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Extents {
    by_id: BTreeMap<u64, Extent>,
    last_id: u64,
    /// Handles that the driver failed to release.
    lost: Lost,
    /// Address ranges that the driver failed to free, as address and size. Nothing is mapped there.
    lost_addresses: Vec<(u64, u64)>,
    /// True while the pool sleeps. Extents keep their addresses, because operations on them are refused and copies may be using the memory
    /// of sleeping extents.
    pub(super) is_sleeping: bool,
}

pub(super) struct Extent {
    address: u64,
    addresses_bytes: u64,
    handles: Vec<(RawHandle, u64)>,
    pub(super) mapped_bytes: u64,
    /// The size, from the start, to which devices have access.
    pub(super) open_bytes: u64,
    pub(super) size_bytes: u64,
    /// The last uses of the memory behind the size.
    pending_shrink: Vec<Stamp>,
    pub(super) is_gone: bool,
    sleep: Option<Sleep>,
}

/// An extent that sleeps, or is about to. Its handles keep their places.
#[derive(Clone, Copy, Default)]
struct Sleep {
    /// The first handles are not mapped.
    unmapped_count: usize,
    /// The first of these have no physical memory.
    released_count: usize,
    /// True if handles are mapped and not accessible.
    is_closed: bool,
}

impl Extents {
    pub(super) fn add(&mut self, address: u64, addresses_bytes: u64) -> u64 {
        self.last_id += 1;
        let extent = Extent {
            address,
            addresses_bytes,
            handles: Vec::new(),
            mapped_bytes: 0,
            open_bytes: 0,
            size_bytes: 0,
            pending_shrink: Vec::new(),
            is_gone: false,
            sleep: None,
        };
        self.by_id.insert(self.last_id, extent);
        self.last_id
    }

    pub(super) fn get(&self, id: u64) -> Option<&Extent> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Extent> {
        self.by_id.get_mut(&id)
    }

    /// Maps new handles to an extent, up to `end_bytes`. After an error, the extent is unchanged.
    pub(super) fn map_up_to(&mut self, id: u64, end_bytes: u64, vmm: &mut Vmm<'_>) -> Result<(), Refusal> {
        let Self { by_id, lost, .. } = self;
        by_id.get_mut(&id).map_or(Ok(()), |extent| extent.map_up_to(end_bytes, lost, vmm))
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.lost.bytes() + self.by_id.values().map(Extent::reserved_bytes).sum::<u64>()
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.by_id.values().map(|extent| extent.size_bytes).sum()
    }

    /// The mapped ranges, as address and size. Sleeping extents are not mapped.
    pub(super) fn mappings(&self) -> impl Iterator<Item = (u64, u64)> {
        let mapped = self.by_id.values().map(|extent| {
            let start = extent.place_of(extent.sleep.map_or(0, |sleep| sleep.unmapped_count));
            (start, extent.address + extent.mapped_bytes - start)
        });
        mapped.filter(|(_, size_bytes)| *size_bytes > 0)
    }

    /// Releases unused memory behind the sizes of extents, and the addresses of removed extents. Tries all of them,
    /// and returns the first failure. The next call retries what failed.
    pub(super) fn settle(&mut self, order: &impl Order, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        let Self { by_id, lost, lost_addresses, is_sleeping, .. } = self;
        let mut settled = Ok(());
        for extent in by_id.values_mut() {
            let result = match extent.sleep {
                None if extent.is_settled(order) => {
                    extent.pending_shrink.clear();
                    extent.unmap_behind(extent.size_bytes, lost, vmm)
                }
                Some(_) if extent.is_gone && !*is_sleeping => extent.end_asleep(lost, vmm),
                // An extent that sleeps is cut once it is awake.
                None | Some(_) => Ok(()),
            };
            settled = settled.and(result);
        }
        by_id.retain(|_, extent| {
            let is_over = extent.is_gone && extent.mapped_bytes == 0 && !*is_sleeping;
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

    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.by_id.values().map(|extent| extent.address..extent.address + extent.addresses_bytes)
    }

    /// Marks the extents that sleep, and returns the ranges of their contents: address and size.
    pub(super) fn begin_sleep(&mut self) -> Vec<(u64, u64)> {
        self.is_sleeping = true;
        let live = self.by_id.values_mut().filter(|extent| !extent.is_gone && extent.mapped_bytes > 0);
        let sleep = |extent: &mut Extent| {
            extent.sleep = Some(Sleep::default());
            (extent.address, extent.size_bytes)
        };
        live.map(sleep).filter(|(_, size_bytes)| *size_bytes > 0).collect()
    }

    /// Unmaps the extents that sleep, and then releases their memory. After an error, [`Extents::wake`] undoes the calls before it.
    pub(super) fn put_to_sleep(&mut self, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        let mut sleepers = self.by_id.values_mut().filter(|extent| extent.sleep.is_some());
        sleepers.try_for_each(|extent| extent.put_to_sleep(vmm))
    }

    /// Creates and maps the memory of extents that sleep. After an error, a further call continues.
    pub(super) fn wake(&mut self, vmm: &mut Vmm<'_>) -> Result<u64, Refusal> {
        let mut sleepers = self.by_id.values_mut().filter(|extent| extent.sleep.is_some() && !extent.is_gone);
        sleepers.try_fold(0, |sum, extent| Ok(sum + extent.wake(vmm)?))
    }

    /// Ends the sleep of extents that are mapped again. [`Extents::settle`] releases those that were dropped during the sleep.
    pub(super) fn end_sleep(&mut self) {
        self.is_sleeping = false;
        self.by_id.values_mut().filter(|extent| !extent.is_gone).for_each(|extent| extent.sleep = None);
    }

    /// Lets extents that sleep end, for a pool that ends.
    pub(super) fn forget_sleepers(&mut self) {
        self.is_sleeping = false;
    }

    pub(super) fn sleeping_bytes(&self) -> u64 {
        self.by_id.values().map(|extent| extent.mapped_bytes - extent.reserved_bytes()).sum()
    }

    /// True if an address belongs to a live extent that is mapped as a whole.
    pub(super) fn has_mapping(&self, address: u64) -> bool {
        let mapped =
            |extent: &Extent| !extent.is_gone && extent.sleep.is_none_or(|sleep| sleep.unmapped_count == 0);
        let contains =
            |extent: &Extent| (extent.address..extent.address + extent.mapped_bytes).contains(&address);
        self.by_id.values().any(|extent| mapped(extent) && contains(extent))
    }

    /// Retries handles that the driver failed to release. Returns the first failure.
    pub(super) fn release_lost(&mut self, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        self.lost.release(vmm)
    }

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

    pub(super) fn pending_streams(&self) -> impl Iterator<Item = StreamIndex> {
        self.by_id.values().flat_map(|extent| &extent.pending_shrink).map(|stamp| stamp.stream_index())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.lost.is_empty() && self.lost_addresses.is_empty()
    }
}

impl Extent {
    pub(super) fn is_asleep(&self) -> bool {
        self.sleep.is_some()
    }

    fn is_settled(&self, order: &impl Order) -> bool {
        self.pending_shrink.iter().all(|stamp| order.is_complete(*stamp))
    }

    fn reserved_bytes(&self) -> u64 {
        let released_count = self.sleep.map_or(0, |sleep| sleep.released_count);
        self.handles[released_count..].iter().map(|(_, size_bytes)| size_bytes).sum()
    }

    fn place_of(&self, index: usize) -> u64 {
        self.address + self.handles[..index].iter().map(|(_, size_bytes)| size_bytes).sum::<u64>()
    }

    fn put_to_sleep(&mut self, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        let Some(mut sleep) = self.sleep else { return Ok(()) };
        let slept = self.release_all(&mut sleep, vmm);
        self.sleep = Some(sleep);
        slept
    }

    fn release_all(&mut self, sleep: &mut Sleep, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        while let Some((_, size_bytes)) = self.handles.get(sleep.unmapped_count).copied() {
            vmm.unmap(self.place_of(sleep.unmapped_count), size_bytes)?;
            sleep.unmapped_count += 1;
        }
        sleep.is_closed = false;
        while let Some((handle, size_bytes)) = self.handles.get(sleep.released_count).copied() {
            vmm.release(handle, size_bytes)?;
            sleep.released_count += 1;
        }
        Ok(())
    }

    fn wake(&mut self, vmm: &mut Vmm<'_>) -> Result<u64, Refusal> {
        let Some(mut sleep) = self.sleep else { return Ok(0) };
        let woken = self.map_all(&mut sleep, vmm);
        self.sleep = Some(sleep);
        woken
    }

    fn map_all(&mut self, sleep: &mut Sleep, vmm: &mut Vmm<'_>) -> Result<u64, Refusal> {
        let mut created_bytes = 0;
        while let Some(index) = sleep.released_count.checked_sub(1) {
            let size_bytes = self.handles[index].1;
            self.handles[index].0 = vmm.create(size_bytes)?;
            sleep.released_count = index;
            created_bytes += size_bytes;
        }
        while let Some(index) = sleep.unmapped_count.checked_sub(1) {
            let (handle, size_bytes) = self.handles[index];
            vmm.map(self.place_of(index), size_bytes, handle)?;
            (sleep.unmapped_count, sleep.is_closed) = (index, true);
        }
        if sleep.is_closed {
            vmm.set_access(self.address, self.open_bytes)?;
            sleep.is_closed = false;
        }
        Ok(created_bytes)
    }

    /// Releases an extent that ends while it sleeps.
    fn end_asleep(&mut self, lost: &mut Lost, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        let ended = self.put_to_sleep(vmm);
        let Some(sleep) = self.sleep.filter(|sleep| sleep.unmapped_count == self.handles.len()) else {
            return ended;
        };
        let left = self.handles.drain(..).skip(sleep.released_count);
        left.for_each(|(handle, size_bytes)| lost.add(handle, size_bytes));
        (self.sleep, self.mapped_bytes, self.open_bytes) = (None, 0, 0);
        self.pending_shrink.clear();
        ended
    }

    fn map_up_to(&mut self, end_bytes: u64, lost: &mut Lost, vmm: &mut Vmm<'_>) -> Result<(), Refusal> {
        let (start_bytes, open_bytes) = (self.mapped_bytes, self.open_bytes);
        let handle_bytes = (end_bytes / HANDLE_SHARE).clamp(PAGE_BYTES, HANDLE_MAX_BYTES);
        let handle_bytes = 1_u64 << handle_bytes.ilog2();
        let mut asked = Ok(());
        while asked.is_ok() && self.mapped_bytes < end_bytes {
            let size_bytes = handle_bytes.min(end_bytes - self.mapped_bytes);
            asked = self.map_one(size_bytes, lost, vmm);
        }
        let asked = asked
            .and_then(|()| Ok(vmm.set_access(self.address + open_bytes, self.mapped_bytes - open_bytes)?));
        match asked {
            Ok(()) => self.open_bytes = self.mapped_bytes,
            // Memory that cannot be unmapped now stays mapped and counted, for the next call.
            Err(_) => self.unmap_behind(start_bytes, lost, vmm).unwrap_or(()),
        }
        asked
    }

    fn map_one(&mut self, size_bytes: u64, lost: &mut Lost, vmm: &mut Vmm<'_>) -> Result<(), Refusal> {
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
        Ok(mapped?)
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

    pub(super) fn shrink_to(&mut self, size_bytes: u64, uses: &[Stamp]) {
        self.size_bytes = size_bytes;
        self.pending_shrink
            .retain(|old| !uses.iter().any(|new| new.stream_index() == old.stream_index() && *new >= *old));
        self.pending_shrink.extend(uses);
    }
}

/// The unit of physical memory.
pub(super) const PAGE_BYTES: u64 = 2 << 20;

/// A handle is at most this fraction of the extent, so that little excess memory stays mapped after a shrink.
const HANDLE_SHARE: u64 = 16;
const HANDLE_MAX_BYTES: u64 = 64 << 20;

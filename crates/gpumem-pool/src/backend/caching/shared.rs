//! [`Shared`]: front and heap of one pool, and everything of an allocation or a free that is not a hit.
//!
//! *Locks.* The heap has one, `core`. Whoever holds it calls the driver at most for physical memory. The front's locks are
//! never taken while it is held.

use super::access::{Access, all_of, none_of};
use super::class::Class;
use super::extent::Extents;
use super::front::{Front, Spill};
use super::heap::{Heap, Request};
use super::ladder;
use super::magazine::{Piece, Set};
use super::stats::Counters;
use super::vmm::Vmm;
use super::{of_class, thread};
use crate::backend::{Counts, Freed, Piece as BlockPiece, Reserved, Taken};
use crate::clock::{Clocks, Order, Slot, Stamp, StreamId};
use crate::context::Relaxed;
use crate::device::Device;
use crate::dials::Dials;
use crate::error::PoolError;
use crate::family::{Family, Member};
use crate::limit::Limits;
use crate::options::{BackendKind, HandleUse, PoolBuilder};
use crate::stream::Stream;
use crate::upkeep::{Left, Waiting};
use core::time::Duration;
use gpumem_sys::types::{CUdevice, CUdevice_attribute, CUresult};
use gpumem_sys::{Driver, DriverError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub(super) struct Shared {
    /// The front's number, by which threads find their sets.
    id: u64,
    pub(super) device: Device,
    pub(super) dials: Dials,
    limits: Limits,
    access: Access,
    /// The heap's addresses.
    ranges: [(u64, u64); 2],
    front: Front<Stamp>,
    core: Mutex<Core>,
}

/// The driver's word for that it has no more memory, if that is what it said last.
pub(super) type Lack = Option<DriverError>;

/// What the heap's lock protects.
pub(super) struct Core {
    pub(super) heap: Heap,
    pub(super) extents: Extents,
    /// What the heap has handed out. What comes back is counted by the sets.
    counters: Counters,
    /// The most that the heap has had out; what magazines hold is part of it.
    out_peak_bytes: u64,
}

impl Shared {
    pub(super) fn new(id: u64, options: &PoolBuilder, limits: Limits) -> Result<Arc<Self>, PoolError> {
        let PoolBuilder { device, dials, handle_use, family, .. } = options;
        check_supported(device, *handle_use)?;
        let unit_bytes = (device.total_bytes() / RANGE_UNIT_BYTES + 1) * RANGE_UNIT_BYTES;
        let _bound = device.enter()?;
        let access = Access::new(device.raw(), *handle_use, family.clone());
        let vmm = Vmm::new(device.driver(), &access);
        let small = reserve_range(&vmm, unit_bytes, SMALL_TIMES)?;
        let large = reserve_range(&vmm, unit_bytes, LARGE_TIMES).inspect_err(|_| {
            let _ = vmm.free(small.0, small.1);
        })?;
        let ranges = [small, large];
        let heap = Heap::new(dials.clone(), ranges);
        let shared = Arc::new(Self {
            id,
            device: device.clone(),
            dials: dials.clone(),
            limits,
            access,
            ranges,
            front: Front::new(dials.magazine_bytes(0)),
            core: Mutex::new(Core {
                heap,
                extents: Extents::default(),
                counters: Counters::default(),
                out_peak_bytes: 0,
            }),
        });
        if limits.soft_bytes.is_some() {
            let waiting: Weak<Self> = Arc::downgrade(&shared);
            device.upkeep().add_pool(waiting);
        }
        if let Some(family) = family {
            let member: Weak<Self> = Arc::downgrade(&shared);
            family.add_member(member);
        }
        Ok(shared)
    }

    pub(super) fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<BlockPiece, PoolError> {
        match Class::of(size_bytes) {
            Some(class) => Ok(of_class(class, self.alloc_small(class, size_bytes, stream)?)),
            None => self.alloc_from_heap(size_bytes, UNIT_BYTES, stream),
        }
    }

    /// What the thread's magazine did not have: from the depot, or from the heap.
    fn alloc_small(&self, class: Class, size_bytes: u64, stream: &Stream) -> Result<Piece, PoolError> {
        let slot = stream.slot();
        let near = self.with_set(stream.id(), |set| {
            let may_have = |stamp: &Stamp| self.clocks().is_ordered(*stamp, slot);
            let refilled = || self.front.refill(set, class, may_have).then(|| set.take(class, size_bytes))?;
            set.take(class, size_bytes).or_else(refilled)
        });
        match near.flatten() {
            Some(piece) => Ok(piece),
            None => self
                .climb(&Request { size_bytes: class.size_bytes(), alignment: UNIT_BYTES, slot }, size_bytes),
        }
    }

    /// What no magazine keeps: large blocks, and aligned ones.
    pub(super) fn alloc_from_heap(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<BlockPiece, PoolError> {
        let request = Request { size_bytes: self.dials.rounded(size_bytes), alignment, slot: stream.slot() };
        let Piece { address, record } = self.climb(&request, size_bytes)?;
        Ok(BlockPiece { address, record, class: BlockPiece::NO_CLASS })
    }

    /// What the thread's magazine had no room for, and blocks that don't go there.
    pub(super) fn free(&self, freed: &Freed) -> Taken {
        let counted = match Class::at(freed.piece.class as usize).filter(|_| freed.is_plain()) {
            Some(class) => self.free_small(class, freed),
            None => false,
        };
        if counted {
            return Taken { result: Ok(()), counted };
        }
        self.give(freed);
        Taken { result: Ok(()), counted: self.count_in(freed) }
    }

    fn free_small(&self, class: Class, freed: &Freed) -> bool {
        let mut spill = Vec::new();
        let make_way =
            |set: &Set| self.front.make_way(set, class, |stream| self.stamp_of(stream), &mut spill);
        let is_made = self.with_set(freed.home, make_way) == Some(true);
        self.give_all(spill);
        let piece = Piece { address: freed.piece.address, record: freed.piece.record };
        // Last of all: it counts.
        is_made
            && thread::with_near(self.id, freed.home.0, |set| set.put(class, freed.size_bytes, piece))
                == Some(true)
    }

    fn give(&self, freed: &Freed) {
        let record = freed.piece.record;
        if freed.is_plain() {
            let stamp = self.clocks().stamp_of(freed.home);
            return self.core().heap.give(record, &[stamp]);
        }
        let stamps: Vec<Stamp> = freed.stamps(self.clocks()).collect();
        self.core().heap.give(record, &stamps);
    }

    /// The last touch, if it says true.
    fn count_in(&self, freed: &Freed) -> bool {
        let count = |set: &Set| set.count_in(freed.size_bytes);
        self.with_set(freed.home, count) == Some(true) || count(self.front.common())
    }

    /// This thread's set for a stream, unless the stream is long gone or the thread at its end.
    fn with_set<R>(&self, stream: StreamId, work: impl FnOnce(&Set) -> R) -> Option<R> {
        let adopt = || {
            let is_gone = |stream| self.stamp_of(stream) == Stamp::NONE;
            if is_gone(stream.0) {
                return None;
            }
            let mut spill = Vec::new();
            self.front.purge(is_gone, |stream| self.stamp_of(stream), &mut spill);
            self.give_all(spill);
            self.front.adopt(stream.0)
        };
        thread::with_set(self.id, stream.0, adopt, work)
    }

    /// The ladder: what is free, cheapest first, with a fresh search after each rung.
    fn climb(&self, request: &Request, size_bytes: u64) -> Result<Piece, PoolError> {
        if let Some(piece) = self.take_ready(request, size_bytes) {
            return Ok(piece);
        }
        self.climb_further(request, size_bytes)
    }

    #[cold]
    fn climb_further(&self, request: &Request, size_bytes: u64) -> Result<Piece, PoolError> {
        // A class is what it is; a large block may do without its rounding.
        let least_bytes =
            if request.size_bytes > Class::SIZE_BYTES_MAX { size_bytes } else { request.size_bytes };
        let mut lack = None;
        let piece = ladder::climb(self, request, least_bytes, &mut lack)?;
        let piece = piece.ok_or_else(|| self.refusal(size_bytes, lack))?;
        let mut core = self.core();
        core.count_out(size_bytes);
        self.front.set_cap(self.dials.magazine_bytes(core.heap.reserved_bytes()));
        Ok(piece)
    }

    pub(super) fn refusal(&self, size_bytes: u64, lack: Lack) -> PoolError {
        let (counts, reserved) = (self.counts(), self.reserved());
        let passed = self.access.family().and_then(|family| family.full_for(size_bytes));
        if let (Some(limit_bytes), None) = (passed.or(self.limits.hard_bytes), lack) {
            return PoolError::LimitReached {
                requested_bytes: size_bytes,
                in_use_bytes: counts.in_use_bytes,
                limit_bytes,
            };
        }
        match self.device.memory_info() {
            Err(error) => lack.map_or(error, PoolError::from),
            Ok(info) => PoolError::OutOfMemory {
                requested_bytes: size_bytes,
                in_use_bytes: counts.in_use_bytes,
                reserved_bytes: reserved.current_bytes,
                device_free_bytes: info.free_bytes,
                device_total_bytes: info.total_bytes,
                hard_limit_bytes: self.limits.hard_bytes,
            },
        }
    }

    #[inline]
    fn take_ready(&self, request: &Request, size_bytes: u64) -> Option<Piece> {
        let mut core = self.core();
        let piece = core.heap.take_ready(request, self.clocks())?;
        core.count_out(size_bytes);
        Some(piece)
    }

    /// Says whether there was anything.
    pub(super) fn drain_own(&self) -> bool {
        let mut spill = Vec::new();
        thread::each_set(self.id, |set| {
            self.front.drain_set(set, |stream| self.stamp_of(stream), &mut spill)
        });
        self.give_all(spill)
    }

    pub(super) fn drain_all(&self) -> bool {
        let mut spill = Vec::new();
        self.front.drain(|stream| self.stamp_of(stream), &mut spill);
        self.give_all(spill)
    }

    fn give_all(&self, spill: Spill<Stamp>) -> bool {
        if spill.is_empty() {
            return false;
        }
        let mut core = self.core();
        spill.iter().for_each(|(piece, stamp)| core.heap.give(piece.record, &[*stamp]));
        true
    }

    /// Grows until so much is reserved, as large blocks will want it: in few handles, side by side.
    pub(super) fn reserve(&self, size_bytes: u64) -> Result<(), PoolError> {
        let missing_bytes = size_bytes.saturating_sub(self.reserved().current_bytes);
        if missing_bytes == 0 {
            return Ok(());
        }
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let mut vmm = self.vmm();
        let mut core = self.core();
        let most_bytes = self.limit_bytes(&core.heap);
        match core.heap.reserve(missing_bytes, &mut vmm, most_bytes) {
            Ok(true) => self.front.set_cap(self.dials.magazine_bytes(core.heap.reserved_bytes())),
            Err(error) if error.code() != CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(error.into()),
            _ => {
                drop(core);
                return Err(self.refusal(missing_bytes, None));
            }
        }
        Ok(())
    }

    /// Without a wait: marks tell what is done by now.
    pub(super) fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError> {
        self.drain_all();
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let pending = self.core().pending_slots();
        self.look(pending)?;
        Ok(self.trim(keep_bytes)?)
    }

    /// Marks streams, and sees which marks have been passed.
    pub(super) fn look(&self, slots: Vec<Slot>) -> Result<(), DriverError> {
        slots.into_iter().try_for_each(|slot| self.clocks().tick(slot).map(drop))?;
        self.clocks().poll(POLL_MAX).map(drop)
    }

    pub(super) fn reclaim(&self) -> Result<(), PoolError> {
        // First: what is freed into the heap later is known to be done only later.
        self.drain_all();
        self.device.finish_with_upkeep()?;
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        Ok(self.trim(0)?)
    }

    fn trim(&self, keep_bytes: u64) -> Result<(), DriverError> {
        self.settle_extents()?;
        let mut vmm = self.vmm();
        let mut core = self.core();
        core.heap.trim(keep_bytes, self.clocks(), &mut vmm)?;
        self.front.set_cap(self.dials.magazine_bytes(core.heap.reserved_bytes()));
        Ok(())
    }

    /// Nobody allocates any more. Returns how many blocks are alive; from now on their frees are counted elsewhere.
    pub(super) fn close(&self) -> u64 {
        let mut spill = Vec::new();
        let counters = self.front.close(|stream| self.stamp_of(stream), &mut spill);
        self.give_all(spill);
        (counters + self.core().counters).block_count()
    }

    pub(super) fn counts(&self) -> Counts {
        let (front, core) = (self.front.counters(), self.core());
        let sum = front + core.counters;
        // While others allocate and free, some of what they do is seen and some is not.
        let in_use_bytes = sum.in_use_bytes().min(core.heap.used_bytes()) + core.extents.size_bytes();
        Counts {
            in_use_bytes,
            in_use_peak_bytes: core.out_peak_bytes.max(in_use_bytes),
            block_count: sum.block_count(),
            allocation_count: sum.allocation_count(),
        }
    }

    pub(super) fn reserved(&self) -> Reserved {
        let core = self.core();
        Reserved {
            current_bytes: core.heap.reserved_bytes(),
            peak_bytes: core.heap.reserved_peak_bytes(),
            record_bytes: core.heap.record_bytes() as u64,
        }
    }

    /// As [`Source::check`](crate::backend::Source::check).
    pub(super) fn check(&self) -> Result<(), String> {
        let held_count = self.front.check()?;
        let counters = self.front.counters();
        let core = self.core();
        let out_count = core.heap.check()?;
        core.extents.check(&core.heap)?;
        let sum = counters + core.counters;
        if sum.block_count() + held_count != out_count {
            let block_count = sum.block_count();
            return Err(format!("{block_count} blocks and {held_count} pieces at hand, {out_count} are out"));
        }
        if sum.in_use_bytes() > core.heap.used_bytes() {
            return Err(format!(
                "{} bytes in blocks, {} are out",
                sum.in_use_bytes(),
                core.heap.used_bytes()
            ));
        }
        match self.limits.hard_bytes.filter(|limit_bytes| core.heap.reserved_bytes() > *limit_bytes) {
            Some(limit_bytes) => {
                Err(format!("{} bytes reserved, {limit_bytes} allowed", core.heap.reserved_bytes()))
            }
            None => Ok(()),
        }
    }

    /// Over what is mapped, and from now on over what will be.
    pub(super) fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let (core, vmm) = (self.core(), self.vmm());
        if self.access.is_granted(peer.raw()) {
            return Ok(());
        }
        let mappings: Vec<(u64, u64)> = core.heap.mappings().chain(core.extents.mappings()).collect();
        for (index, (address, size_bytes)) in mappings.iter().enumerate() {
            if let Err(error) = vmm.set_access_of(*address, *size_bytes, &all_of(peer.raw())) {
                for (address, size_bytes) in &mappings[..index] {
                    // Where even this fails, the peer may use what nobody gives it.
                    let _ = vmm.set_access_of(*address, *size_bytes, &none_of(peer.raw()));
                }
                return Err(error.into());
            }
        }
        self.access.grant(peer.raw());
        Ok(())
    }

    /// The memory under a live piece stays under its addresses alone.
    pub(super) fn pin(&self, record: u32) {
        self.core().heap.pin(record);
    }

    fn soft_bytes(&self) -> u64 {
        self.limits.soft_bytes.unwrap_or(u64::MAX)
    }

    fn stamp_of(&self, stream: u64) -> Stamp {
        self.clocks().stamp_of(StreamId(stream))
    }

    /// What may be reserved now, by our own limit and those that we share.
    pub(super) fn limit_bytes(&self, heap: &Heap) -> u64 {
        #[cfg(feature = "planted-bugs")]
        if crate::planted::has(crate::planted::Bug::LimitOffByOne) {
            return self.limits.hard_bytes.unwrap_or(u64::MAX).saturating_add(2 << 20);
        }
        let room_bytes = self.access.family().map_or(u64::MAX, |family| family.room_bytes());
        heap.reserved_bytes().saturating_add(room_bytes).min(self.limits.hard_bytes.unwrap_or(u64::MAX))
    }

    /// All that other pools keep unused under a limit that keeps this one from growing. The device's context is current.
    pub(super) fn clear_family(&self) {
        let short = self.access.family().filter(|family| family.is_short_of_others());
        for member in short.map(|family| family.members()).into_iter().flatten() {
            if !core::ptr::addr_eq(Arc::as_ptr(&member), self) {
                member.give_back_all();
            }
        }
    }

    pub(super) fn vmm(&self) -> Vmm<'_> {
        Vmm::new(self.device.driver(), &self.access)
    }

    pub(super) fn clocks(&self) -> &Clocks {
        self.device.clocks()
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    fn count_out(&mut self, size_bytes: u64) {
        self.counters.count_out(size_bytes);
        self.note_peak();
    }

    fn pending_slots(&self) -> Vec<Slot> {
        self.heap.pending_slots().into_iter().chain(self.extents.pending_slots()).collect()
    }

    pub(super) fn note_peak(&mut self) {
        let out_bytes = self.heap.used_bytes() + self.extents.size_bytes();
        self.out_peak_bytes = self.out_peak_bytes.max(out_bytes);
    }
}

impl Waiting for Shared {
    fn before_wait(&self) {
        if self.reserved().current_bytes > self.soft_bytes() {
            self.drain_all();
        }
    }

    fn after_wait(&self) {
        if self.reserved().current_bytes > self.soft_bytes() {
            // What can't be given back now stays for the next time; a failure comes back at the next call of the user's.
            let _ = self.trim(self.soft_bytes());
        }
    }
}

impl Member for Shared {
    fn give_back_all(&self) {
        self.drain_all();
        // What can't be given back now is not to be had.
        let _ = self.trim(0);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        let pending = core.pending_slots();
        let heap = core::mem::replace(&mut core.heap, Heap::new(Dials::default(), [(0, 0); 2]));
        let extents = core::mem::take(&mut core.extents);
        let family = self.access.family().cloned();
        let mut left = Remains { family, heap, extents, ranges: self.ranges };
        left.heap.set_outside_bytes(0);
        // Without its context all of it is gone already.
        let Ok(_bound) = self.device.enter() else { return };
        let (driver, clocks) = (self.device.driver(), self.clocks());
        // Nobody is there to tell of a failure: what is not known to be done stays.
        let _ = self.look(pending);
        if !left.give_back(driver, self.device.raw(), clocks, false) {
            self.device.upkeep().add_left(Box::new(left));
        }
    }
}

/// The heap of a pool that is gone, and its addresses.
struct Remains {
    family: Option<Arc<Family>>,
    heap: Heap,
    extents: Extents,
    ranges: [(u64, u64); 2],
}

impl Left for Remains {
    fn give_back(&mut self, driver: &Driver, device: CUdevice, clocks: &Clocks, is_all_done: bool) -> bool {
        let Ok(_relaxed) = Relaxed::enter(driver) else { return false };
        // Nothing is mapped any more.
        let access = Access::new(device, HandleUse::default(), self.family.clone());
        let mut vmm = Vmm::new(driver, &access);
        let settled = match is_all_done {
            true => self.extents.settle(&AllDone, &mut vmm),
            false => self.extents.settle(clocks, &mut vmm),
        };
        let trimmed = match is_all_done {
            true => self.heap.trim(0, &AllDone, &mut vmm),
            false => self.heap.trim(0, clocks, &mut vmm),
        };
        if settled.is_err() || !self.extents.is_empty() || trimmed.is_err() || self.heap.reserved_bytes() > 0
        {
            return false;
        }
        self.ranges.into_iter().all(|(address, size_bytes)| vmm.free(address, size_bytes).is_ok())
    }
}

/// The order of a device that has been waited for.
struct AllDone;

impl Order for AllDone {
    fn is_ordered(&self, _: Stamp, _: Slot) -> bool {
        true
    }

    fn is_complete(&self, _: Stamp) -> bool {
        true
    }
}

fn check_supported(device: &Device, handle_use: HandleUse) -> Result<(), PoolError> {
    let unsupported =
        |reason: String| PoolError::BackendUnsupported { backend: BackendKind::Caching, reason };
    let table = device.driver().table();
    if table.cuMemCreate.is_none() || table.cuMemAddressReserve.is_none() {
        return Err(unsupported(
            "the driver is older than CUDA 10.2, which introduced virtual memory".into(),
        ));
    }
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    let export = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    let needed = [
        (true, attribute, "has no virtual memory management"),
        (handle_use.rdma, rdma, "has no virtual memory that network cards can reach"),
        (handle_use.exportable, export, "has no memory that file descriptors can stand for"),
    ];
    for (_, attribute, lack) in needed.into_iter().filter(|(is_needed, ..)| *is_needed) {
        if device.attribute(attribute)? == 0 {
            return Err(unsupported(format!("{device} {lack}")));
        }
    }
    Ok(())
}

/// So many times the device's memory, or less where other pools have the addresses: where a range begins, and its size.
fn reserve_range(vmm: &Vmm<'_>, unit_bytes: u64, times: u64) -> Result<(u64, u64), DriverError> {
    let size_bytes = unit_bytes * times;
    match vmm.reserve(size_bytes) {
        Err(_) if times > 1 => reserve_range(vmm, unit_bytes, times / 2),
        reserved => Ok((reserved?, size_bytes)),
    }
}

/// Addresses cost nothing but that there are 128 TiB of them, for all pools and whoever else is in the process.
const SMALL_TIMES: u64 = 2;
const LARGE_TIMES: u64 = 4;
/// What the device has is rounded up to this.
const RANGE_UNIT_BYTES: u64 = 8 << 30;

/// Every block starts at a multiple of it, and each size class is one.
const UNIT_BYTES: u64 = 256;

/// As long as a trim asks which marks have been passed.
const POLL_MAX: Duration = Duration::from_millis(1);

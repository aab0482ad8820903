//! [`Shared`]: front and heap of one pool, and everything of an allocation or a free that is not a hit.
//!
//! *Locks.* The heap has one, `core`. Whoever holds it calls the driver at most for physical memory. The front's locks are
//! never taken while it is held.

use super::class::Class;
use super::dials::Dials;
use super::front::{Front, Spill};
use super::heap::{Heap, Request};
use super::magazine::{Piece, Set};
use super::stats::Counters;
use super::vmm::Vmm;
use super::{of_class, thread};
use crate::backend::{Counts, Freed, Piece as BlockPiece, Reserved, Taken};
use crate::clock::{Clocks, Order, Slot, Stamp, StreamId};
use crate::context::Relaxed;
use crate::device::Device;
use crate::error::PoolError;
use crate::limit::Limits;
use crate::options::BackendKind;
use crate::stream::Stream;
use crate::upkeep::{Left, Waiting};
use core::time::Duration;
use gpumem_sys::types::{CUdevice, CUdevice_attribute, CUresult};
use gpumem_sys::{Driver, DriverError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub(super) struct Shared {
    /// The front's number, by which threads find their sets.
    id: u64,
    device: Device,
    limits: Limits,
    /// The heap's addresses.
    ranges: [(u64, u64); 2],
    front: Front<Stamp>,
    core: Mutex<Core>,
}

/// The driver's word for that it has no more memory, if that is what it said last.
type Lack = Option<DriverError>;

/// What the heap's lock protects.
struct Core {
    heap: Heap,
    /// What the heap has handed out. What comes back is counted by the sets.
    counters: Counters,
    /// The most that the heap has had out; what magazines hold is part of it.
    out_peak_bytes: u64,
}

impl Shared {
    pub(super) fn new(id: u64, device: &Device, limits: Limits) -> Result<Arc<Self>, PoolError> {
        check_supported(device)?;
        let range_bytes = (device.total_bytes() / RANGE_BYTES_MIN + 1) * RANGE_BYTES_MIN * RANGE_TIMES;
        let _bound = device.enter()?;
        let vmm = Vmm::new(device.driver(), device.raw());
        let small = vmm.reserve(range_bytes)?;
        let large = vmm.reserve(range_bytes).inspect_err(|_| {
            let _ = vmm.free(small, range_bytes);
        })?;
        let ranges = [(small, range_bytes), (large, range_bytes)];
        let heap = Heap::new(Dials::default(), ranges);
        let shared = Arc::new(Self {
            id,
            device: device.clone(),
            limits,
            ranges,
            front: Front::new(FRONT_BYTES_MIN),
            core: Mutex::new(Core { heap, counters: Counters::default(), out_peak_bytes: 0 }),
        });
        if limits.soft_bytes.is_some() {
            let waiting: Weak<Self> = Arc::downgrade(&shared);
            device.upkeep().add_pool(waiting);
        }
        Ok(shared)
    }

    pub(super) fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<BlockPiece, PoolError> {
        match Class::of(size_bytes) {
            Some(class) => Ok(of_class(class, self.alloc_small(class, size_bytes, stream)?)),
            None => self.alloc_large(size_bytes, stream),
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

    fn alloc_large(&self, size_bytes: u64, stream: &Stream) -> Result<BlockPiece, PoolError> {
        let request = Request { size_bytes, alignment: UNIT_BYTES, slot: stream.slot() };
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
        // Small pieces are no part of a large block.
        let drains: &[fn(&Self) -> bool] = match size_bytes <= Class::SIZE_BYTES_MAX {
            true => &[Self::drain_own, Self::drain_all],
            false => &[],
        };
        for drain in drains {
            if drain(self)
                && let Some(piece) = self.take_ready(request, size_bytes)
            {
                return Ok(piece);
            }
        }
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        type Rung = fn(&Shared, &Request) -> Result<(), DriverError>;
        let rungs: [Rung; 5] =
            [|_, _| Ok(()), Self::drain_for, Self::wait_on_device, Self::wait_on_host, Self::give_back];
        let mut lack = None;
        for rung in rungs {
            rung(self, request)?;
            if let Some(piece) = self.search(request, size_bytes, &mut lack)? {
                return Ok(piece);
            }
        }
        Err(self.refusal(size_bytes, lack))
    }

    fn drain_for(&self, _: &Request) -> Result<(), DriverError> {
        self.drain_all();
        Ok(())
    }

    /// Makes the stream wait for what others have freed.
    fn wait_on_device(&self, request: &Request) -> Result<(), DriverError> {
        let blockers = self.core().heap.blockers(request, self.clocks());
        blockers.into_iter().try_for_each(|stamp| self.clocks().insert_wait(stamp, request.slot).map(drop))
    }

    /// Waits for all work of the device; pools that are gone give back what they left.
    fn wait_on_host(&self, _: &Request) -> Result<(), DriverError> {
        self.drain_all();
        self.device.finish()?;
        self.device.after_wait();
        self.core().heap.settle(self.clocks());
        Ok(())
    }

    /// Handles that nobody holds make room for handles of other sizes.
    fn give_back(&self, _: &Request) -> Result<(), DriverError> {
        self.trim(0)
    }

    /// Everything that asks for no more than memory.
    fn search(
        &self,
        request: &Request,
        size_bytes: u64,
        lack: &mut Lack,
    ) -> Result<Option<Piece>, DriverError> {
        let mut core = self.core();
        let piece = self.search_in(&mut core.heap, request, lack)?;
        if piece.is_some() {
            core.count_out(size_bytes);
            self.front.set_cap(front_bytes(&core.heap));
        }
        if core.heap.window_count() > WINDOW_COUNT_MAX {
            let mut vmm = Vmm::new(self.device.driver(), self.device.raw());
            // What can't be unmapped now stays for the next time.
            let _ = core.heap.unmap_empty(WINDOW_COUNT_MAX / 2, self.clocks(), &mut vmm);
        }
        Ok(piece)
    }

    fn search_in(
        &self,
        heap: &mut Heap,
        request: &Request,
        lack: &mut Lack,
    ) -> Result<Option<Piece>, DriverError> {
        let (clocks, mut vmm) = (self.clocks(), Vmm::new(self.device.driver(), self.device.raw()));
        if let Some(piece) = heap.take_ready(request, clocks) {
            return Ok(Some(piece));
        }
        if let Some(piece) = heap.take_recycled(request, clocks, &mut vmm)? {
            return Ok(Some(piece));
        }
        let limit_bytes = self.limits.hard_bytes.unwrap_or(u64::MAX);
        match heap.take_grown(request, clocks, &mut vmm, limit_bytes) {
            Err(error) if error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => *lack = Some(error),
            Ok(None) => *lack = None,
            other => return other,
        }
        let is_small = request.size_bytes <= Class::SIZE_BYTES_MAX;
        Ok(if is_small { heap.take_leftover(request, clocks) } else { None })
    }

    fn refusal(&self, size_bytes: u64, lack: Lack) -> PoolError {
        let (counts, reserved) = (self.counts(), self.reserved());
        if let Some(limit_bytes) = self.limits.hard_bytes
            && reserved.current_bytes.saturating_add(size_bytes) > limit_bytes
        {
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
    fn drain_own(&self) -> bool {
        let mut spill = Vec::new();
        thread::each_set(self.id, |set| {
            self.front.drain_set(set, |stream| self.stamp_of(stream), &mut spill)
        });
        self.give_all(spill)
    }

    fn drain_all(&self) -> bool {
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
        let request = Request { size_bytes: missing_bytes, alignment: UNIT_BYTES, slot: Slot(0) };
        let limit_bytes = self.limits.hard_bytes.unwrap_or(u64::MAX);
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let mut vmm = Vmm::new(self.device.driver(), self.device.raw());
        let mut core = self.core();
        let grown = match core.heap.take_grown(&request, self.clocks(), &mut vmm, limit_bytes) {
            Err(error) if error.code() != CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(error.into()),
            grown => grown.ok().flatten(),
        };
        if let Some(piece) = grown {
            // Nobody has used it.
            core.heap.give(piece.record, &[]);
            self.front.set_cap(front_bytes(&core.heap));
            return Ok(());
        }
        drop(core);
        Err(self.refusal(missing_bytes, None))
    }

    /// Without a wait: marks tell what is done by now.
    pub(super) fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError> {
        self.drain_all();
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let pending = self.core().heap.pending_slots();
        pending.into_iter().try_for_each(|slot| self.clocks().tick(slot).map(drop))?;
        self.clocks().poll(POLL_MAX)?;
        Ok(self.trim(keep_bytes)?)
    }

    pub(super) fn reclaim(&self) -> Result<(), PoolError> {
        // First: what is freed into the heap later is known to be done only later.
        self.drain_all();
        self.device.synchronize()?;
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        Ok(self.trim(0)?)
    }

    fn trim(&self, keep_bytes: u64) -> Result<(), DriverError> {
        let mut vmm = Vmm::new(self.device.driver(), self.device.raw());
        let mut core = self.core();
        core.heap.trim(keep_bytes, self.clocks(), &mut vmm)?;
        self.front.set_cap(front_bytes(&core.heap));
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
        let in_use_bytes = sum.in_use_bytes().min(core.heap.used_bytes());
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

    fn soft_bytes(&self) -> u64 {
        self.limits.soft_bytes.unwrap_or(u64::MAX)
    }

    fn stamp_of(&self, stream: u64) -> Stamp {
        self.clocks().stamp_of(StreamId(stream))
    }

    fn clocks(&self) -> &Clocks {
        self.device.clocks()
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    fn count_out(&mut self, size_bytes: u64) {
        self.counters.count_out(size_bytes);
        self.out_peak_bytes = self.out_peak_bytes.max(self.heap.used_bytes());
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

impl Drop for Shared {
    fn drop(&mut self) {
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        let heap = core::mem::replace(&mut core.heap, Heap::new(Dials::default(), [(0, 0); 2]));
        let mut left = Remains { heap, ranges: self.ranges };
        // Without its context all of it is gone already.
        let Ok(_bound) = self.device.enter() else { return };
        let (driver, clocks) = (self.device.driver(), self.clocks());
        if !left.give_back(driver, self.device.raw(), clocks, false) {
            self.device.upkeep().add_left(Box::new(left));
        }
    }
}

/// The heap of a pool that is gone, and its addresses.
struct Remains {
    heap: Heap,
    ranges: [(u64, u64); 2],
}

impl Left for Remains {
    fn give_back(&mut self, driver: &Driver, device: CUdevice, clocks: &Clocks, is_all_done: bool) -> bool {
        let Ok(_relaxed) = Relaxed::enter(driver) else { return false };
        let mut vmm = Vmm::new(driver, device);
        let trimmed = match is_all_done {
            true => self.heap.trim(0, &AllDone, &mut vmm),
            false => self.heap.trim(0, clocks, &mut vmm),
        };
        if trimmed.is_err() || self.heap.reserved_bytes() > 0 {
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

fn check_supported(device: &Device) -> Result<(), PoolError> {
    let unsupported =
        |reason: String| PoolError::BackendUnsupported { backend: BackendKind::Caching, reason };
    let table = device.driver().table();
    if table.cuMemCreate.is_none() || table.cuMemAddressReserve.is_none() {
        return Err(unsupported(
            "the driver is older than CUDA 10.2, which introduced virtual memory".into(),
        ));
    }
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    match device.attribute(attribute)? {
        0 => Err(unsupported(format!("{device} has no virtual memory management"))),
        _ => Ok(()),
    }
}

/// What the front may hold beside such a heap.
fn front_bytes(heap: &Heap) -> u64 {
    FRONT_BYTES_MIN.max(heap.reserved_bytes() / FRONT_SHARE)
}

/// Addresses cost nothing: each of the two ranges has many times what the device has, rounded up.
const RANGE_TIMES: u64 = 8;
const RANGE_BYTES_MIN: u64 = 8 << 30;

/// Every block starts at a multiple of it, and each size class is one.
const UNIT_BYTES: u64 = 256;

/// Windows that nothing is resident in cost kernels nothing, and the driver little: as many as this were measured.
const WINDOW_COUNT_MAX: usize = 2048;

/// As long as a trim asks which marks have been passed.
const POLL_MAX: Duration = Duration::from_millis(1);

/// What the front may hold: this much, or a share of what is reserved.
const FRONT_BYTES_MIN: u64 = 8 << 20;
const FRONT_SHARE: u64 = 200;

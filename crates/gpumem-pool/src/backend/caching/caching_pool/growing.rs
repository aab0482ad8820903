//! Memory for blocks that grow in place, and memory reserved ahead of blocks.

use super::CachingPool;
use crate::backend::caching::extent::PAGE_BYTES;
use crate::backend::figures::Counts;
use crate::backend::search::{Outcome, Search, Shortage, WAIT_AND_TRIM};
use crate::error::{PoolError, Refusal};
use gpumem_device::internal::Stamp;

impl CachingPool {
    /// Reserves addresses for `max_bytes`, which is not zero. Returns the id of the range and its first address.
    pub(crate) fn add(&self, max_bytes: u64) -> Result<(u64, u64), PoolError> {
        let _entered = self.device.enter_relaxed()?;
        let addresses_bytes = max_bytes.next_multiple_of(PAGE_BYTES);
        let address = self.vmm().reserve(addresses_bytes)?;
        Ok((self.core().extents.add(address, addresses_bytes), address))
    }

    /// Maps memory up to `size_bytes` within the range, with the help of `climb`. After an error, the range is unchanged.
    pub(crate) fn grow_to(
        &self,
        id: u64,
        size_bytes: u64,
        climb: impl FnOnce(&mut dyn Search<()>) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        climb(&mut GrowSearch::new(self, Some(id), size_bytes))
    }

    /// Reserves memory for blocks until they can have `size_bytes` together, with the help of `climb`.
    pub(super) fn reserve_ahead(
        &self,
        size_bytes: u64,
        climb: impl FnOnce(&mut dyn Search<()>) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        climb(&mut GrowSearch::new(self, None, size_bytes))
    }

    /// Releases the memory behind `size_bytes`, once these uses are complete.
    pub(crate) fn shrink_to(&self, id: u64, size_bytes: u64, uses: &[Stamp]) -> Result<(), PoolError> {
        // This comes first, so that the block is smaller even if a later step fails.
        if let Some(extent) = self.core().extents.get_mut(id) {
            extent.shrink_to(size_bytes, uses);
        }
        let _entered = self.device.enter_relaxed()?;
        // Memory whose uses are complete is released immediately.
        self.poll_with_markers(uses.iter().map(|stamp| stamp.stream_index()).collect())?;
        Ok(self.settle_extents()?)
    }

    /// Releases the memory and the addresses of the range, once these uses are complete.
    pub(crate) fn remove(&self, id: u64, uses: &[Stamp]) {
        if let Some(extent) = self.core().extents.get_mut(id) {
            extent.shrink_to(0, uses);
            extent.is_gone = true;
        }
        // The next change of an extent retries failed releases.
        let Ok(_entered) = self.device.enter_relaxed() else { return };
        let _ = self.poll_with_markers(uses.iter().map(|stamp| stamp.stream_index()).collect());
        let _ = self.settle_extents();
    }
}

struct GrowSearch<'a> {
    pool: &'a CachingPool,
    /// `None` reserves so much memory for all blocks together, in few adjacent handles, as large blocks need.
    extent: Option<u64>,
    size_bytes: u64,
    /// The last refusal; `None` if a limit left too little for a call of the driver.
    refusal: Option<Refusal>,
    before: Counts,
}

impl<'a> GrowSearch<'a> {
    fn new(pool: &'a CachingPool, extent: Option<u64>, size_bytes: u64) -> Self {
        Self { pool, extent, size_bytes, refusal: None, before: Counts::default() }
    }

    /// The bytes to add. Existing memory is already counted.
    fn missing_bytes(&self) -> u64 {
        let core = self.pool.core();
        let bytes = match self.extent {
            Some(id) => core.extents.get(id).map_or(0, |extent| extent.size_bytes),
            None => core.heap.blocks_bytes(),
        };
        self.size_bytes.saturating_sub(bytes)
    }

    fn grow(&mut self) -> Result<Outcome<()>, PoolError> {
        let (is_grown, refusal) = match self.extent {
            Some(id) => self.grow_extent(id)?,
            None => self.grow_heap(),
        };
        self.refusal = refusal.map(Refusal::if_out_of_memory).transpose()?;
        Ok(Outcome::or_short(is_grown.then_some(())))
    }

    fn grow_heap(&self) -> (bool, Option<Refusal>) {
        let (pool, missing_bytes) = (self.pool, self.missing_bytes());
        if missing_bytes == 0 {
            return (true, None);
        }
        let mut core = pool.core_with_limit();
        let most_bytes = pool.reservable_max_bytes(&core.heap);
        let reserved = core.heap.reserve(missing_bytes, &mut pool.vmm(), most_bytes);
        pool.set_cache_cap(&core);
        (reserved.unwrap_or(false), reserved.err())
    }

    fn grow_extent(&self, id: u64) -> Result<(bool, Option<Refusal>), PoolError> {
        let (pool, size_bytes) = (self.pool, self.size_bytes);
        let mut core = pool.core();
        let core = &mut *core;
        let mut vmm = pool.vmm();
        core.extents.settle(pool.clocks(), &mut vmm)?;
        core.heap.set_outside_bytes(core.extents.reserved_bytes());
        let limit_bytes = pool.reservable_max_bytes(&core.heap);
        let Some(extent) = core.extents.get(id) else { return Ok((true, None)) };
        if extent.is_asleep() {
            return Err(pool.asleep());
        }
        let end_bytes = size_bytes.next_multiple_of(PAGE_BYTES);
        if end_bytes > extent.open_bytes {
            let missing_bytes = end_bytes.saturating_sub(extent.mapped_bytes);
            if core.heap.reserved_bytes().saturating_add(missing_bytes) > limit_bytes {
                return Ok((false, None));
            }
            let mapped = core.extents.map_up_to(id, end_bytes, &mut vmm);
            core.heap.set_outside_bytes(core.extents.reserved_bytes());
            if let Err(refusal) = mapped {
                return Ok((false, Some(refusal)));
            }
        }
        if let Some(extent) = core.extents.get_mut(id) {
            extent.size_bytes = size_bytes;
        }
        core.note_peak();
        Ok((true, None))
    }
}

impl Search<()> for GrowSearch<'_> {
    fn rung(&self, rung: usize) -> Option<&'static str> {
        (rung == 0).then_some(WAIT_AND_TRIM)
    }

    fn begin(&mut self, _is_first: bool) -> Result<Outcome<()>, PoolError> {
        self.before = self.pool.counts();
        self.grow()
    }

    /// For an extent, releases all free memory. Reserving ahead counts it as available, so it stays.
    fn climb(&mut self, _rung: usize) -> Result<Outcome<()>, PoolError> {
        let is_extent = self.extent.is_some();
        if is_extent {
            // This comes before the wait, which does not cover memory that enters the heap later.
            self.pool.drain_all();
        }
        self.pool.wait_for_room()?;
        if is_extent {
            self.pool.trim(0)?;
        }
        self.grow()
    }

    fn free_bytes(&self) -> Result<i64, PoolError> {
        Ok(-self.pool.reserved_bytes().cast_signed())
    }

    fn requested_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn may_repeat(&self) -> bool {
        self.extent.is_some() && self.pool.may_repeat(&self.before, self.missing_bytes())
    }

    fn shortage(&self) -> Result<Shortage, PoolError> {
        Ok(self.pool.describe_shortage(self.missing_bytes(), self.refusal))
    }
}

//! Stream-ordered allocation and free; growth, trimming and attributes of pools.

use crate::base::address::CHUNK_BYTES;
use crate::base::codes::{
    Answer, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY,
};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::Allocation;
use crate::memory::plain::round_up;
use crate::memory::pool::{Pool, PoolValue, SEGMENT_BYTES};
use crate::memory::pool_kind::PoolKind;
use crate::memory::pool_reuse::Policies;
use crate::stream::operation::Operation;
use gpumem_sys::types::CUmemPool_attribute as Attribute;

impl Machine {
    /// The pool from which `cuMemAllocAsync` allocates on a stream.
    pub(crate) fn pool_of_stream(&self, stream: Handle) -> Answer<Handle> {
        let device = self.streams.get(stream).ok_or(INVALID_HANDLE)?.device;
        Ok(self.devices.get(device).ok_or(INVALID_DEVICE)?.pool)
    }

    pub(crate) fn pool(&self, handle: Handle) -> Answer<&Pool> {
        self.pools.get(handle).filter(|pool| !pool.is_closing).ok_or(INVALID_VALUE)
    }

    /// A pool that can allocate, which an imported one cannot.
    pub(crate) fn pool_to_take_from(&self, handle: Handle) -> Answer<&Pool> {
        self.pool(handle)
            .and_then(|pool| if pool.sharing.is_imported() { Err(INVALID_VALUE) } else { Ok(pool) })
    }

    /// Destroys the pool once its last block is freed.
    pub(crate) fn pool_destroy(&mut self, handle: Handle) -> Answer<()> {
        if self.pool(handle)?.is_default {
            return Err(INVALID_VALUE);
        }
        for device in self.devices.iter_mut().filter(|device| device.pool == handle) {
            device.pool = device.default_pool;
        }
        if let Some(pool) = self.pools.get_mut(handle) {
            pool.is_closing = true;
        }
        self.pool_close_if_empty(handle);
        Ok(())
    }

    pub(crate) fn pool_close_if_empty(&mut self, handle: Handle) {
        if self.pools.get(handle).is_some_and(|pool| pool.is_closing) {
            self.pool_trim_all(handle, 0);
            let is_empty = |pool: &Pool| pool.segments.is_empty() && !self.has_imports(handle);
            if self.pools.get(handle).is_some_and(is_empty) {
                self.pools.remove(handle);
            }
        }
    }

    /// Allocates memory in a stream's order.
    pub(crate) fn alloc_async(&mut self, pool: Handle, size_bytes: u64, stream: Handle) -> Answer<u64> {
        let (kind, device) = self.pool_to_take_from(pool).map(|pool| (pool.kind, pool.device))?;
        if self.is_capturing(stream) {
            return match kind {
                PoolKind::Device => self.capture_alloc(stream, device, size_bytes),
                _ => Err(NOT_SUPPORTED),
            };
        }
        if size_bytes == 0 {
            return Ok(0);
        }
        let context = self.streams.get(stream).ok_or(INVALID_VALUE)?.context;
        let room_bytes = self.pool(pool)?.room_bytes(size_bytes)?;
        let base = self.pool_take(pool, room_bytes, stream)?;
        let found = self.pools.get_mut(pool).ok_or(INVALID_VALUE)?;
        let bytes = found.bytes_at(base).ok_or(OUT_OF_MEMORY)?;
        found.used.add(size_bytes);
        let allocated_by = kind.allocated_by(pool);
        let call = self.made_here();
        let allocation =
            Allocation { base, size_bytes, bytes, device, context, allocated_by, call, born: None };
        let born = Some(self.enqueue(stream, Operation::Alloc(allocation)));
        self.memory.at_call.insert(base, Allocation { born, ..allocation });
        Ok(base)
    }

    pub(crate) fn pool_grow(&mut self, handle: Handle, size_bytes: u64) -> Answer<()> {
        let wanted_bytes = round_up(size_bytes, SEGMENT_BYTES)?;
        let least_bytes = round_up(size_bytes, CHUNK_BYTES)?;
        self.pool_grow_by(handle, wanted_bytes).or_else(|error| {
            if least_bytes < wanted_bytes { self.pool_grow_by(handle, least_bytes) } else { Err(error) }
        })
    }

    fn pool_grow_by(&mut self, handle: Handle, size_bytes: u64) -> Answer<()> {
        let pool = self.pools.get(handle).ok_or(INVALID_VALUE)?;
        let bytes_max = pool.bytes_max;
        if pool.reserved.current.saturating_add(size_bytes) > bytes_max {
            self.pool_trim(handle, bytes_max.saturating_sub(size_bytes));
        }
        let reserved_bytes = self.pools.get(handle).ok_or(INVALID_VALUE)?.reserved.current;
        if reserved_bytes.saturating_add(size_bytes) > bytes_max {
            return Err(OUT_OF_MEMORY);
        }
        let (base, segment) = self.segment_map(handle, size_bytes)?;
        let pool = self.pools.get_mut(handle).ok_or(INVALID_VALUE)?;
        pool.segments.insert(base, segment);
        pool.free.give(base, size_bytes);
        pool.reserved.add(size_bytes);
        Ok(())
    }

    /// Frees device memory of any kind in a stream's order.
    pub(crate) fn free_async(&mut self, base: u64, stream: Handle) -> Answer<()> {
        if base == 0 {
            return Ok(());
        }
        if self.is_capturing(stream) {
            return self.capture_free(stream, base);
        }
        let allocation = self.device_allocation(base)?;
        self.retire(base);
        let point = self.enqueue(stream, Operation::Free(allocation));
        if let Some(pool) = allocation.allocated_by.pool()
            && let Some(pool) = self.pools.get_mut(pool)
        {
            let room_bytes = pool.room_bytes(allocation.size_bytes)?;
            pool.pending.insert(base, room_bytes, point);
        }
        Ok(())
    }

    /// Notes that the program has freed a block; the device may still use its bytes.
    pub(crate) fn pool_retire(&mut self, handle: Handle, size_bytes: u64) {
        if let Some(pool) = self.pools.get_mut(handle) {
            pool.used.current -= size_bytes;
        }
    }

    /// Releases idle segments until at most this much is reserved.
    pub(crate) fn pool_trim(&mut self, handle: Handle, keep_bytes: u64) {
        while let Some(pool) = self.pools.get_mut(handle).filter(|pool| pool.reserved.current > keep_bytes)
            && let Some((base, size_bytes)) = pool.idle_segment()
        {
            pool.free.take_whole(base, size_bytes);
            pool.reserved.current -= size_bytes;
            if let Some(segment) = pool.segments.remove(&base) {
                pool.sharing.discard(segment.file_offset_bytes, size_bytes);
                let (kind, device) = (pool.kind, pool.device);
                self.segment_unmap(kind, device, base, segment);
            }
        }
    }

    /// Like [`Self::pool_trim`], and also releases segments that only the reuse policies keep.
    pub(crate) fn pool_trim_all(&mut self, handle: Handle, keep_bytes: u64) {
        if self.pools.get(handle).is_some_and(|pool| pool.reserved.current > keep_bytes) {
            self.pool_clear_segments(handle);
        }
        self.pool_trim(handle, keep_bytes);
    }

    /// Releases all unused memory of every pool, because the device needs memory.
    pub(crate) fn pools_trim(&mut self, device: usize) {
        for handle in self.pools.handles() {
            let is_its = |pool: &Pool| pool.kind == PoolKind::Device && pool.device == device;
            if self.pools.get(handle).is_some_and(is_its) {
                self.pool_trim_all(handle, 0);
            }
        }
    }

    /// Releases memory beyond the release thresholds, after a synchronisation.
    pub(crate) fn pools_synchronised(&mut self) {
        for handle in self.pools.handles() {
            if let Some(keep_bytes) = self.pools.get(handle).map(|pool| pool.release_threshold_bytes) {
                self.pool_trim(handle, keep_bytes);
            }
        }
    }

    /// An attribute of 32 bits (the reuse policies) or 64 bits.
    pub(crate) fn pool_attribute(&self, handle: Handle, attribute: Attribute) -> Answer<PoolValue> {
        let pool = self.pool(handle)?;
        Ok(match attribute {
            Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => PoolValue::Long(pool.release_threshold_bytes),
            Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => PoolValue::Long(pool.reserved.current),
            Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => PoolValue::Long(pool.reserved.high),
            Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => PoolValue::Long(pool.used.current),
            Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => PoolValue::Long(pool.used.high),
            policy => PoolValue::Int(u32::from(*{ pool.policies }.switch(policy)?)),
        })
    }

    /// True if an attribute has 32 bits.
    pub(crate) fn is_policy(attribute: Attribute) -> bool {
        Policies::default().switch(attribute).is_ok()
    }

    pub(crate) fn pool_set_attribute(
        &mut self,
        handle: Handle,
        attribute: Attribute,
        value: u64,
    ) -> Answer<()> {
        self.pool(handle)?;
        let pool = self.pools.get_mut(handle).ok_or(INVALID_VALUE)?;
        match attribute {
            Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.release_threshold_bytes = value,
            // The two peaks may be reset, to zero only.
            Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if value == 0 => {
                pool.reserved.high = pool.reserved.current;
            }
            Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH if value == 0 => pool.used.high = pool.used.current,
            policy => return self.pool_set_policy(handle, policy, value != 0),
        }
        Ok(())
    }
}

//! Memory pools: stream-ordered allocation, reuse, and when memory goes back to the device.
//!
//! A pool reserves segments of 32 MiB or more. Who may have a block again that was freed says `reuse`. A program can't
//! rely on it, so all that it decides is how much memory is reserved, and what a missing wait does.
//!
//! Segments that are free whole go back at synchronisation, down to the release threshold, when the pool is trimmed,
//! or when the device has no memory left for somebody else.

mod kind;
mod reuse;

use super::backing::{Backing, Bytes};
use super::codes::{Answer, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use super::extents::Extents;
use super::handle::Handle;
use super::machine::Machine;
use super::memory::Allocation;
use super::operation::Operation;
use super::pending::Pending;
use super::plain::{ALIGNMENT_BYTES, CHUNK_BYTES, round_up};
use super::pool_file::Sharing;
use gpumem_sys::types::CUmemPool_attribute as Attribute;
pub(super) use kind::PoolKind;
use reuse::Policies;
use std::collections::{BTreeMap, BTreeSet};

/// One pool.
pub(super) struct Pool {
    pub(super) kind: PoolKind,
    /// Whose memory it hands out, or from where it was made.
    pub(super) device: usize,
    pub(super) is_default: bool,
    pub(super) is_closing: bool,
    /// The most it may reserve.
    bytes_max: u64,
    segments: BTreeMap<u64, Segment>,
    /// What any stream may have.
    free: Extents,
    pending: Pending,
    pub(super) reserved: Gauge,
    pub(super) used: Gauge,
    release_threshold_bytes: u64,
    policies: Policies,
    /// The other devices that may use its memory.
    pub(super) shared_with: BTreeSet<usize>,
    /// Whether the host was given access to managed memory, which it has anyway.
    is_hosts: bool,
    pub(super) sharing: Sharing,
}

struct Segment {
    backing: Backing,
    size_bytes: u64,
    /// Its place in the pool's file, if it has one.
    file_offset_bytes: u64,
}

/// A number of bytes and the most that it has been.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauge {
    pub(super) current: u64,
    pub(super) high: u64,
}

impl Gauge {
    pub(super) fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }
}

impl Pool {
    pub(super) fn new(device: usize, is_default: bool, bytes_max: u64) -> Self {
        Self {
            kind: PoolKind::Device,
            device,
            is_default,
            is_closing: false,
            bytes_max: reserve_max_bytes(bytes_max),
            segments: BTreeMap::new(),
            free: Extents::default(),
            pending: Pending::default(),
            reserved: Gauge::default(),
            used: Gauge::default(),
            release_threshold_bytes: 0,
            policies: Policies::default(),
            shared_with: BTreeSet::new(),
            is_hosts: false,
            sharing: Sharing::Private,
        }
    }

    pub(super) fn shared(self, sharing: Sharing) -> Self {
        Self { sharing, ..self }
    }

    fn bytes_at(&self, address: u64) -> Option<Bytes> {
        let (base, segment) = self.segments.range(..=address).next_back()?;
        (address - base < segment.size_bytes).then(|| segment.backing.bytes().at(address - base))
    }

    /// Where an address of the pool lies in its file.
    pub(super) fn file_offset_of(&self, address: u64) -> Option<u64> {
        let (base, segment) = self.segments.range(..=address).next_back()?;
        Some(segment.file_offset_bytes + (address - base))
    }

    /// The address of a place in the pool's file.
    pub(super) fn address_at(&self, file_offset_bytes: u64) -> Option<u64> {
        self.segments.iter().find_map(|(base, segment)| {
            let offset_bytes = file_offset_bytes.checked_sub(segment.file_offset_bytes)?;
            (offset_bytes < segment.size_bytes).then_some(base + offset_bytes)
        })
    }

    /// The segments that hold nothing, largest address first.
    fn idle_segment(&self) -> Option<(u64, u64)> {
        let idle = |&(&base, segment): &(&u64, &Segment)| self.free.is_whole(base, segment.size_bytes);
        self.segments.iter().rev().find(idle).map(|(&base, segment)| (base, segment.size_bytes))
    }
}

impl Machine {
    /// The pool that `cuMemAllocAsync` takes from on a stream.
    pub(super) fn pool_of_stream(&self, stream: Handle) -> Answer<Handle> {
        let device = self.streams.get(stream).ok_or(INVALID_HANDLE)?.device;
        Ok(self.devices.get(device).ok_or(INVALID_DEVICE)?.pool)
    }

    pub(super) fn pool(&self, handle: Handle) -> Answer<&Pool> {
        self.pools.get(handle).filter(|pool| !pool.is_closing).ok_or(INVALID_VALUE)
    }

    /// A pool that allocates, as one that was imported does not.
    pub(super) fn pool_to_take_from(&self, handle: Handle) -> Answer<&Pool> {
        self.pool(handle)
            .and_then(|pool| if pool.sharing.is_imported() { Err(INVALID_VALUE) } else { Ok(pool) })
    }

    /// The pool goes when the last of its blocks is back.
    pub(super) fn pool_destroy(&mut self, handle: Handle) -> Answer<()> {
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

    pub(super) fn pool_close_if_empty(&mut self, handle: Handle) {
        if self.pools.get(handle).is_some_and(|pool| pool.is_closing) {
            self.pool_trim_all(handle, 0);
            let is_empty = |pool: &Pool| pool.segments.is_empty() && !self.has_imports(handle);
            if self.pools.get(handle).is_some_and(is_empty) {
                self.pools.remove(handle);
            }
        }
    }

    /// Memory in a stream's order.
    pub(super) fn alloc_async(&mut self, pool: Handle, size_bytes: u64, stream: Handle) -> Answer<u64> {
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
        let rounded_bytes = round_up(size_bytes, ALIGNMENT_BYTES)?;
        let base = self.pool_take(pool, rounded_bytes, stream)?;
        let found = self.pools.get_mut(pool).ok_or(INVALID_VALUE)?;
        let bytes = found.bytes_at(base).ok_or(OUT_OF_MEMORY)?;
        found.used.add(size_bytes);
        let owner = kind.owner(pool);
        let call = self.made_here();
        let allocation = Allocation { base, size_bytes, bytes, device, context, owner, call, born: None };
        let born = Some(self.enqueue(stream, Operation::Alloc(allocation)));
        self.memory.at_call.insert(base, Allocation { born, ..allocation });
        Ok(base)
    }

    fn pool_grow(&mut self, handle: Handle, size_bytes: u64) -> Answer<()> {
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
    pub(super) fn free_async(&mut self, base: u64, stream: Handle) -> Answer<()> {
        if base == 0 {
            return Ok(());
        }
        if self.is_capturing(stream) {
            return self.capture_free(stream, base);
        }
        let allocation = self.device_allocation(base)?;
        self.retire(base);
        let point = self.enqueue(stream, Operation::Free(allocation));
        if let Some(pool) = allocation.owner.pool()
            && let Some(pool) = self.pools.get_mut(pool)
        {
            pool.pending.insert(base, allocation.size_bytes.next_multiple_of(ALIGNMENT_BYTES), point);
        }
        Ok(())
    }

    /// The program has given a block back, though its bytes may still be in use.
    pub(super) fn pool_retire(&mut self, handle: Handle, size_bytes: u64) {
        if let Some(pool) = self.pools.get_mut(handle) {
            pool.used.current -= size_bytes;
        }
    }

    /// Gives idle segments back until no more than this is reserved, or none is idle.
    pub(super) fn pool_trim(&mut self, handle: Handle, keep_bytes: u64) {
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

    /// As [`Self::pool_trim`], with the segments that are idle but for the policies.
    pub(super) fn pool_trim_all(&mut self, handle: Handle, keep_bytes: u64) {
        if self.pools.get(handle).is_some_and(|pool| pool.reserved.current > keep_bytes) {
            self.pool_clear_segments(handle);
        }
        self.pool_trim(handle, keep_bytes);
    }

    /// The device needs memory: every pool gives back what it can.
    pub(super) fn pools_trim(&mut self, device: usize) {
        for handle in self.pools.handles() {
            let is_its = |pool: &Pool| pool.kind == PoolKind::Device && pool.device == device;
            if self.pools.get(handle).is_some_and(is_its) {
                self.pool_trim_all(handle, 0);
            }
        }
    }

    /// Somebody has synchronised: what exceeds the release thresholds goes back.
    pub(super) fn pools_synchronised(&mut self) {
        for handle in self.pools.handles() {
            if let Some(keep_bytes) = self.pools.get(handle).map(|pool| pool.release_threshold_bytes) {
                self.pool_trim(handle, keep_bytes);
            }
        }
    }

    /// An attribute of 32 bits (the policies) or 64.
    pub(super) fn pool_attribute(&self, handle: Handle, attribute: Attribute) -> Answer<PoolValue> {
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

    /// Whether an attribute is read and written as 32 bits.
    pub(super) fn is_policy(attribute: Attribute) -> bool {
        Policies::default().switch(attribute).is_ok()
    }

    pub(super) fn pool_set_attribute(
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

/// An attribute's value, as wide as the driver writes it.
pub(super) enum PoolValue {
    Int(u32),
    Long(u64),
}

/// The most that a pool reserves for a `maxSize`: whole segments, and 0 is no bound.
fn reserve_max_bytes(max_size_bytes: u64) -> u64 {
    match max_size_bytes {
        0 => u64::MAX,
        max => max.checked_next_multiple_of(SEGMENT_BYTES).unwrap_or(u64::MAX),
    }
}

const SEGMENT_BYTES: u64 = 32 << 20;

//! [`MemorySource`]: what every backend does, and [`BackendSetup`]: what it is created from.

#[cfg(unix)]
use super::allocation::Underlying;
use super::allocation::{Allocation, FreeOutcome, FreeRequest};
use super::figures::{Counts, Reserved};
use super::search::Search;
use crate::config::Config;
use crate::error::{OutOfMemory, PoolError};
use crate::figures::ActivityCounters;
use crate::limits::Limits;
use crate::stats::Tags;
use enum_dispatch::enum_dispatch;
use gpumem_base::counters::Counters;
use gpumem_device::internal::PeerDevice;
use gpumem_device::{Device, Stream, StreamId};
use std::sync::Arc;

/// A source of device memory. Any number of threads may call any method at the same time, with any context current.
#[enum_dispatch]
pub(crate) trait MemorySource {
    /// Allocates memory for work that is queued on `stream` from now on, at a multiple of `alignment`, which is a power of
    /// two. Calls `climb` if no memory is free.
    ///
    /// # Errors
    ///
    /// The errors of `climb`. `DeviceError::Driver` or `DeviceError::DeviceLost` if a call fails for a reason other than a shortage of memory.
    fn alloc(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
        climb: impl FnOnce(&mut dyn Search<Allocation>) -> Result<Allocation, PoolError>,
    ) -> Result<Allocation, PoolError>;

    /// Allocates up to `count_max` blocks of `size_bytes` each from free memory. Neither grows nor waits.
    fn alloc_ready(&self, _size_bytes: u64, _count_max: usize, _stream: &Stream) -> Vec<Allocation> {
        Vec::new()
    }

    /// Like [`put_back_small`](super::put_back_small), for any size.
    fn put_back(
        &self,
        _cache_key: u64,
        _allocation: &Allocation,
        _size_bytes: u64,
        _owner_stream: StreamId,
    ) -> bool {
        false
    }

    /// Adds the backend's figures to the report of a request that it could not serve.
    ///
    /// # Errors
    ///
    /// `DeviceError::Driver` or `DeviceError::DeviceLost` if a query fails.
    fn describe(&self, report: &mut OutOfMemory) -> Result<(), PoolError>;

    /// Gives a peer device access to all memory of the pool, present and future. The peer has a link to the pool's
    /// device. A further call for the same device changes nothing.
    fn enable_peer_access(&self, peer: PeerDevice) -> Result<(), PoolError>;

    fn pin(&self, allocation: Allocation) -> Result<(), PoolError>;

    /// The physical memory under a live allocation, if it can be exported to other processes.
    #[cfg(unix)]
    fn backing(&self, _allocation: Allocation) -> Result<Option<Underlying>, PoolError> {
        Ok(None)
    }

    /// The addresses that the device has memory for: start and size in bytes, in any order. Empty for backends that keep no records.
    fn resident_ranges(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Takes back a block that is being dropped. Never panics. Never waits, except in `none`.
    fn free(&self, freed: &FreeRequest) -> FreeOutcome;

    /// Reserves at least `size_bytes` from the device, if the backend keeps memory, with the help of `climb`.
    fn reserve(
        &self,
        _size_bytes: u64,
        _climb: impl FnOnce(&mut dyn Search<()>) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        Ok(())
    }

    /// Checks the backend's counters and returns the first contradiction. Exact while nothing else uses the pool.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Ends allocation, when the last handle to the pool is dropped. Called once. Returns the number of live blocks
    /// that the backend counts. When such a block is freed later, [`FreeOutcome::counted`] is false.
    fn close(&self) -> u64 {
        0
    }

    fn counts(&self) -> Counts;

    /// The counters of each stream that has live blocks. The entry `None` sums the streams that are gone.
    fn streams(&self) -> Vec<(Option<StreamId>, Counters)>;

    fn reset_peaks(&self) -> Result<(), PoolError>;

    fn has_plain_segments(&self) -> bool {
        false
    }

    fn lack(&self) -> Option<String> {
        None
    }

    /// Refuses a hard limit that the backend would not apply. Called before the limit changes.
    fn check_hard_limit(&self, _limit_bytes: u64) -> Result<(), PoolError> {
        Ok(())
    }

    /// True if reservations, including cached memory, never exceed `bytes`, which is at least the hard limit.
    fn is_bounded_by(&self, _bytes: u64) -> bool {
        true
    }

    /// Called after the soft limit has changed, and when a changed hard limit is below the reserved memory.
    fn limits_changed(&self) -> Result<(), PoolError> {
        Ok(())
    }

    /// Returns free memory to the driver until `keep_bytes` are reserved.
    fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError>;

    /// Waits for the device, then returns all memory that no block holds to the driver.
    fn reclaim(&self) -> Result<(), PoolError>;

    /// The memory reserved from the device. `None` if the backend reserves only the memory of live blocks.
    fn reserved(&self) -> Result<Option<Reserved>, PoolError>;
}

#[derive(Clone, Copy)]
pub(crate) struct BackendSetup<'a> {
    pub(crate) device: &'a Device,
    pub(crate) config: &'a Config,
    pub(crate) limits: &'a Limits,
    pub(crate) tags: &'a Tags,
    pub(crate) activity: &'a Arc<ActivityCounters>,
}

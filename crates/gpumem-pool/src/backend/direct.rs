//! [`Direct`]: a backend that calls the driver for each block. `native` and `none` share its counters and its ladder.
//!
//! The hard limit bounds the memory of live blocks. Every request is admitted before the driver is called. A free is
//! counted as soon as the block is dropped, so waiting for the free would not make room under the limit.
//!
//! When the device is full, an allocation waits for the device once. It then releases the memory that the driver
//! keeps for reuse, and the memory that ended pools have left. Nothing else here waits.

mod eager;

use super::{Allocation, Counts, FreeOutcome, FreeRequest, Reserved, Source};
use crate::config::{ALIGNMENT_MIN, BackendKind, Config, MemoryKind};
use crate::device::{Device, Idle, MarkerEvent, Stream, StreamId, StreamIndex, deadline};
use crate::error::{Attempt, GrowthLog, LimitExceeded, OutOfMemory, PoolError, Sample};
use crate::limits::{Admission, Limits};
use crate::stats::UsageCounters;
use core::ops::Deref;
use core::time::Duration;
use gpumem_heap::counters::Counters;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUdeviceptr, CUresult};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Instant;

/// The driver calls of one backend. An implementation does nothing else, and returns the driver's errors.
pub(crate) trait DriverAllocator {
    const KIND: BackendKind;

    /// Whether freed memory stays reserved, so that a trim can make room.
    const KEEPS_MEMORY: bool;

    /// Allocates memory for work that is queued on `stream` from now on.
    ///
    /// # Errors
    ///
    /// The [`DriverError`] of the call that failed; its code is `CUDA_ERROR_OUT_OF_MEMORY` if there is no room.
    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError>;

    /// Frees memory once all its uses are complete, including uses that are queued at the time of the call. After an
    /// error, nothing has been freed.
    fn release(&self, device: &Device, freed: &FreeRequest) -> Result<(), DriverError>;

    /// Queues the frees that could not yet be placed in a stream's order. Returns whether any has been queued.
    fn sweep(&self) -> Result<bool, DriverError> {
        Ok(false)
    }

    /// Like [`sweep`](Self::sweep), after polling for completed work. Records markers for pending work, so that a
    /// later poll can detect its completion.
    fn look(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Whether any released memory still waits for work.
    fn has_waiting(&self) -> bool {
        false
    }

    /// Waits for work of other devices that delays released memory, up to the deadline if there is one.
    fn finish_others(&self, _until: Option<Instant>) -> Result<(), DriverError> {
        Ok(())
    }

    /// Gives another device access to acquired memory, present and future.
    fn enable_peer_access(&self, device: &Device, peer: &Device) -> Result<(), DriverError>;

    /// Called before the hard limit changes to `limit_bytes`.
    fn allow_hard_limit(&self, _limit_bytes: u64) {}

    /// Sets the soft limit. Memory kept beyond it is released when the host waits.
    fn set_soft_limit(&self, _limit_bytes: Option<u64>) -> Result<(), DriverError> {
        Ok(())
    }

    /// Resets the driver's own peak counter, if it has one.
    fn reset_peak(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Pins acquired memory under its addresses.
    ///
    /// # Errors
    ///
    /// `PoolError::NotWithBackend` if the backend cannot pin memory.
    fn pin(&self) -> Result<(), PoolError>;

    /// Returns free memory to the device until `keep_bytes` are reserved.
    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError>;

    /// The memory reserved from the device. `None` if the backend reserves only the memory of live blocks.
    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError>;
}

pub(crate) struct Direct<C>(Arc<DirectBackend<C>>);

/// The backend itself. Its device holds weak references to it.
pub(crate) struct DirectBackend<C> {
    device: Device,
    counters: UsageCounters,
    /// The counters of streams that have live blocks.
    streams: Mutex<BTreeMap<StreamId, Counters>>,
    admission: Admission,
    limits: Limits,
    growth: GrowthLog,
    idle: Idle,
    hears_of_waits: Once,
    /// See [`PoolBuilder::garbage_collection_threshold`](crate::PoolBuilder::garbage_collection_threshold).
    collect_above: Option<f64>,
    /// Events that the driver has not yet been shown, each queued in its stream when the pool last held too much
    /// memory; see `eager`.
    unseen: Mutex<Vec<(StreamIndex, MarkerEvent)>>,
    /// See [`Tuning::wait_deadline`](crate::Tuning::wait_deadline).
    wait_deadline: Duration,
    calls: C,
}

impl<C: DriverAllocator + Send + Sync + 'static> Direct<C> {
    pub(super) fn new(device: &Device, config: &Config, limits: &Limits, calls: C) -> Self {
        let (device, admission, limits) =
            (device.clone(), Admission::new(config, limits, device.budget()), limits.clone());
        let growth = GrowthLog::default();
        let direct = Arc::new(DirectBackend {
            device,
            counters: UsageCounters::default(),
            streams: Mutex::default(),
            admission,
            limits,
            growth,
            idle: Idle::new(config.idle_after),
            hears_of_waits: Once::new(),
            collect_above: config.collect_above,
            unseen: Mutex::default(),
            wait_deadline: config.tuning.wait_deadline,
            calls,
        });
        if C::KEEPS_MEMORY {
            let member: Weak<DirectBackend<C>> = Arc::downgrade(&direct);
            direct.device.maintenance().add_trimmable(member);
            direct.device.maintenance().add_driver_pool();
        }
        let direct = Self(direct);
        if direct.idle.is_asked_for() || direct.limits.soft_bytes().is_some() {
            direct.hear_of_waits();
        }
        direct
    }

    /// Registers the pool for notifications of host waits, if the backend keeps memory.
    fn hear_of_waits(&self) {
        if C::KEEPS_MEMORY {
            self.hears_of_waits.call_once(|| {
                let waiting: Weak<DirectBackend<C>> = Arc::downgrade(&self.0);
                self.device.maintenance().add_pool(waiting);
            });
        }
    }
}

impl<C> Deref for Direct<C> {
    type Target = DirectBackend<C>;

    fn deref(&self) -> &DirectBackend<C> {
        &self.0
    }
}

impl<C: DriverAllocator> DirectBackend<C> {
    fn admit(&self, size_bytes: u64) -> Result<(), PoolError> {
        let refused =
            |passed| self.refusal(size_bytes, self.counters.in_use_bytes(), Some(passed), Vec::new());
        self.admission.admit(size_bytes).map_err(refused)
    }

    fn count_in(&self, owner_stream: StreamId, size_bytes: u64) {
        let mut streams = self.lock_streams();
        let counters = streams.entry(owner_stream).or_default();
        counters.count_in(size_bytes);
        if counters.block_count() == 0 {
            streams.remove(&owner_stream);
        }
    }

    fn lock_streams(&self) -> MutexGuard<'_, BTreeMap<StreamId, Counters>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ladder: memory that is free now, then memory that a trim releases, then an error with a report.
    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, PoolError> {
        let full = match self.acquire_sparingly(size_bytes, stream) {
            Err(error) if is_full(&error) => error,
            other => return Ok(other?),
        };
        let attempts = vec![self.reclaim_watched()?];
        match self.calls.acquire(size_bytes, stream) {
            Err(error) if is_full(&error) => {}
            other => return Ok(other?),
        }
        match self.refusal(size_bytes, self.counters.in_use_bytes(), None, attempts) {
            // Without the numbers for a report, the driver's own error is returned.
            PoolError::Driver(_) => Err(full.into()),
            with_report => Err(with_report),
        }
    }

    /// Allocates, and trims memory that is idle beyond the garbage collection threshold, if there is one.
    ///
    /// If the counters show that the driver must reserve more memory, the trim comes before the allocation. If the
    /// driver reserves more although the counters show enough, no free range was large enough; the trim then follows
    /// at once.
    fn acquire_sparingly(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        let (Some(share), true) = (self.collect_above, C::KEEPS_MEMORY) else {
            return self.calls.acquire(size_bytes, stream);
        };
        let keep_bytes = self.limits.part_bytes(share, self.device.total_bytes());
        let before_bytes = self.calls.reserved(&self.device)?.map_or(0, |held| held.current_bytes);
        let has_enough = self.counters.in_use_bytes().saturating_add(size_bytes) <= before_bytes;
        if !has_enough && before_bytes.saturating_add(size_bytes) > keep_bytes {
            self.calls.trim_to(&self.device, keep_bytes.saturating_sub(size_bytes))?;
        }
        let address = self.calls.acquire(size_bytes, stream)?;
        // The block is allocated, so a failed trim is left to the next call.
        if let Ok(Some(after)) = self.calls.reserved(&self.device)
            && after.current_bytes > before_bytes.max(keep_bytes)
        {
            let _ = self.calls.trim_to(&self.device, keep_bytes);
        }
        Ok(address)
    }

    /// Waits for the device, then releases all free memory, including that of ended pools.
    fn give_back(&self) -> Result<(), PoolError> {
        self.device.finish_with_maintenance()?;
        self.calls.finish_others(None)?;
        self.calls.sweep()?;
        // The sweep, or the maintenance before it, may have queued frees on a stream of the pool's own.
        self.device.finish()?;
        Ok(self.calls.trim_to(&self.device, 0)?)
    }

    /// Like [`give_back`](Self::give_back), for an allocation: the wait ends at the allocation's deadline. Pinned
    /// memory is waited for only if some of it is pending.
    fn give_back_in_time(&self) -> Result<(), PoolError> {
        let kind = self.admission.kind();
        let needs_wait = kind != MemoryKind::Host
            || self.calls.has_waiting()
            || self.device.maintenance().has_left_for(kind);
        if needs_wait {
            let until = deadline::until(self.wait_deadline);
            self.device.finish_with_maintenance_until(until)?;
            self.calls.finish_others(Some(until))?;
            self.calls.sweep()?;
            self.device.finish_until(until)?;
        }
        Ok(self.calls.trim_to(&self.device, 0)?)
    }

    fn reclaim_watched(&self) -> Result<Attempt, PoolError> {
        let reserved_bytes =
            || Ok::<_, PoolError>(self.calls.reserved(&self.device)?.map_or(0, |held| held.current_bytes));
        let (start, before_bytes) = (Instant::now(), reserved_bytes()?);
        self.give_back_in_time()?;
        let gained_bytes = before_bytes.saturating_sub(reserved_bytes()?);
        Ok(Attempt {
            name: "wait for the device and trim",
            gained_bytes,
            took: start.elapsed(),
            failures: Vec::new(),
        })
    }

    fn refusal(
        &self,
        requested_bytes: u64,
        in_use_bytes: u64,
        passed: Option<LimitExceeded>,
        attempts: Vec<Attempt>,
    ) -> PoolError {
        let (info, reserved) = match (self.device.memory_info(), self.calls.reserved(&self.device)) {
            (Ok(info), Ok(reserved)) => (info, reserved),
            (Err(error), _) => return error,
            (_, Err(error)) => return error.into(),
        };
        let reserved_bytes = reserved.map_or(in_use_bytes, |reserved| reserved.current_bytes);
        // If the device has room, the refusal came from the driver's pool. Its bound counts reserved memory.
        let is_full = |passed: &LimitExceeded| {
            info.free_bytes >= requested_bytes
                && reserved_bytes.saturating_add(requested_bytes) > passed.limit_bytes
        };
        let pools_limit = || self.limits.passed(in_use_bytes).filter(is_full);
        let report = OutOfMemory {
            requested_bytes,
            in_use_bytes,
            block_count: self.counters.block_count(),
            reserved_bytes,
            device_free_bytes: info.free_bytes,
            device_total_bytes: info.total_bytes,
            attempts,
            growth: self.growth.steady(in_use_bytes),
            unfinished: self.device.unfinished_of_request(),
            ..OutOfMemory::default()
        };
        PoolError::refused(report.limited(passed.or_else(pools_limit), in_use_bytes))
    }

    fn note_growth(&self) {
        let in_use_bytes = self.counters.in_use_bytes();
        if self.growth.is_due(in_use_bytes) {
            let (block_count, allocation_count) =
                (self.counters.block_count(), self.counters.allocation_count());
            self.growth.add(in_use_bytes, Sample { in_use_bytes, block_count, allocation_count });
        }
    }
}

impl<C: DriverAllocator + Send + Sync + 'static> Source for Direct<C> {
    fn kind(&self) -> BackendKind {
        C::KIND
    }

    fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<Allocation, PoolError> {
        self.admit(size_bytes)?;
        let acquired = self.acquire(size_bytes, stream);
        let address = acquired.inspect_err(|_| self.admission.give_back(size_bytes))?;
        self.counters.count_out(size_bytes);
        self.lock_streams().entry(stream.id()).or_default().count_out(size_bytes);
        self.note_growth();
        self.device.serve();
        Ok(Allocation::new(address, 0, 0))
    }

    fn alloc_aligned(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Allocation, PoolError> {
        let whole = self.alloc(padded_bytes(size_bytes, alignment.ilog2()), stream)?;
        let padding_bytes = whole.address.wrapping_neg() & (alignment - 1);
        let padding_count = (padding_bytes / ALIGNMENT_MIN) as u32;
        Ok(Allocation::new(whole.address + padding_bytes, padding_count, alignment.ilog2() as u16))
    }

    fn free(&self, freed: &FreeRequest) -> FreeOutcome {
        let freed = &whole(freed);
        let result = match self.calls.release(&self.device, freed) {
            // The driver is shutting down, and releases the memory itself.
            Err(cause) if cause.is_shutdown() => Ok(()),
            other => other,
        };
        // Memory that was not freed may still be in use, so it stays counted.
        if result.is_ok() {
            self.counters.count_in(freed.size_bytes);
            self.count_in(freed.owner_stream, freed.size_bytes);
            self.admission.give_back(freed.size_bytes);
        }
        FreeOutcome { result, counted: false }
    }

    fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        Ok(self.calls.enable_peer_access(&self.device, peer)?)
    }

    fn pin(&self, _: Allocation) -> Result<(), PoolError> {
        self.calls.pin()
    }

    fn allow_hard_limit(&self, limit_bytes: u64) {
        self.calls.allow_hard_limit(limit_bytes);
    }

    fn limits_changed(&self) -> Result<(), PoolError> {
        if self.limits.soft_bytes().is_some() {
            self.hear_of_waits();
        }
        Ok(self.calls.set_soft_limit(self.limits.soft_bytes())?)
    }

    fn close(&self) -> u64 {
        0
    }

    fn counts_blocks(&self) -> bool {
        false
    }

    fn keeps_memory(&self) -> bool {
        C::KEEPS_MEMORY
    }

    fn counts(&self) -> Counts {
        Counts {
            in_use_bytes: self.counters.in_use_bytes(),
            in_use_peak_bytes: self.counters.in_use_peak_bytes(),
            block_count: self.counters.block_count(),
            allocation_count: self.counters.allocation_count(),
        }
    }

    fn streams(&self) -> Vec<(Option<StreamId>, Counters)> {
        self.lock_streams().iter().map(|(stream, counters)| (Some(*stream), *counters)).collect()
    }

    fn reset_peaks(&self) -> Result<(), PoolError> {
        self.counters.reset_peak();
        Ok(self.calls.reset_peak()?)
    }

    fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError> {
        self.calls.sweep()?;
        Ok(self.calls.trim_to(&self.device, keep_bytes)?)
    }

    fn reclaim(&self) -> Result<(), PoolError> {
        self.give_back()
    }

    fn reserved(&self) -> Result<Option<Reserved>, PoolError> {
        Ok(self.calls.reserved(&self.device)?)
    }
}

/// The driver's allocation under a block that may be aligned.
fn whole(freed: &FreeRequest) -> FreeRequest {
    let address = freed.allocation.address - u64::from(freed.allocation.record()) * ALIGNMENT_MIN;
    FreeRequest {
        allocation: Allocation { address, ..freed.allocation },
        size_bytes: padded_bytes(freed.size_bytes, u32::from(freed.allocation.class())),
        ..*freed
    }
}

/// The size with padding for the alignment, wherever the driver's allocation starts. An exponent of 0 means no
/// alignment.
fn padded_bytes(size_bytes: u64, alignment_exponent: u32) -> u64 {
    size_bytes.saturating_add((1_u64 << alignment_exponent).saturating_sub(ALIGNMENT_MIN))
}

pub(super) fn is_full(error: &DriverError) -> bool {
    error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

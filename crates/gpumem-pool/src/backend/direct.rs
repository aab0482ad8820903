//! [`DirectBackend`]: a backend that calls the driver for each block. `native` and `none` share its counters and its ladder.
//!
//! The hard limit bounds the memory of live blocks. Every request is admitted before the driver is called. A free is counted as soon as the
//! block is dropped, so waiting for the free would not make room under the limit. Memory that the driver refuses to free is no longer in
//! use but stays reserved: it counts against the limit until the pool ends.
//!
//! When the device is full, the ladder waits once for the device. It then
//! releases the memory that the driver keeps for reuse, and the memory that ended pools have left ([`DirectSearch`]).
//! Nothing else here waits.

mod eager;

use super::allocation::{Allocation, FreeOutcome, FreeRequest};
use super::figures::{Counts, Reserved};
use super::search::{Outcome, Search, Shortage, WAIT_AND_TRIM};
use super::source::{BackendSetup, MemorySource};
use crate::config::{ALIGNMENT_MIN, MemoryKind};
use crate::error::{GrowthLog, LimitExceeded, OutOfMemory, PoolError, Refusal, Sample};
use crate::figures::ActivityCounters;
use crate::limits::{Admission, DeviceBudget, Limits, Trimmable, WeakList};
use crate::stats::{Tags, Usage};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use gpumem_base::counters::Counters;
use gpumem_base::sync::Lock;
use gpumem_device::internal::{Idle, MarkerEvent, PeerDevice, StreamIndex, deadline};
use gpumem_device::{Device, Stream, StreamId};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;
use std::sync::{Arc, Once, Weak};
use std::time::Instant;

/// The driver calls of one backend. An implementation does nothing else, and returns the driver's errors.
pub(crate) trait DriverAllocator: Send + Sync + 'static {
    /// True if freed memory stays reserved, so that a trim can make room.
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

    /// Queues the frees that could not yet be placed in a stream's order. Returns true if any was queued.
    fn sweep(&self) -> Result<bool, DriverError> {
        Ok(false)
    }

    /// True if any released memory still waits for work.
    fn has_waiting(&self) -> bool {
        false
    }

    fn enable_peer_access(&self, device: &Device, peer: PeerDevice) -> Result<(), PoolError>;

    /// Refuses a hard limit that the driver would not apply. Called before the limit changes.
    fn check_hard_limit(&self, _limit_bytes: u64) -> Result<(), PoolError> {
        Ok(())
    }

    /// True if reservations, including cached memory, never exceed `bytes`, which is at least the hard limit.
    fn is_bounded_by(&self, _bytes: u64) -> bool {
        true
    }

    fn set_soft_limit(&self, _limit_bytes: Option<u64>) -> Result<(), DriverError> {
        Ok(())
    }

    fn reset_peak(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Pins acquired memory to its addresses.
    ///
    /// # Errors
    ///
    /// `PoolError::Unsupported` if the backend cannot pin memory.
    fn pin(&self) -> Result<(), PoolError>;

    /// The bytes by which the driver rounds up live blocks, if known.
    fn rounding_bytes(&self) -> u64 {
        0
    }

    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError>;

    /// The memory reserved from the device. `None` if the backend reserves only the memory of live blocks.
    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError>;
}

/// A backend whose blocks are allocations of the driver. Its device holds weak references to it.
pub(crate) struct DirectBackend<C> {
    own: Weak<Self>,
    device: Device,
    usage: Lock<Usage>,
    admission: Admission,
    unfreed_bytes: AtomicU64,
    limits: Limits,
    growth: GrowthLog,
    tags: Tags,
    activity: Arc<ActivityCounters>,
    idle: Idle,
    is_registered_for_waits: Once,
    collect_above: Option<f64>,
    /// Events that the host has not yet waited for, each queued in its stream when the pool last held too much memory; see `eager`.
    unseen: Lock<Vec<(StreamIndex, MarkerEvent)>>,
    wait_deadline: Duration,
    calls: C,
}

impl<C: DriverAllocator> DirectBackend<C> {
    pub(super) fn new(setup: BackendSetup<'_>, calls: C) -> Arc<Self> {
        let BackendSetup { device, config, limits, tags, activity } = setup;
        let direct = Arc::new_cyclic(|own| Self {
            own: own.clone(),
            device: device.clone(),
            usage: Lock::default(),
            admission: Admission::new(config, limits, &DeviceBudget::on(device)),
            unfreed_bytes: AtomicU64::new(0),
            limits: limits.clone(),
            growth: GrowthLog::default(),
            tags: tags.clone(),
            activity: Arc::clone(activity),
            idle: Idle::new(config.idle_after),
            is_registered_for_waits: Once::new(),
            collect_above: config.collect_above,
            unseen: Lock::default(),
            wait_deadline: config.tuning.wait_deadline,
            calls,
        });
        if C::KEEPS_MEMORY {
            WeakList::<dyn Trimmable>::on(device).add(direct.own.clone());
            device.maintenance().add_driver_pool();
        }
        if direct.idle.is_asked_for() || direct.limits.soft_bytes().is_some() {
            direct.register_for_waits();
        }
        direct
    }

    fn register_for_waits(&self) {
        if C::KEEPS_MEMORY {
            self.is_registered_for_waits.call_once(|| self.device.maintenance().add_pool(self.own.clone()));
        }
    }

    /// Allocates, and trims memory that is idle beyond the garbage collection threshold, if any.
    ///
    /// If the counters show that the driver must reserve more memory, the trim comes before the allocation. If the driver reserves more
    /// although the counters show enough, no free range was large enough; the trim then follows immediately.
    fn acquire_sparingly(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        let (Some(share), true) = (self.collect_above, C::KEEPS_MEMORY) else {
            return self.calls.acquire(size_bytes, stream);
        };
        let keep_bytes = self.limits.part_bytes(share, self.device.total_bytes());
        let before_bytes = self.calls.reserved(&self.device)?.map_or(0, |held| held.current_bytes);
        let has_enough = self.usage.lock().total.in_use_bytes().saturating_add(size_bytes) <= before_bytes;
        if !has_enough && before_bytes.saturating_add(size_bytes) > keep_bytes {
            self.trim(keep_bytes.saturating_sub(size_bytes))?;
        }
        let address = self.calls.acquire(size_bytes, stream)?;
        // The block is allocated, so the next call retries a failed trim.
        if let Ok(Some(after)) = self.calls.reserved(&self.device)
            && after.current_bytes > before_bytes.max(keep_bytes)
        {
            let _ = self.trim(keep_bytes);
        }
        Ok(address)
    }

    /// Waits for the device, up to the deadline, if any. Then releases all free memory, including that of ended pools. The inner result is
    /// the outcome of freeing dropped blocks, whose errors concern no other block.
    fn give_back(&self, until: Option<Instant>) -> Result<Result<bool, DriverError>, PoolError> {
        self.activity.host_wait(|| self.device.finish_with_maintenance(until))?;
        let swept = self.calls.sweep();
        // The sweep, or the maintenance before it, may have queued frees on the pool's own stream.
        match until {
            None => self.device.finish()?,
            Some(until) => drop(self.device.finish_until(until)?),
        }
        self.trim(0)?;
        Ok(swept)
    }

    /// Returns free memory to the driver until `keep_bytes` are reserved, and counts it.
    fn trim(&self, keep_bytes: u64) -> Result<(), DriverError> {
        // A failed query counts nothing.
        let reserved_bytes =
            || self.calls.reserved(&self.device).ok().flatten().map_or(0, |held| held.current_bytes);
        let before_bytes = reserved_bytes();
        let trimmed = self.calls.trim_to(&self.device, keep_bytes);
        if before_bytes > 0 {
            self.activity.trimmed_bytes.add(before_bytes.saturating_sub(reserved_bytes()));
        }
        trimmed
    }

    /// Makes room for an allocation, within its deadline. For pinned memory, waits only if some of it is pending.
    fn make_room(&self) -> Result<(), PoolError> {
        let kind = self.admission.kind;
        let needs_wait = kind != MemoryKind::Host
            || self.calls.has_waiting()
            || self.device.maintenance().has_deferred_for(kind == MemoryKind::Host);
        match needs_wait {
            // The next trim reports a failed free.
            true => self.give_back(Some(deadline::until(self.wait_deadline))).map(drop),
            false => Ok(self.trim(0)?),
        }
    }

    /// The memory that no trim releases: live blocks, and memory that the driver refused to free.
    fn bound_bytes(&self) -> u64 {
        self.usage.lock().total.in_use_bytes().saturating_add(self.unfreed_bytes.load(Ordering::Relaxed))
    }

    fn counts(&self) -> Counts {
        let Usage { total, in_use_peak_bytes, .. } = *self.usage.lock();
        Counts {
            in_use_bytes: total.in_use_bytes(),
            in_use_peak_bytes,
            block_count: total.block_count(),
            allocation_count: total.allocation_count(),
        }
    }

    #[cfg(feature = "backend-native")]
    pub(super) fn calls(&self) -> &C {
        &self.calls
    }

    fn note_growth(&self) {
        let Counts { in_use_bytes, block_count, allocation_count, .. } = self.counts();
        if self.growth.is_due(in_use_bytes) {
            let tags = self.tags.in_use();
            self.growth.add(in_use_bytes, Sample { in_use_bytes, block_count, allocation_count, tags });
        }
    }
}

impl<C: DriverAllocator> MemorySource for Arc<DirectBackend<C>> {
    fn alloc(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
        climb: impl FnOnce(&mut dyn Search<Allocation>) -> Result<Allocation, PoolError>,
    ) -> Result<Allocation, PoolError> {
        let exponent = if alignment > ALIGNMENT_MIN { alignment.ilog2() } else { 0 };
        let (refusal, before) = (None, Counts::default());
        let mut search = DirectSearch { backend: self, size_bytes, exponent, stream, refusal, before };
        match search.attempt(DirectBackend::acquire_sparingly)? {
            Outcome::Found(allocation) => Ok(allocation),
            _ => climb(&mut search),
        }
    }

    fn describe(&self, report: &mut OutOfMemory) -> Result<(), PoolError> {
        let Counts { in_use_bytes, block_count, .. } = self.counts();
        let reserved = self.calls.reserved(&self.device)?;
        (report.in_use_bytes, report.block_count) = (in_use_bytes, block_count);
        report.rounding_bytes = self.calls.rounding_bytes();
        report.reserved_bytes = match reserved {
            Some(reserved) => reserved.current_bytes,
            None => in_use_bytes.saturating_add(report.rounding_bytes),
        };
        report.growth = self.growth.steady(in_use_bytes);
        Ok(())
    }

    fn free(&self, freed: &FreeRequest) -> FreeOutcome {
        let freed = &whole(freed);
        let result = match self.calls.release(&self.device, freed) {
            // The driver is shutting down, and releases the memory itself.
            Err(cause) if cause.is_shutdown() => Ok(()),
            other => other,
        };
        self.usage.lock().count_in(freed.owner_stream, freed.size_bytes);
        match result {
            Ok(()) => self.admission.give_back(freed.size_bytes),
            Err(_) => drop(self.unfreed_bytes.fetch_add(freed.size_bytes, Ordering::Relaxed)),
        }
        FreeOutcome { result, counted: false }
    }

    fn enable_peer_access(&self, peer: PeerDevice) -> Result<(), PoolError> {
        self.calls.enable_peer_access(&self.device, peer)
    }

    fn pin(&self, _: Allocation) -> Result<(), PoolError> {
        self.calls.pin()
    }

    fn check_hard_limit(&self, limit_bytes: u64) -> Result<(), PoolError> {
        self.calls.check_hard_limit(limit_bytes)
    }

    fn is_bounded_by(&self, bytes: u64) -> bool {
        self.calls.is_bounded_by(bytes)
    }

    fn limits_changed(&self) -> Result<(), PoolError> {
        if self.limits.soft_bytes().is_some() {
            self.register_for_waits();
        }
        Ok(self.calls.set_soft_limit(self.limits.soft_bytes())?)
    }

    fn counts(&self) -> Counts {
        DirectBackend::counts(self)
    }

    fn streams(&self) -> Vec<(Option<StreamId>, Counters)> {
        self.usage.lock().streams.iter().map(|(stream, counters)| (Some(*stream), *counters)).collect()
    }

    fn reset_peaks(&self) -> Result<(), PoolError> {
        self.usage.lock().reset_peak();
        Ok(self.calls.reset_peak()?)
    }

    fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError> {
        let swept = self.calls.sweep();
        self.trim(keep_bytes)?;
        Ok(swept.map(drop)?)
    }

    fn reclaim(&self) -> Result<(), PoolError> {
        Ok(self.give_back(None)?.map(drop)?)
    }

    fn reserved(&self) -> Result<Option<Reserved>, PoolError> {
        let unfreed_bytes = self.unfreed_bytes.load(Ordering::Relaxed);
        if let Some(reserved) = self.calls.reserved(&self.device)? {
            return Ok(Some(Reserved { unfreed_bytes, ..reserved }));
        }
        let current_bytes = self.bound_bytes();
        Ok((unfreed_bytes > 0).then(|| Reserved {
            current_bytes,
            peak_bytes: self.counts().in_use_peak_bytes.max(current_bytes),
            unfreed_bytes,
            record_bytes: 0,
            asleep_bytes: 0,
            on_host_bytes: 0,
        }))
    }
}

impl<C> Drop for DirectBackend<C> {
    /// `calls` frees the rest of the memory or leaves it to the device.
    fn drop(&mut self) {
        self.admission.give_back(*self.unfreed_bytes.get_mut());
    }
}

/// The driver's allocation under a block that may be aligned.
fn whole(freed: &FreeRequest) -> FreeRequest {
    let address = freed.allocation.address - u64::from(freed.allocation.record()) * ALIGNMENT_MIN;
    FreeRequest {
        allocation: Allocation::from_mark(address, freed.allocation.mark),
        size_bytes: padded_bytes(freed.size_bytes, u32::from(freed.allocation.class())),
        ..*freed
    }
}

/// The size with padding for the alignment, wherever the driver's allocation starts. An exponent of 0 means no
/// alignment.
fn padded_bytes(size_bytes: u64, alignment_exponent: u32) -> u64 {
    size_bytes.saturating_add((1_u64 << alignment_exponent).saturating_sub(ALIGNMENT_MIN))
}

/// A block that is allocated by a driver call. All rungs make room on the device, so there is none for a refusal by a limit.
struct DirectSearch<'a, C> {
    backend: &'a DirectBackend<C>,
    size_bytes: u64,
    /// The exponent of the alignment; 0 for the alignment of every block.
    exponent: u32,
    stream: &'a Stream,
    refusal: Option<Refusal>,
    before: Counts,
}

impl<C: DriverAllocator> DirectSearch<'_, C> {
    fn attempt(
        &mut self,
        acquire: impl FnOnce(&DirectBackend<C>, u64, &Stream) -> Result<CUdeviceptr, DriverError>,
    ) -> Result<Outcome<Allocation>, PoolError> {
        let (backend, size_bytes) = (self.backend, padded_bytes(self.size_bytes, self.exponent));
        let admitted = backend.admission.admit(size_bytes).map_err(Refusal::Limit);
        let acquired = admitted.and_then(|()| {
            let acquired = acquire(backend, size_bytes, self.stream);
            Ok(acquired.inspect_err(|_| backend.admission.give_back(size_bytes))?)
        });
        self.refusal = acquired.err().map(Refusal::if_out_of_memory).transpose()?;
        let Ok(address) = acquired else { return Ok(Outcome::Short) };
        backend.usage.lock().count_out(self.stream.id(), size_bytes);
        backend.note_growth();
        backend.device.serve();
        // The free finds the driver's allocation by the padding and the class.
        let padding_bytes = address.wrapping_neg() & ((1 << self.exponent) - 1);
        let padding_count = (padding_bytes / ALIGNMENT_MIN) as u32;
        let allocation = Allocation::new(address + padding_bytes, padding_count, self.exponent as u16);
        Ok(Outcome::Found(allocation))
    }

    /// The limit of the driver's pool, if the device has room, since then that limit refused. It bounds reserved memory.
    fn limit_of_driver_pool(&self) -> Option<LimitExceeded> {
        let backend = self.backend;
        let in_use_bytes = backend.usage.lock().total.in_use_bytes();
        let limit = backend.limits.exceeded_at(in_use_bytes)?;
        let free_bytes = backend.device.memory_info().ok()?.free_bytes;
        let reserved = backend.calls.reserved(&backend.device).ok()?;
        let reserved_bytes = reserved.map_or(in_use_bytes, |reserved| reserved.current_bytes);
        let requested_bytes = padded_bytes(self.size_bytes, self.exponent);
        let is_full = free_bytes >= requested_bytes
            && reserved_bytes.saturating_add(requested_bytes) > limit.limit_bytes;
        is_full.then_some(limit)
    }
}

impl<C: DriverAllocator> Search<Allocation> for DirectSearch<'_, C> {
    fn rung(&self, rung: usize) -> Option<&'static str> {
        (rung == 0 && matches!(self.refusal, Some(Refusal::Driver(_)))).then_some(WAIT_AND_TRIM)
    }

    fn begin(&mut self, is_first: bool) -> Result<Outcome<Allocation>, PoolError> {
        self.before = self.backend.counts();
        if is_first { Ok(Outcome::Short) } else { self.attempt(DirectBackend::acquire_sparingly) }
    }

    /// The second attempt disregards the garbage collection threshold.
    fn climb(&mut self, _: usize) -> Result<Outcome<Allocation>, PoolError> {
        self.backend.make_room()?;
        self.attempt(|backend, size_bytes, stream| backend.calls.acquire(size_bytes, stream))
    }

    fn requested_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn free_bytes(&self) -> Result<i64, PoolError> {
        let reserved = self.backend.calls.reserved(&self.backend.device)?;
        Ok(-reserved.map_or(0, |reserved| reserved.current_bytes.cast_signed()))
    }

    /// The driver's pool does not defragment, so the live blocks decide whether a request fits.
    fn may_repeat(&self) -> bool {
        let backend = self.backend;
        let most_bytes = backend.limits.hard_bytes().unwrap_or(backend.device.total_bytes());
        let size_bytes = padded_bytes(self.size_bytes, self.exponent);
        backend.counts().may_fit_since(&self.before, size_bytes, most_bytes)
    }

    fn shortage(&self) -> Result<Shortage, PoolError> {
        let limit = match self.refusal {
            Some(Refusal::Driver(_)) => self.limit_of_driver_pool(),
            _ => None,
        };
        Ok(Shortage {
            requested_bytes: self.size_bytes,
            alignment: if self.exponent > 0 { 1 << self.exponent } else { 0 },
            admitted_bytes: self.backend.usage.lock().total.in_use_bytes(),
            refusal: limit.map(Refusal::Limit).or(self.refusal),
        })
    }
}

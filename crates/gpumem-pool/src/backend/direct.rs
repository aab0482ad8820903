//! [`Direct`]: a backend that asks the driver for each block, with the count and the ladder that such backends share.
//!
//! The hard limit bounds what blocks hold. Every request is admitted before the driver is asked; a free counts from the
//! moment it is dropped, so that waiting for it could not make room. When the device is full, it is waited for once, and what the
//! driver keeps for reuse is given back, and what pools left that have ended; nothing else here waits.

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

/// What a backend of this kind asks of the driver; it does nothing else, and answers in the driver's terms.
pub(crate) trait DriverAllocator {
    const KIND: BackendKind;

    /// Whether freed memory stays reserved, so that giving it back can make room.
    const KEEPS_MEMORY: bool;

    /// Memory for work queued on `stream` from now on.
    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError>;

    /// Takes memory back once all uses of it are done, those queued by now included. After an error nothing was freed.
    fn release(&self, device: &Device, freed: &FreeRequest) -> Result<(), DriverError>;

    /// Queues what was freed but had to wait for something else than a stream. Says whether there was any.
    fn sweep(&self) -> Result<bool, DriverError> {
        Ok(false)
    }

    /// The same after a look at what is complete; marks what is not, for the next time.
    fn look(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Whether anything that was released waits for work.
    fn has_waiting(&self) -> bool {
        false
    }

    /// Waits for work of other devices that keeps what was released from being taken back, up to a deadline if there is one.
    fn finish_others(&self, _until: Option<Instant>) -> Result<(), DriverError> {
        Ok(())
    }

    /// Lets another device use the memory that was and will be acquired.
    fn enable_peer_access(&self, device: &Device, peer: &Device) -> Result<(), DriverError>;

    /// The hard limit is about to become this.
    fn allow_hard_limit(&self, _limit_bytes: u64) {}

    /// From now on what is kept beyond this is given back when the host waits.
    fn set_soft_limit(&self, _limit_bytes: Option<u64>) -> Result<(), DriverError> {
        Ok(())
    }

    /// The driver's own peak, if it has one, begins anew.
    fn reset_peak(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Keeps acquired memory where it is.
    fn pin(&self) -> Result<(), PoolError>;

    /// Gives back what is free beyond `keep_bytes`.
    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError>;

    /// What is held from the device; `None` where that is what the blocks hold.
    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError>;
}

pub(crate) struct Direct<C>(Arc<DirectBackend<C>>);

/// The backend itself, which its device knows too.
pub(crate) struct DirectBackend<C> {
    device: Device,
    ledger: UsageCounters,
    /// Those whose blocks are alive.
    streams: Mutex<BTreeMap<StreamId, Counters>>,
    admission: Admission,
    limits: Limits,
    growth: GrowthLog,
    idle: Idle,
    hears_of_waits: Once,
    /// As [`PoolBuilder::garbage_collection_threshold`](crate::PoolBuilder::garbage_collection_threshold).
    collect_above: Option<f64>,
    /// In each stream, behind what was queued there when something was last found to be too much; see `eager`.
    unseen: Mutex<Vec<(StreamIndex, MarkerEvent)>>,
    /// As [`Tuning::wait_deadline`](crate::Tuning::wait_deadline).
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
            ledger: UsageCounters::default(),
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

    /// From now on the pool is told when the host has waited, if that can matter to it.
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
        let refused = |passed| self.refusal(size_bytes, self.ledger.in_use_bytes(), Some(passed), Vec::new());
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

    /// The ladder: what is free now, then what giving back frees, then an error that explains.
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
        match self.refusal(size_bytes, self.ledger.in_use_bytes(), None, attempts) {
            // Without the numbers, there is the driver's word.
            PoolError::Driver(_) => Err(full.into()),
            with_report => Err(with_report),
        }
    }

    /// Beyond the threshold, if there is one, the driver keeps nothing idle when it takes more: that goes back first where
    /// the counts say that more is needed, and else as soon as more was taken, for want of an allocation that is large enough.
    fn acquire_sparingly(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        let (Some(share), true) = (self.collect_above, C::KEEPS_MEMORY) else {
            return self.calls.acquire(size_bytes, stream);
        };
        let keep_bytes = self.limits.part_bytes(share, self.device.total_bytes());
        let before_bytes = self.calls.reserved(&self.device)?.map_or(0, |held| held.current_bytes);
        let has_enough = self.ledger.in_use_bytes().saturating_add(size_bytes) <= before_bytes;
        if !has_enough && before_bytes.saturating_add(size_bytes) > keep_bytes {
            self.calls.trim_to(&self.device, keep_bytes.saturating_sub(size_bytes))?;
        }
        let address = self.calls.acquire(size_bytes, stream)?;
        // The block is there, so what fails now is for the next call to say.
        if let Ok(Some(after)) = self.calls.reserved(&self.device)
            && after.current_bytes > before_bytes.max(keep_bytes)
        {
            let _ = self.calls.trim_to(&self.device, keep_bytes);
        }
        Ok(address)
    }

    /// Waits for the device, then gives back all that is free, of pools that have ended too.
    fn give_back(&self) -> Result<(), PoolError> {
        self.device.finish_with_maintenance()?;
        self.calls.finish_others(None)?;
        self.calls.sweep()?;
        // This, or the maintenance before it, may have freed memory in the order of a stream of the pool's own.
        self.device.finish()?;
        Ok(self.calls.trim_to(&self.device, 0)?)
    }

    /// The same for an allocation, which waits no longer than until its deadline, and for pinned memory only where some of
    /// it waits for work.
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
        // Where the device has room, the driver's pool has refused, whose own limit counts what it reserves.
        let is_full = |passed: &LimitExceeded| {
            info.free_bytes >= requested_bytes
                && reserved_bytes.saturating_add(requested_bytes) > passed.limit_bytes
        };
        let pools_limit = || self.limits.passed(in_use_bytes).filter(is_full);
        let report = OutOfMemory {
            requested_bytes,
            in_use_bytes,
            block_count: self.ledger.block_count(),
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
        let in_use_bytes = self.ledger.in_use_bytes();
        if self.growth.is_due(in_use_bytes) {
            let (block_count, allocation_count) = (self.ledger.block_count(), self.ledger.allocation_count());
            let wait_count = self.device.maintenance().wait_count();
            self.growth.add(in_use_bytes, Sample { in_use_bytes, block_count, allocation_count, wait_count });
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
        self.ledger.count_out(size_bytes);
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
            // The memory goes with the driver.
            Err(cause) if cause.is_shutdown() => Ok(()),
            other => other,
        };
        // What was not freed may still be in use: it stays counted.
        if result.is_ok() {
            self.ledger.count_in(freed.size_bytes);
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
            in_use_bytes: self.ledger.in_use_bytes(),
            in_use_peak_bytes: self.ledger.in_use_peak_bytes(),
            block_count: self.ledger.block_count(),
            allocation_count: self.ledger.allocation_count(),
        }
    }

    fn streams(&self) -> Vec<(Option<StreamId>, Counters)> {
        self.lock_streams().iter().map(|(stream, counters)| (Some(*stream), *counters)).collect()
    }

    fn reset_peaks(&self) -> Result<(), PoolError> {
        self.ledger.reset_peak();
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

/// What was asked of the driver for a block that may be aligned.
fn whole(freed: &FreeRequest) -> FreeRequest {
    let address = freed.allocation.address - u64::from(freed.allocation.record()) * ALIGNMENT_MIN;
    FreeRequest {
        allocation: Allocation { address, ..freed.allocation },
        size_bytes: padded_bytes(freed.size_bytes, u32::from(freed.allocation.class())),
        ..*freed
    }
}

/// Room for the size wherever the driver's block starts; an exponent of 0 says that any start will do.
fn padded_bytes(size_bytes: u64, alignment_exponent: u32) -> u64 {
    size_bytes.saturating_add((1_u64 << alignment_exponent).saturating_sub(ALIGNMENT_MIN))
}

pub(super) fn is_full(error: &DriverError) -> bool {
    error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

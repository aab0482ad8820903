//! [`Pool`]: the front door. Checks a request, holds it to the limit, and climbs a short ladder before it gives up.
//!
//! A pool's [`State`] outlives its last handle for as long as blocks live: each holds it. All of it is shared by all
//! threads; nothing here takes a lock, and only the ladder's second rung waits for the device.

use crate::backend::{Backend, Source};
use crate::block::Block;
use crate::device::Device;
use crate::error::{PoolError, is_sticky};
use crate::ledger::{Admission, Ledger};
use crate::options::{BackendKind, PoolBuilder};
use crate::status::Status;
use crate::stream::Stream;
use core::fmt;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUdeviceptr, CUresult};
use std::sync::{Arc, OnceLock};

/// Hands out [`Block`]s of one device's memory. Clones share it; blocks keep it alive.
///
/// ```
/// use gpumem_pool::{Device, Pool, PoolError, Stream, sys::{Driver, SimConfig}};
///
/// let device = Device::new(&Driver::sim(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).hard_limit(64 << 20).build()?;
/// let stream = Stream::new(&device)?;
///
/// let block = pool.alloc(48 << 20, &stream)?;
/// assert!(matches!(pool.alloc(32 << 20, &stream), Err(PoolError::LimitReached { .. })));
/// drop(block);
/// let block = pool.alloc(32 << 20, &stream)?;
/// println!("{}", pool.status()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool(Arc<State>);

/// What a pool is, for as long as a handle or a block lives.
pub(crate) struct State {
    device: Device,
    backend: Backend,
    ledger: Ledger,
    hard_limit_bytes: Option<u64>,
    soft_limit_bytes: Option<u64>,
    poison: OnceLock<PoolError>,
}

impl Pool {
    /// A pool with the defaults; the environment is not read.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(device: &Device) -> Result<Self, PoolError> {
        Self::builder(device).build()
    }

    /// A pool as `GPUMEM_POOL`, `GPUMEM_HARD_LIMIT` and `GPUMEM_SOFT_LIMIT` say.
    ///
    /// # Errors
    ///
    /// As [`PoolBuilder::from_env`] and [`PoolBuilder::build`].
    pub fn from_env(device: &Device) -> Result<Self, PoolError> {
        PoolBuilder::from_env(device)?.build()
    }

    /// Starts from the defaults; the environment is not read.
    pub fn builder(device: &Device) -> PoolBuilder {
        PoolBuilder::new(device)
    }

    pub(crate) fn build(options: PoolBuilder) -> Result<Self, PoolError> {
        let device = options.device;
        let resolve = |limit: crate::Limit| limit.resolve(device.total_bytes());
        let soft_limit_bytes = options.soft_limit.map(resolve).transpose()?;
        let hard_limit_bytes = options.hard_limit.map(resolve).transpose()?;
        if let Some(limit_bytes) = hard_limit_bytes.filter(|limit| *limit < HARD_LIMIT_MIN_BYTES) {
            return Err(PoolError::LimitTooSmall { limit_bytes, minimum_bytes: HARD_LIMIT_MIN_BYTES });
        }
        Ok(Self(Arc::new(State {
            backend: Backend::new(options.backend, &device, hard_limit_bytes, soft_limit_bytes)?,
            ledger: Ledger::new(hard_limit_bytes.unwrap_or(u64::MAX)),
            device,
            hard_limit_bytes,
            soft_limit_bytes,
            poison: OnceLock::new(),
        })))
    }

    /// Allocates on `stream`: work queued there from now on may use the memory, whose contents are whatever they were.
    ///
    /// Zero bytes are a block at address 0 and cost no driver call. When the device is full, what the pool can give back
    /// is given back first, which waits for the device; nothing else here waits.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`], [`PoolError::TooLarge`], [`PoolError::LimitReached`]; [`PoolError::WrongDevice`] for
    /// another device's stream; [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    pub fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<Block, PoolError> {
        let state = &self.0;
        state.check_usable()?;
        state.check_stream(stream)?;
        if size_bytes == 0 {
            return Ok(Block::new(state, 0, 0, stream));
        }
        state.check_size(size_bytes)?;
        let admission = state.admit(size_bytes)?;
        let address = state.acquire(size_bytes, stream)?;
        admission.settle();
        Ok(Block::new(state, address, size_bytes, stream))
    }

    /// Where the bytes come from.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.0.backend.kind()
    }

    /// The device whose memory it hands out.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The pool's numbers now. Works on a poisoned pool too.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn status(&self) -> Result<Status, PoolError> {
        self.0.status()
    }

    /// Waits for the device, then gives back all memory that no block holds. Returns how many bytes were given back.
    ///
    /// Allocating does this by itself when the device is full; call it to leave room for others.
    ///
    /// # Errors
    ///
    /// What the driver says, or [`PoolError::Poisoned`] after an earlier failure.
    pub fn reclaim(&self) -> Result<u64, PoolError> {
        self.0.check_usable()?;
        self.0.reclaim()
    }

    /// Gives back memory that no block holds until `keep_bytes` are reserved, or as near to it as blocks, and frees
    /// that the device has not reached yet, allow. Does not wait. Returns how many bytes were given back.
    ///
    /// # Errors
    ///
    /// As [`Pool::reclaim`].
    pub fn trim_to(&self, keep_bytes: u64) -> Result<u64, PoolError> {
        self.0.check_usable()?;
        self.0.giving_back(|state| Ok(state.backend.trim_to(&state.device, keep_bytes)?))
    }
}

impl State {
    fn check_usable(&self) -> Result<(), PoolError> {
        self.poison.get().map_or(Ok(()), |poison| Err(poison.clone()))
    }

    fn check_stream(&self, stream: &Stream) -> Result<(), PoolError> {
        if *stream.device() == self.device {
            Ok(())
        } else {
            Err(PoolError::wrong_device(&self.device, stream.device()))
        }
    }

    fn check_size(&self, size_bytes: u64) -> Result<(), PoolError> {
        let device_bytes = self.device.total_bytes();
        if size_bytes <= device_bytes {
            Ok(())
        } else {
            Err(PoolError::TooLarge { requested_bytes: size_bytes, device_bytes })
        }
    }

    /// Frees count from the moment they are dropped, so that waiting for them could not make room here.
    fn admit(&self, size_bytes: u64) -> Result<Admission<'_>, PoolError> {
        self.ledger.admit(size_bytes).map_err(|in_use_bytes| PoolError::LimitReached {
            requested_bytes: size_bytes,
            in_use_bytes,
            limit_bytes: self.hard_limit_bytes.unwrap_or(u64::MAX),
        })
    }

    /// The ladder: what is free now, then what reclaiming frees, then an error that explains.
    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, PoolError> {
        match self.backend.acquire(size_bytes, stream) {
            Err(error) if is_full(&error) && self.backend.keeps_memory() => self.reclaim()?,
            Err(error) if is_full(&error) => return Err(self.out_of_memory(error, size_bytes)),
            other => return Ok(other?),
        };
        match self.backend.acquire(size_bytes, stream) {
            Err(error) if is_full(&error) => Err(self.out_of_memory(error, size_bytes)),
            other => Ok(other?),
        }
    }

    fn out_of_memory(&self, error: DriverError, size_bytes: u64) -> PoolError {
        let (Ok(info), Ok(reserved_bytes)) = (self.device.memory_info(), self.reserved_bytes()) else {
            return error.into();
        };
        PoolError::OutOfMemory {
            requested_bytes: size_bytes,
            // This request is admitted, but nothing of it is in use.
            in_use_bytes: self.ledger.in_use_bytes().saturating_sub(size_bytes),
            reserved_bytes,
            device_free_bytes: info.free_bytes,
            device_total_bytes: info.total_bytes,
            hard_limit_bytes: self.hard_limit_bytes,
        }
    }

    /// Called by a block's drop: has nobody to tell, so what fails is kept for the next call.
    pub(crate) fn free(&self, address: CUdeviceptr, size_bytes: u64, home: &Stream, uses: &[Stream]) {
        match self.backend.release(address, home, uses) {
            Ok(()) => self.ledger.give_back(size_bytes),
            // The memory goes with the driver.
            Err(cause) if cause.is_shutdown() => self.ledger.give_back(size_bytes),
            // It may still be in use: it stays counted, and is never handed out again.
            Err(cause) if is_sticky(cause.code()) => {
                let _first_counts = self.poison.set(PoolError::DeviceLost(cause));
            }
            Err(cause) => {
                let _first_counts = self.poison.set(PoolError::Poisoned { address, size_bytes, cause });
            }
        }
    }

    fn reclaim(&self) -> Result<u64, PoolError> {
        self.giving_back(|state| {
            state.device.synchronize()?;
            Ok(state.backend.trim_to(&state.device, 0)?)
        })
    }

    fn giving_back(&self, work: impl FnOnce(&Self) -> Result<(), PoolError>) -> Result<u64, PoolError> {
        let before_bytes = self.reserved_bytes()?;
        work(self)?;
        Ok(before_bytes.saturating_sub(self.reserved_bytes()?))
    }

    /// A backend that reserves nothing beyond its blocks leaves the count to the ledger.
    fn reserved_bytes(&self) -> Result<u64, PoolError> {
        let reserved = self.backend.reserved(&self.device)?;
        Ok(reserved.map_or_else(|| self.ledger.in_use_bytes(), |reserved| reserved.current_bytes))
    }

    fn status(&self) -> Result<Status, PoolError> {
        let device = self.device.memory_info()?;
        let reserved = self.backend.reserved(&self.device)?;
        let in_use_bytes = self.ledger.in_use_bytes();
        let in_use_peak_bytes = self.ledger.in_use_peak_bytes();
        let reserved_bytes = reserved.map_or(in_use_bytes, |reserved| reserved.current_bytes);
        Ok(Status {
            backend: self.backend.kind(),
            device_name: self.device.name().into(),
            device_ordinal: self.device.ordinal(),
            in_use_bytes,
            reserved_bytes,
            cached_bytes: reserved_bytes.saturating_sub(in_use_bytes),
            in_use_peak_bytes,
            reserved_peak_bytes: reserved.map_or(in_use_peak_bytes, |reserved| reserved.peak_bytes),
            block_count: self.ledger.block_count(),
            allocation_count: self.ledger.allocation_count(),
            hard_limit_bytes: self.hard_limit_bytes,
            soft_limit_bytes: self.soft_limit_bytes,
            device_used_bytes: device.total_bytes.saturating_sub(device.free_bytes),
            device_total_bytes: device.total_bytes,
        })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("backend", &self.backend())
            .field("device", &self.0.device)
            .field("hard_limit_bytes", &self.0.hard_limit_bytes)
            .field("soft_limit_bytes", &self.0.soft_limit_bytes)
            .field("ledger", &self.0.ledger)
            .field("poison", &self.0.poison.get())
            .finish()
    }
}

fn is_full(error: &DriverError) -> bool {
    error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// The driver hands out physical memory in pieces of 2 MiB: below that, a limit leaves room for nothing.
const HARD_LIMIT_MIN_BYTES: u64 = 2 << 20;

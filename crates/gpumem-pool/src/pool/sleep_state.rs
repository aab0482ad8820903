//! [`SleepState`]: whether a pool is awake, sleeps or changes; see [`Pool::sleep`](crate::Pool::sleep).
//!
//! A pool goes to sleep in this order:
//!
//! 1. Its state changes, so that requests fail on the slow path, and the key of the thread caches is removed, so that every request and
//!    every free takes that path. The fast path needs no extra check.
//! 2. Its addresses are added to the sleeping memory of the device, which every safe operation checks before it queues work
//!    (`Sleepers`), and calls that checked it earlier end.
//! 3. The host waits for the device, and for other devices with access to the memory.
//! 4. The backend saves the contents and releases the memory (`backend/caching/caching_pool/sleep.rs`).
//!
//! It wakes in the opposite order. If a step fails, the steps before it are undone.

use crate::backend::{CachingPool, Keep};
use crate::config::PoolName;
use crate::error::PoolError;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use gpumem_device::Device;

#[derive(Debug, Default)]
pub(crate) struct SleepState {
    now: AtomicU8,
    /// True once an adaptor has hidden bytes of a block, which must be kept.
    has_hidden_bytes: AtomicBool,
}

/// A change of the state. Other threads cannot change it until this is dropped.
pub(super) struct SleepChange<'a> {
    state: &'a SleepState,
    pub(super) to: u8,
}

impl SleepState {
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.now.load(Ordering::Relaxed) == AWAKE
    }

    pub(crate) fn note_hidden_bytes(&self) {
        self.has_hidden_bytes.store(true, Ordering::SeqCst);
    }

    /// Refuses to lose contents that adaptors need. Earlier calls on streams have ended.
    pub(super) fn check_keep(&self, pool: &PoolName, keep: Keep) -> Result<(), PoolError> {
        match keep == Keep::Nothing && self.has_hidden_bytes.load(Ordering::SeqCst) {
            true => Err(PoolError::cannot_sleep(
                pool,
                "an adaptor has bytes of its own beside blocks, which would be lost",
                "call Pool::sleep with Keep::OnHost",
            )),
            false => Ok(()),
        }
    }

    /// Begins a change from a state. Without success, the state stays.
    pub(super) fn begin(&self, pool: &PoolName, from: u8) -> Result<SleepChange<'_>, PoolError> {
        match self.now.compare_exchange(from, CHANGING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(SleepChange { state: self, to: from }),
            Err(ASLEEP) => Err(PoolError::cannot_sleep(
                pool,
                "it sleeps already",
                "call Pool::wake before it sleeps again",
            )),
            Err(_) => Err(PoolError::cannot_sleep(
                pool,
                "another thread is putting it to sleep or waking it",
                "wait for that call to return",
            )),
        }
    }
}

/// Refuses to put memory to sleep that another library has borrowed. Exact once the addresses are among the sleeping memory of the
/// device and earlier calls on streams have ended.
pub(super) fn check_not_lent(
    pool: &PoolName,
    device: &Device,
    sleeping: &CachingPool,
) -> Result<(), PoolError> {
    match device.sleepers().has_lent(&sleeping.addresses()) {
        true => Err(PoolError::cannot_sleep(
            pool,
            "arrays in its memory are lent to another library (`read_on`, `write_on`, cudarc)",
            "drop the guards first",
        )),
        false => Ok(()),
    }
}

impl Drop for SleepChange<'_> {
    fn drop(&mut self) {
        self.state.now.store(self.to, Ordering::Release);
    }
}

pub(super) const AWAKE: u8 = 0;
const CHANGING: u8 = 1;
pub(super) const ASLEEP: u8 = 2;

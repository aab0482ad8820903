//! [`Sleepers`]: the sleeping address ranges, and the check of all memory that work uses before it is queued. All devices of a machine
//! share one list: they have one address space, and a stream of each may use the memory of the others.
//!
//! Work is queued in a call on its stream that names the memory as [`MemoryRange`]s (`Stream::queue_work`, `Stream::run_borrowed`), and
//! the call refuses memory that sleeps. A pool that goes to sleep first adds its ranges, then waits for all earlier calls to end
//! ([`Sleepers::let_calls_end`]), and then waits for the devices that have access: after that, no work that uses the ranges is queued, and
//! none will be. Another library that has borrowed memory queues work without such a check, so a pool does not sleep while memory is lent
//! (`LentMemory`).

use super::any_stream::AnyStream;
use super::calls::Calls;
use crate::error::{DeviceError, StreamError};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use gpumem_base::sync::Lock;
use gpumem_sys::types::CUdeviceptr;
use std::sync::{Arc, Weak};

/// Memory that work uses, named by the caller that queues the work ([`Stream::run_borrowed`](crate::Stream::run_borrowed)). A `Block` converts into the
/// range of all its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    address: CUdeviceptr,
    size_bytes: u64,
}

impl MemoryRange {
    /// For work that uses no memory of a pool.
    pub const NONE: [Self; 0] = [];

    /// `size_bytes` bytes from a device address.
    #[must_use]
    pub const fn new(address: CUdeviceptr, size_bytes: u64) -> Self {
        Self { address, size_bytes }
    }
}

/// The sleeping memory of a machine's devices.
#[derive(Default)]
pub struct Sleepers {
    /// The number of entries and of reset devices. It is raised before the wait for calls: a call reads it after it has counted itself.
    count: AtomicUsize,
    entries: Lock<Vec<SleepingPool>>,
    lent: Lock<Vec<Range<u64>>>,
    streams: Lock<Streams>,
}

/// The addresses of a pool that sleeps.
struct SleepingPool {
    pool: u64,
    name: Arc<str>,
    ranges: Vec<Range<u64>>,
}

#[derive(Default)]
struct Streams {
    list: Vec<Weak<dyn AnyStream>>,
    /// The length at which streams that are gone are removed.
    purge_at: usize,
}

impl Sleepers {
    /// Adds a stream, whose calls may queue work.
    pub(crate) fn add_stream(&self, stream: Weak<dyn AnyStream>) {
        let mut streams = self.streams.lock();
        if streams.list.len() >= streams.purge_at {
            streams.list.retain(|stream| stream.strong_count() > 0);
            streams.purge_at = (2 * streams.list.len()).max(PURGE_MIN);
        }
        streams.list.push(stream);
    }

    /// Refuses operations on these addresses of a pool, which has a number and a name, from now on.
    pub fn add(&self, pool: u64, name: &Arc<str>, ranges: Vec<Range<u64>>) {
        self.entries.lock().push(SleepingPool { pool, name: Arc::clone(name), ranges });
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Allows operations on the addresses of a pool again.
    pub fn remove(&self, pool: u64) {
        let mut entries = self.entries.lock();
        let before_count = entries.len();
        entries.retain(|entry| entry.pool != pool);
        self.count.fetch_sub(before_count - entries.len(), Ordering::SeqCst);
    }

    pub(crate) fn add_reset(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// A device that was reset is no longer used.
    pub(crate) fn remove_reset(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until all earlier calls on the devices' streams have ended. Later calls find the entries.
    pub fn let_calls_end(&self) {
        let streams = self.live_streams();
        let calls: Vec<&Calls> = streams.iter().map(|stream| stream.calls()).collect();
        Calls::let_all_end(&calls);
    }

    /// Refuses a thread that is inside such a call: it would wait for itself.
    pub fn check_not_in_call(&self) -> Result<(), DeviceError> {
        let is_in_call = self.live_streams().iter().any(|stream| stream.calls().is_held_here());
        if is_in_call { Err(DeviceError::Stream(StreamError::Borrowed)) } else { Ok(()) }
    }

    /// Upgraded under the lock, to be dropped outside it: dropping the last clone of a stream takes locks.
    fn live_streams(&self) -> Vec<Arc<dyn AnyStream>> {
        self.streams.lock().list.iter().filter_map(Weak::upgrade).collect()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    #[cold]
    pub(super) fn check(
        &self,
        memory: impl IntoIterator<Item: Into<MemoryRange>>,
    ) -> Result<(), DeviceError> {
        memory.into_iter().try_for_each(|range| self.check_one(range.into()))
    }

    fn check_one(&self, MemoryRange { address, size_bytes }: MemoryRange) -> Result<(), DeviceError> {
        let end = address.saturating_add(size_bytes);
        let overlaps = |range: &Range<u64>| address < range.end && range.start < end;
        let entries = self.entries.lock();
        match entries.iter().find(|entry| entry.ranges.iter().any(overlaps)) {
            Some(entry) => Err(DeviceError::Asleep { pool: entry.name.as_ref().into() }),
            None => Ok(()),
        }
    }

    /// True if another library has borrowed memory in one of the ranges.
    pub fn has_lent(&self, ranges: &[Range<u64>]) -> bool {
        let lent = self.lent.lock();
        ranges.iter().any(|range| lent.iter().any(|lent| lent.start < range.end && range.start < lent.end))
    }

    /// Keeps memory awake until [`Sleepers::end_loan`] of the returned range.
    pub(super) fn lend(&self, MemoryRange { address, size_bytes }: MemoryRange) -> Range<u64> {
        let range = address..address.saturating_add(size_bytes);
        self.lent.lock().push(range.clone());
        range
    }

    pub(super) fn end_loan(&self, loan: &Range<u64>) {
        let mut lent = self.lent.lock();
        if let Some(index) = lent.iter().position(|range| range == loan) {
            lent.swap_remove(index);
        }
    }
}

const PURGE_MIN: usize = 64;

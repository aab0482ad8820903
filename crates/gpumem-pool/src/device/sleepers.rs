//! [`Sleepers`]: the sleeping address ranges, and the check of all memory that work uses before it is queued. All devices of a machine
//! share one list: they have one address space, and a stream of each may use the memory of the others.
//!
//! Work is queued in a call on its stream that names the memory as [`MemoryRange`]s ([`Stream::queue_work`], [`Stream::run_borrowed`]), and
//! the call refuses memory that sleeps. A pool that goes to sleep first adds its ranges, then waits for all earlier calls to end
//! ([`Sleepers::let_calls_end`]), and then waits for the devices that have access: after that, no work that uses the ranges is queued, and
//! none will be. Another library that has borrowed memory queues work without such a check, so a pool does not sleep while memory is lent
//! ([`LentMemory`]).

use crate::config::PoolName;
use crate::device::{Device, Stamp, Stream, StreamId, WeakStream};
use crate::error::{PoolError, StreamError};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{DriverError, fork};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory that work uses, named by the caller that queues the work ([`Stream::run_borrowed`]). A [`Block`](crate::Block) converts into the
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
pub(crate) struct Sleepers {
    /// The number of entries and of reset devices. It is raised before the wait for calls: a call reads it after it has counted itself.
    count: AtomicUsize,
    entries: Mutex<Vec<Entry>>,
    /// The addresses of all [`LentMemory`].
    lent: Mutex<Vec<Range<u64>>>,
    streams: Mutex<Streams>,
}

/// The addresses of a pool that sleeps.
struct Entry {
    pool: PoolName,
    ranges: Vec<Range<u64>>,
}

/// The streams of the devices.
#[derive(Default)]
struct Streams {
    list: Vec<WeakStream>,
    /// The length at which streams that are gone are removed.
    purge_at: usize,
}

impl Sleepers {
    /// Adds a stream, whose calls may queue work.
    pub(crate) fn add_stream(&self, stream: &Stream) {
        let mut streams = self.streams();
        if streams.list.len() >= streams.purge_at {
            streams.list.retain(|stream| stream.is_alive());
            streams.purge_at = (2 * streams.list.len()).max(PURGE_MIN);
        }
        streams.list.push(stream.downgrade());
    }

    /// Refuses operations on these addresses from now on.
    pub(crate) fn add(&self, pool: &PoolName, ranges: Vec<Range<u64>>) {
        self.entries().push(Entry { pool: pool.clone(), ranges });
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Allows operations on the addresses of a pool again.
    pub(crate) fn remove(&self, pool: &PoolName) {
        let mut entries = self.entries();
        let before_count = entries.len();
        entries.retain(|entry| entry.pool.id() != pool.id());
        self.count.fetch_sub(before_count - entries.len(), Ordering::SeqCst);
    }

    /// Makes every operation check its device from now on: one was reset.
    pub(crate) fn add_reset(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// A device that was reset is no longer used.
    pub(crate) fn remove_reset(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until all earlier calls on the devices' streams have ended. Later calls find the entries.
    pub(crate) fn let_calls_end(&self) {
        // Upgraded under the lock and dropped outside it: dropping the last clone of a stream takes locks.
        let streams: Vec<Stream> = self.streams().list.iter().filter_map(WeakStream::upgrade).collect();
        Stream::let_calls_end(&streams);
    }

    /// Refuses a thread that is inside such a call: it would wait for itself.
    pub(crate) fn check_not_in_call(&self) -> Result<(), PoolError> {
        let streams: Vec<Stream> = self.streams().list.iter().filter_map(WeakStream::upgrade).collect();
        if streams.iter().any(Stream::is_borrowed_here) {
            Err(PoolError::Stream(StreamError::Borrowed))
        } else {
            Ok(())
        }
    }

    /// True if nothing sleeps.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    #[cold]
    fn check(&self, memory: impl IntoIterator<Item: Into<MemoryRange>>) -> Result<(), PoolError> {
        memory.into_iter().try_for_each(|range| self.check_one(range.into()))
    }

    fn check_one(&self, MemoryRange { address, size_bytes }: MemoryRange) -> Result<(), PoolError> {
        let end = address.saturating_add(size_bytes);
        let overlaps = |range: &Range<u64>| address < range.end && range.start < end;
        let entries = self.entries();
        match entries.iter().find(|entry| entry.ranges.iter().any(overlaps)) {
            Some(entry) => Err(PoolError::Asleep { pool: entry.pool.as_str().into() }),
            None => Ok(()),
        }
    }

    /// True if another library has borrowed memory in one of the ranges.
    pub(crate) fn has_lent(&self, ranges: &[Range<u64>]) -> bool {
        let lent = self.lent();
        ranges.iter().any(|range| lent.iter().any(|lent| lent.start < range.end && range.start < lent.end))
    }

    fn lent(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    /// Refuses work that uses `memory` if a part of it sleeps, if the device was reset, and in a forked child. Called within a call on the
    /// stream that the work is queued on, so the result stays valid until that call ends.
    #[inline(always)]
    pub(crate) fn check_work(
        &self,
        memory: impl IntoIterator<Item: Into<MemoryRange>>,
    ) -> Result<(), PoolError> {
        if !fork::is_child() && self.sleepers().is_empty() {
            return Ok(());
        }
        self.check_work_slow(memory)
    }

    #[cold]
    #[inline(never)]
    fn check_work_slow(&self, memory: impl IntoIterator<Item: Into<MemoryRange>>) -> Result<(), PoolError> {
        self.check_open()?;
        self.sleepers().check(memory)
    }

    /// Calls `call`, which queues work that uses `memory` on a stream, behind the work of `stamps`; see
    /// [`Clocks::queue_behind`](crate::device::Clocks::queue_behind). Returns false if the memory sleeps or the wait is impossible now.
    pub(crate) fn queue_behind(
        &self,
        stamps: impl Iterator<Item = Stamp>,
        stream: StreamId,
        memory: impl IntoIterator<Item: Into<MemoryRange>>,
        call: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<bool, DriverError> {
        let mut is_awake = true;
        let queued = self.clocks().queue_behind(stamps, stream, |raw| {
            // The stream's state is locked, which a pool that goes to sleep waits for.
            is_awake = self.check_work(memory).is_ok();
            if is_awake { call(raw) } else { Ok(()) }
        })?;
        Ok(queued && is_awake)
    }

    /// Keeps memory awake while another library may queue work that uses it. Call it inside
    /// [`Stream::queue_work`](crate::Stream::queue_work) for the same memory.
    #[doc(hidden)]
    pub fn lend(&self, memory: MemoryRange) -> LentMemory {
        let range = memory.address..memory.address.saturating_add(memory.size_bytes);
        if !fork::is_child() {
            self.sleepers().lent().push(range.clone());
        }
        LentMemory { device: self.clone(), range }
    }
}

/// Memory that another library uses, until this is dropped: the pool does not sleep ([`Pool::sleep`](crate::Pool::sleep)).
#[doc(hidden)]
#[derive(Debug)]
#[must_use = "dropping it ends the loan"]
pub struct LentMemory {
    device: Device,
    range: Range<u64>,
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let mut lent = self.device.sleepers().lent();
        if let Some(index) = lent.iter().position(|range| *range == self.range) {
            lent.swap_remove(index);
        }
    }
}

const PURGE_MIN: usize = 64;

//! [`Sleepers`]: the address ranges of a device that sleep, and the check that every safe operation makes before it queues work.
//!
//! An operation checks its memory in a call on its stream ([`Stream::queue_work`]), together with queueing the work. A pool that goes
//! to sleep adds its ranges first, then lets all calls end that began before ([`Sleepers::let_calls_end`]), and then waits for the
//! device: after that, no work that uses the ranges is queued, and none will be. Another library that has borrowed memory queues work
//! without such a check, so a pool does not sleep meanwhile ([`LentMemory`]).

use crate::config::PoolName;
use crate::device::{Device, Stream, WeakStream};
use crate::error::PoolError;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use gpumem_sys::fork;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sleeping memory of one device.
#[derive(Default)]
pub(crate) struct Sleepers {
    /// The number of entries. Added to before calls are waited for: a call reads it after it has counted itself.
    count: AtomicUsize,
    /// True once the device was reset. Then every operation takes the slow path.
    is_closed: AtomicBool,
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

/// The streams of the device.
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
        let mut entries = self.entries();
        entries.push(Entry { pool: pool.clone(), ranges });
        self.count(&entries);
    }

    /// Allows operations on the addresses of a pool again.
    pub(crate) fn remove(&self, pool: &PoolName) {
        let mut entries = self.entries();
        entries.retain(|entry| entry.pool.id() != pool.id());
        self.count(&entries);
    }

    /// Makes every operation check its memory from now on: the device was reset.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.count(&self.entries());
    }

    fn count(&self, entries: &[Entry]) {
        let closed = usize::from(self.is_closed.load(Ordering::SeqCst));
        self.count.store(entries.len() + closed, Ordering::SeqCst);
    }

    /// Waits until all calls on the device's streams have ended that began before this one. Later calls find the entries.
    pub(crate) fn let_calls_end(&self) {
        // Upgraded under the lock and dropped outside of it: dropping the last clone of a stream takes locks.
        let streams: Vec<Stream> = self.streams().list.iter().filter_map(WeakStream::upgrade).collect();
        Stream::let_calls_end(&streams);
    }

    /// Returns whether nothing sleeps.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Refuses memory that sleeps. Call it within a call on the stream that the work is queued on.
    #[inline]
    fn check(&self, address: u64, size_bytes: u64) -> Result<(), PoolError> {
        if self.is_empty() { Ok(()) } else { self.check_slow(address, size_bytes) }
    }

    #[cold]
    fn check_slow(&self, address: u64, size_bytes: u64) -> Result<(), PoolError> {
        let end = address.saturating_add(size_bytes);
        let overlaps = |range: &Range<u64>| address < range.end && range.start < end;
        let entries = self.entries();
        match entries.iter().find(|entry| entry.ranges.iter().any(overlaps)) {
            Some(entry) => Err(PoolError::Asleep { pool: entry.pool.as_str().into() }),
            None => Ok(()),
        }
    }

    /// Returns whether another library has borrowed memory in one of the ranges.
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
    /// Returns whether memory of this device sleeps. Without any, [`Device::check_awake`] has nothing to refuse.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn has_sleepers(&self) -> bool {
        !self.sleepers().is_empty()
    }

    /// Refuses memory of this device that sleeps ([`Pool::sleep`](crate::Pool::sleep)). The result stays valid until the call on the
    /// stream ends ([`Stream::queue_work`]), so the work is queued in the same call.
    ///
    /// # Errors
    ///
    /// [`PoolError::Asleep`] if a part of the memory sleeps.
    #[doc(hidden)]
    #[inline]
    pub fn check_awake(&self, address: u64, size_bytes: u64) -> Result<(), PoolError> {
        self.check_open()?;
        self.sleepers().check(address, size_bytes)
    }

    /// Keeps memory of this device awake while another library may queue work that uses it. Call it inside of
    /// [`Stream::queue_work`](crate::Stream::queue_work), after [`Device::check_awake`].
    #[doc(hidden)]
    pub fn lend(&self, address: u64, size_bytes: u64) -> LentMemory {
        let range = address..address.saturating_add(size_bytes);
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

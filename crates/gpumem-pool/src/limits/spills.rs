//! [`Spills`]: a holder of memory in use, which moves its contents to host memory for a request.

use crate::config::PoolId;
use crate::error::SpillReport;
use core::any::Any;
use std::collections::BTreeMap;

/// Moves contents out of device memory. The pool's ladder calls it before it waits on the host.
pub(crate) trait Spills: Any + Send + Sync {
    /// Frees at least `size_bytes` in stream order, if contents can move, and returns the freed bytes. Does not wait for the device. Must
    /// not be called in a call that queues work.
    fn make_room(&self, size_bytes: u64) -> u64;

    /// True if room that is made here helps requests that the hard limit of the pool `owner` refuses; with `None`, those that the device
    /// refuses.
    fn helps(&self, owner: Option<PoolId>) -> bool;

    /// The pool's memory is about to sleep. Contents that the host has leave, so that they are not copied again. Unless `keeps_contents`,
    /// the host forgets the contents of what stays.
    fn prepare_sleep(&self, keeps_contents: bool);

    /// By the number of its tag, the device memory whose contents could move, as far as the host has room.
    fn movable_bytes(&self) -> BTreeMap<u16, u64>;

    /// Queues the return of contents of a tag that are away, as far as there is memory for them. Does not wait for the device. Must not be
    /// called in a call that queues work.
    fn bring_back_all(&self, tag: u16);

    /// What has moved, and what stays and why. `in_use_bytes` is the memory in use of the pool.
    fn report(&self, in_use_bytes: u64) -> SpillReport;

    /// The figures of what has moved, and of what the program's loop needs.
    fn figures(&self) -> SpillFigures;
}

/// Figures of a pool that spills; see [`Status`](crate::Status).
#[derive(Default)]
pub(crate) struct SpillFigures {
    /// The bytes whose contents are on the host alone, and their arrays.
    pub(crate) away_bytes: u64,
    pub(crate) away_count: u64,
    /// The host memory that is kept for contents.
    pub(crate) host_bytes: u64,
    /// The bytes of contents in the memory of another device, and in a file.
    pub(crate) neighbour_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) repetition: Option<Repetition>,
    /// The bytes per second of copies, once they were measured.
    pub(crate) down_rate: Option<u64>,
    pub(crate) up_rate: Option<u64>,
}

/// One repetition of a program's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repetition {
    /// The bytes of arrays that it needs at once.
    pub(crate) needed_bytes: u64,
    /// The bytes of arrays that were in device memory at once.
    pub(crate) room_bytes: u64,
    /// The bytes that have to come back, and to leave by a copy, at least.
    pub(crate) least_up_bytes: u64,
    pub(crate) least_down_bytes: u64,
}

impl SpillFigures {
    /// The least time of the copies of a repetition; `None` until the rates of its directions are known.
    pub(crate) fn least_time_ns(&self) -> Option<u64> {
        let Repetition { least_up_bytes, least_down_bytes, .. } = self.repetition?;
        let time_ns = |bytes: u64, rate: Option<u64>| match bytes {
            0 => Some(0),
            _ => Some((bytes as f64 / rate? as f64 * 1e9) as u64),
        };
        Some(time_ns(least_up_bytes, self.up_rate)?.max(time_ns(least_down_bytes, self.down_rate)?))
    }
}

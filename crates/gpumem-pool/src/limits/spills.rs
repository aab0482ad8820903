//! [`Spills`]: a holder of memory in use, which moves its contents to host memory for a request.

use crate::config::PoolId;
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

    /// The bytes whose contents are on the host alone.
    fn away_bytes(&self) -> u64;

    /// The host memory that is kept for contents.
    fn host_bytes(&self) -> u64;
}

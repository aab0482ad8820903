//! [`NoRoom`]: why a request for room was given up.

use super::Requested;
use core::fmt;
use core::time::Duration;
use gpumem_device::Bytes;
use gpumem_sys::text::{Shown, debug_is_display};

/// The cause of [`PoolError::NoRoom`](crate::PoolError::NoRoom).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct NoRoom {
    /// The name of the pool.
    pub pool: String,
    /// The requested size.
    pub requested_bytes: u64,
    /// The limit, or the size of the device: the most that a request can get.
    pub most_bytes: u64,
    /// The bytes available below the limit, including those that are set aside.
    pub free_bytes: u64,
    /// The bytes that reservations have set aside and not yet drawn.
    pub outstanding_bytes: u64,
    /// The number of reservations.
    pub reservation_count: usize,
    /// The number of requests that arrived before and still wait.
    pub waiting_count: usize,
    /// The time in the queue.
    pub waited: Duration,
}

debug_is_display!(NoRoom);

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no room for {} in the pool {}", Requested(self.requested_bytes), Shown::name(&self.pool))?;
        if self.requested_bytes > self.most_bytes {
            let most = Bytes(self.most_bytes);
            return write!(f, ", which can have {most} at most; ask for less, or raise the limit");
        }
        write!(
            f,
            " after {:.1?}: {} could be had, and {} of that is set aside for {}; {} arrived before; wait longer, ask for less, \
             or drop reservations and memory sooner",
            self.waited,
            Bytes(self.free_bytes),
            Bytes(self.outstanding_bytes.min(self.free_bytes)),
            counted(self.reservation_count, "reservation"),
            counted(self.waiting_count, "request")
        )
    }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

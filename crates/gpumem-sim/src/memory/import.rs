//! Memory at a second address: blocks of imported pools, and plain memory that another process has opened.
//!
//! An import costs the device nothing, since whoever allocated the memory counts it, and goes before the memory does:
//! that is the program's duty. A block of a pool of one's own is the same bytes to the race detector, and work that
//! follows the import after the block was freed faults. Of another instance, in this process or another, there are only the
//! bytes: what it does and when is not seen here, as it is not by the driver. The bytes stay when the exporter of a pool is
//! killed, where the vendor's driver takes them away and calls their addresses invalid.
//!
//! **Two instances of one process have a lock each**, so work of both on the same bytes could run at once on two threads.
//! Safe code does not get there: another instance's memory is an address, and all that follows it are unsafe calls of the
//! driver, whose condition is that the program orders what its processes do to shared memory. Where it does, no two
//! accesses are at once: the work of the first ran under its instance's lock, which was given back before the wait for that
//! work returned, and the second queues its own after it was told. Where it does not, it breaks that condition, and the
//! bytes are anybody's, as on a device.

use crate::backing::ticket::Ticket;
use crate::backing::{Backing, Bytes};
use crate::base::handle::Handle;
use crate::order::Point;

/// One import.
pub(crate) struct Import {
    /// The pool that it came through; none of what was opened by a handle.
    pub(crate) pool: Handle,
    pub(crate) source: Source,
    /// What it takes of the device's addresses.
    pub(crate) space_bytes: u64,
    /// What was opened, and how often.
    pub(crate) opened: Option<(Ticket, u32)>,
}

/// Whose memory it is.
pub(crate) enum Source {
    /// A block of this instance: its address, and when it was allocated, for addresses are used again.
    Own { base: u64, born: Option<Point>, bytes: Bytes },
    /// Another's, mapped by this process.
    Foreign(Backing),
}

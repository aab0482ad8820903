//! Memory at a second address: blocks of imported pools, and plain memory that another process has opened.
//!
//! An import costs the device nothing, because the exporter counts the memory. The program must end the import before the memory
//! is freed. A block of a pool of the same instance is the same bytes for the race detector, and work through the import after the
//! free of the block faults. For another instance, in this process or another, only the bytes are shared: its accesses are not
//! observed, as the driver does not observe them either. The bytes stay when the exporter of a pool is killed; the vendor's driver
//! removes them and reports their addresses as invalid.
//!
//! **Two instances of one process have a lock each**, so work of both on the same bytes could run at the same time on two threads.
//! Safe code cannot do that: the memory of another instance is an address, used by unsafe calls of the driver, whose condition is
//! that the program orders the accesses of its processes to shared memory. If it does, no two accesses overlap: the work of the
//! first ran under the lock of its instance, which was released before the wait for that work returned, and the second queues its
//! own work after that. If it does not, it breaks the condition, and the bytes are undefined, as on a device.

use crate::backing::ticket::Ticket;
use crate::backing::{Backing, Bytes};
use crate::base::handle::Handle;
use crate::order::Point;

/// One import.
pub(crate) struct Import {
    /// The imported pool; `NONE` for memory opened by a handle.
    pub(crate) pool: Handle,
    pub(crate) source: Source,
    /// The size of its range of device addresses.
    pub(crate) space_bytes: u64,
    /// The ticket of the opened handle, and the number of openings.
    pub(crate) opened: Option<(Ticket, u32)>,
}

/// The owner of the memory.
pub(crate) enum Source {
    /// A block of this instance: its address, and the point of its allocation, because addresses are reused.
    Own { base: u64, born: Option<Point>, bytes: Bytes },
    /// Memory of another instance, mapped by this process.
    Foreign(Backing),
}

//! Events: marks in the order of a stream, and times on the virtual clock.
//!
//! An event stands for the point where it was last recorded. A wait takes that point at the call, so a later record does not
//! change the wait. An event that was never recorded counts as complete.

use crate::base::handle::Handle;
use crate::order::Point;
use crate::order::clock::Mark;
use crate::order::happens_before::HappensBefore;
use crate::stream::capture::CapturedAt;

/// One event of a context.
pub(crate) struct Event {
    pub(crate) context: Handle,
    pub(crate) flags: u32,
    /// True if other processes can open it.
    pub(crate) is_shared: bool,
    /// The point of the last record.
    pub(crate) point: Option<Point>,
    /// The time of the last record that ran.
    pub(crate) time_ns: Option<u64>,
    /// The place of the last record, if it was in a capture.
    pub(crate) captured: Option<CapturedAt>,
    /// The points that happen before that point.
    pub(crate) happens_before: HappensBefore,
    /// The clock of the stream at that point, once it is reached.
    pub(crate) mark: Option<Mark>,
}

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;
pub(crate) const FLAGS_KNOWN: u32 = 1 | DISABLE_TIMING | INTERPROCESS;

//! Events: marks in a stream's order, and times on the virtual clock.
//!
//! An event stands for the point where it was last recorded; a wait takes that point at the call, so recording again
//! later changes nothing for it. An event that was never recorded counts as done.

use crate::base::handle::Handle;
use crate::order::Point;
use crate::order::clock::Mark;
use crate::order::happens_before::HappensBefore;
use crate::stream::capture::CapturedAt;

/// One event of a context.
pub(crate) struct Event {
    pub(crate) context: Handle,
    pub(crate) flags: u32,
    /// Other processes know it.
    pub(crate) is_shared: bool,
    /// Where it was last recorded.
    pub(crate) point: Option<Point>,
    /// When the last recording that ran did so.
    pub(crate) time_ns: Option<u64>,
    /// Where in a capture it was last recorded, if it was in one.
    pub(crate) captured: Option<CapturedAt>,
    /// What that point comes after.
    pub(crate) happens_before: HappensBefore,
    /// What the stream knows at that point, once it is there.
    pub(crate) mark: Option<Mark>,
}

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;
pub(crate) const FLAGS_KNOWN: u32 = 1 | DISABLE_TIMING | INTERPROCESS;

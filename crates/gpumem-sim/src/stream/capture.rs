//! Stream capture: work that a stream records as nodes of a graph instead of queueing it.
//!
//! A [`Capture`] begins on one stream, its origin. Other streams join by a wait for an event that was recorded in it, and leave
//! when it ends; each has the nodes that its next node depends on ([`Joined`]). A call that would make captured work depend on
//! queued work, or the reverse, is refused and invalidates the capture: later calls return `INVALIDATED`, and its end returns no
//! graph.
//!
//! Calls that may wait for the device implicitly (allocation, queries of other streams) are refused according to two modes: that
//! of the capture, given at its begin, and that of the calling thread, which can be exchanged.

use crate::base::handle::Handle;
use crate::base::thread::ThreadKey;
use gpumem_sys::types::{CUgraphNode, CUstreamCaptureMode as Mode};
use std::collections::BTreeMap;

/// The active captures, and the mode of each thread.
#[derive(Default)]
pub(crate) struct Captures {
    pub(crate) live: BTreeMap<u64, Capture>,
    /// The threads that have exchanged their mode; the mode of other threads is `GLOBAL`.
    pub(crate) modes: BTreeMap<ThreadKey, Mode>,
    pub(crate) last_id: u64,
}

/// One capture.
pub(crate) struct Capture {
    pub(crate) origin: Handle,
    pub(crate) thread: ThreadKey,
    pub(crate) mode: Mode,
    pub(crate) graph: Handle,
    /// True if the graph was created for the capture and is destroyed if it fails.
    pub(crate) owns_graph: bool,
    pub(crate) is_broken: bool,
}

/// A stream in a capture.
pub(crate) struct Joined {
    pub(crate) id: u64,
    pub(crate) graph: Handle,
    /// The nodes that the next node depends on.
    pub(crate) after: Vec<Handle>,
    /// The nodes as last returned to the program, which may keep the pointer until its next call.
    pub(crate) shown: Vec<usize>,
}

/// The place in a capture at which an event was recorded.
#[derive(Clone)]
pub(crate) struct CapturedAt {
    pub(crate) id: u64,
    pub(crate) after: Vec<Handle>,
}

/// The capture on a stream, as the program can query it.
pub(crate) struct CaptureInfo {
    pub(crate) id: u64,
    pub(crate) graph: Handle,
    pub(crate) after: *const CUgraphNode,
    pub(crate) after_count: usize,
}

impl Joined {
    pub(crate) fn new(id: u64, graph: Handle, after: Vec<Handle>) -> Box<Self> {
        Box::new(Self { id, graph, after, shown: Vec::new() })
    }
}

/// The flag of a recording or wait that becomes a node of its own.
pub(crate) const EXTERNAL: u32 = 1;

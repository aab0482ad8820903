//! The objects of a running case, beside blocks and streams: adaptors, the open capture, graphs, growable blocks.

use super::operation::Case;
use super::streams::Uses;
use crate::pool::adaptor::{Adaptor, Budget, Failures, Fill, Guard};
use crate::pool::{Capture, Graph, GraphExec, GrowableBlock, PoolError, StreamId};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The adaptors, and the number of injected failures that the program received.
pub(super) struct Adapted {
    pub(super) budget: Arc<Budget>,
    pub(super) guard: Arc<Guard>,
    pub(super) failures: Arc<Failures>,
    pub(super) met_count: u64,
}

impl Adapted {
    pub(super) fn new(case: &Case) -> Self {
        let on_purpose = |requested_bytes| PoolError::Refused {
            adaptor: FAILURES.into(),
            requested_bytes,
            reason: "fails on purpose".into(),
            origin: None,
        };
        Self {
            budget: Arc::new(Budget::new(case.memory_bytes / 2)),
            guard: Arc::new(Guard::new()),
            failures: Arc::new(Failures::share(FAILURE_SHARE, case.sim_seed).with_error(on_purpose)),
            met_count: 0,
        }
    }

    /// The adaptors, innermost first.
    pub(super) fn adaptors(&self) -> [Arc<dyn Adaptor>; 4] {
        let fill = Arc::new(Fill::debug());
        [self.failures.clone(), self.guard.clone(), fill, self.budget.clone()]
    }

    /// The number of blocks whose guards were checked, after all work is complete. Fails if a guard was overwritten.
    pub(super) fn checked_count(&self) -> Result<u64, String> {
        match self.guard.settle().first() {
            None => Ok(self.guard.checked_count()),
            Some(damage) => Err(damage.to_string()),
        }
    }
}

/// The open capture.
pub(super) struct Capturing {
    pub(super) name: u32,
    pub(super) capture: Capture,
    pub(super) ops: Vec<GraphOp>,
    /// By block name: the streams that touched the block in the capture.
    pub(super) touched: BTreeMap<u32, Touched>,
    /// By block name: the number of the block's uses outside of the capture when the capture waited for them.
    pub(super) awaited: BTreeMap<u32, u32>,
    /// Blocks used on their own stream without `record_use`, which is optional if the block is dropped in the capture.
    pub(super) unannounced: BTreeMap<u32, StreamId>,
}

#[derive(Default)]
pub(super) struct Touched {
    pub(super) writer: Option<StreamId>,
    pub(super) readers: Vec<StreamId>,
    pub(super) is_written: bool,
}

/// A graph made by a capture, and its executables.
pub(super) struct Built {
    pub(super) name: u32,
    pub(super) graph: Option<Graph>,
    pub(super) execs: Vec<(u32, GraphExec)>,
    pub(super) ops: Rc<[GraphOp]>,
    pub(super) awaited: BTreeMap<u32, u32>,
}

/// A block that the program has dropped and graphs keep.
pub(super) struct RetainedBlock {
    pub(super) name: u32,
    pub(super) uses: Uses,
    pub(super) graphs: Vec<u32>,
}

/// The effect of a launch on blocks, which are named by number.
#[derive(Clone, Copy)]
pub(super) enum GraphOp {
    Fill { block: u32, value: u8 },
    Copy { source: u32, target: u32, count: u64 },
}

impl Built {
    pub(super) fn new(
        name: u32,
        graph: Option<Graph>,
        ops: Vec<GraphOp>,
        awaited: BTreeMap<u32, u32>,
    ) -> Self {
        Self { name, graph, execs: Vec::new(), ops: ops.into(), awaited }
    }
}

/// A growable block and its expected contents.
pub(super) struct Growing {
    pub(super) name: u32,
    pub(super) block: GrowableBlock,
    pub(super) uses: Uses,
    /// The first bytes, after the first write.
    pub(super) head: Option<Vec<u8>>,
    /// The index of the pool's counters.
    pub(super) counters: usize,
}

pub(super) const FAILURES: &str = "failures of the model";
const FAILURE_SHARE: f64 = 0.05;

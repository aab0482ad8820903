//! The operations of a program.
//!
//! An operation names its objects by a [`Pick`], a number taken modulo the number of objects when the operation runs. So any list
//! of operations is a valid program, whichever operations shrinking removes. An operation without an object has no effect.

use super::faults::Fault;
use super::places::Place;
use crate::pool::CaptureMode;

/// A program, and the machine that it runs on.
#[derive(Clone, Debug)]
pub struct Case {
    /// The simulator's seed.
    pub sim_seed: u64,
    /// The device's memory.
    pub memory_bytes: u64,
    /// The pool's hard limit.
    pub hard_limit_bytes: Option<u64>,
    /// The pool's soft limit.
    pub soft_limit_bytes: Option<u64>,
    /// True if the pool may query the completion of work. Polling has no time budget, because results that depend on the clock
    /// would make cases differ.
    pub polls: bool,
    /// The maximum number of empty mappings that the pool keeps, if it differs from the profile's.
    pub empty_mappings_max: Option<u32>,
    /// The number of streams before the first operation.
    pub stream_count: usize,
    /// The operations.
    pub operations: Vec<Operation>,
}

/// One operation of a user of the pool.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Creates a stream.
    NewStream {
        /// The kind of the stream.
        kind: Kind,
    },
    /// Drops the handle of a stream, and destroys the stream if another library owns it. Blocks of the stream may stay alive.
    DropStream {
        /// The stream.
        stream: Pick,
        /// True if a stream of another library is retired first.
        retires: bool,
    },
    /// Replaces the pool by a new one. The blocks of the old pool stay alive.
    NewPool,
    /// Creates a private pool with a quota.
    NewPrivate {
        /// The quota.
        quota_bytes: u64,
    },
    /// Drops the handle of a private pool. Its blocks stay alive.
    DropPrivate,
    /// Allocates a block.
    Allocate {
        /// The pool: the first one, or a private pool.
        pool: Pick,
        /// The stream.
        stream: Pick,
        /// The alignment, as an exponent of two. Alignments below 256 are raised to it.
        exponent: u32,
        /// The size.
        size: Size,
        /// The thread that allocates.
        place: Place,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Drops a block.
    Free {
        /// The block.
        block: Pick,
        /// The thread that drops it.
        place: Place,
    },
    /// Frees a block with `free_on`, on one of its streams.
    FreeOn {
        /// The block.
        block: Pick,
        /// The owner stream, or another stream that uses the block.
        user: Pick,
    },
    /// Takes a block apart with `into_raw` and reassembles it.
    Carry {
        /// The block.
        block: Pick,
        /// The thread that reassembles it.
        place: Place,
    },
    /// Waits for all work that uses a block, then frees it with `free_completed`.
    FreeCompleted {
        /// The block.
        block: Pick,
    },
    /// While one stream waits for another, a second thread fills a block on the awaited stream and drops the block, right after
    /// the event was recorded.
    FreeMeanwhile {
        /// The block.
        block: Pick,
        /// The awaited stream.
        stream: Pick,
        /// The stream that waits. No effect if it is the awaited stream.
        other: Pick,
        /// The value to fill with.
        value: u8,
    },
    /// Ends the second thread. The next operation that needs it starts a new one.
    EndThread,
    /// Fills a block with a value.
    Fill {
        /// The block.
        block: Pick,
        /// The stream.
        stream: Pick,
        /// The value.
        value: u8,
        /// The way in which the stream waits for the earlier uses of the block.
        wait: Wait,
    },
    /// Copies one block to another.
    Copy {
        /// The source.
        source: Pick,
        /// The target.
        target: Pick,
        /// The stream.
        stream: Pick,
        /// Like `wait` of [`Operation::Fill`].
        wait: Wait,
    },
    /// Reads a block into pinned memory. Readers do not wait for readers.
    Read {
        /// The block.
        block: Pick,
        /// The stream.
        stream: Pick,
        /// The way in which the stream waits for the last writer of the block.
        wait: Wait,
    },
    /// Creates a growable block.
    NewGrowable {
        /// The stream.
        stream: Pick,
        /// The maximum size.
        max_bytes: u64,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Grows or shrinks a growable block.
    Resize {
        /// The growable block.
        growable: Pick,
        /// The new size, in thousandths of the maximum.
        per_mille: u64,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Fills a growable block with a value.
    FillGrowable {
        /// The growable block.
        growable: Pick,
        /// The stream.
        stream: Pick,
        /// The value.
        value: u8,
        /// Like `wait` of [`Operation::Fill`].
        wait: Wait,
    },
    /// Compares the contents of a growable block with the expected ones.
    CheckGrowable {
        /// The growable block.
        growable: Pick,
    },
    /// Drops a growable block.
    DropGrowable {
        /// The growable block.
        growable: Pick,
    },
    /// Begins a capture, if none is open.
    BeginCapture {
        /// The stream.
        stream: Pick,
        /// The capture mode: which calls other threads may make during the capture.
        mode: CaptureMode,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Adds a stream to the open capture.
    Fork {
        /// The stream.
        stream: Pick,
    },
    /// Ends the open capture.
    EndCapture {
        /// True if the capture ends with a graph; otherwise it is dropped.
        is_wanted: bool,
        /// True if the capture's first stream waits for the added streams first.
        joins: bool,
    },
    /// Instantiates a graph.
    Instantiate {
        /// The graph.
        graph: Pick,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Launches a graph.
    Launch {
        /// The executable.
        exec: Pick,
        /// The stream.
        stream: Pick,
        /// The way in which the stream waits for the earlier uses of the graph's blocks.
        wait: Wait,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Drops a graph. Its executables stay alive.
    DropGraph {
        /// The graph.
        graph: Pick,
    },
    /// Drops an executable.
    DropExec {
        /// The executable.
        exec: Pick,
    },
    /// Compares the contents of a block with the expected ones.
    Check {
        /// The block.
        block: Pick,
    },
    /// Records an event and keeps it.
    Mark {
        /// The stream.
        stream: Pick,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Makes a stream wait for a kept event, without need.
    Wait {
        /// The stream.
        stream: Pick,
        /// The event.
        mark: Pick,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Queries a kept event, or waits for it on the host.
    AskMark {
        /// The event.
        mark: Pick,
        /// True for a wait, false for a query.
        waits: bool,
    },
    /// Queries whether the work of a stream is complete.
    Ask {
        /// The stream.
        stream: Pick,
    },
    /// Waits for a stream on the host.
    Synchronize {
        /// The stream.
        stream: Pick,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Waits for the device on the host.
    SynchronizeDevice {
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Releases all cached memory that can be released.
    Reclaim {
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Releases cached memory down to a size.
    Trim {
        /// The size.
        keep_bytes: u64,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Reserves memory.
    Reserve {
        /// The size.
        size_bytes: u64,
        /// The driver call that fails during the operation.
        fault: Option<Fault>,
    },
    /// Another process allocates memory of the device.
    TakeMemory {
        /// The size.
        size_bytes: u64,
    },
    /// The other process frees all its memory.
    ReturnMemory,
}

/// The owner of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Created by the pool's crate.
    Own,
    /// Created by the pool's crate with `no_waits`: the pool inserts no waits into it.
    NoWaits,
    /// Owned by another library.
    Foreign,
    /// Owned by another library that guarantees that the stream lives as long as the device.
    LongLived,
    /// The context's default stream.
    Legacy,
    /// The per-thread default stream of the program's first thread.
    OfThread,
}

/// The size of the request.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// This number of bytes.
    Bytes(u64),
    /// The bytes that the limit (or else the device) leaves, plus this number: bugs of limits are at their edges.
    Room(i64),
}

/// The ways in which one stream waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// `Stream::wait_for`.
    Fence,
    /// An event that is dropped right away.
    Event,
    /// The host waits. If the host can write the block, it also does the fill.
    Host,
}

/// Picks one of the existing objects.
#[derive(Clone, Copy, Debug)]
pub struct Pick(pub u8);

impl Pick {
    /// The index, or `None` if there are no objects. Half of all picks are among the last three objects, because repeated
    /// operations on the same few objects find the most bugs.
    #[must_use]
    pub fn of(self, count: usize) -> Option<usize> {
        let number = usize::from(self.0);
        match number % 2 {
            0 => Some(count.checked_sub(1)? - (number / 2) % count.min(3)),
            _ => (number / 2).checked_rem(count),
        }
    }
}

//! What a program may do.
//!
//! Operations name their objects by a [`Pick`], a number that is taken modulo how many there are when the operation
//! runs. So any list of operations is a program, whatever shrinking takes out of it; what has nothing to act on is
//! skipped.

use super::faults::Fault;
use super::places::Place;
use crate::pool::CaptureMode;

/// One program and the machine that it runs on.
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
    /// Whether the pool may ask what is complete. It asks for as long as it likes: a clock would make cases differ.
    pub polls: bool,
    /// How many empty windows the pool keeps, if not as many as its profile says.
    pub empty_windows_max: Option<u32>,
    /// How many streams there are before the program starts.
    pub stream_count: usize,
    /// The program.
    pub operations: Vec<Operation>,
}

/// One thing that a user of the pool does.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Makes a stream.
    NewStream {
        /// What kind.
        kind: Kind,
    },
    /// Drops a stream's handle, and destroys the stream if it is somebody else's; blocks may live on it.
    DropStream {
        /// Which.
        stream: Pick,
        /// Whether somebody else's is retired before.
        retires: bool,
    },
    /// Makes a pool and drops the old one's handle; its blocks live on.
    NewPool,
    /// Makes a private pool with a quota.
    NewPrivate {
        /// The quota.
        quota_bytes: u64,
    },
    /// Drops a private pool's handle; its blocks live on.
    DropPrivate,
    /// Allocates.
    Allocate {
        /// From which pool: the first, or a private one.
        pool: Pick,
        /// On which stream.
        stream: Pick,
        /// At a multiple of which power of two; of 256 in any case.
        exponent: u32,
        /// How much.
        size: Size,
        /// On which thread.
        place: Place,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Drops a block.
    Free {
        /// Which.
        block: Pick,
        /// On which thread.
        place: Place,
    },
    /// Drops a block in a call that names one of its streams.
    FreeOn {
        /// Which.
        block: Pick,
        /// Home, or another that uses it.
        user: Pick,
    },
    /// Takes a block apart and makes one of it again.
    Carry {
        /// Which.
        block: Pick,
        /// On which thread it is made again.
        place: Place,
    },
    /// Waits for all work that uses a block, and frees it as complete.
    FreeCompleted {
        /// Which.
        block: Pick,
    },
    /// While a stream is marked, by an event or by whoever waits for it, another thread fills a block there and drops it.
    FreeMeanwhile {
        /// Which block.
        block: Pick,
        /// The stream that is marked.
        stream: Pick,
        /// The stream that waits for it, if none is the same.
        other: Pick,
        /// With what the block is filled.
        value: u8,
    },
    /// The thread that others' operations run on ends; there will be another.
    EndThread,
    /// Fills a block with a value.
    Fill {
        /// Which.
        block: Pick,
        /// On which stream.
        stream: Pick,
        /// With what.
        value: u8,
        /// How the stream is made to wait for those that used the block.
        wait: Wait,
    },
    /// Copies from one block to another.
    Copy {
        /// From which.
        source: Pick,
        /// To which.
        target: Pick,
        /// On which stream.
        stream: Pick,
        /// As for [`Operation::Fill`].
        wait: Wait,
    },
    /// Reads a block into pinned memory. Readers do not wait for readers.
    Read {
        /// Which.
        block: Pick,
        /// On which stream.
        stream: Pick,
        /// How the stream is made to wait for the block's writer.
        wait: Wait,
    },
    /// Makes a block that grows.
    NewGrowable {
        /// On which stream.
        stream: Pick,
        /// How far it can grow.
        max_bytes: u64,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Makes one larger or smaller.
    Resize {
        /// Which.
        growable: Pick,
        /// To how much of what it can have, in thousandths.
        per_mille: u64,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Fills one with a value.
    FillGrowable {
        /// Which.
        growable: Pick,
        /// On which stream.
        stream: Pick,
        /// With what.
        value: u8,
        /// As for [`Operation::Fill`].
        wait: Wait,
    },
    /// Compares the contents of one with what they should be.
    CheckGrowable {
        /// Which.
        growable: Pick,
    },
    /// Drops one.
    DropGrowable {
        /// Which.
        growable: Pick,
    },
    /// Begins a capture, unless one goes on.
    BeginCapture {
        /// On which stream.
        stream: Pick,
        /// What others may do meanwhile.
        mode: CaptureMode,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Makes a stream part of the capture that goes on.
    Fork {
        /// Which.
        stream: Pick,
    },
    /// Ends the capture that goes on.
    EndCapture {
        /// With a graph, or by a drop.
        is_wanted: bool,
        /// Whether the streams that joined are waited for before.
        joins: bool,
    },
    /// Makes a graph ready to be launched.
    Instantiate {
        /// Which.
        graph: Pick,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Launches a graph.
    Launch {
        /// Which of its executables.
        exec: Pick,
        /// On which stream.
        stream: Pick,
        /// How the stream is made to wait for those that used what the graph uses.
        wait: Wait,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Drops a graph; its executables stay.
    DropGraph {
        /// Which.
        graph: Pick,
    },
    /// Drops an executable.
    DropExec {
        /// Which.
        exec: Pick,
    },
    /// Compares a block's contents with what they should be.
    Check {
        /// Which.
        block: Pick,
    },
    /// Records an event that is kept.
    Mark {
        /// On which stream.
        stream: Pick,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Makes a stream wait for an event that was kept, which nothing needs.
    Wait {
        /// Which stream.
        stream: Pick,
        /// For which event.
        mark: Pick,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Queries an event that was kept, or waits for it on the host.
    AskMark {
        /// Which event.
        mark: Pick,
        /// Whether to wait.
        waits: bool,
    },
    /// Queries whether a stream's work is complete.
    Ask {
        /// Which.
        stream: Pick,
    },
    /// Waits for a stream.
    Synchronize {
        /// Which.
        stream: Pick,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Waits for the device.
    SynchronizeDevice {
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Gives everything back that can be.
    Reclaim {
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Gives back down to a size.
    Trim {
        /// The size.
        keep_bytes: u64,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Warms the pool up.
    Reserve {
        /// The size.
        size_bytes: u64,
        /// The driver call that fails meanwhile.
        fault: Option<Fault>,
    },
    /// Another process takes free memory of the device.
    TakeMemory {
        /// How much.
        size_bytes: u64,
    },
    /// It gives all of it back.
    ReturnMemory,
}

/// The owner of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The crate's own.
    Own,
    /// The crate's own, which the pool does not make wait.
    NoWaits,
    /// Another library's.
    Foreign,
    /// Another library's, which promises that it lives as long as the device.
    LongLived,
    /// The context's default stream.
    Legacy,
    /// The default stream of the program's first thread.
    OfThread,
}

/// The size of the request.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// What the limit, or else the device, leaves, and so much more: limits are wrong at their edges.
    Room(i64),
}

/// How one stream is made to wait for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// `Stream::wait_for`.
    Fence,
    /// An event that is dropped at once.
    Event,
    /// The host waits. What it may write itself, it then fills itself.
    Host,
}

/// Names one of however many there are.
#[derive(Clone, Copy, Debug)]
pub struct Pick(pub u8);

impl Pick {
    /// The index, unless there is nothing. Half of all picks are among the last three: what happens to the same few
    /// things is where the mistakes are.
    #[must_use]
    pub fn of(self, count: usize) -> Option<usize> {
        let number = usize::from(self.0);
        match number % 2 {
            0 => Some(count.checked_sub(1)? - (number / 2) % count.min(3)),
            _ => (number / 2).checked_rem(count),
        }
    }
}

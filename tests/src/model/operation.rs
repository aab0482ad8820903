//! What a program may do, and how proptest draws and shrinks it.
//!
//! Operations name their objects by a [`Pick`], a number that is taken modulo how many there are when the operation
//! runs. So any list of operations is a program, whatever shrinking takes out of it; what has nothing to act on is
//! skipped.

use super::faults::{Call, Fault};
use super::places::Place;
use crate::pool::CaptureMode;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

/// One program and the machine that it runs on.
#[derive(Clone, Debug)]
pub struct Case {
    /// The software driver's seed.
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
        /// What the driver refuses meanwhile.
        fault: Option<Fault>,
    },
    /// Drops a block.
    Free {
        /// Which.
        block: Pick,
        /// On which thread.
        place: Place,
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
        /// What the driver refuses meanwhile.
        fault: Option<Fault>,
    },
    /// Makes one larger or smaller.
    Resize {
        /// Which.
        growable: Pick,
        /// To how much of what it can have, in thousandths.
        per_mille: u64,
        /// What the driver refuses meanwhile.
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
        /// What the driver refuses meanwhile.
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
        /// What the driver refuses meanwhile.
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
        /// What the driver refuses meanwhile.
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
        /// What the driver refuses meanwhile.
        fault: Option<Fault>,
    },
    /// Makes a stream wait for an event that was kept, which nothing needs.
    Wait {
        /// Which stream.
        stream: Pick,
        /// For which event.
        mark: Pick,
        /// What the driver refuses meanwhile.
        fault: Option<Fault>,
    },
    /// Asks whether an event that was kept has been passed, or waits for it on the host.
    AskMark {
        /// Which event.
        mark: Pick,
        /// Whether to wait.
        waits: bool,
    },
    /// Asks whether a stream has come to its end.
    Ask {
        /// Which.
        stream: Pick,
    },
    /// Waits for a stream.
    Synchronize {
        /// Which.
        stream: Pick,
        /// What the driver refuses meanwhile.
        fault: Option<Fault>,
    },
    /// Waits for the device.
    SynchronizeDevice {
        /// What the driver refuses meanwhile.
        fault: Option<Fault>,
    },
    /// Gives everything back that can be.
    Reclaim {
        /// What the driver refuses meanwhile.
        fault: Option<Fault>,
    },
    /// Gives back down to a size.
    Trim {
        /// The size.
        keep_bytes: u64,
        /// What the driver refuses meanwhile.
        fault: Option<Fault>,
    },
    /// Warms the pool up.
    Reserve {
        /// The size.
        size_bytes: u64,
        /// What the driver refuses meanwhile.
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

/// Whose a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The crate's own.
    Own,
    /// The crate's own, which the pool does not make wait.
    NoWaits,
    /// Somebody else's.
    Foreign,
    /// The context's default stream.
    Legacy,
    /// The default stream of the program's first thread.
    OfThread,
}

/// How much is asked for.
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

/// Any case.
pub fn case() -> impl Strategy<Value = Case> {
    let hard_limit =
        prop_oneof![2 => Just(None), 3 => prop_oneof![2 * MIB..=8 * MIB, 8 * MIB..=96 * MIB].prop_map(Some)];
    let soft_limit = prop_oneof![3 => Just(None), 1 => Just(Some(0)), 1 => (0..=64 * MIB).prop_map(Some)];
    let memory = prop_oneof![Just(64 * MIB), Just(128 * MIB), Just(1024 * MIB)];
    let dials = (any::<bool>(), weighted(0.3, 0..=2_u32));
    let machine = (any::<u64>().no_shrink(), memory, hard_limit, soft_limit, dials);
    (machine, 1..=4_usize, vec(operation(), 1..=100)).prop_map(|(machine, stream_count, operations)| {
        let (sim_seed, memory_bytes, hard_limit_bytes, soft_limit_bytes, (polls, empty_windows_max)) =
            machine;
        Case {
            sim_seed,
            memory_bytes,
            hard_limit_bytes,
            soft_limit_bytes,
            polls,
            empty_windows_max,
            stream_count,
            operations,
        }
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![40 => memory(), 30 => work(), 15 => order(), 6 => growing(), 16 => graphs()]
}

/// Asking for memory and giving it back.
fn memory() -> impl Strategy<Value = Operation> {
    prop_oneof![
        36 => (pool(), pick(), exponent(), size(), place(), fault()).prop_map(
            |(pool, stream, exponent, size, place, fault)| {
                Operation::Allocate { pool, stream, exponent, size, place, fault }
            }
        ),
        22 => (pick(), place()).prop_map(|(block, place)| Operation::Free { block, place }),
        1 => (pick(), place()).prop_map(|(block, place)| Operation::Carry { block, place }),
        1 => (2 * MIB..=64 * MIB).prop_map(|quota_bytes| Operation::NewPrivate { quota_bytes }),
        1 => Just(Operation::DropPrivate),
        2 => pick().prop_map(|block| Operation::FreeCompleted { block }),
        6 => (pick(), pick(), pick(), any::<u8>()).prop_map(|(block, stream, other, value)| {
            Operation::FreeMeanwhile { block, stream, other, value }
        }),
        1 => Just(Operation::NewPool),
        1 => Just(Operation::EndThread),
        3 => fault().prop_map(|fault| Operation::Reclaim { fault }),
        3 => (0..=64 * MIB, fault())
            .prop_map(|(keep_bytes, fault)| Operation::Trim { keep_bytes, fault }),
        1 => (0..=48 * MIB, fault())
            .prop_map(|(size_bytes, fault)| Operation::Reserve { size_bytes, fault }),
        1 => (0..=48 * MIB).prop_map(|size_bytes| Operation::TakeMemory { size_bytes }),
        1 => Just(Operation::ReturnMemory),
    ]
}

/// Work that uses it.
fn work() -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => (pick(), pick(), any::<u8>(), wait())
            .prop_map(|(block, stream, value, wait)| Operation::Fill { block, stream, value, wait }),
        6 => (pick(), pick(), pick(), wait())
            .prop_map(|(source, target, stream, wait)| Operation::Copy { source, target, stream, wait }),
        8 => (pick(), pick(), wait()).prop_map(|(block, stream, wait)| Operation::Read { block, stream, wait }),
        2 => pick().prop_map(|block| Operation::Check { block }),
    ]
}

/// Blocks that grow.
fn growing() -> impl Strategy<Value = Operation> {
    let max_bytes = prop_oneof![1 => 0..=MIB, 4 => MIB..=64 * MIB, 1 => 64 * MIB..=1024 * MIB];
    prop_oneof![
        2 => (pick(), max_bytes, fault())
            .prop_map(|(stream, max_bytes, fault)| Operation::NewGrowable { stream, max_bytes, fault }),
        5 => (pick(), 0..=1000_u64, fault())
            .prop_map(|(growable, per_mille, fault)| Operation::Resize { growable, per_mille, fault }),
        4 => (pick(), pick(), any::<u8>(), wait()).prop_map(|(growable, stream, value, wait)| {
            Operation::FillGrowable { growable, stream, value, wait }
        }),
        1 => pick().prop_map(|growable| Operation::CheckGrowable { growable }),
        2 => pick().prop_map(|growable| Operation::DropGrowable { growable }),
    ]
}

/// Captures, and the graphs that come of them.
fn graphs() -> impl Strategy<Value = Operation> {
    let mode = prop_oneof![
        2 => Just(CaptureMode::Global),
        1 => Just(CaptureMode::ThreadLocal),
        1 => Just(CaptureMode::Relaxed)
    ];
    prop_oneof![
        5 => (pick(), mode, fault())
            .prop_map(|(stream, mode, fault)| Operation::BeginCapture { stream, mode, fault }),
        2 => pick().prop_map(|stream| Operation::Fork { stream }),
        4 => (weighted(0.1, Just(())), weighted(0.1, Just(()))).prop_map(|(unwanted, alone)| {
            Operation::EndCapture { is_wanted: unwanted.is_none(), joins: alone.is_none() }
        }),
        6 => (pick(), fault()).prop_map(|(graph, fault)| Operation::Instantiate { graph, fault }),
        12 => (pick(), pick(), wait(), fault())
            .prop_map(|(exec, stream, wait, fault)| Operation::Launch { exec, stream, wait, fault }),
        1 => pick().prop_map(|graph| Operation::DropGraph { graph }),
        1 => pick().prop_map(|exec| Operation::DropExec { exec }),
    ]
}

/// Streams, and what orders and observes them.
fn order() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => kind().prop_map(|kind| Operation::NewStream { kind }),
        2 => (pick(), any::<bool>()).prop_map(|(stream, retires)| Operation::DropStream { stream, retires }),
        3 => (pick(), fault()).prop_map(|(stream, fault)| Operation::Mark { stream, fault }),
        3 => (pick(), pick(), fault())
            .prop_map(|(stream, mark, fault)| Operation::Wait { stream, mark, fault }),
        2 => (pick(), any::<bool>()).prop_map(|(mark, waits)| Operation::AskMark { mark, waits }),
        2 => pick().prop_map(|stream| Operation::Ask { stream }),
        2 => (pick(), fault()).prop_map(|(stream, fault)| Operation::Synchronize { stream, fault }),
        1 => fault().prop_map(|fault| Operation::SynchronizeDevice { fault }),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        6 => Just(Kind::Own),
        2 => Just(Kind::NoWaits),
        2 => Just(Kind::Foreign),
        1 => Just(Kind::Legacy),
        1 => Just(Kind::OfThread)
    ]
}

/// Mostly the first.
fn pool() -> impl Strategy<Value = Pick> {
    prop_oneof![3 => Just(Pick(1)), 1 => pick()]
}

/// Mostly none.
fn exponent() -> impl Strategy<Value = u32> {
    prop_oneof![10 => Just(0), 2 => 0..=22_u32, 1 => 0..=26_u32]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![6 => Just(Place::Here), 2 => Just(Place::Other), 1 => Just(Place::OfItsOwn)]
}

/// Now and then a refusal, mostly of the first such call.
fn fault() -> impl Strategy<Value = Option<Fault>> {
    let call = (0..Call::ALL.len()).prop_map(|index| Call::ALL[index]);
    let skip = prop_oneof![3 => Just(0), 1 => 1..=4_u32];
    let fault = (call, skip, 1..=2_u32, any::<bool>())
        .prop_map(|(call, skip, count, is_out_of_memory)| Fault { call, skip, count, is_out_of_memory });
    weighted(0.25, fault)
}

/// Mostly small, so that much fits and contents are cheap to follow; sometimes what fills the device, nothing, what no
/// device has, or what is left to the byte.
fn size() -> impl Strategy<Value = Size> {
    let even_by_logarithm =
        (0..=20_u32, any::<u64>()).prop_map(|(power, rest)| (1 << power) + rest % (1 << power));
    let plain = prop_oneof![
        6 => 1_u64..=8192,
        6 => even_by_logarithm,
        4 => MIB..=48 * MIB,
        1 => Just(0),
        1 => prop_oneof![Just(1024 * MIB + 1), Just(u64::MAX), 64 * MIB..=u64::MAX],
    ];
    prop_oneof![12 => plain.prop_map(Size::Bytes), 1 => (-1_i64..=1).prop_map(Size::Room)]
}

fn wait() -> impl Strategy<Value = Wait> {
    prop_oneof![6 => Just(Wait::Fence), 3 => Just(Wait::Event), 1 => Just(Wait::Host)]
}

fn pick() -> impl Strategy<Value = Pick> {
    any::<u8>().prop_map(Pick)
}

const MIB: u64 = 1 << 20;

//! What a program may do, and how proptest draws and shrinks it.
//!
//! Operations name their objects by a [`Pick`], a number that is taken modulo how many there are when the operation
//! runs. So any list of operations is a program, whatever shrinking takes out of it; what has nothing to act on is
//! skipped.

use proptest::collection::vec;
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
    /// How many streams there are before the program starts.
    pub stream_count: usize,
    /// The program.
    pub operations: Vec<Operation>,
}

/// One thing that a user of the pool does.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Makes a stream.
    NewStream,
    /// Drops a stream's handle; blocks may live on it.
    DropStream {
        /// Which.
        stream: Pick,
    },
    /// Makes a pool and drops the old one's handle; its blocks live on.
    NewPool,
    /// Allocates.
    Allocate {
        /// On which stream.
        stream: Pick,
        /// How much.
        size: Size,
    },
    /// The driver refuses the next requests for memory as a full device would; then as [`Operation::Allocate`].
    AllocateRefused {
        /// On which stream.
        stream: Pick,
        /// How much.
        size: Size,
        /// How often.
        count: u32,
    },
    /// Drops a block.
    Free {
        /// Which.
        block: Pick,
        /// On a thread of its own.
        elsewhere: bool,
    },
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
    /// Compares a block's contents with what they should be.
    Check {
        /// Which.
        block: Pick,
    },
    /// Records an event that is kept.
    Mark {
        /// On which stream.
        stream: Pick,
    },
    /// Makes a stream wait for an event that was kept, which nothing needs.
    Wait {
        /// Which stream.
        stream: Pick,
        /// For which event.
        mark: Pick,
    },
    /// Waits for a stream.
    Synchronize {
        /// Which.
        stream: Pick,
    },
    /// Waits for the device.
    SynchronizeDevice,
    /// Gives everything back that can be.
    Reclaim,
    /// Gives back down to a size.
    Trim {
        /// The size.
        keep_bytes: u64,
    },
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
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// `Stream::wait_for`.
    Fence,
    /// An event that is dropped at once.
    Event,
    /// The host waits.
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
    let machine = (any::<u64>().no_shrink(), memory, hard_limit, soft_limit);
    (machine, 1..=4_usize, vec(operation(), 1..=100)).prop_map(|(machine, stream_count, operations)| {
        let (sim_seed, memory_bytes, hard_limit_bytes, soft_limit_bytes) = machine;
        Case { sim_seed, memory_bytes, hard_limit_bytes, soft_limit_bytes, stream_count, operations }
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (pick(), size()).prop_map(|(stream, size)| Operation::Allocate { stream, size }),
        10 => (pick(), pick(), any::<u8>(), wait())
            .prop_map(|(block, stream, value, wait)| Operation::Fill { block, stream, value, wait }),
        8 => (pick(), any::<bool>()).prop_map(|(block, elsewhere)| Operation::Free { block, elsewhere }),
        6 => (pick(), pick(), pick(), wait())
            .prop_map(|(source, target, stream, wait)| Operation::Copy { source, target, stream, wait }),
        8 => (pick(), pick(), wait()).prop_map(|(block, stream, wait)| Operation::Read { block, stream, wait }),
        2 => pick().prop_map(|block| Operation::Check { block }),
        2 => Just(Operation::NewStream),
        1 => pick().prop_map(|stream| Operation::DropStream { stream }),
        1 => Just(Operation::NewPool),
        1 => (pick(), size(), 1_u32..=2)
            .prop_map(|(stream, size, count)| Operation::AllocateRefused { stream, size, count }),
        1 => pick().prop_map(|stream| Operation::Mark { stream }),
        1 => (pick(), pick()).prop_map(|(stream, mark)| Operation::Wait { stream, mark }),
        1 => pick().prop_map(|stream| Operation::Synchronize { stream }),
        1 => Just(Operation::SynchronizeDevice),
        1 => Just(Operation::Reclaim),
        1 => (0..=64 * MIB).prop_map(|keep_bytes| Operation::Trim { keep_bytes }),
    ]
}

/// Mostly small, so that much fits and contents are cheap to follow; sometimes what fills the device, nothing, what no
/// device has, or what is left to the byte.
fn size() -> impl Strategy<Value = Size> {
    let plain = prop_oneof![
        8 => 1_u64..=8192,
        3 => 8193_u64..=MIB,
        3 => MIB..=48 * MIB,
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

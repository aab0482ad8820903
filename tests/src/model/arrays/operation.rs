//! The operations of a program of arrays.
//!
//! Objects are named by [`Pick`]s, and numbers are taken relative to the shapes that they meet. So any list of operations is a valid
//! program, whichever operations shrinking removes.

use super::trees::Tree;
use super::views::{Look, Turn};
use crate::model::operation::Pick;

/// A program, and the machine that it runs on.
#[derive(Clone, Debug)]
pub struct Case {
    /// The simulator's seed.
    pub sim_seed: u64,
    /// True if a link connects the two devices.
    pub has_link: bool,
    /// The element type of all arrays.
    pub numbers: Numbers,
    /// The operations.
    pub operations: Vec<Operation>,
}

impl Case {
    /// True if arrays move to the host between operations: one program in three.
    pub(super) fn spills(&self) -> bool {
        self.sim_seed.is_multiple_of(3)
    }
}

/// The element type of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// `i32`.
    Words,
    /// `f64`.
    Floats,
}

/// The stream of an operation: one of the three of the array's own device for numbers below 192, otherwise one of all six.
#[derive(Clone, Copy, Debug)]
pub struct On(pub u8);

/// The kind of memory of a new array.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Device memory.
    Device,
    /// Unified memory.
    Unified,
    /// Pinned memory.
    Pinned,
}

/// How an array is created.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// `from_elem`.
    Value(i8),
    /// `from_array`, by rows or by columns.
    Host(bool),
    /// `from_slice`.
    Range(i8),
    /// `from_fn`.
    Indices,
    /// `random`.
    Random(u8),
    /// `random_normal`; `random` for integers.
    Normal(u8),
    /// `eye`.
    Eye,
    /// `ones`.
    Ones,
    /// `uninit`, and a copy.
    Uninit,
    /// `growable` and `extend_from_slice` in device memory where the pool has such blocks; elsewhere `uninit`.
    Growable,
}

/// An arithmetic operation.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

/// An expression of two arrays and a number: one of the rows of `formulas!`.
#[derive(Clone, Copy, Debug)]
pub struct Formula {
    /// The row.
    pub row: u8,
    /// The number.
    pub number: i8,
}

/// A reduction of all elements, or along an axis.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Reduction {
    Sum,
    Max,
    Min,
    ArgMax,
    ArgMin,
    Any,
    All,
    Count,
}

/// What is calculated from a random formula.
#[derive(Clone, Copy, Debug)]
pub enum Derived {
    /// A new array.
    Value,
    /// Sums over two axes.
    Sums([usize; 2]),
    /// Largest elements over two axes.
    Maxima([usize; 2]),
    /// Sums up to each element, of all or along an axis.
    Prefixes(Option<usize>),
    /// The logarithm of the sum of powers, of all or along an axis.
    LogSumExp(Option<usize>),
    /// Shares of powers along an axis.
    Softmax(usize),
}

/// Indices on an axis, taken relative to its length.
#[derive(Clone, Debug)]
pub struct AxisIndices {
    /// The axis.
    pub axis: usize,
    /// The indices.
    pub indices: Vec<u8>,
    /// True for an array on the device, which may have indices outside of the axis.
    pub on_device: bool,
}

/// The other side of an arithmetic operation.
#[derive(Clone, Debug)]
pub enum Right {
    /// A number.
    Value(i8),
    /// A view of an array.
    Array(Look),
}

/// An operation on a part of an array, in a program of its own.
#[derive(Clone, Debug)]
pub enum Work {
    /// Fills it.
    Fill(i8),
    /// Calculates in place.
    Calculate(Arithmetic, Right),
    /// Calculates in place with a temporary: a view times a number.
    Temporary(Arithmetic, Look, i8),
    /// Calculates in place with a number of the graph; outside of graphs, with a number.
    Number(Arithmetic, Pick),
    /// Copies a view.
    Assign(Look),
    /// Calculates an expression of a view into it.
    Express(Formula, Look),
    /// Replaces it by an expression of itself and a view.
    Update(Formula, Look),
}

/// One step of a capture.
#[derive(Clone, Debug)]
pub struct Node {
    /// The view that is written.
    pub target: Look,
    /// The operation.
    pub work: Work,
}

/// Owned host memory of a transfer.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Owned {
    Vec,
    Array,
    Pinned,
}

/// The end of a transfer.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Wait for it.
    Wait,
    /// Poll it until it resolves.
    Poll,
    /// Drop it.
    Drop,
}

/// One operation of a user of arrays.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "`World` describes them, and `NAMES` names them")]
pub enum Operation {
    New {
        on: On,
        place: Place,
        shape: Vec<usize>,
        how: How,
    },
    Calculate {
        left: Look,
        operation: Arithmetic,
        right: Right,
        on: On,
    },
    Write {
        target: Look,
        work: Work,
        on: On,
    },
    Copy {
        source: Look,
        on: On,
        place: Place,
    },
    Own {
        source: Look,
        on: On,
    },
    Sum {
        source: Look,
        on: On,
        reader: On,
        is_kept: bool,
    },
    Product {
        left: Look,
        right: Look,
        on: On,
    },
    Express {
        left: Look,
        right: Look,
        formula: Formula,
        on: On,
    },
    UpdateTwo {
        first: Pick,
        second: Pick,
        turns: Vec<Turn>,
        formula: Formula,
        on: On,
    },
    Reduce {
        left: Look,
        right: Look,
        number: i8,
        reduction: Reduction,
        axis: Option<usize>,
        on: On,
    },
    Derive {
        sources: [Look; 2],
        tree: Tree,
        derived: Derived,
        on: On,
    },
    Select {
        source: Look,
        indices: AxisIndices,
        on: On,
    },
    ScatterAdd {
        target: Look,
        source: Look,
        indices: AxisIndices,
        on: On,
    },
    Choose {
        source: Look,
        axis: usize,
        number: i8,
        on: On,
    },
    Matrices {
        left: Look,
        right: Look,
        on: On,
    },
    Join {
        parts: Vec<Look>,
        axis: usize,
        stacks: bool,
    },
    Resize {
        array: Pick,
        len: usize,
        value: i8,
    },
    Append {
        array: Pick,
        other: Look,
    },
    Extend {
        array: Pick,
        count: usize,
    },
    Upload {
        target: Look,
        on: On,
    },
    Check {
        source: Look,
        on: On,
    },
    HostRead {
        array: Pick,
    },
    HostWrite {
        array: Pick,
        index: usize,
        value: i8,
    },
    Lend {
        array: Pick,
        other: Pick,
        value: u8,
        leaks: bool,
    },
    Swap {
        array: Pick,
        other: Pick,
    },
    Registered {
        len: usize,
        on: On,
        other: On,
        value: i8,
    },
    Halves {
        array: Pick,
        axis: usize,
        at: usize,
        interleaves: bool,
        steps: Vec<(bool, On, Work)>,
        threads: bool,
    },
    Share {
        arrays: Vec<Pick>,
        thread_count: usize,
        work: Vec<Work>,
    },
    StartUpload {
        on: On,
        shape: Vec<usize>,
        owned: Owned,
    },
    StartDownload {
        source: Look,
        on: On,
        owned: Owned,
    },
    EndTransfer {
        transfer: Pick,
        end: End,
    },
    Capture {
        on: On,
        nodes: Vec<Node>,
        numbers: Vec<i8>,
        out: Option<(Look, i8)>,
    },
    Update {
        graph: Pick,
        nodes: Vec<Node>,
        numbers: Vec<i8>,
        out: Option<(Look, i8)>,
    },
    Launch {
        graph: Pick,
        on: On,
        set: Option<(Pick, i8)>,
        reader: On,
        is_kept: bool,
    },
    DropGraph {
        graph: Pick,
    },
    Move {
        array: Pick,
        on: On,
    },
    Block {
        array: Pick,
        on: On,
    },
    Dlpack {
        array: Pick,
        on: On,
        value: i8,
    },
    Drop {
        array: Pick,
        elsewhere: bool,
    },
    Synchronize {
        on: On,
    },
}

impl Operation {
    /// The name in the coverage.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::New { .. } => "new",
            Self::Calculate { .. } => "calculate",
            Self::Write { .. } => "write",
            Self::Copy { .. } => "copy",
            Self::Own { .. } => "own",
            Self::Sum { .. } => "sum",
            Self::Product { .. } => "product",
            Self::Express { .. } => "express",
            Self::UpdateTwo { .. } => "update two",
            Self::Reduce { .. } => "reduce",
            Self::Derive { .. } => "derive",
            Self::Select { .. } => "select",
            Self::ScatterAdd { .. } => "scatter add",
            Self::Choose { .. } => "choose",
            Self::Matrices { .. } => "matrices",
            Self::Join { .. } => "join",
            Self::Resize { .. } => "resize",
            Self::Append { .. } => "append",
            Self::Extend { .. } => "extend",
            Self::Upload { .. } => "upload",
            Self::Check { .. } => "check",
            Self::HostRead { .. } => "host read",
            Self::HostWrite { .. } => "host write",
            Self::Lend { .. } => "lend",
            Self::Swap { .. } => "swap",
            Self::Registered { .. } => "registered",
            Self::Halves { .. } => "halves",
            Self::Share { .. } => "share",
            Self::StartUpload { .. } => "start upload",
            Self::StartDownload { .. } => "start download",
            Self::EndTransfer { .. } => "end transfer",
            Self::Capture { .. } => "capture",
            Self::Update { .. } => "update",
            Self::Launch { .. } => "launch",
            Self::DropGraph { .. } => "drop graph",
            Self::Move { .. } => "move",
            Self::Block { .. } => "block",
            Self::Dlpack { .. } => "dlpack",
            Self::Drop { .. } => "drop",
            Self::Synchronize { .. } => "synchronize",
        }
    }
}

/// The names of all operations.
#[rustfmt::skip]
pub(super) const NAMES: [&str; 41] = [
    "new", "calculate", "write", "copy", "own", "sum", "product", "express", "update two", "reduce", "derive", "select",
    "scatter add", "choose", "matrices", "join", "resize", "append", "extend", "upload", "check", "host read",
    "host write", "lend", "swap", "registered", "halves", "share", "start upload", "start download", "end transfer", "capture", "update",
    "launch", "drop graph", "move", "block", "dlpack", "drop", "synchronize",
    "spill",
];

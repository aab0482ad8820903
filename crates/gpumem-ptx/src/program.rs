//! A kernel with the functions that it calls, in the form that runs.

use crate::number::Alu;
use crate::number::matrix::{Fragment, Product};
use crate::syntax::{SourceFile, SourcePlace, Type};
use core::fmt;
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use gpumem_sys::text::{Shown, debug_is_display};
use std::collections::HashMap;
use std::sync::Arc;

/// Where an operand is: a register of the frame, a constant of the program, or a special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Register(u32),
    Constant(u32),
    Special(u32),
}

/// One instruction, or a part of one.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) guard: Option<Guard>,
    /// The line in the text.
    pub(crate) line: u32,
}

/// The predicate of an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) register: u32,
    pub(crate) is_negated: bool,
}

/// What a step does. `to` and the like are registers.
#[derive(Debug)]
pub(crate) enum Op {
    Alu {
        function: Alu,
        to: u32,
        inputs: [Slot; 3],
    },
    /// Any function of three bits.
    Logic {
        to: u32,
        inputs: [Slot; 3],
        table: u32,
    },
    /// Puts a field of bits into a number.
    Insert {
        to: u32,
        inputs: [Slot; 4],
        width: u32,
    },
    /// The address in local memory of a variable of the frame.
    FrameAddress {
        to: u32,
        offset_bytes: u64,
    },
    Load {
        to: Box<[Option<u32>]>,
        from: Access,
    },
    Store {
        values: Box<[Slot]>,
        to: Access,
    },
    Atomic {
        function: fn(u64, u64, u64) -> u64,
        /// What it does to shared memory, where sums of `f32` keep subnormal numbers.
        in_shared: fn(u64, u64, u64) -> u64,
        to: Option<u32>,
        at: Access,
        inputs: [Slot; 2],
    },
    /// Copies from global to shared memory; what the source is too short for is filled with zeros.
    Copy {
        to: Access,
        from: Access,
        size_bytes: u32,
        source_bytes: Option<Slot>,
    },
    Branch {
        target: u32,
    },
    BranchTable {
        targets: Arc<[u32]>,
        index: Slot,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    /// Orders the accesses of a thread before its later ones, for others, or the later ones behind what it has seen, or both.
    Fence(Order),
    /// The asynchronous copies of a thread since the last one become a group.
    CommitCopies,
    /// Waits for the asynchronous copies of a thread, except for its last `pending` groups; for all if `None`.
    WaitForCopies {
        pending: Option<u32>,
    },
    /// Formats a text: the addresses of the format and of the arguments.
    Print {
        to: u32,
        format: Slot,
        arguments: Slot,
        site: u32,
    },
    /// A failed assertion: the addresses of its text, its file and its function, and the line.
    Assert(Box<Assertion>),
    Barrier(Box<Barrier>),
    WarpBarrier {
        mask: Slot,
    },
    Shuffle(Box<Shuffle>),
    Vote {
        kind: Vote,
        to: u32,
        input: Slot,
        mask: Option<Slot>,
    },
    MatchAny {
        to: u32,
        input: Slot,
        mask: Slot,
    },
    MatchAll {
        to: Option<u32>,
        is_equal: Option<u32>,
        input: Slot,
        mask: Slot,
    },
    Reduce {
        function: fn(u64, u64) -> u64,
        /// What the function does, and the type that the instruction names.
        name: (&'static str, Type),
        to: u32,
        input: Slot,
        mask: Slot,
    },
    Elect {
        to: Option<u32>,
        is_elected: Option<u32>,
        mask: Slot,
    },
    ActiveMask {
        to: u32,
    },
    Matrix(Box<Matrix>),
    Clock {
        to: u32,
        part: ClockPart,
    },
}

/// An operand of an instruction in registers or constants.
pub(crate) enum RegisterOperand<'o> {
    Read(&'o mut Slot),
    Write(&'o mut u32),
}

impl Op {
    /// True if the next step comes after it in any case, as far as it has no guard.
    pub(crate) fn is_followed(&self) -> bool {
        !matches!(
            self,
            Self::Branch { .. } | Self::BranchTable { .. } | Self::Exit | Self::Return | Self::Trap
        )
    }

    /// Shows all operands.
    pub(crate) fn operands(&mut self, show: &mut dyn FnMut(RegisterOperand<'_>)) {
        macro_rules! show {
            ($kind:ident: $($operands:expr),*) => {{
                $($operands.into_iter().for_each(|operand| show(RegisterOperand::$kind(operand)));)*
            }};
        }
        match self {
            Self::Alu { to, inputs, function } => {
                let count = match function {
                    Alu::One(_) => 1,
                    Alu::Two(_) => 2,
                    Alu::Three(_) => 3,
                };
                show!(Read: &mut inputs[..count]);
                show!(Write: [to]);
            }
            Self::Logic { to, inputs, .. } => {
                show!(Read: inputs);
                show!(Write: [to]);
            }
            Self::Insert { to, inputs, .. } => {
                show!(Read: inputs);
                show!(Write: [to]);
            }
            Self::FrameAddress { to, .. } | Self::ActiveMask { to } | Self::Clock { to, .. } => {
                show!(Write: [to])
            }
            Self::Load { to, from } => {
                show!(Read: [&mut from.at]);
                show!(Write: to.iter_mut().flatten());
            }
            Self::Store { values, to } => show!(Read: values.iter_mut(), [&mut to.at]),
            Self::Atomic { to, at, inputs, .. } => {
                show!(Read: [&mut at.at], inputs);
                show!(Write: to);
            }
            Self::Copy { to, from, source_bytes, .. } => {
                show!(Read: [&mut to.at, &mut from.at], source_bytes)
            }
            Self::BranchTable { index, .. } => show!(Read: [index]),
            Self::Call(call) => {
                let slots = |passed: &mut [Passed], show: &mut dyn FnMut(&mut Slot)| {
                    for passed in passed {
                        if let Location::Slot(slot) = &mut passed.from {
                            show(slot);
                        }
                    }
                };
                slots(&mut call.arguments, &mut |slot| show(RegisterOperand::Read(slot)));
                if let Callee::Register(slot) = &mut call.target {
                    show(RegisterOperand::Read(slot));
                }
                slots(&mut call.results, &mut |slot| {
                    if let Slot::Register(to) = slot {
                        show(RegisterOperand::Write(to));
                    }
                });
            }
            Self::Print { to, format, arguments, .. } => {
                show!(Read: [format, arguments]);
                show!(Write: [to]);
            }
            Self::Assert(assertion) => {
                let Assertion { text, file, line, function, .. } = &mut **assertion;
                show!(Read: [text, file, line, function]);
            }
            Self::Barrier(barrier) => {
                show!(Read: [&mut barrier.number], &mut barrier.count);
                if let BarrierKind::Combine { to, input, .. } = &mut barrier.kind {
                    show!(Read: [input]);
                    show!(Write: [to]);
                }
            }
            Self::WarpBarrier { mask } => show!(Read: [mask]),
            Self::Shuffle(shuffle) => {
                let Shuffle { to, is_valid, input, lane, limits, mask, .. } = &mut **shuffle;
                show!(Read: [input, lane, limits], mask);
                show!(Write: [to], is_valid);
            }
            Self::Vote { to, input, mask, .. } => {
                show!(Read: [input], mask);
                show!(Write: [to]);
            }
            Self::MatchAny { to, input, mask } | Self::Reduce { to, input, mask, .. } => {
                show!(Read: [input, mask]);
                show!(Write: [to]);
            }
            Self::MatchAll { to, is_equal, input, mask } => {
                show!(Read: [input, mask]);
                show!(Write: to, is_equal);
            }
            Self::Elect { to, is_elected, mask } => {
                show!(Read: [mask]);
                show!(Write: to, is_elected);
            }
            Self::Matrix(matrix) => match &mut **matrix {
                Matrix::LoadRows { to, from, .. } => {
                    show!(Read: [&mut from.at]);
                    show!(Write: to.iter_mut());
                }
                Matrix::StoreRows { values, to, .. } => show!(Read: values.iter_mut(), [&mut to.at]),
                Matrix::Transpose { to, input } => {
                    show!(Read: [input]);
                    show!(Write: [to]);
                }
                Matrix::Load { to, from, lines, .. } => {
                    show!(Read: [&mut from.at, &mut lines.stride]);
                    show!(Write: to.iter_mut());
                }
                Matrix::Store { values, to, lines, .. } => {
                    show!(Read: values.iter_mut(), [&mut to.at, &mut lines.stride]);
                }
                Matrix::Multiply { to, a, b, c, .. } => {
                    show!(Read: a.iter_mut(), b.iter_mut(), c.iter_mut());
                    show!(Write: to.iter_mut());
                }
            },
            Self::Branch { .. }
            | Self::Return
            | Self::Exit
            | Self::Trap
            | Self::Fence(_)
            | Self::CommitCopies
            | Self::WaitForCopies { .. } => {}
        }
    }
}

/// The memory that an instruction accesses: `count` elements of `bytes` each from an address plus a distance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) space: Memory,
    pub(crate) at: Slot,
    pub(crate) offset_bytes: i64,
    pub(crate) bytes: u8,
    pub(crate) count: u8,
    /// The number of this access among those of the program.
    pub(crate) site: u32,
    pub(crate) order: Order,
}

/// What an access says about the order between threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// It is atomic or not weak.
    pub(crate) is_strong: bool,
    /// It orders the accesses that follow it behind the write that it reads, without a fence.
    pub(crate) is_acquire: bool,
    /// It releases what came before it without a fence.
    pub(crate) is_release: bool,
    pub(crate) scope: Scope,
    /// It reads through a cache that does not see what the kernel writes.
    pub(crate) is_noncoherent: bool,
    /// What it does to an `mbarrier`.
    pub(crate) object: ObjectUse,
}

/// What an access does to an `mbarrier`, an object in shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ObjectUse {
    /// It accesses bytes.
    #[default]
    None,
    Begin,
    End,
    Use,
}

impl Order {
    /// True for a strong access whose scope has other launches.
    pub(crate) fn is_for_launches(self) -> bool {
        self.is_strong && self.scope == Scope::Device
    }
}

/// The threads for which a fence or a strong access counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those of the block. A cluster is a block here.
    Block,
    #[default]
    Device,
}

/// A kind of memory, as an access names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Any of the others, by the address.
    Generic,
    Global,
    Shared,
    /// Of the thread.
    Local,
    /// Of the thread, from the beginning of the frame on.
    Frame,
    /// The kernel's parameters.
    Parameters,
}

#[derive(Debug)]
pub(crate) struct Assertion {
    pub(crate) text: Slot,
    pub(crate) file: Slot,
    pub(crate) line: Slot,
    pub(crate) function: Slot,
    pub(crate) site: u32,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) target: Callee,
    pub(crate) arguments: Box<[Passed]>,
    /// From the callee's frame to the caller's.
    pub(crate) results: Box<[Passed]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Callee {
    /// A routine by its number.
    Routine(u32),
    /// The value of a register: [`FUNCTIONS`] plus the number of a function of the module.
    Register(Slot),
}

/// A value that goes from one frame to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) from: Location,
    pub(crate) size_bytes: u32,
}

/// A value's place in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Location {
    Slot(Slot),
    /// In the local memory of the frame.
    Frame(u64),
}

/// A function of the program. The kernel itself is number 0.
#[derive(Debug)]
pub(crate) struct Routine {
    pub(crate) start: u32,
    pub(crate) registers: u32,
    /// The local memory of a frame. The frame of a callee begins behind it, at a multiple of [`FRAME_ALIGN`].
    pub(crate) frame_bytes: u64,
    /// The registers that are zero when a call begins, because they may be read before they are written.
    pub(crate) cleared: Box<[u32]>,
    pub(crate) parameters: Box<[Location]>,
    pub(crate) results: Box<[Location]>,
    /// The bytes of the parameters and of the results.
    pub(crate) sizes: [Box<[u64]>; 2],
    /// The places of the variables in the frame, in rising order.
    pub(crate) variables: Box<[Range<u64>]>,
}

#[derive(Debug)]
pub(crate) struct Barrier {
    pub(crate) number: Slot,
    /// The threads that the barrier waits for; all if `None`.
    pub(crate) count: Option<Slot>,
    pub(crate) kind: BarrierKind,
    /// All threads of a warp must arrive together.
    pub(crate) is_aligned: bool,
}

/// The barriers of a block.
pub(crate) const BARRIERS: u64 = 16;

#[derive(Clone, Copy, Debug)]
pub(crate) enum BarrierKind {
    Wait,
    /// Arrives, and goes on.
    Arrive,
    /// Waits, and combines a predicate of all threads.
    Combine {
        vote: Vote,
        to: u32,
        input: Slot,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    /// All equal.
    Uniform,
    /// The lanes of a warp for which it holds.
    Ballot,
    /// The number of threads.
    Count,
}

#[derive(Debug)]
pub(crate) struct Shuffle {
    pub(crate) kind: ShuffleKind,
    pub(crate) to: u32,
    /// Whether the source was in range.
    pub(crate) is_valid: Option<u32>,
    pub(crate) input: Slot,
    pub(crate) lane: Slot,
    pub(crate) limits: Slot,
    pub(crate) mask: Option<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleKind {
    Up,
    Down,
    Butterfly,
    Index,
}

/// An instruction of all lanes of a warp together, on matrices in their registers.
#[derive(Debug)]
pub(crate) enum Matrix {
    /// `ldmatrix`: a matrix of 8 rows for each target. The lanes have the addresses of the rows.
    LoadRows { to: Box<[u32]>, from: Access, is_transposed: bool },
    /// `stmatrix`, likewise.
    StoreRows { values: Box<[Slot]>, to: Access, is_transposed: bool },
    /// `movmatrix`
    Transpose { to: u32, input: Slot },
    /// `wmma.load`: the lines of the matrix are `stride` elements apart in memory.
    Load { to: Box<[u32]>, from: Access, fragment: Fragment, lines: Lines },
    /// `wmma.store`, likewise.
    Store { values: Box<[Slot]>, to: Access, fragment: Fragment, lines: Lines },
    /// `mma` and `wmma.mma`
    Multiply { product: Product, to: Box<[u32]>, a: Box<[Slot]>, b: Box<[Slot]>, c: Box<[Slot]> },
}

/// How a matrix is in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    /// Its columns are contiguous, not its rows.
    pub(crate) are_columns: bool,
    /// The elements from one line to the next.
    pub(crate) stride: Slot,
}

/// A value that is the same for all threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Bits(u64),
    /// The address of a variable of the module, by its number, plus a distance.
    Global(u32, i64),
    /// The beginning of the dynamic shared memory plus a distance.
    DynamicShared(i64),
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    /// Of the thread in its block, by the axis.
    Thread(u8),
    BlockSize(u8),
    Block(u8),
    GridSize(u8),
    Lane,
    Warp,
    WarpCount,
    Multiprocessor,
    MultiprocessorCount,
    Grid,
    LanesEqual,
    LanesLessEqual,
    LanesLess,
    LanesGreaterEqual,
    LanesGreater,
    DynamicSharedBytes,
    TotalSharedBytes,
    Zero,
    One,
}

const SPECIALS: [(&str, Special); 46] = [
    ("%tid.x", Special::Thread(0)),
    ("%tid.y", Special::Thread(1)),
    ("%tid.z", Special::Thread(2)),
    ("%ntid.x", Special::BlockSize(0)),
    ("%ntid.y", Special::BlockSize(1)),
    ("%ntid.z", Special::BlockSize(2)),
    ("%ctaid.x", Special::Block(0)),
    ("%ctaid.y", Special::Block(1)),
    ("%ctaid.z", Special::Block(2)),
    ("%nctaid.x", Special::GridSize(0)),
    ("%nctaid.y", Special::GridSize(1)),
    ("%nctaid.z", Special::GridSize(2)),
    // Each has a fourth element, which is zero.
    ("%tid.w", Special::Zero),
    ("%ntid.w", Special::Zero),
    ("%ctaid.w", Special::Zero),
    ("%nctaid.w", Special::Zero),
    ("%laneid", Special::Lane),
    ("%warpid", Special::Warp),
    ("%nwarpid", Special::WarpCount),
    ("%smid", Special::Multiprocessor),
    ("%nsmid", Special::MultiprocessorCount),
    ("%gridid", Special::Grid),
    ("%lanemask_eq", Special::LanesEqual),
    ("%lanemask_le", Special::LanesLessEqual),
    ("%lanemask_lt", Special::LanesLess),
    ("%lanemask_ge", Special::LanesGreaterEqual),
    ("%lanemask_gt", Special::LanesGreater),
    ("%dynamic_smem_size", Special::DynamicSharedBytes),
    ("%total_smem_size", Special::TotalSharedBytes),
    // A grid without clusters is one of clusters of one block.
    ("%cluster_ctarank", Special::Zero),
    ("%cluster_nctarank", Special::One),
    ("%cluster_ctaid.x", Special::Zero),
    ("%cluster_ctaid.y", Special::Zero),
    ("%cluster_ctaid.z", Special::Zero),
    ("%cluster_nctaid.x", Special::One),
    ("%cluster_nctaid.y", Special::One),
    ("%cluster_nctaid.z", Special::One),
    ("%clusterid.x", Special::Block(0)),
    ("%clusterid.y", Special::Block(1)),
    ("%clusterid.z", Special::Block(2)),
    ("%nclusterid.x", Special::GridSize(0)),
    ("%nclusterid.y", Special::GridSize(1)),
    ("%nclusterid.z", Special::GridSize(2)),
    ("%aggr_smem_size", Special::TotalSharedBytes),
    ("%current_graph_exec", Special::Zero),
    ("%is_explicit_cluster", Special::Zero),
];

impl Special {
    pub(crate) fn of(name: &str) -> Option<Self> {
        // Of performance, which nobody measures: `%pm0` to `%pm7`, `%pm0_64` to `%pm7_64`.
        let counter = name.strip_prefix("%pm").map(|number| number.strip_suffix("_64").unwrap_or(number));
        if matches!(counter.map(str::as_bytes), Some([b'0'..=b'7'])) {
            return Some(Self::Zero);
        }
        SPECIALS.iter().find(|(known, _)| *known == name).map(|(_, special)| *special)
    }
}

/// The part of a clock that a special register has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClockPart {
    Low,
    High,
    Whole,
}

impl ClockPart {
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "%clock" | "%globaltimer_lo" => Some(Self::Low),
            "%clock_hi" | "%globaltimer_hi" => Some(Self::High),
            "%clock64" | "%globaltimer" => Some(Self::Whole),
            _ => None,
        }
    }
}

/// A kernel that can run.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
    pub(crate) routines: Vec<Routine>,
    /// The routines that pointers may name, by the numbers of their functions in the module.
    pub(crate) pointed: HashMap<u64, u32>,
    pub(crate) constants: Vec<Constant>,
    pub(crate) specials: Vec<Special>,
    /// The shared memory of a block as the variables need it, without the dynamic one.
    pub(crate) shared_bytes: u64,
    /// The places of the variables in shared memory, in ascending order, with gaps between them.
    pub(crate) shared: Vec<Range<u64>>,
    /// The alignment of the dynamic shared memory.
    pub(crate) dynamic_align: u64,
    pub(crate) sites: u32,
    /// The module's variables in constant memory, by their numbers, and their bytes.
    pub(crate) read_only: Box<[(u32, u64)]>,
    /// The places in the sources, by the first step that each is for: the step, and the number of the place.
    pub(crate) source_lines: Vec<(u32, Option<u32>)>,
    /// The places, and the numbers of those of the calls that were inlined.
    pub(crate) source_places: Arc<Vec<(SourcePlace, Option<u32>)>>,
    /// The names of the files.
    pub(crate) files: HashMap<SourceFile, String>,
    /// No instruction is for other blocks, or shows when it runs.
    pub(crate) is_of_blocks_apart: bool,
    /// A launch could not run its blocks on several cores.
    pub(crate) is_on_one_core: AtomicBool,
}

impl Program {
    /// The steps that may come after one, and whether the kernel may end with it. Functions return.
    pub(crate) fn successors(&self, step: u32) -> (Vec<u32>, bool) {
        let Some(found) = self.steps.get(step as usize) else { return (Vec::new(), false) };
        let (mut nexts, may_end) = match &found.op {
            Op::Branch { target } => (vec![*target], false),
            Op::BranchTable { targets, .. } => (targets.to_vec(), false),
            Op::Exit | Op::Return => (Vec::new(), true),
            _ => (Vec::new(), false),
        };
        if found.op.is_followed() || found.guard.is_some() {
            nexts.push(step + 1);
        }
        (nexts, may_end)
    }

    /// Looks for instructions that are for other blocks, or show when they run.
    pub(crate) fn find_blocks_apart(&mut self) {
        let is_for_others = |access: &Access| {
            access.order.is_strong && matches!(access.space, Memory::Global | Memory::Generic)
        };
        let is_apart = |op: &Op| match op {
            Op::Atomic { at, .. } => at.space == Memory::Shared,
            Op::Load { from: access, .. } | Op::Store { to: access, .. } => !is_for_others(access),
            Op::Fence(order) => order.scope == Scope::Block,
            Op::Print { .. } | Op::Clock { .. } => false,
            _ => true,
        };
        self.is_of_blocks_apart = self.steps.iter().all(|step| is_apart(&step.op));
    }

    /// The line of the source that a step comes from, if the text says it.
    pub(crate) fn source_line(&self, step: u32) -> Option<SourceLine> {
        let behind = self.source_lines.partition_point(|(first, _)| *first <= step);
        let place = self.source_lines.get(behind.checked_sub(1)?)?.1?;
        self.source_line_at(place, INLINED_MAX)
    }

    fn source_line_at(&self, place: u32, calls_max: usize) -> Option<SourceLine> {
        let (place, call) = self.source_places.get(place as usize)?;
        let file = self.files.get(&place.file)?.clone();
        let inlined_at = call.and_then(|call| self.source_line_at(call, calls_max.checked_sub(1)?));
        Some(SourceLine { file, line: place.line, inlined_at: inlined_at.map(Box::new) })
    }
}

/// A line of the source of a kernel, from the compiler's `-lineinfo`. Displays as `scale.cu:3`, and in a function that was inlined as
/// `load.cuh:7, inlined at scale.cu:3`.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceLine {
    /// The file, as the compiler names it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The line of the call, if this one is in a function that was inlined.
    pub inlined_at: Option<Box<SourceLine>>,
}

impl SourceLine {
    /// The line, the one of the call that was inlined, and so on up to the line in the kernel itself.
    pub fn calls(&self) -> impl Iterator<Item = &Self> {
        core::iter::successors(Some(self), |line| line.inlined_at.as_deref())
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Self { file, line, .. }) in self.calls().enumerate() {
            let between = if number > 0 { ", inlined at " } else { "" };
            write!(f, "{between}{}:{line}", Shown::sentence(file))?;
        }
        Ok(())
    }
}

debug_is_display!(SourceLine);

/// The parameters of a kernel, packed in order at their alignments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The distance from the beginning of the parameters.
    pub offset_bytes: usize,
    /// The size.
    pub size_bytes: usize,
}

/// The generic address of the first byte of a block's shared memory. No host or device memory is there.
pub(crate) const SHARED_WINDOW: u64 = 0x4000_0000_0000_0000;
/// The generic address of the first byte of a thread's local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0x4010_0000_0000_0000;
/// The generic address of the first byte of the kernel's parameters.
pub(crate) const PARAMETER_WINDOW: u64 = 0x4020_0000_0000_0000;
/// The value of a pointer to the function 0 of the module.
pub(crate) const FUNCTIONS: u64 = 0x4030_0000_0000_0000;
/// The calls of functions that were inlined that a place has, at most.
const INLINED_MAX: usize = 30;
/// The alignment of a frame in local memory.
pub(crate) const FRAME_ALIGN: u64 = 16;
/// The unused bytes between two variables in shared memory, at least: an overrun by one is no access to a neighbour.
pub(crate) const SHARED_GAP_BYTES: u64 = 16;
/// The size of each window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;

/// The bits of a type's width.
pub(crate) fn low_bits(of: Type, bits: u64) -> u64 {
    match of.bytes() {
        1 => bits & 0xff,
        2 => bits & 0xffff,
        4 => bits & 0xffff_ffff,
        _ => bits,
    }
}

//! Why a kernel stopped.

use crate::program::{BARRIERS, Program, SourceLine};
use core::fmt;
use gpumem_sys::text::{Shown, debug_is_display};

/// A mistake of a kernel, and the place of it. Displays as `line 12 (scale.cu:3), block (0, 0, 0), thread (3, 0, 0): …`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {mistake}", self.place())]
pub struct KernelMistake {
    /// The line of the PTX, from 1.
    pub line: u32,
    /// The line of the source, if the text states it (`-lineinfo` of the compiler).
    pub source_line: Option<SourceLine>,
    /// The block in the grid.
    pub block: [u32; 3],
    /// The thread in the block.
    pub thread: [u32; 3],
    /// The mistake.
    pub mistake: Mistake,
}

impl fmt::Display for AccessPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, block, thread, .. } = self;
        write!(f, "{line}, block {}, thread {}", triple(block), triple(thread))
    }
}

impl KernelMistake {
    /// Where it happened: `line 12 (scale.cu:3), block (0, 0, 0), thread (3, 0, 0)`.
    #[must_use]
    pub fn place(&self) -> String {
        let Self { line, block, thread, .. } = self;
        format!(
            "line {line}{}, block {}, thread {}",
            source(&self.source_line),
            triple(block),
            triple(thread)
        )
    }
}

/// A line of a text. Displays as `line 12 (scale.cu:3)`.
#[derive(Clone, PartialEq, Eq)]
pub struct TextLine {
    /// The line of the PTX, from 1.
    pub line: u32,
    /// The line of the source, if the text states it.
    pub source_line: Option<SourceLine>,
}

/// An access of a thread to device memory. Displays as `line 12 (scale.cu:3), block (0, 0, 0), thread (3, 0, 0)`.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessPlace {
    /// The line.
    pub line: TextLine,
    /// The block in the grid.
    pub block: [u32; 3],
    /// The thread in the block.
    pub thread: [u32; 3],
    /// The first byte of the access.
    pub address: u64,
}

/// What is wrong with the number of threads that a barrier states.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BarrierCountFault {
    /// A barrier counts whole warps.
    #[error("which are no whole warps")]
    NoWholeWarps,
    /// More than the block has.
    #[error("and its block has {0}")]
    MoreThanBlock(u32),
    /// Others of the same phase have stated another number.
    #[error("where others wait for {0}")]
    Other(u32),
}

debug_is_display!(KernelMistake);
debug_is_display!(Mistake);
debug_is_display!(TextLine);
debug_is_display!(AccessPlace);
debug_is_display!(BarrierCountFault);

impl TextLine {
    /// The line of a step.
    pub(crate) fn of(program: &Program, step: u32) -> Self {
        let line = program.steps.get(step as usize).map_or(0, |step| step.line);
        Self { line, source_line: program.source_line(step) }
    }
}

impl fmt::Display for TextLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}{}", self.line, source(&self.source_line))
    }
}

fn triple([x, y, z]: &[u32; 3]) -> String {
    format!("({x}, {y}, {z})")
}

fn source(line: &Option<SourceLine>) -> String {
    line.as_ref().map_or_else(String::new, |line| format!(" ({line})"))
}

/// A kind of mistake.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// The memory refused the access.
    #[error("{} {size_bytes} bytes at {address:#x}", verb(*.is_write))]
    Refused {
        /// The first byte.
        address: u64,
        /// The number of bytes.
        size_bytes: u64,
        /// True for a write.
        is_write: bool,
    },
    /// The address of an access is no multiple of its size.
    #[error("{} {size_bytes} bytes at {} of {space} memory: the address is no multiple of {size_bytes}", verb(*.is_write), address_in(.space, *.address))]
    Misaligned {
        /// `"shared"`, `"local"`, `"parameter"` or `"global"`.
        space: &'static str,
        /// The address, or the distance from the beginning of the shared or local memory or the parameters.
        address: u64,
        /// The number of bytes.
        size_bytes: u64,
        /// True for a write.
        is_write: bool,
    },
    /// An access outside of the shared memory of its block, the local memory of its thread, or the kernel's parameters.
    #[error("{} {size_bytes} bytes at {} of {limit_bytes} bytes of {space} memory", verb(*.is_write), distance(*.offset_bytes))]
    OutOfBounds {
        /// `"shared"`, `"local"` or `"parameter"`.
        space: &'static str,
        /// The distance from the beginning. Of an address below it, the distance wraps around, at 32 or at 64 bits.
        offset_bytes: u64,
        /// The number of bytes.
        size_bytes: u64,
        /// The bytes that there are.
        limit_bytes: u64,
        /// True for a write.
        is_write: bool,
    },
    /// Threads of one warp do not arrive at a barrier together.
    #[error("waits at barrier {number}, which thread {} of its warp does not reach with it", triple(.missing))]
    Divergence {
        /// The barrier.
        number: u32,
        /// A thread that is elsewhere.
        missing: [u32; 3],
    },
    /// A barrier that a block does not have.
    #[error("names barrier {number}, and a block has barriers from 0 to {}", BARRIERS - 1)]
    WrongBarrier {
        /// The number.
        number: u64,
    },
    /// The threads that a barrier waits for are no number that it can wait for.
    #[error("states {count} threads for barrier {number}, {}", .why)]
    BarrierCount {
        /// The barrier.
        number: u32,
        /// The stated number of threads.
        count: u32,
        /// What is wrong with it.
        why: BarrierCountFault,
    },
    /// Lanes of one warp execute one aligned barrier with different operands.
    #[error("executes a barrier with other operands than thread {} of its warp", triple(.other))]
    BarrierOperands {
        /// A thread of the warp with other operands.
        other: [u32; 3],
    },
    /// `bar.red` at a barrier at which others wait with `bar.sync` or `bar.arrive`, or the other way round.
    #[error("arrives at barrier {number}, where others have arrived, some with a reduction and some without")]
    BarrierMixed {
        /// The barrier.
        number: u32,
    },
    /// No thread of the block can go on.
    #[error("waits for ever: {}", Shown::sentence(.why))]
    Deadlock {
        /// The reason.
        why: String,
    },
    /// Two threads access the same bytes, at least one of them to write, and nothing orders them. Reported only with
    /// [`Checks::races`](crate::Checks::races).
    #[error(
        "{} {size_bytes} bytes at {address:#x} of {space} memory; thread {} of block {} {} them at {other_line}, and nothing orders the two",
        verb(*.is_write), triple(.other_thread), triple(.other_block), past(*.is_other_write)
    )]
    Race {
        /// `"shared"` or `"global"`.
        space: &'static str,
        /// The address, or the distance from the beginning of the shared memory.
        address: u64,
        /// The number of bytes.
        size_bytes: u64,
        /// True for a write.
        is_write: bool,
        /// The line of the access of the other thread.
        other_line: TextLine,
        /// The block of the other thread.
        other_block: [u32; 3],
        /// The other thread.
        other_thread: [u32; 3],
        /// True if the other access is a write.
        is_other_write: bool,
    },
    /// An access to bytes that an asynchronous copy (`cp.async`) writes, before the copy's thread has waited for it. Reported only with
    /// [`Checks::races`](crate::Checks::races).
    #[error(
        "{} {size_bytes} bytes at {address:#x} of shared memory, the target of the asynchronous copy at {copy_line} by thread {}, which \
         has not waited for it",
        verb(*.is_write), triple(.copy_thread)
    )]
    PendingCopy {
        /// The distance from the beginning of the shared memory.
        address: u64,
        /// The number of bytes.
        size_bytes: u64,
        /// True for a write.
        is_write: bool,
        /// The line of the copy.
        copy_line: TextLine,
        /// The thread of the copy.
        copy_thread: [u32; 3],
    },
    /// A read of uninitialised bytes. Reported only with [`Checks::uninitialised`](crate::Checks::uninitialised).
    #[error("reads {size_bytes} bytes at {address:#x} of {space} memory, which were never written")]
    Uninitialised {
        /// `"shared"`, `"local"` or `"global"`.
        space: &'static str,
        /// The address, or the distance from the beginning of the shared or local memory.
        address: u64,
        /// The number of bytes.
        size_bytes: u64,
    },
    /// A shuffle takes a value of a lane that is not in its mask or does not execute it, or is executed by a lane that is not in its mask,
    /// and the value is used: for a branch, an address, or in memory. Reported only with
    /// [`Checks::uninitialised`](crate::Checks::uninitialised).
    #[error("takes a value of lane {lane}, which does not take part in the shuffle, and {use_line} uses it")]
    UndefinedLane {
        /// The lane.
        lane: u32,
        /// The line that uses the value.
        use_line: TextLine,
    },
    /// A barrier, vote, match or reduction of lanes is executed by a lane that is not in its own mask. Reported only with one of the
    /// [`Checks`](crate::Checks).
    #[error("is not in the mask of its own instruction, {mask:#x}")]
    NotInMask {
        /// The mask.
        mask: u32,
    },
    /// An `assert` of the kernel failed.
    #[error("{}:{line}: {}: assertion `{}` failed", Shown::name(.file), Shown::name(.function), Shown::sentence(.text))]
    Assert {
        /// The asserted expression.
        text: String,
        /// The file of the source.
        file: String,
        /// The line of the source.
        line: u32,
        /// The function.
        function: String,
    },
    /// A write of constant memory, which kernels only read.
    #[error("writes {size_bytes} bytes at {address:#x} of constant memory")]
    Constant {
        /// The first byte.
        address: u64,
        /// The number of bytes.
        size_bytes: u64,
    },
    /// An asynchronous copy (`cp.async`) of more bytes than its target has.
    #[error("copies {source_bytes} bytes to {size_bytes}")]
    CopySize {
        /// The bytes of the source.
        source_bytes: u64,
        /// The bytes of the target.
        size_bytes: u64,
    },
    /// A pointer to a function of other parameters or results than the call states.
    #[error("calls {0:#x}, a function of other parameters or results than the call states")]
    WrongPrototype(u64),
    /// A load of memory that the kernel has written, through a cache that does not see it (`ld.global.nc`). Reported only with
    /// [`Checks::races`](crate::Checks::races).
    #[error(
        "reads {size_bytes} bytes at {address:#x} by `ld.global.nc`, which the kernel wrote at line {other_line}"
    )]
    NonCoherent {
        /// The first byte.
        address: u64,
        /// The number of bytes.
        size_bytes: u64,
        /// The line of the write.
        other_line: u32,
    },
    /// An `mbarrier` is used before it is initialised or behind its end, or is initialised twice. Reported only with one of the
    /// [`Checks`](crate::Checks).
    #[error("{} the barrier at {address:#x} of shared memory, which is {}", if *.is_begin { "initialises" } else { "uses" }, if *.is_begin { "initialised" } else { "not initialised" })]
    BarrierObject {
        /// The distance from the beginning of the shared memory.
        address: u64,
        /// True for an initialisation.
        is_begin: bool,
    },
    /// The kernel executed `trap`.
    #[error("stopped itself (`trap`)")]
    Trap,
    /// A call through a pointer to no function.
    #[error("calls {0:#x}, which is no function of the kernel")]
    WrongTarget(u64),
    /// A branch by an index that its table does not have.
    #[error("branches by index {index} of a table of {len} labels")]
    WrongIndex {
        /// The index.
        index: u64,
        /// The labels of the table.
        len: usize,
    },
    /// Calls are nested too deeply.
    #[error("has no local memory left for another call")]
    StackOverflow,
    /// The kernel took as many steps as the launch allows.
    #[error("is still running after {0} steps of warps, the most that the launch allows")]
    TooLong(u64),
}

/// The coordinates of a number in a box of this shape.
pub(crate) fn place(number: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x.max(1)), u64::from(y.max(1)));
    [number % x, number / x % y, number / x / y].map(|part| part as u32)
}

/// A distance from the beginning of a memory: that of an address below it wraps around, at 32 or at 64 bits.
fn distance(offset_bytes: u64) -> i64 {
    match u32::try_from(offset_bytes) {
        Ok(low) => i64::from(low.cast_signed()),
        Err(_) => offset_bytes.cast_signed(),
    }
}

fn address_in(space: &str, address: u64) -> String {
    let distance = distance(address);
    match space {
        "global" => format!("{address:#x}"),
        _ if distance < 0 => format!("-{:#x}", distance.unsigned_abs()),
        _ => format!("{distance:#x}"),
    }
}

fn past(is_write: bool) -> &'static str {
    if is_write { "wrote" } else { "read" }
}

fn verb(is_write: bool) -> &'static str {
    if is_write { "writes" } else { "reads" }
}

//! Findings: the errors of a program that the simulator detected, for tests and for readers.

use crate::report::AllocationKind;
use crate::report::origins::CallStack;
use core::fmt;
use gpumem_ptx::SourceLine;
use gpumem_sys::text::{Shown, debug_is_display};
use gpumem_sys::types::CUresult;
use std::sync::Arc;

/// An error in the program under test.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// Two accesses to the same bytes that are not ordered, at least one of them a write. Both calls succeeded, as on a GPU.
    Race {
        /// The access that ran first under this schedule.
        first: Access,
        /// The access that ran second.
        second: Access,
        /// The address of the first such byte in the second access.
        address: u64,
        /// The number of bytes.
        size_bytes: u64,
        /// The allocation of the bytes.
        allocation: Option<Origin>,
    },
    /// Device memory was read that was never written. Reported with
    /// [`SimConfig::uninitialised`](crate::SimConfig::uninitialised).
    Uninitialised {
        /// The read.
        access: Access,
        /// The first unwritten byte.
        address: u64,
        /// The number of unwritten bytes.
        size_bytes: u64,
        /// The allocation of the bytes.
        allocation: Option<Origin>,
    },
    /// A kernel ran on, but its result is not certain.
    Hazard {
        /// The kind of hazard.
        kind: HazardKind,
        /// The place.
        place: KernelPlace,
        /// The place of the other access of a race, or of the copy.
        other: Option<KernelPlace>,
        /// The hazard and its place, in words.
        text: String,
        /// The allocation of the bytes, if they are in one.
        allocation: Option<Origin>,
    },
    /// Queued work failed, and its context is lost; later calls returned the error.
    Fault {
        /// The kind of fault.
        kind: FaultKind,
        /// The code that later calls return.
        code: CUresult,
        /// The fault and the allocation, in words.
        text: String,
        /// The allocation that is or was at the address.
        allocation: Option<Origin>,
        /// The place in the kernel, if one that runs from its text failed.
        place: Option<KernelPlace>,
    },
    /// A call was wrong by itself, and its return code reported it.
    Refused {
        /// The kind of misuse.
        misuse: Misuse,
        /// The function that was called.
        call: &'static str,
        /// The returned code.
        code: CUresult,
        /// The address passed; 0 if the misuse is not about an address.
        address: u64,
        /// The allocation that is or was at the address.
        allocation: Option<Origin>,
    },
    /// A module, a kernel of one or a launch cannot run here. The return code said so, and the program may have gone another way. With
    /// `CUDA_SUCCESS`, a module was loaded, and kernels of it cannot run.
    Module {
        /// The function that was called.
        call: &'static str,
        /// The returned code.
        code: CUresult,
        /// The reason, as in the error log of the call.
        text: String,
    },
    /// Memory that was allocated and not freed.
    Leak {
        /// The memory.
        allocation: Origin,
    },
}

/// A place in a kernel. Displays as ``kernel `scale`, line 26 (scale.cu:3), block (0, 0, 0), thread (3, 0, 0)``.
#[derive(Clone, PartialEq, Eq)]
pub struct KernelPlace {
    /// The kernel's name.
    pub kernel: Arc<str>,
    /// The line of its PTX, from 1.
    pub line: u32,
    /// The line of its source, if the PTX states it (`-lineinfo` of the compiler).
    pub source_line: Option<SourceLine>,
    /// The block in the grid.
    pub block: [u32; 3],
    /// The thread in the block.
    pub thread: [u32; 3],
    /// The first byte of the access, if it is one to device memory.
    pub address: Option<u64>,
}

/// What is wrong inside of a kernel that ran on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HazardKind {
    /// Two threads access the same bytes, and nothing orders them. Reported with
    /// [`SimConfig::kernel_races`](crate::SimConfig::kernel_races).
    Race,
    /// A thread accesses the target of an asynchronous copy that was not waited for. Reported with
    /// [`SimConfig::kernel_races`](crate::SimConfig::kernel_races).
    PendingCopy,
    /// A thread reads bytes that nobody has written. Reported with [`SimConfig::uninitialised`](crate::SimConfig::uninitialised).
    Uninitialised,
    /// A thread uses a value that a shuffle took from a lane that does not take part in it. Reported with
    /// [`SimConfig::uninitialised`](crate::SimConfig::uninitialised).
    UndefinedLane,
    /// A lane executes a barrier, vote, match or reduction of lanes whose mask leaves it out. Reported with
    /// [`SimConfig::kernel_races`](crate::SimConfig::kernel_races) or [`SimConfig::uninitialised`](crate::SimConfig::uninitialised).
    NotInMask,
    /// A thread reads what the kernel wrote by a load that may not see it. Reported with
    /// [`SimConfig::kernel_races`](crate::SimConfig::kernel_races).
    NonCoherent,
    /// An `mbarrier` is used before it is initialised or behind its end, or initialised twice. Reported with
    /// [`SimConfig::kernel_races`](crate::SimConfig::kernel_races) or [`SimConfig::uninitialised`](crate::SimConfig::uninitialised).
    BarrierObject,
}

/// The reason why queued work failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// The work used memory that was freed before.
    UseAfterFree,
    /// The work used an address that was unmapped before.
    UseAfterUnmap,
    /// The work used memory whose allocation, on another stream, had not run.
    UseBeforeAllocation,
    /// The work freed memory whose allocation, on another stream, had not run.
    FreeBeforeAllocation,
    /// The work accessed bytes past the end of an allocation.
    OutOfBounds,
    /// The work used an address that is in no allocation.
    NoAllocation,
    /// The work used another device's memory without access.
    WrongDevice,
    /// The work wrote host memory that was registered for reading only, or a kernel wrote constant memory.
    ReadOnly,
    /// A kernel accessed memory that its launch does not declare, or wrote memory that the launch declares as read only.
    Undeclared,
    /// A kernel stopped by itself, misread its parameters or panicked.
    Kernel,
    /// An injected fault lost the device.
    DeviceLost,
    /// The host has no memory or address space left to simulate the device.
    Host,
}

/// The way in which a call was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// The call freed memory that was freed before.
    DoubleFree,
    /// The call freed an address that the driver never returned, or one inside an allocation.
    ForeignFree,
    /// The call freed memory of a context that is lost.
    FreeOnLostDevice,
    /// The call used another device's memory without access.
    WrongDevice,
    /// The call is not allowed while a stream captures, or it broke the capture.
    InsideCapture,
    /// The call named a stream that was destroyed with its context, as by a reset of the device. On a GPU it ends the process.
    GoneStream,
}

/// One access to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// The kind of access.
    pub kind: AccessKind,
    /// The handle of the stream; `None` for the host.
    pub stream: Option<u64>,
    /// The stream's number in the order of first use, from 1; 0 for the host.
    pub stream_number: u32,
    /// The number of the operation on its stream, from 1.
    pub position: u64,
    /// The number of the call of the driver that queued it, from 1.
    pub call: u64,
    /// The address of the first such byte in this access.
    pub address: u64,
    /// The place in the kernel, if one made it that runs from its text and does the same when it runs again.
    pub place: Option<KernelPlace>,
}

/// The kind of an access.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessKind {
    /// A copy read.
    CopyRead,
    /// A copy wrote.
    CopyWrite,
    /// A memset wrote.
    Memset,
    /// A kernel of this name read.
    KernelRead(Arc<str>),
    /// A kernel of this name wrote.
    KernelWrite(Arc<str>),
    /// A kernel of this name read by a `volatile` or other strong load. Strong accesses do not race with each other.
    KernelStrongRead(Arc<str>),
    /// A kernel of this name wrote by an atomic, or by a `volatile` or other strong store.
    KernelStrongWrite(Arc<str>),
    /// Memory was allocated in stream order.
    Allocation,
    /// Memory was freed.
    Free,
    /// Registered host memory was unregistered.
    Unregister,
    /// A handle was mapped at an address.
    Map,
    /// A mapping was removed.
    Unmap,
    /// A stream wrote a value.
    ValueWrite,
    /// A stream waited for a value.
    ValueWait,
    /// The host read, declared by [`Sim::host_reads`](crate::Sim::host_reads).
    HostRead,
    /// The host wrote, declared by [`Sim::host_writes`](crate::Sim::host_writes).
    HostWrite,
}

/// An allocation, and the call that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The first address.
    pub address: u64,
    /// The requested size.
    pub size_bytes: u64,
    /// The device that it belongs to.
    pub device: u32,
    /// The kind of allocation.
    pub kind: AllocationKind,
    /// The number of the call of the driver that made it, from 1.
    pub call: u64,
    /// The name of the thread that made it.
    pub thread: String,
    /// The call stack, with [`SimConfig::backtraces`](crate::SimConfig::backtraces).
    pub stack: Option<CallStack>,
}

impl Finding {
    /// A name for the kind of finding, of two or three words.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Race { first, second, .. } => race_name(first, second),
            Self::Uninitialised { .. } => "read of unwritten memory",
            Self::Hazard { kind: HazardKind::Race, .. } => "race between threads",
            Self::Hazard { kind: HazardKind::PendingCopy, .. } => "use before a copy is complete",
            Self::Hazard { kind: HazardKind::Uninitialised, .. } => "read of unwritten memory",
            Self::Hazard { kind: HazardKind::UndefinedLane, .. } => "value of a lane that takes no part",
            Self::Hazard { kind: HazardKind::NotInMask, .. } => "lane outside of its own mask",
            Self::Hazard { kind: HazardKind::NonCoherent, .. } => "load that is not coherent",
            Self::Hazard { kind: HazardKind::BarrierObject, .. } => "barrier without a beginning",
            Self::Fault { kind, .. } => kind.name(),
            Self::Refused { misuse, .. } => misuse.name(),
            Self::Module { code: CUresult::CUDA_SUCCESS, .. } => "kernels that cannot run",
            Self::Module { .. } => "refused module",
            Self::Leak { .. } => "leak",
        }
    }

    /// The place in a kernel that it is about: of a race, the second one.
    #[must_use]
    pub fn place(&self) -> Option<&KernelPlace> {
        match self {
            Self::Race { first, second, .. } => second.place.as_ref().or(first.place.as_ref()),
            Self::Hazard { place, .. } => Some(place),
            Self::Fault { place, .. } => place.as_ref(),
            _ => None,
        }
    }

    /// The place in a kernel of the other access, if it is about two.
    #[must_use]
    pub fn other_place(&self) -> Option<&KernelPlace> {
        match self {
            Self::Race { first, second, .. } => first.place.as_ref().filter(|_| second.place.is_some()),
            Self::Hazard { other, .. } => other.as_ref(),
            _ => None,
        }
    }

    /// True if no return code reports it on a GPU. There such an error goes unnoticed or ends the process, so it should fail a
    /// test.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        match self {
            Self::Race { .. } | Self::Uninitialised { .. } | Self::Hazard { .. } | Self::Leak { .. } => true,
            Self::Refused { misuse, .. } => *misuse == Misuse::GoneStream,
            Self::Fault { .. } | Self::Module { .. } => false,
        }
    }
}

fn race_name(first: &Access, second: &Access) -> &'static str {
    let kinds = [&first.kind, &second.kind];
    if kinds.contains(&&AccessKind::Free) {
        "free not ordered after a use"
    } else if kinds.contains(&&AccessKind::Unregister) {
        "unregistering not ordered after a use"
    } else if kinds.contains(&&AccessKind::Unmap) {
        "unmapping not ordered after a use"
    } else if kinds.contains(&&AccessKind::Map) {
        "use not ordered after the mapping"
    } else if kinds.contains(&&AccessKind::Allocation) {
        "use not ordered after the allocation"
    } else if kinds.contains(&&AccessKind::HostRead) || kinds.contains(&&AccessKind::HostWrite) {
        "host access not ordered with the device's"
    } else if first.address != second.address {
        "unordered use through an alias"
    } else {
        "race between streams"
    }
}

impl AccessKind {
    /// True for accesses that do not race with each other.
    pub(crate) fn is_strong(&self) -> bool {
        matches!(self, Self::KernelStrongRead(_) | Self::KernelStrongWrite(_))
    }
}

impl FaultKind {
    fn name(self) -> &'static str {
        match self {
            Self::UseAfterFree => "use after free",
            Self::UseAfterUnmap => "use after unmap",
            Self::UseBeforeAllocation => "use before the allocation",
            Self::FreeBeforeAllocation => "free before the allocation",
            Self::OutOfBounds => "use out of bounds",
            Self::NoAllocation => "use of an unallocated address",
            Self::WrongDevice => "use of another device's memory",
            Self::ReadOnly => "write to read-only memory",
            Self::Undeclared => "access that the launch does not declare",
            Self::Kernel => "kernel failure",
            Self::DeviceLost => "lost device",
            Self::Host => "out of host memory",
        }
    }
}

impl Misuse {
    fn name(self) -> &'static str {
        match self {
            Self::DoubleFree => "double free",
            Self::ForeignFree => "free of an unknown address",
            Self::FreeOnLostDevice => "free on a lost device",
            Self::WrongDevice => "use of another device's memory",
            Self::InsideCapture => "use inside a capture",
            Self::GoneStream => "use of a stream whose context is gone",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self {
            Self::Race { first, second, address, size_bytes, allocation } => {
                write!(f, "{first} and {second}: nothing orders them; {size_bytes} bytes at {address:#x}")?;
                show_allocation(f, allocation)
            }
            Self::Uninitialised { access, address, size_bytes, allocation } => {
                write!(f, "{access}; {size_bytes} bytes at {address:#x}")?;
                show_allocation(f, allocation)
            }
            Self::Hazard { place, text, allocation, .. } => {
                write!(f, "kernel `{}` at {}", Shown::name(&place.kernel), Shown::sentence(text))?;
                show_allocation(f, allocation)
            }
            Self::Fault { code, text, allocation, .. } => {
                // Without its advice, which is for programs that do not know more.
                let name = code.name().unwrap_or("result code");
                write!(f, "{}; the context returns {name} ({})", Shown::sentence(text), code.0)?;
                show_allocation(f, allocation)
            }
            Self::Refused { call, code, address, allocation, .. } => {
                write!(f, "{call}({address:#x}) returned {code}")?;
                show_allocation(f, allocation)
            }
            Self::Module { call, code: CUresult::CUDA_SUCCESS, text } => {
                write!(f, "{call}: {}", Shown::sentence(text))
            }
            Self::Module { call, code, text } => {
                write!(f, "{call} returned {code}: {}", Shown::sentence(text.trim_end()))
            }
            Self::Leak { allocation } => write!(f, "{allocation}"),
        }
    }
}

impl fmt::Display for KernelPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`, ", Shown::name(&self.kernel))?;
        self.show_inside(f)
    }
}

impl KernelPlace {
    /// The place in its kernel.
    fn show_inside(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        self.source_line.as_ref().map_or(Ok(()), |line| write!(f, " ({line})"))?;
        let triple = |[x, y, z]: [u32; 3]| format!("({x}, {y}, {z})");
        write!(f, ", block {}, thread {}", triple(self.block), triple(self.thread))
    }
}

debug_is_display!(KernelPlace);

fn show_allocation(f: &mut fmt::Formatter<'_>, allocation: &Option<Origin>) -> fmt::Result {
    allocation.as_ref().map_or(Ok(()), |allocation| write!(f, ", in {allocation}"))
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, size_bytes, device, kind, call, thread, stack } = self;
        write!(f, "{size_bytes} bytes at {address:#x} ({kind:?}, device {device}), ")?;
        write!(f, "made by call {call} on thread {:?}", Shown::name(thread))?;
        stack.as_ref().map_or(Ok(()), |stack| write!(f, " in{stack}"))
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(place) = &self.place {
            f.write_str(" at ")?;
            place.show_inside(f)?;
        }
        if let Some(stream) = self.stream {
            write!(f, " (operation {} of stream {}, {stream:#x}", self.position, self.stream_number)?;
            return write!(f, ", queued by call {})", self.call);
        }
        write!(f, " (by the host, at call {})", self.call)
    }
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CopyRead => f.write_str("a copy's read"),
            Self::CopyWrite => f.write_str("a copy's write"),
            Self::Memset => f.write_str("a memset"),
            Self::KernelRead(name) => write!(f, "kernel `{}`'s read", Shown::name(name)),
            Self::KernelWrite(name) => write!(f, "kernel `{}`'s write", Shown::name(name)),
            Self::KernelStrongRead(name) => write!(f, "kernel `{}`'s volatile read", Shown::name(name)),
            Self::KernelStrongWrite(name) => {
                write!(f, "kernel `{}`'s atomic or volatile write", Shown::name(name))
            }
            Self::Allocation => f.write_str("the allocation"),
            Self::Free => f.write_str("the free"),
            Self::Unregister => f.write_str("the unregistering"),
            Self::Map => f.write_str("the mapping"),
            Self::Unmap => f.write_str("the unmapping"),
            Self::ValueWrite => f.write_str("the writing of a value"),
            Self::ValueWait => f.write_str("the wait for a value"),
            Self::HostRead => f.write_str("the host's read"),
            Self::HostWrite => f.write_str("the host's write"),
        }
    }
}

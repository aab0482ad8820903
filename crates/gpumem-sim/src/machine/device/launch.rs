//! Runs a kernel, with the memory of this machine behind its [`Launch`]: its text, or the Rust function that is registered for it.

use crate::backing::Bytes;
use crate::base::address::CHUNK_BYTES;
use crate::base::codes::ILLEGAL_ADDRESS;
use crate::base::handle::Handle;
use crate::base::thread::Inside;
use crate::config::KERNEL_STEPS_VARIABLE;
use crate::device::MULTIPROCESSORS;
use crate::device::launch::{
    Copies, Kernel, KernelFault, Launch, LaunchMemory, Launched, QueuedLaunch, TextMemory, Touch, panic_text,
};
use crate::machine::Machine;
use crate::machine::device::view::View;
use crate::machine::stream::execute::{Fault, HOST_IS_FULL, read_only};
use crate::report::finding::{Access, AccessKind, FaultKind, Finding, HazardKind, KernelPlace};
use core::hash::{Hash, Hasher};
use gpumem_ptx::{AccessPlace, KernelMistake, Mistake, Touched};
use gpumem_sys::types::CUresult;
use std::hash::DefaultHasher;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

impl Machine {
    pub(crate) fn execute_launch(
        &mut self,
        context: Handle,
        queued: &Arc<QueuedLaunch>,
    ) -> Result<u64, Fault> {
        let outcome = match &queued.body.kernel {
            Some(kernel) => self.execute_registered(context, queued, kernel),
            None => self.execute_text(context, queued),
        };
        outcome.map(|()| self.config.costs.launch_ns).map_err(|fault| {
            let text = format!("kernel `{}` {}", queued.body.name, fault.text);
            Fault {
                kind: fault.kind,
                code: fault.code,
                text,
                allocation: fault.allocation,
                place: fault.place,
            }
        })
    }

    /// Runs the Rust function that is registered for the kernel's name.
    fn execute_registered(
        &mut self,
        context: Handle,
        queued: &QueuedLaunch,
        kernel: &Kernel,
    ) -> Result<(), KernelFault> {
        let copies = Copies::default();
        let mut launch = Launch::new(self, context, queued, &copies);
        let _inside = Inside::enter();
        let view = View::open(self);
        // A panic must not unwind through the driver. Partial results are in device memory of a context that is lost.
        let outcome = catch_unwind(AssertUnwindSafe(|| (kernel.run)(&mut launch)));
        let touched = launch.into_touched();
        let outcome = match view.refused() {
            Some(call) => Ok(Err(KernelFault::refused(call))),
            None => outcome,
        };
        drop(view);
        self.note_touched(&queued.body.name, &touched);
        match outcome {
            Ok(outcome) => {
                outcome.map_err(|fault| KernelFault { text: format!("failed: {}", fault.text), ..fault })
            }
            Err(panic) => Err(KernelFault {
                kind: FaultKind::Kernel,
                code: CUresult::CUDA_ERROR_LAUNCH_FAILED,
                text: format!("panicked: {}", panic_text(panic)),
                allocation: None,
                place: None,
            }),
        }
    }

    /// Runs the kernel's text.
    fn execute_text(&mut self, context: Handle, queued: &Arc<QueuedLaunch>) -> Result<(), KernelFault> {
        let copies = Copies::default();
        let launch = Launch::new(self, context, queued, &copies);
        let memory = TextMemory::new(&launch);
        let seed = self.config.seed ^ self.call_count;
        let wish = gpumem_ptx::Launch {
            checks: gpumem_ptx::Checks {
                races: self.config.is_looking_inside_kernels,
                uninitialised: self.races.as_ref().is_some_and(|races| races.is_unwritten_wanted),
            },
            cores: cores(),
            ..launch_of(queued, seed, self.config.kernel_steps_max)
        };
        // A panic must not unwind through the driver, which would keep the operation for ever.
        let ran = catch_unwind(AssertUnwindSafe(|| queued.body.entry().run(wish, &memory)));
        let failed = |text| KernelFault {
            kind: FaultKind::Kernel,
            code: CUresult::CUDA_ERROR_NOT_SUPPORTED,
            text,
            allocation: None,
            place: None,
        };
        let outcome = ran
            .map_err(|panic| failed(format!("made the simulator panic: {}", panic_text(panic))))?
            .map_err(|unsupported| failed(format!("cannot run here: {unsupported}")))?;
        let refused = memory.into_refused();
        self.printed.push_str(&outcome.printed);
        self.note_hazards(&queued.body.name, outcome.hazards);
        self.note_launched(context, queued, seed, (outcome.steps, &outcome.touched));
        self.note_text(&queued.body.name, &outcome.touched);
        let Some(mistake) = outcome.mistake else { return Ok(()) };
        let (kind, code) = match mistake.mistake {
            Mistake::Misaligned { .. } => (FaultKind::Kernel, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS),
            Mistake::Refused { .. } | Mistake::OutOfBounds { .. } => {
                (FaultKind::OutOfBounds, ILLEGAL_ADDRESS)
            }
            Mistake::Constant { .. } => (FaultKind::ReadOnly, ILLEGAL_ADDRESS),
            Mistake::Assert { .. } => (FaultKind::Kernel, CUresult::CUDA_ERROR_ASSERT),
            Mistake::WrongTarget(_) => (FaultKind::Kernel, CUresult::CUDA_ERROR_INVALID_PC),
            Mistake::StackOverflow => (FaultKind::Kernel, ILLEGAL_ADDRESS),
            Mistake::TooLong(_) => (FaultKind::Kernel, CUresult::CUDA_ERROR_LAUNCH_TIMEOUT),
            _ => (FaultKind::Kernel, CUresult::CUDA_ERROR_LAUNCH_FAILED),
        };
        let place = place_of(&queued.body.name, &mistake);
        let allocation = place.address.and_then(|address| self.origin(address)).map(Box::new);
        let place = Some(Box::new(place));
        Err(match (refused, &mistake.mistake) {
            (Some(fault), Mistake::Refused { .. }) => {
                let allocation = fault.allocation.or(allocation);
                let text = format!("failed at {}: {}", mistake.place(), fault.text);
                KernelFault { text, allocation, place, ..fault }
            }
            (_, Mistake::TooLong(_)) => {
                let text = format!(
                    "failed at {mistake}: it waits there for what does not come, or it has more to do; then raise {KERNEL_STEPS_VARIABLE} \
                     (`SimConfig::kernel_steps`)"
                );
                KernelFault { kind, code, text, allocation, place }
            }
            _ => KernelFault { kind, code, text: format!("failed at {mistake}"), allocation, place },
        })
    }

    /// Keeps what it takes to run a launch again, for the places of accesses that race with later ones.
    fn note_launched(
        &mut self,
        context: Handle,
        queued: &Arc<QueuedLaunch>,
        seed: u64,
        (steps, touched): (u64, &Touched),
    ) {
        let (Some(running), true) = (self.running, self.races.is_some()) else { return };
        let (queued, touched) = (Arc::clone(queued), hash_of(touched));
        let launched = Launched { context, queued, call: running.call, seed, steps, touched };
        self.launched.add(running.stream, running.position, launched);
    }

    /// Finds the place of an access in its kernel: the kernel runs again on a copy of the memory. `None` if it does something else then, or
    /// if it takes too long.
    pub(crate) fn place_of_access(&mut self, access: &Access, size_bytes: u64) -> Option<KernelPlace> {
        let (is_write, is_strong, name) = match &access.kind {
            AccessKind::KernelRead(name) => (false, false, name),
            AccessKind::KernelWrite(name) => (true, false, name),
            AccessKind::KernelStrongRead(name) => (false, true, name),
            AccessKind::KernelStrongWrite(name) => (true, true, name),
            _ => return None,
        };
        let launched = self.launched.find(access.stream?, access.position)?;
        let Launched { context, seed, steps, touched, .. } = *launched;
        let queued = Arc::clone(&launched.queued);
        if launched.call != access.call || queued.body.name != *name {
            return None;
        }
        self.launched.steps = Some(self.launched.steps + steps).filter(|steps| *steps <= STEPS_AGAIN_MAX)?;
        let copies = Copies::default();
        let launch = Launch::new(self, context, &queued, &copies);
        let memory = TextMemory::new(&launch);
        let end = access.address.saturating_add(size_bytes);
        let sought = gpumem_ptx::Sought { bytes: access.address..end, is_write, is_strong };
        let wish = launch_of(&queued, seed, steps.saturating_add(1));
        let find = || queued.body.entry().find(wish, &memory, &sought);
        let (found, outcome) = catch_unwind(AssertUnwindSafe(find)).ok()?.ok()?;
        let AccessPlace { line, block, thread, address } =
            found.filter(|_| hash_of(&outcome.touched) == touched)?;
        Some(KernelPlace {
            kernel: Arc::clone(name),
            line: line.line,
            source_line: line.source_line,
            block,
            thread,
            address: Some(address),
        })
    }

    /// Reports what the checks inside of a kernel have found.
    fn note_hazards(&mut self, kernel: &Arc<str>, hazards: Vec<KernelMistake>) {
        for hazard in hazards {
            let kind = match hazard.mistake {
                Mistake::Race { .. } => HazardKind::Race,
                Mistake::PendingCopy { .. } => HazardKind::PendingCopy,
                Mistake::UndefinedLane { .. } => HazardKind::UndefinedLane,
                Mistake::NotInMask { .. } => HazardKind::NotInMask,
                Mistake::NonCoherent { .. } => HazardKind::NonCoherent,
                Mistake::BarrierObject { .. } => HazardKind::BarrierObject,
                _ => HazardKind::Uninitialised,
            };
            let place = place_of(kernel, &hazard);
            let allocation = place.address.and_then(|address| self.origin(address));
            let other = other_place_of(kernel, &hazard);
            self.findings.add(Finding::Hazard { kind, place, other, text: hazard.to_string(), allocation });
        }
    }

    /// Notes what a kernel's text accessed, the reads before the writes.
    fn note_text(&mut self, name: &Arc<str>, touched: &Touched) {
        let Some(races) = &mut self.races else { return };
        // These reads were compared with the writes while the kernel ran.
        let is_unwritten_wanted = core::mem::take(&mut races.is_unwritten_wanted);
        // Those that stand for more accesses come last.
        type KindOf = fn(Arc<str>) -> AccessKind;
        let all: [(bool, KindOf, _); 4] = [
            (false, AccessKind::KernelStrongRead, &touched.strong_reads),
            (false, AccessKind::KernelRead, &touched.reads),
            (true, AccessKind::KernelStrongWrite, &touched.strong_writes),
            (true, AccessKind::KernelWrite, &touched.writes),
        ];
        for (is_write, kind, ranges) in all {
            self.note_ranges(is_write, &kind(Arc::clone(name)), ranges);
        }
        if let Some(races) = &mut self.races {
            races.is_unwritten_wanted = is_unwritten_wanted;
        }
    }
}

impl Machine {
    /// Notes the reads before the writes: a kernel that reads and writes an address reads the earlier value.
    fn note_touched(&mut self, name: &Arc<str>, touched: &[Touch]) {
        if self.races.is_none() {
            return;
        }
        for is_write in [false, true] {
            for touch in touched.iter().filter(|touch| touch.is_write == is_write) {
                let kind = if is_write { AccessKind::KernelWrite } else { AccessKind::KernelRead };
                let Touch { address, size_bytes, bytes, .. } = *touch;
                self.note_access(is_write, kind(Arc::clone(name)), address, size_bytes, bytes);
            }
        }
    }
}

impl LaunchMemory for Machine {
    fn range(
        &self,
        context: Handle,
        is_write: bool,
        address: u64,
        size_bytes: u64,
        align_bytes: usize,
    ) -> Result<(Bytes, bool), KernelFault> {
        let what = if is_write { "writes" } else { "reads" };
        let refuse = |kind, code, why: String, allocation| {
            let text = format!("it {what} {size_bytes} bytes: {why}");
            Err(KernelFault { kind, code, text, allocation: self.boxed_origin(allocation), place: None })
        };
        let Some(allocation) = self.memory.live(address, size_bytes) else {
            let (kind, why, allocation) = self.memory.describe(address, size_bytes);
            return refuse(kind, ILLEGAL_ADDRESS, why, allocation);
        };
        if self.may_use(context, &allocation) != Some(true) {
            let why = format!("{address:#x} is memory of another device, without peer access");
            return refuse(FaultKind::WrongDevice, ILLEGAL_ADDRESS, why, Some(allocation));
        }
        if is_write && allocation.allocated_by.is_read_only() {
            return refuse(FaultKind::ReadOnly, ILLEGAL_ADDRESS, read_only(address), Some(allocation));
        }
        if allocation.allocated_by.is_managed() {
            self.managed_touch(context, address, size_bytes);
        }
        if let Err(code) = self.open_windows(&allocation, address, size_bytes) {
            return refuse(FaultKind::Host, code, HOST_IS_FULL.into(), None);
        }
        let bytes = allocation.bytes_at(address);
        if !bytes.0.addr().is_multiple_of(align_bytes) {
            let why = format!("{address:#x} is not aligned to {align_bytes} bytes");
            return refuse(FaultKind::Kernel, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, why, Some(allocation));
        }
        Ok((bytes, allocation.allocated_by.is_read_only()))
    }

    fn is_written(&self, address: u64, size_bytes: u64) -> bool {
        let Some(found) = self.memory.live(address, size_bytes) else { return true };
        let start = self.place_of(address, &found);
        let has_known_writes =
            found.allocated_by.has_known_writes() && crate::base::address::is_device_address(address);
        !has_known_writes
            || self
                .races
                .as_ref()
                .is_none_or(|races| races.shadow.unwritten(start..start + size_bytes).is_none())
    }

    fn around(&self, address: u64, size_bytes: u64) -> (u64, u64) {
        let Some(allocation) = self.memory.live(address, size_bytes) else { return (address, size_bytes) };
        if allocation.allocated_by.is_managed() || !crate::base::address::is_device_address(address) {
            // The program may have references to other parts of it.
            return (address, size_bytes);
        }
        let start = (address & !(CHUNK_BYTES - 1)).max(allocation.base);
        let end = (address + size_bytes).next_multiple_of(CHUNK_BYTES).min(allocation.end());
        (start, end - start)
    }
}

fn place_of(kernel: &Arc<str>, mistake: &KernelMistake) -> KernelPlace {
    let KernelMistake { line, block, thread, .. } = *mistake;
    let address = match mistake.mistake {
        Mistake::Refused { address, .. }
        | Mistake::Misaligned { space: "global", address, .. }
        | Mistake::Constant { address, .. }
        | Mistake::NonCoherent { address, .. } => Some(address),
        Mistake::Race { space: "global", address, .. } => Some(address),
        Mistake::Uninitialised { space: "global", address, .. } => Some(address),
        _ => None,
    };
    let source_line = mistake.source_line.clone();
    KernelPlace { kernel: Arc::clone(kernel), line, source_line, block, thread, address }
}

/// The place of the other access of a race, or of the copy whose target is accessed.
fn other_place_of(kernel: &Arc<str>, hazard: &KernelMistake) -> Option<KernelPlace> {
    let (line, block, thread) = match &hazard.mistake {
        Mistake::Race { other_line, other_block, other_thread, .. } => {
            (other_line, *other_block, *other_thread)
        }
        Mistake::PendingCopy { copy_line, copy_thread, .. } => (copy_line, hazard.block, *copy_thread),
        _ => return None,
    };
    let address = place_of(kernel, hazard).address;
    let (line, source_line) = (line.line, line.source_line.clone());
    Some(KernelPlace { kernel: Arc::clone(kernel), line, source_line, block, thread, address })
}

/// A launch for the interpreter, without checks, on one core.
fn launch_of(queued: &QueuedLaunch, seed: u64, steps_max: u64) -> gpumem_ptx::Launch<'_> {
    gpumem_ptx::Launch {
        grid: queued.shape.grid,
        block: queued.shape.block,
        shared_bytes: queued.shape.shared_bytes,
        parameters: &queued.parameters,
        variables: &queued.body.variables,
        seed,
        steps_max,
        multiprocessors: MULTIPROCESSORS as u32,
        checks: gpumem_ptx::Checks::default(),
        cores: 1,
    }
}

fn hash_of(touched: &Touched) -> u64 {
    let mut hasher = DefaultHasher::new();
    touched.hash(&mut hasher);
    hasher.finish()
}

/// The cores of this machine that the process may use.
fn cores() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    *CORES
}

/// The steps for which launches run again, in all: some seconds.
const STEPS_AGAIN_MAX: u64 = 1 << 26;

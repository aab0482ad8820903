//! Runs a kernel, with the memory of this machine behind its [`Launch`].

use crate::backing::Bytes;
use crate::base::codes::ILLEGAL_ADDRESS;
use crate::base::handle::Handle;
use crate::base::thread::Inside;
use crate::device::launch::{Copies, KernelFault, Launch, LaunchMemory, QueuedLaunch, Touch, panic_text};
use crate::machine::Machine;
use crate::machine::device::view::View;
use crate::machine::stream::execute::{Fault, HOST_IS_FULL, read_only};
use crate::report::finding::{AccessKind, FaultKind};
use core::ops::Range;
use gpumem_sys::types::CUresult;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Machine {
    pub(crate) fn execute_launch(&mut self, context: Handle, queued: &QueuedLaunch) -> Result<u64, Fault> {
        let copies = Copies::default();
        let mut launch = Launch::new(self, context, queued, &copies);
        let name = queued.kernel.name;
        let _inside = Inside::enter();
        let view = View::open(self);
        // A panic must not unwind through the driver. Partial results are in device memory of a context that is lost.
        let outcome = catch_unwind(AssertUnwindSafe(|| (queued.kernel.run)(&mut launch)));
        let touched = launch.into_touched();
        let outcome = match view.refused() {
            Some(call) => Ok(Err(KernelFault::refused(call))),
            None => outcome,
        };
        drop(view);
        self.note_touched(name, &touched);
        match outcome {
            Ok(Ok(())) => Ok(self.config.costs.launch_ns),
            Ok(Err(fault)) => {
                let text = format!("kernel `{name}` failed: {}", fault.text);
                Err(Fault { kind: fault.kind, code: fault.code, text, allocation: fault.allocation })
            }
            Err(panic) => Err(Fault {
                kind: FaultKind::Kernel,
                code: CUresult::CUDA_ERROR_LAUNCH_FAILED,
                text: format!("kernel `{name}` panicked: {}", panic_text(panic)),
                allocation: None,
            }),
        }
    }
}

impl Machine {
    /// Notes the reads before the writes: a kernel that reads and writes an address reads the earlier value.
    fn note_touched(&mut self, name: &'static str, touched: &[Touch]) {
        if self.races.is_none() {
            return;
        }
        for is_write in [false, true] {
            for touch in touched.iter().filter(|touch| touch.is_write == is_write) {
                for Range { start, end } in touch.runs() {
                    let run = (touch.address + start, end - start, touch.bytes.at(start));
                    let kind = if is_write { AccessKind::KernelWrite } else { AccessKind::KernelRead };
                    self.note_access(is_write, kind(name), run, touch.elements());
                }
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
            Err(KernelFault { kind, code, text, allocation: self.boxed_origin(allocation) })
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
}

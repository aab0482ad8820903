//! Runs one operation.
//!
//! Addresses are resolved here, in the device's view of memory. An invalid access ends its context: the fault is kept for the
//! report, every later call on the context returns the error, and operations that are still queued there only update the
//! records (events, allocations, frees).

use crate::backing::Bytes;
use crate::base::address::is_device_address;
use crate::base::codes::ILLEGAL_ADDRESS;
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::order::Point;
use crate::report::finding::{AccessKind, FaultKind, KernelPlace, Origin};
use crate::stream::Queued;
use crate::stream::operation::{CopyRows, Fill, Operation, Route};
use gpumem_sys::types::CUresult;

/// The fault of failed work, and the code that its context returns from then on.
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) code: CUresult,
    pub(crate) text: String,
    /// The allocation that is or was at the address.
    pub(crate) allocation: Option<Box<Origin>>,
    pub(crate) place: Option<Box<KernelPlace>>,
}

impl Machine {
    /// Runs one operation of a stream and advances the stream's clock.
    pub(crate) fn execute(&mut self, handle: Handle, queued: Queued) {
        self.close_windows_if_many();
        let Some(stream) = self.streams.get(handle) else { return };
        let context = stream.context;
        let at = Point { stream: handle, position: stream.done_count + 1 };
        let start_ns = stream.time_ns.max(queued.from_ns);
        let is_lost = self.contexts.get(context).is_none_or(|context| context.error.is_some());
        let end_ns = match queued.operation {
            Operation::Record { event } => {
                self.event_mark(event, at, start_ns);
                start_ns + self.config.costs.mark_ns
            }
            Operation::Wait { point, event } => start_ns.max(self.time_of(point, event)),
            Operation::Alloc(allocation) => {
                if self.memory.born(allocation, at) {
                    let Allocation { base, size_bytes, bytes, .. } = allocation;
                    self.note_write(AccessKind::Allocation, base, size_bytes, bytes);
                }
                start_ns + self.config.costs.mark_ns
            }
            Operation::Free(allocation) => {
                if self.unborn(&allocation).is_some() && !is_lost {
                    self.fail(context, freed_early(self.origin_of(&allocation)));
                }
                self.release(&allocation, Some(at));
                start_ns + self.config.costs.mark_ns
            }
            _ if is_lost => start_ns,
            work => {
                let work_ns =
                    self.execute_work(context, work).unwrap_or_else(|fault| self.fail(context, fault));
                let end_ns = start_ns + work_ns + self.managed.take_fault_ns();
                self.work_ns = self.work_ns.max(end_ns);
                end_ns
            }
        };
        if let Some(stream) = self.streams.get_mut(handle) {
            stream.time_ns = end_ns;
        }
    }

    /// The time at which a point was reached: the event's own time if it still refers to that point, else its stream's clock.
    fn time_of(&self, point: Point, event: Option<Handle>) -> u64 {
        let event = event.and_then(|event| self.events.get(event)).filter(|event| event.point == Some(point));
        let stream_ns = || self.streams.get(point.stream).map_or(0, |stream| stream.time_ns);
        event.and_then(|event| event.time_ns).unwrap_or_else(stream_ns)
    }

    /// Runs the work of an operation. Returns its duration.
    fn execute_work(&mut self, context: Handle, operation: Operation) -> Result<u64, Fault> {
        match operation {
            Operation::Copy { target, source, size_bytes, route } => {
                self.execute_copy(context, target, source, size_bytes, route)?;
                Ok(self.config.costs.of_copy(route, size_bytes))
            }
            Operation::Staged { target, bytes } => {
                let size_bytes = bytes.len() as u64;
                let reached = self.reach(context, AccessKind::CopyWrite, target, size_bytes, Route::Up)?;
                if !self.skips(target) {
                    copy_bytes(Bytes(bytes.as_ptr().cast_mut()), reached, size_bytes);
                }
                Ok(self.config.costs.of_staged(size_bytes))
            }
            Operation::CopyRows(copy) => self.execute_copy_rows(context, &copy),
            Operation::Fill(fill) => self.execute_fill(context, &fill),
            Operation::Prefetch { address, size_bytes, to } => {
                Ok(self.execute_prefetch(address, size_bytes, to))
            }
            Operation::WaitValue(wish, _) => self.execute_value(&wish, false),
            Operation::WriteValue(wish) => self.execute_value(&wish, true),
            Operation::Launch(_) if self.config.is_work_skipped => Ok(self.config.costs.launch_ns),
            Operation::Launch(launch) => self.execute_launch(context, &launch),
            // Host functions have run outside; the remaining operations were handled before.
            _ => Ok(0),
        }
    }

    fn execute_copy_rows(&mut self, context: Handle, copy: &CopyRows) -> Result<u64, Fault> {
        for (slice, row) in (0..copy.depth).flat_map(|slice| (0..copy.height).map(move |row| (slice, row))) {
            let source = copy.source + slice * copy.source_slice_bytes + row * copy.source_pitch;
            let target = copy.target + slice * copy.target_slice_bytes + row * copy.target_pitch;
            self.execute_copy(context, target, source, copy.width_bytes, copy.route)?;
        }
        Ok(self.config.costs.of_copy(copy.route, copy.width_bytes * copy.height * copy.depth))
    }

    fn execute_copy(
        &mut self,
        context: Handle,
        target: u64,
        source: u64,
        size_bytes: u64,
        route: Route,
    ) -> Result<(), Fault> {
        let from = self.reach(context, AccessKind::CopyRead, source, size_bytes, route)?;
        let to = self.reach(context, AccessKind::CopyWrite, target, size_bytes, route)?;
        if !self.config.is_work_skipped || !is_device_address(source) && !is_device_address(target) {
            copy_bytes(from, to, size_bytes);
        } else if !self.skips(target) {
            zero_bytes(to, size_bytes);
        }
        Ok(())
    }

    /// True if work is skipped that writes to an address. Memory of the program gets contents, because nothing else may have initialised it.
    fn skips(&self, target: u64) -> bool {
        let is_own = || {
            let found = self.memory.live(target, 1);
            found.is_some_and(|found| matches!(found.allocated_by, AllocatedBy::Host { .. }))
        };
        self.config.is_work_skipped && (is_device_address(target) || is_own())
    }

    fn execute_fill(&mut self, context: Handle, fill: &Fill) -> Result<u64, Fault> {
        for row in 0..fill.height {
            let size_bytes = fill.width * fill.pattern_bytes;
            let target = fill.target + row * fill.pitch;
            let reached = self.reach(context, AccessKind::Memset, target, size_bytes, Route::Within)?;
            if !self.skips(target) {
                fill_bytes(reached, fill);
            }
        }
        Ok(self.config.costs.of_fill(fill))
    }

    /// The bytes at an address: in the device's current allocations, or in host memory.
    fn reach(
        &mut self,
        context: Handle,
        access: AccessKind,
        address: u64,
        size_bytes: u64,
        route: Route,
    ) -> Result<Bytes, Fault> {
        if !is_device_address(address) {
            self.managed_touch(context, address, size_bytes);
        }
        let (kind, why, allocation) = match self.memory.live(address, size_bytes) {
            // Any device may copy other memory, staged through the host if necessary.
            Some(found) if found.is_mapped() && !self.may_copy(context, &found, route) => {
                let why = format!("{address:#x} is mapped, but this device has no access to all of it");
                (FaultKind::WrongDevice, why, Some(found))
            }
            Some(found) if found.allocated_by.is_read_only() && !matches!(access, AccessKind::CopyRead) => {
                (FaultKind::ReadOnly, read_only(address), Some(found))
            }
            Some(found) => {
                let bytes = found.bytes_at(address);
                match access {
                    AccessKind::CopyRead => self.note_read(access, address, size_bytes, bytes),
                    _ => self.note_write(access, address, size_bytes, bytes),
                }
                self.open_windows(&found, address, size_bytes).map_err(Fault::of_host)?;
                return Ok(bytes);
            }
            None if !is_device_address(address) && !self.is_in_pool(address) => {
                return Ok(Bytes(core::ptr::with_exposed_provenance_mut(address as usize)));
            }
            None => self.memory.describe(address, size_bytes),
        };
        let what = match access {
            AccessKind::CopyRead => "copy reads",
            AccessKind::CopyWrite => "copy writes",
            _ => "memset writes",
        };
        let allocation = self.boxed_origin(allocation);
        let text = format!("{what} {size_bytes} bytes: {why}");
        Err(Fault { kind, code: ILLEGAL_ADDRESS, text, allocation, place: None })
    }

    /// True if a copy may use mapped memory. The memory's own device copies it from or to the host.
    fn may_copy(&self, context: Handle, found: &Allocation, route: Route) -> bool {
        match route {
            Route::Across { direct: false } => found.allocated_by.is_open_to(found.device),
            _ => self.may_use(context, found) == Some(true),
        }
    }

    /// Marks the context as lost. Failed work takes no time.
    fn fail(&mut self, context: Handle, fault: Fault) -> u64 {
        if let Some(context) = self.contexts.get_mut(context) {
            context.error = Some(fault.code);
        }
        self.faults.push(fault.text.clone());
        self.note_fault(fault);
        0
    }
}

impl Fault {
    /// The host is out of memory.
    pub(crate) fn of_host(code: CUresult) -> Self {
        Self { kind: FaultKind::Host, code, text: HOST_IS_FULL.into(), allocation: None, place: None }
    }
}

/// The text of a fault that the program did not cause.
pub(crate) const HOST_IS_FULL: &str =
    "the host is out of memory or address space for the memory that the work uses";

/// The text of a fault: a write to memory that is registered read-only.
pub(crate) fn read_only(address: u64) -> String {
    format!("{address:#x} is host memory that is registered read-only")
}

fn freed_early(allocation: Origin) -> Fault {
    let Origin { address: base, size_bytes, .. } = allocation;
    let text = format!(
        "free of {base:#x}, of {size_bytes} bytes: nothing orders its allocation on its stream before this free"
    );
    let (kind, allocation) = (FaultKind::FreeBeforeAllocation, Some(Box::new(allocation)));
    Fault { kind, code: ILLEGAL_ADDRESS, text, allocation, place: None }
}

pub(crate) fn copy_bytes(source: Bytes, target: Bytes, size_bytes: u64) {
    // SAFETY: device ranges lie in a live mapping of this instance. The program guaranteed to the driver that host ranges stay
    // valid until the copy is complete. The ranges may overlap, which `copy` allows.
    unsafe { core::ptr::copy(source.0, target.0, size_bytes as usize) };
}

fn zero_bytes(target: Bytes, size_bytes: u64) {
    // SAFETY: the program guaranteed to the driver that the host range stays valid for writes until the copy is complete.
    unsafe { target.0.write_bytes(0, size_bytes as usize) };
}

fn fill_bytes(target: Bytes, fill: &Fill) {
    let len = fill.width as usize;
    // SAFETY: the row lies in a live mapping of this instance, or in host memory that the program pinned and keeps. The call
    // checked that the address is a multiple of the pattern's size, and mappings begin at pages.
    unsafe {
        match fill.pattern_bytes {
            1 => target.0.write_bytes(fill.pattern as u8, len),
            2 => core::slice::from_raw_parts_mut(target.0.cast::<u16>(), len).fill(fill.pattern as u16),
            _ => core::slice::from_raw_parts_mut(target.0.cast::<u32>(), len).fill(fill.pattern),
        }
    }
}

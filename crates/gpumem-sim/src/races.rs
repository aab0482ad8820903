//! Race detection: every access of queued work is held against what touched the same bytes before.
//!
//! Two accesses to the same bytes, at least one of them a write, must be ordered by something that holds under every
//! schedule: one stream's own order, an event that was recorded and waited for, a synchronisation or a successful
//! query by the host between the two calls, the legacy stream's rules. If nothing does, it is a race, whatever order
//! the seed chose this time. The call that asked for the work succeeds and the work is done, as on a GPU; what is
//! found is kept for [`Sim::report`](super::Sim::report).
//!
//! Allocating in stream order and freeing count as writes of the whole block, so a use that nothing orders after the
//! allocation, or before the free, is found even if it ran at a good moment. With the free the history of its bytes
//! ends: that the pool hands them out again only when the free is behind the new owner's first use is the driver's
//! affair, and orders nothing else.
//!
//! The parts: `clock` knows what is ordered, `shadow` who touched what, `usage` through which mapping, `finding` what is said about it.

use super::backing::Bytes;
use super::clock::{Clocks, Epoch, HOST};
use super::codes::{Answer, INVALID_VALUE};
use super::execute::Fault;
use super::finding::{Access, Deed, Finding, Misuse};
use super::handle::Handle;
use super::machine::Machine;
use super::memory::Allocation;
use super::owner::Owner;
use super::shadow::{Conflict, Shadow, Trace};
use super::usage::Usage;
use core::ops::{Range, RangeInclusive};
use gpumem_sys::types::CUresult;

/// What the detector of one instance knows.
#[derive(Default)]
pub(super) struct Races {
    pub(super) clocks: Clocks,
    pub(super) shadow: Shadow,
    pub(super) usage: Usage,
    is_unwritten_wanted: bool,
}

/// What has been found, up to a number that a person may read.
#[derive(Default)]
pub(super) struct Findings {
    list: Vec<Finding>,
    pub(super) more_count: usize,
}

impl Findings {
    pub(super) fn list(&self) -> &[Finding] {
        &self.list
    }

    pub(super) fn take(&mut self) -> Vec<Finding> {
        self.more_count = 0;
        core::mem::take(&mut self.list)
    }

    fn add(&mut self, finding: Finding) {
        let is_known = self.list.iter().any(|known| is_same_pair(known, &finding));
        if is_known || self.list.len() == FINDINGS_MAX {
            self.more_count += 1;
        } else {
            self.list.push(finding);
        }
    }
}

/// Whether two races are between the same operations: a row by row copy is one access to a reader.
fn is_same_pair(known: &Finding, finding: &Finding) -> bool {
    match (known, finding) {
        (
            Finding::Race { first, second, .. },
            Finding::Race { first: other_first, second: other_second, .. },
        ) => {
            let key = |access: &Access| (access.deed, access.stream, access.position, access.call);
            key(first) == key(other_first) && key(second) == key(other_second)
        }
        _ => false,
    }
}

/// The operation that runs now.
#[derive(Clone, Copy)]
pub(super) struct Running {
    pub(super) stream: Handle,
    pub(super) position: u64,
    pub(super) call: u64,
}

impl Races {
    pub(super) fn new(is_unwritten_wanted: bool) -> Self {
        Self { is_unwritten_wanted, ..Self::default() }
    }
}

impl Machine {
    /// The operation that runs now reads device or pinned memory.
    pub(super) fn note_read(&mut self, deed: Deed, address: u64, size_bytes: u64, bytes: Bytes) {
        self.each_piece(deed, address, size_bytes, bytes, |machine, address, range| {
            machine.note_read_of(deed, address, range);
        });
    }

    fn note_read_of(&mut self, deed: Deed, address: u64, range: Range<u64>) {
        let Some(trace) = self.trace(deed, address, &range) else { return };
        let is_host = !super::memory::is_device_address(address);
        let (Some(races), Some(stream)) = (&mut self.races, trace.stream.and_then(|s| self.streams.get(s)))
        else {
            return;
        };
        let mut conflicts = Vec::new();
        let unwritten = match races.is_unwritten_wanted && !is_host {
            true => races.shadow.unwritten(range.clone()),
            false => None,
        };
        races.shadow.read(range, trace, |epoch| stream.clock.covers(epoch), &mut conflicts);
        self.report_races(trace, &conflicts);
        if let Some(unwritten) = unwritten {
            let address = unwritten.start.wrapping_add(trace.shift);
            let size_bytes = unwritten.end - unwritten.start;
            let (access, allocation) = (trace.access(unwritten.start), self.origin(address));
            self.findings.add(Finding::Uninitialised { access, address, size_bytes, allocation });
        }
    }

    /// The operation that runs now writes device or pinned memory.
    pub(super) fn note_write(&mut self, deed: Deed, address: u64, size_bytes: u64, bytes: Bytes) {
        self.each_piece(deed, address, size_bytes, bytes, |machine, address, range| {
            machine.note_write_of(deed, address, range);
        });
    }

    fn note_write_of(&mut self, deed: Deed, address: u64, range: Range<u64>) {
        let Some(trace) = self.trace(deed, address, &range) else { return };
        let (Some(races), Some(stream)) = (&mut self.races, trace.stream.and_then(|s| self.streams.get(s)))
        else {
            return;
        };
        let mut conflicts = Vec::new();
        races.shadow.write(range, trace, |epoch| stream.clock.covers(epoch), &mut conflicts);
        self.report_races(trace, &conflicts);
    }

    /// The host reads or writes memory that devices reach, or frees or unregisters memory at a call.
    pub(super) fn note_host(&mut self, deed: Deed, address: u64, size_bytes: u64, bytes: Bytes) {
        let call = self.call_count;
        let Some(races) = &mut self.races else { return };
        let range = range_of(bytes, size_bytes);
        if range.is_empty() {
            return;
        }
        let shift = address.wrapping_sub(range.start);
        let epoch = Epoch { slot: HOST, time: call };
        let trace = Trace { epoch, deed, stream: None, stream_number: 0, position: 0, call, shift };
        let Races { clocks, shadow, .. } = races;
        let is_ordered = |epoch: Epoch| epoch.slot == HOST || clocks.host.covers(epoch);
        let mut conflicts = Vec::new();
        match deed {
            Deed::HostRead => shadow.read(range, trace, is_ordered, &mut conflicts),
            Deed::Free | Deed::Unregister => shadow.check_and_clear(range, is_ordered, &mut conflicts),
            _ => shadow.write(range, trace, is_ordered, &mut conflicts),
        }
        self.report_races(trace, &conflicts);
    }

    /// Memory of this allocation is gone for the device: by an operation of a stream, or by a call.
    pub(super) fn note_free(&mut self, allocation: &Allocation) {
        if self.races.is_none() {
            return;
        }
        let Allocation { base, size_bytes, bytes, .. } = *allocation;
        let range = range_of(bytes, size_bytes);
        match self.trace(Deed::Free, base, &range) {
            _ if self.is_alias(base) => self.note_import_gone(allocation),
            None => self.note_host(Deed::Free, base, size_bytes, bytes),
            Some(trace) => {
                let stream = trace.stream.and_then(|stream| self.streams.get(stream));
                let (Some(races), Some(stream)) = (&mut self.races, stream) else { return };
                let mut conflicts = Vec::new();
                let is_ordered = |epoch| stream.clock.covers(epoch);
                races.shadow.check_and_clear(range, is_ordered, &mut conflicts);
                self.report_races(trace, &conflicts);
            }
        }
    }

    /// Pinned memory is about to go at a call, freed or unregistered.
    pub(super) fn note_host_free(&mut self, base: u64, deed: Deed) {
        if let Some(Allocation { size_bytes, bytes, .. }) = self.memory.at_call.get(&base).copied() {
            self.note_host(deed, base, size_bytes, bytes);
        }
    }

    /// The program says that it touches memory itself. What no device can reach is nobody's business.
    pub(super) fn host_touches(&mut self, deed: Deed, address: usize, size_bytes: usize) {
        let (address, size_bytes) = (address as u64, size_bytes as u64);
        self.call_count += 1;
        if let Some(bytes) = self.memory.live(address, size_bytes).map(|found| found.bytes_at(address)) {
            self.note_host(deed, address, size_bytes, bytes);
        }
    }

    /// A fault of queued work.
    pub(super) fn note_fault(&mut self, fault: Fault) {
        let Fault { kind, code, text, allocation } = fault;
        self.findings.add(Finding::Fault { kind, code, text, allocation: allocation.map(|origin| *origin) });
    }

    /// Says what was wrong with a call that frees, if it was refused for that.
    pub(super) fn note_if_refused<T>(&mut self, address: u64, answer: Answer<T>) -> Answer<T> {
        let code = match &answer {
            Err(code) if address != 0 => *code,
            _ => return answer,
        };
        let was_there = self.memory.retired.contains(&address);
        if self.contexts.iter().any(|(_, context)| context.error == Some(code)) {
            self.note_refused(Misuse::FreeOnLostDevice, code, address);
        } else if code == INVALID_VALUE && !self.memory.at_call.contains_key(&address) {
            let misuse = if was_there { Misuse::DoubleFree } else { Misuse::ForeignFree };
            self.note_refused(misuse, code, address);
        }
        answer
    }

    /// Says that a call names another device's memory without access, if it was refused for that.
    pub(super) fn note_if_foreign<T>(&mut self, address: u64, answer: Answer<T>) -> Answer<T> {
        if answer.as_ref().is_err_and(|&code| code == INVALID_VALUE) {
            self.note_refused(Misuse::WrongDevice, INVALID_VALUE, address);
        }
        answer
    }

    /// Says that a call is not allowed during a capture, if it was refused for that.
    pub(super) fn note_if_capture_forbids(&mut self, code: CUresult) {
        if CAPTURE_CODES.contains(&code.0) {
            self.note_refused(Misuse::InsideCapture, code, 0);
        }
    }

    /// A call that was refused because it is wrong in itself.
    fn note_refused(&mut self, misuse: Misuse, code: CUresult, address: u64) {
        let allocation = self.origin(address);
        let call = self.call_name;
        self.findings.add(Finding::Refused { misuse, call, code, address, allocation });
    }

    pub(super) fn trace(&self, deed: Deed, address: u64, range: &Range<u64>) -> Option<Trace> {
        let running = self.running?;
        self.races.as_ref().filter(|_| !range.is_empty())?;
        let clock = &self.streams.get(running.stream)?.clock;
        Some(Trace {
            epoch: clock.epoch(running.position)?,
            deed,
            stream: Some(running.stream),
            stream_number: clock.number,
            position: running.position,
            call: running.call,
            shift: address.wrapping_sub(range.start),
        })
    }

    /// Where the bytes behind an address are remembered. For all but mapped handles that is where they lie in this
    /// process; what is mapped is remembered by its place in the file of handles, a piece for each handle.
    fn each_piece(
        &mut self,
        deed: Deed,
        address: u64,
        size_bytes: u64,
        bytes: Bytes,
        mut note: impl FnMut(&mut Self, u64, Range<u64>),
    ) {
        if self.races.is_none() {
            return;
        }
        let found = self.memory.live(address, 1);
        if !found.is_some_and(|found| found.is_mapped()) {
            let range = range_of(bytes, size_bytes);
            if let Some(Allocation { owner: Owner::Imported(_), base, .. }) = found {
                self.note_use(deed, address, base, &range);
            }
            return note(self, address, range);
        }
        let mut at = address;
        while at < address + size_bytes
            && let Some(piece) = self.memory.live(at, 1)
            && let Some(start) = self.virtual_memory.file_offset_of(&piece)
        {
            let end = piece.end().min(address + size_bytes);
            let start = FILE_SPACE + start;
            let range = start + (at - piece.base)..start + (end - piece.base);
            self.note_use(deed, at, piece.base, &range);
            note(self, at, range);
            at = end;
        }
    }

    /// Where the byte at an address is remembered.
    pub(super) fn place_of(&self, address: u64, found: &Allocation) -> u64 {
        match self.virtual_memory.file_offset_of(found) {
            Some(start) => FILE_SPACE + start + (address - found.base),
            None => found.bytes_at(address).0.addr() as u64,
        }
    }

    /// A handle's memory is the device's again.
    pub(super) fn note_physical_gone(&mut self, file_offset_bytes: u64, size_bytes: u64) {
        if let Some(races) = &mut self.races {
            let start = FILE_SPACE + file_offset_bytes;
            races.shadow.check_and_clear(start..start + size_bytes, |_| true, &mut Vec::new());
        }
    }

    pub(super) fn report_races(&mut self, second: Trace, conflicts: &[Conflict]) {
        for (range, first) in conflicts {
            let address = range.start.wrapping_add(second.shift);
            self.findings.add(Finding::Race {
                first: first.access(range.start),
                second: second.access(range.start),
                address,
                size_bytes: range.end - range.start,
                allocation: self.origin(address),
            });
        }
    }
}

impl Trace {
    fn access(&self, byte: u64) -> Access {
        Access {
            deed: self.deed,
            stream: self.stream.map(Handle::to_bits),
            stream_number: self.stream_number,
            position: self.position,
            call: self.call,
            address: byte.wrapping_add(self.shift),
        }
    }
}

fn range_of(bytes: Bytes, size_bytes: u64) -> Range<u64> {
    let start = bytes.0.addr() as u64;
    start..start + size_bytes
}

/// Where the file of mapped handles begins among the places that bytes are remembered by: behind all that a process
/// can hold.
const FILE_SPACE: u64 = 1 << 62;

/// What calls answer that a capture forbids or that break one.
const CAPTURE_CODES: RangeInclusive<u32> =
    CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0;

/// As many findings as are kept; the rest is counted.
const FINDINGS_MAX: usize = 64;

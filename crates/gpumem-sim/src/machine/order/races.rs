//! Race detection: each access of an operation or of the host is compared with the earlier ones to the same bytes.

use crate::backing::Bytes;
use crate::base::codes::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::machine::stream::execute::Fault;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::order::clock::{Epoch, HOST};
use crate::order::races::Races;
use crate::order::shadow::{Conflict, Trace};
use crate::report::finding::{AccessKind, Finding, Misuse};
use core::ops::{Range, RangeInclusive};
use gpumem_sys::types::CUresult;

impl Machine {
    /// Notes that the running operation reads device or pinned memory.
    pub(crate) fn note_read(&mut self, kind: AccessKind, address: u64, size_bytes: u64, bytes: Bytes) {
        self.note_access(false, kind, address, size_bytes, bytes);
    }

    /// Notes that the running operation writes device or pinned memory.
    pub(crate) fn note_write(&mut self, kind: AccessKind, address: u64, size_bytes: u64, bytes: Bytes) {
        self.note_access(true, kind, address, size_bytes, bytes);
    }

    /// Notes that the running operation accesses device or pinned memory.
    pub(crate) fn note_access(
        &mut self,
        is_write: bool,
        kind: AccessKind,
        address: u64,
        size_bytes: u64,
        bytes: Bytes,
    ) {
        self.each_piece(&kind, address, size_bytes, bytes, |machine, address, range| {
            machine.note_places(is_write, &kind, address, &[range]);
        });
    }

    /// Notes that the running operation accesses these addresses, which are in order, in one access.
    pub(crate) fn note_ranges(&mut self, is_write: bool, kind: &AccessKind, ranges: &[Range<u64>]) {
        if self.races.is_none() {
            return;
        }
        let mut ranges = ranges.iter().cloned();
        let mut next = ranges.next();
        while let Some(first) = next.clone() {
            let Some(found) = self.memory.live(first.start, 1) else {
                next = ranges.next();
                continue;
            };
            let place = self.place_of(found.base, &found);
            let place_of = |address: u64| place + (address - found.base);
            let mut places = Vec::new();
            // Ranges of allocations that lie side by side are one.
            while let Some(range) = next.take_if(|range| range.start < found.end()) {
                let end = range.end.min(found.end());
                places.push(place_of(range.start)..place_of(end));
                next = if end < range.end { Some(end..range.end) } else { ranges.next() };
            }
            if found.is_mapped() || matches!(found.allocated_by, AllocatedBy::Imported(_)) {
                self.note_use(kind.clone(), first.start, found.base, &places[0]);
            }
            self.note_places(is_write, kind, first.start, &places);
        }
    }

    /// Notes an access to places of one allocation, of which the first is at an address.
    fn note_places(&mut self, is_write: bool, kind: &AccessKind, address: u64, places: &[Range<u64>]) {
        let Some(trace) = places.first().and_then(|first| self.trace(kind.clone(), address, first)) else {
            return;
        };
        let is_host = !crate::base::address::is_device_address(address);
        let (Some(races), Some(stream)) = (&mut self.races, trace.stream.and_then(|s| self.streams.get(s)))
        else {
            return;
        };
        let is_ordered = |epoch| stream.clock.covers(epoch);
        let mut conflicts = Vec::new();
        let mut unwritten = None;
        if is_write && kind.is_strong() {
            races.shadow.strong_write(places, &trace, is_ordered, &mut conflicts);
        } else if is_write {
            races.shadow.write(places, &trace, is_ordered, &mut conflicts);
        } else {
            let has_known_writes = || {
                let found = self.memory.live(address, 1);
                found.is_none_or(|found| found.allocated_by.has_known_writes())
            };
            if races.is_unwritten_wanted && !is_host && has_known_writes() {
                unwritten = places.iter().find_map(|place| races.shadow.unwritten(place.clone()));
            }
            races.shadow.read(places, &trace, is_ordered, &mut conflicts);
        }
        self.report_races(&trace, &conflicts);
        if let Some(unwritten) = unwritten {
            let address = unwritten.start.wrapping_add(trace.shift);
            let size_bytes = unwritten.end - unwritten.start;
            let (access, allocation) = (trace.access(unwritten.start), self.origin(address));
            self.findings.add(Finding::Uninitialised { access, address, size_bytes, allocation });
        }
    }

    /// Notes that the host reads or writes device-accessible memory, or frees or unregisters memory in a call.
    pub(crate) fn note_host(&mut self, kind: AccessKind, address: u64, size_bytes: u64, bytes: Bytes) {
        let call = self.call_count;
        let Some(races) = &mut self.races else { return };
        let range = range_of(bytes, size_bytes);
        if range.is_empty() {
            return;
        }
        let shift = address.wrapping_sub(range.start);
        let epoch = Epoch { stream_index: HOST, time: call };
        let trace = Trace { epoch, kind, stream: None, stream_number: 0, position: 0, call, shift };
        let Races { clocks, shadow, .. } = races;
        let is_ordered = |epoch: Epoch| epoch.stream_index == HOST || clocks.host.covers(epoch);
        let mut conflicts = Vec::new();
        match trace.kind {
            AccessKind::HostRead => shadow.read(&[range], &trace, is_ordered, &mut conflicts),
            AccessKind::Free | AccessKind::Unregister => {
                shadow.check_and_clear(range, is_ordered, &mut conflicts)
            }
            _ => shadow.write(&[range], &trace, is_ordered, &mut conflicts),
        }
        self.report_races(&trace, &conflicts);
    }

    /// Notes that the memory of an allocation is freed on the device: by an operation of a stream, or by a call.
    pub(crate) fn note_free(&mut self, allocation: &Allocation) {
        if self.races.is_none() {
            return;
        }
        let Allocation { base, size_bytes, bytes, .. } = *allocation;
        let range = range_of(bytes, size_bytes);
        match self.trace(AccessKind::Free, base, &range) {
            _ if self.is_alias(base) => self.note_import_gone(allocation),
            None => self.note_host(AccessKind::Free, base, size_bytes, bytes),
            Some(trace) => {
                let stream = trace.stream.and_then(|stream| self.streams.get(stream));
                let (Some(races), Some(stream)) = (&mut self.races, stream) else { return };
                let mut conflicts = Vec::new();
                let is_ordered = |epoch| stream.clock.covers(epoch);
                races.shadow.check_and_clear(range, is_ordered, &mut conflicts);
                self.report_races(&trace, &conflicts);
            }
        }
    }

    /// Notes that pinned memory is about to be freed or unregistered by a call.
    pub(crate) fn note_host_free(&mut self, base: u64, kind: AccessKind) {
        if let Some(Allocation { size_bytes, bytes, .. }) = self.memory.at_call.get(&base).copied() {
            self.note_host(kind, base, size_bytes, bytes);
        }
    }

    /// Notes a declared access of the host. Memory that no device can access is ignored.
    pub(crate) fn host_touches(&mut self, kind: AccessKind, address: usize, size_bytes: usize) {
        let (address, size_bytes) = (address as u64, size_bytes as u64);
        self.call_count += 1;
        if let Some(bytes) = self.memory.live(address, size_bytes).map(|found| found.bytes_at(address)) {
            self.note_host(kind, address, size_bytes, bytes);
        }
    }

    /// Reports a fault of queued work.
    pub(crate) fn note_fault(&mut self, fault: Fault) {
        let Fault { kind, code, text, allocation, place } = fault;
        let allocation = allocation.map(|origin| *origin);
        let place = place.map(|place| *place);
        self.findings.add(Finding::Fault { kind, code, text, allocation, place });
    }

    /// Reports a refused free as misuse.
    pub(crate) fn note_if_refused<T>(&mut self, address: u64, answer: Answer<T>) -> Answer<T> {
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

    /// Reports a call that was refused because it names memory of another device without access.
    pub(crate) fn note_if_foreign<T>(&mut self, address: u64, answer: Answer<T>) -> Answer<T> {
        if answer.as_ref().is_err_and(|&code| code == INVALID_VALUE) {
            self.note_refused(Misuse::WrongDevice, INVALID_VALUE, address);
        }
        answer
    }

    /// Reports a call that was refused because a capture forbids it.
    pub(crate) fn note_if_capture_forbids(&mut self, code: CUresult) {
        if CAPTURE_CODES.contains(&code.0) {
            self.note_refused(Misuse::InsideCapture, code, 0);
        }
    }

    /// Reports a stream that was destroyed with its context.
    pub(crate) fn note_if_gone(&mut self, stream: Handle) {
        if self.gone_streams.contains(&stream) {
            self.note_refused(Misuse::GoneStream, INVALID_HANDLE, 0);
        }
    }

    /// Reports a refused call as misuse.
    fn note_refused(&mut self, misuse: Misuse, code: CUresult, address: u64) {
        let allocation = self.origin(address);
        let call = self.call_name;
        self.findings.add(Finding::Refused { misuse, call, code, address, allocation });
    }

    pub(crate) fn trace(&self, kind: AccessKind, address: u64, range: &Range<u64>) -> Option<Trace> {
        let running = self.running?;
        self.races.as_ref().filter(|_| !range.is_empty())?;
        let clock = &self.streams.get(running.stream)?.clock;
        Some(Trace {
            epoch: clock.epoch(running.position)?,
            kind,
            stream: Some(running.stream),
            stream_number: clock.number,
            position: running.position,
            call: running.call,
            shift: address.wrapping_sub(range.start),
        })
    }

    /// The places of an address range in the access history: the addresses in this process; for mapped handles, the offsets
    /// in the file of handles, one piece for each handle.
    fn each_piece(
        &mut self,
        kind: &AccessKind,
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
            if let Some(Allocation { allocated_by: AllocatedBy::Imported(_), base, .. }) = found {
                self.note_use(kind.clone(), address, base, &range);
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
            self.note_use(kind.clone(), at, piece.base, &range);
            note(self, at, range);
            at = end;
        }
    }

    /// The place of an address in the access history.
    pub(crate) fn place_of(&self, address: u64, found: &Allocation) -> u64 {
        match self.virtual_memory.file_offset_of(found) {
            Some(start) => FILE_SPACE + start + (address - found.base),
            None => found.bytes_at(address).0.addr() as u64,
        }
    }

    /// Notes that the memory of a handle is released to the device.
    pub(crate) fn note_physical_gone(&mut self, file_offset_bytes: u64, size_bytes: u64) {
        if let Some(races) = &mut self.races {
            let start = FILE_SPACE + file_offset_bytes;
            races.shadow.check_and_clear(start..start + size_bytes, |_| true, &mut Vec::new());
        }
    }

    pub(crate) fn report_races(&mut self, second: &Trace, conflicts: &[Conflict]) {
        for (range, first) in conflicts {
            let address = range.start.wrapping_add(second.shift);
            let mut finding = Finding::Race {
                first: first.access(range.start),
                second: second.access(range.start),
                address,
                size_bytes: range.end - range.start,
                allocation: self.origin(address),
            };
            if self.findings.is_kept(&finding)
                && let Finding::Race { first, second, size_bytes, .. } = &mut finding
            {
                first.place = self.place_of_access(first, *size_bytes);
                second.place = self.place_of_access(second, *size_bytes);
            }
            self.findings.add(finding);
        }
    }
}

fn range_of(bytes: Bytes, size_bytes: u64) -> Range<u64> {
    let start = bytes.0.addr() as u64;
    start..start + size_bytes
}

/// The first place of the file of handles in the access history: above all addresses of a process.
const FILE_SPACE: u64 = 1 << 62;

/// The codes of calls that a capture forbids or that invalidate one.
const CAPTURE_CODES: RangeInclusive<u32> =
    CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0;

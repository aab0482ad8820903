//! Uses of mappings: recorded when an operation accesses an address, checked when the mapping ends.

use crate::machine::Machine;
use crate::memory::Allocation;
use crate::order::clock::{Epoch, HOST};
use crate::order::shadow::Trace;
use crate::order::usage::MappingUse;
use crate::report::finding::AccessKind;
use core::ops::Range;

impl Machine {
    /// Notes that a handle was mapped.
    pub(crate) fn note_mapped(&mut self, base: u64) {
        let made_by = self.host_trace(AccessKind::Map, base);
        if let Some(races) = &mut self.races {
            races.usage.0.insert(base, MappingUse { made_by, uses: Vec::new() });
        }
    }

    /// Notes that the running operation accesses these bytes through a mapping.
    pub(crate) fn note_use(&mut self, kind: AccessKind, address: u64, base: u64, bytes: &Range<u64>) {
        let Some(trace) = self.trace(kind, address, bytes) else { return };
        let stream = trace.stream.and_then(|stream| self.streams.get(stream));
        let (Some(races), Some(stream)) = (&mut self.races, stream) else { return };
        let Some(found) = races.usage.0.get_mut(&base) else { return };
        found.uses.retain(|known| !stream.clock.covers(known.epoch));
        found.uses.push(trace.clone());
        if !stream.clock.covers(found.made_by.epoch) {
            let first = Trace { shift: trace.shift, ..found.made_by.clone() };
            self.report_races(&trace, &[(bytes.clone(), first)]);
        }
    }

    /// Notes that the running operation writes a value or has waited for one, which can conflict with the end of a mapping only.
    pub(crate) fn note_value(&mut self, kind: AccessKind, address: u64, found: &Allocation) {
        if found.is_mapped() {
            self.note_use(kind, address, found.base, &(0..1));
        }
    }

    /// Notes that a call removes a mapping without waiting: all accesses through it must be complete by the host's clock.
    /// Accesses through other mappings of the memory have no effect, and the access history is kept.
    pub(crate) fn note_unmapped(&mut self, mapping: &Allocation) {
        let trace = self.host_trace(AccessKind::Unmap, mapping.base);
        let Some(races) = &mut self.races else { return };
        let Some(found) = races.usage.0.remove(&mapping.base) else { return };
        let host = &races.clocks.host;
        let open = found.uses.into_iter().filter(|known| !host.covers(known.epoch));
        let range = 0..mapping.size_bytes;
        let conflicts: Vec<_> =
            open.map(|known| (range.clone(), Trace { shift: mapping.base, ..known })).collect();
        self.report_races(&trace, &conflicts);
    }

    /// Notes that an import is about to be freed, by a call or in stream order: its own uses must be complete, as for an
    /// unmapping.
    pub(crate) fn note_import_gone(&mut self, import: &Allocation) {
        let of_stream = self.trace(AccessKind::Free, import.base, &(0..1));
        let trace = of_stream.unwrap_or_else(|| self.host_trace(AccessKind::Free, import.base));
        let stream = trace.stream.and_then(|stream| self.streams.get(stream));
        let Some(races) = &mut self.races else { return };
        let Some(found) = races.usage.0.remove(&import.base) else { return };
        let is_over = |epoch| match stream {
            Some(stream) => stream.clock.covers(epoch),
            None => races.clocks.host.covers(epoch),
        };
        let open = found.uses.into_iter().filter(|known| !is_over(known.epoch));
        let range = 0..import.size_bytes;
        let conflicts: Vec<_> =
            open.map(|known| (range.clone(), Trace { shift: import.base, ..known })).collect();
        self.report_races(&trace, &conflicts);
    }

    /// An access of the host at this call; the address stands for the byte 0.
    fn host_trace(&self, kind: AccessKind, address: u64) -> Trace {
        let call = self.call_count;
        let epoch = Epoch { stream_index: HOST, time: call };
        Trace { epoch, kind, stream: None, stream_number: 0, position: 0, call, shift: address }
    }
}

//! Plain memory and events through handles that other processes open.
//!
//! A handle of memory names the file of an allocation's chunk. A process that opens the handle gets the file from the process that
//! wrote it. As in the driver, that process itself cannot open it. Another instance counts as another process, in this process too.
//!
//! **The recording of an interprocess event returns once the event is complete**: the call runs the work before it. So the
//! processes share no state for events, and no process waits for another one that makes no driver calls. A program that waits for
//! the event has the same guarantees as on a device. A missing wait may go unnoticed, and race reports have no accesses of other
//! processes.

use crate::backing::pages::PageFile;
use crate::backing::ticket::{TICKET_BYTES, Ticket, TicketKind};
use crate::base::codes::{Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, MAP_FAILED};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::import::Source;
use crate::order::Point;
use crate::stream::event::{DISABLE_TIMING, INTERPROCESS};

impl Machine {
    /// The ticket of plain memory, for other processes.
    pub(crate) fn ipc_export(&mut self, address: u64) -> Answer<Ticket> {
        let found = self.memory.known(address, 1).ok_or(INVALID_VALUE)?;
        if found.allocated_by == AllocatedBy::Plain { self.plain_export(&found) } else { Err(INVALID_VALUE) }
    }

    /// The address of memory of another process in a context; the existing address if the context has opened the memory before.
    pub(crate) fn ipc_open(&mut self, context: Handle, bytes: &[u8; TICKET_BYTES]) -> Answer<u64> {
        let ticket = Ticket::decode_as(TicketKind::Plain, bytes).map_err(|_| INVALID_HANDLE)?;
        if ticket.is_of(self.instance) {
            return Err(INVALID_CONTEXT);
        }
        let device = self.device_index(ticket.device as i32)?;
        self.check_reach(self.context_device(context)?, device)?;
        if let Some(base) = self.ipc_opened(context, &ticket) {
            return Ok(base);
        }
        let (file, label) =
            PageFile::open_of_process(&ticket, TicketKind::Chunk).map_err(|_| INVALID_HANDLE)?;
        if !label.has_part(&ticket) {
            return Err(INVALID_HANDLE);
        }
        let backing = file.backing(ticket.offset_bytes, ticket.size_bytes).map_err(|_| MAP_FAILED)?;
        let memory = (device, ticket.size_bytes);
        self.import_insert(Handle::NONE, Source::Foreign(backing), memory, context, Some(ticket))
    }

    /// Counts a further opening in a context.
    fn ipc_opened(&mut self, context: Handle, ticket: &Ticket) -> Option<u64> {
        let memory = &self.memory;
        let is_of = |base: &u64| memory.at_call.get(base).is_some_and(|found| found.context == context);
        self.imports.iter_mut().find_map(|(base, import)| {
            let (opened, count) = import.opened.as_mut()?;
            (opened == ticket && is_of(base)).then(|| {
                *count += 1;
                *base
            })
        })
    }

    /// Counts one opening less. After the last one, returns the device to wait for before the address is removed.
    pub(crate) fn ipc_unopen(&mut self, base: u64) -> Answer<Option<usize>> {
        let device = self.memory.at_call.get(&base).ok_or(INVALID_VALUE)?.device;
        let import = self.imports.get_mut(&base).and_then(|import| import.opened.as_mut());
        let (_, count) = import.ok_or(INVALID_VALUE)?;
        *count -= 1;
        Ok((*count == 0).then_some(device))
    }

    /// The ticket of an event, for other processes.
    pub(crate) fn ipc_export_event(&mut self, event: Handle) -> Answer<Ticket> {
        let instance = self.instance;
        let found = self.events.get_mut(event).ok_or(INVALID_HANDLE)?;
        if found.flags & INTERPROCESS == 0 {
            return Err(INVALID_VALUE);
        }
        found.is_shared = true;
        let context = found.context;
        let device = self.context_device(context)?;
        Ok(Ticket::new(TicketKind::Event, instance, device, 0))
    }

    /// Opens an event of another process in a context.
    pub(crate) fn ipc_open_event(&mut self, context: Handle, bytes: &[u8; TICKET_BYTES]) -> Answer<Handle> {
        let ticket = Ticket::decode_as(TicketKind::Event, bytes).map_err(|_| INVALID_HANDLE)?;
        if ticket.is_of(self.instance) {
            return Err(INVALID_CONTEXT);
        }
        let device = self.device_index(ticket.device as i32)?;
        self.check_reach(self.context_device(context)?, device)?;
        let event = self.event_create(context, INTERPROCESS | DISABLE_TIMING)?;
        self.events.get_mut(event).ok_or(INVALID_HANDLE)?.is_shared = true;
        Ok(event)
    }

    /// The work that must run before a call returns: the work before a recording of an interprocess event.
    pub(crate) fn ipc_event_due(&self, event: Handle) -> Option<Point> {
        let event = self.events.get(event).filter(|event| event.is_shared)?;
        event.point.filter(|&point| !self.is_done(point))
    }
}

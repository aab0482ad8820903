//! [`Builder`]: makes a [`Trace`] of allocations and frees, and assigns the slots.

use super::Trace;
use super::event::{Event, Peaks};
use super::header::Header;
use super::origin::{Origin, Origins};
use super::real::RealRun;
use super::stacks::Stacks;

/// Builds a trace event by event. Blocks are named by the number that [`Builder::alloc`] returned.
#[derive(Default)]
pub(crate) struct Builder {
    blocks: Vec<BlockOfTrace>,
    events: Vec<EventOfTrace>,
    stream_count: u16,
    now_ns: Option<u64>,
    reserved: Vec<(usize, u64)>,
}

#[derive(Clone, Copy)]
struct EventOfTrace {
    what: What,
    block: u32,
    time_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Alloc,
    Free,
    Complete,
    Refused,
}

#[derive(Clone, Copy)]
struct BlockOfTrace {
    size_bytes: u64,
    stream: u16,
    /// True if the free takes effect at a later event.
    is_deferred: bool,
    origin: Origin,
}

impl Builder {
    /// Sets the time of the following events. A trace has times if this was called before its first event.
    pub(crate) fn at(&mut self, time_ns: u64) {
        // The threads of a program write their events in turns.
        self.now_ns = Some(self.now_ns.unwrap_or(0).max(time_ns));
    }

    pub(crate) fn alloc(&mut self, size_bytes: u64, stream: u16) -> u32 {
        self.alloc_of(size_bytes, stream, Origin::default())
    }

    pub(crate) fn alloc_of(&mut self, size_bytes: u64, stream: u16, origin: Origin) -> u32 {
        let block = self.blocks.len() as u32;
        self.blocks.push(BlockOfTrace { size_bytes, stream, is_deferred: false, origin });
        self.stream_count = self.stream_count.max(stream + 1);
        self.note(What::Alloc, block);
        block
    }

    fn note(&mut self, what: What, block: u32) {
        self.events.push(EventOfTrace { what, block, time_ns: self.now_ns.unwrap_or(0) });
    }

    /// Notes the memory that is reserved from here on.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        if self.reserved.last().is_none_or(|(_, last)| *last != bytes) {
            self.reserved.push((self.events.len(), bytes));
        }
    }

    pub(crate) fn event_count(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn size_bytes(&self, block: u32) -> u64 {
        self.blocks[block as usize].size_bytes
    }

    pub(crate) fn stream(&self, block: u32) -> u16 {
        self.blocks[block as usize].stream
    }

    pub(crate) fn free(&mut self, block: u32) {
        self.note(What::Free, block);
    }

    /// Defers a free. Without a later `complete` it never takes effect.
    pub(crate) fn defer(&mut self, block: u32) {
        self.blocks[block as usize].is_deferred = true;
    }

    pub(crate) fn complete(&mut self, block: u32) {
        self.defer(block);
        self.note(What::Complete, block);
    }

    pub(crate) fn refuse(&mut self, size_bytes: u64, stream: u16, origin: Origin) {
        self.alloc_of(size_bytes, stream, origin);
        if let Some(event) = self.events.last_mut() {
            event.what = What::Refused;
        }
    }

    /// Adds a block that was live before the first event.
    pub(crate) fn alloc_before(&mut self, size_bytes: u64, stream: u16, origin: Origin) {
        let (events, now_ns) = (core::mem::take(&mut self.events), self.now_ns);
        self.now_ns = events.first().map(|first| first.time_ns);
        self.alloc_of(size_bytes, stream, origin);
        self.events.extend(events);
        self.reserved.iter_mut().for_each(|(event, _)| *event += 1);
        self.now_ns = now_ns;
    }

    /// Assigns the slots.
    pub(crate) fn finish(self, header: Header) -> Trace {
        let mut slots = vec![0; self.blocks.len()];
        let (mut vacant, mut slot_count) = (Vec::new(), 0);
        let events = self.events.iter().map(|event| {
            let BlockOfTrace { size_bytes, stream, is_deferred, .. } = self.blocks[event.block as usize];
            let slot = &mut slots[event.block as usize];
            if event.what == What::Alloc {
                *slot = vacant.pop().unwrap_or_else(|| {
                    slot_count += 1;
                    slot_count - 1
                });
            } else if event.what == What::Complete || event.what == What::Free && !is_deferred {
                vacant.push(*slot);
            }
            let slot = *slot;
            match event.what {
                What::Alloc => Event::Alloc { slot, stream, size_bytes },
                What::Free if is_deferred => Event::FreeUsed { slot },
                What::Free => Event::Free { slot },
                What::Complete => Event::Complete { slot },
                What::Refused => Event::Refused { stream, size_bytes },
            }
        });
        let events: Vec<Event> = events.collect();
        let peaks = Peaks::of(&events, slot_count);
        let has_times = self.now_ns.is_some();
        let begin_ns = self.events.first().map_or(0, |first| first.time_ns);
        let origins = Origins {
            times_ns: self
                .events
                .iter()
                .filter(|_| has_times)
                .map(|event| event.time_ns - begin_ns)
                .collect(),
            blocks: self.events.iter().map(|event| event.block).collect(),
            of_blocks: self.blocks.iter().map(|block| block.origin).collect(),
        };
        let (stream_count, tags, notes) = (self.stream_count, Vec::new(), Vec::new());
        Trace {
            header,
            events,
            slot_count,
            stream_count,
            peaks,
            tags,
            notes,
            origins,
            real: RealRun::default(),
            stacks: Stacks::default(),
            reserved: self.reserved,
            open_end: None,
        }
    }
}

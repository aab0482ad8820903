//! [`Builder`]: makes a [`Trace`] of allocations and frees, and assigns the slots.

use super::Trace;
use super::event::{Event, Peaks};
use super::header::Header;
use super::real::RealRun;

/// Builds a trace event by event. Blocks are named by the number that [`Builder::alloc`] returned.
#[derive(Default)]
pub(crate) struct Builder {
    blocks: Vec<BlockOfTrace>,
    events: Vec<(What, u32)>,
    stream_count: u16,
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
}

impl Builder {
    pub(crate) fn alloc(&mut self, size_bytes: u64, stream: u16) -> u32 {
        let block = self.blocks.len() as u32;
        self.blocks.push(BlockOfTrace { size_bytes, stream, is_deferred: false });
        self.stream_count = self.stream_count.max(stream + 1);
        self.events.push((What::Alloc, block));
        block
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
        self.events.push((What::Free, block));
    }

    /// Defers a free. Without a later `complete` it never takes effect.
    pub(crate) fn defer(&mut self, block: u32) {
        self.blocks[block as usize].is_deferred = true;
    }

    pub(crate) fn complete(&mut self, block: u32) {
        self.defer(block);
        self.events.push((What::Complete, block));
    }

    pub(crate) fn refuse(&mut self, size_bytes: u64, stream: u16) {
        let block = self.alloc(size_bytes, stream);
        if let Some(event) = self.events.last_mut() {
            *event = (What::Refused, block);
        }
    }

    /// Adds a block that was live before the first event.
    pub(crate) fn alloc_before(&mut self, size_bytes: u64, stream: u16) {
        let events = core::mem::take(&mut self.events);
        self.alloc(size_bytes, stream);
        self.events.extend(events);
    }

    /// Assigns the slots.
    pub(crate) fn finish(self, header: Header) -> Trace {
        let mut slots = vec![0; self.blocks.len()];
        let (mut vacant, mut slot_count) = (Vec::new(), 0);
        let events = self.events.into_iter().map(|(what, block)| {
            let BlockOfTrace { size_bytes, stream, is_deferred } = self.blocks[block as usize];
            let slot = &mut slots[block as usize];
            if what == What::Alloc {
                *slot = vacant.pop().unwrap_or_else(|| {
                    slot_count += 1;
                    slot_count - 1
                });
            } else if what == What::Complete || what == What::Free && !is_deferred {
                vacant.push(*slot);
            }
            let slot = *slot;
            match what {
                What::Alloc => Event::Alloc { slot, stream, size_bytes },
                What::Free if is_deferred => Event::FreeUsed { slot },
                What::Free => Event::Free { slot },
                What::Complete => Event::Complete { slot },
                What::Refused => Event::Refused { stream, size_bytes },
            }
        });
        let events: Vec<Event> = events.collect();
        let peaks = Peaks::of(&events, slot_count);
        let (stream_count, tags, notes) = (self.stream_count, Vec::new(), Vec::new());
        Trace { header, events, slot_count, stream_count, peaks, tags, notes, real: RealRun::default() }
    }
}

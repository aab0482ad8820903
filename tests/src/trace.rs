//! [`Trace`]: what a program asked of its allocator, in order; read from a file or made up.
//!
//! The format of the files is described in [tests/traces](../traces/README.md). A trace is read whole before anything
//! is replayed, so that no time is measured that goes into reading, and kept in 16 bytes an event: each block has a *slot*
//! that the next block takes once it is gone, so that whoever replays it needs a table as long as the most blocks that
//! are there at a time.

mod error;
mod header;
mod random;
mod read;
mod recorded;
mod synthetic;
mod tags;

pub use error::TraceError;
pub use header::{Header, Peer};
pub use random::random_program;
pub use synthetic::{Synthetic, UnknownSynthetic};
pub use tags::TagSum;

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block is allocated.
    Alloc {
        /// Its place among those that are there at the same time.
        slot: u32,
        /// Its stream, counted from 0 in the order of first use.
        stream: u16,
        /// The requested bytes.
        size_bytes: u64,
    },
    /// A block is given back to its stream, which may reuse it from here on.
    Free {
        /// Its place.
        slot: u32,
    },
    /// A block is given back while another stream uses it. Its [`Event::Complete`] comes later.
    FreeUsed {
        /// Its place.
        slot: u32,
    },
    /// All work that used a block is complete: its memory is free for all streams.
    Complete {
        /// Its place.
        slot: u32,
    },
}

/// The requests of a program to its allocator.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    header: Header,
    events: Vec<Event>,
    slot_count: u32,
    stream_count: u16,
    peaks: Peaks,
    /// Of a recording.
    tags: Vec<TagSum>,
    /// The missing part of a recording.
    notes: Vec<String>,
}

/// The most bytes there were at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Blocks from their allocation until the program gave them back.
    pub live_bytes: u64,
    /// Blocks from their allocation until all work that used them was over.
    pub live_incl_deferred_bytes: u64,
}

impl Trace {
    /// The content of its first line.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The name that its header gives it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.header.name
    }

    /// Everything that happens, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// What a pool is asked for: allocations and frees. (A free that takes effect later is one operation.)
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.events.iter().filter(|event| !matches!(event, Event::Complete { .. })).count() as u64
    }

    /// Slots are below this.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Streams are below this.
    #[must_use]
    pub fn stream_count(&self) -> u16 {
        self.stream_count
    }

    /// The most bytes there are at a time, counted from the events.
    #[must_use]
    pub fn peaks(&self) -> Peaks {
        self.peaks
    }

    /// What a recording has for each tag, those with the highest peaks first; nothing if no tag is in it.
    #[must_use]
    pub fn tags(&self) -> &[TagSum] {
        &self.tags
    }

    /// What the streams' own peaks add up to, deferred frees included: about the least that has to be reserved if no stream
    /// ever waits for another. (What has passed its [`Event::Complete`] is everybody's, and could save a little of it.)
    #[must_use]
    pub fn floor_bytes(&self) -> u64 {
        let mut blocks = vec![(0, 0); self.slot_count as usize];
        let mut streams = vec![(0_u64, 0_u64); usize::from(self.stream_count)];
        for event in &self.events {
            match *event {
                Event::Alloc { slot, stream, size_bytes } => {
                    blocks[slot as usize] = (usize::from(stream), size_bytes);
                    let (live_bytes, peak_bytes) = &mut streams[usize::from(stream)];
                    *live_bytes = live_bytes.saturating_add(size_bytes);
                    *peak_bytes = (*peak_bytes).max(*live_bytes);
                }
                Event::Free { slot } | Event::Complete { slot } => {
                    let (stream, size_bytes) = blocks[slot as usize];
                    streams[stream].0 = streams[stream].0.saturating_sub(size_bytes);
                }
                Event::FreeUsed { .. } => {}
            }
        }
        streams.iter().fold(0, |sum: u64, (_, peak_bytes)| sum.saturating_add(*peak_bytes))
    }

    /// The first events alone. What the header and tags say of the whole is left as it is.
    #[must_use]
    pub fn prefix(mut self, event_count: usize) -> Self {
        self.events.truncate(event_count);
        self.peaks = peaks(&self.events, self.slot_count);
        self
    }

    /// What the header says of the events that they do not bear out, such as a count in a file that was cut; and what is
    /// missing in a recording.
    #[must_use]
    pub fn disagreements(&self) -> Vec<String> {
        let stated = self.header.disagreements(self.events.len() as u64, self.peaks);
        self.notes.iter().cloned().chain(stated).collect()
    }
}

/// Puts a trace together, event by event. It is told about blocks by the number that [`Builder::alloc`] gave them.
#[derive(Default)]
struct Builder {
    blocks: Vec<BlockOfTrace>,
    events: Vec<(What, u32)>,
    stream_count: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Alloc,
    Free,
    Complete,
}

#[derive(Clone, Copy)]
struct BlockOfTrace {
    size_bytes: u64,
    stream: u16,
    /// Whether its free takes effect at a later event.
    is_deferred: bool,
}

impl Builder {
    fn alloc(&mut self, size_bytes: u64, stream: u16) -> u32 {
        let block = self.blocks.len() as u32;
        self.blocks.push(BlockOfTrace { size_bytes, stream, is_deferred: false });
        self.stream_count = self.stream_count.max(stream + 1);
        self.events.push((What::Alloc, block));
        block
    }

    fn free(&mut self, block: u32) {
        self.events.push((What::Free, block));
    }

    /// A block that was freed is in use still; what is never over is so to the end.
    fn defer(&mut self, block: u32) {
        self.blocks[block as usize].is_deferred = true;
    }

    fn complete(&mut self, block: u32) {
        self.defer(block);
        self.events.push((What::Complete, block));
    }

    /// Allocates and frees at once.
    fn touch(&mut self, size_bytes: u64, stream: u16) {
        let block = self.alloc(size_bytes, stream);
        self.free(block);
    }

    /// Gives every block a slot.
    fn finish(self, header: Header) -> Trace {
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
            } else if what == What::Complete || !is_deferred {
                vacant.push(*slot);
            }
            let slot = *slot;
            match what {
                What::Alloc => Event::Alloc { slot, stream, size_bytes },
                What::Free if is_deferred => Event::FreeUsed { slot },
                What::Free => Event::Free { slot },
                What::Complete => Event::Complete { slot },
            }
        });
        let events: Vec<Event> = events.collect();
        let peaks = peaks(&events, slot_count);
        let (stream_count, tags, notes) = (self.stream_count, Vec::new(), Vec::new());
        Trace { header, events, slot_count, stream_count, peaks, tags, notes }
    }
}

/// In a file that was made to harm, what is deferred may be more than a `u64` counts.
fn peaks(events: &[Event], slot_count: u32) -> Peaks {
    let mut sizes = vec![0; slot_count as usize];
    let (mut live_bytes, mut deferred_bytes) = (0_u128, 0_u128);
    let (mut live_peak_bytes, mut sum_peak_bytes) = (0, 0);
    for event in events {
        match *event {
            Event::Alloc { slot, size_bytes, .. } => {
                sizes[slot as usize] = u128::from(size_bytes);
                live_bytes += u128::from(size_bytes);
            }
            Event::Free { slot } => live_bytes -= sizes[slot as usize],
            Event::FreeUsed { slot } => {
                live_bytes -= sizes[slot as usize];
                deferred_bytes += sizes[slot as usize];
            }
            Event::Complete { slot } => deferred_bytes -= sizes[slot as usize],
        }
        live_peak_bytes = live_peak_bytes.max(live_bytes);
        sum_peak_bytes = sum_peak_bytes.max(live_bytes + deferred_bytes);
    }
    let counted = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    Peaks { live_bytes: counted(live_peak_bytes), live_incl_deferred_bytes: counted(sum_peak_bytes) }
}

#[cfg(test)]
mod tests;

//! [`Trace`]: the allocations and frees of a program in order, read from a file or generated.
//!
//! [tests/traces](../traces/README.md) describes the file format. A trace is read completely before a replay, so that reading
//! does not count as time of the replay. An event takes 16 bytes: each live block has a *slot*, which is reused after its free,
//! so a replay needs a table as long as the largest number of blocks live at one time.

mod error;
mod header;
mod pytorch;
mod random;
mod read;
mod real;
mod recorded;
mod rmm;
mod snapshot;
mod streams;
mod synthetic;
mod tags;

pub use error::TraceError;
pub use header::{Header, Peer};
pub use random::random_program;
pub use real::RealRun;
pub use snapshot::snapshot;
pub use synthetic::{Synthetic, UnknownSynthetic};
pub use tags::TagSum;

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An allocation.
    Alloc {
        /// The slot of the block, unique among live blocks.
        slot: u32,
        /// The stream, counted from 0 in the order of first use.
        stream: u16,
        /// The requested bytes.
        size_bytes: u64,
    },
    /// A free on the block's stream, which may reuse the memory from here on.
    Free {
        /// The slot.
        slot: u32,
    },
    /// A free while another stream uses the block. Its [`Event::Complete`] follows later.
    FreeUsed {
        /// The slot.
        slot: u32,
    },
    /// All work that used a freed block is complete: its memory may be reused by all streams.
    Complete {
        /// The slot.
        slot: u32,
    },
    /// A request that was refused when the program was recorded.
    Refused {
        /// The stream.
        stream: u16,
        /// The requested bytes.
        size_bytes: u64,
    },
}

/// The allocations and frees of a program.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    header: Header,
    events: Vec<Event>,
    slot_count: u32,
    stream_count: u16,
    peaks: Peaks,
    /// The tags of a recording.
    tags: Vec<TagSum>,
    /// Notes on missing parts of a recording.
    notes: Vec<String>,
    /// The recorded program.
    real: RealRun,
}

/// The peaks of live memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Blocks count from their allocation to their free.
    pub live_bytes: u64,
    /// Blocks count from their allocation until all work that used them is complete.
    pub live_incl_deferred_bytes: u64,
}

impl Trace {
    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The name in the header.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.header.name
    }

    /// All events, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The number of allocations and frees. A deferred free counts as one operation.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        let counts = |event: &&Event| !matches!(event, Event::Complete { .. } | Event::Refused { .. });
        self.events.iter().filter(counts).count() as u64
    }

    /// The number of requests that were refused when the program was recorded.
    #[must_use]
    pub fn refused_count(&self) -> u64 {
        self.events.iter().filter(|event| matches!(event, Event::Refused { .. })).count() as u64
    }

    /// Returns what the recording states of the program: its settings, and the memory that it reserved.
    #[must_use]
    pub fn real_run(&self) -> &RealRun {
        &self.real
    }

    /// The number of slots.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// The number of streams.
    #[must_use]
    pub fn stream_count(&self) -> u16 {
        self.stream_count
    }

    /// The peaks of live memory, computed from the events.
    #[must_use]
    pub fn peaks(&self) -> Peaks {
        self.peaks
    }

    /// The tags of a recording, highest peak first; empty if it has none.
    #[must_use]
    pub fn tags(&self) -> &[TagSum] {
        &self.tags
    }

    /// The sum of the streams' own peaks, including deferred frees: about the minimum to reserve if streams never wait for each
    /// other. (Memory that is free after its [`Event::Complete`] may move between streams and lower the minimum a little.)
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
                Event::FreeUsed { .. } | Event::Refused { .. } => {}
            }
        }
        streams.iter().fold(0, |sum: u64, (_, peak_bytes)| sum.saturating_add(*peak_bytes))
    }

    /// Keeps the first events only. Header and tags still describe the whole trace.
    #[must_use]
    pub fn prefix(mut self, event_count: usize) -> Self {
        self.events.truncate(event_count);
        self.peaks = peaks(&self.events, self.slot_count);
        self
    }

    /// Statements of the header that the events contradict, such as the number of events of a truncated file, and notes on
    /// missing parts of a recording.
    #[must_use]
    pub fn disagreements(&self) -> Vec<String> {
        let stated = self.header.disagreements(self.events.len() as u64, self.peaks);
        self.notes.iter().cloned().chain(stated).collect()
    }
}

/// Builds a trace event by event. Blocks are named by the number that [`Builder::alloc`] returned.
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

    /// Defers a free. Without a later `complete` it never takes effect.
    fn defer(&mut self, block: u32) {
        self.blocks[block as usize].is_deferred = true;
    }

    fn complete(&mut self, block: u32) {
        self.defer(block);
        self.events.push((What::Complete, block));
    }

    /// Adds a request that was refused.
    fn refuse(&mut self, size_bytes: u64, stream: u16) {
        let block = self.alloc(size_bytes, stream);
        if let Some(event) = self.events.last_mut() {
            *event = (What::Refused, block);
        }
    }

    /// Adds blocks, of these sizes and streams, that were live before the first event, and returns their numbers.
    fn alloc_before(&mut self, blocks: &[(u64, u16)]) -> Vec<u32> {
        let events = core::mem::take(&mut self.events);
        let numbers = blocks.iter().map(|(size_bytes, stream)| self.alloc(*size_bytes, *stream)).collect();
        self.events.extend(events);
        numbers
    }

    /// Allocates and immediately frees a block.
    fn touch(&mut self, size_bytes: u64, stream: u16) {
        let block = self.alloc(size_bytes, stream);
        self.free(block);
    }

    /// Assigns the slots.
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
        let peaks = peaks(&events, slot_count);
        let (stream_count, tags, notes) = (self.stream_count, Vec::new(), Vec::new());
        Trace { header, events, slot_count, stream_count, peaks, tags, notes, real: RealRun::default() }
    }
}

/// Computes the peaks. A malicious file can defer more bytes than a `u64` can count.
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
            Event::Refused { .. } => {}
        }
        live_peak_bytes = live_peak_bytes.max(live_bytes);
        sum_peak_bytes = sum_peak_bytes.max(live_bytes + deferred_bytes);
    }
    let counted = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    Peaks { live_bytes: counted(live_peak_bytes), live_incl_deferred_bytes: counted(sum_peak_bytes) }
}

#[cfg(test)]
mod tests;

//! [`Trace`]: the allocations and frees of a program in order.

mod builder;
mod event;
mod header;
mod holders;
mod open_end;
mod origin;
mod real;
mod stacks;
mod tags;

pub(crate) use builder::Builder;
pub use event::{Event, Peaks};
pub use header::{Header, Peer};
pub use holders::{Growth, HolderName, Holders, Holding};
pub use open_end::OpenEnd;
pub(crate) use open_end::all_pools_ended;
pub use origin::Origin;
pub use real::{MoveSums, RealRun};
pub use stacks::{Frame, StackNode, Stacks};
pub use tags::TagSum;
pub(crate) use tags::TagSums;

/// The allocations and frees of a program, in order.
///
/// A trace is read completely before a replay, so that reading does not count as time of the replay.
///
/// ```
/// use gpumem_trace::Trace;
///
/// let text = "#{\"format\":1,\"name\":\"small\",\"events\":5}\na,1,300,0\na,2,50,1\nf,1,0\na,3,100,1\n";
/// let trace = Trace::read_from(text.as_bytes(), "small.csv")?;
/// assert_eq!((trace.name(), trace.operation_count(), trace.stream_count()), ("small", 4, 2));
/// assert_eq!((trace.peaks().live_bytes, trace.floor_bytes()), (350, 450));
/// assert_eq!(trace.disagreements(), ["the header says events 5, the events make it 4"]);
/// # Ok::<(), gpumem_trace::TraceError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Trace {
    header: Header,
    events: Vec<Event>,
    slot_count: u32,
    stream_count: u16,
    peaks: Peaks,
    pub(crate) tags: Vec<TagSum>,
    /// Notes on missing parts of a recording.
    pub(crate) notes: Vec<String>,
    pub(crate) real: RealRun,
    origins: origin::Origins,
    pub(crate) stacks: Stacks,
    reserved: Vec<(usize, u64)>,
    /// What a recording states of its end.
    pub(crate) open_end: Option<OpenEnd>,
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

    /// Sets the tags, and where each tag of the reader is among them.
    pub(crate) fn set_tags(&mut self, tags: Vec<TagSum>, places: &[u32]) {
        self.tags = tags;
        self.origins.renumber_tags(places);
    }

    /// The address and the tag of an event's block or request.
    #[must_use]
    pub fn origin(&self, event: usize) -> Origin {
        self.origins.of(event)
    }

    /// The time of an event since the first one; `None` if the record has no times.
    #[must_use]
    pub fn time_ns(&self, event: usize) -> Option<u64> {
        self.origins.times_ns.get(event).copied()
    }

    /// The stacks of the blocks; empty if the record has none.
    #[must_use]
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// The memory that the program's allocator reserved: the number of events before each change, and the bytes from there on. Empty if
    /// the record does not state it.
    #[must_use]
    pub fn reserved(&self) -> &[(usize, u64)] {
        &self.reserved
    }

    /// True if blocks were freed while other streams used them, so that the memory that the program needs depends on the time at which those
    /// finish.
    #[must_use]
    pub fn has_late_frees(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::FreeUsed { .. }))
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
        self.peaks = Peaks::of(&self.events, self.slot_count);
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

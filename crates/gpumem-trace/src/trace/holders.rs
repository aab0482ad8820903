//! [`Holders`]: who holds the memory at a moment of a trace, and [`Growth`]: whose memory has grown up to it.

use super::{Event, Trace};
use core::fmt;
use std::collections::HashMap;

/// The live memory at a moment of a trace, by holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holders {
    /// The bytes of live blocks.
    pub live_bytes: u64,
    /// The number of live blocks.
    pub block_count: u64,
    /// The bytes of blocks that are freed while another stream uses them.
    pub pending_bytes: u64,
    /// The holders of live blocks, most bytes first.
    pub list: Vec<Holding>,
}

/// The live memory of one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The holder.
    pub holder: HolderName,
    /// The bytes.
    pub live_bytes: u64,
    /// The number of blocks.
    pub block_count: u64,
}

/// The holder of blocks: a tag, or the size of the blocks in a trace without tags.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HolderName {
    /// A tag: the name of a scope, or the place in the program that allocated.
    Tag(String),
    /// Blocks without a tag, in a trace with tags.
    Untagged,
    /// Blocks that are older than the record.
    Older,
    /// Blocks of this size, in a trace without tags.
    Size(u64),
    /// All sizes that are not among those with the most memory.
    OtherSizes,
}

impl fmt::Display for HolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use gpumem_pool::Bytes;
        use gpumem_pool::sys::text::Shown;
        match self {
            Self::Tag(name) => write!(f, "{}", Shown::sentence(name)),
            Self::Untagged => f.write_str("(no tag)"),
            Self::Older => f.write_str("(older than the record)"),
            Self::Size(bytes) => write!(f, "blocks of {}", Bytes(*bytes)),
            Self::OtherSizes => f.write_str("blocks of other sizes"),
        }
    }
}

/// A holder whose memory has grown steadily up to a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The holder.
    pub holder: HolderName,
    /// What it has gained.
    pub gained_bytes: u64,
    /// The number of blocks that it has gained; 0 if its blocks have become larger.
    pub gained_count: u64,
    /// The number of events before the growth began.
    pub since_event: usize,
    /// The time of the growth; `None` if the trace has no times.
    pub took_ns: Option<u64>,
}

impl Trace {
    /// Who holds the memory after the first events.
    ///
    /// ```
    /// use gpumem_trace::Trace;
    ///
    /// let trace = Trace::read_from(&b"#{\"format\":1}\na,1,300,0\na,2,50,0\na,3,300,0\nf,1,0\n"[..], "small")?;
    /// let at_peak = trace.holders(trace.peak_event() + 1);
    /// assert_eq!((at_peak.live_bytes, at_peak.list[0].holder.to_string()), (650, "blocks of 300 bytes".into()));
    /// assert_eq!(trace.holders(trace.events().len()).live_bytes, 350);
    /// # Ok::<(), gpumem_trace::TraceError>(())
    /// ```
    #[must_use]
    pub fn holders(&self, event_count: usize) -> Holders {
        let sums = Sums::of(self, event_count, 1);
        let list = sums.names.iter().zip(&sums.own).filter(|(_, own)| own.block_count > 0);
        let mut list: Vec<Holding> = list
            .map(|(holder, own)| Holding {
                holder: holder.clone(),
                live_bytes: own.live_bytes,
                block_count: own.block_count,
            })
            .collect();
        list.sort_by_key(|holding| core::cmp::Reverse((holding.live_bytes, holding.block_count)));
        Holders {
            live_bytes: list.iter().fold(0, |sum, holding| holding.live_bytes.saturating_add(sum)),
            block_count: list.iter().map(|holding| holding.block_count).sum(),
            pending_bytes: sums.pending_bytes,
            list,
        }
    }

    /// The holders that [`Trace::holders`] names, and for each event the number of its block's or request's holder.
    #[must_use]
    pub fn holder_numbers(&self) -> (Vec<HolderName>, Vec<u32>) {
        let numbers = Numbers::of(self);
        let mut of_slots = vec![0; self.slot_count() as usize];
        let of_events = self.events().iter().enumerate().map(|(index, event)| match *event {
            Event::Alloc { slot, size_bytes, .. } => {
                let number = numbers.of_block(self, index, size_bytes) as u32;
                of_slots[slot as usize] = number;
                number
            }
            Event::Free { slot } | Event::FreeUsed { slot } | Event::Complete { slot } => {
                of_slots[slot as usize]
            }
            Event::Refused { size_bytes, .. } => numbers.of_block(self, index, size_bytes) as u32,
        });
        let of_events = of_events.collect();
        (numbers.names, of_events)
    }

    /// The holders that grew steadily up to the end of the first events, most gained first. The events are divided into 32 windows. A
    /// holder has grown since the first window from which on the least memory that it held in each window never fell, if that are several
    /// windows and it still grew in the last ones: what is freed in each step, and what was allocated once, does not count. Nor does what
    /// takes the place of blocks without a tag or from before the record, which may have been the same holder's, and what is freed behind the
    /// last request: that is the end of the program.
    #[must_use]
    pub fn growth(&self, event_count: usize) -> Vec<Growth> {
        let events = &self.events()[..event_count.min(self.events().len())];
        let is_request = |event: &Event| matches!(event, Event::Alloc { .. } | Event::Refused { .. });
        let event_count = events.iter().rposition(is_request).map_or(0, |last| last + 1);
        let sums = Sums::of(self, event_count, WINDOW_COUNT);
        let live_bytes = sums.own.iter().fold(0, |sum: u64, own| own.live_bytes.saturating_add(sum));
        let mut grown: Vec<Growth> = Vec::new();
        for (holder, own) in sums.names.iter().zip(&sums.own) {
            let Some(first) = own.grown_since() else { continue };
            let (lost_bytes, lost_count) = sums.lost_of_unknown(first);
            let gained_bytes = (own.live_bytes - own.windows[first].least_bytes).saturating_sub(lost_bytes);
            if gained_bytes < (live_bytes / SHARE_MIN).max(1) {
                continue;
            }
            let since_event = first * sums.window_events;
            let took_ns = self.time_ns(event_count - 1).zip(self.time_ns(since_event));
            grown.push(Growth {
                holder: holder.clone(),
                gained_bytes,
                gained_count: own.block_count.saturating_sub(own.windows[first].least_count + lost_count),
                since_event,
                took_ns: took_ns.map(|(end, begin)| end.saturating_sub(begin)),
            });
        }
        grown.sort_by_key(|growth| core::cmp::Reverse(growth.gained_bytes));
        grown
    }

    /// The index of the event that reaches the peak of live bytes; 0 for an empty trace.
    #[must_use]
    pub fn peak_event(&self) -> usize {
        let mut sizes = vec![0; self.slot_count() as usize];
        let (mut live_bytes, mut peak) = (0_u128, (0, 0));
        for (index, event) in self.events().iter().enumerate() {
            match *event {
                Event::Alloc { slot, size_bytes, .. } => {
                    sizes[slot as usize] = u128::from(size_bytes);
                    live_bytes += u128::from(size_bytes);
                    if live_bytes > peak.0 {
                        peak = (live_bytes, index);
                    }
                }
                Event::Free { slot } | Event::FreeUsed { slot } => live_bytes -= sizes[slot as usize],
                Event::Complete { .. } | Event::Refused { .. } => {}
            }
        }
        peak.1
    }

    /// The index of the last refused request.
    #[must_use]
    pub fn last_refusal(&self) -> Option<usize> {
        self.events().iter().rposition(|event| matches!(event, Event::Refused { .. }))
    }
}

/// The memory of each holder, event by event.
struct Sums {
    names: Vec<HolderName>,
    own: Vec<Sum>,
    pending_bytes: u64,
    window_events: usize,
}

#[derive(Clone, Default)]
struct Sum {
    live_bytes: u64,
    block_count: u64,
    windows: Vec<Window>,
}

#[derive(Clone, Copy, Default)]
struct Window {
    most_bytes: u64,
    most_count: u64,
    least_bytes: u64,
    least_count: u64,
}

impl Sums {
    fn of(trace: &Trace, event_count: usize, window_count: usize) -> Self {
        let events = &trace.events()[..event_count.min(trace.events().len())];
        let holders = Numbers::of(trace);
        let mut own = vec![Sum::default(); holders.names.len()];
        let mut blocks = vec![(0, 0_u64); trace.slot_count() as usize];
        let mut pending_bytes = 0_u64;
        let window_events = events.len().div_ceil(window_count).max(1);
        for (index, event) in events.iter().enumerate() {
            if index % window_events == 0 {
                own.iter_mut().for_each(Sum::begin_window);
            }
            match *event {
                Event::Alloc { slot, size_bytes, .. } => {
                    let holder = holders.of_block(trace, index, size_bytes);
                    blocks[slot as usize] = (holder, size_bytes);
                    own[holder].alloc(size_bytes);
                }
                Event::Free { slot } | Event::FreeUsed { slot } => {
                    let (holder, size_bytes) = blocks[slot as usize];
                    own[holder].free(size_bytes);
                    if matches!(event, Event::FreeUsed { .. }) {
                        pending_bytes = pending_bytes.saturating_add(size_bytes);
                    }
                }
                Event::Complete { slot } => {
                    pending_bytes = pending_bytes.saturating_sub(blocks[slot as usize].1);
                }
                Event::Refused { .. } => {}
            }
        }
        Self { names: holders.names, own, pending_bytes, window_events }
    }

    /// By how much the blocks of unknown holders are less than at the most since the beginning of a window: bytes and blocks.
    fn lost_of_unknown(&self, window: usize) -> (u64, u64) {
        let is_unknown = |name: &HolderName| matches!(name, HolderName::Untagged | HolderName::Older);
        let unknown = self.names.iter().zip(&self.own).filter(|(name, _)| is_unknown(name));
        unknown.fold((0, 0), |(bytes, count), (_, own)| {
            let since = &own.windows[window..];
            let most_bytes = since.iter().map(|window| window.most_bytes).max().unwrap_or(0);
            let most_count = since.iter().map(|window| window.most_count).max().unwrap_or(0);
            (
                bytes + most_bytes.saturating_sub(own.live_bytes),
                count + most_count.saturating_sub(own.block_count),
            )
        })
    }
}

impl Sum {
    fn begin_window(&mut self) {
        self.windows.push(Window {
            most_bytes: self.live_bytes,
            most_count: self.block_count,
            least_bytes: self.live_bytes,
            least_count: self.block_count,
        });
    }

    fn alloc(&mut self, size_bytes: u64) {
        self.live_bytes = self.live_bytes.saturating_add(size_bytes);
        self.block_count += 1;
        if let Some(window) = self.windows.last_mut() {
            window.most_bytes = window.most_bytes.max(self.live_bytes);
            window.most_count = window.most_count.max(self.block_count);
        }
    }

    fn free(&mut self, size_bytes: u64) {
        self.live_bytes = self.live_bytes.saturating_sub(size_bytes);
        self.block_count = self.block_count.saturating_sub(1);
        if let Some(window) = self.windows.last_mut() {
            window.least_bytes = window.least_bytes.min(self.live_bytes);
            window.least_count = window.least_count.min(self.block_count);
        }
    }

    /// The first window of the growth that lasts until the end.
    fn grown_since(&self) -> Option<usize> {
        let least = |window: usize| self.windows[window].least_bytes;
        let last = self.windows.len().checked_sub(1)?;
        let first = (0..last).rev().take_while(|window| least(*window) <= least(window + 1)).last()?;
        let length = last - first;
        let is_long = length >= GROWING_WINDOWS_MIN;
        // A cache that has been filled, or weights that were loaded, no longer grow.
        let is_recent = least(last) > least(last - (length / 4).max(1));
        let rises = (first..last).filter(|window| least(*window) < least(window + 1)).count();
        (is_long && is_recent && rises >= GROWING_WINDOWS_MIN).then_some(first)
    }
}

/// The number of each block's holder.
struct Numbers {
    names: Vec<HolderName>,
    /// In a trace without tags: the holders of the sizes with the most memory.
    by_size: HashMap<u64, usize>,
}

impl Numbers {
    fn of(trace: &Trace) -> Self {
        if !trace.tags().is_empty() {
            let tags =
                trace.tags().iter().map(|sum| sum.tag.clone().map_or(HolderName::Untagged, HolderName::Tag));
            return Self { names: tags.chain([HolderName::Older]).collect(), by_size: HashMap::new() };
        }
        let mut sizes: HashMap<u64, u64> = HashMap::new();
        for event in trace.events() {
            if let Event::Alloc { size_bytes, .. } = event {
                let sum = sizes.entry(*size_bytes).or_default();
                *sum = sum.saturating_add(*size_bytes);
            }
        }
        let mut sizes: Vec<(u64, u64)> =
            sizes.into_iter().map(|(size_bytes, sum)| (sum, size_bytes)).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let sizes = sizes.iter().map(|(_, size_bytes)| *size_bytes).take(SIZE_COUNT_MAX);
        let names: Vec<HolderName> = sizes.map(HolderName::Size).chain([HolderName::OtherSizes]).collect();
        let by_size = names.iter().enumerate().filter_map(|(number, holder)| match holder {
            HolderName::Size(size_bytes) => Some((*size_bytes, number)),
            _ => None,
        });
        Self { by_size: by_size.collect(), names }
    }

    fn of_block(&self, trace: &Trace, event: usize, size_bytes: u64) -> usize {
        let last = self.names.len() - 1;
        match trace.origin(event).tag {
            Some(tag) if !trace.tags().is_empty() => tag as usize,
            _ => self.by_size.get(&size_bytes).copied().unwrap_or(last),
        }
    }
}

const WINDOW_COUNT: usize = 32;
/// Fewer windows are no trend.
const GROWING_WINDOWS_MIN: usize = 4;
/// Growth by less than this part of the live memory is not reported.
const SHARE_MIN: u64 = 64;
const SIZE_COUNT_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::{Growth, HolderName};
    use crate::trace::{Origin, TagSum, Trace};
    use core::fmt::Write as _;
    use std::collections::VecDeque;

    /// A trace in text of allocations and frees, by size.
    #[derive(Default)]
    struct Text(String, u64);

    impl Text {
        fn alloc(&mut self, size_bytes: u64) -> u64 {
            self.1 += 1;
            let _ = writeln!(self.0, "a,{},{size_bytes},0", self.1);
            self.1
        }

        fn free(&mut self, id: u64) {
            let _ = writeln!(self.0, "f,{id},0");
        }

        fn grown(&self) -> Vec<Growth> {
            let trace = Trace::read_from(format!("#{{\"format\":1}}\n{}", self.0).as_bytes(), "x").unwrap();
            trace.growth(trace.events().len())
        }
    }

    /// What each step frees, what was loaded once, and what was filled in the first half has not grown at the end; what keeps a block of each
    /// step has.
    #[test]
    fn only_steady_growth_counts() {
        let mut text = Text::default();
        (0..20).for_each(|_| _ = text.alloc(1000));
        for step in 0..400 {
            let [temporary, workspace] = [text.alloc(70), text.alloc(5000)];
            if step < 200 {
                text.alloc(300);
            }
            text.free(temporary);
            text.free(workspace);
        }
        assert_eq!(text.grown(), []);
        for _ in 0..400 {
            let temporary = text.alloc(70);
            text.alloc(40);
            text.free(temporary);
        }
        let grown = text.grown();
        assert_eq!(grown.len(), 1, "{grown:?}");
        assert_eq!(
            (&grown[0].holder, grown[0].gained_bytes, grown[0].took_ns),
            (&HolderName::Size(40), 16_000, None)
        );
        assert_eq!(grown[0].gained_count, 400);
    }

    /// A program that frees everything at its end has still grown.
    #[test]
    fn the_end_of_the_program_is_no_shrinking() {
        let mut text = Text::default();
        let kept: Vec<u64> = (0..400).map(|_| text.alloc(40)).collect();
        kept.into_iter().for_each(|id| text.free(id));
        let grown = text.grown();
        assert_eq!((grown.len(), grown[0].gained_bytes), (1, 16_000), "{grown:?}");
    }

    /// A full cache whose blocks from before the record have no tag: one is dropped for each new one.
    #[test]
    fn what_takes_the_place_of_unknown_blocks_has_not_grown() {
        let mut text = Text::default();
        let mut cache: VecDeque<u64> = (0..400).map(|_| text.alloc(40)).collect();
        for _ in 0..300 {
            cache.push_back(text.alloc(40));
            cache.pop_front().into_iter().for_each(|id| text.free(id));
        }
        let mut trace = Trace::read_from(format!("#{{\"format\":1}}\n{}", text.0).as_bytes(), "x").unwrap();
        let sum = |tag: Option<&str>| TagSum {
            tag: tag.map(Into::into),
            allocation_count: 0,
            allocated_bytes: 0,
            peak_bytes: 0,
            left_bytes: 0,
        };
        trace.tags = vec![sum(None), sum(Some("cache"))];
        trace.origins.blocks = (0..1000).collect();
        let origin = |event| Origin { tag: Some(u32::from(event >= 400)), ..Origin::default() };
        trace.origins.of_blocks = (0..1000).map(origin).collect();
        assert_eq!(trace.growth(1000), []);
    }

    /// Some allocations at the beginning of a record may be all that a program does.
    #[test]
    fn few_events_are_no_trend() {
        let mut text = Text::default();
        (0..3).for_each(|_| _ = text.alloc(1000));
        assert_eq!(text.grown(), []);
        assert_eq!(Text::default().grown(), []);
    }
}

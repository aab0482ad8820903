//! What the page shows of a trace: names and sums as JSON, events and blocks as columns.

use super::columns::{Columns, NUMBER_MAX};
use gpumem_trace::{Event, Trace};
use serde_json::{Value, json};
use std::path::Path;

/// The columns of a trace. A block has the number of its allocation; a refused request has one as well.
pub(super) fn columns(trace: &Trace, map: &Map) -> Columns {
    let mut columns = Columns::default();
    let events = trace.events();
    let kind = |event: &Event| match event {
        Event::Alloc { .. } => 0,
        Event::Free { .. } => 1,
        Event::FreeUsed { .. } => 2,
        Event::Complete { .. } => 3,
        Event::Refused { .. } => 4,
    };
    columns.add("kinds", events.iter().map(kind));
    columns.add_differences("times", (0..events.len()).map_while(|event| trace.time_ns(event)));
    // How many blocks ago the block of a free was allocated.
    let mut of_slots = vec![0_u64; trace.slot_count() as usize];
    let mut count = 0;
    columns.add(
        "ago",
        events.iter().filter_map(|event| match *event {
            Event::Alloc { slot, .. } => {
                of_slots[slot as usize] = count;
                count += 1;
                None
            }
            Event::Refused { .. } => {
                count += 1;
                None
            }
            Event::Free { slot } | Event::FreeUsed { slot } | Event::Complete { slot } => {
                Some(count - 1 - of_slots[slot as usize])
            }
        }),
    );
    let (_, holders) = trace.holder_numbers();
    let blocks = || {
        events.iter().enumerate().filter_map(|(index, event)| match *event {
            Event::Alloc { stream, size_bytes, .. } | Event::Refused { stream, size_bytes } => {
                Some((index, size_bytes, stream))
            }
            _ => None,
        })
    };
    columns.add("sizes", blocks().map(|(_, size_bytes, _)| size_bytes));
    columns.add("holders", blocks().map(|(index, ..)| u64::from(holders[index])));
    columns.add("streams", blocks().map(|(.., stream)| u64::from(stream)));
    if !map.regions.is_empty() {
        let addresses = blocks().map(|(index, ..)| map.place(trace.origin(index).address));
        columns.add_differences("addresses", addresses);
    }
    if !trace.stacks().nodes().is_empty() {
        columns.add(
            "stacks",
            blocks().map(|(index, ..)| trace.origin(index).stack.map_or(0, |node| u64::from(node) + 1)),
        );
        let nodes = || trace.stacks().nodes().iter().zip(0_u64..);
        columns.add(
            "callers",
            nodes().map(|(node, number)| node.caller.map_or(0, |caller| number - u64::from(caller))),
        );
        columns.add("frames", nodes().map(|(node, _)| u64::from(node.frame)));
    }
    columns.add_differences("reservedSince", trace.reserved().iter().map(|(event, _)| *event as u64));
    columns.add("reserved", trace.reserved().iter().map(|(_, bytes)| *bytes));
    columns
}

/// Everything else.
pub(super) fn meta(trace: &Trace, file: &Path, map: &Map, columns: &Columns) -> Value {
    let (names, _) = trace.holder_numbers();
    let growth_end = trace.last_refusal().unwrap_or(trace.events().len());
    let growth = trace.growth(growth_end).into_iter().take(GROWTH_COUNT_MAX).map(|growth| {
        json!({
            "holder": growth.holder.to_string(),
            "bytes": growth.gained_bytes,
            "blocks": growth.gained_count,
            "since": growth.since_event,
            "ns": growth.took_ns,
        })
    });
    let frames = trace.stacks().frames().iter().map(|frame| json!([frame.file, frame.line, frame.function]));
    let at_peak = trace.holders(if trace.events().is_empty() { 0 } else { trace.peak_event() + 1 });
    let at_peak = at_peak
        .list
        .iter()
        .take(HOLDER_COUNT_MAX)
        .map(|holding| json!([holding.holder.to_string(), holding.live_bytes, holding.block_count]));
    json!({
        "name": trace.name(),
        "what": trace.header().what,
        "file": file.file_name().map(|name| name.to_string_lossy()),
        "holders": names.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "byTag": !trace.tags().is_empty(),
        "streams": trace.stream_count(),
        "limit": trace.real_run().settings().and_then(|settings| settings.hard_limit_bytes),
        "device": trace.real_run().settings().map(|settings| settings.device_bytes),
        "reservedPeak": trace.real_run().peak_reserved_bytes,
        "peak": trace.peak_event(),
        "atPeak": at_peak.collect::<Vec<_>>(),
        "growth": growth.collect::<Vec<_>>(),
        "growthEnd": growth_end,
        "reports": trace.real_run().reports,
        "notes": trace.disagreements(),
        "base": format!("{:x}", map.base),
        "regions": map.regions,
        "frames": frames.collect::<Vec<_>>(),
        "columns": columns.index,
    })
}

/// The addresses of a trace.
pub(super) struct Map {
    /// Subtracted from each address, because the page calculates with floats.
    base: u64,
    /// The ranges that blocks have used, in whole pages: first address and end.
    pub(super) regions: Vec<(u64, u64)>,
}

impl Map {
    /// The regions are derived from the blocks: records do not state how an allocator divides its memory. Empty if there are no
    /// addresses, or if they are too far apart.
    pub(super) fn of(trace: &Trace) -> Self {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (index, event) in trace.events().iter().enumerate() {
            let address = trace.origin(index).address;
            if let (Event::Alloc { size_bytes, .. }, 1..) = (event, address) {
                let end = address
                    .saturating_add((*size_bytes).max(1))
                    .div_ceil(PAGE_BYTES)
                    .saturating_mul(PAGE_BYTES);
                ranges.push((address / PAGE_BYTES * PAGE_BYTES, end));
            }
        }
        ranges.sort_unstable();
        ranges.dedup();
        let mut regions: Vec<(u64, u64)> = Vec::new();
        for (start, end) in ranges {
            match regions.last_mut() {
                Some((_, last)) if start <= *last => *last = (*last).max(end),
                _ => regions.push((start, end)),
            }
        }
        let base = regions.first().map_or(0, |(start, _)| *start);
        let end = regions.last().map_or(0, |(_, end)| *end);
        if end - base > NUMBER_MAX / 4 {
            return Self { base: 0, regions: Vec::new() };
        }
        regions.iter_mut().for_each(|(start, end)| (*start, *end) = (*start - base, *end - base));
        Self { base, regions }
    }

    /// The address of a block, counted from 1; 0 for none.
    fn place(&self, address: u64) -> u64 {
        if address < self.base || address == 0 { 0 } else { address - self.base + 1 }
    }
}

const PAGE_BYTES: u64 = 2 << 20;
const GROWTH_COUNT_MAX: usize = 20;
const HOLDER_COUNT_MAX: usize = 10;

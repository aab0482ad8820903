//! [`Origin`]: what a record states of a block beside its size and stream.

/// What a record states of a block, or of a refused request, beside its size and stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The address that the block had; 0 if the record does not state it.
    pub address: u64,
    /// The index into [`Trace::tags`](super::Trace::tags); `None` if the record has no tags.
    pub tag: Option<u32>,
    /// The innermost node in [`Trace::stacks`](super::Trace::stacks); `None` if the record does not state the stack.
    pub stack: Option<u32>,
}

/// The origins of all events.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins {
    /// The time of each event since the first one; empty if the record has no times.
    pub(super) times_ns: Vec<u64>,
    /// The block of each event.
    pub(super) blocks: Vec<u32>,
    pub(super) of_blocks: Vec<Origin>,
}

impl Origins {
    pub(super) fn of(&self, event: usize) -> Origin {
        self.blocks.get(event).map_or_else(Origin::default, |block| self.of_blocks[*block as usize])
    }

    /// Replaces the number that the reader gave to each tag by its place in the sorted list.
    pub(super) fn renumber_tags(&mut self, places: &[u32]) {
        for origin in &mut self.of_blocks {
            origin.tag = origin.tag.and_then(|tag| places.get(tag as usize).copied());
        }
    }
}

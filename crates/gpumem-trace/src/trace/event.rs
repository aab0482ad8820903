//! [`Event`]: one step of a trace; [`Peaks`]: the most that was live at a time.

/// One event of a trace, in 16 bytes.
///
/// Each live block has a *slot*, which is reused after its free, so that a table of [`Trace::slot_count`](super::Trace::slot_count) entries
/// holds all live blocks.
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

/// The peaks of live memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Blocks count from their allocation to their free.
    pub live_bytes: u64,
    /// Blocks count from their allocation until all work that used them is complete.
    pub live_incl_deferred_bytes: u64,
}

impl Peaks {
    /// Computes the peaks. A malicious file can defer more bytes than a `u64` can count.
    pub(super) fn of(events: &[Event], slot_count: u32) -> Self {
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
        Self { live_bytes: counted(live_peak_bytes), live_incl_deferred_bytes: counted(sum_peak_bytes) }
    }
}

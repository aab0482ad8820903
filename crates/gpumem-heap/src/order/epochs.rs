//! [`Epochs`]: for each slot its epoch, what is ordered before its next operation, and what of it is complete. Pure.
//!
//! A slot's *epoch* counts the marks made on its stream. A stamp is the slot and the epoch at one moment: it stands for
//! everything queued on the stream by then. To *close* an epoch is to raise the count and only then to mark the stream
//! (an event, or a wait of the host): whoever read the old count had queued his work before, so the mark covers it. The
//! other way round, work queued behind the mark could still be stamped with the old count.
//!
//! `order[t][s] >= e`: everything stamped up to `e` on `s` is ordered before the next operation on `t`.
//! `complete[s] >= e`: everything stamped up to `e` on `s` is done. Neither ever goes back, and
//! epochs never start over: what was known of a slot's former stream stays true.

use super::{Order, Stamp, StreamId, StreamIndex};
use crate::sync::{LoomAtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The clocks of all slots of one machine. Rows are made when a slot is first used, so that reading needs no lock.
pub struct Epochs {
    rows: Box<[OnceLock<Box<Row>>]>,
}

impl Default for Epochs {
    fn default() -> Self {
        Self { rows: (0..StreamIndex::COUNT_MAX).map(|_| OnceLock::new()).collect() }
    }
}

/// One slot's clocks. Apart from other rows: a free reads `epoch` while other streams' rows are written.
#[repr(align(64))]
struct Row {
    epoch: LoomAtomicU64,
    complete: LoomAtomicU64,
    /// The stream that has the slot, or had it last.
    stream: LoomAtomicU64,
    /// By slot, in chunks that are made when first raised; a missing one knows nothing.
    order: Box<[OnceLock<Chunk>]>,
}

type Chunk = Box<[LoomAtomicU64]>;

/// What a check has found: of each clock, by its name, the slot that has it and the slot that it is about.
pub type Seen = BTreeMap<(&'static str, u16, u16), u64>;

impl Epochs {
    /// Epochs of streams of which none has queued anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stands for everything queued on the slot's stream by now.
    #[inline]
    pub fn stamp(&self, slot: StreamIndex) -> Stamp {
        // Acquire: whoever sees the new count also sees what made it safe to raise it.
        Stamp::new(slot, self.row(slot).epoch.load(Ordering::Acquire))
    }

    /// The same, or [`Stamp::COMPLETE`] if the stream's slot has gone to another: then its work is complete.
    #[inline]
    pub fn stamp_of(&self, stream: StreamId) -> Stamp {
        let stamp = self.stamp(stream.slot());
        if self.stream_in(stream.slot()) == stream { stamp } else { Stamp::COMPLETE }
    }

    /// The stream that has an index, or had it last.
    #[inline]
    pub fn stream_in(&self, slot: StreamIndex) -> StreamId {
        StreamId::from_u64(self.row(slot).stream.load(Ordering::Acquire))
    }

    /// Gives a slot to a new stream, in a new epoch, when all of the former one's work is complete. So is all that was
    /// ordered before that, which therefore stays ordered before the new one.
    pub fn open(&self, stream: StreamId) {
        let row = self.row(stream.slot());
        row.stream.store(stream.as_u64(), Ordering::Release);
        row.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Closes the current epoch and returns what a mark made from now on covers: that epoch, and all that is ordered
    /// before the slot's next operation. `None` once the count is exhausted, after years.
    pub fn close(&self, slot: StreamIndex) -> Option<Box<[Stamp]>> {
        let epoch = &self.row(slot).epoch;
        // The margin is for threads that pass the check together.
        if epoch.load(Ordering::Relaxed) >= Stamp::EPOCH_MAX - u64::from(u16::MAX) {
            return None;
        }
        let closed = epoch.fetch_add(1, Ordering::AcqRel);
        Some(self.covered(Stamp::new(slot, closed)))
    }

    /// The same for a stream on which nothing will be queued any more: the epoch stays, so that frees that come later
    /// are stamped with what the last mark covers.
    pub fn close_for_good(&self, slot: StreamIndex) -> Box<[Stamp]> {
        self.covered(self.stamp(slot))
    }

    /// Read before the mark is made: what is raised later may belong to waits that are queued behind it.
    fn covered(&self, own: Stamp) -> Box<[Stamp]> {
        let known = self.known(own.slot()).filter(|stamp| !self.is_complete(*stamp));
        core::iter::once(own).chain(known).collect()
    }

    /// What is ordered before the slot's next operation.
    fn known(&self, slot: StreamIndex) -> impl Iterator<Item = Stamp> {
        let chunks = self.row(slot).order.iter().enumerate();
        chunks.filter_map(|(index, chunk)| Some((index, chunk.get()?))).flat_map(|(index, chunk)| {
            chunk.iter().enumerate().filter_map(move |(at, count)| {
                let epoch = count.load(Ordering::Acquire);
                (epoch > 0).then(|| Stamp::new(StreamIndex((index * CHUNK_LENGTH + at) as u16), epoch))
            })
        })
    }

    /// `waiter` has been made to wait for a mark that covers these.
    pub fn raise_order(&self, waiter: StreamIndex, covered: &[Stamp]) {
        for stamp in covered {
            let chunk = &self.row(waiter).order[usize::from(stamp.slot().0) / CHUNK_LENGTH];
            let chunk = chunk.get_or_init(|| (0..CHUNK_LENGTH).map(|_| LoomAtomicU64::new(0)).collect());
            chunk[usize::from(stamp.slot().0) % CHUNK_LENGTH].fetch_max(stamp.epoch(), Ordering::AcqRel);
        }
    }

    /// A mark that covers these has been passed. Says whether that was news.
    pub fn raise_complete(&self, covered: &[Stamp]) -> bool {
        covered.iter().fold(false, |news, stamp| {
            let before = self.row(stamp.slot()).complete.fetch_max(stamp.epoch(), Ordering::AcqRel);
            news | (before < stamp.epoch())
        })
    }

    /// Whether no clock has gone back since `seen` was filled, and none is ahead of the epoch of the slot that it is about:
    /// says the first that has or is. Others may raise clocks meanwhile, which is why an epoch is read last.
    pub fn check(&self, slot_count: usize, seen: &mut Seen) -> Result<(), String> {
        for slot in (0..slot_count).map(|slot| StreamIndex(slot as u16)) {
            let complete = Stamp::new(slot, self.row(slot).complete.load(Ordering::Acquire));
            let known = self.known(slot).map(|stamp| ("ordered before it", stamp));
            for (what, stamp) in core::iter::once(("complete", complete)).chain(known) {
                let (of, count, epoch) = (stamp.slot().0, stamp.epoch(), self.stamp(stamp.slot()).epoch());
                if count > epoch {
                    return Err(format!("slot {}: {count} of slot {of} is {what}, in epoch {epoch}", slot.0));
                }
                for (what, of, count) in [(what, of, count), ("epoch", of, epoch)] {
                    let before = seen.insert((what, slot.0, of), count).unwrap_or(0);
                    if before > count {
                        return Err(format!(
                            "slot {}: {what} went back, {before} to {count} of {of}",
                            slot.0
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn ordered_epoch(&self, slot: StreamIndex, before: StreamIndex) -> u64 {
        if before == StreamIndex::HOST {
            return 0;
        }
        let chunk = self.row(before).order[usize::from(slot.0) / CHUNK_LENGTH].get();
        chunk.map_or(0, |chunk| chunk[usize::from(slot.0) % CHUNK_LENGTH].load(Ordering::Acquire))
    }

    #[inline]
    fn row(&self, slot: StreamIndex) -> &Row {
        self.rows[usize::from(slot.0) % StreamIndex::COUNT_MAX].get_or_init(Row::new)
    }
}

impl Order for Epochs {
    #[inline]
    fn is_ordered(&self, stamp: Stamp, before: StreamIndex) -> bool {
        stamp.slot() == before
            || self.is_complete(stamp)
            || self.ordered_epoch(stamp.slot(), before) >= stamp.epoch()
    }

    #[inline]
    fn is_complete(&self, stamp: Stamp) -> bool {
        // Acquire: what is queued after a yes comes after the work that it is about.
        self.row(stamp.slot()).complete.load(Ordering::Acquire) >= stamp.epoch()
    }
}

impl Row {
    fn new() -> Box<Self> {
        Box::new(Self {
            // Epoch 0 is complete from the start, which makes the empty stamp so.
            epoch: LoomAtomicU64::new(1),
            complete: LoomAtomicU64::new(0),
            stream: LoomAtomicU64::new(0),
            order: (0..StreamIndex::COUNT_MAX.div_ceil(CHUNK_LENGTH)).map(|_| OnceLock::new()).collect(),
        })
    }
}

const CHUNK_LENGTH: usize = 64;

//! [`Epochs`]: the logical clocks of all streams. For each stream its epoch, the epochs ordered before its next operation, and the
//! epoch up to which it is complete. These are vector clocks (Mattern, "Virtual time and global states of distributed systems",
//! 1989) whose components grow only when a marker is made.
//!
//! A stream's *epoch* counts the markers made in it. A stamp is the stream's index and its epoch at one moment: it stands for everything
//! queued on the stream by then. Closing an epoch means raising the count first and then making the marker (an event, or a wait of the
//! host). The driver serialises the calls on one stream, so a thread that queued work behind the marker also reads the raised count; a
//! thread that read the old count queued its work before the marker, which covers it. In the other order, work queued behind the marker
//! could still get a stamp with the old count.
//!
//! `order[t][s] >= e`: everything stamped up to `e` on `s` is ordered before the next operation on `t`. `complete[s] >= e`: everything
//! stamped up to `e` on `s` is complete. Neither ever decreases, and an index that passes to another stream keeps its epochs, so facts
//! about the former stream stay true.

use super::{Order, Stamp, StreamId, StreamIndex};
use crate::sync::{LoomAtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The clocks of all streams of one machine. A stream's row is made at its first use, so reading needs no lock.
pub struct Epochs {
    rows: Box<[OnceLock<Box<EpochRow>>]>,
}

impl Default for Epochs {
    fn default() -> Self {
        Self { rows: (0..StreamIndex::COUNT_MAX).map(|_| OnceLock::new()).collect() }
    }
}

/// The clocks of one stream, on separate cache lines: a free reads `epoch` while other streams' rows are written.
#[repr(align(64))]
struct EpochRow {
    epoch: LoomAtomicU64,
    complete: LoomAtomicU64,
    /// The stream that has the index, or had it last.
    stream: LoomAtomicU64,
    /// By the other stream's index, in chunks that are made when first raised; a missing chunk counts as zeros.
    order: Box<[OnceLock<EpochChunk>]>,
}

type EpochChunk = Box<[LoomAtomicU64]>;

/// The clock values that [`Epochs::check`] read, by the name of the clock, its stream, and the stream that it refers to.
pub type Seen = BTreeMap<(&'static str, u16, u16), u64>;

impl Epochs {
    /// Creates clocks for streams without queued work.
    pub fn new() -> Self {
        Self::default()
    }

    /// The stamp of everything queued on the stream by now.
    #[inline]
    pub fn stamp(&self, index: StreamIndex) -> Stamp {
        // Acquire: a thread that reads the new count also sees the changes that made it safe to raise it.
        Stamp::new(index, self.row(index).epoch.load(Ordering::Acquire))
    }

    /// Like [`Epochs::stamp`]; [`Stamp::COMPLETE`] if the stream's index has passed to another stream, because then its work is
    /// complete.
    #[inline]
    pub fn stamp_of(&self, stream: StreamId) -> Stamp {
        let (index, row) = (stream.stream_index(), self.row(stream.stream_index()));
        // The loads of `stamp` and of `stream_in`, in this order.
        let stamp = Stamp::new(index, row.epoch.load(Ordering::Acquire));
        let user = StreamId::from_u64(row.stream.load(Ordering::Acquire));
        if user == stream { stamp } else { Stamp::COMPLETE }
    }

    /// The stream that has an index, or had it last.
    #[inline]
    pub fn stream_in(&self, index: StreamIndex) -> StreamId {
        StreamId::from_u64(self.row(index).stream.load(Ordering::Acquire))
    }

    /// Gives an index to a new stream, in a new epoch. All work of the former stream is complete, and so is everything ordered
    /// before it, which therefore stays ordered before the new stream.
    pub fn open(&self, stream: StreamId) {
        let row = self.row(stream.stream_index());
        row.stream.store(stream.as_u64(), Ordering::Release);
        row.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Closes the current epoch, and returns the stamps that a marker made from now on covers: that epoch, and everything ordered
    /// before the stream's next operation. `None` once the count is exhausted, after years.
    pub fn close(&self, index: StreamIndex) -> Option<Box<[Stamp]>> {
        let epoch = &self.row(index).epoch;
        // The margin covers threads that pass the check at the same time.
        if epoch.load(Ordering::Relaxed) >= Stamp::EPOCH_MAX - u64::from(u16::MAX) {
            return None;
        }
        let closed = epoch.fetch_add(1, Ordering::AcqRel);
        Some(self.covered(Stamp::new(index, closed)))
    }

    /// Like [`Epochs::close`], for a stream on which no more work will be queued. The epoch stays, so that later frees are stamped
    /// with an epoch that the last marker covers.
    pub fn close_for_good(&self, index: StreamIndex) -> Box<[Stamp]> {
        self.covered(self.stamp(index))
    }

    /// Read before the marker is made: what is raised later may belong to waits that are queued behind it.
    fn covered(&self, own: Stamp) -> Box<[Stamp]> {
        let known = self.known(own.stream_index()).filter(|stamp| !self.is_complete(*stamp));
        core::iter::once(own).chain(known).collect()
    }

    /// The stamps that are ordered before the stream's next operation.
    fn known(&self, index: StreamIndex) -> impl Iterator<Item = Stamp> {
        let chunks = self.row(index).order.iter().enumerate();
        chunks.filter_map(|(index, chunk)| Some((index, chunk.get()?))).flat_map(|(index, chunk)| {
            chunk.iter().enumerate().filter_map(move |(at, count)| {
                let epoch = count.load(Ordering::Acquire);
                (epoch > 0).then(|| Stamp::new(StreamIndex((index * CHUNK_LENGTH + at) as u16), epoch))
            })
        })
    }

    /// Notes that `waiter` has been made to wait for a marker that covers these stamps.
    pub fn raise_order(&self, waiter: StreamIndex, covered: &[Stamp]) {
        for stamp in covered {
            let chunk = self.row(waiter).order.get(usize::from(stamp.stream_index().0) / CHUNK_LENGTH);
            let Some(chunk) = chunk else { continue };
            let chunk = chunk.get_or_init(|| (0..CHUNK_LENGTH).map(|_| LoomAtomicU64::new(0)).collect());
            chunk[usize::from(stamp.stream_index().0) % CHUNK_LENGTH]
                .fetch_max(stamp.epoch(), Ordering::AcqRel);
        }
    }

    /// Notes that a marker that covers these stamps is complete. Returns true if this was not known before.
    pub fn raise_complete(&self, covered: &[Stamp]) -> bool {
        covered.iter().fold(false, |news, stamp| {
            let before = self.row(stamp.stream_index()).complete.fetch_max(stamp.epoch(), Ordering::AcqRel);
            news | (before < stamp.epoch())
        })
    }

    /// Compares all clocks with `seen`, and updates it. Other threads may raise clocks at the same time, so each epoch is read
    /// last.
    ///
    /// # Errors
    ///
    /// A description of the first clock that went back, or that is ahead of the epoch of the stream that it refers to.
    pub fn check(&self, index_count: usize, seen: &mut Seen) -> Result<(), String> {
        for index in (0..index_count).map(|index| StreamIndex(index as u16)) {
            let complete = Stamp::new(index, self.row(index).complete.load(Ordering::Acquire));
            let known = self.known(index).map(|stamp| ("ordered before it", stamp));
            for (what, stamp) in core::iter::once(("complete", complete)).chain(known) {
                let (of, count, epoch) =
                    (stamp.stream_index().0, stamp.epoch(), self.stamp(stamp.stream_index()).epoch());
                if count > epoch {
                    return Err(format!(
                        "stream {}: {count} of stream {of} is {what}, in epoch {epoch}",
                        index.0
                    ));
                }
                for (what, of, count) in [(what, of, count), ("epoch", of, epoch)] {
                    let before = seen.insert((what, index.0, of), count).unwrap_or(0);
                    if before > count {
                        return Err(format!(
                            "stream {}: {what} went back from {before} to {count} of stream {of}",
                            index.0
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn ordered_epoch(&self, index: StreamIndex, before: StreamIndex) -> u64 {
        if before == StreamIndex::HOST {
            return 0;
        }
        let chunk = self.row(before).order.get(usize::from(index.0) / CHUNK_LENGTH).and_then(OnceLock::get);
        chunk.map_or(0, |chunk| chunk[usize::from(index.0) % CHUNK_LENGTH].load(Ordering::Acquire))
    }

    #[inline]
    fn row(&self, index: StreamIndex) -> &EpochRow {
        self.rows[usize::from(index.0) % StreamIndex::COUNT_MAX].get_or_init(EpochRow::new)
    }
}

impl Order for Epochs {
    #[inline]
    fn is_ordered(&self, stamp: Stamp, before: StreamIndex) -> bool {
        stamp.stream_index() == before
            || self.is_complete(stamp)
            || self.ordered_epoch(stamp.stream_index(), before) >= stamp.epoch()
    }

    #[inline]
    fn is_complete(&self, stamp: Stamp) -> bool {
        // Acquire: what is queued after a `true` comes after the work that it is about.
        self.row(stamp.stream_index()).complete.load(Ordering::Acquire) >= stamp.epoch()
    }
}

impl EpochRow {
    fn new() -> Box<Self> {
        Box::new(Self {
            // Epoch 0 is complete from the start, which makes [`Stamp::COMPLETE`] so.
            epoch: LoomAtomicU64::new(1),
            complete: LoomAtomicU64::new(0),
            stream: LoomAtomicU64::new(0),
            order: (0..StreamIndex::COUNT_MAX.div_ceil(CHUNK_LENGTH)).map(|_| OnceLock::new()).collect(),
        })
    }
}

const CHUNK_LENGTH: usize = 64;

//! [`FreeState`] and [`StampSets`]: the uses that a free record waits for.
//!
//! Nearly every free waits for one stream, and carries one stamp. A free of a block that several streams used carries a set of
//! stamps, which is kept here once and shared by the records that were split from it.

use gpumem_base::order::{Order, Stamp, StreamIndex};

/// The streams that may use a free record without a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreeState {
    /// Every stream may use it: the last use is complete.
    Ready,
    /// Several streams used it last, so none may use it unchecked. The record's stamp names a set.
    MultiStream,
    /// This stream may use it; the other streams check the record's stamp.
    OneStream(StreamIndex),
}

impl FreeState {
    /// The only stream that may use the record without a check.
    pub(super) fn stream_index(self) -> Option<StreamIndex> {
        match self {
            Self::OneStream(stream) => Some(stream),
            Self::Ready | Self::MultiStream => None,
        }
    }

    /// The place of the state's lists in a [`Space`](super::space::Space).
    pub(super) fn index(self) -> usize {
        match self {
            Self::Ready => 0,
            Self::MultiStream => 1,
            Self::OneStream(stream) => usize::from(stream.0) + 2,
        }
    }
}

/// The state of a free record, and its stamp: of the one stream, or the name of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingUses {
    pub(super) state: FreeState,
    pub(super) stamp: Stamp,
}

impl PendingUses {
    pub(super) const READY: Self = Self { state: FreeState::Ready, stamp: Stamp::COMPLETE };
}

/// The sets of stamps in use, with reference counts.
#[derive(Debug, Default)]
pub(super) struct StampSets {
    list: Vec<(u32, Box<[Stamp]>)>,
    unused: Vec<usize>,
}

impl StampSets {
    /// The pending uses of a free.
    pub(super) fn pending(&mut self, uses: &[Stamp]) -> PendingUses {
        let mut stamps: Vec<Stamp> = uses.iter().copied().filter(|stamp| *stamp != Stamp::COMPLETE).collect();
        join(&mut stamps, &[]);
        match stamps[..] {
            [] => PendingUses::READY,
            [stamp] => PendingUses { state: FreeState::OneStream(stamp.stream_index()), stamp },
            _ => PendingUses { state: FreeState::MultiStream, stamp: self.add(stamps.into()) },
        }
    }

    fn add(&mut self, stamps: Box<[Stamp]>) -> Stamp {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.list.push((0, Box::default()));
            self.list.len() - 1
        });
        self.list[index] = (1, stamps);
        Stamp::new(StreamIndex(0), index as u64)
    }

    /// Notes that one more record carries a set.
    pub(super) fn share(&mut self, pending: PendingUses) {
        if pending.state == FreeState::MultiStream {
            self.list[index(pending.stamp)].0 += 1;
        }
    }

    /// Notes that one record fewer carries a set.
    pub(super) fn drop(&mut self, pending: PendingUses) {
        if pending.state != FreeState::MultiStream {
            return;
        }
        let entry = &mut self.list[index(pending.stamp)];
        entry.0 -= 1;
        if entry.0 == 0 {
            entry.1 = Box::default();
            self.unused.push(index(pending.stamp));
        }
    }

    /// All stamps that a record waits for.
    pub(super) fn stamps<'a>(&'a self, pending: &'a PendingUses) -> &'a [Stamp] {
        match pending.state {
            FreeState::Ready => &[],
            FreeState::MultiStream => &self.list[index(pending.stamp)].1,
            _ => core::slice::from_ref(&pending.stamp),
        }
    }

    /// True if work queued on `stream` from now on may use a record that carries this.
    pub(super) fn is_usable(&self, pending: PendingUses, stream: StreamIndex, order: &impl Order) -> bool {
        pending.state == FreeState::Ready
            || pending.state == FreeState::OneStream(stream)
            || self.stamps(&pending).iter().all(|stamp| order.is_ordered(*stamp, stream))
    }

    pub(super) fn is_complete(&self, pending: PendingUses, order: &impl Order) -> bool {
        self.stamps(&pending).iter().all(|stamp| order.is_complete(*stamp))
    }

    /// The number of records that carry each set, for [`super::check`].
    pub(super) fn shares(&self) -> impl Iterator<Item = (Stamp, u32)> {
        let named = |(index, entry): (usize, &(u32, Box<[Stamp]>))| {
            (Stamp::new(StreamIndex(0), index as u64), entry.0)
        };
        self.list.iter().enumerate().map(named)
    }

    pub(super) fn size_bytes(&self) -> usize {
        let stamps: usize = self.list.iter().map(|(_, stamps)| size_of_val::<[Stamp]>(stamps)).sum();
        self.list.capacity() * size_of::<(u32, Box<[Stamp]>)>() + stamps
    }
}

/// Adds stamps to a list that holds the latest stamp of each stream.
pub(super) fn join(stamps: &mut Vec<Stamp>, more: &[Stamp]) {
    stamps.extend_from_slice(more);
    // After sorting, the latest stamp of a stream is its last.
    stamps.sort_unstable();
    stamps.reverse();
    stamps.dedup_by_key(|stamp| stamp.stream_index());
}

fn index(name: Stamp) -> usize {
    name.epoch() as usize
}

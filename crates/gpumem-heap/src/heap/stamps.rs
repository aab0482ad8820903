//! [`Owner`] and [`Sets`]: what a free stretch waits for.
//!
//! Nearly every free waits for one stream, and carries one stamp. One that several streams used carries a set, which is
//! kept here once and shared by the records that were split from it.

use crate::order::{Order, Stamp, StreamIndex};

/// Who may have a free stretch without asking the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u16);

impl Owner {
    /// Anybody: its last use is complete.
    pub(super) const READY: Self = Self(0);
    /// Nobody: several streams used it last; the record's stamp names a set.
    pub(super) const MULTI_STREAM: Self = Self(1);

    /// What this stream frees, and what it takes first.
    pub(super) fn of(slot: StreamIndex) -> Self {
        Self(slot.0.saturating_add(2))
    }

    /// Whose it is.
    pub(super) fn slot(self) -> Option<StreamIndex> {
        self.0.checked_sub(2).map(StreamIndex)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// An owner and the word that goes with it: a stamp, or the name of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) owner: Owner,
    pub(super) stamp: Stamp,
}

impl Pending {
    pub(super) const READY: Self = Self { owner: Owner::READY, stamp: Stamp::COMPLETE };
}

/// The sets of stamps that are in use, counted.
#[derive(Debug, Default)]
pub(super) struct Sets {
    list: Vec<(u32, Box<[Stamp]>)>,
    unused: Vec<usize>,
}

impl Sets {
    /// What a free that covers these uses waits for.
    pub(super) fn pending(&mut self, uses: &[Stamp]) -> Pending {
        let mut stamps: Vec<Stamp> = uses.iter().copied().filter(|stamp| *stamp != Stamp::COMPLETE).collect();
        join(&mut stamps, &[]);
        match stamps[..] {
            [] => Pending::READY,
            [stamp] => Pending { owner: Owner::of(stamp.slot()), stamp },
            _ => Pending { owner: Owner::MULTI_STREAM, stamp: self.add(stamps.into()) },
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

    /// One more record carries it.
    pub(super) fn share(&mut self, pending: Pending) {
        if pending.owner == Owner::MULTI_STREAM {
            self.list[index(pending.stamp)].0 += 1;
        }
    }

    /// One record fewer carries it.
    pub(super) fn drop(&mut self, pending: Pending) {
        if pending.owner != Owner::MULTI_STREAM {
            return;
        }
        let entry = &mut self.list[index(pending.stamp)];
        entry.0 -= 1;
        if entry.0 == 0 {
            entry.1 = Box::default();
            self.unused.push(index(pending.stamp));
        }
    }

    /// All of what it waits for.
    pub(super) fn stamps<'a>(&'a self, pending: &'a Pending) -> &'a [Stamp] {
        match pending.owner {
            Owner::READY => &[],
            Owner::MULTI_STREAM => &self.list[index(pending.stamp)].1,
            _ => core::slice::from_ref(&pending.stamp),
        }
    }

    /// Whether work queued on `slot` from now on may touch what carries this.
    pub(super) fn is_usable(&self, pending: Pending, slot: StreamIndex, order: &impl Order) -> bool {
        pending.owner == Owner::READY
            || pending.owner == Owner::of(slot)
            || self.stamps(&pending).iter().all(|stamp| order.is_ordered(*stamp, slot))
    }

    pub(super) fn is_complete(&self, pending: Pending, order: &impl Order) -> bool {
        self.stamps(&pending).iter().all(|stamp| order.is_complete(*stamp))
    }

    /// How many records carry each set, for [`super::check`].
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

/// Adds stamps to a list that holds the latest of each stream.
pub(super) fn join(stamps: &mut Vec<Stamp>, more: &[Stamp]) {
    stamps.extend_from_slice(more);
    // Sorted, the latest of a stream is its last.
    stamps.sort_unstable();
    stamps.reverse();
    stamps.dedup_by_key(|stamp| stamp.slot());
}

fn index(name: Stamp) -> usize {
    name.epoch() as usize
}

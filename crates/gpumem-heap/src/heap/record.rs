//! [`Records`]: the host's description of each address range.
//!
//! Records tile each space without a break. A record is live (a block), free (with memory resident there), or a gap (without). Records know
//! their neighbours by address (boundary tags: Knuth, "The Art of Computer Programming", vol. 1, 2.5), so that a free needs no search, and
//! a free record is in the list of its size. A record takes 48 bytes, and keeps its index while its block lives.

use super::stamps::{FreeState, PendingUses, StampSets};
use gpumem_base::order::Stamp;

/// No record.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// Unused; waits to be used again.
    Unused,
    Live,
    Free,
    Gap,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RangeRecord {
    /// Offset from the start of the space.
    pub(super) start: u64,
    pub(super) size_bytes: u64,
    /// For a free record: the stamp of its last uses, or the name of a set of stamps; `state` distinguishes them.
    pub(super) stamp: Stamp,
    /// Neighbours by address.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Neighbours in the list of a size.
    pub(super) list_prev: u32,
    pub(super) list_next: u32,
    pub(super) state: FreeState,
    pub(super) kind: RecordKind,
    /// The space that it lies in.
    pub(super) space: u8,
}

const _: () = assert!(size_of::<RangeRecord>() <= 48);

impl RangeRecord {
    pub(super) fn end(&self) -> u64 {
        self.start + self.size_bytes
    }

    /// The uses that a free record waits for.
    pub(super) fn pending(&self) -> PendingUses {
        PendingUses { state: self.state, stamp: self.stamp }
    }

    /// True if two neighbours can be merged: two gaps, or two free records that wait for the same uses.
    pub(super) fn joins(&self, other: &Self) -> bool {
        match (self.kind, other.kind) {
            (RecordKind::Gap, RecordKind::Gap) => true,
            (RecordKind::Free, RecordKind::Free) => {
                self.state == other.state
                    && (self.state != FreeState::MultiStream || self.stamp == other.stamp)
            }
            _ => false,
        }
    }
}

/// All records of a heap, and the sets of stamps that some of them need.
#[derive(Debug)]
pub(super) struct Records {
    list: Vec<RangeRecord>,
    /// The first unused record; they are linked by `next`.
    unused: u32,
    unused_count: usize,
    pub(super) stamp_sets: StampSets,
}

impl Records {
    pub(super) fn new() -> Self {
        Self { list: Vec::new(), unused: NONE, unused_count: 0, stamp_sets: StampSets::default() }
    }

    pub(super) fn add(&mut self, record: RangeRecord) -> u32 {
        if self.unused == NONE {
            self.list.push(record);
            return (self.list.len() - 1) as u32;
        }
        let id = self.unused;
        self.unused = self[id].next;
        self.unused_count -= 1;
        self[id] = record;
        id
    }

    pub(super) fn remove(&mut self, id: u32) {
        let unused = self.unused;
        let record = &mut self[id];
        record.kind = RecordKind::Unused;
        record.next = unused;
        self.unused = id;
        self.unused_count += 1;
    }

    pub(super) fn get(&self, id: u32) -> Option<&RangeRecord> {
        self.list.get(id as usize).filter(|record| record.kind != RecordKind::Unused)
    }

    pub(super) fn live(&self) -> impl Iterator<Item = &RangeRecord> {
        self.list.iter().filter(|record| record.kind == RecordKind::Live)
    }

    /// The number of records in use.
    pub(super) fn count(&self) -> usize {
        self.list.len() - self.unused_count
    }

    /// The host memory of the records.
    pub(super) fn size_bytes(&self) -> usize {
        self.list.capacity() * size_of::<RangeRecord>() + self.stamp_sets.size_bytes()
    }
}

impl core::ops::Index<u32> for Records {
    type Output = RangeRecord;

    fn index(&self, id: u32) -> &RangeRecord {
        &self.list[id as usize]
    }
}

impl core::ops::IndexMut<u32> for Records {
    fn index_mut(&mut self, id: u32) -> &mut RangeRecord {
        &mut self.list[id as usize]
    }
}

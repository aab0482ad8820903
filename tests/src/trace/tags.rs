//! [`TagSum`]: what a recorded program allocated for each of its tags.

use crate::pool::trace::Recording;
use std::collections::{BTreeSet, HashMap};

/// What a recorded program allocated for a tag: the name of a scope, in whatever pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagSum {
    /// The name; nothing for what had none.
    pub tag: Option<String>,
    /// Blocks.
    pub allocation_count: u64,
    /// The sum of their sizes.
    pub allocated_bytes: u64,
    /// The most bytes there were at a time.
    pub peak_bytes: u64,
    /// The bytes that were never freed.
    pub left_bytes: u64,
}

/// Counts while a recording is read.
#[derive(Default)]
pub(super) struct TagSums {
    sums: Vec<TagSum>,
    /// Places among them by name.
    by_name: HashMap<Option<String>, usize>,
    /// By pool and number.
    by_number: HashMap<(u32, u32), usize>,
    nameless: BTreeSet<(u32, u32)>,
}

impl TagSums {
    /// The place of a pool's tag.
    pub(super) fn place(&mut self, recording: &Recording, pool: u32, tag: u32) -> usize {
        if let Some(place) = self.by_number.get(&(pool, tag)) {
            return *place;
        }
        let name = (tag != 0).then(|| match recording.tag(pool, tag) {
            Some(name) => name.into(),
            None => {
                self.nameless.insert((pool, tag));
                format!("tag {tag} of pool {pool}, without a name")
            }
        });
        let place = *self.by_name.entry(name.clone()).or_insert(self.sums.len());
        if place == self.sums.len() {
            let (allocation_count, allocated_bytes, peak_bytes, left_bytes) = (0, 0, 0, 0);
            self.sums.push(TagSum { tag: name, allocation_count, allocated_bytes, peak_bytes, left_bytes });
        }
        self.by_number.insert((pool, tag), place);
        place
    }

    /// A file that was made to harm may say more than can be counted.
    pub(super) fn grow(&mut self, place: usize, size_bytes: u64, is_new: bool) {
        let sum = &mut self.sums[place];
        sum.allocation_count += u64::from(is_new);
        sum.allocated_bytes = sum.allocated_bytes.saturating_add(size_bytes);
        sum.left_bytes = sum.left_bytes.saturating_add(size_bytes);
        sum.peak_bytes = sum.peak_bytes.max(sum.left_bytes);
    }

    pub(super) fn free(&mut self, place: usize, size_bytes: u64) {
        let sum = &mut self.sums[place];
        sum.left_bytes = sum.left_bytes.saturating_sub(size_bytes);
    }

    /// Those with the highest peaks first; nothing where no tag was ever used. And what is wrong.
    pub(super) fn finish(mut self) -> (Vec<TagSum>, Option<String>) {
        if self.sums.iter().all(|sum| sum.tag.is_none()) {
            self.sums.clear();
        }
        self.sums.sort_by(|a, b| (b.peak_bytes, &a.tag).cmp(&(a.peak_bytes, &b.tag)));
        let first = self.nameless.first();
        let note = first.map(|(pool, tag)| {
            let count = self.nameless.len();
            format!("{count} tags have no name in the file, the first of them tag {tag} of pool {pool}")
        });
        (self.sums, note)
    }
}

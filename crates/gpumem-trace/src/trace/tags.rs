//! [`TagSum`]: the memory that a recorded program allocated for each of its tags.

use gpumem_pool::trace::Recording;
use std::collections::{BTreeSet, HashMap};

/// The allocations of a recorded program with one tag, which is the name of a scope, over all pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagSum {
    /// The name; `None` for blocks without a tag.
    pub tag: Option<String>,
    /// The number of blocks.
    pub allocation_count: u64,
    /// The sum of their sizes.
    pub allocated_bytes: u64,
    /// The peak of live bytes.
    pub peak_bytes: u64,
    /// The bytes that were never freed.
    pub left_bytes: u64,
}

/// The counters while a recording is read.
#[derive(Default)]
pub(crate) struct TagSums {
    sums: Vec<TagSum>,
    /// The index into `sums`, by name.
    by_name: HashMap<Option<String>, usize>,
    /// The index into `sums`, by pool and number.
    by_number: HashMap<(u32, u32), usize>,
    nameless: BTreeSet<(u32, u32)>,
}

impl TagSums {
    /// The index of a pool's tag.
    pub(crate) fn place(&mut self, recording: &Recording, pool: u32, tag: u32) -> usize {
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
        let place = self.place_of(name);
        self.by_number.insert((pool, tag), place);
        place
    }

    /// The index of a name.
    pub(crate) fn place_of(&mut self, name: Option<String>) -> usize {
        let place = *self.by_name.entry(name.clone()).or_insert(self.sums.len());
        if place == self.sums.len() {
            let (allocation_count, allocated_bytes, peak_bytes, left_bytes) = (0, 0, 0, 0);
            self.sums.push(TagSum { tag: name, allocation_count, allocated_bytes, peak_bytes, left_bytes });
        }
        place
    }

    /// Counts an allocation. The sums saturate, because a malicious file may exceed them.
    pub(crate) fn grow(&mut self, place: usize, size_bytes: u64) {
        let sum = &mut self.sums[place];
        sum.allocation_count += 1;
        sum.allocated_bytes = sum.allocated_bytes.saturating_add(size_bytes);
        sum.left_bytes = sum.left_bytes.saturating_add(size_bytes);
        sum.peak_bytes = sum.peak_bytes.max(sum.left_bytes);
    }

    pub(crate) fn free(&mut self, place: usize, size_bytes: u64) {
        let sum = &mut self.sums[place];
        sum.left_bytes = sum.left_bytes.saturating_sub(size_bytes);
    }

    /// The sums, highest peak first, or an empty list if no tag was used; where each of the numbers of [`TagSums::place`] is in it; and a
    /// note on tags without a name.
    pub(crate) fn finish(self) -> (Vec<TagSum>, Vec<u32>, Option<String>) {
        let Self { mut sums, nameless, .. } = self;
        if sums.iter().all(|sum| sum.tag.is_none()) {
            sums.clear();
        }
        let mut order: Vec<u32> = (0..sums.len() as u32).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&sums[*a as usize], &sums[*b as usize]);
            (b.peak_bytes, &a.tag).cmp(&(a.peak_bytes, &b.tag))
        });
        let mut places = vec![0; order.len()];
        (0..).zip(&order).for_each(|(place, number)| places[*number as usize] = place);
        sums.sort_by(|a, b| (b.peak_bytes, &a.tag).cmp(&(a.peak_bytes, &b.tag)));
        let first = nameless.first();
        let note = first.map(|(pool, tag)| {
            let count = nameless.len();
            format!("{count} tags have no name in the file, the first of them tag {tag} of pool {pool}")
        });
        (sums, places, note)
    }
}

//! The set of streams that have used a block, in one word. Pure.
//!
//! While all indices are low, each is a bit. With a high index, up to five indices are listed. Beyond five, the set is *folded*: a bit
//! stands for every index with one remainder, which causes waits for streams that have not used the block. Low indices are assigned first,
//! so this happens only with many streams and a block with many users.
//!
//! | bits 63, 62, 61 | the rest |
//! | --- | --- |
//! | any, 0, any | a bit for each index up to 61 |
//! | any, 1, 0 | five numbers of 12 bits; a shorter list repeats its first |
//! | any, 1, 1 | a bit for each remainder of 60 |
//!
//! Bit 63 is not an index: it marks a use by a graph; see `GraphMemory`.

use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::order::StreamIndex;

/// Marks a use by a graph.
pub const GRAPH_BIT: u64 = 1 << 63;

/// Adds a stream to a set.
#[inline]
pub fn with(uses: u64, index: StreamIndex) -> u64 {
    if uses & LISTED_BIT == 0 && index.0 < BITS_END {
        return uses | 1 << index.0;
    }
    with_listed(uses, index)
}

/// Adds streams to the set of a block. Relaxed: the block's owner already orders all such calls before the drop.
#[inline]
pub fn add(uses: &AtomicU64, more: u64) {
    let sum = |uses| Some(joined(uses, more)).filter(|sum| *sum != uses);
    let _news = uses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

/// The union of two sets.
#[inline]
pub fn joined(uses: u64, more: u64) -> u64 {
    if (uses | more) & LISTED_BIT == 0 { uses | more } else { joined_listed(uses, more) }
}

#[cold]
fn joined_listed(uses: u64, more: u64) -> u64 {
    let flags = (uses | more) & GRAPH_BIT;
    let sum = match (is_folded(uses), is_folded(more)) {
        (false, false) => exact(more).fold(uses, with),
        _ => folded(uses) | folded(more),
    };
    sum | flags
}

/// The indices in a set, each once: in ascending order or as listed. `index_count` is the number of indices in use.
#[inline]
pub fn indices(uses: u64, index_count: usize) -> impl Iterator<Item = StreamIndex> {
    let is_folded = is_folded(uses);
    let all = if is_folded { 0..index_count as u16 } else { 0..0 };
    let folded = all.filter(move |index| uses >> (index % REMAINDERS) & 1 != 0).map(StreamIndex);
    exact(if is_folded { 0 } else { uses }).chain(folded)
}

#[cold]
fn with_listed(uses: u64, index: StreamIndex) -> u64 {
    if is_folded(uses) {
        return uses | 1 << (index.0 % REMAINDERS);
    }
    if exact(uses).any(|listed| listed == index) {
        return uses;
    }
    let mut all = [index; LIST_LENGTH];
    for (place, listed) in (1..).zip(exact(uses)) {
        match all.get_mut(place) {
            Some(number) => *number = listed,
            None => return folded(uses) | 1 << (index.0 % REMAINDERS),
        }
    }
    let list = all.iter().rev().fold(0, |list, index| list << INDEX_BITS | u64::from(index.0));
    uses & GRAPH_BIT | LISTED_BIT | list
}

/// The indices in a set that is not folded.
fn exact(uses: u64) -> impl Iterator<Item = StreamIndex> {
    let is_listed = uses & LISTED_BIT != 0;
    let bits = (0..BITS_END).filter(move |index| !is_listed && uses >> index & 1 != 0).map(StreamIndex);
    let number = move |place: u32| StreamIndex((uses >> (place * INDEX_BITS)) as u16 & INDEX_MASK);
    let list = (0..LIST_LENGTH as u32)
        .filter(move |place| is_listed && (*place == 0 || number(*place) != number(0)));
    bits.chain(list.map(number))
}

fn folded(uses: u64) -> u64 {
    if is_folded(uses) {
        return uses;
    }
    let bits = exact(uses).fold(0, |bits, index| bits | 1 << (index.0 % REMAINDERS));
    uses & GRAPH_BIT | LISTED_BIT | FOLDED_BIT | bits
}

fn is_folded(uses: u64) -> bool {
    uses & LISTED_BIT != 0 && uses & FOLDED_BIT != 0
}

const LISTED_BIT: u64 = 1 << 62;
const FOLDED_BIT: u64 = 1 << 61;
/// Indices below this have a bit each.
const BITS_END: u16 = 62;
const REMAINDERS: u16 = 60;
const LIST_LENGTH: usize = 5;
const INDEX_BITS: u32 = 12;
const INDEX_MASK: u16 = (1 << INDEX_BITS) - 1;

const _: () = assert!(StreamIndex::COUNT_MAX <= 1 << INDEX_BITS && LIST_LENGTH as u32 * INDEX_BITS <= 61);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn index() -> impl Strategy<Value = u16> {
        prop_oneof![0..8_u16, 50..70_u16, 0..StreamIndex::COUNT_MAX as u16]
    }

    fn set(uses: u64) -> BTreeSet<u16> {
        let all: Vec<u16> = indices(uses, StreamIndex::COUNT_MAX).map(|index| index.0).collect();
        let set: BTreeSet<u16> = all.iter().copied().collect();
        assert_eq!(set.len(), all.len(), "each once");
        set
    }

    /// True if a word contains these indices, and others only because of folding.
    fn agrees(uses: u64, twin: &BTreeSet<u16>) -> bool {
        let found = set(uses);
        match twin.len() <= LIST_LENGTH || twin.iter().all(|index| *index < BITS_END) {
            true => found == *twin,
            false => {
                let remainders: BTreeSet<u16> = twin.iter().map(|index| index % REMAINDERS).collect();
                found.is_superset(twin)
                    && found.iter().all(|index| remainders.contains(&(index % REMAINDERS)))
            }
        }
    }

    proptest! {
        #[test]
        fn a_word_names_what_a_set_has(one in vec(index(), 0..9), two in vec(index(), 0..9), graph: bool) {
            let word = |indices: &[u16]| indices.iter().fold(0, |uses, index| with(uses, StreamIndex(*index)));
            let twin = |indices: &[u16]| indices.iter().copied().collect::<BTreeSet<u16>>();
            let flag = if graph { GRAPH_BIT } else { 0 };
            let (a, b) = (word(&one) | flag, word(&two));
            prop_assert!(agrees(a, &twin(&one)) && agrees(b, &twin(&two)));
            let (sum, all) = (joined(a, b), &twin(&one) | &twin(&two));
            prop_assert!(agrees(sum, &all) && set(sum) == set(joined(b, a)));
            prop_assert_eq!((sum & GRAPH_BIT, joined(sum, b)), (flag, sum));
        }
    }
}

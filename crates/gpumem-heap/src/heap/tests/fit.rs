//! Lists by size, and runs of bits.

use super::super::fit::{FreeLists, UNIT_BYTES, place};
use super::super::pages::{ones, runs};
use super::super::record::{NONE, RangeRecord, RecordKind, Records};
use super::super::space::PAGE_BYTES;
use super::super::stamps::FreeState;
use gpumem_base::order::Stamp;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_fit_finds_what_a_sorted_list_finds(
        sizes in prop::collection::vec((1_u64..5_000, any::<bool>()), 1..60),
        wanted in 1_u64..6_000,
        alignment in prop_oneof![Just(256_u64), Just(4096), Just(1 << 20)],
    ) {
        let (mut records, mut fit) = (Records::new(), FreeLists::new());
        let mut start = 0;
        let mut kept = Vec::new();
        for (units, is_removed) in sizes {
            let id = records.add(free(start, units * UNIT_BYTES));
            fit.insert(&mut records, id);
            start += units * UNIT_BYTES + PAGE_BYTES;
            if is_removed {
                fit.remove(&mut records, id);
            } else {
                kept.push(id);
            }
            prop_assert!(fit.is_consistent(&records));
        }
        let wanted_bytes = wanted * UNIT_BYTES;
        let fits = |id: &u32| place(&records[*id], wanted_bytes, 0, alignment).is_some();
        let surely = kept.iter().map(|id| records[*id].size_bytes).filter(|size| *size >= 2 * (wanted_bytes + alignment)).min();
        match fit.find(&records, wanted_bytes, 0, alignment) {
            Some(id) => {
                prop_assert!(fits(&id) && kept.contains(&id));
                prop_assert!(surely.is_none_or(|size| records[id].size_bytes <= size + size / 16));
            }
            None => prop_assert!(surely.is_none()),
        }
    }

    #[test]
    fn runs_of_ones_are_those_of_a_walk(mask in any::<u64>()) {
        let mut walked = Vec::new();
        for bit in 0..64 {
            if mask >> bit & 1 == 1 {
                match walked.last_mut() {
                    Some((first, count)) if *first + *count == bit => *count += 1,
                    _ => walked.push((bit, 1)),
                }
            }
        }
        prop_assert_eq!(runs(mask).collect::<Vec<_>>(), walked);
        prop_assert_eq!(runs(mask).fold(0, |all, (first, count)| all | ones(first, count)), mask);
    }
}

fn free(start: u64, size_bytes: u64) -> RangeRecord {
    RangeRecord {
        start,
        size_bytes,
        stamp: Stamp::COMPLETE,
        prev: NONE,
        next: NONE,
        list_prev: NONE,
        list_next: NONE,
        state: FreeState::Ready,
        kind: RecordKind::Free,
        space: 0,
    }
}

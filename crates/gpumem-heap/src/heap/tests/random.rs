//! In any order of operations, no memory is handed out twice or too early, or unmapped while it may be in use.

use super::super::space::PAGE_BYTES;
use super::known::STREAMS;
use super::pair::{Pair, Step, step};
use gpumem_base::HeapTuning;
use proptest::prelude::*;

fn tuning() -> impl Strategy<Value = HeapTuning> {
    let split_bytes_max = prop_oneof![Just(u64::MAX), (1_u64..4).prop_map(|pages| pages * PAGE_BYTES)];
    let tuning = |(growth_slack_per_mille, handle_max_pages, split_bytes_max)| HeapTuning {
        growth_slack_per_mille,
        handle_max_pages,
        split_bytes_max,
        ..HeapTuning::BALANCED
    };
    // Without slack streams don't share pages.
    let growth_slack = prop_oneof![Just(0), 1_u32..200];
    (growth_slack, 1_u32..=8, split_bytes_max).prop_map(tuning)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_handed_out_twice_or_too_early(tuning in tuning(), steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair::new(tuning);
        for step in &steps {
            pair.run(step);
        }
        (0..STREAMS).for_each(|stream| pair.known.observe(stream));
        pair.driver.fails_in = None;
        pair.has_what_it_says_is_free();
    }

    /// Blocks share pages where a limit leaves nothing else.
    #[test]
    fn nothing_is_at_a_limit(tuning in tuning(), pages in 4_u64..40, steps in prop::collection::vec(step(), 1..160)) {
        let mut pair = Pair { limit_bytes: pages * PAGE_BYTES, ..Pair::new(tuning) };
        for step in &steps {
            pair.run(step);
        }
        (0..STREAMS).for_each(|stream| pair.known.observe(stream));
        pair.driver.fails_in = None;
        // Once all streams are complete, everything can be released, shared pages included.
        pair.live.drain(..).for_each(|(block, ..)| pair.heap.give(block.record, &[]));
        pair.run(&Step::Trim { keep_bytes: 0 });
        assert_eq!(pair.heap.reserved_bytes(), 0);
    }

    #[test]
    fn nor_is_anything_of_segments(tuning in tuning(), is_for_host in any::<bool>(), steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair { is_for_host, ..Pair::of_segments(tuning) };
        for step in &steps {
            pair.run(step);
        }
        (0..STREAMS).for_each(|stream| pair.known.observe(stream));
        pair.driver.fails_in = None;
        pair.has_what_it_says_is_free();
        // Once all streams are complete, everything can be released.
        pair.live.drain(..).for_each(|(block, ..)| pair.heap.give(block.record, &[]));
        pair.run(&Step::Trim { keep_bytes: 0 });
        assert_eq!(pair.heap.reserved_bytes(), 0);
    }
}
